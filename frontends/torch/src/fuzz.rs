//! The property that the fuzz target `pt2` and the tests check.

use std::io::{Cursor, Write};

use crate::{ImportOptions, import};

/// Imports bytes: an archive, or the JSON of a program. JSON is put into an archive, so that the checksums of
/// the container do not reject mutations. Returns whether the bytes are a program.
///
/// # Panics
/// The importer panics, or returns a graph that does not verify.
pub fn check_bytes(bytes: &[u8]) -> bool {
    let packed;
    let bytes = if bytes.starts_with(b"{") {
        packed = pack(bytes).unwrap_or_default();
        packed.as_slice()
    } else {
        bytes
    };
    symmc_import::fuzz::check_import(import(bytes, &ImportOptions::default()).map(|imported| imported.graph))
}

/// An archive of this program, without stored tensors.
fn pack(program: &[u8]) -> zip::result::ZipResult<Vec<u8>> {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let stored = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for (name, data) in [("archive_format", b"pt2".as_slice()), ("models/model.json", program)] {
        zip.start_file(name, stored)?;
        zip.write_all(data)?;
    }
    Ok(zip.finish()?.into_inner())
}
