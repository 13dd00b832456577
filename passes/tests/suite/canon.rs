//! The canonical form on small programs: `tests/canon/*.symm`.
//!
//! The words after a case's name are the rules that must fire; a rule with `!` in front must not. Every rule
//! has a case of either kind. In every case, the program computes the same.

use std::cell::RefCell;
use std::collections::BTreeSet;

use symmc_ir::{DType, text};
use symmc_passes::canon::{LAST_RULES, RULES, canonicalize};

use crate::common::{ProgramCase, bindings, check, difference};

#[test]
fn cases() {
    let covered: RefCell<BTreeSet<String>> = RefCell::default();
    check("canon", |case: &ProgramCase| {
        let (out, report) = canonicalize(&case.program).unwrap();
        for word in &case.words {
            let (rule, wanted) = word.strip_prefix('!').map_or((word.as_str(), true), |w| (w, false));
            let exists = RULES.iter().copied().chain([LAST_RULES]).flatten().any(|r| r.name == rule);
            assert!(exists, "{}: there is no rule {rule}", case.at);
            let fired = report.fired.contains_key(rule);
            assert_eq!(
                fired,
                wanted,
                "{}: {rule}; fired: {:?}\n{}",
                case.at,
                report.fired,
                text::print(&out)
            );
            covered.borrow_mut().insert(word.clone());
        }
        let (again, report) = canonicalize(&out).unwrap();
        let printed = text::print(&out);
        assert_eq!(printed, text::print(&again), "{}: a second time {:?} fired", case.at, report.fired);
        for which in [0, 1, 5] {
            let bindings = bindings(&case.program, which);
            let worst = difference(&case.program, &out, &bindings, 7);
            // Canonicalization may remove intermediate rounding to 16 bits.
            let halves = |v: &symmc_ir::Value| matches!(v.ty.dtype, DType::BF16 | DType::F16);
            let allowed = if case.program.values.values().any(halves) { 1e-2 } else { 1e-6 };
            assert!(worst <= allowed, "{}: differs by {worst}", case.at);
        }
        printed
    });
    let covered = covered.into_inner();
    for rule in RULES.iter().copied().chain([LAST_RULES]).flatten() {
        for word in [rule.name.to_string(), format!("!{}", rule.name)] {
            assert!(covered.contains(&word), "no case for {word}");
        }
    }
}
