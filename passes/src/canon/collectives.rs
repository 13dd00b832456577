//! Collectives between fewer than two ranks.

use symmc_ir::{CollectiveKind, Op, Scalar, Splits};

use crate::rewrite::{Candidate, Rewrite, Rewriter, Rule};

/// The rules of this theme.
pub const RULES: &[Rule] = &[Rule {
    name: "group_of_one",
    equation: "a collective on groups of one rank = x; permute without a sender = full(0)",
    apply: group_of_one,
}];

fn group_of_one(cx: &mut Rewriter, node: &Candidate) -> Option<Rewrite> {
    let Op::Collective(c) = &node.op else { return None };
    if cx.graph().group_size(c.group) != Some(1) {
        return None;
    }
    match &c.kind {
        // Rows beyond those sent are zero, so the operand is not the result.
        CollectiveKind::AllToAll(Splits::Device) => None,
        CollectiveKind::Permute { pairs } if pairs.is_empty() => {
            let zero = match node.ty.dtype {
                symmc_ir::DType::Bool => Scalar::Bool(false),
                d if d.is_float() => Scalar::Float(symmc_ir::Float(0.0)),
                _ => Scalar::Int(0),
            };
            Some(Rewrite::Node(Op::Full(zero), vec![]))
        }
        _ => Some(Rewrite::Value(*node.inputs.first()?)),
    }
}
