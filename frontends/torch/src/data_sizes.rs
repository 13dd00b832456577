//! Sizes that depend on data: the integers that a program reads from tensors (`item`), which PyTorch calls
//! unbacked symbols.
//!
//! The extents of the graph are those that a caller fixes, so an extent that depends on data has a *capacity*
//! there: an upper bound without such symbols. Bounds come from ranges that the program declares, from its
//! assertions, from expansions, which keep axes of two elements or more, and from exchanges: a rank sends at
//! most the rows that it has, and as many as the sizes add up to. The sizes in expressions are dims over the
//! symbols of the graph followed by those of this module.

use std::collections::HashMap;

use symmc_import::emit::extent_product;
use symmc_import::{has_word, sympy};
use symmc_ir::entity::Entity;
use symmc_ir::{DType, Dim, EntityMap, Symbol, SymbolId};

use crate::dtype;
use crate::packed_rows::op_of;
use crate::schema::{Argument, ExportedGraph, ExportedNode, RangeConstraint, SymInt, TensorMeta};
use crate::scope::tensor_names;

/// Upper ends of declared ranges from here on stand for no limit.
const OPEN: i64 = 1 << 31;

#[derive(Default)]
pub(crate) struct DataSizes {
    /// The symbols of the graph, followed by those that depend on data.
    all: EntityMap<SymbolId, Symbol>,
    /// The number of symbols of the graph.
    fixed: usize,
    ids: HashMap<String, SymbolId>,
    /// The largest value of each symbol, where one is known.
    limits: HashMap<SymbolId, Dim>,
    /// The symbols whose limit the program declares.
    declared_limits: HashMap<SymbolId, i64>,
    /// Pairs of equal sizes. The first is replaced by the second.
    equal: Vec<(Dim, Dim)>,
    /// Pairs of a size and another that it does not exceed.
    at_most: Vec<(Dim, Dim)>,
}

impl DataSizes {
    /// Collects the integers that the nodes of a program read from tensors, with their known bounds.
    /// `fixed` are the symbols of the graph by PyTorch's names.
    pub fn collect(
        graph: &ExportedGraph<'_>,
        range: &dyn Fn(&str) -> Option<RangeConstraint>,
        table: &EntityMap<SymbolId, Symbol>,
        fixed: &HashMap<String, Dim>,
    ) -> Self {
        let mut sizes = DataSizes { all: table.clone(), fixed: table.len(), ..DataSizes::default() };
        sizes.add_symbols(graph, range, fixed);
        if !sizes.ids.is_empty() {
            sizes.add_facts(graph, fixed);
        }
        sizes
    }

    fn add_symbols(
        &mut self,
        graph: &ExportedGraph<'_>,
        range: &dyn Fn(&str) -> Option<RangeConstraint>,
        fixed: &HashMap<String, Dim>,
    ) {
        for node in &graph.nodes {
            for inner in inner_graphs(node) {
                self.add_symbols(inner, range, fixed);
            }
            let is_new = |name: &&str| !fixed.contains_key(*name) && !self.ids.contains_key(*name);
            let name = read_symbol(graph, node).or_else(|| counted_symbols(graph, node).find(is_new));
            let Some(name) = name.filter(is_new) else { continue };
            let declared = range(name);
            let min = declared.and_then(|r| r.min_val).unwrap_or(0).max(0);
            let max = declared.and_then(|r| r.max_val).filter(|max| *max < OPEN);
            let symbol =
                Symbol { name: name.to_string(), min, max: max.unwrap_or(OPEN).max(min), alias: None };
            let id = self.all.push(symbol);
            self.ids.insert(name.to_string(), id);
            if let Some(max) = max {
                self.limits.insert(id, max.into());
                self.declared_limits.insert(id, max);
            }
            if let Some(bound) = self.counted_elements(graph, node, fixed) {
                self.limit(id, &bound);
            }
        }
    }

