//! The property that holds for any bytes that are read as a plan. The fuzz target and the tests share it.

use symmc_plan::Plan;

/// Panics unless these bytes satisfy the contract of the reader. If they parse as a plan, then writing and reading
/// the plan again gives the same text, and the check terminates without a panic. Otherwise the error has a
/// message.
pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Plan::from_json(text) {
        Ok(plan) => {
            let written = plan.to_json();
            let reparsed =
                Plan::from_json(&written).unwrap_or_else(|e| panic!("a written plan does not read: {e}"));
            assert_eq!(written, reparsed.to_json(), "a plan is written in two ways");
            let _ = crate::check(&plan);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
