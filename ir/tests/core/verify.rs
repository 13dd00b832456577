//! One mutation of a valid graph for each way to break an invariant yields exactly that violation.

use std::sync::Arc;

use symmc_ir::entity::Entity;
use symmc_ir::text::parse;
use symmc_ir::verify::{Invariant, verify};
use symmc_ir::{
    CollectiveVariant, CustomId, DType, Dim, Graph, GroupId, GroupMembers, InputId, NodeId, Op, OutputKind,
    SymbolId, Tensor, TensorType, ValueDef, ValueId,
};

const BASE: &str = r#"program "base" ranks 4
symbol n in 2..=64
group @pairs [[0, 1], [2, 3]]
custom "c" symmetric operands [1] results [0] group @pairs

arg %x: f32[n, 8]
param %w: f32[n, 8] source "w"
const %c: bool[2] = hex"0100"
%relu: f32[n, 8] = relu %x
%sort: f32[n, 8], %positions: i64[n, 8] = sort %relu axis=1 descending=true
%slice: f32[n - 1, 8] = slice %sort axis=0 start=1 step=1
%reduce: f32[n, 8] = all_reduce %relu op=sum group=@pairs via=one_shot
%narrow: f32[n, 1] = full value=0.0
%topk: f32[n, 2], %topk.1: i64[n, 2] = topk %x axis=1 largest=true
%index: i64[n, 3] = full value=0
%gather: f32[n, 3] = gather_elements %x, %index axis=1
%custom: f32[8] = custom "c" %x, %w

return %slice
mutate %w = %reduce
"#;

fn base() -> Graph {
    let graph = parse(BASE).unwrap();
    assert_eq!(verify(&graph), Ok(()));
    graph
}

fn value(graph: &Graph, name: &str) -> ValueId {
    graph.values_by_name()[name]
}

fn node(graph: &Graph, name: &str) -> NodeId {
    graph.defining_node(value(graph, name)).unwrap()
}

/// Applies a mutation and expects one violation with this text, which follows the number of its invariant.
fn assert_one_violation(expected: &str, mutate: impl FnOnce(&mut Graph)) {
    let mut graph = base();
    mutate(&mut graph);
    let violations: Vec<String> = match verify(&graph) {
        Ok(()) => vec![],
        Err(violations) => violations.iter().map(|v| format!("I{} {v}", v.invariant as u8)).collect(),
    };
    assert_eq!(violations, [expected]);
}

fn set_type(graph: &mut Graph, name: &str, ty: &str) {
    let header = "program \"t\" ranks 1\nsymbol n in 1..=2\narg %x: ";
    let parsed = parse(&format!("{header}{ty}\n")).unwrap();
    let id = value(graph, name);
    graph.values[id].ty = parsed.values[ValueId::new(0)].ty.clone();
}

#[test]
fn ids() {
    assert_one_violation("I1 %relu (relu): value %v99 is out of range: the graph has 14 values", |g| {
        let n = node(g, "relu");
        g.nodes[n].inputs[0] = ValueId::new(99);
    });
    assert_one_violation("I1 %relu: expected a definition in the graph, found result 1 of n0", |g| {
        let v = value(g, "relu");
        g.values[v].def = ValueDef::Node(NodeId::new(0), 1);
    });
    assert_one_violation("I1 %x: symbol sym7 is out of range: the graph has 1 symbol", |g| {
        let v = value(g, "x");
        g.values[v].ty.shape[0] = Dim::from(SymbolId::new(7));
    });
    assert_one_violation("I1 in1: value %v99 is out of range: the graph has 14 values", |g| {
        g.inputs[InputId::new(1)].value = ValueId::new(99);
    });
    assert_one_violation("I1 custom \"c\": group @g1 is out of range: the graph has 1 group", |g| {
        g.customs[CustomId::new(0)].group = Some(GroupId::new(1));
    });
    assert_one_violation("I1 %reduce (all_reduce): group @g1 is out of range: the graph has 1 group", |g| {
        let n = node(g, "reduce");
        let Op::Collective(c) = &mut g.nodes[n].op else { panic!() };
        c.group = GroupId::new(1);
    });
    assert_one_violation(
        "I1 %custom (custom): custom op custom3 is out of range: the graph has 1 custom op",
        |g| {
            let n = node(g, "custom");
            g.nodes[n].op = Op::Custom(CustomId::new(3));
        },
    );
    assert_one_violation("I1 %slice (slice): symbol sym2 is out of range: the graph has 1 symbol", |g| {
        let n = node(g, "slice");
        g.nodes[n].op = Op::Slice { axis: 0, start: Dim::from(SymbolId::new(2)), step: 1 };
    });
    assert_one_violation("I1 output 0: value %v14 is out of range: the graph has 14 values", |g| {
        g.outputs[0].value = ValueId::new(14)
    });
    assert_one_violation("I1 output 1: input in3 is out of range: the graph has 3 inputs", |g| {
        g.outputs[1].kind = OutputKind::Mutates(InputId::new(3));
    });
}

