//! Reads whole files. Callers pass the expected content as text, for messages about other content.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// The most bytes that are read from a device or a pipe, which may have no end.
const MAX_STREAM_BYTES: u64 = 1 << 30;

/// The bytes of a file. `expected` describes its content in messages.
///
/// # Errors
/// The file cannot be read, or is a folder.
pub(crate) fn read_file(path: &Path, expected: &str) -> Result<Vec<u8>, Error> {
    let (bytes, file) = read_head(path, expected)?;
    read_rest(path, bytes, file)
}

/// The first two bytes of a file, or fewer if it is shorter, and the open file for [`read_rest`].
///
/// # Errors
/// As [`read_file`].
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

/// All bytes of a file, of which `bytes` have been read already.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn read_rest(path: &Path, mut bytes: Vec<u8>, mut file: File) -> Result<Vec<u8>, Error> {
    let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
    let max_bytes = if is_file { u64::MAX } else { MAX_STREAM_BYTES };
    file.by_ref().take(max_bytes).read_to_end(&mut bytes).map_err(|e| Error::io(path, e))?;
    if !is_file && bytes.len() as u64 >= MAX_STREAM_BYTES {
        let limit = MAX_STREAM_BYTES >> 20;
        return Err(Error::format(
            path,
            format!("this device or pipe has more than {limit} MiB; expected less, or a file"),
        ));
    }
    Ok(bytes)
}

/// The text of a file, without the byte order mark that some editors write before UTF-8. `expected` describes its content in
/// messages.
///
/// # Errors
/// The file is not UTF-8.
pub(crate) fn decode_utf8(path: &Path, bytes: Vec<u8>, expected: &str) -> Result<String, Error> {
    let text = String::from_utf8(bytes)
        .map_err(|_| Error::format(path, format!("the file is not UTF-8 text; expected {expected}")))?;
    Ok(text.strip_prefix('\u{feff}').map(str::to_string).unwrap_or(text))
}

/// Whether the bytes at a path can be read only once: it is a device, a pipe or a socket.
pub(crate) fn is_stream(path: &Path) -> bool {
    path.metadata().is_ok_and(|kind| !kind.is_file() && !kind.is_dir())
}

/// The tensors recorded next to a program, if there is such a file.
pub(crate) fn find_recorded_tensors(path: &Path) -> Option<PathBuf> {
    Some(path.with_extension("safetensors")).filter(|p| p.is_file())
}
