//! The `.pt2` container: a zip archive whose entries share one root folder.
//!
//! Read are `archive_format`, `byteorder`, one `models/*.json`, and the raw storages that the weights and
//! constants configs name. Pickles are never opened, sample inputs never read. An archive is untrusted:
//! sizes are checked before memory is taken, and all that is unpacked stays below
//! [`Limits::total`].

use std::collections::HashMap;
use std::io::{Cursor, Read};
use std::sync::Arc;

use indexmap::IndexMap;
use symmc_ir::{DType, Tensor};
use zip::ZipArchive;

use crate::dtype;
use crate::error::ImportError;
use crate::schema::{Payload, PayloadConfig, STRIDED, StorageMeta};

/// The largest JSON entry.
const MAX_JSON: u64 = 1 << 30;

/// How much an archive may unpack to.
struct Limits {
    /// All entries and materialised tensors together, in bytes.
    total: u64,
    used: u64,
}

impl Limits {
    fn take(&mut self, entry: &str, bytes: u64) -> Result<(), ImportError> {
        self.used = self.used.saturating_add(bytes);
        if self.used > self.total {
            return Err(ImportError::TooLarge { entry: entry.into(), found: self.used, limit: self.total });
        }
        Ok(())
    }
}

/// An opened archive.
pub(crate) struct Archive<'a> {
    zip: ZipArchive<Cursor<&'a [u8]>>,
    /// Entry name without the root folder, to index.
    entries: HashMap<String, usize>,
    limits: Limits,
}

impl<'a> Archive<'a> {
    /// Opens an archive and checks that it is a `.pt2` of this byte order.
    pub fn open(bytes: &'a [u8]) -> Result<Self, ImportError> {
        let zip_error = |e: zip::result::ZipError| ImportError::Zip(e.to_string());
        let mut zip = ZipArchive::new(Cursor::new(bytes)).map_err(zip_error)?;
        let mut names = Vec::with_capacity(zip.len());
        for i in 0..zip.len() {
            let file = zip.by_index_raw(i).map_err(zip_error)?;
            names.push(file.name().map_err(zip_error)?.into_owned());
        }
        let root = names
            .iter()
            .find_map(|n| n.strip_suffix("archive_format").filter(|r| r.is_empty() || r.ends_with('/')))
            .ok_or_else(|| ImportError::MissingEntry {
                entry: "archive_format".into(),
                hint: "; it is no torch.export archive".into(),
            })?
            .to_string();
        let mut entries = HashMap::with_capacity(names.len());
        for (i, name) in names.iter().enumerate() {
            if let Some(inner) = name.strip_prefix(root.as_str()) {
                entries.insert(inner.to_string(), i);
            }
        }
        // Weights hardly compress, so this leaves room for every real archive and none for a bomb.
        let total = (bytes.len() as u64).saturating_mul(64).saturating_add(MAX_JSON);
        let mut archive = Archive { zip, entries, limits: Limits { total, used: 0 } };
        archive.expect_text("archive_format", "pt2")?;
        if archive.entries.contains_key("byteorder") {
            archive.expect_text("byteorder", "little")?;
        }
        Ok(archive)
    }

