//! Element types, scalars and the type of a value.

use std::fmt;
use std::hash::{Hash, Hasher};

use crate::dim::{Dim, SymbolBindings};
use crate::named_enum;
use crate::symbol::SymbolTable;

named_enum! {
    DType {
        Bool = "bool", U8 = "u8", U16 = "u16", U32 = "u32", I8 = "i8", I16 = "i16", I32 = "i32", I64 = "i64",
        F8E4M3 = "f8e4m3", F8E5M2 = "f8e5m2", F8E8M0 = "f8e8m0", F16 = "f16", BF16 = "bf16", F32 = "f32", F64 = "f64"
    }
}

/// Properties of a dtype, and its codes in other systems.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DTypeFacts {
    /// The size of one element in bytes.
    pub bytes: usize,
    /// The precision of floats of this type; `None` for integers and bool.
    pub precision: Option<FloatPrecision>,
    /// The code and the bits in DLPack.
    pub dlpack: (u8, u8),
    /// The number of the `ScalarType` in exported programs of PyTorch, and the name in Python's `torch`.
    pub torch: (u32, &'static str),
    /// The number in ONNX (`TensorProto.DataType`).
    pub onnx: i32,
    /// The name in safetensors files.
    pub safetensors: &'static str,
    pub nccl: NcclType,
}

/// How NCCL moves and reduces elements.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum NcclType {
    /// The number of this dtype (`ncclDataType_t`).
    Reduced(i32),
    /// The number of another dtype of the same size: the library does not have this dtype, or rounds each partial sum to
    /// it. Its elements are moved only.
    Moved(i32),
}

