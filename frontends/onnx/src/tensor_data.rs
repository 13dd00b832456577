//! Stored tensors. Their data is raw bytes, typed fields, or a range of an external file.
//!
//! A file is untrusted: sizes are checked against the actual data before memory is allocated, and the path of
//! an external file starts at the model's folder and leads down. Symbolic links on the path are followed,
//! because caches of models link to their files.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileTypeExt;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use symmc_ir::tensor::write_i64;
use symmc_ir::{DType, Tensor};
use symmc_support::{Backing, BackingSlice, MappedFile};

use crate::proto;

/// The dtype of an ONNX element type, or the name of one that the IR does not have.
pub(crate) fn dtype_from_code(code: i32) -> Result<DType, String> {
    if let Some(&dtype) = DType::ALL.iter().find(|dtype| dtype.facts().onnx == code) {
        return Ok(dtype);
    }
    let name = match code {
        0 => "undefined",
        8 => "string",
        13 => "uint64",
        14 => "complex64",
        15 => "complex128",
        18 => "float8e4m3fnuz",
        20 => "float8e5m2fnuz",
        21 => "uint4",
        22 => "int4",
        23 => "float4e2m1",
        25 => "uint2",
        26 => "int2",
        27 => "float6e2m3",
        28 => "float6e3m2",
        _ => return Err(format!("an element type of number {code}")),
    };
    Err(format!("the element type {name}"))
}

/// The largest code of an element type of the format.
const LAST_ELEMENT_TYPE: i32 = 28;

/// Whether an element is a float of 8 bits that the IR does not have.
pub(crate) fn is_byte(code: i32) -> bool {
    matches!(code, 18 | 20)
}

/// Whether an element type exists in the format, and not in the IR.
pub(crate) fn is_unsupported_dtype(code: i32) -> bool {
    (1..=LAST_ELEMENT_TYPE).contains(&code) && dtype_from_code(code).is_err()
}

pub(crate) fn stored_type(tensor: &proto::TensorProto) -> Result<(DType, Vec<usize>), String> {
    let dtype = dtype_from_code(tensor.data_type)
        .map_err(|dtype| format!("expected a supported dtype, found {dtype}"))?;
    let shape: Option<Vec<usize>> = tensor.dims.iter().map(|&d| usize::try_from(d).ok()).collect();
    match shape {
        Some(shape) if shape.len() <= symmc_ir::dim::MAX_RANK => Ok((dtype, shape)),
        _ => Err(format!(
            "expected at most {} extents, each 0 or more, found {:?}",
            symmc_ir::dim::MAX_RANK,
            tensor.dims
        )),
    }
}

/// The files with the tensor data of one model: the model file itself if it is mapped, and its external
/// files.
pub(crate) struct TensorFiles {
    folder: Option<PathBuf>,
    own: Option<Arc<MappedFile>>,
    open: RefCell<HashMap<String, Arc<MappedFile>>>,
}

struct InlineBytes(Bytes);

impl Backing for InlineBytes {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Bytes that cannot be used in place: misaligned elements, or bools that are not yet checked. They are
/// copied at the first read, which a process that only compiles a plan never does. Data that other processes
/// can change is read again by each execution.
struct LazyCopy {
    from: BackingSlice,
    copy: OnceLock<Vec<u8>>,
    bools: bool,
}

impl Backing for LazyCopy {
    /// Zeros if the file has lost the bytes. Importing or reading them is an error in that case.
    fn bytes(&self) -> &[u8] {
        self.copy.get_or_init(|| {
            let mut copy = vec![0; self.size()];
            if self.read(0, &mut copy).is_err() {
                copy.fill(0);
            }
            copy
        })
    }

    fn size(&self) -> usize {
        self.from.range().len()
    }

    fn read(&self, at: usize, into: &mut [u8]) -> io::Result<()> {
        if at.checked_add(into.len()).is_none_or(|end| end > self.size()) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.from.backing().read(self.from.range().start + at, into)?;
        if self.bools {
            into.iter_mut().for_each(|b| *b = u8::from(*b != 0));
        }
        Ok(())
    }

