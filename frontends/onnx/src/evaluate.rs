//! Constant folding: nodes whose operands are all constants are evaluated at import, by their own rules and
//! the reference interpreter.

use std::sync::Arc;

use symmc_import::Compositions;
use symmc_ir::{GraphBuilder, GraphOutput, InputKind, OutputKind, SymbolBindings, Tensor, interp};

use crate::call::{OpCall, OpRule};
use crate::known_values::KnownValue;
use crate::lower::RuleResult;

/// The largest number of elements of operands and results together that are evaluated.
const MAX_ELEMENTS: usize = 1 << 14;

/// Evaluates the node if all its operands are small constants. Returns whether it was evaluated.
pub(crate) fn fold_constants(c: &mut OpCall<'_, '_>, rule: OpRule) -> RuleResult<bool> {
    if c.lowering.scratch || c.node.input.iter().all(String::is_empty) {
        return Ok(false);
    }
    let mut elements = 0usize;
    for i in 0..c.node.input.len() {
        if c.operand_name(i).is_none() {
            continue;
        }
        match c.known_value(i)? {
            Some(KnownValue::Data(data)) => elements = elements.saturating_add(data.numel()),
            _ => return Ok(false),
        }
    }
    if elements > MAX_ELEMENTS {
        return Ok(false);
    }
    let outer = std::mem::replace(&mut c.lowering.builder, GraphBuilder::new("constants", Some(1)));
    let outer_compositions = std::mem::take(&mut c.lowering.compositions);
    c.lowering.scratch = true;
    c.reset_reads();
    let lowered = rule.apply(c);
    let scratch = std::mem::replace(&mut c.lowering.builder, outer);
    let compositions = std::mem::replace(&mut c.lowering.compositions, outer_compositions);
    c.lowering.scratch = false;
    // A node that does not lower is not evaluated. The error is reported when the node is lowered.
    let results = lowered.ok().and_then(|()| evaluate_scratch_graph(c, scratch, compositions));
    c.clear_result_values();
    let Some(results) = results else { return Ok(false) };
    for (i, result) in results.into_iter().enumerate() {
        if let Some(tensor) = result {
            c.set_known(i, KnownValue::Data(Arc::new(tensor)));
        }
    }
    Ok(true)
}

/// The data of the results that the rule emitted as values of the scratch graph.
fn evaluate_scratch_graph(
    c: &OpCall<'_, '_>,
    scratch: GraphBuilder,
    compositions: Compositions,
) -> Option<Vec<Option<Tensor>>> {
    let mut graph = scratch.finish();
    let values = c.result_values();
    graph.outputs =
        values.iter().flatten().map(|&value| GraphOutput { value, kind: OutputKind::Returned }).collect();
    let graph = compositions.widen(graph);
    let are_constant = graph.inputs.values().all(|i| i.kind == InputKind::Constant);
    let small =
        graph.values.keys().all(|v| graph.ty(v).numel().as_const().is_some_and(|n| n <= MAX_ELEMENTS as i64));
    let plain = graph.nodes.values().all(|n| !n.op.is_opaque() && n.op.as_collective().is_none());
    if !are_constant || !small || !plain {
        return None;
    }
    symmc_ir::verify::verify(&graph).ok()?;
    let inputs = graph.inputs.values().map(|i| i.data.clone()).collect::<Option<Vec<_>>>()?;
    let mut outputs = interp::run(&graph, &SymbolBindings::new(), &[inputs]).ok()?.pop()?.into_iter();
    Some(values.iter().map(|v| v.and_then(|_| outputs.next())).collect())
}