impl NcclType {
    pub fn number(self) -> i32 {
        match self {
            NcclType::Reduced(number) | NcclType::Moved(number) => number,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FloatPrecision {
    /// The relative difference allowed between elements of two correct programs.
    pub tolerance: f64,
    /// The approximate relative difference between two correct results of one op: one unit in the last place of
    /// narrow types, and a few units of wide types, in which long sums and functions are computed.
    pub noise: f64,
    /// The smallest positive number.
    pub least: f64,
}

impl DType {
    pub fn facts(self) -> &'static DTypeFacts {
        const fn row(
            bytes: usize,
            precision: Option<FloatPrecision>,
            dlpack: (u8, u8),
            torch: (u32, &'static str),
            onnx: i32,
            safetensors: &'static str,
            nccl: NcclType,
        ) -> DTypeFacts {
            DTypeFacts { bytes, precision, dlpack, torch, onnx, safetensors, nccl }
        }
        const fn float(tolerance: f64, noise: f64, least: f64) -> Option<FloatPrecision> {
            Some(FloatPrecision { tolerance, noise, least })
        }
        /// A power of two that is a normal number.
        const fn power(exponent: i64) -> f64 {
            f64::from_bits(((1023 + exponent) as u64) << 52)
        }
        const F8E4M3: Option<FloatPrecision> = float(0.25, power(-3), power(-9));
        const F8E5M2: Option<FloatPrecision> = float(0.5, power(-2), power(-16));
        const F8E8M0: Option<FloatPrecision> = float(1.0, 1.0, power(-127));
        const F16: Option<FloatPrecision> = float(5e-3, power(-10), power(-24));
        const BF16: Option<FloatPrecision> = float(4e-2, power(-7), power(-133));
        const F32: Option<FloatPrecision> = float(3e-5, power(-20), power(-149));
        const F64: Option<FloatPrecision> = float(1e-9, power(-47), f64::from_bits(1));
        use NcclType::{Moved, Reduced};
        match self {
            DType::Bool => &const { row(1, None, (6, 8), (12, "bool"), 9, "BOOL", Reduced(1)) },
            DType::U8 => &const { row(1, None, (1, 8), (1, "uint8"), 2, "U8", Reduced(1)) },
            DType::U16 => &const { row(2, None, (1, 16), (28, "uint16"), 4, "U16", Moved(6)) },
            DType::U32 => &const { row(4, None, (1, 32), (34, "uint32"), 12, "U32", Reduced(3)) },
            DType::I8 => &const { row(1, None, (0, 8), (2, "int8"), 3, "I8", Reduced(0)) },
            DType::I16 => &const { row(2, None, (0, 16), (3, "int16"), 5, "I16", Moved(6)) },
            DType::I32 => &const { row(4, None, (0, 32), (4, "int32"), 6, "I32", Reduced(2)) },
            DType::I64 => &const { row(8, None, (0, 64), (5, "int64"), 7, "I64", Reduced(4)) },
            DType::F8E4M3 => {
                &const { row(1, F8E4M3, (10, 8), (29, "float8_e4m3fn"), 17, "F8_E4M3", Moved(1)) }
            }
            DType::F8E5M2 => &const { row(1, F8E5M2, (12, 8), (30, "float8_e5m2"), 19, "F8_E5M2", Moved(1)) },
            DType::F8E8M0 => {
                &const { row(1, F8E8M0, (14, 8), (33, "float8_e8m0fnu"), 24, "F8_E8M0", Moved(1)) }
            }
            DType::F16 => &const { row(2, F16, (2, 16), (6, "float16"), 10, "F16", Reduced(6)) },
            DType::BF16 => &const { row(2, BF16, (4, 16), (13, "bfloat16"), 16, "BF16", Reduced(9)) },
            DType::F32 => &const { row(4, F32, (2, 32), (7, "float32"), 1, "F32", Reduced(7)) },
            DType::F64 => &const { row(8, F64, (2, 64), (8, "float64"), 11, "F64", Reduced(8)) },
        }
    }
    pub fn size(self) -> usize {
        self.facts().bytes
    }
    /// The dtype in which PyTorch and ONNX Runtime compute composite float ops, and in which sums accumulate: f64 for
    /// f64, f32 for all other dtypes.
    pub fn compute_dtype(self) -> DType {
        if self == DType::F64 { DType::F64 } else { DType::F32 }
    }

    /// Whether this is a float that is computed in a wider dtype.
    pub fn is_narrow_float(self) -> bool {
        self.is_float() && self.compute_dtype() != self
    }

    /// Whether this dtype represents every value of `other`, so that a cast from it is lossless.
    pub fn represents(self, other: DType) -> bool {
        use DType::{BF16, Bool, F8E4M3, F8E5M2, F8E8M0, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32};
        self == other
            || match other {
                // The scale type has no zero.
                Bool => self != F8E8M0,
                U8 => matches!(self, U16 | U32 | I16 | I32 | I64 | F16 | BF16 | F32 | F64),
                I8 => matches!(self, I16 | I32 | I64 | F16 | BF16 | F32 | F64),
                U16 => matches!(self, U32 | I32 | I64 | F32 | F64),
                I16 => matches!(self, I32 | I64 | F32 | F64),
                U32 => matches!(self, I64 | F64),
                I32 => matches!(self, I64 | F64),
                F8E4M3 | F8E5M2 => matches!(self, F16 | BF16 | F32 | F64),
                F8E8M0 => matches!(self, BF16 | F32 | F64),
                F16 | BF16 => matches!(self, F32 | F64),
                F32 => self == F64,
                I64 | F64 => false,
            }
    }

    pub fn is_float(self) -> bool {
        self.facts().precision.is_some()
    }

    /// Whether elements of this type are moved, compared and cast only, as in PyTorch: arithmetic on them is done after a
    /// cast.
    pub fn is_storage_float(self) -> bool {
        matches!(self, DType::F8E4M3 | DType::F8E5M2 | DType::F8E8M0)
    }

    /// Whether the right matrix of a product may have this dtype next to a left one of `left`: `left` represents all of
    /// its numbers of 8 bits, and it has no infinities.
    pub fn is_stored_factor(self, left: DType) -> bool {
        matches!(self, DType::I8 | DType::U8 | DType::F8E4M3)
            && left.is_narrow_float()
            && !left.is_storage_float()
            && left.represents(self)
    }

    /// The least and the largest number of a dtype of integers. `None` for bool and floats.
    pub fn integer_bounds(self) -> Option<(i64, i64)> {
        match self {
            DType::U8 => Some((0, i64::from(u8::MAX))),
            DType::U16 => Some((0, i64::from(u16::MAX))),
            DType::U32 => Some((0, i64::from(u32::MAX))),
            DType::I8 => Some((i64::from(i8::MIN), i64::from(i8::MAX))),
            DType::I16 => Some((i64::from(i16::MIN), i64::from(i16::MAX))),
            DType::I32 => Some((i64::from(i32::MIN), i64::from(i32::MAX))),
            DType::I64 => Some((i64::MIN, i64::MAX)),
            DType::Bool
            | DType::F8E4M3
            | DType::F8E5M2
            | DType::F8E8M0
            | DType::F16
            | DType::BF16
            | DType::F32
            | DType::F64 => None,
        }
    }

    pub fn is_integer(self) -> bool {
        self.integer_bounds().is_some()
    }
}

/// An `f64` attribute that compares and hashes by its bits; all NaNs are equal.
#[derive(Clone, Copy)]
pub struct FloatAttribute(pub f64);

impl FloatAttribute {
    fn canonical_bits(self) -> u64 {
        if self.0.is_nan() { f64::NAN.to_bits() } else { self.0.to_bits() }
    }
}

impl PartialEq for FloatAttribute {
    fn eq(&self, other: &Self) -> bool {
        self.canonical_bits() == other.canonical_bits()
    }
}
impl Eq for FloatAttribute {}
impl Hash for FloatAttribute {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.canonical_bits().hash(state);
    }
}
impl fmt::Debug for FloatAttribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}
/// Prints a form that always has a point, an exponent, `inf` or `nan`, and that reads back as the same bits
/// (all NaNs read back as one quiet NaN).
impl fmt::Display for FloatAttribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_nan() { f.write_str("nan") } else { write!(f, "{:?}", self.0) }
    }
}