    fn identity(&self) -> Option<String> {
        Some(format!("{:?} of {}", self.from.range(), self.from.backing().identity()?))
    }

    fn modified(&self) -> Option<(i64, i64)> {
        self.from.backing().modified()
    }
}

impl TensorFiles {
    pub fn new(folder: Option<PathBuf>, own: Option<Arc<MappedFile>>) -> Self {
        TensorFiles { folder, own, open: RefCell::default() }
    }

    /// Whether all files are unchanged since they were opened.
    pub fn check_unchanged(&self) -> io::Result<()> {
        let open = self.open.borrow();
        self.own.iter().chain(open.values()).try_for_each(|file| file.check_unchanged())
    }

    pub fn data_files(&self) -> Vec<PathBuf> {
        let files = self.open.borrow();
        let mut paths: Vec<PathBuf> = files.values().map(|file| file.path().to_path_buf()).collect();
        paths.sort();
        paths
    }

    /// Bytes of the model file, as a range of that file if it is mapped.
    fn inline_part(&self, raw: &Bytes) -> Option<BackingSlice> {
        if let Some(own) = &self.own {
            let start = raw.as_ptr().addr().checked_sub(own.bytes().as_ptr().addr());
            let range = start.and_then(|start| Some(start..start.checked_add(raw.len())?));
            if let Some(slice) = range.and_then(|range| BackingSlice::new(own.clone(), range)) {
                return Some(slice);
            }
        }
        BackingSlice::new(Arc::new(InlineBytes(raw.clone())), 0..raw.len())
    }

    pub fn load_tensor(&self, tensor: &proto::TensorProto) -> Result<Tensor, String> {
        let (dtype, shape) = stored_type(tensor)?;
        if tensor.segment.is_some() {
            return Err("segmented tensors are not supported".into());
        }
        let elements = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        let count = elements.and_then(|n| n.checked_mul(dtype.size()));
        let expected = || match count {
            Some(count) => format!("expected {count} bytes for {dtype}{shape:?}"),
            None => format!("expected fewer elements than {dtype}{shape:?} has"),
        };
        let loaded = if tensor.data_location == proto::EXTERNAL {
            let slice = self.external_part(tensor, count.unwrap_or(usize::MAX))?;
            tensor_over_part(dtype, &shape, slice)
        } else if let Some(raw) = tensor.raw_data.as_ref().filter(|raw| !raw.is_empty() || count == Some(0)) {
            if count != Some(raw.len()) {
                return Err(format!("{}, found {} in raw_data", expected(), raw.len()));
            }
            self.inline_part(raw).and_then(|slice| tensor_over_part(dtype, &shape, slice))
        } else {
            let bytes = typed_field_bytes(tensor, dtype);
            if count != Some(bytes.len()) {
                return Err(format!("{}, found {} in typed fields", expected(), bytes.len()));
            }
            Tensor::new(dtype, shape.clone(), bytes)
        };
        loaded.ok_or_else(expected)
    }

    /// A stored tensor whose data is in memory that no other process changes. Fails if
    /// [`load_tensor`](Self::load_tensor) does, or if its file cannot be read or has changed.
    pub fn read_tensor(&self, tensor: &proto::TensorProto) -> Result<Arc<Tensor>, String> {
        Arc::new(self.load_tensor(tensor)?).load_to_memory().map_err(|e| e.to_string())
    }

    /// The bytes of a tensor in an external file. `count` is the size of its elements in bytes.
    fn external_part(&self, tensor: &proto::TensorProto, count: usize) -> Result<BackingSlice, String> {
        let location = external_entry(tensor, "location").unwrap_or("");
        let start = external_number(tensor, "offset")?.unwrap_or(0);
        if let Some(length) = external_number(tensor, "length")?.filter(|&l| l != count) {
            return Err(format!("expected {count} bytes of external data, found a length of {length}"));
        }
        let file = self.open_data_file(location)?;
        let range: Option<Range<usize>> = start.checked_add(count).map(|end| start..end);
        let len = file.bytes().len();
        range.and_then(|range| BackingSlice::new(file, range)).ok_or_else(|| {
            format!("expected {count} bytes at offset {start} of `{location}`, found a file of {len} bytes")
        })
    }

