//! A tensor with its data: the form in which crates exchange weights, inputs and outputs.

use std::fmt;
use std::io;
use std::sync::Arc;

use crate::float8::{F8E4M3, F8E5M2, F8E8M0};
use crate::types::DType;
use symmc_support::BackingSlice;

/// A dense row-major tensor; elements are stored little-endian, bool as one byte 0 or 1.
#[derive(Clone)]
pub struct Tensor {
    dtype: DType,
    shape: Vec<usize>,
    data: TensorData,
}

#[derive(Clone)]
enum TensorData {
    Owned(Vec<u8>),
    Shared(BackingSlice),
}

impl TensorData {
    fn bytes(&self) -> &[u8] {
        match self {
            TensorData::Owned(bytes) => bytes,
            TensorData::Shared(slice) => slice.bytes(),
        }
    }
}

/// Equality of bits, regardless of where they are stored.
impl PartialEq for Tensor {
    fn eq(&self, other: &Tensor) -> bool {
        (self.dtype, &self.shape, self.data()) == (other.dtype, &other.shape, other.data())
    }
}

impl Eq for Tensor {}

impl Tensor {
    /// A tensor with this data; `None` if the length of `data` does not match dtype and shape.
    pub fn new(dtype: DType, shape: impl Into<Vec<usize>>, data: Vec<u8>) -> Option<Self> {
        let shape = shape.into();
        (byte_len(dtype, &shape)? == data.len()).then_some(Tensor {
            dtype,
            shape,
            data: TensorData::Owned(data),
        })
    }

    /// A tensor whose data lie in a backing; `None` if their length does not match dtype and shape. Writing to
    /// the tensor copies them first.
    pub fn from_backing(dtype: DType, shape: impl Into<Vec<usize>>, data: BackingSlice) -> Option<Self> {
        let shape = shape.into();
        let fits = byte_len(dtype, &shape)? == data.range().len();
        fits.then_some(Tensor { dtype, shape, data: TensorData::Shared(data) })
    }

    /// A tensor of zeros; `None` if its size overflows.
    pub fn zeros(dtype: DType, shape: impl Into<Vec<usize>>) -> Option<Self> {
        let shape = shape.into();
        let data = TensorData::Owned(vec![0; byte_len(dtype, &shape)?]);
        Some(Tensor { dtype, shape, data })
    }

    pub fn dtype(&self) -> DType {
        self.dtype
    }
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }
    pub fn data(&self) -> &[u8] {
        self.data.bytes()
    }
    /// The backing, unless the bytes lie in the tensor's own memory.
    pub fn backing_slice(&self) -> Option<&BackingSlice> {
        match &self.data {
            TensorData::Owned(_) => None,
            TensorData::Shared(slice) => Some(slice),
        }
    }
    /// Fills `into` with bytes from `offset` on. In contrast to [`data`](Self::data), a file that another process
    /// truncated is an error. Fails if there are fewer bytes, or as [`BackingSlice::read`].
    pub fn read(&self, offset: usize, into: &mut [u8]) -> io::Result<()> {
        match &self.data {
            TensorData::Shared(slice) => slice.read_from(offset, into),
            TensorData::Owned(bytes) => {
                let end = offset.checked_add(into.len());
                let source = end.and_then(|end| bytes.get(offset..end));
                into.copy_from_slice(source.ok_or(io::ErrorKind::UnexpectedEof)?);
                Ok(())
            }
        }
    }
    /// This tensor in memory that no other process changes: a copy if its data lie in a file. Fails if the file
    /// cannot be read, or changed since it was opened.
    pub fn load_to_memory(self: &Arc<Self>) -> io::Result<Arc<Tensor>> {
        let Some(slice) = self.backing_slice().filter(|p| p.is_volatile()) else { return Ok(self.clone()) };
        let mut data = vec![0; slice.range().len()];
        slice.read(&mut data)?;
        Ok(Arc::new(Tensor { dtype: self.dtype, shape: self.shape.clone(), data: TensorData::Owned(data) }))
    }
    pub fn data_mut(&mut self) -> &mut [u8] {
        if let TensorData::Shared(slice) = &self.data {
            self.data = TensorData::Owned(slice.bytes().to_vec());
        }
        match &mut self.data {
            TensorData::Owned(bytes) => bytes,
            TensorData::Shared(_) => &mut [],
        }
    }
    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }

    /// Element `i` in row-major order as `f64`.
    pub fn get_f64(&self, i: usize) -> f64 {
        read_f64(self.dtype, self.data(), i)
    }

    /// Element `i` in row-major order as `i64`; floats truncate.
    pub fn get_i64(&self, i: usize) -> i64 {
        read_i64(self.dtype, self.data(), i)
    }

    /// Element `i` in row-major order, with as many digits as distinguish it from adjacent values.
    pub fn element_text(&self, i: usize) -> String {
        match self.dtype {
            DType::Bool => (self.get_i64(i) != 0).to_string(),
            DType::F64 => format!("{:?}", self.get_f64(i)),
            dtype if dtype.is_float() => format!("{:?}", self.get_f64(i) as f32),
            _ => self.get_i64(i).to_string(),
        }
    }

    /// All elements in row-major order as `f64`.
    pub fn to_f64(&self) -> Vec<f64> {
        let data = self.data();
        (0..self.numel()).map(|i| read_f64(self.dtype, data, i)).collect()
    }

    /// All elements in row-major order as `i64`; floats truncate.
    pub fn to_i64(&self) -> Vec<i64> {
        let data = self.data();
        (0..self.numel()).map(|i| read_i64(self.dtype, data, i)).collect()
    }

    /// A tensor from `f64` elements, rounded to the dtype; `None` if their number does not match the shape.
    pub fn from_f64(dtype: DType, shape: impl Into<Vec<usize>>, elements: &[f64]) -> Option<Self> {
        let mut out = Tensor::zeros(dtype, shape)?;
        (out.numel() == elements.len()).then_some(())?;
        let data = out.data_mut();
        for (i, &x) in elements.iter().enumerate() {
            write_f64(dtype, data, i, x);
        }
        Some(out)
    }

    /// A tensor from `i64` elements, converted to the dtype; `None` if their number does not match the shape.
    pub fn from_i64(dtype: DType, shape: impl Into<Vec<usize>>, elements: &[i64]) -> Option<Self> {
        let mut out = Tensor::zeros(dtype, shape)?;
        (out.numel() == elements.len()).then_some(())?;
        let data = out.data_mut();
        for (i, &x) in elements.iter().enumerate() {
            write_i64(dtype, data, i, x);
        }
        Some(out)
    }
}

