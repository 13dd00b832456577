//! Names that the builder gives, and nodes that it refuses.

use symmc_ir::graph::InputKind;
use symmc_ir::{Builder, DType, Dim, Op, Type, UnaryOp};

fn f32s(n: i64) -> Type {
    Type::new(DType::F32, vec![Dim::from(n)])
}

#[test]
fn names_are_identifiers_and_unique() {
    let mut b = Builder::new("p", Some(1));
    let wanted = ["x", "x", "x.2", "x", "", "0", ".a", "a-b", "größe", "x"];
    let mut found = Vec::new();
    for name in wanted {
        let id = b.input(InputKind::Argument, name, "", f32s(2), None);
        found.push(b.graph().name_of(id).to_string());
    }
    assert_eq!(found, ["x", "x.2", "x.2.2", "x.3", "_", "_0", "_.a", "a_b", "gr__e", "x.4"]);
}

#[test]
fn results_beyond_the_first_carry_their_number() {
    let mut b = Builder::new("p", Some(1));
    let x = b.input(InputKind::Argument, "x", "", f32s(4), None);
    for expected in [["s", "s.1"], ["s.2", "s.1.2"]] {
        let results = b.node("s", Op::Sort { axis: 0, descending: true }, &[x]).unwrap();
        assert_eq!(results.iter().map(|&v| b.graph().name_of(v)).collect::<Vec<_>>(), expected);
    }
}

#[test]
fn a_continued_graph_keeps_its_names() {
    let mut b = Builder::new("p", Some(1));
    let x = b.input(InputKind::Argument, "x", "", f32s(4), None);
    let mut b = Builder::from_graph(b.finish());
    let y = b.op("x", Op::Unary(UnaryOp::Relu), &[x]).unwrap();
    assert_eq!(b.graph().name_of(y), "x.2");
}

#[test]
fn errors_name_the_node() {
    let mut b = Builder::new("p", Some(1));
    let x = b.input(InputKind::Argument, "x", "", f32s(4), None);
    let wrong = b.reshape("r", x, vec![Dim::from(5)]).unwrap_err();
    assert_eq!(wrong.to_string(), "%r: 4 elements do not fit [5]");
    let wrong = b.op("e", Op::Expand, &[x]).unwrap_err();
    assert_eq!(wrong.to_string(), "%e: the result type of this op must be declared");
    let wrong = b.op("n", Op::Unary(UnaryOp::Relu), &[]).unwrap_err();
    assert_eq!(wrong.to_string(), "%n: it takes 1 operands, found 0");
}
