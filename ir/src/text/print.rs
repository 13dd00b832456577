//! Writes a graph in text form.
//!
//! Inputs and nodes are written in the order of their values, so that reading numbers them alike. Writing
//! never fails: an id that is in no table is written as `%?`, `@?` or `?`, which reading refuses.

use std::fmt::Write as _;

use crate::attention::{self, Bound};
use crate::collective::{Collective, CollectiveKind, Splits};
use crate::dim::Dim;
use crate::graph::{
    CustomOp, Def, Graph, Group, GroupId, Input, InputKind, Members, Node, OutputKind, ValueId,
};
use crate::op::{ArgOp, Op};
use crate::types::Type;

/// The graph in text form.
pub fn print(graph: &Graph) -> String {
    let mut p = Printer { graph, out: String::with_capacity(128 * (graph.nodes.len() + graph.inputs.len())) };
    p.header();
    p.body();
    p.outputs();
    p.out
}

/// The name of an op in the text form.
pub fn op_name(op: &Op) -> &'static str {
    match op {
        Op::Full(_) => "full",
        Op::Iota { .. } => "iota",
        Op::Unary(op) => op.name(),
        Op::Binary(op) | Op::BinaryScalar { op, .. } => op.name(),
        Op::Select => "select",
        Op::Cast => "cast",
        Op::MatMul => "matmul",
        Op::GroupedMatMul => "grouped_matmul",
        Op::Reduce { .. } => "reduce",
        Op::ArgReduce { op: ArgOp::Max, .. } => "argmax",
        Op::ArgReduce { op: ArgOp::Min, .. } => "argmin",
        Op::CumSum { .. } => "cumsum",
        Op::Softmax { .. } => "softmax",
        Op::RmsNorm { .. } => "rms_norm",
        Op::LayerNorm { .. } => "layer_norm",
        Op::Attention { .. } => "attention",
        Op::RotaryEmbedding { .. } => "rotary_embedding",
        Op::Permuted { op, .. } => op_name(op),
        Op::Take { .. } => "take",
        Op::Index { .. } => "index",
        Op::GatherElements { .. } => "gather_elements",
        Op::ScatterElements { .. } => "scatter_elements",
        Op::IndexAdd { .. } => "index_add",
        Op::IndexPut { .. } => "index_put",
        Op::TopK { .. } => "topk",
        Op::Sort { .. } => "sort",
        Op::Concat { .. } => "concat",
        Op::Pad { .. } => "pad",
        Op::Reshape => "reshape",
        Op::Permute { .. } => "permute",
        Op::Slice { .. } => "slice",
        Op::Expand => "expand",
        Op::Copy => "copy",
        Op::Collective(c) => c.kind.name(),
        Op::Opaque { .. } => "opaque",
        Op::Custom(_) => "custom",
    }
}

/// Whether a value or a group can be written without quotes.
fn is_bare(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_' || c == b'.')
}

/// Whether a symbol can be written without quotes.
pub(crate) fn is_identifier(name: &str) -> bool {
    is_bare(name) && name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
}

/// Writes `text` as a string literal.
pub(crate) fn write_string(out: &mut impl std::fmt::Write, text: &str) -> std::fmt::Result {
    out.write_char('"')?;
    for c in text.chars() {
        match c {
            '"' => out.write_str("\\\"")?,
            '\\' => out.write_str("\\\\")?,
            '\n' => out.write_str("\\n")?,
            '\r' => out.write_str("\\r")?,
            '\t' => out.write_str("\\t")?,
            c if c.is_control() => write!(out, "\\u{{{:x}}}", u32::from(c))?,
            c => out.write_char(c)?,
        }
    }
    out.write_char('"')
}

struct Printer<'a> {
    graph: &'a Graph,
    out: String,
}

