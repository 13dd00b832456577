//! Memory that tensors share: a mapped file, from which weights reach a rank or a device without intermediate
//! copies.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;

/// Bytes that do not change while this value lives.
pub trait Backing: Send + Sync {
    fn bytes(&self) -> &[u8];

    /// The number of bytes, without reading them.
    fn size(&self) -> usize {
        self.bytes().len()
    }

    /// The file whose whole contents these bytes are, so that other processes can read it as well.
    fn file(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Fills `into` with bytes from `at` on. Fails if they no longer exist, or changed since this value was
    /// made.
    fn read(&self, at: usize, into: &mut [u8]) -> io::Result<()> {
        let end = at.checked_add(into.len());
        let bytes = end.and_then(|end| self.bytes().get(at..end));
        into.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    /// An identity of the bytes that needs no read, if other processes can change them: a file's location, size
    /// and age. Code that computes with such bytes must [read](Self::read) them first.
    fn identity(&self) -> Option<String> {
        None
    }

    /// The time of the file's last write before this value was made, in seconds and nanoseconds.
    fn modified(&self) -> Option<(i64, i64)> {
        None
    }
}

#[derive(Clone)]
pub struct BackingSlice {
    backing: Arc<dyn Backing>,
    range: Range<usize>,
}

impl BackingSlice {
    /// This range of a backing; `None` if the backing is shorter.
    pub fn new(backing: Arc<dyn Backing>, range: Range<usize>) -> Option<BackingSlice> {
        let within = range.start <= range.end && range.end <= backing.size();
        within.then_some(BackingSlice { backing, range })
    }

    pub fn backing(&self) -> &Arc<dyn Backing> {
        &self.backing
    }

    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    pub fn bytes(&self) -> &[u8] {
        self.backing.bytes().get(self.range.clone()).unwrap_or_default()
    }

    /// A copy of the bytes.
    pub fn read(&self, into: &mut [u8]) -> io::Result<()> {
        self.read_from(0, into)
    }

    /// Fills `into` with bytes from `at` on. Fails if the slice has fewer, or as [`Backing::read`].
    pub fn read_from(&self, at: usize, into: &mut [u8]) -> io::Result<()> {
        let is_within = at.checked_add(into.len()).is_some_and(|end| end <= self.range.len());
        let start = self.range.start.checked_add(at).filter(|_| is_within);
        self.backing.read(start.ok_or(io::ErrorKind::UnexpectedEof)?, into)
    }

    /// Whether other processes can change the bytes.
    pub fn is_volatile(&self) -> bool {
        self.backing.identity().is_some()
    }
}

impl fmt::Debug for BackingSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Part({:?})", self.range)
    }
}

#[derive(Debug)]
pub struct MappedFile {
    path: PathBuf,
    file: File,
    map: Mmap,
    stamp: FileIdentity,
}

/// A file's location, size and age.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct FileIdentity {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

impl FileIdentity {
    fn from_file(file: &File) -> io::Result<FileIdentity> {
        let data = file.metadata()?;
        let modified = (data.mtime(), data.mtime_nsec());
        Ok(FileIdentity { device: data.dev(), inode: data.ino(), bytes: data.len(), modified })
    }
}

impl MappedFile {
    pub fn open(path: &Path) -> std::io::Result<MappedFile> {
        let file = File::open(path)?;
        let stamp = FileIdentity::from_file(&file)?;
        // SAFETY: the map is only read. A file that another process truncates while it is mapped raises SIGBUS
        // when
        // the lost pages are accessed, so code that computes with the bytes reads them from the file first.
        let map = unsafe { Mmap::map(&file) }?;
        Ok(MappedFile { path: path.to_path_buf(), file, map, stamp })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the file is unchanged since it was opened.
    pub fn check_unchanged(&self) -> io::Result<()> {
        let now = FileIdentity::from_file(&self.file)?;
        let opened = self.stamp;
        if now == opened {
            return Ok(());
        }
        Err(io::Error::other(format!(
            "{}: the file changed while it was in use: it had {} bytes, now it has {}",
            self.path.display(),
            opened.bytes,
            now.bytes
        )))
    }
}

impl Backing for MappedFile {
    fn bytes(&self) -> &[u8] {
        &self.map
    }
    fn file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }
    fn read(&self, at: usize, into: &mut [u8]) -> io::Result<()> {
        let read = self.file.read_exact_at(into, at as u64);
        self.check_unchanged()?;
        read.map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", self.path.display())))
    }
    fn identity(&self) -> Option<String> {
        let FileIdentity { device, inode, bytes, modified: (seconds, nanos) } = self.stamp;
        Some(format!("{bytes} bytes at {device}:{inode}, written {seconds}.{nanos:09}"))
    }
    fn modified(&self) -> Option<(i64, i64)> {
        Some(self.stamp.modified)
    }
}
