//! Symbols and inputs: solves symbols from the shapes of inputs, and checks both before a run.

use super::error::InterpError;
use crate::dim::{Dim, SymbolBindings};
use crate::graph::Graph;
use crate::ids::ValueId;
use crate::symbol::SymbolId;
use crate::tensor::Tensor;

/// The values of the symbols for which the types of a program's inputs match these tensors, which are all
/// inputs of one rank in order.
///
/// A dim that is one symbol determines that symbol. So does a dim that is linear in a single symbol that no
/// other dim determines (`4*tokens`, `tokens + 1`). A symbol whose bounds coincide has that value. A symbol
/// that occurs in no input's shape stays unbound.
///
/// Fails for a wrong number of inputs, a dtype or shape that does not match, a symbol out of its bounds, or a
/// symbol that occurs in shapes but is not determined by them.
pub fn infer_bindings(graph: &Graph, inputs: &[&Tensor]) -> Result<SymbolBindings, InterpError> {
    check_count(graph, 0, inputs.len())?;
    let values = graph.inputs.values().map(|i| i.value);
    solve_bindings(graph, &values.zip(inputs.iter().copied()).collect::<Vec<_>>())
}

/// [`infer_bindings`] for a subset of the inputs, each identified by its value.
pub fn solve_bindings(graph: &Graph, inputs: &[(ValueId, &Tensor)]) -> Result<SymbolBindings, InterpError> {
    let mut bindings = SymbolBindings::new();
    for (id, symbol) in graph.symbols.iter().filter(|(_, s)| s.min == s.max) {
        bindings.set(id, symbol.min);
    }
    let mut open: Vec<(&Dim, i64, ValueId)> = Vec::new();
    for &(value, tensor) in inputs {
        for (dim, &extent) in graph.ty(value).shape.iter().zip(tensor.shape()) {
            open.push((dim, extent as i64, value));
        }
    }
    for (dim, extent, _) in &open {
        match dim.as_symbol() {
            Some(s) if bindings.get(s).is_none() => bindings.set(s, *extent),
            _ => {}
        }
    }
    loop {
        let before = open.len();
        open.retain(|(dim, extent, _)| match solve_dim(dim, *extent, &bindings) {
            DimSolution::Open => true,
            DimSolution::None => false,
            DimSolution::Symbol(s, value) => {
                bindings.set(s, value);
                false
            }
        });
        if open.len() == before {
            break;
        }
    }
    // Shapes are checked first: a wrong extent explains a symbol that it left undetermined or out of bounds.
    for &(value, tensor) in inputs {
        check_input(graph, &bindings, 0, value, tensor)?;
    }
    check_bindings(graph, &bindings)?;
    Ok(bindings)
}

enum DimSolution {
    /// The dim has several unbound symbols, or one in which it is not linear.
    Open,
    /// The dim has no unbound symbol, or no value of the symbol yields the extent.
    None,
    Symbol(SymbolId, i64),
}

fn solve_dim(dim: &Dim, extent: i64, bindings: &SymbolBindings) -> DimSolution {
    let substituted = dim.substitute(&|s| bindings.get(s).map_or(Dim::from(s), Dim::from));
    let symbol = match substituted.symbols().as_slice() {
        [] => return DimSolution::None,
        [symbol] => *symbol,
        _ => return DimSolution::Open,
    };
    let extents = [0, 1].map(|size| substituted.substitute(&|_| Dim::from(size)).as_const());
    let [Some(zero), Some(one)] = extents else { return DimSolution::Open };
    let factor = one.saturating_sub(zero);
    if factor == 0 || substituted != Dim::from(factor) * Dim::from(symbol) + Dim::from(zero) {
        return DimSolution::Open;
    }
    match extent.checked_sub(zero) {
        Some(difference) if difference.checked_rem(factor) == Some(0) => {
            DimSolution::Symbol(symbol, difference / factor)
        }
        _ => DimSolution::None,
    }
}

pub(super) fn check_bindings(graph: &Graph, bindings: &SymbolBindings) -> Result<(), InterpError> {
    for (id, symbol) in graph.symbols.iter() {
        if let Some(value) = bindings.get(id).filter(|v| !(symbol.min..=symbol.max).contains(v)) {
            let min = symbol.min;
            let max = symbol.max;
            return Err(InterpError::SymbolOutOfRange { symbol: symbol.name.clone(), value, min, max });
        }
    }
    Ok(())
}

pub(super) fn check_count(graph: &Graph, rank: usize, found: usize) -> Result<(), InterpError> {
    let expected = graph.inputs.len();
    if found == expected { Ok(()) } else { Err(InterpError::InputCount { rank, expected, found }) }
}

pub(super) fn check_input(
    graph: &Graph,
    bindings: &SymbolBindings,
    rank: usize,
    value: ValueId,
    tensor: &Tensor,
) -> Result<(), InterpError> {
    let ty = graph.ty(value);
    if tensor.dtype() != ty.dtype {
        let expected = ty.dtype;
        let dtype = tensor.dtype();
        let input = graph.value_name(value).to_string();
        return Err(InterpError::InputDType { rank, input, expected, found: dtype });
    }
    let expected: Option<Vec<i64>> = ty.shape.iter().map(|d| d.eval(bindings)).collect();
    let Some(expected) = expected else { return Err(extent_error(graph, bindings, value)) };
    if expected.iter().copied().eq(tensor.shape().iter().map(|&d| d as i64)) {
        return Ok(());
    }
    let dims = display_dims(graph, value);
    let shape = tensor.shape().to_vec();
    let input = graph.value_name(value).to_string();
    Err(InterpError::InputShape { rank, input, expected, dims, found: shape })
}

/// The number of elements from which on memory is mapped on trial before a run.
const MAX_UNTRIED_ELEMENTS: usize = 1 << 27;

/// The shape of a value under the bindings. Fails if its elements, in the wide type, do not fit into memory.
pub(super) fn concrete_shape(
    graph: &Graph,
    bindings: &SymbolBindings,
    value: ValueId,
) -> Result<Vec<usize>, InterpError> {
    let shape =
        graph.ty(value).concrete_shape(bindings).ok_or_else(|| extent_error(graph, bindings, value))?;
    let numel = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    let elements = numel.ok_or_else(|| extent_error(graph, bindings, value))?;
    let bytes = elements.checked_mul(size_of::<f64>());
    if elements > MAX_UNTRIED_ELEMENTS
        && bytes.is_none_or(|bytes| memmap2::MmapOptions::new().len(bytes).map_anon().is_err())
    {
        return Err(InterpError::TooLarge { value: graph.value_name(value).to_string(), elements });
    }
    Ok(shape)
}

fn extent_error(graph: &Graph, bindings: &SymbolBindings, value: ValueId) -> InterpError {
    let name = graph.value_name(value).to_string();
    let unbound = graph.ty(value).shape.iter().flat_map(Dim::symbols).find(|&s| bindings.get(s).is_none());
    match unbound {
        Some(s) => {
            let symbol = graph.symbols.get(s).map_or_else(|| s.to_string(), |s| s.name.clone());
            InterpError::UnboundSymbol { symbol, value: name }
        }
        None => InterpError::Extent { value: name, dims: display_dims(graph, value) },
    }
}

/// The dims of a value for people: `[tokens, 64]`.
fn display_dims(graph: &Graph, value: ValueId) -> String {
    let dims: Vec<String> =
        graph.ty(value).shape.iter().map(|d| d.display(&graph.symbols).to_string()).collect();
    format!("[{}]", dims.join(", "))
}