    fn add_facts(&mut self, graph: &ExportedGraph<'_>, fixed: &HashMap<String, Dim>) {
        for node in &graph.nodes {
            for inner in inner_graphs(node) {
                self.add_facts(inner, fixed);
            }
            let target = node.target.strip_prefix("torch.ops.").unwrap_or(&node.target);
            if target.starts_with("aten._assert_scalar.") {
                self.add_assertion(graph, node, fixed);
            } else if is_exchange(target) {
                self.add_exchange(graph, node, fixed);
            } else if target.starts_with("aten.split_with_sizes") || target.starts_with("aten.split.sizes") {
                self.add_split(graph, node, fixed);
            } else if target.starts_with("aten.expand.") {
                self.add_expansion(graph, node, fixed);
            }
        }
    }

    /// The conditions of an assertion that bound a size.
    fn add_assertion(
        &mut self,
        graph: &ExportedGraph<'_>,
        node: &ExportedNode<'_>,
        fixed: &HashMap<String, Dim>,
    ) {
        let Some(Argument::SymBool(s)) = node.inputs.first().map(|i| &i.arg) else { return };
        let value = s.as_name.as_ref().and_then(|name| graph.sym_bool_values.get(&**name));
        let Some(text) = value.and_then(|v| v.as_expr.as_ref()).map(|e| &*e.expr_str) else { return };
        let Ok(parsed) = sympy::parse(text) else { return };
        let conditions = sympy::relation_conditions(&parsed, &|s| self.resolve_symbol(s, fixed));
        for (low, high) in conditions.unwrap_or_default() {
            if !self.depends_on_data(&high) && self.depends_on_data(&low) {
                let reversed = self.at_most.iter().any(|(a, b)| *a == high && *b == low);
                if reversed {
                    self.add_equal(low.clone(), high.clone());
                }
                if let Some(id) = low.as_symbol() {
                    self.limit(id, &high);
                }
                self.at_most.push((low, high));
            } else if self.depends_on_data(&high) {
                if self.at_most.iter().any(|(a, b)| *a == high && *b == low) {
                    self.add_equal(high.clone(), low.clone());
                }
                self.at_most.push((low, high));
            }
        }
    }

    /// Says that two sizes are equal. Of two symbols, the later one is replaced, because the value of the other is known first.
    fn add_equal(&mut self, from: Dim, to: Dim) {
        let is_earlier = from.as_symbol().zip(to.as_symbol()).is_some_and(|(from, to)| from < to);
        self.equal.push(if is_earlier { (to, from) } else { (from, to) });
    }

    /// What an exchange of rows says about its sizes.
    fn add_exchange(
        &mut self,
        graph: &ExportedGraph<'_>,
        node: &ExportedNode<'_>,
        fixed: &HashMap<String, Dim>,
    ) {
        let list = |name: &str| {
            let input = node.inputs.iter().find(|i| &*i.name == name)?;
            self.sizes_of(graph, &input.arg, fixed)
        };
        let (Some(sent), Some(received)) = (list("input_split_sizes"), list("output_split_sizes")) else {
            return;
        };
        let Some(Argument::Tensor(x)) = node.inputs.first().map(|i| &i.arg) else { return };
        let rows = graph.tensor_values.get(&**x).and_then(|meta| meta.sizes.first());
        let Some(rows) = rows.and_then(|size| self.resolve_size(size, fixed).ok()) else { return };
        let rows = self.normalize(&rows);
        let total = sent.iter().cloned().fold(Dim::from(0), |sum, size| sum + size);
        if total != rows && self.depends_on_data(&total) {
            self.equal.push((total, rows.clone()));
        }
        if !self.depends_on_data(&rows) {
            for id in sent.iter().chain(&received).filter_map(Dim::as_symbol) {
                self.limit(id, &rows);
            }
        }
    }

    /// An axis of two elements or more stays as it is when a tensor is expanded. Backward passes state in this way that the rows
    /// of an exchange are those of an argument.
    fn add_expansion(
        &mut self,
        graph: &ExportedGraph<'_>,
        node: &ExportedNode<'_>,
        fixed: &HashMap<String, Dim>,
    ) {
        let Some(Argument::Tensor(x)) = node.inputs.first().map(|i| &i.arg) else { return };
        let sizes = node.inputs.iter().find(|i| &*i.name == "size").map(|i| &i.arg);
        let Some(sizes) = sizes.and_then(|sizes| self.sizes_of(graph, sizes, fixed)) else { return };
        let Some(meta) = graph.tensor_values.get(&**x) else { return };
        // Axes correspond from the last one on.
        for (old, new) in meta.sizes.iter().rev().zip(sizes.iter().rev()) {
            let Ok(old) = self.resolve_size(old, fixed) else { continue };
            if *new != old
                && self.depends_on_data(new)
                && !self.depends_on_data(&old)
                && self.bounds(&old).0 >= 2
            {
                self.equal.push((new.clone(), old));
            }
        }
    }

