//! The stored tensors of an archive: their names, their regions of storages, and their data.
//!
//! Several names for one region of one storage are one tensor: tied weights. Such a tensor is read, counted
//! and stored once.
//!
//! A DTensor is stored as a pickle ([`crate::pickle`]). Its declared region is that of the whole tensor, of
//! which the pickle has the rank's part, so the declared region only identifies it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use indexmap::IndexMap;
use symmc_ir::{DType, Tensor};

use crate::archive::Archive;
use crate::dtype;
use crate::error::{ImportError, Result};
use crate::pickle::SavedTensor;
use crate::schema::{STRIDED, StorageMeta, StoredInt, TensorPayload};

/// The stored tensors of one kind, read on demand.
pub(crate) struct TensorStore {
    /// `weights` or `constants`.
    kind: &'static str,
    config: IndexMap<String, TensorPayload>,
    /// The number of regions of each storage that are not yet tensors. A storage is retained until none is
    /// left.
    regions: HashMap<String, usize>,
    storages: HashMap<String, Arc<Vec<u8>>>,
    tensors: HashMap<(String, StorageRegion), Arc<Tensor>>,
}

impl TensorStore {
    pub fn new(kind: &'static str, config: IndexMap<String, TensorPayload>) -> Self {
        TensorStore {
            kind,
            config,
            regions: HashMap::new(),
            storages: HashMap::new(),
            tensors: HashMap::new(),
        }
    }

    /// Renames the tensors. `names` has the new name of each tensor as the key, and its name in this archive
    /// as the value.
    pub fn with_names(mut self, names: &HashMap<String, String>) -> Self {
        let renamed = names.iter().filter_map(|(name, stored)| {
            let payload = self.config.get(stored)?.clone();
            Some((name.clone(), payload))
        });
        self.config = renamed.collect();
        self
    }

    pub fn contains(&self, name: &str) -> bool {
        self.config.contains_key(name)
    }

    /// The entry of a tensor's storage, if the archive has it. Tensors on the device `meta` have an empty entry, which does not
    /// count.
    fn storage_entry(&self, archive: &Archive<'_>, payload: &TensorPayload) -> Option<String> {
        if payload.tensor_meta.as_ref().is_some_and(|meta| meta.device.kind == "meta") {
            return None;
        }
        let entry = format!("data/{}/{}", self.kind, payload.path_name);
        archive.contains(&entry).then_some(entry)
    }

