//! Sizes of a graph that is not yet a program, as expressions of undeclared symbols.
//!
//! The torch.compile frontend passes sizes, and the guards on them, as the text that PyTorch prints. All
//! reasoning about them is here.

use indexmap::IndexMap;
use symmc_ir::{Dim, Symbol, SymbolId, SymbolTable};

use crate::sympy::{self, SizeExpr};

pub mod assumptions;
pub mod steps;

/// The sizes of a call, by symbol.
pub type CallSizes = IndexMap<String, i64>;

/// The value of an expression for these sizes, if they determine it.
pub fn evaluate_size(expression: &str, sizes: &CallSizes) -> Option<i64> {
    let parsed = sympy::parse(expression).ok()?;
    let value = sympy::to_dim(&parsed, &|name| {
        sizes.get(name).map(|&n| Dim::from(n)).ok_or_else(|| format!("no size {name}"))
    });
    value.ok()?.as_const()
}

/// The symbols of some expressions. Each is at least 1: PyTorch traces separate graphs for empty tensors.
#[derive(Default)]
struct SizeSymbols(SymbolTable);

impl SizeSymbols {
    fn id(&mut self, name: &str) -> SymbolId {
        let existing = self.0.iter().find_map(|(id, symbol)| (symbol.name == name).then_some(id));
        existing.unwrap_or_else(|| {
            self.0.push(Symbol { name: name.to_string(), min: 1, max: i64::MAX, alias: None })
        })
    }

    fn name(&self, id: SymbolId) -> &str {
        self.0.get(id).map_or("", |symbol| &symbol.name)
    }

    fn expression_dim(&mut self, e: &SizeExpr<'_>) -> Option<Dim> {
        let ids: IndexMap<&str, SymbolId> =
            sympy::symbols_in(e).into_iter().map(|s| (s, self.id(s))).collect();
        let dim = sympy::to_dim(e, &|name| {
            ids.get(name).map(|&id| id.into()).ok_or_else(|| format!("no size {name}"))
        });
        dim.ok()
    }

    fn parse_dim(&mut self, text: &str) -> Option<Dim> {
        self.expression_dim(&sympy::parse(text).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_have_the_value_of_their_symbols() {
        let sizes = CallSizes::from([("s0".to_string(), 7), ("u0".to_string(), 2)]);
        for (text, expected) in [
            ("s0*u0 - 1", Some(13)),
            ("(s0//u0)", Some(3)),
            ("Max(1, s0)", Some(7)),
            ("-s0**2", Some(-49)),
            ("5", Some(5)),
            ("s0 + s1", None),
            ("s0/2", None),
        ] {
            assert_eq!(evaluate_size(text, &sizes), expected, "{text}");
        }
    }
}
