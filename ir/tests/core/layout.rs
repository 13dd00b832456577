//! Layouts of views against the positions that the views read, element by element.

use proptest::prelude::*;
use symmc_ir::entity::Entity;
use symmc_ir::layout::{Layout, compute_layouts};
use symmc_ir::{
    DType, Dim, Graph, GraphBuilder, InputKind, Op, SymbolBindings, SymbolId, TensorType, ValueId,
};

/// The position in its base of each element of a value, in row-major order, by definition of the views.
fn positions(graph: &Graph, value: ValueId, bindings: &SymbolBindings) -> Option<Vec<usize>> {
    let shape = graph.ty(value).concrete_shape(bindings)?;
    let count: usize = shape.iter().product();
    let Some(node) = graph.defining_node(value) else { return Some((0..count).collect()) };
    let node = &graph.nodes[node];
    let from = positions(graph, node.inputs[0], bindings)?;
    let from_shape = graph.ty(node.inputs[0]).concrete_shape(bindings)?;
    let position_of = |index: &[usize]| from[index.iter().zip(&from_shape).fold(0, |n, (i, d)| n * d + i)];
    let each = |map: &dyn Fn(&[usize]) -> Vec<usize>| {
        Some(indices(&shape).iter().map(|i| position_of(&map(i))).collect())
    };
    match &node.op {
        Op::Reshape => Some(from),
        Op::Permute { perm } => each(&|index| {
            let mut out = vec![0; index.len()];
            perm.iter().zip(index).for_each(|(&p, &i)| out[p] = i);
            out
        }),
        Op::Slice { axis, start, step } => {
            let start = start.eval(bindings)?;
            each(&|index| {
                let mut out = index.to_vec();
                out[*axis] = (start + out[*axis] as i64 * step) as usize;
                out
            })
        }
        Op::Expand => each(&|index| {
            let tail = &index[index.len() - from_shape.len()..];
            tail.iter().zip(&from_shape).map(|(&i, &d)| if d == 1 { 0 } else { i }).collect()
        }),
        _ => None,
    }
}

fn indices(shape: &[usize]) -> Vec<Vec<usize>> {
    let mut out = vec![vec![]];
    for &d in shape {
        out = out.iter().flat_map(|i| (0..d).map(move |k| [i.as_slice(), &[k]].concat())).collect();
    }
    out
}

fn reads(layout: &Layout, shape: &[usize], bindings: &SymbolBindings) -> Option<Vec<usize>> {
    let offset = layout.offset.eval(bindings)?;
    let strides: Option<Vec<i64>> = layout.strides.iter().map(|s| s.eval(bindings)).collect();
    let strides = strides?;
    let position_of =
        |i: &Vec<usize>| offset + i.iter().zip(&strides).map(|(&i, s)| i as i64 * s).sum::<i64>();
    indices(shape).iter().map(|i| usize::try_from(position_of(i)).ok()).collect()
}

/// Whether some strides read these positions.
fn is_strided(positions: &[usize], shape: &[usize]) -> bool {
    let Some(&first) = positions.first() else { return true };
    let dense: Vec<usize> = (0..shape.len()).map(|a| shape[a + 1..].iter().product()).collect();
    let strides: Vec<i64> = (0..shape.len())
        .map(|a| if shape[a] > 1 { positions[dense[a]] as i64 - first as i64 } else { 0 })
        .collect();
    let expected =
        |i: &Vec<usize>| first as i64 + i.iter().zip(&strides).map(|(&i, s)| i as i64 * s).sum::<i64>();
    indices(shape).iter().zip(positions).all(|(i, &p)| expected(i) == p as i64)
}

/// A source of small decisions.
struct DecisionSource(Vec<u32>);

impl DecisionSource {
    fn below(&mut self, n: usize) -> usize {
        self.0.pop().unwrap_or(0) as usize % n.max(1)
    }
}

