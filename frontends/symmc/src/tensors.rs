//! Files of recorded tensors: weights, inputs and expected outputs of every rank in one safetensors file.
//!
//! Names: `rank{r}.w.<source>` is a weight, `rank{r}.in.<i>` the i-th argument, `rank{r}.out.<i>` the i-th
//! returned output of rank `r`. The file is mapped, and tensors are parts of the mapping. Another process may shorten the
//! file while it is mapped, which raises SIGBUS where lost pages are touched: the header and the data that this process
//! uses are read by position.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use safetensors::SafeTensorError;
use safetensors::tensor::{Dtype, Metadata};
use serde::Deserialize;
use serde::de::IntoDeserializer;
use symmc_ir::verify::MAX_RANKS;
use symmc_ir::{DType, Tensor};
use symmc_support::{Backing, BackingSlice, MappedFile};

use crate::content::FileContent;
use crate::error::Error;
use crate::files::is_stream;

/// The dtype in safetensors.
///
/// # Errors
/// Safetensors files cannot contain this dtype.
pub(crate) fn safetensors_dtype(dtype: DType) -> Result<Dtype, String> {
    let parsed: Result<Dtype, serde::de::value::Error> =
        Dtype::deserialize(dtype.facts().safetensors.into_deserializer());
    parsed.map_err(|_| format!("safetensors files have no dtype {dtype}"))
}

/// The longest header in bytes, as in the safetensors library.
const MAX_HEADER: usize = 100_000_000;

/// An open file of recorded tensors.
pub struct TensorFile {
    path: PathBuf,
    map: Arc<MappedFile>,
    header: Metadata,
    /// The offset of the data in the file.
    start: usize,
    ranks: u32,
    inputs: bool,
    outputs: bool,
}

impl TensorFile {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// The file cannot be read, is not a safetensors file, or has no tensor of a rank.
    pub fn open(path: &Path) -> Result<Self, Error> {
        if path.is_dir() {
            return Err(Error::format(path, "this is a folder; expected a safetensors file"));
        }
        if is_stream(path) {
            return Err(Error::format(
                path,
                "this is a device, a pipe or a socket; expected a safetensors file",
            ));
        }
        TensorFile::from_mapping(path, MappedFile::open(path).map_err(|e| Error::io(path, e))?)
    }

    /// Reads the header of a mapped file, by position: another process may shorten the file at any time.
    fn from_mapping(path: &Path, map: MappedFile) -> Result<Self, Error> {
        let (start, header) = read_header(&map).map_err(|e| match e {
            HeaderError::Io(cause) => Error::io(path, cause),
            HeaderError::Format(reason) => Error::format(path, format!("not a safetensors file: {reason}")),
        })?;
        let mut ranks = 0;
        let mut inputs = false;
        let mut outputs = false;
        for name in header.tensors().keys() {
            if let Some((rank, rest)) = split_rank_prefix(name) {
                ranks = ranks.max(rank + 1);
                inputs |= rest.starts_with("in.");
                outputs |= rest.starts_with("out.");
            }
        }
        if ranks == 0 {
            return Err(Error::format(
                path,
                "no tensor is named rank<r>.w.<name>, rank<r>.in.<i> or rank<r>.out.<i>",
            ));
        }
        let map = Arc::new(map);
        Ok(TensorFile { path: path.to_path_buf(), map, header, start, ranks, inputs, outputs })
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The number of ranks for which the file has tensors.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// The names of all tensors.
    pub fn names(&self) -> impl Iterator<Item = String> {
        self.header.offset_keys().into_iter()
    }

    /// The content of the file, which ranks compare when they join.
    pub(crate) fn file_content(&self) -> FileContent {
        FileContent(self.map.clone())
    }

    /// Whether the file holds arguments.
    pub fn has_inputs(&self) -> bool {
        self.inputs
    }

    /// The shapes of the arguments of rank 0, in their order. Each shape is in elements.
    pub fn argument_shapes(&self) -> Vec<Vec<usize>> {
        let shape = |i| self.header.info(&format!("rank0.in.{i}")).map(|info| info.shape.clone());
        (0usize..).map_while(shape).collect()
    }

    /// Whether the file holds expected outputs.
    pub fn has_outputs(&self) -> bool {
        self.outputs
    }

    /// The weight of a rank that is stored under this name, `None` if the file has none.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn weight(&self, rank: u32, source: &str) -> Result<Option<Arc<Tensor>>, Error> {
        self.get(&format!("rank{rank}.w.{source}"))
    }

    /// A weight of a rank, loaded into memory that no other process changes.
    pub(crate) fn load_weight(&self, rank: u32, source: &str) -> Result<Option<Arc<Tensor>>, Error> {
        let weight = self.weight(rank, source)?;
        weight.map(|t| t.load_to_memory()).transpose().map_err(|e| Error::invalid_request(e.to_string()))
    }

    /// The first rank that has a weight of this name with another value than `data`, if there is one.
    ///
    /// # Errors
    /// As [`get`](Self::get). Also if the weight cannot be read.
    pub fn find_differing_rank(&self, source: &str, data: &Tensor) -> Result<Option<u32>, Error> {
        for rank in 0..self.ranks {
            if self.load_weight(rank, source)?.is_some_and(|t| *t != *data) {
                return Ok(Some(rank));
            }
        }
        Ok(None)
    }

