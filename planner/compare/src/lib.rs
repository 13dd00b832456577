//! Whether the planned programs of a plan compute what the source does that the plan carries.
//!
//! Both programs are walked node by node. Values that are computed in the same way have one number
//! ([`mod@number`]), and nearly all of a planned program has the numbers of the source. What has not was written in another
//! way: such a *part* reaches from a value that both programs name alike back to values that both have, and is run on its
//! own in the reference interpreter, on drawn values and at the sizes that matter ([`mod@sizes`], [`mod@judge`]). So a
//! program of any size is compared, and what opaque and custom ops give is compared as what they are given is.
//!
//! Names are hints alone: a pair of values that is no pair does not compare equal, and is left. What is found equal is
//! taken as one value from there on, so that each part is small. Parts that are equal but for their place, as those of
//! the layers of a model are, are run once.
//!
//! # What is trusted
//! The identities of [`mod@number`], the interpreter, and that a part that agrees on what was drawn agrees. Nothing of the
//! passes is used here.
//!
//! # Bounds
//! Work is near linear in the plan: a part has at most [`region::MOST_NODES`] nodes on each side, and all parts together
//! take at most a fixed number of elements. What is left out is named.

mod axes;
mod comparison;
mod concrete;
mod draw;
mod elements;
mod judge;
mod number;
mod region;
mod sizes;
mod walk;

use std::collections::HashMap;

use symmc_ir::Graph;
use symmc_plan::{Bucket, ReadPlan};

use comparison::Shared;
pub use comparison::{Comparison, MOST, Outcome, Part};
use walk::Walk;

/// The most that is computed for one plan, in elements.
const WORK: u128 = 1 << 29;

/// Compares the programs of a plan with its source.
pub fn compare(plan: &ReadPlan) -> Comparison {
    let source = Graph { ranks: Some(plan.ranks), ..plan.source_program().clone() };
    let mut of_program: Vec<Vec<(usize, &Bucket)>> = vec![Vec::new(); plan.programs.len()];
    for (b, bucket) in plan.buckets.iter().enumerate() {
        if let Some(of) = of_program.get_mut(bucket.program) {
            of.push((b, bucket));
        }
    }
    let comparison =
        Comparison { buckets: vec![Outcome::NotCompared; plan.buckets.len()], ..Comparison::default() };
    let numerics = plan.numerics;
    let mut shared =
        Shared { comparison, known: HashMap::new(), parts: HashMap::new(), numerics, room: WORK };
    for (p, buckets) in of_program.iter().enumerate().filter(|(_, buckets)| !buckets.is_empty()) {
        let outcome = match plan.program(p) {
            Ok(planned) => Walk::new(&source, &planned.graph, buckets, &mut shared).outcome(),
            Err(e) => {
                shared.comparison.leave_out(e.to_string());
                Outcome::NotCompared
            }
        };
        buckets.iter().for_each(|&(b, _)| shared.comparison.buckets[b] = outcome);
        if shared.comparison.more_differences > 0 {
            break;
        }
    }
    shared.comparison
}
