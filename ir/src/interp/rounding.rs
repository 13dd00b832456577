//! The rounding history of each value of a program: the float types to which the value, or any value it was
//! computed from, was rounded.
//!
//! Two correct implementations of a program differ where numbers are rounded. Sums are taken in another order,
//! and functions are off in the last place. The expected difference of results therefore depends on the types
//! of the computation, not on the type of the result: a product of f32 that is cast to f64 is as exact as f32.
//! Data movement, integers, and selections of elements do not round, so values computed only by these are equal
//! on every backend.
//!
//! A step function of a rounded value (a comparison, a cast to an integer, the position of a maximum) gives the
//! same result on every backend, except near the step, where it gives something else entirely. Such values, and
//! all values computed from them, *may flip*.
//!
//! Deliberately absent: the growth of rounding errors from node to node. Runs with noise show it
//! ([`run_with_noise`]).
//!
//! [`run_with_noise`]: super::run_with_noise

use crate::entity::EntityMap;
use crate::graph::{Graph, Node, OutputKind};
use crate::ids::ValueId;
use crate::numerics::{Numerics, RoundingEffect};
use crate::op::Op;
use crate::types::DType;

/// The float types to which a value, or any value it was computed from, was rounded.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RoundingHistory {
    /// One bit for each of [`FLOAT_DTYPES`].
    rounded_to: u8,
    /// Whether a step function of a rounded value is in the history.
    may_flip: bool,
    /// Whether a plan may have represented it in a type with a smaller range.
    may_overflow: bool,
}

const FLOAT_DTYPES: [DType; 7] =
    [DType::F64, DType::F32, DType::F16, DType::BF16, DType::F8E4M3, DType::F8E5M2, DType::F8E8M0];

impl RoundingHistory {
    /// No rounding: every backend gives the same bits.
    pub const EXACT: RoundingHistory =
        RoundingHistory { rounded_to: 0, may_flip: false, may_overflow: false };

    pub fn rounded_to(dtype: DType) -> RoundingHistory {
        RoundingHistory::EXACT.and_rounded_to(dtype)
    }

    /// Whether nothing was rounded, directly or before a step function.
    pub fn is_exact(&self) -> bool {
        *self == RoundingHistory::EXACT
    }

    pub fn may_flip(&self) -> bool {
        self.may_flip
    }

    /// Whether a finite value may be infinite or NaN instead, because a numerics class allows a type with a
    /// smaller range.
    pub fn may_overflow(&self) -> bool {
        self.may_overflow
    }

    pub fn types(&self) -> impl Iterator<Item = DType> + use<> {
        let set = self.rounded_to;
        FLOAT_DTYPES
            .into_iter()
            .enumerate()
            .filter_map(move |(i, dtype)| (set >> i & 1 == 1).then_some(dtype))
    }

    /// This history, extended by the effects that the numerics classes of a plan allow, as far as the planned
    /// value uses them. A planned program therefore cannot loosen its own comparison.
    pub fn with_numerics(self, numerics: Numerics, planned: &RoundingHistory) -> RoundingHistory {
        let used = numerics.classes().filter(|class| planned.types().any(|t| Some(t) == class.narrow_type()));
        used.fold(self, |history, class| {
            let may_overflow = history.may_overflow || class.narrows_range();
            let history = RoundingHistory { may_overflow, ..history };
            class.narrow_type().map_or(history, |dtype| history.and_rounded_to(dtype))
        })
    }

    fn and_rounded_to(self, dtype: DType) -> RoundingHistory {
        let bit = FLOAT_DTYPES.iter().position(|f| *f == dtype).map_or(0, |i| 1 << i);
        RoundingHistory { rounded_to: self.rounded_to | bit, ..self }
    }