    fn open_data_file(&self, location: &str) -> Result<Arc<MappedFile>, String> {
        if let Some(file) = self.open.borrow().get(location) {
            return Ok(file.clone());
        }
        let relative = Path::new(location);
        let within = !location.is_empty()
            && relative.components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir));
        if !within {
            return Err(format!(
                "expected an external data file below the model's folder, found `{location}`"
            ));
        }
        let Some(folder) = &self.folder else {
            return Err(format!(
                "the data is in the external file `{location}`, but the model's folder is not known"
            ));
        };
        let path = folder.join(relative);
        // Opening a pipe would wait for its writer.
        let kind = std::fs::metadata(&path).map_err(|e| data_file_error(&path, e))?.file_type();
        if !kind.is_file() {
            let noun = match kind {
                k if k.is_dir() => "folder",
                k if k.is_fifo() => "named pipe",
                k if k.is_socket() => "socket",
                _ => "device",
            };
            return Err(format!("expected an external data file, found the {noun} {}", path.display()));
        }
        let file = MappedFile::open(&path).map_err(|e| data_file_error(&path, e))?;
        let file = Arc::new(file);
        self.open.borrow_mut().insert(location.to_string(), file.clone());
        Ok(file)
    }
}

fn external_entry<'t>(tensor: &'t proto::TensorProto, key: &str) -> Option<&'t str> {
    tensor.external_data.iter().find(|entry| entry.key == key).map(|entry| entry.value.as_str())
}

fn external_number(tensor: &proto::TensorProto, key: &str) -> Result<Option<usize>, String> {
    let Some(text) = external_entry(tensor, key) else { return Ok(None) };
    text.parse()
        .map(Some)
        .map_err(|_| format!("expected a number of bytes as {key} of the external data, found `{text}`"))
}

fn data_file_error(path: &Path, error: io::Error) -> String {
    format!("external data file {}: {error}", path.display())
}

/// A tensor that uses these bytes in place, or a copy that is made at the first read.
fn tensor_over_part(dtype: DType, shape: &[usize], part: BackingSlice) -> Option<Tensor> {
    let size = part.range().len();
    let bools = dtype == DType::Bool;
    if part.bytes().as_ptr().addr().is_multiple_of(dtype.size()) && !bools {
        return Tensor::from_backing(dtype, shape, part);
    }
    let copied = LazyCopy { from: part, copy: OnceLock::new(), bools };
    BackingSlice::new(Arc::new(copied), 0..size).and_then(|slice| Tensor::from_backing(dtype, shape, slice))
}

fn typed_field_bytes(tensor: &proto::TensorProto, dtype: DType) -> Vec<u8> {
    let ints = &tensor.int32_data;
    match dtype {
        DType::F32 => tensor.float_data.iter().flat_map(|x| x.to_le_bytes()).collect(),
        DType::F64 => tensor.double_data.iter().flat_map(|x| x.to_le_bytes()).collect(),
        DType::I64 => tensor.int64_data.iter().flat_map(|x| x.to_le_bytes()).collect(),
        DType::U32 => tensor.uint64_data.iter().flat_map(|x| (*x as u32).to_le_bytes()).collect(),
        // `int32_data` holds the bits of narrow floats.
        dtype if dtype.is_float() => {
            ints.iter().flat_map(|x| x.to_le_bytes().into_iter().take(dtype.size())).collect()
        }
        // It also holds the elements of all other integer dtypes, and of bool.
        _ => {
            let mut out = vec![0; ints.len() * dtype.size()];
            ints.iter().enumerate().for_each(|(i, &x)| write_i64(dtype, &mut out, i, x.into()));
            out
        }
    }
}
