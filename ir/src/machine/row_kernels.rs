//! Estimated time of kernels that reduce rows.
//!
//! A block of threads computes each row, so with fewer rows than multiprocessors some of them are idle. A
//! multiprocessor next to idle ones moves more than its share of the bandwidth, but not all of it.

use super::MachineProfile;
use super::throughput::OperationCounts;

/// The multiple of its share of the bandwidth that a multiprocessor moves if others are idle.
const MAX_BANDWIDTH_SHARES: u64 = 2;

/// The overhead of a kernel after another one, in addition to the time of its work.
const LAUNCH_US: f64 = 0.7;
/// The values per row that the end of an all-reduce with a norm reads and writes: the operand, the received
/// data, the residual, the sum and the norm.
const MOVED_BY_FUSED_NORM: u64 = 5;

impl MachineProfile {
    /// The estimated time in microseconds of a kernel that reads and writes `moved` bytes, with one block of
    /// threads for each of these rows; without rows, with as many blocks as the machine runs at once.
    pub fn row_kernel_us(&self, rows: Option<u64>, moved: u64) -> f64 {
        self.compute_us(self.equivalent_full_speed_bytes(rows, moved), OperationCounts::default())
    }

    /// The bytes that all multiprocessors would move in the time in which only those with rows move `moved`
    /// bytes.
    fn equivalent_full_speed_bytes(&self, rows: Option<u64>, moved: u64) -> u64 {
        let multiprocessors = u64::from(self.multiprocessors.unwrap_or(1));
        let busy = rows.map_or(multiprocessors, |rows| {
            rows.saturating_mul(MAX_BANDWIDTH_SHARES).clamp(1, multiprocessors)
        });
        let slowed = u128::from(moved) * u128::from(multiprocessors) / u128::from(busy.max(1));
        u64::try_from(slowed).unwrap_or(u64::MAX)
    }

    /// The estimated times in microseconds of the norm of these rows of the result of an all-reduce by `ll`: in
    /// the kernel of the all-reduce, where a block receives a row, and in its own kernel.
    pub fn norm_after_reduction_us(&self, rows: u64, row_bytes: u64) -> [f64; 2] {
        // With many rows, it adds reading the residual and writing the norm to the traffic of the all-reduce.
        let moving = self.copy_us(rows.saturating_mul(row_bytes));
        let of_row = self.equivalent_full_speed_bytes(Some(1), row_bytes.saturating_mul(MOVED_BY_FUSED_NORM));
        [self.copy_us(of_row / 2).max(moving), moving + LAUNCH_US]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_rows_take_longer_by_the_multiprocessors_that_they_leave_idle() {
        let profile = MachineProfile::builtin("h200x2").expect("a profile");
        let multiprocessors = u64::from(profile.multiprocessors.expect("a GPU"));
        let moved = 64 << 20;
        let full_speed = profile.row_kernel_us(None, moved);
        assert_eq!(profile.row_kernel_us(Some(multiprocessors), moved), full_speed);
        assert_eq!(profile.row_kernel_us(Some(1 << 40), moved), full_speed);
        let times: Vec<f64> =
            (0..8).map(|k| profile.row_kernel_us(Some(multiprocessors >> k), moved)).collect();
        assert!(times.is_sorted() && times[7] > 16.0 * full_speed, "{times:?}");
        assert!(profile.row_kernel_us(Some(0), 0).is_finite());
    }

    /// Measured on two H200 (`symmc bench collectives --norms`): rows and elements of bf16, and whether one
    /// kernel was faster.
    #[test]
    fn the_faster_way_of_a_norm_after_a_reduction_is_that_which_was_measured() {
        let profile = MachineProfile::builtin("h200x2").expect("a profile");
        for (rows, elements, fused_is_faster) in [
            (1, 4096, true),
            (8, 4096, true),
            (32, 4096, true),
            (128, 4096, true),
            (1, 8192, false),
            (8, 8192, false),
            (32, 8192, false),
            (128, 8192, true),
        ] {
            let [fused, separate] = profile.norm_after_reduction_us(rows, elements * 2);
            assert_eq!(fused < separate, fused_is_faster, "{rows} × {elements}: {fused} and {separate}");
        }
    }
}
