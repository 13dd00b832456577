//! Weighted sums of rows, which accumulate in f32 (f64 for f64) and are rounded when they are stored.

use symmc_ir::DType;

use super::element::{ComputeNumber, StoredElement, for_element};

/// The sum of rows of one width.
pub(crate) enum RowSum {
    Single(DType, Vec<f32>),
    Double(Vec<f64>),
}

impl RowSum {
    /// A sum of no rows.
    pub fn new(dtype: DType, width: usize) -> Self {
        match dtype {
            DType::F64 => RowSum::Double(vec![0.0; width]),
            _ => RowSum::Single(dtype, vec![0.0; width]),
        }
    }

    pub fn clear(&mut self) {
        match self {
            RowSum::Single(_, sums) => sums.fill(0.0),
            RowSum::Double(sums) => sums.fill(0.0),
        }
    }

    /// Adds a row times a weight.
    ///
    /// # Safety
    /// The elements of a row of this dtype must be readable at `row` and aligned.
    pub unsafe fn add(&mut self, row: *const u8, weight: f64) {
        match self {
            RowSum::Single(dtype, sums) => {
                let weight = weight as f32;
                // SAFETY: by the caller.
                for_element!(*dtype, E => unsafe { add_row::<f32, E>(sums, row, |x| x * weight) });
            }
            // SAFETY: by the caller.
            RowSum::Double(sums) => unsafe { add_row::<f64, f64>(sums, row, |x| x * weight) },
        }
    }

    /// Adds another sum of this dtype and width.
    pub fn add_sum(&mut self, other: &RowSum) {
        match (self, other) {
            (RowSum::Single(_, sums), RowSum::Single(_, others)) => add_elements(sums, others),
            (RowSum::Double(sums), RowSum::Double(others)) => add_elements(sums, others),
            _ => debug_assert!(false, "sums of one dtype"),
        }
    }

    /// Reads a sum that [`store_accumulated`](Self::store_accumulated) wrote.
    ///
    /// # Safety
    /// The elements of a row of f32 (f64 for f64) must be readable at `from` and aligned.
    pub unsafe fn load_accumulated(&mut self, from: *const u8) {
        self.clear();
        match self {
            // SAFETY: by the caller.
            RowSum::Single(_, sums) => unsafe { add_row::<f32, f32>(sums, from, |x| x) },
            // SAFETY: by the caller.
            RowSum::Double(sums) => unsafe { add_row::<f64, f64>(sums, from, |x| x) },
        }
    }

    /// Stores the sum in the dtype in which it accumulates.
    ///
    /// # Safety
    /// The elements of a row of f32 (f64 for f64) must be writable at `to` and aligned.
    pub unsafe fn store_accumulated(&self, to: *mut u8) {
        match self {
            // SAFETY: by the caller.
            RowSum::Single(_, sums) => unsafe { store_row::<f32, f32>(sums, to) },
            // SAFETY: by the caller.
            RowSum::Double(sums) => unsafe { store_row::<f64, f64>(sums, to) },
        }
    }

    /// The bytes of an accumulated row.
    pub fn accumulated_bytes(&self) -> usize {
        match self {
            RowSum::Single(_, sums) => size_of_val(&sums[..]),
            RowSum::Double(sums) => size_of_val(&sums[..]),
        }
    }

    /// Rounds the sum and stores it.
    ///
    /// # Safety
    /// The elements of a row of this dtype must be writable at `to` and aligned.
    pub unsafe fn store(&self, to: *mut u8) {
        match self {
            RowSum::Single(dtype, sums) => {
                // SAFETY: by the caller.
                for_element!(*dtype, E => unsafe { store_row::<f32, E>(sums, to) });
            }
            // SAFETY: by the caller.
            RowSum::Double(sums) => unsafe { store_row::<f64, f64>(sums, to) },
        }
    }
}

fn add_elements<C: Copy + std::ops::AddAssign>(sums: &mut [C], others: &[C]) {
    sums.iter_mut().zip(others).for_each(|(sum, &other)| *sum += other);
}

/// The float at an address.
///
/// # Safety
/// An element of this dtype must be readable at `at` and aligned.
pub(crate) unsafe fn read_float(dtype: DType, at: *const u8) -> f64 {
    // SAFETY: by the caller.
    for_element!(dtype, E => unsafe { at.cast::<E>().read().to_f64() })
}

/// # Safety
/// As [`RowSum::add`].
unsafe fn add_row<C: ComputeNumber + std::ops::AddAssign, E: StoredElement>(
    sums: &mut [C],
    row: *const u8,
    weighted: impl Fn(C) -> C,
) {
    let row = row.cast::<E>();
    for (i, sum) in sums.iter_mut().enumerate() {
        // SAFETY: by the caller.
        *sum += weighted(C::from_element(unsafe { row.add(i).read() }));
    }
}

/// # Safety
/// As [`RowSum::store`].
unsafe fn store_row<C: ComputeNumber, E: StoredElement>(sums: &[C], to: *mut u8) {
    let destination = to.cast::<E>();
    for (i, &sum) in sums.iter().enumerate() {
        // SAFETY: by the caller.
        unsafe { destination.add(i).write(sum.to_element()) };
    }
}