    /// Counts the memory that these tensors will take, before it is allocated.
    pub fn reserve_tensors<'n>(
        &mut self,
        archive: &mut Archive<'_>,
        names: impl Iterator<Item = &'n str>,
    ) -> Result<()> {
        let mut reserved: HashSet<(&str, StorageRegion)> = HashSet::new();
        for name in names {
            let Some((name, payload)) = self.config.get_key_value(name) else { continue };
            let Some(entry) = self.storage_entry(archive, payload) else { continue };
            let region = StorageRegion::from_payload(name, payload)?;
            let size = archive.entry_size(&entry)?;
            // The entry of a pickled tensor contains its storage, and its tensor is at most as large.
            let bytes = if payload.use_pickle { size.saturating_mul(2) } else { region.bytes };
            if !payload.use_pickle {
                region.check_fits(name, size)?;
            }
            if !reserved.insert((&payload.path_name, region)) {
                continue;
            }
            let regions = self.regions.entry(payload.path_name.clone()).or_insert(0);
            *regions += 1;
            archive.reserve_bytes(&entry, if *regions == 1 { size.saturating_add(bytes) } else { bytes })?;
        }
        Ok(())
    }

    /// The declared size in bytes of the tensor with this name. `None` if the archive does not name it or does
    /// not contain its data.
    pub fn tensor_size(&self, archive: &Archive<'_>, name: &str) -> Result<Option<u64>> {
        let Some(payload) = self.config.get(name) else { return Ok(None) };
        if self.storage_entry(archive, payload).is_none() {
            return Ok(None);
        }
        Ok(Some(StorageRegion::from_payload(name, payload)?.bytes))
    }

    /// The contiguous tensor with this name. `None` if the archive does not name it or does not contain its
    /// data. Its size must have been counted.
    pub fn load_tensor(&mut self, archive: &mut Archive<'_>, name: &str) -> Result<Option<Arc<Tensor>>> {
        let Some(payload) = self.config.get(name) else { return Ok(None) };
        let Some(entry) = self.storage_entry(archive, payload) else { return Ok(None) };
        let region = StorageRegion::from_payload(name, payload)?;
        let is_pickled = payload.use_pickle;
        let path = payload.path_name.clone();
        let key = (path, region);
        if let Some(tensor) = self.tensors.get(&key) {
            return Ok(Some(tensor.clone()));
        }
        let (path, region) = &key;
        let storage = match self.storages.remove(path) {
            Some(bytes) => bytes,
            None => Arc::new(archive.unpack(&entry)?),
        };
        let remaining_uses = self.regions.get(path).map_or(0, |n| n.saturating_sub(1));
        if remaining_uses > 0 {
            self.storages.insert(path.clone(), storage.clone());
        }
        self.regions.insert(path.clone(), remaining_uses);
        let tensor = if is_pickled {
            unpickle_tensor(name, &entry, &storage)?
        } else {
            region.materialise(name, storage)?
        };
        let tensor = Arc::new(tensor);
        self.tensors.insert(key, tensor.clone());
        Ok(Some(tensor))
    }

    /// The sets of names that are one tensor.
    pub fn tied_names(&self) -> Vec<Vec<String>> {
        let mut names: IndexMap<(&str, StorageRegion), Vec<String>> = IndexMap::new();
        for (name, payload) in &self.config {
            let Ok(region) = StorageRegion::from_payload(name, payload) else { continue };
            if region.bytes > 0 {
                names.entry((&payload.path_name, region)).or_default().push(name.clone());
            }
        }
        names.into_values().filter(|n| n.len() > 1).collect()
    }
}

fn unpickle_tensor(name: &str, entry: &str, saved: &[u8]) -> Result<Tensor> {
    let pickled = |message| ImportError::Pickled { tensor: name.into(), entry: entry.into(), message };
    let (tensor, storage) = SavedTensor::open(saved).and_then(|mut s| s.read()).map_err(pickled)?;
    let region = StorageRegion::from_meta(name, &tensor.meta)?;
    // A tensor with strides of 0 may be larger than its storage, and was not counted.
    if region.bytes > saved.len() as u64 {
        return Err(stored_error(name, format!("at most {} bytes", saved.len()), region.bytes.to_string()));
    }
    region.materialise(name, Arc::new(storage))
}

fn stored_error(tensor: &str, expected: impl Into<String>, found: impl Into<String>) -> ImportError {
    ImportError::Stored { tensor: tensor.into(), expected: expected.into(), found: found.into() }
}

/// A strided region of a storage, in elements, checked for overflow.
#[derive(Clone, PartialEq, Eq, Hash)]
struct StorageRegion {
    dtype: DType,
    shape: Vec<usize>,
    strides: Vec<usize>,
    offset: usize,
    /// The size of the contiguous tensor.
    bytes: u64,
    /// The number of elements that the storage must have.
    needed: usize,
}

impl StorageRegion {
    fn from_payload(name: &str, payload: &TensorPayload) -> Result<Self> {
        let meta = payload.tensor_meta.as_ref().ok_or_else(|| stored_error(name, "tensor_meta", "none"))?;
        StorageRegion::from_meta(name, meta)
    }

