//! The invariants of a graph, and the verifier.
//!
//! All code that takes a graph may rely on these invariants. Code that makes a graph from external data (a
//! parser, an importer) or rewrites one (a pass) is followed by [`verify`]. The verifier reports all
//! violations, with one exception: after a violation of I1 it checks nothing else, because the other checks
//! look up ids.
//!
//! - **I1 ids**: every id is in its table. This holds for operands, results, definitions, outputs, groups,
//!   custom ops, and the symbols of all dims.
//! - **I2 definitions**: the table of values lists the inputs and the results of nodes in the order of
//!   definition: inputs ascending, nodes ascending, the results of one node together. Each value names its
//!   definition, and the definition names the value. Each node has a result. (Hence the text form preserves
//!   ids.)
//! - **I3 order**: an operand is defined before the node that uses it.
//! - **I4 names**: names of values and of symbols are identifiers; names of groups and of custom ops are not
//!   empty. Each name is unique among its kind.
//! - **I5 ranks**: there are 1 to [`MAX_RANKS`] ranks, unless their number is open.
//! - **I6 groups**: the cells of a group are of equal size and contain every rank exactly once.
//! - **I7 symbols**: a symbol is between 0 and [`MAX_EXTENT`], and its minimum is not above its maximum.
//! - **I8 dims**: an extent is at least 0 and at most [`MAX_EXTENT`] for all values of the symbols, as far as
//!   interval arithmetic shows. The same limit holds for the magnitude of every other dim. All dims are small
//!   enough to compute with ([`dim::check_shape_complexity`]).
//! - **I9 sizes**: a value has at most [`MAX_BYTES`] bytes for all values of the symbols.
//! - **I10 typing**: operands and results of a node satisfy the rule of its op ([`infer::check_types`]).
//! - **I11 constants**: a constant has data of exactly its type, with 0 and 1 as the only bools. No other input
//!   has data.
//! - **I12 outputs**: an output that mutates an input has the type of that input. A constant is not mutated,
//!   and no input is mutated twice. The length of an output is an i64 without axes, of an axis of a returned output, and no
//!   axis has two.
//! - **I13 variants**: the variant of a collective supports collectives of its kind.
//! - **I14 custom ops**: the positions that a signature declares symmetric exist at every node of the op.
//! - **I15 bounds**: a slice stays within its operand, `topk` takes at most as many elements as there are, and
//!   the index of `gather_elements` and `scatter_elements` is not longer than `x` along any other axis. A node
//!   violates this only if interval arithmetic shows that all values of the symbols break it. Single sizes that
//!   break it are rejected when a run binds them ([`crate::bounds`]).
//! - **I16 dispatches**: a dispatch consists of nodes of the graph, and each node belongs to at most one
//!   dispatch. Dispatches are in program order, and their nodes satisfy the rules of their form
//!   ([`crate::dispatch`]).

use std::collections::HashSet;
use std::fmt;
use std::slice;

use crate::dim::{self, Dim};
use crate::dispatch;
use crate::entity::{Entity, EntityMap};
use crate::graph::{Graph, GraphInput, GroupDef, GroupMembers, InputKind, Node, OutputKind, ValueDef};
use crate::ids::{InputId, NodeId, ValueId};
use crate::infer;
use crate::op::{ExtentRule, Op};
use crate::quote::is_identifier;
use crate::text::{op_dims, op_name, with_symbol_names};
use crate::types::{DType, TensorType};

/// The maximum number of ranks of a program, a plan or a tensor file.
pub const MAX_RANKS: u32 = 1024;
pub const MAX_EXTENT: i64 = 1 << 40;
pub const MAX_BYTES: i64 = 1 << 46;

/// One of the invariants of the [module](self), with its number as its value. Messages describe a violation
/// without the number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Invariant {
    Ids = 1,
    Definitions,
    Order,
    Names,
    Ranks,
    Groups,
    Symbols,
    Dims,
    Sizes,
    Typing,
    Constants,
    Outputs,
    Variants,
    Customs,
    Bounds,
    Dispatches,
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub struct Violation {
    pub invariant: Invariant,
    /// The location: `%value`, `@group`, `symbol n`, …
    pub at: String,
    /// The op, if the violation is at a node.
    pub op: Option<&'static str>,
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.at)?;
        if let Some(op) = self.op {
            write!(f, " ({op})")?;
        }
        write!(f, ": {}", self.message)
    }
}

