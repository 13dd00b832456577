//! Files as a whole, with what they should be for the message where they are not.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// The most that is read of a device or a pipe, which may have no end, in bytes.
const MAX_STREAM_BYTES: u64 = 1 << 30;

/// The bytes of a file that should be `expected`.
///
/// # Errors
/// It cannot be read, or is a folder.
pub(crate) fn read_file(path: &Path, expected: &str) -> Result<Vec<u8>, Error> {
    let (bytes, file) = read_head(path, expected)?;
    read_rest(path, bytes, file)
}

/// The first two bytes of a file that should be `expected`, or as many as it has, and the file to [`read_on`].
///
/// # Errors
/// As [`read`].
pub(crate) fn read_head(path: &Path, expected: &str) -> Result<(Vec<u8>, File), Error> {
    if path.is_dir() {
        return Err(Error::format(path, format!("this is a folder; expected {expected}")));
    }
    let mut bytes = Vec::new();
    let mut open = || {
        let mut file = File::open(path)?;
        file.by_ref().take(2).read_to_end(&mut bytes)?;
        Ok(file)
    };
    let file = open().map_err(|e| Error::io(path, e))?;
    Ok((bytes, file))
}

/// All of a file, of which `bytes` were read.
///
/// # Errors
/// It cannot be read.
pub(crate) fn read_rest(path: &Path, mut bytes: Vec<u8>, mut file: File) -> Result<Vec<u8>, Error> {
    let is_file = file.metadata().is_ok_and(|found| found.is_file());
    let most = if is_file { u64::MAX } else { MAX_STREAM_BYTES };
    file.by_ref().take(most).read_to_end(&mut bytes).map_err(|e| Error::io(path, e))?;
    if !is_file && bytes.len() as u64 >= MAX_STREAM_BYTES {
        let limit = MAX_STREAM_BYTES >> 20;
        return Err(Error::format(
            path,
            format!("this device or pipe has more than {limit} MiB; expected less, or a file"),
        ));
    }
    Ok(bytes)
}

/// The text of a file that should be `expected`, without the mark that some editors put in front of UTF-8.
///
/// # Errors
/// It is not UTF-8.
pub(crate) fn decode_utf8(path: &Path, bytes: Vec<u8>, expected: &str) -> Result<String, Error> {
    let text = String::from_utf8(bytes)
        .map_err(|_| Error::format(path, format!("the file is not UTF-8 text; expected {expected}")))?;
    Ok(text.strip_prefix('\u{feff}').map(str::to_string).unwrap_or(text))
}

/// Whether a path names what gives bytes once: a device, a pipe or a socket.
pub(crate) fn is_stream(path: &Path) -> bool {
    path.metadata().is_ok_and(|kind| !kind.is_file() && !kind.is_dir())
}

/// The tensors recorded beside a program, if there is a file of them.
pub(crate) fn find_recorded_tensors(path: &Path) -> Option<PathBuf> {
    Some(path.with_extension("safetensors")).filter(|p| p.is_file())
}