#[test]
fn definitions() {
    assert_one_violation("I2 %x: expected its definition to be in1, found in0", |g| {
        g.inputs[InputId::new(1)].value = value(g, "x");
    });
    assert_one_violation(
        "I2 %sort (sort): expected %positions to be its result 1, found result 0 of n1",
        |g| {
            let v = value(g, "positions");
            g.values[v].def = ValueDef::Node(NodeId::new(1), 0);
        },
    );
    assert_one_violation("I2 %w: expected the next definition in order, found in1", |g| {
        let (x, w) = (value(g, "x"), value(g, "w"));
        let (a, b) = (g.values[x].clone(), g.values[w].clone());
        (g.values[x], g.values[w]) = (b, a);
        g.inputs[InputId::new(0)].value = w;
        g.inputs[InputId::new(1)].value = x;
    });
    assert_one_violation("I2 n9 (opaque): expected a result, found none", |g| {
        let opaque = Op::Opaque { name: String::new(), attributes: String::new() };
        g.add_node(opaque, vec![], vec![]);
    });
}

#[test]
fn order() {
    assert_one_violation("I3 %relu (relu): expected operands that are defined earlier, found %reduce", |g| {
        let n = node(g, "relu");
        g.nodes[n].inputs[0] = value(g, "reduce");
    });
    assert_one_violation("I3 %relu (relu): expected operands that are defined earlier, found %relu", |g| {
        let n = node(g, "relu");
        g.nodes[n].inputs[0] = value(g, "relu");
    });
}

#[test]
fn names() {
    let rename = |old: &'static str, new: &'static str| {
        move |g: &mut Graph| {
            let v = value(g, old);
            g.values[v].name = new.into();
        }
    };
    assert_one_violation("I4 %x: expected a unique name, found a duplicate", rename("relu", "x"));
    assert_one_violation("I4 %a b: expected an identifier, found \"a b\"", rename("relu", "a b"));
    assert_one_violation("I4 %: expected an identifier, found \"\"", rename("relu", ""));
    assert_one_violation("I4 %0: expected an identifier, found \"0\"", rename("relu", "0"));
    assert_one_violation("I4 symbol é: expected an identifier, found \"é\"", |g| {
        g.symbols[SymbolId::new(0)].name = "é".into()
    });
    assert_one_violation("I4 @: expected a name, found \"\"", |g| {
        g.groups[GroupId::new(0)].name = String::new()
    });
    assert_one_violation("I4 @pairs: expected a unique name, found a duplicate", |g| {
        let group = g.groups[GroupId::new(0)].clone();
        g.groups.push(group);
    });
    assert_one_violation("I4 custom c: expected a unique name, found a duplicate", |g| {
        let custom = g.customs[CustomId::new(0)].clone();
        g.customs.push(custom);
    });
}

#[test]
fn program() {
    let world = |g: &mut Graph| g.groups[GroupId::new(0)].members = GroupMembers::World;
    assert_one_violation("I5 ranks: expected 1 to 1024, found 0", |g| {
        world(g);
        g.ranks = Some(0);
    });
    assert_one_violation("I5 ranks: expected 1 to 1024, found 1025", |g| {
        world(g);
        g.ranks = Some(1025);
    });
    let cells = |cells: &[&[u32]]| {
        let cells: Vec<Vec<u32>> = cells.iter().map(|c| c.to_vec()).collect();
        move |g: &mut Graph| g.groups[GroupId::new(0)].members = GroupMembers::Cells(cells)
    };
    assert_one_violation("I6 @pairs: expected cells of 1 ranks, found [1, 2, 3]", cells(&[&[0], &[1, 2, 3]]));
    assert_one_violation(
        "I6 @pairs: expected cells that cover all 4 ranks, found 2 ranks",
        cells(&[&[0, 1]]),
    );
    assert_one_violation("I6 @pairs: expected cells that cover all 4 ranks, found 0 ranks", cells(&[]));
    assert_one_violation("I6 @pairs: expected cells of 1 ranks, found []", cells(&[&[], &[]]));
    assert_one_violation(
        "I6 @pairs: expected each rank once, found rank 1 twice",
        cells(&[&[0, 1], &[1, 2]]),
    );
    assert_one_violation("I6 @pairs: expected ranks below 4, found rank 4", cells(&[&[0, 1], &[2, 4]]));
    let range = |min, max| {
        move |g: &mut Graph| {
            let n = &mut g.symbols[SymbolId::new(0)];
            (n.min, n.max) = (min, max);
        }
    };
    let expected = "I7 symbol n: expected a range within 0..=1099511627776 that is not empty, found";
    assert_one_violation(&format!("{expected} 9..=8"), range(9, 8));
}

