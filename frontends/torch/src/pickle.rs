//! Reads tensors from pickles, which archives contain for DTensors.
//!
//! Nothing is executed: a call in a pickle becomes a record of the function's name and its arguments
//! ([`PickleValue::Call`]), and only the functions of [`find_tensor`] have a meaning. The values of a pickle
//! refer to each other by position, so that their number is bounded by the size of the pickle.

use std::collections::HashMap;
use std::io::{Cursor, Read};

use symmc_ir::DType;
use zip::ZipArchive;

use crate::schema::{STRIDED, StorageMeta, StoredDevice, StoredInt};
use crate::subclasses::LOCAL_TENSOR;

/// The position of a value in [`Pickle::values`].
type ValueIndex = usize;

#[derive(Clone, Debug)]
enum PickleValue {
    None,
    Int(i64),
    Text(String),
    /// A function or a class, as `module.name`.
    Global(String),
    Sequence(Vec<ValueIndex>),
    Dict(Vec<(ValueIndex, ValueIndex)>),
    /// The call of a function, or the construction of an object.
    Call {
        function: ValueIndex,
        arguments: ValueIndex,
    },
    /// A reference to a storage beside the pickle.
    Storage(ValueIndex),
    /// A value that no tensor needs.
    Other,
}

/// A tensor in a storage of the pickle's archive.
#[derive(Debug)]
pub(crate) struct PickledTensor {
    pub meta: StorageMeta,
    /// The name of the storage.
    pub storage: String,
}

/// The nesting of calls in the pickle of a tensor.
const MAX_DEPTH: usize = 8;

/// Classes of tensors that have no content besides that of their storages.
const PLAIN_CLASSES: [&str; 2] = ["torch.Tensor", "torch.nn.parameter.Parameter"];

/// The longest name of a function, in bytes: a pickle may name it once per opcode.
const MAX_NAME: usize = 256;

/// The archive that `torch.save` writes for one tensor, which is an entry of a `.pt2`.
pub(crate) struct SavedTensor<'a> {
    zip: ZipArchive<Cursor<&'a [u8]>>,
    size: usize,
}

impl<'a> SavedTensor<'a> {
    pub fn open(bytes: &'a [u8]) -> Result<Self, String> {
        let zip = ZipArchive::new(Cursor::new(bytes))
            .map_err(|e| format!("expected an archive of `torch.save`, found none ({e})"))?;
        Ok(SavedTensor { zip, size: bytes.len() })
    }

    /// The tensor, and the bytes of its storage.
    pub fn read(&mut self) -> Result<(PickledTensor, Vec<u8>), String> {
        let order = self.entry("byteorder").unwrap_or_else(|_| b"little".to_vec());
        if order != b"little" {
            let actual = String::from_utf8_lossy(&order).into_owned();
            return Err(format!("expected the byte order `little`, found `{actual}`"));
        }
        let tensor = read_tensor(&self.entry("data.pkl")?)?;
        let storage = self.entry(&format!("data/{}", tensor.storage))?;
        Ok((tensor, storage))
    }

    /// The bytes of an entry, whose name is given without the root folder.
    fn entry(&mut self, name: &str) -> Result<Vec<u8>, String> {
        let index = (0..self.zip.len()).find(|&i| {
            let Some(Ok(entry)) = self.zip.name_for_index(i) else { return false };
            entry.split_once('/').is_some_and(|(_, inner)| inner == name)
        });
        let index = index.ok_or_else(|| format!("expected an entry `{name}`, found none"))?;
        let file = self.zip.by_index(index).map_err(|e| format!("entry `{name}`: {e}"))?;
        // `torch.save` compresses nothing.
        if file.size() > self.size as u64 {
            return Err(format!("expected at most {} bytes in `{name}`, found {}", self.size, file.size()));
        }
        let size = file.size();
        let mut bytes = Vec::with_capacity(size as usize);
        file.take(size).read_to_end(&mut bytes).map_err(|e| format!("entry `{name}`: {e}"))?;
        Ok(bytes)
    }
}

