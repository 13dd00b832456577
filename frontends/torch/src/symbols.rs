//! The symbols of a program and the dims of its expressions.
//!
//! The symbols of a program are those in extents of arguments and in integer arguments: a caller fixes them
//! for a run. Any other symbol depends on data and cannot be an extent ([`crate::data_sizes`]).
//!
//! PyTorch stores only generated names (`s23`). The only symbol of a program is therefore called `tokens`. If
//! there are several, the symbol of the last axis of the first integer tensor argument is called `tokens`,
//! and that of its axis 0, if it is another, `batch`. Other symbols keep their names. A renamed symbol keeps
//! PyTorch's name as its alias.

use std::cell::RefCell;
use std::collections::HashMap;

use indexmap::IndexSet;
use symmc_import::ranges::{self, DeclaredSymbol, OpenSizes, ResolvedSymbols, SymbolConstraints};
use symmc_import::sympy::{self, SizeExpr};
use symmc_ir::{Dim, EntityMap, Symbol, SymbolId};

use crate::data_sizes::DataSizes;
use crate::error::{ImportError, Result};
use crate::schema::{ExportedGraph, RangeConstraint, SymInt};

/// The symbols of a program, by PyTorch's names.
pub(crate) struct ProgramSymbols<'p> {
    pub table: EntityMap<SymbolId, Symbol>,
    ids: HashMap<String, Dim>,
    pub open: OpenSizes,
    dims: RefCell<HashMap<&'p str, Dim>>,
    /// The symbols that depend on data.
    pub data: DataSizes,
}

/// The sizes in an argument of the program. Arguments are in the order of the signature.
pub(crate) struct ArgumentSizes<'p> {
    pub sizes: Vec<&'p SymInt<'p>>,
    /// Whether the argument is an integer tensor of the caller, whose axes name symbols.
    pub names_axes: bool,
    /// The number of the tensor among the caller's tensors, counted from 0.
    pub argument: Option<usize>,
}

