//! The input of the rules for the steps of one bucket: the plan, the bucket and its resolved places.

use symmc_ir::{EntityMap, SymbolTable, ValueId};
use symmc_plan::{Bucket, Plan};

use super::error::StepLocation;
use super::location::ValueLocation;
use super::overlap::ValueOverlaps;
use super::program::{PlanPrograms, PlannedProgram};

pub struct CheckContext<'a> {
    pub plan: &'a Plan,
    pub programs: &'a PlanPrograms,
    /// The index of the bucket.
    pub index: usize,
    pub bucket: &'a Bucket,
    pub program: &'a PlannedProgram,
    /// The symbols of the program with the ranges of the bucket.
    pub symbols: &'a SymbolTable,
    /// The location of each base value. `None` for views, and for values whose placement is wrong.
    pub locations: &'a EntityMap<ValueId, Option<ValueLocation>>,
    pub overlaps: &'a ValueOverlaps,
}

impl CheckContext<'_> {
    /// Whether two base values may share bytes in one run.
    pub fn share_bytes(&self, a: ValueId, b: ValueId) -> bool {
        share_bytes(self.overlaps, self.locations, a, b)
    }

    pub fn step_location(&self, step: usize) -> StepLocation {
        let node = self.bucket.steps.get(step).map(|s| s.node.clone()).unwrap_or_default();
        StepLocation { bucket: self.index, step, node }
    }
}

/// Whether two base values may share bytes in one run. Values without a location share no bytes.
pub fn share_bytes(
    overlaps: &ValueOverlaps,
    locations: &EntityMap<ValueId, Option<ValueLocation>>,
    a: ValueId,
    b: ValueId,
) -> bool {
    locations[a]
        .as_ref()
        .zip(locations[b].as_ref())
        .is_some_and(|(x, y)| overlaps.share_bytes((a, x), (b, y)))
}

/// Whether a value has as many elements as its base.
pub fn covers_base(program: &PlannedProgram, x: ValueId) -> bool {
    let graph = &program.graph;
    let base = program.base(x);
    base == x || graph.ty(base).numel() == graph.ty(x).numel()
}