/// The maximum number of elements that [`Debug`](fmt::Debug) shows.
const MAX_SHOWN_ELEMENTS: usize = 16;

/// Dtype and extents, and the elements if there are few.
impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.numel() {
            1..=MAX_SHOWN_ELEMENTS => write!(f, "Tensor({}{:?} {self})", self.dtype, self.shape),
            _ => write!(f, "Tensor({}{:?})", self.dtype, self.shape),
        }
    }
}

impl Tensor {
    /// The number of axes that begin with element `i`, which is also the number that end before it.
    fn axes_starting_at(&self, i: usize) -> usize {
        let mut span = 1;
        let axes = self.shape.iter().rev().take_while(|&&extent| {
            span *= extent;
            i.is_multiple_of(span)
        });
        axes.count()
    }
}

/// All elements, in brackets for each axis. `{:#}` uses one line for each row of the last axis.
impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rank = self.shape.len();
        if self.numel() == 0 {
            return f.write_str("[]");
        }
        for i in 0..self.numel() {
            let opens = self.axes_starting_at(i);
            let closes = self.axes_starting_at(i + 1);
            if i > 0 {
                match (f.alternate(), opens) {
                    (_, 0) => f.write_str(", ")?,
                    (true, _) => write!(f, ",\n{}", " ".repeat(rank - opens))?,
                    (false, _) => f.write_str(", ")?,
                }
            }
            write!(f, "{}{}{}", "[".repeat(opens), self.element_text(i), "]".repeat(closes))?;
        }
        Ok(())
    }
}

fn byte_len(dtype: DType, shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(dtype.size(), |n, &d| n.checked_mul(d)).filter(|&n| n <= isize::MAX as usize)
}

fn element_bytes<const N: usize>(data: &[u8], i: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&data[i * N..(i + 1) * N]);
    out
}

pub fn read_f64(dtype: DType, data: &[u8], i: usize) -> f64 {
    match dtype {
        DType::Bool | DType::U8 => f64::from(data[i]),
        DType::U16 => f64::from(u16::from_le_bytes(element_bytes(data, i))),
        DType::U32 => f64::from(u32::from_le_bytes(element_bytes(data, i))),
        DType::I8 => f64::from(data[i] as i8),
        DType::I16 => f64::from(i16::from_le_bytes(element_bytes(data, i))),
        DType::I32 => f64::from(i32::from_le_bytes(element_bytes(data, i))),
        DType::I64 => i64::from_le_bytes(element_bytes(data, i)) as f64,
        DType::F8E4M3 => f64::from(F8E4M3::from_bits(data[i]).to_f32()),
        DType::F8E5M2 => f64::from(F8E5M2::from_bits(data[i]).to_f32()),
        DType::F8E8M0 => f64::from(F8E8M0::from_bits(data[i]).to_f32()),
        DType::F16 => half::f16::from_le_bytes(element_bytes(data, i)).to_f64(),
        DType::BF16 => half::bf16::from_le_bytes(element_bytes(data, i)).to_f64(),
        DType::F32 => f64::from(f32::from_le_bytes(element_bytes(data, i))),
        DType::F64 => f64::from_le_bytes(element_bytes(data, i)),
    }
}

