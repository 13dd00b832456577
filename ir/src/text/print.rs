//! Writes a graph in text form.
//!
//! Inputs and nodes are written in the order of their values, so that parsing assigns the same ids. Writing
//! never fails: an id that is in no table is written as `%?`, `@?` or `?`, which parsing rejects.

use super::forms::{op_name, write_attributes, write_kind};
use super::writer::TextWriter;
use crate::collective::CollectiveKind;
use crate::graph::{
    CustomOp, Graph, GraphInput, GroupDef, GroupMembers, InputKind, Node, OutputKind, ValueDef,
};
use crate::ids::ValueId;
use crate::op::Op;
use crate::quote::is_identifier;

pub fn print(graph: &Graph) -> String {
    let mut p =
        TextWriter { graph, out: String::with_capacity(128 * (graph.nodes.len() + graph.inputs.len())) };
    p.write_header();
    p.write_body();
    p.write_outputs();
    p.out
}

/// The attributes of a collective except its group and variant, each after a space.
pub fn collective_attributes(kind: &CollectiveKind) -> String {
    let graph = Graph::new("");
    let mut p = TextWriter { graph: &graph, out: String::new() };
    write_kind(kind, &mut p);
    p.out
}

impl TextWriter<'_> {
    fn write_header(&mut self) {
        let graph = self.graph;
        self.push_str("program ");
        self.push_string(&graph.name);
        match graph.ranks {
            Some(n) => self.push_display(format_args!(" ranks {n}\n")),
            None => self.push_str(" ranks ?\n"),
        }
        for symbol in graph.symbols.values() {
            self.push_str("symbol ");
            if is_identifier(&symbol.name) {
                self.push_str(&symbol.name)
            } else {
                self.push_string(&symbol.name)
            }
            self.push_display(format_args!(" in {}..={}", symbol.min, symbol.max));
            if let Some(alias) = &symbol.alias {
                self.push_str(" alias ");
                self.push_string(alias);
            }
            self.push_str("\n");
        }
        for group in graph.groups.values() {
            self.write_group(group);
        }
        for custom in graph.customs.values() {
            self.write_custom_op(custom);
        }
        self.push_str("\n");
    }

    fn write_group(&mut self, group: &GroupDef) {
        self.push_str("group ");
        self.push_name("@", &group.name);
        self.push_str(" ");
        match &group.members {
            GroupMembers::World => self.push_str("world"),
            GroupMembers::Cells(cells) => {
                self.push_list(cells, |p, cell| p.push_list(cell, |p, rank| p.push_display(rank)));
            }
        }
        self.push_str("\n");
    }

    fn write_custom_op(&mut self, custom: &CustomOp) {
        self.push_str("custom ");
        self.push_string(&custom.name);
        self.push_str(" symmetric operands ");
        self.push_list(&custom.symmetric_operands, |p, i| p.push_display(i));
        self.push_str(" results ");
        self.push_list(&custom.symmetric_results, |p, i| p.push_display(i));
        if let Some(group) = custom.group {
            self.push_str(" group ");
            self.push_group(group);
        }
        self.push_str("\n");
    }

    fn write_body(&mut self) {
        let graph = self.graph;
        let mut dispatches = graph.dispatches.iter().peekable();
        for (id, value) in graph.values.iter() {
            match value.def {
                ValueDef::Input(input) => {
                    if let Some(input) = graph.inputs.get(input) {
                        self.write_input(id, input);
                    }
                }
                ValueDef::Node(id, 0) => {
                    if let Some(dispatch) = dispatches.peek().filter(|d| d.first == id) {
                        self.push_display(format_args!("dispatch {} {{\n", dispatch.form));
                    }
                    if let Some(node) = graph.nodes.get(id) {
                        self.write_node(node);
                    }
                    if dispatches.next_if(|d| d.last == id).is_some() {
                        self.push_str("}\n");
                    }
                }
                ValueDef::Node(..) => {}
            }
        }
    }

    fn write_input(&mut self, id: ValueId, input: &GraphInput) {
        self.push_str(match input.kind {
            InputKind::Argument => "arg ",
            InputKind::Parameter => "param ",
            InputKind::Constant => "const ",
        });
        self.push_value(id);
        self.push_str(": ");
        self.push_type(&self.graph.values[id].ty);
        if !input.source.is_empty() {
            self.push_str(" source ");
            self.push_string(&input.source);
        }
        if let Some(data) = &input.data {
            self.push_str(" = hex\"");
            self.out.reserve(2 * data.data().len() + 2);
            for &byte in data.data() {
                const HEX_DIGITS: &[u8; 16] = b"0123456789abcdef";
                self.out.push(char::from(HEX_DIGITS[usize::from(byte >> 4)]));
                self.out.push(char::from(HEX_DIGITS[usize::from(byte & 15)]));
            }
            self.push_str("\"");
        }
        self.push_str("\n");
    }

    fn write_node(&mut self, node: &Node) {
        for (i, &result) in node.outputs.iter().enumerate() {
            if i > 0 {
                self.push_str(", ");
            }
            self.push_value(result);
            self.push_str(": ");
            match self.graph.values.get(result) {
                Some(value) => self.push_type(&value.ty),
                None => self.push_str("?"),
            }
        }
        self.push_str(" = ");
        self.push_str(op_name(&node.op));
        self.write_callee(&node.op);
        self.write_operands(node);
        write_attributes(&node.op, self);
        self.push_str("\n");
    }

    fn write_callee(&mut self, op: &Op) {
        match op {
            Op::Opaque { name, .. } => {
                self.push_str(" ");
                self.push_string(name);
            }
            Op::Custom(id) => {
                self.push_str(" ");
                match self.graph.customs.get(*id) {
                    Some(custom) => self.push_string(&custom.name),
                    None => self.push_str("?"),
                }
            }
            _ => {}
        }
    }

    fn write_operands(&mut self, node: &Node) {
        let scalar = match &node.op {
            Op::BinaryScalar { scalar, scalar_left, .. } => Some((*scalar, *scalar_left)),
            _ => None,
        };
        let mut between = " ";
        if let Some((scalar, true)) = scalar {
            self.push_display(format_args!(" {scalar}"));
            between = ", ";
        }
        for &operand in &node.inputs {
            self.push_str(between);
            self.push_value(operand);
            between = ", ";
        }
        if let Some((scalar, false)) = scalar {
            self.push_display(format_args!("{between}{scalar}"));
        }
    }

    fn write_outputs(&mut self) {
        let graph = self.graph;
        self.push_str("\n");
        for output in &graph.outputs {
            match output.kind {
                OutputKind::Returned => self.push_str("return "),
                OutputKind::Mutates(input) => {
                    self.push_str("mutate ");
                    match graph.inputs.get(input) {
                        Some(input) => self.push_value(input.value),
                        None => self.push_str("%?"),
                    }
                    self.push_str(" = ");
                }
                OutputKind::Length { .. } => self.push_str("length "),
            }
            self.push_value(output.value);
            if let OutputKind::Length { output, axis } = output.kind {
                self.push_display(format_args!(" output={output} axis={axis}"));
            }
            self.push_str("\n");
        }
    }
}