    fn from_meta(name: &str, meta: &StorageMeta) -> Result<Self> {
        if meta.layout != STRIDED {
            return Err(stored_error(name, "the strided layout", format!("layout {}", meta.layout)));
        }
        // Complex numbers are stored as pairs of components.
        let component = dtype::complex_component_dtype(meta.dtype);
        let dtype = component
            .map_or_else(|| dtype::from_schema(meta.dtype), Ok)
            .map_err(|dtype| stored_error(name, "a supported dtype", dtype))?;
        let sizes = meta.sizes.iter().map(|e| known_number(name, "extent", e));
        let mut shape = sizes.collect::<Result<Vec<_>, _>>()?;
        let strides = meta.strides.iter().map(|e| known_number(name, "stride", e));
        let mut strides = strides.collect::<Result<Vec<_>, _>>()?;
        let mut offset = known_number(name, "storage offset", &meta.storage_offset)?;
        if shape.len() != strides.len() {
            return Err(stored_error(name, format!("{} strides", shape.len()), strides.len().to_string()));
        }
        let sizes = format!("{shape:?}");
        let too_large = || stored_error(name, "a size that fits the address space", sizes.clone());
        if component.is_some() {
            for stride in strides.iter_mut().chain([&mut offset]) {
                *stride = stride.checked_mul(2).ok_or_else(too_large)?;
            }
            shape.push(2);
            strides.push(1);
        }
        let numel = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).ok_or_else(too_large)?;
        let bytes = numel.checked_mul(dtype.size()).ok_or_else(too_large)? as u64;
        let mut last_element = offset;
        for (d, s) in shape.iter().zip(&strides) {
            let reach = d.saturating_sub(1).checked_mul(*s).ok_or_else(too_large)?;
            last_element = last_element.checked_add(reach).ok_or_else(too_large)?;
        }
        let needed = if numel == 0 { 0 } else { last_element.checked_add(1).ok_or_else(too_large)? };
        Ok(StorageRegion { dtype, shape, strides, offset, bytes, needed })
    }

    fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        self.shape.iter().zip(&self.strides).rev().all(|(&d, &s)| {
            let fits = d == 1 || s == expected;
            expected *= d;
            fits
        })
    }

    fn check_fits(&self, name: &str, storage: u64) -> Result<()> {
        let needed = (self.needed as u64).checked_mul(self.dtype.size() as u64);
        if needed.is_some_and(|n| n <= storage) {
            return Ok(());
        }
        Err(stored_error(
            name,
            format!("a storage of at least {} elements of {}", self.needed, self.dtype),
            format!("{storage} bytes"),
        ))
    }

    fn materialise(&self, name: &str, storage: Arc<Vec<u8>>) -> Result<Tensor> {
        self.check_fits(name, storage.len() as u64)?;
        let size = self.dtype.size();
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
            self.gather_elements(&storage)
        };
        if self.dtype == DType::Bool {
            data.iter_mut().for_each(|b| *b = u8::from(*b != 0));
        }
        Tensor::new(self.dtype, self.shape.as_slice(), data)
            .ok_or_else(|| stored_error(name, "a size that fits the address space", "a larger one"))
    }

    /// The elements in row-major order.
    fn gather_elements(&self, storage: &[u8]) -> Vec<u8> {
        let size = self.dtype.size();
        let mut data = Vec::with_capacity(self.bytes as usize);
        let mut index = vec![0usize; self.shape.len()];
        let mut element = self.offset;
        while data.len() < self.bytes as usize {
            data.extend_from_slice(&storage[element * size..(element + 1) * size]);
            for axis in (0..index.len()).rev() {
                index[axis] += 1;
                element += self.strides[axis];
                if index[axis] < self.shape[axis] {
                    break;
                }
                element -= self.strides[axis] * self.shape[axis];
                index[axis] = 0;
            }
        }
        data
    }
}

fn known_number(tensor: &str, what: &str, number: &StoredInt) -> Result<usize> {
    number.as_int.and_then(|i| usize::try_from(i).ok()).ok_or_else(|| {
        stored_error(tensor, format!("a known, non-negative {what}"), format!("{:?}", number.as_int))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::StoredDevice;

    fn region(sizes: &[i64], strides: &[i64], offset: i64) -> Result<StorageRegion> {
        let stored_ints = |v: &[i64]| v.iter().map(|&i| StoredInt { as_int: Some(i) }).collect();
        let meta = StorageMeta {
            dtype: 1,
            sizes: stored_ints(sizes),
            strides: stored_ints(strides),
            storage_offset: StoredInt { as_int: Some(offset) },
            layout: STRIDED,
            device: StoredDevice::default(),
        };
        StorageRegion::from_meta("w", &meta)
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
