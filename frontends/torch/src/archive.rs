//! The `.pt2` container: a zip archive whose entries share one root folder.
//!
//! Read are `archive_format`, `byteorder`, one `models/*.json`, and the raw storages that the weights and
//! constants configs name ([`crate::stored_tensors`]). Pickles are never opened, sample inputs never read. An archive is
//! untrusted: sizes are checked before memory is taken. No two entries share bytes of the file, none unpacks to more
//! than its bytes can hold, and all that is unpacked stays below [`ArchiveLimits`].

use std::collections::HashMap;
use std::io::{Cursor, Read};

use indexmap::IndexMap;
use zip::read::{ArchiveOffset, Config};
use zip::{CompressionMethod, ZipArchive};

use crate::error::{ImportError, Result};
use crate::schema::{PayloadConfig, TensorPayload};

const MAX_JSON: u64 = 1 << 30;

/// The entry of the program in archives before PyTorch 2.8.
const LEGACY: &str = "serialized_exported_program.json";
const BEFORE: &str = "; the archive was written by a version of PyTorch before 2.8";

/// What a byte of the file may become: weights hardly compress, and text seldom more.
const RATIO: u64 = 64;

/// What JSON entries may unpack to besides.
const FREE_JSON: u64 = 1 << 26;

/// What stored tensors may unpack to besides.
const FREE_TENSORS: u64 = 1 << 30;

/// What deflate makes of a byte at most (258 bytes of a match in two bits).
const DEFLATE_RATIO: u64 = 1032;

/// How much an archive may still unpack to.
struct UnpackLimit {
    total: u64,
    used: u64,
}

impl UnpackLimit {
    fn new(archive: usize, free: u64) -> UnpackLimit {
        UnpackLimit { total: (archive as u64).saturating_mul(RATIO).saturating_add(free), used: 0 }
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
    /// Storages and the tensors made of them, each counted once however many names it has.
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
        let zip_error = |e: zip::result::ZipError| ImportError::Zip(e.to_string());
        // The file is the archive from its first byte on. Looking for where it starts would take the second header
        // of some central directories for the first: PyTorch writes records of zip64 behind every directory.
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
                "its entries have {packed} bytes together, the file has {}",
                bytes.len()
            )));
        }
        let root = names
            .iter()
            .find_map(|n| n.strip_suffix("archive_format").filter(|r| r.is_empty() || r.ends_with('/')))
            .ok_or_else(|| ImportError::MissingEntry {
                entry: "archive_format".into(),
                hint: match names.iter().any(|n| n.rsplit('/').next() == Some(LEGACY)) {
                    true => BEFORE,
                    false => "; it is no torch.export archive",
                }
                .into(),
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
        let found = String::from_utf8_lossy(&bytes);
        if found.trim() == expected {
            return Ok(());
        }
        Err(ImportError::Content {
            entry: entry.into(),
            expected: format!("`{expected}`"),
            found: format!("`{}`", found.trim()),
        })
    }

    /// The program to import: its name (`model`) and JSON text. With several programs it is the one called
    /// `wanted`, else `model`.
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
            .map_err(|_| ImportError::Entry { entry, message: "it is not UTF-8".into() })?;
        Ok((name, text))
    }

    /// The config of the stored tensors of this kind (`weights`, `constants`); empty if there is none.
    pub fn config(&mut self, kind: &str, model: &str) -> Result<IndexMap<String, TensorPayload>> {
        let entry = format!("data/{kind}/{model}_{kind}_config.json");
        if !self.entries.contains_key(&entry) {
            let pickle = format!("data/{kind}/{model}.pt");
            if self.entries.contains_key(&pickle) {
                return Err(ImportError::Pickled { tensor: format!("all {kind}"), entry: pickle });
            }
            return Ok(IndexMap::new());
        }
        let bytes = self.read_entry(&entry, MAX_JSON)?;
        serde_json::from_slice::<PayloadConfig>(&bytes)
            .map(|c| c.config)
            .map_err(|e| ImportError::Entry { entry, message: e.to_string() })
    }

    fn missing_program_hint(&self) -> &'static str {
        if self.entries.contains_key(LEGACY) {
            BEFORE
        } else if self.entries.keys().any(|n| n.starts_with("data/") && n.ends_with("_config.json")) {
            "; torch.export.save failed before it wrote the program, its own error says why"
        } else {
            "; it holds no exported program"
        }
    }

    pub fn contains(&self, entry: &str) -> bool {
        self.entries.contains_key(entry)
    }

    /// Counts bytes that an entry, or a tensor made of it, will take. To be called before they are taken.
    pub fn reserve_bytes(&mut self, entry: &str, bytes: u64) -> Result<()> {
        self.limits.tensors.charge(entry, bytes)
    }

    /// The size of an entry, which its bytes in the file can hold.
    pub fn entry_size(&mut self, entry: &str) -> Result<u64> {
        let Some(&index) = self.entries.get(entry) else {
            return Err(ImportError::MissingEntry { entry: entry.into(), hint: String::new() });
        };
        let error = |message: String| ImportError::Entry { entry: entry.into(), message };
        let file = self.zip.by_index_raw(index).map_err(|e| error(e.to_string()))?;
        let (size, packed) = (file.size(), file.compressed_size());
        let most = match file.compression() {
            CompressionMethod::Stored => packed,
            _ => packed.saturating_mul(DEFLATE_RATIO),
        };
        if size > most {
            return Err(error(format!("{packed} bytes cannot unpack to {size}")));
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

    /// The bytes of an entry that has been counted.
    pub fn unpack(&mut self, entry: &str) -> Result<Vec<u8>> {
        let size = self.entry_size(entry)?;
        let error = |message: String| ImportError::Entry { entry: entry.into(), message };
        let index = self.entries.get(entry).copied().unwrap_or(usize::MAX);
        let file = self.zip.by_index(index).map_err(|e| error(e.to_string()))?;
        // A stored size is believed only as far as data arrives.
        let mut bytes = Vec::with_capacity(size.min(1 << 26) as usize);
        file.take(size + 1).read_to_end(&mut bytes).map_err(|e| error(e.to_string()))?;
        if bytes.len() as u64 != size {
            return Err(error(format!("expected {size} bytes, found {}", bytes.len())));
        }
        Ok(bytes)
    }
}
