//! Memory that tensors lie in without owning it alone: a mapped file, from which weights reach a rank or a device
//! without a copy on the way.

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;

/// Bytes that do not change while this value lives.
pub trait Backing: Send + Sync {
    /// The bytes.
    fn bytes(&self) -> &[u8];

    /// How many they are, without a look at them.
    fn size(&self) -> usize {
        self.bytes().len()
    }

    /// The file whose whole contents they are, for who wants to map it as well.
    fn file(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A part of a backing.
#[derive(Clone)]
pub struct Part {
    backing: Arc<dyn Backing>,
    range: Range<usize>,
}

impl Part {
    /// These bytes of a backing; `None` if it has not as many.
    pub fn new(backing: Arc<dyn Backing>, range: Range<usize>) -> Option<Part> {
        let within = range.start <= range.end && range.end <= backing.size();
        within.then_some(Part { backing, range })
    }

    /// What it is a part of.
    pub fn backing(&self) -> &Arc<dyn Backing> {
        &self.backing
    }

    /// Which bytes of that it is.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        self.backing.bytes().get(self.range.clone()).unwrap_or_default()
    }
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Part({:?})", self.range)
    }
}

/// A mapped file.
pub struct Mapped {
    file: File,
    map: Mmap,
}

impl Mapped {
    /// Maps a file.
    ///
    /// # Errors
    /// The file cannot be opened or mapped.
    pub fn open(path: &Path) -> std::io::Result<Mapped> {
        let file = File::open(path)?;
        // SAFETY: the map is only read. A file that another process shortens while it is mapped raises
        // SIGBUS, as for every program that maps its input; model files are not changed while in use.
        let map = unsafe { Mmap::map(&file) }?;
        Ok(Mapped { file, map })
    }
}

impl Backing for Mapped {
    fn bytes(&self) -> &[u8] {
        &self.map
    }
    fn file(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }
}
