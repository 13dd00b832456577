//! What must hold for any bytes that are read as a plan: shared by the fuzz target and the tests.

use symmc_plan::Plan;

/// Panics if these bytes break a promise of the reader: whatever reads is written as a text that reads as
/// the same plan, errors say where, and the check answers for any plan.
pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Plan::from_json(text) {
        Ok(plan) => {
            let written = plan.to_json();
            let again =
                Plan::from_json(&written).unwrap_or_else(|e| panic!("a written plan does not read: {e}"));
            assert_eq!(written, again.to_json(), "a plan is written in two ways");
            let _ = crate::check(&plan);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
