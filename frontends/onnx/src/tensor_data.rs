//! Stored tensors: their data as raw bytes, as typed fields, or in files of their own beside the model.
//!
//! A file is untrusted: what is taken is held against what is there before memory is, and the path of a file of data
//! starts at the model's folder and leads down. Links on it are followed, since caches of models link to their files.

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

/// The dtype of an ONNX element type, or the name of one that the IR has not.
pub(crate) fn dtype_from_code(code: i32) -> Result<DType, String> {
    if let Some(&known) = DType::ALL.iter().find(|dtype| dtype.facts().onnx == code) {
        return Ok(known);
    }
    let name = match code {
        0 => "undefined",
        3 => "int8",
        4 => "uint16",
        5 => "int16",
        8 => "string",
        12 => "uint32",
        13 => "uint64",
        14 => "complex64",
        15 => "complex128",
        17 => "float8e4m3fn",
        18 => "float8e4m3fnuz",
        19 => "float8e5m2",
        20 => "float8e5m2fnuz",
        21 => "uint4",
        22 => "int4",
        23 => "float4e2m1",
        24 => "float8e8m0",
        25 => "uint2",
        26 => "int2",
        27 => "float6e2m3",
        28 => "float6e3m2",
        _ => return Err(format!("an element type of number {code}")),
    };
    Err(format!("the element type {name}"))
}

pub(crate) fn stored_type(tensor: &proto::TensorProto) -> Result<(DType, Vec<usize>), String> {
    let dtype = dtype_from_code(tensor.data_type)
        .map_err(|found| format!("expected a dtype that the IR has, found {found}"))?;
    let shape: Option<Vec<usize>> = tensor.dims.iter().map(|&d| usize::try_from(d).ok()).collect();
    match shape {
        Some(shape) if shape.len() <= symmc_ir::dim::MAX_RANK => Ok((dtype, shape)),
        _ => Err(format!("expected extents of 0 or more on few axes, found {:?}", tensor.dims)),
    }
}

/// The files of data of one model: its own, where that is mapped, and those beside it.
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

/// Bytes that cannot be used where they lie: elements across their alignment, or bools that are not checked yet. They
/// are copied when they are first read, which who only makes a plan never does. What others can change is read anew by
/// whoever computes with it.
struct LazyCopy {
    from: BackingSlice,
    copy: OnceLock<Vec<u8>>,
    bools: bool,
}

impl Backing for LazyCopy {
    /// Zeros where a file has lost the bytes: importing it, or reading them, is an error then.
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

    /// Whether all files are what they were when they were opened.
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

    /// Bytes of the model's file, in that file where it is mapped.
    fn inline_part(&self, raw: &Bytes) -> Option<BackingSlice> {
        if let Some(own) = &self.own {
            let start = raw.as_ptr().addr().checked_sub(own.bytes().as_ptr().addr());
            let range = start.and_then(|at| Some(at..at.checked_add(raw.len())?));
            if let Some(part) = range.and_then(|range| BackingSlice::new(own.clone(), range)) {
                return Some(part);
            }
        }
        BackingSlice::new(Arc::new(InlineBytes(raw.clone())), 0..raw.len())
    }

    pub fn load_tensor(&self, tensor: &proto::TensorProto) -> Result<Tensor, String> {
        let (dtype, shape) = stored_type(tensor)?;
        if tensor.segment.is_some() {
            return Err("it is stored in segments, which are not read".into());
        }
        let elements = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        let count = elements.and_then(|n| n.checked_mul(dtype.size()));
        let expected = || match count {
            Some(count) => format!("expected {count} bytes for {dtype}{shape:?}"),
            None => format!("expected fewer elements than {dtype}{shape:?} has"),
        };
        let made = if tensor.data_location == proto::EXTERNAL {
            let part = self.external_part(tensor, count.unwrap_or(usize::MAX))?;
            tensor_over_part(dtype, &shape, part)
        } else if let Some(raw) = tensor.raw_data.as_ref().filter(|raw| !raw.is_empty() || count == Some(0)) {
            if count != Some(raw.len()) {
                return Err(format!("{}, found {} in raw_data", expected(), raw.len()));
            }
            self.inline_part(raw).and_then(|part| tensor_over_part(dtype, &shape, part))
        } else {
            let bytes = typed_field_bytes(tensor, dtype);
            if count != Some(bytes.len()) {
                return Err(format!("{}, found {} in typed fields", expected(), bytes.len()));
            }
            Tensor::new(dtype, shape.clone(), bytes)
        };
        made.ok_or_else(expected)
    }

