//! Memory of a run: segments that ranks share, and private memory of one rank.
//!
//! A shared segment is an anonymous file (`memfd_create`) with sealed size. Every process that received its
//! descriptor maps it. It has no name in any file system: the kernel frees it with the last process that
//! holds it, however that process ends.
//!
//! All bytes of both start as zero. Segments are page aligned and never empty, so every address within the
//! requested length is valid. Files are never mapped here: another process that shortens a file would end
//! this process with SIGBUS.

use std::ffi::CString;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use nix::sys::stat::fstat;
use nix::unistd::ftruncate;

use crate::error::{Result, RunError};

/// A mapping of this size or more is aligned to huge pages and requests them.
const HUGE: usize = 2 << 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SegmentAccess {
    Read,
    ReadWrite,
}

/// Mapped memory, shared or private. Unmapped when dropped.
#[derive(Debug)]
pub struct MemorySegment {
    address: NonNull<u8>,
    len: usize,
    mapped: usize,
    fd: Option<OwnedFd>,
}

// SAFETY: a segment owns its mapping and only hands out raw pointers; code that dereferences them is
// responsible for synchronisation.
unsafe impl Send for MemorySegment {}
// SAFETY: as above; no method of a shared reference touches the memory.
unsafe impl Sync for MemorySegment {}

impl MemorySegment {
    /// A new shared segment of `len` bytes of zeros, mapped for reading and writing. `what` names its purpose
    /// in errors and in `/proc/<pid>/maps`.
    pub fn create(what: &str, len: usize) -> Result<MemorySegment> {
        let label = CString::new(format!("symmc {what}")).unwrap_or_default();
        let fd = memfd_create(label.as_c_str(), MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)
            .map_err(|e| RunError::from_failed_allocation(what, len, "memfd_create", e))?;
        let size = i64::try_from(len.max(1))
            .map_err(|_| RunError::from_failed_allocation(what, len, "ftruncate", Errno::EFBIG))?;
        ftruncate(&fd, size).map_err(|e| RunError::from_failed_allocation(what, len, "ftruncate", e))?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&fd, FcntlArg::F_ADD_SEALS(seals))
            .map_err(|e| RunError::from_failed_allocation(what, len, "fcntl", e))?;
        MemorySegment::map_shared(what, fd, len, SegmentAccess::ReadWrite)
    }

    /// Maps the shared segment of `fd`, which must have sealed size and at least `len` bytes.
    pub fn map_shared(what: &str, fd: OwnedFd, len: usize, access: SegmentAccess) -> Result<MemorySegment> {
        let seals = fcntl(&fd, FcntlArg::F_GET_SEALS)
            .map_err(|e| RunError::from_failed_allocation(what, len, "fcntl", e))?;
        let status = fstat(&fd).map_err(|e| RunError::from_failed_allocation(what, len, "fstat", e))?;
        let size = usize::try_from(status.st_size).unwrap_or(0);
        if seals & SealFlag::F_SEAL_SHRINK.bits() == 0 || size < len.max(1) {
            let detail = format!("expected a segment of {len} bytes with sealed size, found {size} bytes");
            return Err(RunError::system("mapping shared memory", detail));
        }
        let protection = match access {
            SegmentAccess::Read => ProtFlags::PROT_READ,
            SegmentAccess::ReadWrite => ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
        };
        let mapped = len.max(1);
        let address = map_aligned(fd.as_fd(), mapped, protection)
            .map_err(|e| RunError::from_failed_allocation(what, len, "mmap", e))?;
        Ok(MemorySegment { address, len, mapped, fd: Some(fd) })
    }

    /// Memory of `len` bytes of zeros that only this process can access.
    pub fn create_private(what: &str, len: usize) -> Result<MemorySegment> {
        let mapped = len.max(1);
        let size = NonZeroUsize::new(mapped).unwrap_or(NonZeroUsize::MIN);
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice overlaps nothing.
        let address = unsafe { mmap_anonymous(None, size, protection, flags) };
        let address = address.map_err(|e| RunError::from_failed_allocation(what, len, "mmap", e))?.cast();
        let segment = MemorySegment { address, len, mapped, fd: None };
        if mapped >= HUGE {
            // SAFETY: the range is the new mapping. Advice only; its failure changes nothing.
            let _ = unsafe { madvise(segment.address.cast(), mapped, MmapAdvise::MADV_HUGEPAGE) };
        }
        Ok(segment)
    }

    /// Returns the pages of a shared segment to the system, for all processes that map it. Its bytes are zero
    /// afterwards.
    pub fn discard_pages(&self) -> Result<()> {
        // SAFETY: the range is this segment's mapping; its users are responsible for the contents.
        let done = unsafe { madvise(self.address.cast(), self.mapped, MmapAdvise::MADV_REMOVE) };
        done.map_err(|e| RunError::from_system_call("returning shared memory to the system", "madvise", e))
    }

    pub fn as_ptr(&self) -> *mut u8 {
        self.address.as_ptr()
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().map(|fd| fd.as_fd())
    }

    /// The address of `len` bytes that start at `offset`. Fails if they do not lie within the segment.
    pub fn checked_address(&self, offset: usize, len: usize) -> Result<*mut u8> {
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.len());
        if !fits {
            return Err(RunError::system("reading the job", "a tensor lies outside of its segment"));
        }
        Ok(self.as_ptr().wrapping_add(offset))
    }
}