/// Checks every invariant of the [module](self). On failure it returns all violations, in the order program,
/// symbols, groups, values, nodes, outputs.
pub fn verify(graph: &Graph) -> Result<(), Vec<Violation>> {
    let mut v = Verifier { graph, found: Vec::new() };
    v.check_ids();
    if v.found.is_empty() {
        v.check_program();
        v.check_definitions();
        v.check_names();
        let computable = v.check_values();
        for (id, node) in graph.nodes.iter() {
            v.check_node(id, node, &computable);
        }
        v.check_outputs();
        v.check_dispatches();
    }
    if v.found.is_empty() { Ok(()) } else { Err(v.found) }
}

/// [`verify`] without I15, for a program that passes derive from another program, with symbols narrowed to a
/// sub-range. All sizes in that range may break a bound of the source; a run with such sizes never starts
/// ([`crate::bounds`]).
pub fn verify_derived(graph: &Graph) -> Result<(), Vec<Violation>> {
    let Err(mut violations) = verify(graph) else { return Ok(()) };
    violations.retain(|violation| violation.invariant != Invariant::Bounds);
    if violations.is_empty() { Ok(()) } else { Err(violations) }
}

struct Verifier<'a> {
    graph: &'a Graph,
    found: Vec<Violation>,
}

impl Verifier<'_> {
    fn report(&mut self, invariant: Invariant, at: impl Into<String>, message: impl Into<String>) {
        self.found.push(Violation { invariant, at: at.into(), op: None, message: message.into() });
    }

    fn report_node(&mut self, invariant: Invariant, id: NodeId, message: impl Into<String>) {
        let node = &self.graph.nodes[id];
        let name = node.outputs.first().and_then(|&v| self.graph.values.get(v)).map(|v| v.name.as_str());
        let location = name.map_or_else(|| id.to_string(), |name| format!("%{name}"));
        let op = Some(op_name(&node.op));
        self.found.push(Violation { invariant, at: location, op, message: message.into() });
    }

    // I1

    fn check_ids(&mut self) {
        let g = self.graph;
        for (id, value) in g.values.iter() {
            let is_defined = match value.def {
                ValueDef::Input(input) => g.inputs.get(input).is_some(),
                ValueDef::Node(node, k) => g.nodes.get(node).is_some_and(|n| k < n.outputs.len()),
            };
            if !is_defined {
                let message =
                    format!("expected a definition in the graph, found {}", describe_def(value.def));
                self.report(Invariant::Ids, self.describe_value(id), message);
            }
            let mut symbols = value.ty.shape.iter().flat_map(Dim::symbols);
            if let Some(s) = symbols.find(|&s| g.symbols.get(s).is_none()) {
                self.report(
                    Invariant::Ids,
                    self.describe_value(id),
                    unknown_id_message("symbol", s, g.symbols.len()),
                );
            }
        }
        for (id, input) in g.inputs.iter() {
            if g.values.get(input.value).is_none() {
                self.report(
                    Invariant::Ids,
                    id.to_string(),
                    unknown_id_message("value", input.value, g.values.len()),
                );
            }
        }
        for custom in g.customs.values() {
            if let Some(group) = custom.group.filter(|&id| g.groups.get(id).is_none()) {
                let location = format!("custom {:?}", custom.name);
                self.report(Invariant::Ids, location, unknown_id_message("group", group, g.groups.len()));
            }
        }
        for (id, node) in g.nodes.iter() {
            for &v in node.inputs.iter().chain(&node.outputs).filter(|&&v| g.values.get(v).is_none()) {
                self.report_node(Invariant::Ids, id, unknown_id_message("value", v, g.values.len()));
            }
            self.check_op_ids(id, &node.op);
        }
        for (i, output) in g.outputs.iter().enumerate() {
            if g.values.get(output.value).is_none() {
                self.report(
                    Invariant::Ids,
                    describe_output(i),
                    unknown_id_message("value", output.value, g.values.len()),
                );
            }
            if let OutputKind::Mutates(id) = output.kind
                && g.inputs.get(id).is_none()
            {
                self.report(
                    Invariant::Ids,
                    describe_output(i),
                    unknown_id_message("input", id, g.inputs.len()),
                );
            }
        }
    }

    fn check_op_ids(&mut self, id: NodeId, op: &Op) {
        let g = self.graph;
        if let Some(group) = op.group().filter(|group| g.groups.get(*group).is_none()) {
            self.report_node(Invariant::Ids, id, unknown_id_message("group", group, g.groups.len()));
        }
        if let Op::Custom(c) = op
            && g.customs.get(*c).is_none()
        {
            self.report_node(Invariant::Ids, id, unknown_id_message("custom op", *c, g.customs.len()));
        }
        let missing = op_dims(op).into_iter().flat_map(Dim::symbols).find(|&s| g.symbols.get(s).is_none());
        if let Some(s) = missing {
            self.report_node(Invariant::Ids, id, unknown_id_message("symbol", s, g.symbols.len()));
        }
    }

    fn describe_value(&self, id: ValueId) -> String {
        self.graph.values.get(id).map_or_else(|| id.to_string(), |v| format!("%{}", v.name))
    }

    // I5, I6, I7

    fn check_program(&mut self) {
        let g = self.graph;
        if let Some(n) = g.ranks.filter(|n| !(1..=MAX_RANKS).contains(n)) {
            self.report(Invariant::Ranks, "ranks", format!("expected 1 to {MAX_RANKS}, found {n}"));
        }
        for symbol in g.symbols.values() {
            if !(0 <= symbol.min && symbol.min <= symbol.max && symbol.max <= MAX_EXTENT) {
                let actual = format!("found {}..={}", symbol.min, symbol.max);
                let message = format!("expected a range within 0..={MAX_EXTENT} that is not empty, {actual}");
                self.report(Invariant::Symbols, format!("symbol {}", symbol.name), message);
            }
        }
        for group in g.groups.values() {
            if let Err(message) = check_partition(group, g.ranks) {
                self.report(Invariant::Groups, format!("@{}", group.name), message);
            }
        }
    }

    // I2, I3

    fn check_definitions(&mut self) {
        let g = self.graph;
        let before = self.found.len();
        for (id, input) in g.inputs.iter() {
            let def = g.values[input.value].def;
            if def != ValueDef::Input(id) {
                let message = format!("expected its definition to be {id}, found {}", describe_def(def));
                self.report(Invariant::Definitions, self.describe_value(input.value), message);
            }
        }
        for (id, node) in g.nodes.iter() {
            if node.outputs.is_empty() {
                self.report_node(Invariant::Definitions, id, "expected a result, found none");
            }
            for (k, &v) in node.outputs.iter().enumerate() {
                let def = g.values[v].def;
                if def != ValueDef::Node(id, k) {
                    let message = format!(
                        "expected {} to be its result {k}, found {}",
                        self.describe_value(v),
                        describe_def(def)
                    );
                    self.report_node(Invariant::Definitions, id, message);
                }
            }
        }
        if self.found.len() == before {
            self.check_numbering();
        }
        for (id, node) in g.nodes.iter() {
            let Some(first) = node.outputs.first() else { continue };
            for &v in node.inputs.iter().filter(|&v| v >= first) {
                let value = self.describe_value(v);
                let message = format!("expected operands that are defined earlier, found {value}");
                self.report_node(Invariant::Order, id, message);
            }
        }
    }

    /// Checks the order of the table of values. The caller has checked that each definition names its values
    /// and each of them names the definition. Each value then occurs once exactly if each definition does.
    fn check_numbering(&mut self) {
        let g = self.graph;
        let mut inputs = g.inputs.keys();
        let mut nodes = g.nodes.keys();
        let mut values = g.values.iter();
        while let Some((id, value)) = values.next() {
            let fits = match value.def {
                ValueDef::Input(input) => inputs.next() == Some(input) && g.inputs[input].value == id,
                ValueDef::Node(node, 0) => {
                    let other_results = g.nodes[node].outputs.iter().skip(1);
                    nodes.next() == Some(node)
                        && g.nodes[node].outputs[0] == id
                        && other_results
                            .copied()
                            .eq(values.by_ref().take(g.nodes[node].outputs.len() - 1).map(|v| v.0))
                }
                ValueDef::Node(..) => false,
            };
            if !fits {
                let message =
                    format!("expected the next definition in order, found {}", describe_def(value.def));
                self.report(Invariant::Definitions, self.describe_value(id), message);
                return;
            }
        }
        if inputs.next().is_some() || nodes.next().is_some() {
            self.report(Invariant::Definitions, "values", "expected the values of all inputs and nodes");
        }
    }

    // I4

    fn check_names(&mut self) {
        let g = self.graph;
        let values = g.values.values().map(|v| v.name.as_str());
        let symbols = g.symbols.values().map(|s| s.name.as_str());
        let groups = g.groups.values().map(|g| g.name.as_str());
        let customs = g.customs.values().map(|c| c.name.as_str());
        let mut problems = Vec::new();
        check_unique_names(symbols, "symbol ", is_identifier, "an identifier", &mut problems);
        check_unique_names(groups, "@", |n| !n.is_empty(), "a name", &mut problems);
        check_unique_names(customs, "custom ", |n| !n.is_empty(), "a name", &mut problems);
        check_unique_names(values, "%", is_identifier, "an identifier", &mut problems);
        for (location, message) in problems {
            self.report(Invariant::Names, location, message);
        }
    }

    // I8, I9, I11

    /// Checks all values. Returns for each whether its dims are small enough to compute with.
    fn check_values(&mut self) -> EntityMap<ValueId, bool> {
        let g = self.graph;
        let mut computable = EntityMap::filled(true, g.values.len());
        for (id, value) in g.values.iter() {
            if let Err(message) = dim::check_shape_complexity(&value.ty.shape) {
                computable[id] = false;
                self.report(Invariant::Dims, self.describe_value(id), message);
                continue;
            }
            let mut bytes = value.ty.dtype.size() as i64;
            let mut fits = true;
            for (axis, extent) in value.ty.shape.iter().enumerate() {
                let (low, high) = extent.bounds(&g.symbols);
                if low < 0 || high > MAX_EXTENT {
                    fits = false;
                    let actual = format!("found {} from {low} to {high}", extent.display(&g.symbols));
                    let message =
                        format!("expected an extent of axis {axis} from 0 to {MAX_EXTENT}, {actual}");
                    self.report(Invariant::Dims, self.describe_value(id), message);
                }
                bytes = bytes.saturating_mul(high);
            }
            if fits && bytes > MAX_BYTES {
                let ty = self.display_type(&value.ty);
                let message = format!("expected at most {MAX_BYTES} bytes, found up to {bytes} as {ty}");
                self.report(Invariant::Sizes, self.describe_value(id), message);
            }
        }
        for (id, input) in g.inputs.iter() {
            self.check_constant_data(id, input);
        }
        computable
    }

    fn check_constant_data(&mut self, id: InputId, input: &GraphInput) {
        let ty = self.graph.ty(input.value);
        let message = match (input.kind, &input.data) {
            (InputKind::Constant, None) => Some("expected the data of the constant, found none".to_string()),
            (InputKind::Constant, Some(data)) => {
                let shape: Option<Vec<i64>> = ty.shape.iter().map(Dim::as_const).collect();
                let data_shape = data.shape().iter().map(|&n| i64::try_from(n).ok());
                let fits =
                    shape.is_some_and(|s| s.into_iter().map(Some).eq(data_shape)) && data.dtype() == ty.dtype;
                if !fits {
                    let expected = self.display_type(ty);
                    Some(format!(
                        "expected data of type {expected}, found {}{:?}",
                        data.dtype(),
                        data.shape()
                    ))
                } else if data.dtype() == DType::Bool {
                    let odd = data.data().iter().find(|&&b| b > 1);
                    odd.map(|b| format!("expected bools stored as 0 or 1, found {b}"))
                } else {
                    None
                }
            }
            (_, Some(_)) => {
                Some(format!("expected no data, because only constants have data, found data of {id}"))
            }
            (_, None) => None,
        };
        if let Some(message) = message {
            self.report(Invariant::Constants, self.describe_value(input.value), message);
        }
    }

    fn display_type(&self, ty: &TensorType) -> String {
        with_symbol_names(&format!("{}{:?}", ty.dtype, ty.shape), &self.graph.symbols)
    }

    // I8 of ops, I10, I13, I14, I15

    fn check_node(&mut self, id: NodeId, node: &Node, computable: &EntityMap<ValueId, bool>) {
        let g = self.graph;
        let dims = op_dims(&node.op);
        if let Err(message) =
            dims.iter().try_for_each(|&dim| dim::check_shape_complexity(slice::from_ref(dim)))
        {
            self.report_node(Invariant::Dims, id, message);
            return;
        }
        if !node.inputs.iter().chain(&node.outputs).all(|&v| computable[v]) {
            return;
        }
        for dim in dims {
            let (low, high) = dim.bounds(&g.symbols);
            if low < -MAX_EXTENT || high > MAX_EXTENT {
                let actual = format!("found {} from {low} to {high}", dim.display(&g.symbols));
                let message = format!("expected a dim of magnitude at most {MAX_EXTENT}, {actual}");
                self.report_node(Invariant::Dims, id, message);
                return;
            }
        }
        if node.outputs.is_empty() {
            return;
        }
        let operands: Vec<&TensorType> = node.inputs.iter().map(|&v| g.ty(v)).collect();
        let results: Vec<&TensorType> = node.outputs.iter().map(|&v| g.ty(v)).collect();
        let n = node.op.group().and_then(|group| g.group_size(group));
        match infer::check_types(&node.op, &operands, &results, n) {
            Err(message) => {
                self.report_node(Invariant::Typing, id, with_symbol_names(&message, &g.symbols));
            }
            Ok(()) => self.check_index_bounds(id, &node.op, &operands, &results),
        }
        match &node.op {
            Op::Collective(c) => {
                if let Some(variant) = c.variant.filter(|v| v.contract(&c.kind).is_none()) {
                    let message = format!("expected a variant that supports the collective, found {variant}");
                    self.report_node(Invariant::Variants, id, message);
                }
            }
            Op::Custom(custom) => {
                let custom = &g.customs[*custom];
                let operand = custom.symmetric_operands.iter().find(|&&i| i >= operands.len());
                let result = custom.symmetric_results.iter().find(|&&i| i >= results.len());
                for (role, i) in [("operand", operand), ("result", result)] {
                    if let Some(i) = i {
                        let name = &custom.name;
                        let message =
                            format!("expected {role} {i}, which {name:?} declares symmetric, found none");
                        self.report_node(Invariant::Customs, id, message);
                    }
                }
            }
            _ => {}
        }
    }

    /// Checks I15 for a well-typed node.
    fn check_index_bounds(&mut self, id: NodeId, op: &Op, operands: &[&TensorType], results: &[&TensorType]) {
        let symbols = &self.graph.symbols;
        match op.facts().extents {
            ExtentRule::Any => {}
            ExtentRule::PositionsOfOperand { axis, start, step } => {
                let extent = &operands[0].shape[axis];
                let count = &results[0].shape[axis];
                if count.bounds(symbols).0 < 1 {
                    return;
                }
                let last_position = start.clone() + (count.clone() - Dim::from(1)) * Dim::from(step);
                let below = start.bounds(symbols).1 < 0;
                if below || extent.provably_le(&last_position, symbols) {
                    let extent = extent.display(symbols);
                    let start = start.display(symbols);
                    let last_position = last_position.display(symbols);
                    let message = format!(
                        "expected positions from 0 to below {extent}, found {start} to {last_position}"
                    );
                    self.report_node(Invariant::Bounds, id, message);
                }
            }
            ExtentRule::AtMostOperand { axis } => {
                self.check_at_most(id, &results[0].shape[axis], &operands[0].shape[axis]);
            }
            ExtentRule::IndexAtMostOperand { except } => {
                let index = operands[1].shape.iter().enumerate().filter(|(a, _)| *a != except);
                for (a, extent) in index {
                    self.check_at_most(id, extent, &operands[0].shape[a]);
                }
            }
        }
    }

    fn check_at_most(&mut self, id: NodeId, count: &Dim, limit: &Dim) {
        let symbols = &self.graph.symbols;
        if (limit.clone() + Dim::from(1)).provably_le(count, symbols) {
            let limit = limit.display(symbols);
            let count = count.display(symbols);
            self.report_node(
                Invariant::Bounds,
                id,
                format!("expected at most {limit} elements, found {count}"),
            );
        }
    }

    // I16

    fn check_dispatches(&mut self) {
        let g = self.graph;
        if g.dispatches.is_empty() {
            return;
        }
        let users = g.users();
        let mut next = 0;
        for (d, dispatch) in g.dispatches.iter().enumerate() {
            let [first, last] = [dispatch.first, dispatch.last].map(Entity::index);
            if !(next <= first && first <= last && last < g.nodes.len()) {
                let message =
                    format!("expected nodes from {next} to below {}, found {first} to {last}", g.nodes.len());
                self.report(Invariant::Dispatches, format!("dispatch {d}"), message);
                return;
            }
            next = last + 1;
            if let Err((node, message)) = dispatch::check_dispatch(g, dispatch, &users) {
                self.report_node(Invariant::Dispatches, node, with_symbol_names(&message, &g.symbols));
            }
        }
    }

    // I12

    fn check_output_lengths(&mut self) {
        let g = self.graph;
        let mut counted = HashSet::new();
        for (i, length) in g.outputs.iter().enumerate() {
            let OutputKind::Length { output, axis } = length.kind else { continue };
            let ty = g.ty(length.value);
            if ty.dtype != DType::I64 || ty.rank() != 0 {
                let message = format!("expected a length as i64[], found {}", self.display_type(ty));
                self.report(Invariant::Outputs, describe_output(i), message);
            }
            let returned = g.outputs.get(output).filter(|o| o.kind == OutputKind::Returned);
            if returned.is_none_or(|o| axis >= g.ty(o.value).rank()) {
                let message =
                    format!("expected an axis of a returned output, found axis {axis} of output {output}");
                self.report(Invariant::Outputs, describe_output(i), message);
            }
            if !counted.insert((output, axis)) {
                let message = format!("expected one length of axis {axis} of output {output}, found two");
                self.report(Invariant::Outputs, describe_output(i), message);
            }
        }
    }

    fn check_outputs(&mut self) {
        let g = self.graph;
        let mut mutated = HashSet::new();
        self.check_output_lengths();
        for (i, output) in g.outputs.iter().enumerate() {
            let OutputKind::Mutates(id) = output.kind else { continue };
            let input = &g.inputs[id];
            let target = self.describe_value(input.value);
            let expected = g.ty(input.value);
            let actual = g.ty(output.value);
            if input.kind == InputKind::Constant {
                let message =
                    format!("expected an argument or a parameter to mutate, found constant {target}");
                self.report(Invariant::Outputs, describe_output(i), message);
            }
            if expected != actual {
                let expected = self.display_type(expected);
                let actual = self.display_type(actual);
                let message = format!("expected {expected} of {target}, found {actual}");
                self.report(Invariant::Outputs, describe_output(i), message);
            }
            if !mutated.insert(id) {
                self.report(
                    Invariant::Outputs,
                    describe_output(i),
                    format!("expected one mutation of {target}, found two"),
                );
            }
        }
    }
}

