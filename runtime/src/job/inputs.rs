//! Inputs that lie in files, as a rank reads them.
//!
//! Another process may shorten a file at any time, and touching lost pages of a mapping ends the process with
//! SIGBUS. Files are therefore read by position and never mapped. A file that was shortened or written
//! meanwhile is an error that names it. Sessions read files in pieces to the memory where they need the data
//! ([`InputSource`]). Memory with sealed size cannot be shortened, and is mapped.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use serde::{Deserialize, Serialize};
use symmc_control::{MemorySegment, SegmentAccess};
use symmc_ir::Tensor;
use symmc_support::{Backing, BackingSlice};

use crate::error::{Result, RunError};
use crate::exec::{InputData, InputSource};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct FileStamp {
    pub bytes: usize,
    /// The time of the last write, in seconds and nanoseconds.
    pub modified: Option<(i64, i64)>,
}

impl FileStamp {
    pub fn from_backing(backing: &dyn Backing) -> FileStamp {
        FileStamp { bytes: backing.size(), modified: backing.modified() }
    }
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct InputLocation {
    /// The file; `None` for the segment of all inputs.
    pub file: Option<usize>,
    pub offset: usize,
    pub len: usize,
}

/// A part of a file, with the state of the file that the launcher found.
#[derive(Debug)]
pub(super) struct FileSlice {
    file: Arc<File>,
    stamp: FileStamp,
    offset: usize,
    len: usize,
}

impl InputSource for FileSlice {
    fn size(&self) -> usize {
        self.len
    }

    fn read(&self, at: usize, into: &mut [u8]) -> Result<()> {
        let is_within = at.checked_add(into.len()).is_some_and(|end| end <= self.len);
        let from = self.offset.checked_add(at).filter(|_| is_within);
        let from = from.ok_or_else(|| {
            RunError::system("reading an input", "the requested bytes lie outside of the input")
        })?;
        let read = self.file.read_exact_at(into, from as u64);
        // A change explains an error, and invalidates the data that was read.
        expect_unchanged(&self.file, self.stamp)?;
        read.map_err(|e| RunError::Invalid(format!("{}: {e}", file_name(&self.file))))
    }
}

/// A file that contains inputs, as a rank has opened it.
#[derive(Debug)]
pub(super) enum OpenFile {
    /// Mapped: its size is sealed.
    Mapped(MemorySegment),
    /// Read by position.
    Read(Arc<File>, FileStamp),
}

impl OpenFile {
    /// Opens a file with the state that the launcher found.
    pub fn new(fd: OwnedFd, stamp: FileStamp) -> Result<OpenFile> {
        if is_sealed(&fd) {
            let segment = MemorySegment::map_shared("the inputs", fd, stamp.bytes, SegmentAccess::Read)?;
            return Ok(OpenFile::Mapped(segment));
        }
        Ok(OpenFile::Read(Arc::new(File::from(fd)), stamp))
    }

    pub fn locate_input(&self, place: &InputLocation) -> Result<LocatedInput<'_>> {
        let InputLocation { offset, len, .. } = *place;
        match self {
            OpenFile::Mapped(segment) => {
                let start = segment.checked_address(offset, len)?;
                // SAFETY: the bytes exist as long as the segment, and nothing writes them.
                Ok(LocatedInput::Memory(unsafe { std::slice::from_raw_parts(start, len) }))
            }
            OpenFile::Read(file, stamp) => {
                Ok(LocatedInput::File(FileSlice { file: file.clone(), stamp: *stamp, offset, len }))
            }
        }
    }
}

/// An input of a rank that is a process.
pub(super) enum LocatedInput<'a> {
    Memory(&'a [u8]),
    File(FileSlice),
}

impl LocatedInput<'_> {
    pub fn data(&self) -> InputData<'_> {
        match self {
            LocatedInput::Memory(bytes) => InputData::Memory(bytes),
            LocatedInput::File(slice) => InputData::Source(slice),
        }
    }
}

#[derive(Debug)]
pub(super) struct TensorInput(Arc<Tensor>);

impl TensorInput {
    pub fn new(tensor: &Arc<Tensor>) -> TensorInput {
        TensorInput(tensor.clone())
    }

    /// Its data; read by position if the tensor lies in a file.
    pub fn data(&self) -> InputData<'_> {
        if self.0.backing_slice().is_some_and(BackingSlice::is_volatile) {
            InputData::Source(self)
        } else {
            InputData::Memory(self.0.data())
        }
    }
}

impl InputSource for TensorInput {
    fn size(&self) -> usize {
        self.0.data().len()
    }

    fn read(&self, at: usize, into: &mut [u8]) -> Result<()> {
        self.0.read(at, into).map_err(|e| RunError::Invalid(format!("the inputs: {e}")))
    }
}

/// Whether the size of the file of a descriptor cannot decrease.
fn is_sealed(fd: &OwnedFd) -> bool {
    fcntl(fd, FcntlArg::F_GET_SEALS).is_ok_and(|seals| seals & SealFlag::F_SEAL_SHRINK.bits() != 0)
}

/// Refuses a file that differs from the state that the launcher found.
fn expect_unchanged(file: &File, stamp: FileStamp) -> Result<()> {
    let now = file.metadata().map_err(|e| RunError::Invalid(format!("{}: {e}", file_name(file))))?;
    let modified = stamp.modified.is_some_and(|m| m != (now.mtime(), now.mtime_nsec()));
    if now.len() == stamp.bytes as u64 && !modified {
        return Ok(());
    }
    let file = file_name(file);
    let expected = stamp.bytes;
    let actual = now.len();
    Err(RunError::Invalid(format!(
        "{file}: the file changed while it was in use: it had {expected} bytes, now it has {actual}"
    )))
}

/// The path of an open file, as reported by the system.
fn file_name(file: &File) -> String {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    link.map_or_else(|_| "a file of inputs".into(), |path| path.display().to_string())
}
