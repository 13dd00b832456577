//! The `.pt2` container: a zip archive whose entries share one root folder.
//!
//! The importer reads `archive_format`, `byteorder`, one `models/*.json`, and the raw storages that the
//! weights and constants configs name ([`crate::stored_tensors`]). It never reads sample inputs. An archive is
//! untrusted: sizes are checked before memory is allocated. No two entries share bytes of the file, no entry
//! unpacks to more than its bytes can contain, and the total stays below [`ArchiveLimits`].

use std::collections::HashMap;
use std::io::{Cursor, Read};

use indexmap::IndexMap;
use zip::read::{ArchiveOffset, Config};
use zip::{CompressionMethod, ZipArchive};

use crate::error::{ImportError, Result};
use crate::schema::{PayloadConfig, TensorPayload};

const MAX_JSON: u64 = 1 << 30;

/// The entry of the program in archives before PyTorch 2.8.
const LEGACY_ENTRY: &str = "serialized_exported_program.json";
const LEGACY_NOTE: &str = "; the archive was written by a version of PyTorch before 2.8";

/// The accepted unpacked size per byte of the file. Weights hardly compress, and text rarely compresses more
/// than this.
const MAX_UNPACKED_RATIO: u64 = 64;

/// The additional unpacked size that JSON entries may have.
const FREE_JSON: u64 = 1 << 26;

/// The additional unpacked size that stored tensors may have.
const FREE_TENSORS: u64 = 1 << 30;

/// The largest number of bytes that deflate produces from one byte (a match of 258 bytes in two bits).
const DEFLATE_RATIO: u64 = 1032;

/// The unpacked size that an archive may have, and the part of it that is used.
struct UnpackLimit {
    total: u64,
    used: u64,
}

impl UnpackLimit {
    fn new(archive: usize, free: u64) -> UnpackLimit {
        UnpackLimit {
            total: (archive as u64).saturating_mul(MAX_UNPACKED_RATIO).saturating_add(free),
            used: 0,
        }
    }

    fn charge(&mut self, entry: &str, bytes: u64) -> Result<()> {
        self.used = self.used.saturating_add(bytes);
        if self.used > self.total {
            return Err(ImportError::TooLarge { entry: entry.into(), found: self.used, limit: self.total });
        }
        Ok(())
    }
}

/// The limits of the two kinds of entries.
struct ArchiveLimits {
    json: UnpackLimit,
    /// Storages and the tensors made of them. Each counts once, even if it has several names.
    tensors: UnpackLimit,
}

pub(crate) struct Archive<'a> {
    zip: ZipArchive<Cursor<&'a [u8]>>,
    /// Entry name without the root folder, to index.
    entries: HashMap<String, usize>,
    limits: ArchiveLimits,
}

impl<'a> Archive<'a> {
    /// Opens an archive and checks that it is a `.pt2` of this byte order.
    pub fn open(bytes: &'a [u8]) -> Result<Self> {
        // The archive starts at the first byte of the file. A search for the start would take the second
        // header of some central directories for the first, because PyTorch writes zip64 records after every
        // directory.
        let config = Config { archive_offset: ArchiveOffset::Known(0) };
        let mut zip = ZipArchive::with_config(config, Cursor::new(bytes)).map_err(zip_error)?;
        let mut names = Vec::with_capacity(zip.len());
        let mut packed = 0u64;
        for i in 0..zip.len() {
            let file = zip.by_index_raw(i).map_err(zip_error)?;
            packed = packed.saturating_add(file.compressed_size());
            names.push(file.name().map_err(zip_error)?.into_owned());
        }
        if packed > bytes.len() as u64 {
            return Err(ImportError::Zip(format!(
                "the entries have {packed} bytes in total, but the file has {}",
                bytes.len()
            )));
        }
        let root = names
            .iter()
            .find_map(|n| n.strip_suffix("archive_format").filter(|r| r.is_empty() || r.ends_with('/')))
            .ok_or_else(|| {
                let is_legacy = names.iter().any(|n| n.rsplit('/').next() == Some(LEGACY_ENTRY));
                let hint = if is_legacy { LEGACY_NOTE } else { "; it is not a torch.export archive" };
                ImportError::MissingEntry { entry: "archive_format".into(), hint: hint.into() }
            })?
            .to_string();
        let mut entries = HashMap::with_capacity(names.len());
        for (i, name) in names.iter().enumerate() {
            if let Some(inner) = name.strip_prefix(root.as_str()) {
                entries.insert(inner.to_string(), i);
            }
        }
        let limits = ArchiveLimits {
            json: UnpackLimit::new(bytes.len(), FREE_JSON),
            tensors: UnpackLimit::new(bytes.len(), FREE_TENSORS),
        };
        let mut archive = Archive { zip, entries, limits };
        archive.expect_text("archive_format", "pt2")?;
        if archive.entries.contains_key("byteorder") {
            archive.expect_text("byteorder", "little")?;
        }
        Ok(archive)
    }

    fn expect_text(&mut self, entry: &str, expected: &str) -> Result<()> {
        let bytes = self.read_entry(entry, 1 << 10)?;
        let text = String::from_utf8_lossy(&bytes);
        if text.trim() == expected {
            return Ok(());
        }
        Err(ImportError::Content {
            entry: entry.into(),
            expected: format!("`{expected}`"),
            found: format!("`{}`", text.trim()),
        })
    }

