//! Checks the types that a program declares against the types that its operators compute. Two types may only
//! look different: `2*(s0//2)` is `s0` for an `s0` that is known to be even. The computed type is then used.
//! A real difference is an error.

use symmc_ir::{DType, Dim, Graph, SymbolTable, TensorType, verify};

/// A declared type and the different type of the value, as text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TypeMismatch {
    pub expected: String,
    pub found: String,
}

/// Compares a computed type with a declared one. Declared extents that are unknown are `None`. Fails if no
/// values of the symbols make the two types equal.
pub fn check_declared_type(
    found: &TensorType,
    dtype: DType,
    extents: &[Option<Dim>],
    symbols: &SymbolTable,
) -> Result<(), TypeMismatch> {
    let agree = found.dtype == dtype
        && found.rank() == extents.len()
        && found.shape.iter().zip(extents).all(|(a, b)| match b {
            Some(b) => a == b || may_be_equal(a, b, symbols),
            None => true,
        });
    if agree {
        return Ok(());
    }
    let expected = extents.iter().map(|d| d.as_ref().map_or("?".into(), |d| d.display(symbols).to_string()));
    let expected = format!("{dtype}[{}]", expected.collect::<Vec<_>>().join(", "));
    Err(TypeMismatch { expected, found: display_type(found, symbols) })
}

fn may_be_equal(a: &Dim, b: &Dim, symbols: &SymbolTable) -> bool {
    let (low, high) = (a.clone() - b.clone()).bounds(symbols);
    low <= 0 && high >= 0
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