/// The tensor that a pickle holds: a plain one, a parameter, or the tensor of a rank in a DTensor.
pub(crate) fn read_tensor(pickle: &[u8]) -> Result<PickledTensor, String> {
    let pickle = Pickle::parse(pickle)?;
    pickle.find_tensor(pickle.root, MAX_DEPTH)
}

struct Pickle {
    values: Vec<PickleValue>,
    root: ValueIndex,
}

impl Pickle {
    fn parse(bytes: &[u8]) -> Result<Pickle, String> {
        let mut reader = PickleReader {
            bytes,
            at: 0,
            values: Vec::new(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: HashMap::new(),
        };
        loop {
            let position = reader.at;
            let code = reader.byte()?;
            if code == b'.' {
                let root = reader.pop()?;
                return Ok(Pickle { values: reader.values, root });
            }
            reader.apply(code).map_err(|e| format!("{e} at byte {position} of the pickle"))?;
        }
    }

    fn find_tensor(&self, at: ValueIndex, depth: usize) -> Result<PickledTensor, String> {
        let Some(depth) = depth.checked_sub(1) else {
            return Err(format!("expected at most {MAX_DEPTH} nested calls, found more"));
        };
        let PickleValue::Call { function, arguments } = self.value(at) else {
            return Err("expected a tensor, found another value".into());
        };
        self.tensor_of_call(*function, *arguments, depth)
    }

    fn tensor_of_call(
        &self,
        function: ValueIndex,
        arguments: ValueIndex,
        depth: usize,
    ) -> Result<PickledTensor, String> {
        let PickleValue::Global(name) = self.value(function) else {
            return Err("expected the name of a function, found another value".into());
        };
        let arguments = self.sequence(arguments)?;
        let argument = |i: usize| {
            arguments.get(i).copied().ok_or_else(|| format!("expected argument {i} of `{name}`, found none"))
        };
        match name.as_str() {
            "torch._utils._rebuild_tensor_v2" | "torch._utils._rebuild_tensor" => {
                self.tensor_of_storage(argument(0)?, argument(1)?, argument(2)?, argument(3)?)
            }
            "torch._utils._rebuild_parameter" | "torch._utils._rebuild_parameter_with_state" => {
                self.find_tensor(argument(0)?, depth)
            }
            // The function, the class, the function's arguments, and the state of the result.
            "torch._tensor._rebuild_from_type_v2" => {
                let wraps = matches!(self.value(argument(0)?), PickleValue::Global(f)
                    if f == "torch._utils._rebuild_wrapper_subclass");
                let class = match self.value(argument(1)?) {
                    PickleValue::Global(class) => class.as_str(),
                    _ => "another value",
                };
                if wraps && class != "torch.distributed.tensor.DTensor" {
                    return Err(format!("expected a DTensor, found `{class}`"));
                }
                // A plain tensor with attributes in Python, such as those that Dynamo sets.
                if !wraps && PLAIN_CLASSES.contains(&class) {
                    let depth = depth.checked_sub(1).ok_or("expected fewer nested calls")?;
                    return self.tensor_of_call(argument(0)?, argument(2)?, depth);
                }
                let local = self.attribute(argument(3)?, LOCAL_TENSOR);
                self.find_tensor(local.ok_or_else(|| format!("expected a DTensor, found `{class}`"))?, depth)
            }
            _ => Err(format!("expected a tensor, found a call of `{name}`")),
        }
    }

    fn tensor_of_storage(
        &self,
        storage: ValueIndex,
        offset: ValueIndex,
        sizes: ValueIndex,
        strides: ValueIndex,
    ) -> Result<PickledTensor, String> {
        let PickleValue::Storage(id) = self.value(storage) else {
            return Err("expected a storage, found another value".into());
        };
        // `storage`, the class of the storage, its name, its device and its number of elements.
        let id = self.sequence(*id)?;
        let field = |i: usize| id.get(i).map_or(&PickleValue::None, |v| self.value(*v));
        let (PickleValue::Global(class), PickleValue::Text(name)) = (field(1), field(2)) else {
            return Err("expected the class and the name of a storage, found another value".into());
        };
        let dtype = storage_dtype(class).ok_or_else(|| format!("`{class}` is not supported"))?;
        let meta = StorageMeta {
            dtype: dtype.facts().torch.0,
            sizes: self.integers(sizes)?,
            strides: self.integers(strides)?,
            storage_offset: self.integer(offset)?,
            layout: STRIDED,
            device: StoredDevice::default(),
        };
        Ok(PickledTensor { meta, storage: name.clone() })
    }

    fn value(&self, at: ValueIndex) -> &PickleValue {
        self.values.get(at).unwrap_or(&PickleValue::Other)
    }

    fn sequence(&self, at: ValueIndex) -> Result<&[ValueIndex], String> {
        match self.value(at) {
            PickleValue::Sequence(items) => Ok(items),
            _ => Err("expected a tuple, found another value".into()),
        }
    }

    fn integer(&self, at: ValueIndex) -> Result<StoredInt, String> {
        match self.value(at) {
            PickleValue::Int(i) => Ok(StoredInt { as_int: Some(*i) }),
            _ => Err("expected an integer, found another value".into()),
        }
    }

    fn integers(&self, at: ValueIndex) -> Result<Vec<StoredInt>, String> {
        self.sequence(at)?.iter().map(|i| self.integer(*i)).collect()
    }

    /// An attribute of a state: a dict of attributes, or a tuple of them.
    fn attribute(&self, state: ValueIndex, name: &str) -> Option<ValueIndex> {
        let dicts = match self.value(state) {
            PickleValue::Sequence(items) => items.clone(),
            _ => vec![state],
        };
        dicts.into_iter().find_map(|dict| match self.value(dict) {
            PickleValue::Dict(items) => items
                .iter()
                .rev()
                .find(|(key, _)| matches!(self.value(*key), PickleValue::Text(text) if text == name))
                .map(|(_, value)| *value),
            _ => None,
        })
    }
}

fn storage_dtype(class: &str) -> Option<DType> {
    Some(match class.strip_prefix("torch.")? {
        "FloatStorage" => DType::F32,
        "DoubleStorage" => DType::F64,
        "HalfStorage" => DType::F16,
        "BFloat16Storage" => DType::BF16,
        "IntStorage" => DType::I32,
        "LongStorage" => DType::I64,
        "ByteStorage" => DType::U8,
        "CharStorage" => DType::I8,
        "ShortStorage" => DType::I16,
        "BoolStorage" => DType::Bool,
        _ => return None,
    })
}

struct PickleReader<'a> {
    bytes: &'a [u8],
    at: usize,
    values: Vec<PickleValue>,
    stack: Vec<ValueIndex>,
    /// The heights of the stack at the marks.
    marks: Vec<usize>,
    memo: HashMap<u32, ValueIndex>,
}