    /// The history of a value that was computed from both values without rounding.
    #[must_use]
    pub fn join(self, other: RoundingHistory) -> RoundingHistory {
        RoundingHistory {
            rounded_to: self.rounded_to | other.rounded_to,
            may_flip: self.may_flip || other.may_flip,
            may_overflow: self.may_overflow || other.may_overflow,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RunCount {
    /// One run: inputs are exact.
    One,
    /// Several runs: an input that an output replaces has the history of that output.
    Several,
}

pub fn rounding_histories(graph: &Graph, runs: RunCount) -> EntityMap<ValueId, RoundingHistory> {
    let mut histories = EntityMap::filled(RoundingHistory::EXACT, graph.values.len());
    loop {
        for node in graph.nodes.values() {
            trace_node(graph, node, &mut histories);
        }
        // Histories only grow, so the loop ends.
        if runs == RunCount::One || !carry_state(graph, &mut histories) {
            return histories;
        }
    }
}

pub fn output_histories(graph: &Graph, runs: RunCount) -> Vec<RoundingHistory> {
    let histories = rounding_histories(graph, runs);
    graph.outputs.iter().map(|output| histories[output.value]).collect()
}

/// Merges the histories of outputs into the inputs that they replace. Returns whether one changed.
fn carry_state(graph: &Graph, histories: &mut EntityMap<ValueId, RoundingHistory>) -> bool {
    let mut changed = false;
    for output in &graph.outputs {
        let OutputKind::Mutates(input) = output.kind else { continue };
        let Some(input) = graph.inputs.get(input) else { continue };
        let joined = histories[input.value].join(histories[output.value]);
        changed |= joined != histories[input.value];
        histories[input.value] = joined;
    }
    changed
}

/// Whether a node rounds its result `k` to the dtype of that result.
pub(super) fn is_rounded(graph: &Graph, node: &Node, k: usize) -> bool {
    let Some(&value) = node.outputs.get(k) else { return false };
    let result_dtype = graph.ty(value).dtype;
    let from = node.inputs.first().map_or(result_dtype, |&v| graph.ty(v).dtype);
    result_dtype.is_float()
        && matches!(
            result_rounding(&node.op, k, from, result_dtype),
            RoundingEffect::Rounds | RoundingEffect::Accumulates | RoundingEffect::Jumps
        )
}

fn trace_node(graph: &Graph, node: &Node, histories: &mut EntityMap<ValueId, RoundingHistory>) {
    let before = node.inputs.iter().fold(RoundingHistory::EXACT, |h, &v| h.join(histories[v]));
    let operand = node.inputs.first().map(|&v| graph.ty(v).dtype);
    for (result, &value) in node.outputs.iter().enumerate() {
        let dtype = graph.ty(value).dtype;
        histories[value] = match result_rounding(&node.op, result, operand.unwrap_or(dtype), dtype) {
            RoundingEffect::Keeps => before,
            RoundingEffect::Rounds | RoundingEffect::Accumulates => before.and_rounded_to(dtype),
            RoundingEffect::Jumps => {
                let may_flip = before.may_flip || before.rounded_to != 0;
                RoundingHistory { may_flip, ..before }.and_rounded_to(dtype)
            }
            // `rounding` has resolved the others.
            RoundingEffect::Steps | RoundingEffect::Converts | RoundingEffect::Unknown => {
                RoundingHistory { rounded_to: 0, may_flip: !before.is_exact(), ..before }
            }
        };
    }
}

/// The rounding of one result of an op, from the dtype of its first operand to that of the result.
fn result_rounding(op: &Op, result: usize, from: DType, to: DType) -> RoundingEffect {
    match op.facts().rounding[result.min(1)] {
        RoundingEffect::Converts => cast_rounding(from, to),
        RoundingEffect::Unknown if to.is_float() => RoundingEffect::Jumps,
        RoundingEffect::Unknown => RoundingEffect::Steps,
        rounding => rounding,
    }
}

/// A cast is exact if the result dtype represents every number of the operand's dtype.
fn cast_rounding(from: DType, to: DType) -> RoundingEffect {
    let exact = match (from, to) {
        (from, to) if from == to => true,
        (DType::Bool | DType::U8, to) if to.is_float() => true,
        (DType::I32, DType::F64) | (DType::F32, DType::F64) => true,
        (DType::F16 | DType::BF16, DType::F32 | DType::F64) => true,
        (from, to) => !from.is_float() && !to.is_float(),
    };
    if exact {
        RoundingEffect::Keeps
    } else if to.is_float() {
        RoundingEffect::Rounds
    } else {
        RoundingEffect::Steps
    }
}
