//! Zip archives in the layout of PyTorch's writer: data at multiples of 64 bytes, padded by an extra field;
//! sizes in descriptors after the data; and zip64 records after the directory even if nothing is large.

use std::io::{Cursor, Read};

use zip::{CompressionMethod, ZipArchive};

/// The zip64 records of an archive.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Zip64Records {
    /// No records, as from other writers.
    No,
    /// The records after the directory, which PyTorch always writes.
    Records,
    /// Also the sizes and offsets of all entries, which PyTorch writes for large ones.
    Entries,
}

/// An entry in its stored form.
pub struct StoredEntry {
    pub name: String,
    pub method: u16,
    pub data: Vec<u8>,
    pub size: u64,
    pub crc: u32,
}

pub fn packed(name: &str, data: &[u8], method: CompressionMethod) -> StoredEntry {
    let zipped = super::zipped_as("", &[(name.to_string(), data.to_vec())], |_| method);
    let mut zip = ZipArchive::new(Cursor::new(zipped)).expect("an archive");
    let mut file = zip.by_index_raw(0).expect("an entry");
    let mut raw = Vec::new();
    file.read_to_end(&mut raw).expect("its bytes");
    let method = if method == CompressionMethod::Stored { 0 } else { 8 };
    StoredEntry { name: name.into(), method, data: raw, size: data.len() as u64, crc: file.crc32() }
}

fn append_fields(out: &mut Vec<u8>, fields: &[(u64, usize)]) {
    for (value, width) in fields {
        out.extend(&value.to_le_bytes()[..*width]);
    }
}

/// The archive of these entries.
pub fn archive(entries: &[StoredEntry], wide: Zip64Records) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    let narrow = |value: u64| if wide == Zip64Records::Entries { u64::from(u32::MAX) } else { value };
    for e in entries {
        let (start, method, name) = (out.len() as u64, u64::from(e.method), e.name.len() as u64);
        let (packed, crc) = (e.data.len() as u64, u64::from(e.crc));
        let mut extra = Vec::new();
        if wide == Zip64Records::Entries {
            append_fields(&mut extra, &[(1, 2), (16, 2), (e.size, 8), (packed, 8)]);
        }
        let data = out.len() + 30 + e.name.len() + extra.len() + 4;
        let padding = data.next_multiple_of(64) - data;
        append_fields(&mut extra, &[(0x4246, 2), (padding as u64, 2)]);
        extra.resize(extra.len() + padding, b'Z');
        append_fields(&mut out, &[(0x0403_4b50, 4), (0, 2), (0x0808, 2), (method, 2), (0, 4), (0, 4)]);
        append_fields(&mut out, &[(narrow(0), 4), (narrow(0), 4), (name, 2), (extra.len() as u64, 2)]);
        out.extend(e.name.as_bytes());
        out.extend(&extra);
        out.extend(&e.data);
        let width = if wide == Zip64Records::Entries { 8 } else { 4 };
        append_fields(&mut out, &[(0x0807_4b50, 4), (crc, 4), (packed, width), (e.size, width)]);

        let mut extra = Vec::new();
        if wide == Zip64Records::Entries {
            append_fields(&mut extra, &[(1, 2), (24, 2), (e.size, 8), (packed, 8), (start, 8)]);
        }
        append_fields(
            &mut directory,
            &[(0x0201_4b50, 4), (0, 2), (0, 2), (0x0808, 2), (method, 2), (0, 4), (crc, 4)],
        );
        append_fields(
            &mut directory,
            &[(narrow(packed), 4), (narrow(e.size), 4), (name, 2), (extra.len() as u64, 2)],
        );
        append_fields(&mut directory, &[(0, 2), (0, 2), (0, 2), (0, 4), (narrow(start), 4)]);
        directory.extend(e.name.as_bytes());
        directory.extend(&extra);
    }
    let (start, size, count) = (out.len() as u64, directory.len() as u64, entries.len() as u64);
    out.extend(&directory);
    if wide != Zip64Records::No {
        let records = out.len() as u64;
        append_fields(&mut out, &[(0x0606_4b50, 4), (44, 8), (0x031e, 2), (45, 2), (0, 4), (0, 4)]);
        append_fields(&mut out, &[(count, 8), (count, 8), (size, 8), (start, 8)]);
        append_fields(&mut out, &[(0x0706_4b50, 4), (0, 4), (records, 8), (1, 4)]);
    }
    append_fields(&mut out, &[(0x0605_4b50, 4), (0, 2), (0, 2), (count, 2), (count, 2)]);
    append_fields(&mut out, &[(size, 4), (narrow(start), 4), (0, 2)]);
    out
}
