//! The reference of the text form says what the code does.

use std::collections::BTreeSet;

use symmc_ir::infer::operand_counts;
use symmc_ir::op::{BinaryOp, Op, UnaryOp};
use symmc_ir::text::forms::{EXAMPLE_PRELUDE, forms};
use symmc_ir::text::{op_name, parse, print, reference};
use symmc_ir::verify::verify;

/// The program of all examples.
fn examples() -> String {
    let lines: Vec<&str> = forms().map(|form| form.example).collect();
    format!("{EXAMPLE_PRELUDE}{}\n\nreturn %copy\n", lines.join("\n"))
}

#[test]
fn examples_print_as_they_are_written() {
    let text = examples();
    let graph = parse(&text).unwrap_or_else(|e| panic!("{e}"));
    verify(&graph).unwrap_or_else(|v| panic!("{v:?}"));
    for (printed, written) in print(&graph).lines().zip(text.lines()) {
        assert_eq!(printed, written);
    }
    assert_eq!(print(&graph), text);
}

#[test]
fn each_op_has_one_form_and_example() {
    let names: Vec<&str> = forms().map(|form| form.name).collect();
    let unique: BTreeSet<&str> = names.iter().copied().collect();
    assert_eq!(unique.len(), names.len());
    let elementwise = UnaryOp::ALL.iter().map(|u| u.name()).chain(BinaryOp::ALL.iter().map(|b| b.name()));
    for name in elementwise {
        assert!(unique.contains(name), "{name} has no form");
    }
    let graph = parse(&examples()).unwrap();
    let used: BTreeSet<&str> = graph.nodes.values().map(|n| op_name(&n.op)).collect();
    assert_eq!(used, unique);
    for form in forms() {
        assert!(form.example.contains(&format!(" = {}", form.name)), "{} does not show itself", form.name);
    }
}

#[test]
fn ops_with_a_group_have_it_in_their_facts() {
    let graph = parse(&examples()).unwrap();
    let text = print(&graph);
    let groups: Vec<bool> =
        text.lines().filter(|line| line.contains(" = ")).map(|line| line.contains(" group=@")).collect();
    let facts: Vec<bool> = graph.nodes.values().map(|node| node.op.group().is_some()).collect();
    assert!(groups.ends_with(&facts) && facts.contains(&true));
    for node in graph.nodes.values() {
        assert_eq!(node.op.clone().group_mut().copied(), node.op.group(), "{}", op_name(&node.op));
    }
}

#[test]
fn operands_are_as_many_as_the_typing_rules_take() {
    let graph = parse(&examples()).unwrap();
    for form in forms() {
        let of_op = |op: &Op| op_name(op) == form.name;
        let counts = graph.nodes.values().filter(|n| of_op(&n.op)).map(|n| match n.op {
            // A scalar stands for one of the two.
            Op::BinaryScalar { .. } => (2, 2),
            _ => operand_counts(&n.op),
        });
        let taken_counts = counts.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))).unwrap();
        let operands: Vec<&str> = form.operands.split(", ").filter(|p| !p.is_empty()).collect();
        let min = operands.iter().filter(|p| !p.contains('?')).count();
        let max = if operands.iter().any(|p| p.ends_with('…')) { usize::MAX } else { operands.len() };
        assert_eq!((min, max), taken_counts, "{} ({})", form.name, form.operands);
    }
}

#[test]
fn the_first_program_of_the_reference_is_one() {
    let text = reference();
    let program = text.split("```text\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let graph = parse(program).unwrap_or_else(|e| panic!("{e}"));
    verify(&graph).unwrap_or_else(|v| panic!("{v:?}"));
}