/// A compile-time scalar operand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Scalar {
    Bool(bool),
    Int(i64),
    Float(FloatAttribute),
}

impl Scalar {
    /// The value as `f64` (a bool is 0 or 1).
    pub fn as_f64(self) -> f64 {
        match self {
            Scalar::Bool(b) => f64::from(u8::from(b)),
            Scalar::Int(i) => i as f64,
            Scalar::Float(x) => x.0,
        }
    }
    pub fn convert_to(self, dtype: DType) -> Scalar {
        match dtype {
            DType::Bool => Scalar::Bool(self.as_f64() != 0.0),
            d if d.is_float() => Scalar::Float(FloatAttribute(self.as_f64())),
            _ => Scalar::Int(self.as_i64()).wrap_to(dtype),
        }
    }
    /// The scalar as a value of an integer dtype: an integer outside its range wraps, as in a cast.
    pub fn wrap_to(self, dtype: DType) -> Scalar {
        match (self, dtype.integer_bounds()) {
            (Scalar::Int(i), Some((least, largest))) if !(least..=largest).contains(&i) => {
                // The number of integers is a power of two, so the difference may wrap.
                Scalar::Int(i.wrapping_sub(least).rem_euclid(largest - least + 1) + least)
            }
            (s, _) => s,
        }
    }
    /// The nearest value of an integer dtype; scalars of other kinds are unchanged.
    pub fn saturate_to(self, dtype: DType) -> Scalar {
        match (self, dtype.integer_bounds()) {
            (Scalar::Int(i), Some((least, largest))) => Scalar::Int(i.clamp(least, largest)),
            (s, _) => s,
        }
    }
    /// The value as `i64`; a float is truncated towards zero.
    pub fn as_i64(self) -> i64 {
        match self {
            Scalar::Bool(b) => i64::from(b),
            Scalar::Int(i) => i,
            Scalar::Float(x) => x.0 as i64,
        }
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scalar::Bool(b) => write!(f, "{b}"),
            Scalar::Int(i) => write!(f, "{i}"),
            Scalar::Float(x) => write!(f, "{x}"),
        }
    }
}

/// The type of a value: a dtype and one dim per axis, outermost first. A scalar has no dims.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TensorType {
    pub dtype: DType,
    pub shape: Vec<Dim>,
}

impl TensorType {
    pub fn new(dtype: DType, shape: impl Into<Vec<Dim>>) -> Self {
        TensorType { dtype, shape: shape.into() }
    }
    pub fn rank(&self) -> usize {
        self.shape.len()
    }
    pub fn numel(&self) -> Dim {
        self.shape.iter().fold(Dim::from(1), |n, d| n * d.clone())
    }
    /// The number of bytes when stored contiguously.
    pub fn bytes(&self) -> Dim {
        self.numel() * Dim::from(self.dtype.size() as i64)
    }
    /// The shape under a binding of its symbols, in elements; `None` if a symbol is unbound or a dim is
    /// negative.
    pub fn concrete_shape(&self, bindings: &SymbolBindings) -> Option<Vec<usize>> {
        self.shape.iter().map(|d| d.eval(bindings).and_then(|v| usize::try_from(v).ok())).collect()
    }
    /// Displays the type with the names of its symbols: `f32[tokens, 64]`.
    pub fn display<'a>(&'a self, symbols: &'a SymbolTable) -> DisplayType<'a> {
        DisplayType { ty: self, symbols }
    }
    /// Row-major strides in elements.
    pub fn contiguous_strides(&self) -> Vec<Dim> {
        let mut strides = vec![Dim::from(1); self.rank()];
        for axis in (1..self.rank()).rev() {
            strides[axis - 1] = strides[axis].clone() * self.shape[axis].clone();
        }
        strides
    }
}

pub struct DisplayType<'a> {
    ty: &'a TensorType,
    symbols: &'a SymbolTable,
}

impl fmt::Display for DisplayType<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.ty.dtype)?;
        for (i, dim) in self.ty.shape.iter().enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            write!(f, "{comma}{}", dim.display(self.symbols))?;
        }
        f.write_str("]")
    }
}