/// Element `i` of `data` as `i64`; floats truncate.
pub fn read_i64(dtype: DType, data: &[u8], i: usize) -> i64 {
    match dtype {
        DType::I64 => i64::from_le_bytes(element_bytes(data, i)),
        _ => read_f64(dtype, data, i) as i64,
    }
}

/// `x` as f32, where an inexact value becomes its neighbour with an odd last bit. Rounding the result to a
/// format with at least two bits less (f16, bf16) then equals rounding `x` once (Boldo and Melquiond,
/// "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008). The `half`
/// crate's own conversions from f64 round twice.
#[inline(always)]
pub fn round_to_odd(x: f64) -> f32 {
    let near = x as f32;
    let back = f64::from(near);
    if back == x || x.is_nan() {
        return near;
    }
    // The bits of a float ascend with its magnitude.
    let away = back.abs() > x.abs();
    f32::from_bits((near.to_bits() - u32::from(away)) | 1)
}

/// Stores `x` as element `i` of `data`, rounded to nearest even (narrow floats from f64 in one step), or
/// truncated for integers.
pub fn write_f64(dtype: DType, data: &mut [u8], i: usize, x: f64) {
    let offset = i * dtype.size();
    match dtype {
        DType::Bool => data[offset] = u8::from(x != 0.0),
        DType::U8 | DType::U16 | DType::U32 | DType::I8 | DType::I16 | DType::I32 | DType::I64 => {
            write_i64(dtype, data, i, x as i64)
        }
        DType::F8E4M3 => data[offset] = F8E4M3::from_f32(round_to_odd(x)).to_bits(),
        DType::F8E5M2 => data[offset] = F8E5M2::from_f32(round_to_odd(x)).to_bits(),
        DType::F8E8M0 => data[offset] = F8E8M0::from_f32(round_to_odd(x)).to_bits(),
        DType::F16 => {
            data[offset..offset + 2].copy_from_slice(&half::f16::from_f32(round_to_odd(x)).to_le_bytes())
        }
        DType::BF16 => {
            data[offset..offset + 2].copy_from_slice(&half::bf16::from_f32(round_to_odd(x)).to_le_bytes())
        }
        DType::F32 => data[offset..offset + 4].copy_from_slice(&(x as f32).to_le_bytes()),
        DType::F64 => data[offset..offset + 8].copy_from_slice(&x.to_le_bytes()),
    }
}

/// Stores `x` as element `i` of `data`; narrower integers wrap.
pub fn write_i64(dtype: DType, data: &mut [u8], i: usize, x: i64) {
    let size = dtype.size();
    match dtype {
        DType::Bool => data[i] = u8::from(x != 0),
        // The low bytes of two's complement.
        dtype if dtype.is_integer() => data[i * size..][..size].copy_from_slice(&x.to_le_bytes()[..size]),
        _ => write_f64(dtype, data, i, x as f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use symmc_support::Backing;

    struct Four;

    impl Backing for Four {
        fn bytes(&self) -> &[u8] {
            &[1, 2, 3, 4]
        }
    }

    #[test]
    fn data_in_a_backing_are_copied_when_written() {
        let slice = |range| BackingSlice::new(Arc::new(Four), range);
        assert!(slice(2..5).is_none());
        let shared = Tensor::from_backing(DType::U8, [2], slice(1..3).expect("in range")).expect("two bytes");
        assert!(Tensor::from_backing(DType::I32, [2], slice(0..4).expect("in range")).is_none());
        let mut written = shared.clone();
        assert_eq!(written.backing_slice().map(BackingSlice::range), Some(1..3));
        written.data_mut()[0] = 9;
        assert_eq!((written.data(), written.backing_slice().is_none()), (&[9, 3][..], true));
        assert_eq!(shared, Tensor::new(DType::U8, [2], vec![2, 3]).expect("two bytes"));
    }

    #[test]
    fn elements_are_shown_in_brackets_for_each_axis() {
        let tensor =
            |shape: &[usize], elements: &[i64]| Tensor::from_i64(DType::I32, shape, elements).expect("fits");
        assert_eq!(tensor(&[], &[7]).to_string(), "7");
        assert_eq!(tensor(&[1, 1], &[7]).to_string(), "[[7]]");
        assert_eq!(tensor(&[2, 0], &[]).to_string(), "[]");
        let cube = tensor(&[2, 2, 2], &[0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(cube.to_string(), "[[[0, 1], [2, 3]], [[4, 5], [6, 7]]]");
        assert_eq!(format!("{cube:#}"), "[[[0, 1],\n  [2, 3]],\n [[4, 5],\n  [6, 7]]]");
        assert_eq!(format!("{:?}", tensor(&[2], &[1, 2])), "Tensor(i32[2] [1, 2])");
        assert_eq!(format!("{:?}", Tensor::zeros(DType::Bool, [64]).expect("zeros")), "Tensor(bool[64])");
    }

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