/// A chain of views over an input, as far as the choices reach.
fn chain(choices: &mut DecisionSource, with_symbols: bool) -> Graph {
    let mut b = GraphBuilder::new("views", Some(1));
    let n = Dim::from(b.symbol("n", 1, 4));
    let m = Dim::from(b.symbol("m", 2, 3));
    let extents = [Dim::from(1), Dim::from(2), Dim::from(3), Dim::from(4), n.clone(), m.clone(), n * m];
    let kinds = if with_symbols { extents.len() } else { 4 };
    let shape: Vec<Dim> = (0..1 + choices.below(4)).map(|_| extents[choices.below(kinds)].clone()).collect();
    let mut x = b.input(InputKind::Argument, "x", "", TensorType::new(DType::F32, shape), None);
    for _ in 0..1 + choices.below(5) {
        let shape = b.graph().ty(x).shape.clone();
        let axis = choices.below(shape.len());
        x = match choices.below(5) {
            0 => {
                let mut perm: Vec<usize> = (0..shape.len()).collect();
                perm.swap(axis, choices.below(shape.len()));
                perm.rotate_left(choices.below(shape.len()));
                b.op("permute", Op::Permute { perm }, &[x]).unwrap()
            }
            1 if !shape.is_empty() => {
                let step = 1 + choices.below(2) as i64;
                let mut sliced = shape.clone();
                sliced[axis] = shape[axis].floor_div(&Dim::from(step));
                let start = shape[axis].modulo(&Dim::from(step));
                let op = Op::Slice { axis, start, step };
                b.op_as("slice", op, &[x], TensorType::new(DType::F32, sliced)).unwrap()
            }
            2 => {
                let mut expanded: Vec<Dim> = shape;
                expanded
                    .iter_mut()
                    .filter(|d| d.as_const() == Some(1))
                    .for_each(|d| *d = extents[choices.below(kinds)].clone());
                expanded.insert(0, extents[choices.below(3)].clone());
                b.op_as("expand", Op::Expand, &[x], TensorType::new(DType::F32, expanded)).unwrap()
            }
            3 if shape.len() >= 2 => {
                let mut merged_shape = shape;
                let merged = merged_shape.remove(axis.min(merged_shape.len() - 2) + 1);
                let target = axis.min(merged_shape.len() - 1);
                merged_shape[target] = merged_shape[target].clone() * merged;
                b.reshape("merge", x, merged_shape).unwrap()
            }
            _ if !shape.is_empty() => {
                let factor = extents[1 + choices.below(kinds - 1)].clone();
                let mut split = shape;
                let Some(rest) = split[axis].exact_div(&factor) else { continue };
                split[axis] = factor;
                split.insert(axis + choices.below(2), rest);
                b.reshape("split", x, split).unwrap()
            }
            _ => continue,
        };
    }
    b.output(x);
    b.finish()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn views_read_the_elements_of_their_layout(choices in prop::collection::vec(any::<u32>(), 40), symbolic in any::<bool>()) {
        let graph = chain(&mut DecisionSource(choices), symbolic);
        let layouts = compute_layouts(&graph);
        for n in 1..=4 {
            for m in 2..=3 {
                let mut bindings = SymbolBindings::new();
                bindings.set(SymbolId::new(0), n);
                bindings.set(SymbolId::new(1), m);
                // Values after a copying reshape have another base; the check ends there.
                for (id, value) in graph.values.iter().take_while(|(id, _)| layouts[*id].base.index() == 0) {
                    let shape = value.ty.concrete_shape(&bindings).unwrap();
                    let expected = positions(&graph, id, &bindings).unwrap();
                    prop_assert_eq!(reads(&layouts[id], &shape, &bindings), Some(expected.clone()), "{:?}", graph);
                    let is_run = expected.windows(2).all(|w| w[1] == w[0] + 1);
                    prop_assert!(!layouts[id].is_contiguous(&value.ty) || is_run, "{:?}", graph);
                }
            }
        }
    }

    #[test]
    fn a_reshape_of_numbers_copies_only_where_it_must(choices in prop::collection::vec(any::<u32>(), 40)) {
        let graph = chain(&mut DecisionSource(choices), false);
        let layouts = compute_layouts(&graph);
        let bindings = SymbolBindings::new();
        let copy = graph.values.iter().find(|(id, _)| layouts[*id].base.index() != 0);
        if let Some((id, value)) = copy {
            let shape = value.ty.concrete_shape(&bindings).unwrap();
            let positions = positions(&graph, id, &bindings).unwrap();
            prop_assert!(positions.is_empty() || !is_strided(&positions, &shape), "{:?}", graph);
        }
    }
}

/// The layout of the last value of a program in text form.
fn layout_of(body: &str) -> String {
    let header = "program \"l\" ranks 1\nsymbol n in 1..=8\nsymbol m in 1..=8\n";
    let graph = symmc_ir::text::parse(&format!("{header}{body}\n")).unwrap();
    let (id, _) = graph.values.iter().next_back().unwrap();
    let layout = &compute_layouts(&graph)[id];
    if layout.base == id {
        return "base".into();
    }
    let show = |d: &Dim| d.display(&graph.symbols).to_string();
    let strides: Vec<String> = layout.strides.iter().map(show).collect();
    format!("%{} + {} [{}]", graph.value_name(layout.base), show(&layout.offset), strides.join(", "))
}

#[test]
fn symbolic_views() {
    for (body, expected) in [
        ("arg %x: f32[n, m]\n%v: f32[m, n] = permute %x perm=[1, 0]", "%x + 0 [1, m]"),
        ("arg %x: f32[n, m]\n%v: f32[n*m] = reshape %x", "%x + 0 [1]"),
        ("arg %x: f32[n*m]\n%v: f32[n, m] = reshape %x", "%x + 0 [m, 1]"),
        ("arg %x: f32[4*n, m]\n%v: f32[2, n, 2, m] = reshape %x", "%x + 0 [2*n*m, 2*m, m, 1]"),
        ("arg %x: f32[n, 8]\n%v: f32[1, 8] = slice %x axis=0 start=n - 1 step=1", "%x + 8*n - 8 [8, 1]"),
        (
            "arg %x: f32[n, 8]\n%s: f32[n, 2] = slice %x axis=1 start=1 step=4\n%v: f32[2*n] = reshape %s",
            "%x + 1 [4]",
        ),
        (
            "arg %x: f32[n, 8]\n%s: f32[n, 2] = slice %x axis=1 start=1 step=3\n%v: f32[2*n] = reshape %s",
            "base",
        ),
        ("arg %x: f32[n, m]\n%t: f32[m, n] = permute %x perm=[1, 0]\n%v: f32[n*m] = reshape %t", "base"),
        ("arg %x: f32[n]\n%e: f32[m, n] = expand %x\n%v: f32[m*n] = reshape %e", "base"),
        ("arg %x: f32[1]\n%e: f32[m, n] = expand %x\n%v: f32[m*n] = reshape %e", "%x + 0 [0]"),
        ("arg %x: f32[n, 1, m]\n%v: f32[n, m, 1] = reshape %x", "%x + 0 [m, 1, 1]"),
        ("arg %x: f32[]\n%v: f32[1, 1] = reshape %x", "%x + 0 [1, 1]"),
        ("arg %x: f32[0, 3]\n%v: f32[3, 0] = reshape %x", "base"),
        ("arg %x: f32[n]\n%v: f32[n] = copy %x", "base"),
    ] {
        assert_eq!(layout_of(body), expected, "{body}");
    }
}