    /// The lengths of a split add up to the axis, so none is longer.
    fn add_split(
        &mut self,
        graph: &ExportedGraph<'_>,
        node: &ExportedNode<'_>,
        fixed: &HashMap<String, Dim>,
    ) {
        let argument = |name: &str| node.inputs.iter().find(|i| &*i.name == name).map(|i| &i.arg);
        let sizes = argument("split_sizes").or_else(|| argument("split_size"));
        let Some(sizes) = sizes.and_then(|sizes| self.sizes_of(graph, sizes, fixed)) else { return };
        let Some(Argument::Tensor(x)) = node.inputs.first().map(|i| &i.arg) else { return };
        let Some(meta) = graph.tensor_values.get(&**x) else { return };
        let axis = match argument("dim") {
            Some(Argument::Int(axis)) => axis.rem_euclid(meta.sizes.len().max(1) as i64) as usize,
            _ => 0,
        };
        let extent = meta.sizes.get(axis).and_then(|size| self.resolve_size(size, fixed).ok());
        let Some(extent) = extent else { return };
        let total = sizes.iter().cloned().fold(Dim::from(0), |sum, size| sum + size);
        if total != extent && self.depends_on_data(&total) {
            self.equal.push((total, extent.clone()));
        }
        if let Ok(capacity) = self.capacity(&extent) {
            sizes.iter().filter_map(Dim::as_symbol).for_each(|id| self.limit(id, &capacity));
        }
    }