    fn expect_text(&mut self, entry: &str, expected: &str) -> Result<(), ImportError> {
        let bytes = self.read(entry, 1 << 10)?;
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
    pub fn program(&mut self, wanted: &str) -> Result<(String, String), ImportError> {
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
                    hint: if self.entries.contains_key("serialized_exported_program.json") {
                        "; the archive was written by a version of PyTorch before 2.8".into()
                    } else {
                        "; it holds no exported program".into()
                    },
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
        let bytes = self.read(&entry, MAX_JSON)?;
        let text = String::from_utf8(bytes)
            .map_err(|_| ImportError::Entry { entry, message: "it is not UTF-8".into() })?;
        Ok((name, text))
    }

    /// The config of the stored tensors of this kind (`weights`, `constants`); empty if there is none.
    pub fn config(&mut self, kind: &str, model: &str) -> Result<IndexMap<String, Payload>, ImportError> {
        let entry = format!("data/{kind}/{model}_{kind}_config.json");
        if !self.entries.contains_key(&entry) {
            let pickle = format!("data/{kind}/{model}.pt");
            if self.entries.contains_key(&pickle) {
                return Err(ImportError::Pickled { tensor: format!("all {kind}"), entry: pickle });
            }
            return Ok(IndexMap::new());
        }
        let bytes = self.read(&entry, MAX_JSON)?;
        serde_json::from_slice::<PayloadConfig>(&bytes)
            .map(|c| c.config)
            .map_err(|e| ImportError::Entry { entry, message: e.to_string() })
    }

    fn read(&mut self, entry: &str, limit: u64) -> Result<Vec<u8>, ImportError> {
        let Some(&index) = self.entries.get(entry) else {
            return Err(ImportError::MissingEntry { entry: entry.into(), hint: String::new() });
        };
        let error = |message: String| ImportError::Entry { entry: entry.into(), message };
        let file = self.zip.by_index(index).map_err(|e| error(e.to_string()))?;
        let size = file.size();
        if size > limit {
            return Err(ImportError::TooLarge { entry: entry.into(), found: size, limit });
        }
        self.limits.take(entry, size)?;
        // A stored size is believed only as far as data arrives.
        let mut bytes = Vec::with_capacity(size.min(1 << 26) as usize);
        file.take(size + 1).read_to_end(&mut bytes).map_err(|e| error(e.to_string()))?;
        if bytes.len() as u64 != size {
            return Err(error(format!("expected {size} bytes, found {}", bytes.len())));
        }
        Ok(bytes)
    }
}

/// The stored tensors of one kind, read when they are asked for.
pub(crate) struct Store {
    /// `weights` or `constants`.
    kind: &'static str,
    config: IndexMap<String, Payload>,
    /// How many tensors lie in each storage; a storage that several share is kept once read.
    sharers: HashMap<String, usize>,
    shared: HashMap<String, Arc<Vec<u8>>>,
}

impl Store {
    pub fn new(kind: &'static str, config: IndexMap<String, Payload>) -> Self {
        let mut sharers = HashMap::new();
        for payload in config.values() {
            *sharers.entry(payload.path_name.clone()).or_insert(0) += 1;
        }
        Store { kind, config, sharers, shared: HashMap::new() }
    }

    /// The tensor of this name, contiguous; `None` if the archive names none or leaves its data out.
    pub fn load(&mut self, archive: &mut Archive<'_>, name: &str) -> Result<Option<Tensor>, ImportError> {
        let Some(payload) = self.config.get(name) else { return Ok(None) };
        let entry = format!("data/{}/{}", self.kind, payload.path_name);
        if payload.use_pickle {
            return Err(ImportError::Pickled { tensor: name.into(), entry });
        }
        if !archive.entries.contains_key(&entry) {
            return Ok(None);
        }
        let meta = payload.tensor_meta.as_ref().ok_or_else(|| stored(name, "tensor_meta", "none"))?;
        let storage = match self.shared.get(&payload.path_name) {
            Some(bytes) => bytes.clone(),
            None => {
                let bytes = Arc::new(archive.read(&entry, u64::MAX)?);
                if self.sharers.get(&payload.path_name).is_some_and(|&n| n > 1) {
                    self.shared.insert(payload.path_name.clone(), bytes.clone());
                }
                bytes
            }
        };
        let region = Region::new(name, meta)?;
        archive.limits.take(&entry, region.bytes)?;
        region.materialise(name, storage).map(Some)
    }
}

fn stored(tensor: &str, expected: impl Into<String>, found: impl Into<String>) -> ImportError {
    ImportError::Stored { tensor: tensor.into(), expected: expected.into(), found: found.into() }
}

/// A strided region of a storage, in elements; checked against overflow.
struct Region {
    dtype: DType,
    shape: Vec<usize>,
    strides: Vec<usize>,
    offset: usize,
    /// The size of the contiguous tensor.
    bytes: u64,
    /// The elements of the storage that the region needs.
    needed: usize,
}

impl Region {
    fn new(name: &str, meta: &StorageMeta) -> Result<Self, ImportError> {
        if meta.layout != STRIDED {
            return Err(stored(name, "the strided layout", format!("layout {}", meta.layout)));
        }
        let dtype = dtype::from_schema(meta.dtype)
            .map_err(|found| stored(name, "a dtype of the program format", found))?;
        let known = |what: &str, e: &crate::schema::Extent| {
            e.as_int.and_then(|i| usize::try_from(i).ok()).ok_or_else(|| {
                stored(name, format!("a known, non-negative {what}"), format!("{:?}", e.as_int))
            })
        };
        let shape = meta.sizes.iter().map(|e| known("extent", e)).collect::<Result<Vec<_>, _>>()?;
        let strides = meta.strides.iter().map(|e| known("stride", e)).collect::<Result<Vec<_>, _>>()?;
        let offset = known("storage offset", &meta.storage_offset)?;
        if shape.len() != strides.len() {
            return Err(stored(name, format!("{} strides", shape.len()), strides.len().to_string()));
        }
        let too_large = || stored(name, "a size that fits the address space", format!("{shape:?}"));
        let numel = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).ok_or_else(too_large)?;
        let bytes = numel.checked_mul(dtype.size()).ok_or_else(too_large)? as u64;
        let mut last = offset;
        for (d, s) in shape.iter().zip(&strides) {
            let reach = d.saturating_sub(1).checked_mul(*s).ok_or_else(too_large)?;
            last = last.checked_add(reach).ok_or_else(too_large)?;
        }
        let needed = if numel == 0 { 0 } else { last.checked_add(1).ok_or_else(too_large)? };
        Ok(Region { dtype, shape, strides, offset, bytes, needed })
    }

    fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        self.shape.iter().zip(&self.strides).rev().all(|(&d, &s)| {
            let fits = d == 1 || s == expected;
            expected *= d;
            fits
        })
    }

    fn materialise(self, name: &str, storage: Arc<Vec<u8>>) -> Result<Tensor, ImportError> {
        let size = self.dtype.size();
        if self.needed.checked_mul(size).is_none_or(|n| n > storage.len()) {
            return Err(stored(
                name,
                format!("a storage of at least {} elements of {}", self.needed, self.dtype),
                format!("{} bytes", storage.len()),
            ));
        }
        let bytes = self.bytes as usize;
        let mut data = if bytes == 0 {
            Vec::new()
        } else if self.is_contiguous() {
            let start = self.offset * size;
            if start == 0 && bytes == storage.len() {
                Arc::unwrap_or_clone(storage)
            } else {
                storage[start..start + bytes].to_vec()
            }
        } else {
            self.gather(&storage)
        };
        if self.dtype == DType::Bool {
            data.iter_mut().for_each(|b| *b = u8::from(*b != 0));
        }
        Tensor::new(self.dtype, self.shape, data)
            .ok_or_else(|| stored(name, "a size that fits the address space", "a larger one"))
    }

    /// The elements in row-major order.
    fn gather(&self, storage: &[u8]) -> Vec<u8> {
        let size = self.dtype.size();
        let mut data = Vec::with_capacity(self.bytes as usize);
        let mut at = vec![0usize; self.shape.len()];
        let mut element = self.offset;
        while data.len() < self.bytes as usize {
            data.extend_from_slice(&storage[element * size..(element + 1) * size]);
            for axis in (0..at.len()).rev() {
                at[axis] += 1;
                element += self.strides[axis];
                if at[axis] < self.shape[axis] {
                    break;
                }
                element -= self.strides[axis] * self.shape[axis];
                at[axis] = 0;
            }
        }
        data
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Extent;

    fn region(sizes: &[i64], strides: &[i64], offset: i64) -> Result<Region, ImportError> {
        let all = |v: &[i64]| v.iter().map(|&i| Extent { as_int: Some(i) }).collect();
        let meta = StorageMeta {
            dtype: 1,
            sizes: all(sizes),
            strides: all(strides),
            storage_offset: Extent { as_int: Some(offset) },
            layout: STRIDED,
        };
        Region::new("w", &meta)
    }

    #[test]
    fn strided_regions_become_contiguous() {
        let storage: Arc<Vec<u8>> = Arc::new((0..12).collect());
        for (sizes, strides, offset, expected) in [
            (vec![3, 4], vec![4, 1], 0, (0..12).collect::<Vec<u8>>()),
            (vec![4, 3], vec![1, 4], 0, vec![0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]),
            (vec![2, 2], vec![0, 1], 5, vec![5, 6, 5, 6]),
            (vec![2, 1, 2], vec![6, 99, 2], 1, vec![1, 3, 7, 9]),
            (vec![0, 3], vec![3, 1], 0, vec![]),
            (vec![], vec![], 7, vec![7]),
        ] {
            let tensor = region(&sizes, &strides, offset).unwrap().materialise("w", storage.clone()).unwrap();
            assert_eq!(tensor.data(), expected, "{sizes:?} {strides:?}");
        }
    }

    #[test]
    fn regions_beyond_the_storage_are_refused() {
        let storage = Arc::new(vec![0u8; 12]);
        let error = region(&[3, 4], &[5, 1], 0).unwrap().materialise("w", storage).unwrap_err();
        assert!(error.to_string().contains("at least 14 elements"), "{error}");
        assert!(region(&[i64::MAX, 4], &[4, 1], 0).is_err());
        let far = region(&[2], &[i64::MAX], i64::MAX).unwrap();
        assert!(far.materialise("w", Arc::new(vec![0u8; 12])).is_err());
        assert!(region(&[2, 2], &[1], 0).is_err());
        assert!(region(&[-1], &[1], 0).is_err());
    }
}