    /// A stored tensor with its data in memory that no other process changes. Fails as [`load_tensor`](Self::load_tensor), or if its
    /// file cannot be read, or changed.
    pub fn read_tensor(&self, tensor: &proto::TensorProto) -> Result<Arc<Tensor>, String> {
        Arc::new(self.load_tensor(tensor)?).load_to_memory().map_err(|e| e.to_string())
    }

    /// The bytes of a tensor in a file of its own; `count` are as many as it has elements for.
    fn external_part(&self, tensor: &proto::TensorProto, count: usize) -> Result<BackingSlice, String> {
        let entry = |key: &str| tensor.external_data.iter().find(|e| e.key == key).map(|e| e.value.as_str());
        let number = |key: &str| match entry(key) {
            None => Ok(None),
            Some(text) => text
                .parse::<usize>()
                .map(Some)
                .map_err(|_| format!("expected a number of bytes as {key} of its data, found `{text}`")),
        };
        let location = entry("location").unwrap_or("");
        let start = number("offset")?.unwrap_or(0);
        if let Some(length) = number("length")?.filter(|&l| l != count) {
            return Err(format!("expected {count} bytes of data, its length says {length}"));
        }
        let file = self.open_data_file(location)?;
        let range: Option<Range<usize>> = start.checked_add(count).map(|end| start..end);
        let found = file.bytes().len();
        range.and_then(|range| BackingSlice::new(file, range)).ok_or_else(|| {
            format!("expected {count} bytes from {start} on in `{location}`, found a file of {found}")
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
            return Err(format!("expected a file below the model's folder for its data, found `{location}`"));
        }
        let Some(folder) = &self.folder else {
            return Err(format!(
                "its data is in the file `{location}`, and the folder of the model is not known"
            ));
        };
        let path = folder.join(relative);
        let failed = |e: io::Error| format!("the file of its data, {}: {e}", path.display());
        // To open a pipe would wait for its writer.
        let kind = std::fs::metadata(&path).map_err(failed)?.file_type();
        if !kind.is_file() {
            let what = match kind {
                k if k.is_dir() => "folder",
                k if k.is_fifo() => "named pipe",
                k if k.is_socket() => "socket",
                _ => "device",
            };
            return Err(format!("expected a file for its data, found the {what} {}", path.display()));
        }
        let file = MappedFile::open(&path).map_err(failed)?;
        let file = Arc::new(file);
        self.open.borrow_mut().insert(location.to_string(), file.clone());
        Ok(file)
    }
}

/// A tensor of these bytes where they lie, or of a copy that is made when it is read.
fn tensor_over_part(dtype: DType, shape: &[usize], part: BackingSlice) -> Option<Tensor> {
    let (size, bools) = (part.range().len(), dtype == DType::Bool);
    if part.bytes().as_ptr().addr().is_multiple_of(dtype.size()) && !bools {
        return Tensor::from_backing(dtype, shape, part);
    }
    let copied = LazyCopy { from: part, copy: OnceLock::new(), bools };
    BackingSlice::new(Arc::new(copied), 0..size).and_then(|part| Tensor::from_backing(dtype, shape, part))
}

fn typed_field_bytes(tensor: &proto::TensorProto, dtype: DType) -> Vec<u8> {
    let ints = &tensor.int32_data;
    match dtype {
        DType::F32 => tensor.float_data.iter().flat_map(|x| x.to_le_bytes()).collect(),
        DType::F64 => tensor.double_data.iter().flat_map(|x| x.to_le_bytes()).collect(),
        DType::I64 => tensor.int64_data.iter().flat_map(|x| x.to_le_bytes()).collect(),
        DType::F16 | DType::BF16 => ints.iter().flat_map(|x| (*x as u16).to_le_bytes()).collect(),
        // The field of 32 bits has the elements of all other integers, and of bool.
        _ => {
            let mut out = vec![0; ints.len() * dtype.size()];
            ints.iter().enumerate().for_each(|(i, &x)| write_i64(dtype, &mut out, i, x.into()));
            out
        }
    }
}
