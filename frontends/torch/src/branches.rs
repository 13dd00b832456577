//! `cond` with a condition that is data ([`symmc_import::branches`]).

use std::collections::HashSet;

use symmc_import::{
    Compositions, Emit, RuleCall, UnsupportedOps, branches, invalid_if, sympy, unsupported, unsupported_if,
};
use symmc_ir::{BinaryOp, DType, GraphBuilder, NodeId, ValueId};

use crate::call::OpCall;
use crate::inline;
use crate::lower::{EmitResult, ImportLowering, RuleFailure, RuleResult};
use crate::packed_rows::PackedValues;
use crate::schema::{Argument, ExportedGraph};

/// The most branches that are lowered. Each attempt copies the program, so that it can be undone.
const MAX_BRANCHES: usize = 2048;

/// The state before an attempt to lower branches, which a failed attempt restores.
struct Snapshot {
    builder: GraphBuilder,
    compositions: Compositions,
    packed: PackedValues,
    rank_slice_nodes: HashSet<NodeId>,
    rank_shards: usize,
    possible_aliases: usize,
    opaque: UnsupportedOps,
    notes: usize,
}

impl Snapshot {
    fn of_lowering(lowering: &ImportLowering<'_>) -> Snapshot {
        Snapshot {
            builder: lowering.builder.clone(),
            compositions: lowering.compositions.clone(),
            packed: lowering.packed.clone(),
            rank_slice_nodes: lowering.rank_slice_nodes.clone(),
            rank_shards: lowering.rank_shards.len(),
            possible_aliases: lowering.possible_aliases.len(),
            opaque: lowering.opaque.clone(),
            notes: lowering.notes.len(),
        }
    }

    fn restore(self, lowering: &mut ImportLowering<'_>) {
        lowering.builder = self.builder;
        lowering.compositions = self.compositions;
        lowering.packed = self.packed;
        lowering.rank_slice_nodes = self.rank_slice_nodes;
        lowering.rank_shards.truncate(self.rank_shards);
        lowering.possible_aliases.truncate(self.possible_aliases);
        lowering.opaque = self.opaque;
        lowering.notes.truncate(self.notes);
    }
}

/// Lowers both branches, and selects their results. If that is not possible, everything is undone, and the node is opaque.
pub(crate) fn lower_both(c: &mut OpCall<'_, '_>) -> RuleResult {
    c.ignore_all();
    c.lowering.branch_count += 1;
    unsupported_if!(
        c.lowering.branch_count > MAX_BRANCHES,
        "more than {MAX_BRANCHES} conditions that depend on data are not supported"
    );
    let graphs: Vec<_> = inline::branch_graphs(c.node).collect();
    let &[first, second] = graphs.as_slice() else {
        return unsupported!("expected two branches, found {}", graphs.len());
    };
    let snapshot = Snapshot::of_lowering(c.lowering);
    let Err(failure) = select_results(c, [first, second]) else { return Ok(()) };
    snapshot.restore(c.lowering);
    c.take_results();
    let why = match failure {
        RuleFailure::Error(error) => error.to_string(),
        RuleFailure::Invalid(why) | RuleFailure::Opaque(why) => why,
    };
    unsupported!("the condition depends on data: {why}")
}

fn select_results<'p>(c: &mut OpCall<'_, 'p>, graphs: [&'p ExportedGraph<'p>; 2]) -> RuleResult {
    let condition = condition_value(c)?;
    let then_results = lower_branch(c, condition, true, graphs[0])?;
    let else_results = lower_branch(c, condition, false, graphs[1])?;
    invalid_if!(
        then_results.len() != else_results.len(),
        "expected the same number of results of both branches, found {} and {}",
        then_results.len(),
        else_results.len()
    );
    let mut selected = Vec::with_capacity(then_results.len());
    for (number, results) in then_results.into_iter().zip(else_results).enumerate() {
        let (Some(x), Some(y)) = results else { return unsupported!("result {number} is no tensor") };
        let types = [x, y].map(|v| c.lowering.display_type(c.ty(v)));
        unsupported_if!(
            types[0] != types[1],
            "result {number} is {} in one branch and {} in the other",
            types[0],
            types[1]
        );
        unsupported_if!(
            c.lowering.packed.rows(x) != c.lowering.packed.rows(y),
            "result {number} has a number of rows that depends on data"
        );
        selected.push(c.select(condition, x, y)?);
    }
    for (number, value) in selected.into_iter().enumerate() {
        c.set_result(number, value);
    }
    Ok(())
}

/// Lowers a branch in which no node fails unless the branch is taken. Returns its results.
fn lower_branch<'p>(
    c: &mut OpCall<'_, 'p>,
    condition: ValueId,
    holds: bool,
    graph: &'p ExportedGraph<'p>,
) -> RuleResult<Vec<Option<ValueId>>> {
    let outer = c.lowering.guard;
    let written = c.lowering.written_inputs.clone();
    let guard = branches::emit_guard(c, condition, holds, outer)?;
    let first = c.lowering.builder.graph().nodes.len();
    c.lowering.guard = Some(guard);
    // Nodes of the two branches may have the same names.
    let name = if holds { "then" } else { "else" };
    let own_label = format!("{}.{name}", c.label);
    let label = std::mem::replace(&mut c.label, own_label);
    let lowered = inline::lower_wrapped_graph(c, graph);
    c.label = label;
    c.lowering.guard = outer;
    let is_written = c.lowering.written_inputs != written;
    c.lowering.written_inputs = written;
    lowered?;
    unsupported_if!(is_written, "a branch writes an argument");
    branches::check_nodes(c.lowering.builder.graph(), first, guard)?;
    Ok(c.take_results())
}

/// The condition as a bool without axes.
fn condition_value(c: &mut OpCall<'_, '_>) -> EmitResult {
    match c.argument_at(0) {
        Some(Argument::Tensor(_)) => {
            let condition = c.first_tensor()?;
            invalid_if!(
                c.ty(condition).numel().as_const() != Some(1),
                "expected a condition of one element, found {} axes",
                c.rank(condition)
            );
            let condition = c.reshape(condition, vec![])?;
            c.cast(condition, DType::Bool)
        }
        Some(Argument::SymBool(relation)) => {
            let name = relation.as_name.as_deref();
            let value = name.and_then(|name| c.lowering.scope.graph.sym_bool_values.get(name));
            let Some(text) = value.and_then(|value| value.as_expr.as_ref()).map(|e| &*e.expr_str) else {
                return unsupported!("the condition has no expression");
            };
            let parsed = sympy::parse(text).map_err(RuleFailure::Invalid)?;
            let resolve = |symbol: &str| c.lowering.symbols.resolve_data_symbol(symbol);
            let Some(conditions) =
                sympy::relation_conditions(&parsed, &resolve).filter(|all| !all.is_empty())
            else {
                return unsupported!("the condition is no comparison of sizes");
            };
            let mut holds = None;
            for (low, high) in conditions {
                let low = c.emit_terms(&low)?;
                let high = c.emit_terms(&high)?;
                let is_at_most = c.binary(BinaryOp::Le, low, high)?;
                holds = Some(match holds {
                    None => is_at_most,
                    Some(others) => c.binary(BinaryOp::And, others, is_at_most)?,
                });
            }
            holds.ok_or_else(|| RuleFailure::Opaque("the condition is no comparison of sizes".into()))
        }
        _ => unsupported!("the condition is no tensor"),
    }
}