impl Printer<'_> {
    fn put(&mut self, text: &str) {
        self.out.push_str(text);
    }

    /// Writing to a string does not fail.
    fn show(&mut self, what: impl std::fmt::Display) {
        let _ = write!(self.out, "{what}");
    }

    fn string(&mut self, text: &str) {
        let _ = write_string(&mut self.out, text);
    }

    fn name(&mut self, sigil: &str, name: &str) {
        self.put(sigil);
        if is_bare(name) { self.put(name) } else { self.string(name) }
    }

    fn value(&mut self, id: ValueId) {
        match self.graph.values.get(id) {
            Some(value) => self.name("%", &value.name),
            None => self.put("%?"),
        }
    }

    fn group(&mut self, id: GroupId) {
        match self.graph.groups.get(id) {
            Some(group) => self.name("@", &group.name),
            None => self.put("@?"),
        }
    }

    fn list<T>(&mut self, items: &[T], mut one: impl FnMut(&mut Self, &T)) {
        self.put("[");
        for (i, item) in items.iter().enumerate() {
            if i > 0 {
                self.put(", ");
            }
            one(self, item);
        }
        self.put("]");
    }

    fn dim(&mut self, dim: &Dim) {
        self.show(dim.display(&self.graph.symbols));
    }

    fn ty(&mut self, ty: &Type) {
        self.put(ty.dtype.name());
        self.list(&ty.shape, Self::dim);
    }

    fn header(&mut self) {
        let graph = self.graph;
        self.put("program ");
        self.string(&graph.name);
        match graph.ranks {
            Some(n) => self.show(format_args!(" ranks {n}\n")),
            None => self.put(" ranks ?\n"),
        }
        for symbol in graph.symbols.values() {
            self.put("symbol ");
            if is_identifier(&symbol.name) {
                self.put(&symbol.name)
            } else {
                self.string(&symbol.name)
            }
            self.show(format_args!(" in {}..={}", symbol.min, symbol.max));
            if let Some(alias) = &symbol.alias {
                self.put(" alias ");
                self.string(alias);
            }
            self.put("\n");
        }
        for group in graph.groups.values() {
            self.group_line(group);
        }
        for custom in graph.customs.values() {
            self.custom_line(custom);
        }
        self.put("\n");
    }

    fn group_line(&mut self, group: &Group) {
        self.put("group ");
        self.name("@", &group.name);
        self.put(" ");
        match &group.members {
            Members::World => self.put("world"),
            Members::Cells(cells) => {
                self.list(cells, |p, cell| p.list(cell, |p, rank| p.show(rank)));
            }
        }
        self.put("\n");
    }

    fn custom_line(&mut self, custom: &CustomOp) {
        self.put("custom ");
        self.string(&custom.name);
        self.put(" symmetric operands ");
        self.list(&custom.symmetric_operands, |p, i| p.show(i));
        self.put(" results ");
        self.list(&custom.symmetric_results, |p, i| p.show(i));
        if let Some(group) = custom.group {
            self.put(" group ");
            self.group(group);
        }
        self.put("\n");
    }

    fn body(&mut self) {
        let graph = self.graph;
        let mut dispatches = graph.dispatches.iter().peekable();
        for (id, value) in graph.values.iter() {
            match value.def {
                Def::Input(input) => {
                    if let Some(input) = graph.inputs.get(input) {
                        self.input(id, input);
                    }
                }
                Def::Node(id, 0) => {
                    if let Some(dispatch) = dispatches.peek().filter(|d| d.first == id) {
                        self.show(format_args!("dispatch {} {{\n", dispatch.form));
                    }
                    if let Some(node) = graph.nodes.get(id) {
                        self.node(node);
                    }
                    if dispatches.next_if(|d| d.last == id).is_some() {
                        self.put("}\n");
                    }
                }
                Def::Node(..) => {}
            }
        }
    }

    fn input(&mut self, id: ValueId, input: &Input) {
        self.put(match input.kind {
            InputKind::Argument => "arg ",
            InputKind::Parameter => "param ",
            InputKind::Constant => "const ",
        });
        self.value(id);
        self.put(": ");
        self.ty(&self.graph.values[id].ty);
        if !input.source.is_empty() {
            self.put(" source ");
            self.string(&input.source);
        }
        if let Some(data) = &input.data {
            self.put(" = hex\"");
            self.out.reserve(2 * data.data().len() + 2);
            for &byte in data.data() {
                const DIGITS: &[u8; 16] = b"0123456789abcdef";
                self.out.push(char::from(DIGITS[usize::from(byte >> 4)]));
                self.out.push(char::from(DIGITS[usize::from(byte & 15)]));
            }
            self.put("\"");
        }
        self.put("\n");
    }

    fn node(&mut self, node: &Node) {
        for (i, &result) in node.outputs.iter().enumerate() {
            if i > 0 {
                self.put(", ");
            }
            self.value(result);
            self.put(": ");
            match self.graph.values.get(result) {
                Some(value) => self.ty(&value.ty),
                None => self.put("?"),
            }
        }
        self.put(" = ");
        self.put(op_name(&node.op));
        self.callee(&node.op);
        self.operands(node);
        self.attributes(&node.op);
        self.put("\n");
    }

    fn callee(&mut self, op: &Op) {
        match op {
            Op::Opaque { name, .. } => {
                self.put(" ");
                self.string(name);
            }
            Op::Custom(id) => {
                self.put(" ");
                match self.graph.customs.get(*id) {
                    Some(custom) => self.string(&custom.name),
                    None => self.put("?"),
                }
            }
            _ => {}
        }
    }

    fn operands(&mut self, node: &Node) {
        let scalar = match &node.op {
            Op::BinaryScalar { scalar, scalar_left, .. } => Some((*scalar, *scalar_left)),
            _ => None,
        };
        let mut between = " ";
        if let Some((scalar, true)) = scalar {
            self.show(format_args!(" {scalar}"));
            between = ", ";
        }
        for &operand in &node.inputs {
            self.put(between);
            self.value(operand);
            between = ", ";
        }
        if let Some((scalar, false)) = scalar {
            self.show(format_args!("{between}{scalar}"));
        }
    }

    fn attributes(&mut self, op: &Op) {
        match op {
            Op::Full(value) => self.show(format_args!(" value={value}")),
            Op::Iota { start, step } => self.show(format_args!(" start={start} step={step}")),
            Op::Reduce { op, axes, keep } => {
                self.show(format_args!(" op={op} axes="));
                self.list(axes, |p, axis| p.show(axis));
                self.show(format_args!(" keep={keep}"));
            }
            Op::ArgReduce { axis, keep, .. } => self.show(format_args!(" axis={axis} keep={keep}")),
            Op::Softmax { axis, log } => self.show(format_args!(" axis={axis} log={log}")),
            Op::RmsNorm { axes, eps, round_first } => {
                self.show(format_args!(" axes={axes} eps={eps} round_first={round_first}"));
            }
            Op::LayerNorm { axes, eps } => self.show(format_args!(" axes={axes} eps={eps}")),
            Op::Attention { scale, cap, bounds, sink } => {
                match bounds.is_empty() || attention::is_causal(bounds) {
                    true => self.show(format_args!(" causal={}", !bounds.is_empty())),
                    false => {
                        self.put(" bounds=");
                        self.list(bounds, Self::bound);
                    }
                }
                self.show(format_args!(" scale={scale}"));
                if let Some(cap) = cap {
                    self.show(format_args!(" cap={cap}"));
                }
                if *sink {
                    self.put(" sink=true");
                }
            }
            Op::Permuted { op, perm } => {
                self.attributes(op);
                self.put(" perm=");
                self.list(perm, |p, axis| p.show(axis));
            }
            Op::RotaryEmbedding { width, interleaved } => {
                self.show(format_args!(" width={width} interleaved={interleaved}"));
            }
            Op::CumSum { axis }
            | Op::Take { axis }
            | Op::Index { axis }
            | Op::GatherElements { axis }
            | Op::IndexAdd { axis }
            | Op::Concat { axis } => self.show(format_args!(" axis={axis}")),
            Op::ScatterElements { axis, combine } => {
                let combine = combine.map_or("none", |c| c.name());
                self.show(format_args!(" axis={axis} combine={combine}"));
            }
            Op::IndexPut { axis, accumulate } => {
                self.show(format_args!(" axis={axis} accumulate={accumulate}"));
            }
            Op::TopK { axis, largest } => self.show(format_args!(" axis={axis} largest={largest}")),
            Op::Sort { axis, descending } => self.show(format_args!(" axis={axis} descending={descending}")),
            Op::Pad { low, value } => {
                self.put(" low=");
                self.list(low, Self::dim);
                self.show(format_args!(" value={value}"));
            }
            Op::Permute { perm } => {
                self.put(" perm=");
                self.list(perm, |p, axis| p.show(axis));
            }
            Op::Slice { axis, start, step } => {
                self.show(format_args!(" axis={axis} start="));
                self.dim(start);
                self.show(format_args!(" step={step}"));
            }
            Op::Collective(collective) => self.collective(collective),
            Op::Opaque { attributes, .. } => {
                self.put(" attributes=");
                self.string(attributes);
            }
            Op::Unary(_)
            | Op::Binary(_)
            | Op::BinaryScalar { .. }
            | Op::Select
            | Op::Cast
            | Op::MatMul
            | Op::GroupedMatMul
            | Op::Reshape
            | Op::Expand
            | Op::Copy
            | Op::Custom(_) => {}
        }
    }

    fn bound(&mut self, bound: &Bound) {
        self.put(bound.side.name());
        if let Some(chunk) = bound.chunk {
            self.show(format_args!(" chunk {chunk} of"));
        }
        for (moves, word) in [(bound.row, " row +"), (bound.operand, " operand +")] {
            if moves {
                self.put(word);
            }
        }
        self.put(" (");
        self.dim(&bound.add);
        self.put(")");
    }

    fn collective(&mut self, collective: &Collective) {
        match &collective.kind {
            CollectiveKind::AllReduce(op) | CollectiveKind::ReduceScatter(op) => {
                self.show(format_args!(" op={op}"));
            }
            CollectiveKind::AllGather => {}
            CollectiveKind::AllToAll(Splits::Even) => self.put(" splits=even"),
            CollectiveKind::AllToAll(Splits::Device) => self.put(" splits=device"),
            CollectiveKind::Broadcast { root } => self.show(format_args!(" root={root}")),
            CollectiveKind::Permute { pairs } => {
                self.put(" pairs=");
                self.list(pairs, |p, (from, to)| p.show(format_args!("{from}->{to}")));
            }
        }
        self.put(" group=");
        self.group(collective.group);
        if let Some(variant) = collective.variant {
            self.show(format_args!(" via={variant}"));
        }
    }

    fn outputs(&mut self) {
        let graph = self.graph;
        self.put("\n");
        for output in &graph.outputs {
            match output.kind {
                OutputKind::Returned => self.put("return "),
                OutputKind::Mutates(input) => {
                    self.put("mutate ");
                    match graph.inputs.get(input) {
                        Some(input) => self.value(input.value),
                        None => self.put("%?"),
                    }
                    self.put(" = ");
                }
            }
            self.value(output.value);
            self.put("\n");
        }
    }
}
