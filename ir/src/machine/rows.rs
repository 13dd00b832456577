//! Estimated time of kernels that reduce rows.
//!
//! A block of threads computes each row, so fewer rows than multiprocessors leave some of them idle. A multiprocessor that works
//! alone moves more than its share of the bandwidth, but not all of it.

use super::Profile;
use super::throughput::Operations;

/// How many times its share of the bandwidth a multiprocessor moves where others are idle.
const SHARES: u64 = 2;

impl Profile {
    /// The estimated time in microseconds of a kernel that reads and writes so many bytes, with one block of threads for each of
    /// these rows; without rows, with as many blocks as the machine runs.
    pub fn rows_us(&self, rows: Option<u64>, moved: u64) -> f64 {
        let all = u64::from(self.multiprocessors.unwrap_or(1));
        let busy = rows.map_or(all, |rows| rows.saturating_mul(SHARES).clamp(1, all));
        let slowed = u128::from(moved) * u128::from(all) / u128::from(busy.max(1));
        self.compute_us(u64::try_from(slowed).unwrap_or(u64::MAX), Operations::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_rows_take_longer_by_the_multiprocessors_that_they_leave_idle() {
        let profile = Profile::builtin("h200x2").expect("a profile");
        let all = u64::from(profile.multiprocessors.expect("a GPU"));
        let moved = 64 << 20;
        let whole = profile.rows_us(None, moved);
        assert_eq!(profile.rows_us(Some(all), moved), whole);
        assert_eq!(profile.rows_us(Some(1 << 40), moved), whole);
        let times: Vec<f64> = (0..8).map(|k| profile.rows_us(Some(all >> k), moved)).collect();
        assert!(times.is_sorted() && times[7] > 16.0 * whole, "{times:?}");
        assert!(profile.rows_us(Some(0), 0).is_finite());
    }
}
