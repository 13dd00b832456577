//! Inputs that lie in files, as a rank takes them.
//!
//! A file that is mapped can be shortened while it is, and then whoever touches the lost pages is ended by a signal.
//! So ranks of the host read what they need into memory of their own before they start: a file that was shortened or
//! written meanwhile is an error that names it. Memory with sealed size is mapped. GPUs take their inputs from a mapping,
//! once.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use serde::{Deserialize, Serialize};
use symmc_ir::Backing;

use super::job::EngineChoice;
use super::memory::Segment;
use super::rank_memory::lay_out;
use crate::error::RunError;
use crate::exec::Span;

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
        FileStamp { bytes: backing.bytes().len(), modified: backing.modified() }
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
    /// The memory of each input, where it lies in a file and is not copied elsewhere.
    pub spans: Vec<Option<Span>>,
    /// What the spans point into.
    pub segments: Vec<Segment>,
}

/// Takes the inputs at `places` from these files; not those that `elsewhere` holds.
pub(super) fn take(
    files: Vec<(OwnedFd, FileStamp)>,
    places: &[InputPlace],
    elsewhere: &[Option<usize>],
    engine: &EngineChoice,
) -> Result<FileInputs, RunError> {
    let wanted = |i: usize| elsewhere.get(i).is_none_or(Option::is_none);
    let mut out = FileInputs { spans: vec![None; places.len()], segments: Vec::new() };
    for (index, (fd, stamp)) in files.into_iter().enumerate() {
        let of_file = |(i, p): (usize, &InputPlace)| (p.file == Some(index) && wanted(i)).then_some((i, *p));
        let places: Vec<(usize, InputPlace)> = places.iter().enumerate().filter_map(of_file).collect();
        if places.is_empty() {
            continue;
        }
        if is_sealed(&fd) || *engine != EngineChoice::Host {
            let segment = Segment::of_file("a file of inputs", fd, stamp.bytes)?;
            for (i, place) in places {
                out.spans[i] = Some(segment.span(place.offset, place.len)?);
            }
            out.segments.push(segment);
            continue;
        }
        let (starts, end) = lay_out(places.iter().map(|(_, p)| p.len))?;
        let segment = Segment::private("the inputs of a rank", end)?;
        let file = File::from(fd);
        for ((i, place), start) in places.into_iter().zip(starts) {
            let span = segment.span(start, place.len)?;
            // SAFETY: the span lies within the fresh segment, which nobody else has.
            let bytes = unsafe { std::slice::from_raw_parts_mut(span.ptr, span.len) };
            file.read_exact_at(bytes, place.offset as u64).map_err(|e| unread(&file, stamp, &e))?;
            out.spans[i] = Some(span);
        }
        unchanged(&file, stamp)?;
        out.segments.push(segment);
    }
    Ok(out)
}

/// Whether the size of what is behind a descriptor cannot become less.
fn is_sealed(fd: &OwnedFd) -> bool {
    fcntl(fd, FcntlArg::F_GET_SEALS).is_ok_and(|seals| seals & SealFlag::F_SEAL_SHRINK.bits() != 0)
}

fn unread(file: &File, stamp: FileStamp, error: &std::io::Error) -> RunError {
    unchanged(file, stamp).err().unwrap_or_else(|| RunError::Invalid(format!("{}: {error}", name(file))))
}

/// Whether the file is still what the launcher found.
fn unchanged(file: &File, stamp: FileStamp) -> Result<(), RunError> {
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
