//! What a plan says of itself, made to fit after a change: sums, and what peers do to buffers.

use symmc_check::{CheckError, check};
use symmc_plan::Plan;

/// Makes sums and reach fit the rest of the plan.
pub fn sums(plan: &mut Plan) {
    repeat(plan, mend_sum);
}

/// Mends what the check finds, until nothing of it can be mended.
pub fn repeat(plan: &mut Plan, mend: impl Fn(&mut Plan, &CheckError) -> bool) {
    for _ in 0..8 {
        let errors = check(plan).err().unwrap_or_default();
        if errors.iter().filter(|e| mend(plan, e)).count() == 0 {
            return;
        }
    }
}

/// Mends one finding, if it is about sums or reach.
pub fn mend_sum(plan: &mut Plan, error: &CheckError) -> bool {
    match error {
        CheckError::Total { bucket, total, expected, .. } => {
            let t = &mut plan.buckets[*bucket].totals;
            let field = match *total {
                "ordinary_peak" => &mut t.ordinary_peak,
                "ordinary_bound" => &mut t.ordinary_bound,
                "symmetric_peak" => &mut t.symmetric_peak,
                "symmetric_bound" => &mut t.symmetric_bound,
                "copies" => &mut t.copies,
                "copied" => &mut t.copied,
                "barriers_dropped" => &mut t.barriers_dropped,
                _ => &mut t.barriers_kept,
            };
            *field = *expected;
        }
        CheckError::BufferReach { bucket, buffer, expected, .. } => {
            plan.buckets[*bucket].buffers[*buffer].reach = *expected;
        }
        _ => return false,
    }
    true
}
