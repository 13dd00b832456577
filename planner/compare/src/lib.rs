//! Compares the planned programs of a plan with the source that the plan carries.
//!
//! Both programs are walked node by node. Values that are computed in the same way get one number (`number`).
//! Nearly all values of a planned program have numbers of the source. The other values form *parts*. A part
//! reaches from a value that has the same name in both programs back to values that are equal in both. It is
//! proven equal (`proof`), or runs alone in the reference interpreter, on drawn values and at selected sizes
//! (`sizes`, `judge`). Programs of any size can therefore be compared. Results of opaque and custom ops are equal
//! if their operands are.
//!
//! Names are only hints: a wrong pair of values does not compare equal, and is skipped. Values that were found
//! equal count as one value from then on, so that each part is small. Parts that differ only in their place,
//! such as those of the layers of a model, run once.
//!
//! # Trusted parts
//! The comparison relies on five things:
//! - the identities of `number`;
//! - the equations and definitions of `proof`, which tests hold against the interpreter, and the table
//!   [`symmc_ir::Op::axes`];
//! - the interpreter;
//! - the analysis of ranks that hold the same bits of a value of the source ([`symmc_ir::Replication`]), by
//!   which drawn values are the same there;
//! - the assumption that a part that agrees on the drawn values, and whose leaves all influence results (`influence`),
//!   agrees on all values.
//!
//! The passes are not used here.
//!
//! # Bounds
//! The work is nearly linear in the plan. A part has at most `region::MAX_REGION_NODES` nodes on each side, and all
//! parts together compute at most a fixed number of elements. The result names all parts, sizes and positions
//! that are left out.

mod axes;
mod comparison;
mod concrete;
mod draw;
mod elements;
mod gathers;
mod influence;
mod judge;
mod number;
mod parts;
mod proof;
mod ranges;
mod reach;
mod region;
mod sizes;
#[cfg(test)]
mod sweep;
mod walk;
mod windows;

use std::collections::{HashMap, HashSet};

use symmc_ir::Graph;
use symmc_ir::bounds::BoundsChecks;
use symmc_plan::{Bucket, ParsedPlan};

pub use comparison::{
    ComparedPart, LimitKind, MAX_LISTED_ENTRIES, PartLimit, SourceComparison, SourceDifferences, SourceStatus,
};
use gathers::separate_gathered_axes;
use parts::ComparisonState;
pub use proof::equations::{EQUATIONS, Equation, EquationClass, EquationTypes};
use walk::ComparisonWalk;

/// The largest number of elements that are computed for one plan.
const MAX_PLAN_WORK: u128 = 1 << 29;

/// How a plan is compared with its source.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CompareConfig {
    /// Whether parts are proven where that is possible. Parts with a proof are not compared on drawn values.
    pub proofs: bool,
}

impl Default for CompareConfig {
    fn default() -> Self {
        CompareConfig { proofs: true }
    }
}

impl CompareConfig {
    /// Compares all parts on drawn values.
    pub fn without_proofs() -> Self {
        CompareConfig { proofs: false }
    }
}

/// Compares a plan with its source, by proof where that is possible.
pub fn compare(plan: &ParsedPlan) -> SourceComparison {
    compare_with(plan, &CompareConfig::default())
}

pub fn compare_with(plan: &ParsedPlan, config: &CompareConfig) -> SourceComparison {
    let source = Graph { ranks: Some(plan.ranks), ..plan.source_program().clone() };
    let separate_source = separate_gathered_axes(&source);
    let mut of_program: Vec<Vec<(usize, &Bucket)>> = vec![Vec::new(); plan.programs.len()];
    for (b, bucket) in plan.buckets.iter().enumerate() {
        if let Some(of) = of_program.get_mut(bucket.program) {
            of.push((b, bucket));
        }
    }
    let comparison = SourceComparison {
        buckets: vec![SourceStatus::NotCompared; plan.buckets.len()],
        ..SourceComparison::default()
    };
    let mut shared = ComparisonState {
        comparison,
        judgements: HashMap::new(),
        outcomes: HashMap::new(),
        agreeing: HashSet::new(),
        parts: HashMap::new(),
        numerics: plan.numerics,
        proves: config.proofs,
        remaining_work: MAX_PLAN_WORK,
        bounds: BoundsChecks::derive(&source),
        source: source.clone(),
    };
    for (p, buckets) in of_program.iter().enumerate().filter(|(_, buckets)| !buckets.is_empty()) {
        shared.outcomes.clear();
        let status = match plan.program(p) {
            Ok(planned) => {
                let planned = separate_gathered_axes(&planned.graph);
                ComparisonWalk::new(&separate_source, &planned, buckets, &mut shared).run()
            }
            Err(e) => {
                shared.comparison.add_uncompared(&format!("program {p}"), &e.to_string());
                SourceStatus::NotCompared
            }
        };
        buckets.iter().for_each(|&(b, _)| shared.comparison.buckets[b] = status);
        if shared.comparison.more_differences > 0 {
            break;
        }
    }
    shared.comparison
}