fn describe_def(def: ValueDef) -> String {
    match def {
        ValueDef::Input(input) => input.to_string(),
        ValueDef::Node(node, k) => format!("result {k} of {node}"),
    }
}

fn describe_output(i: usize) -> String {
    format!("output {i}")
}

fn unknown_id_message(what: &str, id: impl Entity + fmt::Display, len: usize) -> String {
    let plural = if len == 1 { "" } else { "s" };
    format!("{what} {id} is out of range: the graph has {len} {what}{plural}")
}

/// Reports names that are invalid or duplicated.
fn check_unique_names<'a>(
    names: impl ExactSizeIterator<Item = &'a str>,
    prefix: &str,
    valid: impl Fn(&str) -> bool,
    expected: &str,
    problems: &mut Vec<(String, String)>,
) {
    let mut seen_names = HashSet::with_capacity(names.len());
    for name in names {
        if !valid(name) {
            problems.push((format!("{prefix}{name}"), format!("expected {expected}, found {name:?}")));
        }
        if !seen_names.insert(name) {
            let message = "expected a unique name, found a duplicate".to_string();
            problems.push((format!("{prefix}{name}"), message));
        }
    }
}

/// Checks that the cells of a group are of equal size and contain each rank once.
fn check_partition(group: &GroupDef, ranks: Option<u32>) -> Result<(), String> {
    let GroupMembers::Cells(cells) = &group.members else { return Ok(()) };
    let size = cells.first().map_or(0, Vec::len);
    if let Some(uneven_cell) = cells.iter().find(|c| c.len() != size || c.is_empty()) {
        return Err(format!("expected cells of {} ranks, found {uneven_cell:?}", size.max(1)));
    }
    let total = size * cells.len();
    let n = ranks.map_or(total, |n| n as usize);
    if total != n || total == 0 || total > MAX_RANKS as usize {
        return Err(format!("expected cells that cover all {n} ranks, found {total} ranks"));
    }
    let mut seen_ranks = vec![false; n];
    for &rank in cells.iter().flatten() {
        match seen_ranks.get_mut(rank as usize) {
            Some(is_seen) if !*is_seen => *is_seen = true,
            Some(_) => return Err(format!("expected each rank once, found rank {rank} twice")),
            None => return Err(format!("expected ranks below {n}, found rank {rank}")),
        }
    }
    Ok(())
}