impl<'a> PickleReader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        let end = self.at.checked_add(count);
        let bytes = end.and_then(|end| self.bytes.get(self.at..end));
        let bytes = bytes.ok_or_else(|| format!("expected {count} more bytes, found fewer"))?;
        self.at += count;
        Ok(bytes)
    }

    fn byte(&mut self) -> Result<u8, String> {
        self.take(1).map(|b| b.first().copied().unwrap_or_default())
    }

    /// An unsigned little-endian number of up to 8 bytes.
    fn number(&mut self, width: usize) -> Result<u64, String> {
        let digits = self.take(width)?;
        Ok(digits.iter().rev().fold(0u64, |n, b| (n << 8) | u64::from(*b)))
    }

    fn count(&mut self, width: usize) -> Result<usize, String> {
        let number = self.number(width)?;
        usize::try_from(number).map_err(|_| format!("{number} bytes are too many"))
    }

    /// A signed little-endian number. Numbers of more than 64 bits are not sizes of tensors.
    fn signed(&mut self, width: usize) -> Result<PickleValue, String> {
        let digits = self.take(width)?;
        let fill = if digits.last().is_some_and(|b| b & 0x80 != 0) { 0xff } else { 0 };
        let mut bytes = [fill; 8];
        if width > bytes.len() {
            return Ok(PickleValue::Other);
        }
        bytes[..width].copy_from_slice(digits);
        Ok(PickleValue::Int(i64::from_le_bytes(bytes)))
    }

    fn text(&mut self, width: usize) -> Result<PickleValue, String> {
        let count = self.count(width)?;
        let text = std::str::from_utf8(self.take(count)?).map_err(|_| "expected UTF-8".to_string())?;
        Ok(PickleValue::Text(text.to_string()))
    }

    fn line(&mut self) -> Result<String, String> {
        let remaining = self.bytes.get(self.at..).unwrap_or_default();
        let end = remaining.iter().position(|b| *b == b'\n').ok_or("expected the end of a line")?;
        let line = self.take(end)?;
        self.take(1)?;
        String::from_utf8(line.to_vec()).map_err(|_| "expected UTF-8".to_string())
    }

    fn push(&mut self, value: PickleValue) {
        self.stack.push(self.values.len());
        self.values.push(value);
    }

    fn pop(&mut self) -> Result<ValueIndex, String> {
        let floor = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() <= floor {
            return Err("expected a value on the stack, found none".into());
        }
        self.stack.pop().ok_or_else(|| "expected a value on the stack, found none".into())
    }

    fn pop_many(&mut self, count: usize) -> Result<Vec<ValueIndex>, String> {
        let mut items = (0..count).map(|_| self.pop()).collect::<Result<Vec<_>, _>>()?;
        items.reverse();
        Ok(items)
    }

    fn pop_mark(&mut self) -> Result<Vec<ValueIndex>, String> {
        let height = self.marks.pop().ok_or("expected a mark, found none")?;
        Ok(self.stack.split_off(height.min(self.stack.len())))
    }

    fn top(&mut self) -> Result<&mut PickleValue, String> {
        let top = self.pop()?;
        self.stack.push(top);
        self.values.get_mut(top).ok_or_else(|| "expected a value on the stack, found none".into())
    }

    fn append(&mut self, items: Vec<ValueIndex>) -> Result<(), String> {
        if let PickleValue::Sequence(list) = self.top()? {
            list.extend(items);
        }
        Ok(())
    }

    fn set_items(&mut self, items: &[ValueIndex]) -> Result<(), String> {
        if let PickleValue::Dict(dict) = self.top()? {
            dict.extend(items.chunks_exact(2).map(|pair| (pair[0], pair[1])));
        }
        Ok(())
    }

    fn call(&mut self) -> Result<(), String> {
        let arguments = self.pop()?;
        let function = self.pop()?;
        self.push(PickleValue::Call { function, arguments });
        Ok(())
    }

    fn remember(&mut self, key: u64) -> Result<(), String> {
        let top = self.pop()?;
        self.stack.push(top);
        self.memo.insert(u32::try_from(key).map_err(|_| "too many values".to_string())?, top);
        Ok(())
    }

    fn recall(&mut self, key: u64) -> Result<(), String> {
        let stored = u32::try_from(key).ok().and_then(|key| self.memo.get(&key));
        self.stack.push(*stored.ok_or_else(|| format!("expected value {key}, found none"))?);
        Ok(())
    }

    /// Applies one opcode, by its number in Python's `pickletools`.
    fn apply(&mut self, code: u8) -> Result<(), String> {
        match code {
            // PROTO, FRAME
            0x80 => drop(self.take(1)?),
            0x95 => drop(self.take(8)?),
            b'N' => self.push(PickleValue::None),
            // NEWTRUE, NEWFALSE
            0x88 => self.push(PickleValue::Int(1)),
            0x89 => self.push(PickleValue::Int(0)),
            b'K' => self.push_number(1)?,
            b'M' => self.push_number(2)?,
            b'J' => {
                let value = self.signed(4)?;
                self.push(value);
            }
            // LONG1
            0x8a => {
                let width = self.count(1)?;
                let value = self.signed(width)?;
                self.push(value);
            }
            b'G' => {
                self.take(8)?;
                self.push(PickleValue::Other);
            }
            // BINUNICODE, SHORT_BINUNICODE, BINUNICODE8
            b'X' => self.push_text(4)?,
            0x8c => self.push_text(1)?,
            0x8d => self.push_text(8)?,
            // BINBYTES, SHORT_BINBYTES
            b'B' => self.skip_bytes(4)?,
            b'C' => self.skip_bytes(1)?,
            b'c' => {
                let module = self.line()?;
                let name = self.line()?;
                self.push(PickleValue::Global(format!("{module}.{name}")));
            }
            // STACK_GLOBAL
            0x93 => {
                let pair = self.pop_many(2)?;
                let texts = pair.iter().map(|p| match self.values.get(*p) {
                    Some(PickleValue::Text(text)) => Ok(text.clone()),
                    _ => Err("expected the name of a function, found another value".to_string()),
                });
                let name = texts.collect::<Result<Vec<_>, _>>()?.join(".");
                if name.len() > MAX_NAME {
                    return Err(format!("a name of {} bytes is too long", name.len()));
                }
                self.push(PickleValue::Global(name));
            }
            b'(' => self.marks.push(self.stack.len()),
            b')' | b']' => self.push(PickleValue::Sequence(Vec::new())),
            // TUPLE1, TUPLE2, TUPLE3
            0x85..=0x87 => {
                let items = self.pop_many(usize::from(code - 0x84))?;
                self.push(PickleValue::Sequence(items));
            }
            b't' => {
                let items = self.pop_mark()?;
                self.push(PickleValue::Sequence(items));
            }
            b'a' => {
                let item = self.pop()?;
                self.append(vec![item])?;
            }
            // APPENDS, ADDITEMS
            b'e' | 0x90 => {
                let items = self.pop_mark()?;
                self.append(items)?;
            }
            b'}' => self.push(PickleValue::Dict(Vec::new())),
            b's' => {
                let pair = self.pop_many(2)?;
                self.set_items(&pair)?;
            }
            b'u' => {
                let items = self.pop_mark()?;
                self.set_items(&items)?;
            }
            // EMPTY_SET
            0x8f => self.push(PickleValue::Other),
            // REDUCE, NEWOBJ
            b'R' | 0x81 => self.call()?,
            // NEWOBJ_EX
            0x92 => {
                self.pop()?;
                self.call()?;
            }
            // BUILD: the states of objects are not needed.
            b'b' => drop(self.pop()?),
            b'Q' => {
                let id = self.pop()?;
                self.push(PickleValue::Storage(id));
            }
            b'0' => drop(self.pop()?),
            b'1' => drop(self.pop_mark()?),
            // BINPUT, LONG_BINPUT, MEMOIZE
            b'q' => {
                let key = self.number(1)?;
                self.remember(key)?;
            }
            b'r' => {
                let key = self.number(4)?;
                self.remember(key)?;
            }
            0x94 => self.remember(self.memo.len() as u64)?,
            // BINGET, LONG_BINGET
            b'h' => {
                let key = self.number(1)?;
                self.recall(key)?;
            }
            b'j' => {
                let key = self.number(4)?;
                self.recall(key)?;
            }
            _ => return Err(format!("the opcode 0x{code:02x} is not supported")),
        }
        Ok(())
    }

    fn push_number(&mut self, width: usize) -> Result<(), String> {
        let number = self.number(width)?;
        self.push(PickleValue::Int(i64::try_from(number).unwrap_or(i64::MAX)));
        Ok(())
    }

    fn push_text(&mut self, width: usize) -> Result<(), String> {
        let text = self.text(width)?;
        self.push(text);
        Ok(())
    }

    fn skip_bytes(&mut self, width: usize) -> Result<(), String> {
        let count = self.count(width)?;
        self.take(count)?;
        self.push(PickleValue::Other);
        Ok(())
    }
}