    /// The program to import: its name (`model`) and JSON text. If there are several programs, the one called
    /// `wanted` is preferred, then `model`.
    pub fn program(&mut self, wanted: &str) -> Result<(String, String)> {
        let mut names: Vec<String> = self
            .entries
            .keys()
            .filter_map(|n| n.strip_prefix("models/")?.strip_suffix(".json"))
            .map(str::to_string)
            .collect();
        names.sort();
        let name = match names.as_slice() {
            [] => {
                return Err(ImportError::MissingEntry {
                    entry: "models/model.json".into(),
                    hint: self.missing_program_hint().into(),
                });
            }
            [one] => one.clone(),
            many => ["model", wanted]
                .into_iter()
                .rev()
                .find(|n| many.iter().any(|m| m == n))
                .ok_or_else(|| ImportError::Content {
                    entry: "models".into(),
                    expected: format!("one program, or one called `model` or `{wanted}`"),
                    found: many.join(", "),
                })?
                .to_string(),
        };
        let entry = format!("models/{name}.json");
        let bytes = self.read_entry(&entry, MAX_JSON)?;
        let text = String::from_utf8(bytes)
            .map_err(|_| ImportError::Entry { entry, message: "the text is not UTF-8".into() })?;
        Ok((name, text))
    }

    /// The config of the stored tensors of this kind (`weights`, `constants`). Empty if there is none.
    pub fn config(&mut self, kind: &str, model: &str) -> Result<IndexMap<String, TensorPayload>> {
        let entry = format!("data/{kind}/{model}_{kind}_config.json");
        if !self.entries.contains_key(&entry) {
            let pickle = format!("data/{kind}/{model}.pt");
            if self.entries.contains_key(&pickle) {
                return Err(ImportError::Pickled {
                    tensor: format!("all {kind}"),
                    entry: pickle,
                    message: "expected raw storages".into(),
                });
            }
            return Ok(IndexMap::new());
        }
        let bytes = self.read_entry(&entry, MAX_JSON)?;
        serde_json::from_slice::<PayloadConfig>(&bytes)
            .map(|c| c.config)
            .map_err(|e| ImportError::Entry { entry, message: e.to_string() })
    }

    fn missing_program_hint(&self) -> &'static str {
        if self.entries.contains_key(LEGACY_ENTRY) {
            LEGACY_NOTE
        } else if self.entries.keys().any(|n| n.starts_with("data/") && n.ends_with("_config.json")) {
            "; torch.export.save failed before it wrote the program: see its error"
        } else {
            "; the archive has no exported program"
        }
    }

    pub fn contains(&self, entry: &str) -> bool {
        self.entries.contains_key(entry)
    }

    /// Counts the bytes that an entry, or a tensor made of it, will take. Must be called before they are
    /// allocated.
    pub fn reserve_bytes(&mut self, entry: &str, bytes: u64) -> Result<()> {
        self.limits.tensors.charge(entry, bytes)
    }

    /// The unpacked size of an entry. Fails if its bytes in the file cannot unpack to this size.
    pub fn entry_size(&mut self, entry: &str) -> Result<u64> {
        let Some(&index) = self.entries.get(entry) else {
            return Err(ImportError::MissingEntry { entry: entry.into(), hint: String::new() });
        };
        let file = self.zip.by_index_raw(index).map_err(|e| entry_error(entry, e.to_string()))?;
        let size = file.size();
        let packed = file.compressed_size();
        let max_size = match file.compression() {
            CompressionMethod::Stored => packed,
            _ => packed.saturating_mul(DEFLATE_RATIO),
        };
        if size > max_size {
            return Err(entry_error(entry, format!("{packed} bytes cannot unpack to {size}")));
        }
        Ok(size)
    }

    fn read_entry(&mut self, entry: &str, limit: u64) -> Result<Vec<u8>> {
        let size = self.entry_size(entry)?;
        if size > limit {
            return Err(ImportError::TooLarge { entry: entry.into(), found: size, limit });
        }
        self.limits.json.charge(entry, size)?;
        self.unpack(entry)
    }

    /// The bytes of an entry whose size has been counted.
    pub fn unpack(&mut self, entry: &str) -> Result<Vec<u8>> {
        let size = self.entry_size(entry)?;
        let index = self.entries.get(entry).copied().unwrap_or(usize::MAX);
        let file = self.zip.by_index(index).map_err(|e| entry_error(entry, e.to_string()))?;
        // The stored size is only trusted as far as data arrives.
        let mut bytes = Vec::with_capacity(size.min(1 << 26) as usize);
        file.take(size + 1).read_to_end(&mut bytes).map_err(|e| entry_error(entry, e.to_string()))?;
        if bytes.len() as u64 != size {
            return Err(entry_error(entry, format!("expected {size} bytes, found {}", bytes.len())));
        }
        Ok(bytes)
    }
}

fn zip_error(error: zip::result::ZipError) -> ImportError {
    ImportError::Zip(error.to_string())
}

fn entry_error(entry: &str, message: String) -> ImportError {
    ImportError::Entry { entry: entry.into(), message }
}
