//! Inputs that lie in files, as a rank takes them.
//!
//! Another process may shorten a file at any time, and touching lost pages of a mapping ends the process with SIGBUS. So
//! files are read by position, never mapped, and a file that was shortened or written meanwhile is an error that names it.
//! Ranks of the host read what they need into memory of their own before they start. Engines that copy inputs to a device
//! read them in pieces ([`InputSource`]). Memory with sealed size cannot be shortened, and is mapped.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use serde::{Deserialize, Serialize};
use symmc_support::Backing;

use super::job::EngineChoice;
use super::memory::{Access, Segment};
use super::rank_memory::lay_out;
use crate::error::RunError;
use crate::exec::{InputSource, Span};

/// A file as the launcher found it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct FileStamp {
    /// Its size.
    pub bytes: usize,
    /// When it was last written, in seconds and nanoseconds.
    pub modified: Option<(i64, i64)>,
}

impl FileStamp {
    pub fn of(backing: &dyn Backing) -> FileStamp {
        FileStamp { bytes: backing.size(), modified: backing.modified() }
    }
}

/// Where the data of an input lie.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct InputPlace {
    /// The file, if not the segment of all inputs.
    pub file: Option<usize>,
    pub offset: usize,
    pub len: usize,
}

/// The inputs of a rank that lie in files.
pub(super) struct FileInputs {
    /// The memory of each input that was read or mapped.
    pub spans: Vec<Option<Span>>,
    /// What reads each input that was neither.
    pub sources: Vec<Option<Arc<dyn InputSource>>>,
    /// What the spans point into.
    pub segments: Vec<Segment>,
}

/// A part of a file that the launcher found like this.
#[derive(Debug)]
struct FilePart {
    file: Arc<File>,
    stamp: FileStamp,
    offset: usize,
    len: usize,
}

impl InputSource for FilePart {
    fn size(&self) -> usize {
        self.len
    }

    fn read(&self, at: usize, into: &mut [u8]) -> Result<(), RunError> {
        let is_within = at.checked_add(into.len()).is_some_and(|end| end <= self.len);
        let from = self.offset.checked_add(at).filter(|_| is_within);
        let from =
            from.ok_or_else(|| RunError::system("reading an input", "the place lies outside of the input"))?;
        let read = self.file.read_exact_at(into, from as u64);
        // A change explains an error, and spoils what was read.
        expect_unchanged(&self.file, self.stamp)?;
        read.map_err(|e| RunError::Invalid(format!("{}: {e}", name(&self.file))))
    }
}

/// Takes the inputs at `places` from these files; not those that `elsewhere` holds.
pub(super) fn take(
    files: Vec<(OwnedFd, FileStamp)>,
    places: &[InputPlace],
    elsewhere: &[Option<usize>],
    engine: &EngineChoice,
) -> Result<FileInputs, RunError> {
    let wanted = |i: usize| elsewhere.get(i).is_none_or(Option::is_none);
    let count = places.len();
    let mut out = FileInputs { spans: vec![None; count], sources: vec![None; count], segments: Vec::new() };
    for (index, (fd, stamp)) in files.into_iter().enumerate() {
        let of_file = |(i, p): (usize, &InputPlace)| (p.file == Some(index) && wanted(i)).then_some((i, *p));
        let places: Vec<(usize, InputPlace)> = places.iter().enumerate().filter_map(of_file).collect();
        if places.is_empty() {
            continue;
        }
        if is_sealed(&fd) {
            let segment = Segment::map("the inputs", fd, stamp.bytes, Access::Read)?;
            for (i, place) in places {
                out.spans[i] = Some(segment.span(place.offset, place.len)?);
            }
            out.segments.push(segment);
            continue;
        }
        let file = Arc::new(File::from(fd));
        let part = |place: &InputPlace| {
            let (file, InputPlace { offset, len, .. }) = (file.clone(), *place);
            FilePart { file, stamp, offset, len }
        };
        if *engine != EngineChoice::Host {
            for (i, place) in &places {
                out.sources[*i] = Some(Arc::new(part(place)));
            }
            continue;
        }
        let (starts, end) = lay_out(places.iter().map(|(_, p)| p.len))?;
        let segment = Segment::private("the inputs of a rank", end)?;
        for ((i, place), start) in places.into_iter().zip(starts) {
            let span = segment.span(start, place.len)?;
            // SAFETY: the span lies within the fresh segment, which nobody else has.
            let bytes = unsafe { std::slice::from_raw_parts_mut(span.ptr, span.len) };
            part(&place).read(0, bytes)?;
            out.spans[i] = Some(span);
        }
        out.segments.push(segment);
    }
    Ok(out)
}

/// Whether the size of what is behind a descriptor cannot become less.
fn is_sealed(fd: &OwnedFd) -> bool {
    fcntl(fd, FcntlArg::F_GET_SEALS).is_ok_and(|seals| seals & SealFlag::F_SEAL_SHRINK.bits() != 0)
}

/// Refuses a file that is not what the launcher found any more.
fn expect_unchanged(file: &File, stamp: FileStamp) -> Result<(), RunError> {
    let now = file.metadata().map_err(|e| RunError::Invalid(format!("{}: {e}", name(file))))?;
    let modified = stamp.modified.is_some_and(|m| m != (now.mtime(), now.mtime_nsec()));
    if now.len() == stamp.bytes as u64 && !modified {
        return Ok(());
    }
    let (file, expected, found) = (name(file), stamp.bytes, now.len());
    Err(RunError::Invalid(format!(
        "{file}: the file changed while it was in use: it had {expected} bytes, now it has {found}"
    )))
}

/// The path of an open file, as the system tells it.
fn name(file: &File) -> String {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
    link.map_or_else(|_| "a file of inputs".into(), |path| path.display().to_string())
}