    /// The argument of a rank with this index, `None` if the file has none.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn input(&self, rank: u32, index: usize) -> Result<Option<Arc<Tensor>>, Error> {
        self.get(&format!("rank{rank}.in.{index}"))
    }

    /// The tensor of this name, `None` if the file has none.
    ///
    /// # Errors
    /// The tensor has a dtype that symmc does not support, or the data does not fit its shape.
    pub fn get(&self, name: &str) -> Result<Option<Arc<Tensor>>, Error> {
        let Some(info) = self.header.info(name) else { return Ok(None) };
        let stored = info.dtype.to_string();
        let matching = DType::ALL.iter().find(|dtype| dtype.facts().safetensors == stored);
        let &dtype = matching.ok_or_else(|| {
            Error::format(&self.path, format!("{name}: the dtype {stored} is not supported"))
        })?;
        let (from, to) = info.data_offsets;
        let range = self.start + from..self.start + to;
        let tensor = if range.start.is_multiple_of(dtype.size()) {
            BackingSlice::new(self.map.clone(), range)
                .and_then(|slice| Tensor::from_backing(dtype, info.shape.as_slice(), slice))
        } else {
            // Elements that are not aligned are read from a copy.
            let mut data = vec![0; range.len()];
            self.map.read(range.start, &mut data).map_err(|e| Error::format(&self.path, e))?;
            Tensor::new(dtype, info.shape.as_slice(), data)
        };
        tensor
            .map(|t| Some(Arc::new(t)))
            .ok_or_else(|| Error::format(&self.path, format!("{name}: the data does not fit its shape")))
    }
}

impl fmt::Debug for TensorFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TensorFile").field("path", &self.path).finish_non_exhaustive()
    }
}

/// The reason why a file has no usable header.
enum HeaderError {
    Io(io::Error),
    Format(SafeTensorError),
}

/// The offset of the data, and the header before it.
fn read_header(map: &MappedFile) -> Result<(usize, Metadata), HeaderError> {
    let size = map.size();
    let mut length = [0; 8];
    if size < length.len() {
        return Err(HeaderError::Format(SafeTensorError::HeaderTooSmall));
    }
    map.read(0, &mut length).map_err(HeaderError::Io)?;
    let length = usize::try_from(u64::from_le_bytes(length)).unwrap_or(usize::MAX);
    if length > MAX_HEADER {
        return Err(HeaderError::Format(SafeTensorError::HeaderTooLarge));
    }
    let start = length + 8;
    if start > size {
        return Err(HeaderError::Format(SafeTensorError::InvalidHeaderLength));
    }
    let mut header = vec![0; length];
    map.read(8, &mut header).map_err(HeaderError::Io)?;
    let text =
        std::str::from_utf8(&header).map_err(SafeTensorError::InvalidHeader).map_err(HeaderError::Format)?;
    let header: Metadata = serde_json::from_str(text)
        .map_err(SafeTensorError::InvalidHeaderDeserialization)
        .map_err(HeaderError::Format)?;
    if header.data_len() == size - start {
        Ok((start, header))
    } else {
        Err(HeaderError::Format(SafeTensorError::MetadataIncompleteBuffer))
    }
}

/// Splits `rank{r}.{rest}` into its parts.
fn split_rank_prefix(name: &str) -> Option<(u32, &str)> {
    let (rank, rest) = name.strip_prefix("rank")?.split_once('.')?;
    let is_known_kind = ["w.", "in.", "out."].iter().any(|p| rest.starts_with(p));
    let rank = rank.parse().ok().filter(|&r: &u32| r < MAX_RANKS)?;
    is_known_kind.then_some((rank, rest))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};

    use super::*;

    /// A file with one weight of rank 0, of `elements` floats.
    fn file(folder: &Path, elements: usize) -> PathBuf {
        let bytes = elements * 4;
        let header =
            format!(r#"{{"rank0.w.w":{{"dtype":"F32","shape":[{elements}],"data_offsets":[0,{bytes}]}}}}"#);
        let path = folder.join("w.safetensors");
        let header_length = (header.len() as u64).to_le_bytes();
        fs::write(&path, [&header_length[..], header.as_bytes(), &vec![0; bytes]].concat()).unwrap();
        path
    }

    /// Shortens the file to several lengths, after and before it is mapped.
    #[test]
    fn a_file_that_is_shortened_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let length = fs::metadata(file(folder.path(), 5000)).unwrap().len();
        for cut in [0, 1, 7, 8, 9, 40, 100, 4096, 8192, length - 1] {
            let path = file(folder.path(), 5000);
            let map = MappedFile::open(&path).unwrap();
            OpenOptions::new().write(true).open(&path).unwrap().set_len(cut).unwrap();
            let error = TensorFile::from_mapping(&path, map).unwrap_err().to_string();
            assert!(
                error.contains("changed while it was in use") && error.contains("w.safetensors"),
                "{error}"
            );
            let error = TensorFile::open(&path).unwrap_err().to_string();
            assert!(error.contains("not a safetensors file"), "{cut}: {error}");
        }
        let path = file(folder.path(), 5000);
        let opened = TensorFile::open(&path).unwrap();
        OpenOptions::new().write(true).open(&path).unwrap().set_len(200).unwrap();
        let zeros = Tensor::zeros(DType::F32, [5000]).unwrap();
        let error = opened.find_differing_rank("w", &zeros).unwrap_err();
        assert!(error.to_string().contains("changed while it was in use"), "{error}");
    }

    #[test]
    fn headers_that_are_none_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.safetensors");
        let with_length = |length: u64, text: &[u8]| [&length.to_le_bytes()[..], text].concat();
        for bytes in [
            Vec::new(),
            vec![1; 7],
            with_length(u64::MAX, b"{}"),
            with_length(100_000_001, b"{}"),
            with_length(3, b"{}"),
            with_length(2, b"\xff\xff"),
            with_length(2, b"[]"),
            with_length(2, b"{}rest"),
        ] {
            fs::write(&path, &bytes).unwrap();
            let error = TensorFile::open(&path).unwrap_err().to_string();
            assert!(error.contains("not a safetensors file") || bytes.is_empty(), "{error}");
        }
    }
}
