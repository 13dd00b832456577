//! A tensor with its data: the form in which weights, inputs and outputs pass between crates.

use std::fmt;

use crate::types::DType;

/// A dense row-major tensor; elements are stored little-endian, bool as one byte 0 or 1.
#[derive(Clone, PartialEq, Eq)]
pub struct Tensor {
    dtype: DType,
    shape: Vec<usize>,
    data: Vec<u8>,
}

impl Tensor {
    /// A tensor of this data; `None` if `data` is not exactly as long as dtype and shape say.
    pub fn new(dtype: DType, shape: impl Into<Vec<usize>>, data: Vec<u8>) -> Option<Self> {
        let shape = shape.into();
        (byte_len(dtype, &shape)? == data.len()).then_some(Tensor { dtype, shape, data })
    }

    /// A tensor of zeros; `None` if its size overflows.
    pub fn zeros(dtype: DType, shape: impl Into<Vec<usize>>) -> Option<Self> {
        let shape = shape.into();
        let data = vec![0; byte_len(dtype, &shape)?];
        Some(Tensor { dtype, shape, data })
    }

    /// The dtype.
    pub fn dtype(&self) -> DType {
        self.dtype
    }
    /// The extent of each axis in elements.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }
    /// The bytes of all elements.
    pub fn data(&self) -> &[u8] {
        &self.data
    }
    /// The bytes of all elements, mutably.
    pub fn data_mut(&mut self) -> &mut [u8] {
        &mut self.data
    }
    /// The number of elements.
    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }

    /// Element `i` in row-major order as `f64`.
    pub fn get_f64(&self, i: usize) -> f64 {
        read_f64(self.dtype, &self.data, i)
    }

    /// All elements in row-major order as `f64`.
    pub fn to_f64(&self) -> Vec<f64> {
        (0..self.numel()).map(|i| self.get_f64(i)).collect()
    }

    /// All elements in row-major order as `i64`; floats truncate.
    pub fn to_i64(&self) -> Vec<i64> {
        (0..self.numel()).map(|i| read_i64(self.dtype, &self.data, i)).collect()
    }

    /// A tensor from `f64` elements, rounded to the dtype; `None` if their number does not fit the shape.
    pub fn from_f64(dtype: DType, shape: impl Into<Vec<usize>>, elements: &[f64]) -> Option<Self> {
        let mut out = Tensor::zeros(dtype, shape)?;
        (out.numel() == elements.len()).then_some(())?;
        for (i, &x) in elements.iter().enumerate() {
            write_f64(dtype, &mut out.data, i, x);
        }
        Some(out)
    }

    /// A tensor from `i64` elements, converted to the dtype; `None` if their number does not fit the shape.
    pub fn from_i64(dtype: DType, shape: impl Into<Vec<usize>>, elements: &[i64]) -> Option<Self> {
        let mut out = Tensor::zeros(dtype, shape)?;
        (out.numel() == elements.len()).then_some(())?;
        for (i, &x) in elements.iter().enumerate() {
            write_i64(dtype, &mut out.data, i, x);
        }
        Some(out)
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({}{:?})", self.dtype, self.shape)
    }
}

fn byte_len(dtype: DType, shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(dtype.size(), |n, &d| n.checked_mul(d)).filter(|&n| n <= isize::MAX as usize)
}

fn bytes<const N: usize>(data: &[u8], i: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&data[i * N..(i + 1) * N]);
    out
}

/// Element `i` of `data` as `f64`.
pub fn read_f64(dtype: DType, data: &[u8], i: usize) -> f64 {
    match dtype {
        DType::Bool | DType::U8 => f64::from(data[i]),
        DType::I32 => f64::from(i32::from_le_bytes(bytes(data, i))),
        DType::I64 => i64::from_le_bytes(bytes(data, i)) as f64,
        DType::F16 => half::f16::from_le_bytes(bytes(data, i)).to_f64(),
        DType::BF16 => half::bf16::from_le_bytes(bytes(data, i)).to_f64(),
        DType::F32 => f64::from(f32::from_le_bytes(bytes(data, i))),
        DType::F64 => f64::from_le_bytes(bytes(data, i)),
    }
}

/// Element `i` of `data` as `i64`; floats truncate.
pub fn read_i64(dtype: DType, data: &[u8], i: usize) -> i64 {
    match dtype {
        DType::I64 => i64::from_le_bytes(bytes(data, i)),
        _ => read_f64(dtype, data, i) as i64,
    }
}

/// `x` as f32, where an inexact value becomes its neighbour with an odd last bit. Rounding that again to a
/// format with at least two bits less (f16, bf16) gives what rounding `x` once gives (Boldo and Melquiond,
/// "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008). The `half`
/// crate's own conversions from f64 round twice.
#[inline(always)]
pub fn round_to_odd(x: f64) -> f32 {
    let near = x as f32;
    let back = f64::from(near);
    if back == x || x.is_nan() {
        return near;
    }
    // The bits of a float count up with its magnitude.
    let away = back.abs() > x.abs();
    f32::from_bits((near.to_bits() - u32::from(away)) | 1)
}

/// Stores `x` as element `i` of `data`, rounded to nearest even (f16 and bf16 from f64 in one step), or
/// truncated for integers.
pub fn write_f64(dtype: DType, data: &mut [u8], i: usize, x: f64) {
    let at = i * dtype.size();
    match dtype {
        DType::Bool => data[at] = u8::from(x != 0.0),
        DType::U8 => data[at] = x as i64 as u8,
        DType::I32 => data[at..at + 4].copy_from_slice(&(x as i64 as i32).to_le_bytes()),
        DType::I64 => data[at..at + 8].copy_from_slice(&(x as i64).to_le_bytes()),
        DType::F16 => data[at..at + 2].copy_from_slice(&half::f16::from_f32(round_to_odd(x)).to_le_bytes()),
        DType::BF16 => data[at..at + 2].copy_from_slice(&half::bf16::from_f32(round_to_odd(x)).to_le_bytes()),
        DType::F32 => data[at..at + 4].copy_from_slice(&(x as f32).to_le_bytes()),
        DType::F64 => data[at..at + 8].copy_from_slice(&x.to_le_bytes()),
    }
}

/// Stores `x` as element `i` of `data`; narrower integers wrap.
pub fn write_i64(dtype: DType, data: &mut [u8], i: usize, x: i64) {
    let at = i * dtype.size();
    match dtype {
        DType::Bool => data[at] = u8::from(x != 0),
        DType::U8 => data[at] = x as u8,
        DType::I32 => data[at..at + 4].copy_from_slice(&(x as i32).to_le_bytes()),
        DType::I64 => data[at..at + 8].copy_from_slice(&x.to_le_bytes()),
        _ => write_f64(dtype, data, i, x as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_rounded_once() {
        // Above the midpoint of 1 and its successor by less than an f32 can tell, and that midpoint itself.
        for (dtype, last_place) in [(DType::F16, -10), (DType::BF16, -7)] {
            let half = 2f64.powi(last_place - 1);
            let elements = [1.0 + half + 2f64.powi(-40), 1.0 + half, -1.0 - half - 2f64.powi(-40), 1e300];
            let expected = [1.0 + 2.0 * half, 1.0, -1.0 - 2.0 * half, f64::INFINITY];
            let tensor = Tensor::from_f64(dtype, [4], &elements).expect("four elements");
            assert_eq!(tensor.to_f64(), expected, "{dtype}");
        }
    }
}
