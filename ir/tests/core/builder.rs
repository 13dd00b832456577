//! Names that the builder gives, and nodes that it refuses.

use symmc_ir::entity::Entity;
use symmc_ir::{
    CollectiveKind, CustomId, DType, Dim, GraphBuilder, GroupId, GroupMembers, InputKind, Op, SymbolId,
    TensorType, UnaryOp, ValueId, verify,
};

fn f32s(n: i64) -> TensorType {
    TensorType::new(DType::F32, vec![Dim::from(n)])
}

#[test]
fn names_are_identifiers_and_unique() {
    let mut b = GraphBuilder::new("p", Some(1));
    let wanted = ["x", "x", "x.2", "x", "", "0", ".a", "a-b", "größe", "x"];
    let mut names = Vec::new();
    for name in wanted {
        let id = b.input(InputKind::Argument, name, "", f32s(2), None);
        names.push(b.graph().value_name(id).to_string());
    }
    assert_eq!(names, ["x", "x.2", "x.2.2", "x.3", "_", "_0", "_.a", "a_b", "gr__e", "x.4"]);
}

#[test]
fn results_beyond_the_first_carry_their_number() {
    let mut b = GraphBuilder::new("p", Some(1));
    let x = b.input(InputKind::Argument, "x", "", f32s(4), None);
    for expected in [["s", "s.1"], ["s.2", "s.1.2"]] {
        let results = b.node("s", Op::Sort { axis: 0, descending: true }, &[x]).unwrap();
        assert_eq!(results.iter().map(|&v| b.graph().value_name(v)).collect::<Vec<_>>(), expected);
    }
}

#[test]
fn a_continued_graph_keeps_its_names() {
    let mut b = GraphBuilder::new("p", Some(1));
    let x = b.input(InputKind::Argument, "x", "", f32s(4), None);
    let mut b = GraphBuilder::from_graph(b.finish());
    let y = b.op("x", Op::Unary(UnaryOp::Relu), &[x]).unwrap();
    assert_eq!(b.graph().value_name(y), "x.2");
}

#[test]
fn errors_name_the_node() {
    let mut b = GraphBuilder::new("p", Some(1));
    let x = b.input(InputKind::Argument, "x", "", f32s(4), None);
    let wrong = b.reshape("r", x, vec![Dim::from(5)]).unwrap_err();
    assert_eq!(wrong.to_string(), "%r: 4 elements do not fit [5]");
    let wrong = b.op("e", Op::Expand, &[x]).unwrap_err();
    assert_eq!(wrong.to_string(), "%e: the result type of this op must be declared");
    let wrong = b.op("n", Op::Unary(UnaryOp::Relu), &[]).unwrap_err();
    assert_eq!(wrong.to_string(), "%n: it takes 1 operands, found 0");
}

#[test]
fn ids_of_another_graph_are_an_error() {
    let mut b = GraphBuilder::new("p", Some(2));
    b.group("all", GroupMembers::World);
    let x = b.input(InputKind::Argument, "x", "", f32s(4), None);
    let (value, group) = (ValueId::new(7), GroupId::new(1));
    let gather = b.collective("g", CollectiveKind::AllGather, group, &[x]).unwrap_err();
    assert_eq!(gather.to_string(), "%g: group @g1 is out of range: the graph has 1 group");
    let errors = [
        b.collective("g", CollectiveKind::AllGather, GroupId::new(0), &[value]).unwrap_err(),
        b.node("n", Op::Unary(UnaryOp::Relu), &[value]).unwrap_err(),
        b.op("n", Op::Concat { axis: 0 }, &[x, value]).unwrap_err(),
        b.node_as("n", Op::Custom(CustomId::new(0)), &[x], vec![f32s(4)]).unwrap_err(),
        b.op_as("n", Op::Cast, &[value], f32s(4)).unwrap_err(),
        b.reshape("n", value, vec![Dim::from(4)]).unwrap_err(),
        b.rename(value, "n").unwrap_err(),
    ];
    assert!(errors.iter().all(|e| e.message.contains("is out of range: the graph has")), "{errors:?}");
    // Without an error of the builder's the verifier finds it.
    let symbol = Dim::from(SymbolId::new(3));
    for wrong in 0..3 {
        let mut b = GraphBuilder::from_graph(b.graph().clone());
        match wrong {
            0 => b.output(value),
            1 => {
                b.input(
                    InputKind::Argument,
                    "y",
                    "",
                    TensorType::new(DType::F32, vec![symbol.clone()]),
                    None,
                );
            }
            _ => {
                let start = Op::Slice { axis: 0, start: symbol.clone(), step: 1 };
                b.op_as("s", start, &[x], f32s(1)).expect("the verifier's");
            }
        }
        assert!(verify::verify(&b.finish()).is_err(), "{wrong}");
    }
}
