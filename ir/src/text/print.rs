//! Writes a graph in text form.
//!
//! Inputs and nodes are written in the order of their values, so that reading numbers them alike. Writing
//! never fails: an id that is in no table is written as `%?`, `@?` or `?`, which reading refuses.

use super::forms::{op_name, write_attributes, write_kind};
use super::quote::is_identifier;
use super::writer::Writer;
use crate::collective::CollectiveKind;
use crate::graph::{CustomOp, Def, Graph, Group, Input, InputKind, Members, Node, OutputKind};
use crate::ids::ValueId;
use crate::op::Op;

pub fn print(graph: &Graph) -> String {
    let mut p = Writer { graph, out: String::with_capacity(128 * (graph.nodes.len() + graph.inputs.len())) };
    p.header();
    p.body();
    p.outputs();
    p.out
}

/// The attributes of a collective as they follow its operands, each after a space, except its group and variant.
pub fn collective_attributes(kind: &CollectiveKind) -> String {
    let graph = Graph::new("");
    let mut p = Writer { graph: &graph, out: String::new() };
    write_kind(kind, &mut p);
    p.out
}

impl Writer<'_> {
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
        write_attributes(&node.op, self);
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
