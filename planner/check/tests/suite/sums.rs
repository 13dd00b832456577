//! Repairs the derived fields of a plan after a change: totals, and the reach of buffers.

use symmc_check::{CheckError, check};
use symmc_plan::Plan;

/// Sets totals and reach to the values that the check expects.
pub fn sums(plan: &mut Plan) {
    repeat(plan, mend_sum);
}

/// Checks the plan and repairs findings with `mend`, until no finding can be repaired.
pub fn repeat(plan: &mut Plan, mend: impl Fn(&mut Plan, &CheckError) -> bool) {
    for _ in 0..8 {
        let errors = check(plan).err().unwrap_or_default();
        if errors.iter().filter(|e| mend(plan, e)).count() == 0 {
            return;
        }
    }
}

/// Repairs one finding, if it is about totals or reach.
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