impl<'p> ProgramSymbols<'p> {
    /// Collects, bounds and names the symbols of the arguments, and applies the caller's constraints.
    /// `max_extent` bounds symbols without an upper bound, with a note.
    pub fn new(
        arguments: &[ArgumentSizes<'p>],
        range: &dyn Fn(&str) -> Option<RangeConstraint>,
        given: &SymbolConstraints,
        max_extent: i64,
        notes: &mut Vec<String>,
    ) -> Result<Self> {
        let mut order: IndexSet<&str> = IndexSet::new();
        let mut bare: Vec<Vec<Option<&str>>> = Vec::new();
        for argument in arguments {
            let mut axes = Vec::new();
            for size in &argument.sizes {
                let Some(e) = &size.as_expr else {
                    axes.push(None);
                    continue;
                };
                let parsed = sympy::parse(&e.expr_str).map_err(|m| expression_error(&e.expr_str, m))?;
                order.extend(sympy::symbols_in(&parsed));
                axes.push(if let SizeExpr::Symbol(s) = parsed { Some(s) } else { None });
            }
            bare.push(axes);
        }
        let named = arguments.iter().zip(&bare).find(|(a, axes)| a.names_axes && !axes.is_empty());
        let renamed = choose_names(&order, named.map_or(&[], |(_, axes)| axes));
        let mut declared = Vec::with_capacity(order.len());
        for (torch, name) in order.iter().zip(renamed) {
            // The extent in the recorded arguments. The largest one, if they differ.
            let recorded = arguments
                .iter()
                .zip(&bare)
                .filter_map(|(a, axes)| Some((given.recorded_shapes.get(a.argument?)?, axes)))
                .flat_map(|(shape, axes)| axes.iter().zip(shape))
                .filter(|(axis, _)| **axis == Some(*torch))
                .filter_map(|(_, &extent)| i64::try_from(extent).ok())
                .max();
            let range = range(torch);
            let (min, max) =
                ranges::normalize_range(torch, range.and_then(|r| r.min_val), range.and_then(|r| r.max_val))?;
            let alias = (name != *torch).then(|| torch.to_string());
            declared.push(DeclaredSymbol { name, alias, min, max, recorded });
        }
        let ResolvedSymbols { table, dims, open } =
            ranges::resolve_symbols(&declared, given, max_extent, notes)?;
        let ids = order.iter().map(|torch| torch.to_string()).zip(dims).collect();
        Ok(ProgramSymbols { table, ids, open, dims: RefCell::default(), data: DataSizes::default() })
    }

    /// Adds the symbols that the nodes of a graph read from tensors.
    pub fn add_data_sizes(
        &mut self,
        graph: &ExportedGraph<'_>,
        range: &dyn Fn(&str) -> Option<RangeConstraint>,
    ) {
        self.data = DataSizes::collect(graph, range, &self.table, &self.ids);
    }

    /// An extent that may depend on data, over the symbols of [`DataSizes`].
    pub fn resolve_size(&self, size: &'p SymInt<'p>) -> Result<Dim> {
        match self.resolve_extent(size) {
            Err(error) => {
                let Some(e) = &size.as_expr else { return Err(error) };
                let parsed = sympy::parse(&e.expr_str)
                    .and_then(|parsed| sympy::to_dim(&parsed, &|s| self.data.resolve_symbol(s, &self.ids)));
                let dim = parsed.map_err(|m| expression_error(&e.expr_str, m))?;
                Ok(self.data.simplify(dim))
            }
            found => found,
        }
    }

    /// The dim of a symbol, whether a caller or data determines it, over the symbols of [`DataSizes`].
    pub fn resolve_data_symbol(&self, symbol: &str) -> Result<Dim, String> {
        self.data.resolve_symbol(symbol, &self.ids)
    }

    /// An extent, or the capacity of one that depends on data.
    pub fn resolve_capacity(&self, size: &'p SymInt<'p>) -> Result<Dim> {
        let resolved = self.resolve_size(size)?;
        if !self.data.depends_on_data(&resolved) {
            return Ok(resolved);
        }
        let text = size.as_expr.as_ref().map_or("", |e| &*e.expr_str);
        self.data.capacity(&resolved).map_err(|m| expression_error(text, m))
    }

    pub fn resolve_extent(&self, size: &'p SymInt<'p>) -> Result<Dim> {
        match (&size.as_expr, size.as_int) {
            (Some(e), _) => self.resolve_expression(&e.expr_str),
            (None, Some(i)) => Ok(Dim::from(i)),
            (None, None) => Err(expression_error("", "an integer is neither `as_int` nor `as_expr`".into())),
        }
    }

    /// The dim of an expression. Expressions repeat, so their dims are cached.
    pub fn resolve_expression(&self, text: &'p str) -> Result<Dim> {
        if let Some(dim) = self.dims.borrow().get(text) {
            return Ok(dim.clone());
        }
        let dim = sympy::parse(text)
            .and_then(|e| sympy::to_dim(&e, &|s| self.resolve_symbol(s)))
            .map_err(|m| expression_error(text, m))?
            .simplify_within(&self.table);
        self.dims.borrow_mut().insert(text, dim.clone());
        Ok(dim)
    }

    /// The dim of a parsed expression, if it is an integer expression.
    pub fn resolve_parsed(&self, e: &SizeExpr<'_>) -> Result<Dim, String> {
        sympy::to_dim(e, &|s| self.resolve_symbol(s)).map(|dim| dim.simplify_within(&self.table))
    }

    /// The truth of a symbolic relation, if the bounds of the symbols decide it.
    pub fn decide_relation(&self, text: &str) -> Option<bool> {
        let e = sympy::parse(text).ok()?;
        sympy::decide_relation(&e, &|s| self.resolve_symbol(s), &|d| d.bounds(&self.table))
    }

    /// The conditions `first <= second` of a symbolic relation, if it is a conjunction of such conditions.
    pub fn relation_conditions(&self, text: &str) -> Option<Vec<(Dim, Dim)>> {
        let e = sympy::parse(text).ok()?;
        let conditions = sympy::relation_conditions(&e, &|s| self.resolve_symbol(s))?;
        Some(
            conditions
                .into_iter()
                .map(|(a, b)| (a.simplify_within(&self.table), b.simplify_within(&self.table)))
                .collect(),
        )
    }

    fn resolve_symbol(&self, symbol: &str) -> Result<Dim, String> {
        let dim = self.ids.get(symbol).cloned();
        dim.ok_or_else(|| format!("`{symbol}` is not an extent of an argument: it depends on data"))
    }
}

fn expression_error(text: &str, message: String) -> ImportError {
    ImportError::Expression { expression: text.into(), message }
}

/// The new name of each symbol. `axes` are the symbols of the argument that names them.
fn choose_names(order: &IndexSet<&str>, axes: &[Option<&str>]) -> Vec<String> {
    let mut names: Vec<String> = order.iter().map(|s| ranges::to_identifier(s)).collect();
    if order.len() == 1 {
        rename_symbol(&mut names, order, order.first().copied(), "tokens");
    } else {
        let last_axis = axes.last().copied().flatten();
        rename_symbol(&mut names, order, last_axis, "tokens");
        if let Some(&Some(first)) = axes.first().filter(|f| **f != last_axis) {
            rename_symbol(&mut names, order, Some(first), "batch");
        }
    }
    names
}

/// Gives a symbol this name, unless another has it.
fn rename_symbol(names: &mut [String], order: &IndexSet<&str>, symbol: Option<&str>, name: &str) {
    let position = symbol.and_then(|s| order.get_index_of(s));
    if let Some(position) = position.filter(|_| !names.iter().any(|n| n == name)) {
        names[position] = name.to_string();
    }
}