#[test]
fn symbols_within_limits() {
    for (min, max) in [(-1, 8), (1, (1 << 40) + 1)] {
        let mut g = parse("program \"s\" ranks 1\nsymbol n in 0..=1\n").unwrap();
        (g.symbols[SymbolId::new(0)].min, g.symbols[SymbolId::new(0)].max) = (min, max);
        let violations = verify(&g).unwrap_err();
        assert!(violations.len() == 1 && violations[0].invariant == Invariant::Symbols, "{violations:?}");
    }
}

#[test]
fn dims_and_sizes() {
    let add = |ty: &'static str| {
        move |g: &mut Graph| {
            g.add_input(symmc_ir::InputKind::Argument, "new", "", TensorType::new(DType::F32, vec![]), None);
            set_type(g, "new", ty);
        }
    };
    let extent = |axis| format!("I8 %new: expected an extent of axis {axis} from 0 to 1099511627776, found");
    assert_one_violation(&format!("{} n - 3 from -1 to 61", extent(0)), add("u8[n - 3]"));
    assert_one_violation(
        &format!("{} 1099511627777 from 1099511627777 to 1099511627777", extent(1)),
        add("u8[0, 1099511627777]"),
    );
    assert_one_violation(
        "I9 %new: expected at most 70368744177664 bytes, found up to 79164837199872 as f64[9, 1099511627776]",
        add("f64[9, 1099511627776]"),
    );
    assert_one_violation("I8 %new: expected at most 64 axes, found 65", |g| {
        g.add_input(
            symmc_ir::InputKind::Argument,
            "new",
            "",
            TensorType::new(DType::F32, vec![Dim::from(1); 65]),
            None,
        );
    });
    assert_one_violation(
        "I8 %new: expected at most 1024 terms in the number of elements, found up to 2048",
        |g| {
            let dim = Dim::from(SymbolId::new(0)) + Dim::from(1);
            g.add_input(
                symmc_ir::InputKind::Argument,
                "new",
                "",
                TensorType::new(DType::F32, vec![dim; 11]),
                None,
            );
        },
    );
    let deep =
        (0..33).fold(Dim::from(SymbolId::new(0)), |d, i| (d + Dim::from(1)).modulo(&Dim::from(64 + i)));
    assert_one_violation("I8 %new: expected an extent of at most 32 nested functions, found 33", |g| {
        g.add_input(symmc_ir::InputKind::Argument, "new", "", TensorType::new(DType::F32, vec![deep]), None);
    });
    let large = (0..257).fold(Dim::from(1), |d, _| d * Dim::from(SymbolId::new(0)));
    assert_one_violation("I8 %slice (slice): expected an extent of at most 256 factors, found 257", |g| {
        let n = node(g, "slice");
        g.nodes[n].op = Op::Slice { axis: 0, start: large, step: 1 };
    });
    assert_one_violation(
        "I8 %slice (slice): expected a dim of magnitude at most 1099511627776, found 1099511627777*n from 2199023255554 to 70368744177728",
        |g| {
            let n = node(g, "slice");
            g.nodes[n].op =
                Op::Slice { axis: 0, start: Dim::from(SymbolId::new(0)) * Dim::from((1 << 40) + 1), step: 1 };
        },
    );
}

#[test]
fn typing() {
    assert_one_violation("I10 %relu (relu): the result must be f32[n, 8], found bf16[n, 8]", |g| {
        set_type(g, "relu", "bf16[n, 8]");
        let users: Vec<NodeId> = g.users()[value(g, "relu")].clone();
        for user in users {
            let x = value(g, "x");
            g.nodes[user].inputs[0] = x;
        }
    });
}

