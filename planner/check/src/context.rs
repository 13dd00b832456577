//! What the rules for the steps of one bucket look at.

use symmc_ir::{Symbols, Table, ValueId};
use symmc_plan::{Bucket, Plan};

use super::error::At;
use super::overlap::Overlaps;
use super::place::Location;
use super::program::{PlannedProgram, Programs};

pub struct Context<'a> {
    pub plan: &'a Plan,
    pub programs: &'a Programs,
    pub index: usize,
    pub bucket: &'a Bucket,
    pub program: &'a PlannedProgram,
    /// The symbols of the program with the ranges of the bucket.
    pub symbols: &'a Symbols,
    /// Where each base value lies.
    pub locations: &'a Table<ValueId, Option<Location>>,
    pub overlaps: &'a Overlaps,
}

impl Context<'_> {
    /// Whether two values share bytes.
    pub fn share(&self, a: ValueId, b: ValueId) -> bool {
        share(self.overlaps, self.locations, a, b)
    }

    pub fn at(&self, step: usize) -> At {
        let node = self.bucket.steps.get(step).map(|s| s.node.clone()).unwrap_or_default();
        At { bucket: self.index, step, node }
    }
}

/// Whether two values share bytes in one run, as far as is known of where they lie.
pub fn share(
    overlaps: &Overlaps,
    locations: &Table<ValueId, Option<Location>>,
    a: ValueId,
    b: ValueId,
) -> bool {
    locations[a].as_ref().zip(locations[b].as_ref()).is_some_and(|(x, y)| overlaps.share((a, x), (b, y)))
}

/// Whether a value has as many elements as its base.
pub fn is_whole(program: &PlannedProgram, x: ValueId) -> bool {
    let (graph, base) = (&program.graph, program.base(x));
    base == x || graph.ty(base).numel() == graph.ty(x).numel()
}
