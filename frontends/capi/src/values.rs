//! Inputs, parameters and outputs of a session, in the types of C.

use std::ffi::{CString, c_char};

use symmc::{DType, Error, PortStorage, SessionValue, ValueKind};

use crate::error::{c_text, input_error};

/// Inputs that change from run to run.
pub const SYMMC_ARGUMENT: i32 = 0;
/// Inputs that are given once: weights, and constants that are part of the program.
pub const SYMMC_PARAMETER: i32 = 1;
/// Outputs, including those that replace an input.
pub const SYMMC_OUTPUT: i32 = 2;

/// Elements of one byte, 0 or 1.
pub const SYMMC_BOOL: i32 = 0;
/// Unsigned integers of 8 bits.
pub const SYMMC_U8: i32 = 1;
/// Signed integers of 32 bits.
pub const SYMMC_I32: i32 = 2;
/// Signed integers of 64 bits.
pub const SYMMC_I64: i32 = 3;
/// IEEE 754 numbers of 16 bits.
pub const SYMMC_F16: i32 = 4;
/// The upper half of IEEE 754 numbers of 32 bits.
pub const SYMMC_BF16: i32 = 5;
/// IEEE 754 numbers of 32 bits.
pub const SYMMC_F32: i32 = 6;
/// IEEE 754 numbers of 64 bits.
pub const SYMMC_F64: i32 = 7;
/// Unsigned integers of 16 bits.
pub const SYMMC_U16: i32 = 8;
/// Unsigned integers of 32 bits.
pub const SYMMC_U32: i32 = 9;
/// Signed integers of 8 bits.
pub const SYMMC_I8: i32 = 10;
/// Signed integers of 16 bits.
pub const SYMMC_I16: i32 = 11;
/// Floats with 4 bits of exponent and 3 of mantissa, without infinities (e4m3fn).
pub const SYMMC_F8E4M3: i32 = 12;
/// Floats with 5 bits of exponent and 2 of mantissa.
pub const SYMMC_F8E5M2: i32 = 13;
/// Powers of two: 8 bits of exponent.
pub const SYMMC_F8E8M0: i32 = 14;

/// Memory of this rank that the session holds.
pub const SYMMC_PLACE_OWN: i32 = 0;
/// The symmetric arena, which peers can access.
pub const SYMMC_PLACE_SYMMETRIC: i32 = 1;
/// Memory that the caller has bound.
pub const SYMMC_PLACE_BOUND: i32 = 2;

/// An input, a parameter or an output at the current sizes. The session owns the memory behind its pointers, which is valid until
/// another size is set or the session ends.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct symmc_value {
    /// The name of the value in the program.
    pub name: *const c_char,
    /// The name under which a weight is stored. For an argument, its name in the file of the program. NULL if there is none.
    pub source: *const c_char,
    /// For an output, the name of the input that it replaces, otherwise NULL.
    pub replaces: *const c_char,
    /// The extent of each axis, in elements.
    pub extents: *const i64,
    /// The number of axes.
    pub axes: usize,
    /// The size in bytes.
    pub bytes: usize,
    /// The type of the elements: `SYMMC_F32` and so on.
    pub dtype: i32,
}

/// The memory of an input or output.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct symmc_memory {
    /// The first byte, an address of the session's device.
    pub data: *mut std::ffi::c_void,
    /// The number of bytes at the current sizes.
    pub bytes: usize,
    /// The owner of the memory: `SYMMC_PLACE_OWN` and so on.
    pub place: i32,
}

/// A value and the texts that its description in C points to.
pub(crate) struct DescribedValue {
    pub kind: i32,
    name: CString,
    source: Option<CString>,
    replaces: Option<CString>,
    extents: Vec<i64>,
    bytes: usize,
    dtype: i32,
}

impl DescribedValue {
    pub(crate) fn from_value(value: SessionValue) -> Result<DescribedValue, Error> {
        let text = |text: Option<String>| text.map(|text| c_text(&text));
        let kind = match value.kind {
            ValueKind::Argument => SYMMC_ARGUMENT,
            ValueKind::Output => SYMMC_OUTPUT,
            _ => SYMMC_PARAMETER,
        };
        let extents = value.extents.iter().map(|&extent| i64::try_from(extent));
        let extents: Result<Vec<i64>, _> = extents.collect();
        Ok(DescribedValue {
            kind,
            name: c_text(&value.name),
            source: text(value.source),
            replaces: text(value.replaces),
            extents: extents
                .map_err(|_| input_error(format!("%{}: its extents are too large", value.name)))?,
            bytes: value.bytes,
            dtype: dtype_code(value.dtype),
        })
    }

    pub(crate) fn to_c_value(&self) -> symmc_value {
        let pointer = |text: &Option<CString>| text.as_ref().map_or(std::ptr::null(), |t| t.as_ptr());
        symmc_value {
            name: self.name.as_ptr(),
            source: pointer(&self.source),
            replaces: pointer(&self.replaces),
            extents: self.extents.as_ptr(),
            axes: self.extents.len(),
            bytes: self.bytes,
            dtype: self.dtype,
        }
    }
}

fn dtype_code(dtype: DType) -> i32 {
    match dtype {
        DType::Bool => SYMMC_BOOL,
        DType::U8 => SYMMC_U8,
        DType::U16 => SYMMC_U16,
        DType::U32 => SYMMC_U32,
        DType::I8 => SYMMC_I8,
        DType::I16 => SYMMC_I16,
        DType::I32 => SYMMC_I32,
        DType::I64 => SYMMC_I64,
        DType::F8E4M3 => SYMMC_F8E4M3,
        DType::F8E5M2 => SYMMC_F8E5M2,
        DType::F8E8M0 => SYMMC_F8E8M0,
        DType::F16 => SYMMC_F16,
        DType::BF16 => SYMMC_BF16,
        DType::F32 => SYMMC_F32,
        DType::F64 => SYMMC_F64,
    }
}

pub(crate) fn storage_code(storage: PortStorage) -> i32 {
    match storage {
        PortStorage::Symmetric(_) => SYMMC_PLACE_SYMMETRIC,
        PortStorage::Caller(_) => SYMMC_PLACE_BOUND,
        _ => SYMMC_PLACE_OWN,
    }
}