#[test]
fn constants() {
    let data =
        |data: Option<Tensor>| move |g: &mut Graph| g.inputs[InputId::new(2)].data = data.map(Arc::new);
    assert_one_violation("I11 %c: expected the data of the constant, found none", data(None));
    assert_one_violation(
        "I11 %c: expected data of type bool[2], found u8[2]",
        data(Tensor::zeros(DType::U8, [2])),
    );
    assert_one_violation(
        "I11 %c: expected data of type bool[2], found bool[1, 2]",
        data(Tensor::zeros(DType::Bool, [1, 2])),
    );
    assert_one_violation(
        "I11 %c: expected bools stored as 0 or 1, found 2",
        data(Tensor::new(DType::Bool, [2], vec![1, 2])),
    );
    assert_one_violation("I11 %c: expected data of type bool[n], found bool[2]", |g| {
        set_type(g, "c", "bool[n]")
    });
    assert_one_violation(
        "I11 %w: expected no data, because only constants have data, found data of in1",
        |g| {
            g.inputs[InputId::new(1)].data = Tensor::zeros(DType::F32, [2, 8]).map(Arc::new);
        },
    );
}

#[test]
fn outputs() {
    assert_one_violation("I12 output 1: expected f32[n, 8] of %w, found f32[n - 1, 8]", |g| {
        g.outputs[1].value = value(g, "slice")
    });
    assert_one_violation(
        "I12 output 1: expected an argument or a parameter to mutate, found constant %c",
        |g| {
            g.outputs[1].kind = OutputKind::Mutates(InputId::new(2));
            g.outputs[1].value = value(g, "c");
        },
    );
    assert_one_violation("I12 output 2: expected one mutation of %w, found two", |g| {
        let duplicate = g.outputs[1].clone();
        g.outputs.push(duplicate);
    });
}

#[test]
fn variants_and_custom_ops() {
    assert_one_violation(
        "I13 %reduce (all_reduce): expected a variant that supports the collective, found push",
        |g| {
            let n = node(g, "reduce");
            let Op::Collective(c) = &mut g.nodes[n].op else { panic!() };
            c.variant = Some(CollectiveVariant::Push);
        },
    );
    assert_one_violation(
        "I13 %reduce (all_reduce): expected a variant that supports the collective, found put",
        |g| {
            let n = node(g, "reduce");
            let Op::Collective(c) = &mut g.nodes[n].op else { panic!() };
            c.variant = Some(CollectiveVariant::Put);
        },
    );
    assert_one_violation(
        "I14 %custom (custom): expected operand 2, which \"c\" declares symmetric, found none",
        |g| {
            g.customs[CustomId::new(0)].symmetric_operands = vec![0, 2];
        },
    );
    assert_one_violation(
        "I14 %custom (custom): expected result 1, which \"c\" declares symmetric, found none",
        |g| {
            g.customs[CustomId::new(0)].symmetric_results = vec![1];
        },
    );
}

#[test]
fn bounds() {
    let slice = |start: i64, step: i64| {
        move |g: &mut Graph| {
            let n = node(g, "slice");
            g.nodes[n].op = Op::Slice { axis: 0, start: Dim::from(start), step };
        }
    };
    let expected = "I15 %slice (slice): expected positions from 0 to below n, found";
    assert_one_violation(&format!("{expected} 2 to n"), slice(2, 1));
    assert_one_violation(&format!("{expected} -1 to n - 3"), slice(-1, 1));
    assert_one_violation("I15 %topk (topk): expected at most 1 elements, found 2", |g| {
        let n = node(g, "topk");
        g.nodes[n].inputs[0] = value(g, "narrow");
    });
    assert_one_violation("I15 %gather (gather_elements): expected at most n elements, found n + 1", |g| {
        set_type(g, "index", "i64[n + 1, 3]");
        set_type(g, "gather", "f32[n + 1, 3]");
    });
}

#[test]
fn all_violations_are_reported() {
    let mut g = base();
    g.symbols[SymbolId::new(0)].min = 65;
    g.outputs[1].value = value(&g, "slice");
    let invariants: Vec<Invariant> = verify(&g).unwrap_err().iter().map(|v| v.invariant).collect();
    assert_eq!(invariants, [Invariant::Symbols, Invariant::Outputs]);
}