    /// The most rows that a node can count. `None` if its operands do not bound their number.
    fn counted_elements(
        &self,
        graph: &ExportedGraph<'_>,
        node: &ExportedNode<'_>,
        fixed: &HashMap<String, Dim>,
    ) -> Option<Dim> {
        let operation = op_of(&node.target);
        let names = node.inputs.iter().flat_map(|i| tensor_names(&i.arg));
        let mut operands = names.filter_map(|name| graph.tensor_values.get(name));
        let shape = |meta: &TensorMeta<'_>| {
            let sizes = meta.sizes.iter().map(|size| self.resolve_size(size, fixed).ok());
            sizes.collect::<Option<Vec<Dim>>>()
        };
        let shape = match operation {
            "aten.item" | "aten._local_scalar_dense" | "aten.repeat_interleave" => return None,
            "aten.index" => shape(operands.skip(1).find(|meta| is_mask(meta))?)?,
            "aten.masked_select" => {
                let shapes: Vec<Vec<Dim>> = operands.map(shape).collect::<Option<_>>()?;
                let shapes: Vec<&[Dim]> = shapes.iter().map(Vec::as_slice).collect();
                symmc_ir::infer::broadcast_shapes(&shapes).ok()?
            }
            _ => shape(operands.next()?)?,
        };
        self.capacity(&extent_product(&shape)).ok()
    }

    /// Bounds a symbol that depends on data, unless it has a bound that is as small.
    fn limit(&mut self, id: SymbolId, limit: &Dim) {
        if id.index() < self.fixed {
            return;
        }
        let smaller = self.limits.get(&id).is_some_and(|current| current.provably_le(limit, &self.all));
        if !smaller {
            self.limits.insert(id, limit.clone());
        }
    }

    fn sizes_of(
        &self,
        graph: &ExportedGraph<'_>,
        argument: &Argument<'_>,
        fixed: &HashMap<String, Dim>,
    ) -> Option<Vec<Dim>> {
        match argument {
            Argument::Ints(list) => Some(list.iter().map(|&i| Dim::from(i)).collect()),
            Argument::SymInts(list) => list
                .iter()
                .map(|s| match (&s.as_name, s.as_int) {
                    (Some(name), _) => self.resolve_size(graph.sym_int_values.get(&**name)?, fixed).ok(),
                    (None, i) => i.map(Dim::from),
                })
                .collect(),
            _ => None,
        }
    }

    fn resolve_size(&self, size: &SymInt<'_>, fixed: &HashMap<String, Dim>) -> Result<Dim, String> {
        match (&size.as_expr, size.as_int) {
            (Some(e), _) => {
                let parsed = sympy::parse(&e.expr_str)?;
                sympy::to_dim(&parsed, &|s| self.resolve_symbol(s, fixed))
            }
            (None, Some(i)) => Ok(Dim::from(i)),
            (None, None) => Err("an integer is neither `as_int` nor `as_expr`".into()),
        }
    }

    /// The dim of a symbol, whether a caller or data determines it.
    pub fn resolve_symbol(&self, symbol: &str, fixed: &HashMap<String, Dim>) -> Result<Dim, String> {
        let dim = fixed.get(symbol).cloned();
        let dim = dim.or_else(|| self.ids.get(symbol).map(|id| Dim::from(*id)));
        dim.ok_or_else(|| format!("`{symbol}` is not an extent of an argument: it depends on data"))
    }

    /// The symbol of this module with this name.
    pub fn symbol(&self, name: &str) -> Option<SymbolId> {
        self.ids.get(name).copied()
    }

    /// The largest value that the program declares for a symbol.
    pub fn declared_limit(&self, id: SymbolId) -> Option<i64> {
        self.declared_limits.get(&id).copied()
    }

    /// The smallest value that the program declares for a symbol.
    pub fn least(&self, id: SymbolId) -> i64 {
        self.all[id].min
    }

    pub fn is_data(&self, id: SymbolId) -> bool {
        id.index() >= self.fixed
    }

    pub fn depends_on_data(&self, size: &Dim) -> bool {
        !self.ids.is_empty() && size.symbols().into_iter().any(|id| self.is_data(id))
    }

    pub fn simplify(&self, size: Dim) -> Dim {
        size.simplify_within(&self.all)
    }

    pub fn display(&self, size: &Dim) -> String {
        size.display(&self.all).to_string()
    }

    /// A size with what is known to be equal replaced, so that equal sizes compare equal.
    pub fn normalize(&self, size: &Dim) -> Dim {
        let mut normalized = size.clone();
        for (from, to) in &self.equal {
            if !self.depends_on_data(&normalized) {
                break;
            }
            let difference = normalized.clone() - from.clone();
            if !self.depends_on_data(&difference) {
                normalized = to.clone() + difference;
            }
        }
        normalized
    }

    /// An upper bound of a size without symbols that depend on data. Fails with the name of a symbol that has
    /// none.
    pub fn capacity(&self, size: &Dim) -> Result<Dim, String> {
        let size = self.normalize(size);
        if !self.depends_on_data(&size) {
            return Ok(self.simplify(size));
        }
        let mut best = self.substituted_capacity(&size);
        for (low, high) in self.at_most.iter().filter(|(_, high)| !self.depends_on_data(high)) {
            let excess = size.clone() - low.clone();
            if self.depends_on_data(&excess) {
                continue;
            }
            let bound = high.clone() + excess;
            if !best.as_ref().is_ok_and(|best| best.provably_le(&bound, &self.all)) {
                best = Ok(bound);
            }
        }
        let best = best?;
        Ok(self.simplify(if self.bounds(&best).0 < 0 { best.max_with(&0.into()) } else { best }))
    }

    /// The size with each symbol at that end of its range at which the size is largest.
    fn substituted_capacity(&self, size: &Dim) -> Result<Dim, String> {
        let (terms, rest) = self.split_linear(size)?;
        let mut sum = rest;
        for (id, factor) in terms {
            let name = &self.all[id].name;
            let end = match self.bounds(&factor) {
                (0.., _) => self.limits.get(&id).cloned().ok_or_else(|| {
                    let advice = format!("state one by `torch._check({name} <= …)`");
                    format!("`{name}` depends on data and has no upper bound: {advice}")
                })?,
                (_, ..=0) => Dim::from(self.all[id].min),
                _ => return Err(format!("`{}` depends on data and has no upper bound", self.display(size))),
            };
            sum = sum + end * factor;
        }
        Ok(sum)
    }

    /// A size as a sum of factors of symbols that depend on data, and the rest.
    pub fn split_linear(&self, size: &Dim) -> Result<(Vec<(SymbolId, Dim)>, Dim), String> {
        let mut terms: Vec<(SymbolId, Dim)> = Vec::new();
        for id in size.symbols().into_iter().filter(|id| self.is_data(*id)) {
            if terms.iter().any(|(known, _)| *known == id) {
                continue;
            }
            let next = Dim::from(id) + Dim::from(1);
            let factor = size.substitute(&|s| if s == id { next.clone() } else { s.into() }) - size.clone();
            if self.depends_on_data(&factor) {
                let shown = self.display(size);
                return Err(format!("`{shown}` depends on data and is no sum of such sizes"));
            }
            terms.push((id, factor));
        }
        let remainder = size.substitute(&|s| if self.is_data(s) { 0.into() } else { s.into() });
        let sum =
            terms.iter().fold(remainder.clone(), |sum, (id, factor)| sum + Dim::from(*id) * factor.clone());
        if sum != *size {
            let shown = self.display(size);
            return Err(format!("`{shown}` depends on data and is no sum of such sizes"));
        }
        Ok((terms, remainder))
    }

    fn bounds(&self, size: &Dim) -> (i64, i64) {
        size.bounds(&self.all)
    }

    /// Whether a size without symbols that depend on data is at most another for all sizes of a run.
    pub fn provably_at_most(&self, size: &Dim, limit: &Dim) -> bool {
        size.provably_le(limit, &self.all)
    }
}

