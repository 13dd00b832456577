//! The cost of running collectives as one step, and the best variant for it.

use std::collections::BTreeSet;

use symmc_ir::dispatch::shared_contract;
use symmc_ir::layout::compute_layouts;
use symmc_ir::machine::{CollectiveLimits, OperationCounts};
use symmc_ir::{
    Collective, CollectiveKind, CollectiveVariant, EntityMap, Graph, InputId, Node, ValueDef, ValueId,
};

use super::conditions::CollectiveConditions;
use super::context::LowerContext;

/// The microseconds that a collective loses if it runs with others, for each of
/// [`CollectiveLimits::JOINT_STEP_VARIANTS`]; `None` for variants that cannot run it.
pub type JointLosses = [Option<f64>; CollectiveLimits::JOINT_STEP_VARIANTS.len()];

/// The cost of running with others, apart from the collective's own bytes.
pub struct JointLossModel<'a> {
    graph: &'a Graph,
    context: &'a LowerContext,
    bases: EntityMap<ValueId, ValueId>,
    /// The inputs that the planner can put into symmetric memory.
    bound: &'a BTreeSet<InputId>,
    returned: BTreeSet<ValueId>,
    /// Results of collectives that can be one kernel with the step that reads them.
    added: BTreeSet<ValueId>,
}

impl<'a> JointLossModel<'a> {
    pub fn new(graph: &'a Graph, context: &'a LowerContext, bound: &'a BTreeSet<InputId>) -> Self {
        let added =
            symmc_dispatch::fusible_collectives(graph, &context.profile).into_iter().map(|(value, _)| value);
        JointLossModel {
            graph,
            context,
            bases: compute_layouts(graph).values().map(|layout| layout.base).collect(),
            bound,
            returned: graph.outputs.iter().map(|o| o.value).collect(),
            added: added.collect(),
        }
    }

    /// The losses of a collective: copies into and out of symmetric memory, and the separate step that its
    /// own kernel would include.
    pub fn collective_losses(&self, node: &Node, collective: &Collective) -> JointLosses {
        let (&[operand], &[result]) = (&node.inputs[..], &node.outputs[..]) else {
            return JointLosses::default();
        };
        CollectiveLimits::JOINT_STEP_VARIANTS.map(|variant| {
            let contract = shared_contract(&Collective { variant: Some(variant), ..collective.clone() })?;
            let input = match self.graph.values[self.bases[operand]].def {
                ValueDef::Input(input) => !self.bound.contains(&input),
                ValueDef::Node(..) => false,
            };
            let is_copied_in = contract.symmetric_operand && input;
            let operand_us = if is_copied_in { self.kernel_us(operand) } else { 0.0 };
            let is_copied_out = contract.symmetric_result && self.returned.contains(&result);
            let result_us = if is_copied_out { self.kernel_us(result) } else { 0.0 };
            let added_us = if self.added.contains(&result) {
                self.context.profile.compute_us(0, OperationCounts::default())
            } else {
                0.0
            };
            Some(operand_us + result_us + added_us)
        })
    }

    fn kernel_us(&self, value: ValueId) -> f64 {
        let moved = self.context.bytes(self.graph.ty(value)).saturating_mul(2);
        self.context.profile.compute_us(moved, OperationCounts::default())
    }
}

/// The best variant for collectives that run as one step, with its time including losses.
pub fn best_joint_variant(
    context: &LowerContext,
    collectives: &[(&Collective, u64)],
    losses: &JointLosses,
    conditions: CollectiveConditions,
) -> Option<(CollectiveVariant, f64)> {
    let (first, _) = collectives.first()?;
    let bytes_by_kind: Vec<(&CollectiveKind, u64)> =
        collectives.iter().map(|(c, bytes)| (&c.kind, *bytes)).collect();
    let mut best: Option<(CollectiveVariant, f64)> = None;
    for (&variant, &lost_us) in CollectiveLimits::JOINT_STEP_VARIANTS.iter().zip(losses) {
        let Some(lost_us) = lost_us else { continue };
        let added_us = context.estimate_joint_us(&bytes_by_kind, first.group, variant, lost_us, conditions);
        let Some(us) = added_us.map(|us| us + lost_us) else { continue };
        if best.is_none_or(|(_, best_us)| us.total_cmp(&best_us).is_lt()) {
            best = Some((variant, us));
        }
    }
    best
}

pub fn sum_losses(a: JointLosses, b: JointLosses) -> JointLosses {
    std::array::from_fn(|k| Some(a[k]? + b[k]?))
}