impl Drop for MemorySegment {
    fn drop(&mut self) {
        // SAFETY: the range is this segment's own mapping, and its addresses may not be used any more.
        let _ = unsafe { munmap(self.address.cast(), self.mapped) };
    }
}

/// Maps `fd`; a large mapping starts at a multiple of the huge page size.
fn map_aligned(fd: BorrowedFd<'_>, len: usize, protection: ProtFlags) -> nix::Result<NonNull<u8>> {
    let size = NonZeroUsize::new(len).unwrap_or(NonZeroUsize::MIN);
    if len < HUGE {
        // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing.
        return Ok(unsafe { mmap(None, size, protection, MapFlags::MAP_SHARED, fd, 0) }?.cast());
    }
    let span = size.checked_add(HUGE).ok_or(Errno::ENOMEM)?;
    let reserve = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
    // SAFETY: a fresh inaccessible mapping that reserves addresses.
    let start = unsafe { mmap_anonymous(None, span, ProtFlags::PROT_NONE, reserve) }?;
    let from = start.as_ptr() as usize;
    let aligned = from.next_multiple_of(HUGE);
    let end = (aligned + len).next_multiple_of(4096);
    // SAFETY: the parts of the reservation before and after the aligned range are unmapped, then the range
    // itself is replaced; the reservation contains nothing else.
    unsafe {
        if aligned > from {
            munmap(start, aligned - from)?;
        }
        if from + span.get() > end {
            let tail = NonNull::new(end as *mut _).ok_or(Errno::ENOMEM)?;
            munmap(tail, from + span.get() - end)?;
        }
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED;
        let address = mmap(NonZeroUsize::new(aligned), size, protection, flags, fd, 0)?;
        // Advice only; its failure changes nothing.
        let _ = madvise(address, len, MmapAdvise::MADV_HUGEPAGE);
        Ok(address.cast())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_shared_zeroed_and_of_fixed_size() {
        for len in [0, 1, 5000, 3 << 20] {
            let a = MemorySegment::create("test", len).unwrap();
            let fd = a.fd().unwrap().try_clone_to_owned().unwrap();
            assert!(ftruncate(&fd, 1 << 30).is_err(), "the size is sealed");
            let b = MemorySegment::map_shared("test", fd, len, SegmentAccess::Read).unwrap();
            if len > 0 {
                // SAFETY: both mappings hold `len` bytes.
                unsafe {
                    assert_eq!(*b.as_ptr().add(len - 1), 0);
                    *a.as_ptr().add(len - 1) = 7;
                    assert_eq!(*b.as_ptr().add(len - 1), 7);
                }
            }
        }
    }

    #[test]
    fn a_segment_that_is_too_short_is_refused() {
        let a = MemorySegment::create("test", 100).unwrap();
        let fd = a.fd().unwrap().try_clone_to_owned().unwrap();
        assert!(MemorySegment::map_shared("test", fd, 101, SegmentAccess::Read).is_err());
    }
}