/// The symbol that a node reads from a tensor.
pub(crate) fn read_symbol<'a>(graph: &'a ExportedGraph<'_>, node: &ExportedNode<'_>) -> Option<&'a str> {
    let target = node.target.strip_prefix("torch.ops.").unwrap_or(&node.target);
    if !(target.starts_with("aten.item.") || target.starts_with("aten._local_scalar_dense.")) {
        return None;
    }
    let Some(Argument::SymInt(result)) = node.outputs.first() else { return None };
    let value = graph.sym_int_values.get(&**result.as_name.as_ref()?)?;
    match sympy::parse(&value.as_expr.as_ref()?.expr_str).ok()? {
        sympy::SizeExpr::Symbol(name) => Some(name),
        _ => None,
    }
}

/// Operators whose results have as many rows as the data has. The symbol of their number is an extent of the first result.
const COUNTING: &str = "aten.nonzero aten.argwhere aten.nonzero_numpy aten.where aten.masked_select aten.index aten.repeat_interleave \
     aten._unique2 aten._unique aten.unique_consecutive";

/// The symbols among the extents of the first result of a node that counts rows.
fn counted_symbols<'a>(
    graph: &'a ExportedGraph<'_>,
    node: &ExportedNode<'_>,
) -> impl Iterator<Item = &'a str> {
    let is_counting = has_word(COUNTING, op_of(&node.target));
    let result = node.results().into_iter().flatten().next().filter(|_| is_counting);
    let meta = result.and_then(|result| graph.tensor_values.get(result));
    let sizes = meta.into_iter().flat_map(|meta| &meta.sizes);
    sizes.filter_map(|size| match sympy::parse(&size.as_expr.as_ref()?.expr_str).ok()? {
        sympy::SizeExpr::Symbol(name) => Some(name),
        _ => None,
    })
}

fn is_mask(meta: &TensorMeta<'_>) -> bool {
    dtype::from_schema(meta.dtype).is_ok_and(|dtype| matches!(dtype, DType::Bool | DType::U8))
}

fn is_exchange(target: &str) -> bool {
    target.starts_with("_c10d_functional.all_to_all_single.")
        || target.starts_with("_c10d_functional_autograd.all_to_all_single.")
}

fn inner_graphs<'g, 'a>(node: &'g ExportedNode<'a>) -> impl Iterator<Item = &'g ExportedGraph<'a>> {
    node.inputs.iter().filter_map(|i| match &i.arg {
        Argument::Graph(inner) => Some(&**inner),
        _ => None,
    })
}
