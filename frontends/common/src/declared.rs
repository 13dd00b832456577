//! What a program declares, held against what its ops give: where two types only look different (`2*(s0//2)` for a
//! known even `s0`), the one that the operands give stands; a real difference is an error.

use symmc_ir::{DType, Dim, Graph, SymbolTable, TensorType, verify};

/// A declared type and another that a value has, for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TypeMismatch {
    pub expected: String,
    pub found: String,
}

/// Holds a type against a declared one, in which extents that are not known are `None`. Fails if under no values of the
/// symbols are the two the same.
pub fn check_declared_type(
    found: &TensorType,
    dtype: DType,
    extents: &[Option<Dim>],
    symbols: &SymbolTable,
) -> Result<(), TypeMismatch> {
    let may_agree = |a: &Dim, b: &Dim| {
        let (low, high) = (a.clone() - b.clone()).bounds(symbols);
        low <= 0 && high >= 0
    };
    let agree = found.dtype == dtype
        && found.rank() == extents.len()
        && found.shape.iter().zip(extents).all(|(a, b)| b.as_ref().is_none_or(|b| a == b || may_agree(a, b)));
    if agree {
        return Ok(());
    }
    let expected = extents.iter().map(|d| d.as_ref().map_or("?".into(), |d| d.display(symbols).to_string()));
    let expected = format!("{dtype}[{}]", expected.collect::<Vec<_>>().join(", "));
    Err(TypeMismatch { expected, found: display_type(found, symbols) })
}

pub fn display_type(ty: &TensorType, symbols: &SymbolTable) -> String {
    let dims: Vec<String> = ty.shape.iter().map(|d| d.display(symbols).to_string()).collect();
    format!("{}[{}]", ty.dtype, dims.join(", "))
}

pub fn verify_graph(graph: Graph) -> Result<Graph, String> {
    match verify::verify(&graph) {
        Ok(()) => Ok(graph),
        Err(violations) => {
            let shown: Vec<String> = violations.iter().take(3).map(ToString::to_string).collect();
            Err(shown.join("; "))
        }
    }
}
