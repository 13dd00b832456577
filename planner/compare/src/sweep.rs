//! Sweeps over ops. A window of a value must equal the same positions of a run of the whole value.

use std::collections::{BTreeSet, HashMap};

use symmc_ir::interp::{Tolerance, compare};
use symmc_ir::{DType, SymbolBindings, Tensor, text};

use crate::axes::AxisSets;
use crate::concrete::{ConcreteRegion, RegionPrecision, RegionTemplate};
use crate::draw::{Draw, DrawChange, DrawKind, LeafDraws};
use crate::elements::ElementClass;
use crate::judge::run_region;
use crate::number::ValueNumbering;
use crate::region::{MAX_REGION_NODES, find_region};
use crate::windows::{AxisSpan, ValueWindow};

const HEAD: &str = "program \"p\" ranks 2\ngroup @w world\narg %x: f32[12, 16]\narg %y: f32[16, 12]\narg %r: f32[1, 16]\n\
    arg %g: f32[16]\narg %q: f32[2, 4, 12, 8]\narg %k: f32[2, 2, 10, 8]\narg %o: f32[2, 1, 10, 8]\narg %f: f32[2, 4, 10, 8]\n\
    arg %m: bool[12, 10]\narg %a: f32[4, 1, 10]\narg %p: i64[12, 1]\narg %i: i64[12, 3]\narg %c: f32[12, 8]\n";

/// Programs with one result each. They cover every op whose windows reach its operands, and some ops whose
/// windows do not.
const PROGRAMS: &[&str] = &[
    "%z: f32[12, 16] = add %x, %r",
    "%z: f32[12, 16] = mul %g, %x",
    "%e: f32[12, 16] = expand %r\n%z: f32[12, 16] = sub %x, %e",
    "%z: f32[12, 12] = matmul %x, %y",
    "%s: f32[12, 12] = matmul %x, %y\n%z: f32[12, 12] = softmax %s axis=1 log=false",
    "%z: f32[12, 16] = softmax %x axis=0 log=true",
    "%z: f32[16] = reduce %x op=sum axes=[0] keep=false",
    "%n: f32[12, 1] = reduce %x op=max axes=[1] keep=true\n%z: f32[12, 16] = sub %x, %n",
    "%z: i64[12] = argmax %x axis=1 keep=false",
    "%z: f32[12, 16] = cumsum %x axis=0",
    "%z: f32[12, 16], %j: i64[12, 16] = sort %x axis=1 descending=true",
    "%z: f32[12, 5], %j: i64[12, 5] = topk %x axis=1 largest=true",
    "%z: f32[12, 16] = rms_norm %x, %g axes=1 eps=1e-5 round_first=false",
    "%z: f32[12, 16] = layer_norm %x, %g, %g axes=1 eps=1e-5",
    "%z: f32[12, 8] = rotary_embedding %c, %c, %c width=8 interleaved=true",
    "%t: f32[16, 12] = permute %x perm=[1, 0]\n%z: f32[16, 12] = mul %t, %y",
    "%z: f32[5, 16] = slice %x axis=0 start=1 step=2",
    "%z: f32[24, 16] = concat %x, %x axis=0",
    "%z: f32[12, 32] = concat %x, %x axis=1",
    "%z: f32[6, 16] = shard %x axis=0 group=@w",
    "%z: f32[12, 8] = shard %x axis=1 group=@w",
    "%z: f32[14, 16] = pad %x low=[1, 0] value=3.0",
    "%t: f32[12, 4, 4] = reshape %x\n%z: f32[48, 4] = reshape %t",
    "%t: f32[3, 4, 16] = reshape %x\n%z: f32[3, 4, 16] = exp %t",
    "%t: f32[1, 12, 1, 16] = reshape %x\n%u: f32[12, 16, 1] = reshape %t\n%z: f32[12, 16, 1] = exp %u",
    "%t: f32[1, 12, 16] = reshape %x\n%u: f32[2, 12, 16] = all_gather %t group=@w\n%z: f32[2, 12, 16] = exp %u",
    "%z: f32[12, 3, 16] = take %x, %i axis=0",
    "%z: f32[12, 3] = gather_elements %x, %i axis=1",
    "%z: f32[12, 3] = gather_elements %x, %i axis=0",
    "%s: f32[3, 16] = slice %x axis=0 start=7 step=2\n%z: f32[3, 16] = exp %s",
    "%z: f32[16, 12, 3] = take %y, %i axis=1",
    "%z: f32[12, 16] = all_reduce %x op=sum group=@w",
    "%z: f32[24, 16] = all_gather %x group=@w",
    "%z: f32[6, 16] = reduce_scatter %x op=sum group=@w",
    "%z: f32[12, 16] = permute_ranks %x pairs=[0->1, 1->0] group=@w",
    "%u: i64[12] = iota start=3 step=2\n%v: i64[12, 1] = reshape %u\n%w: i64[12, 12] = sub %v, %u\n%z: i64[12, 12] = abs %w",
    "%z: f32[2, 4, 12, 8] = attention %q, %k, %k causal=true scale=0.5",
    "%z: f32[2, 4, 12, 8] = attention %q, %f, %f causal=true scale=0.5",
    "%z: f32[2, 4, 12, 8] = attention %q, %o, %o, %m causal=false scale=0.5",
    "%z: f32[2, 4, 12, 8] = attention %q, %f, %f, %a causal=false scale=0.5",
    "%z: f32[2, 4, 12, 8] = attention %q, %o, %o bounds=[below row + (1), from chunk 4 of row + (1)] scale=0.5",
    "%z: f32[2, 4, 12, 8] = attention %q, %f, %f, %p bounds=[below row + operand + (1)] scale=0.5",
    "%z: f32[2, 12, 4, 8] = attention %q, %f, %f causal=true scale=0.5 perm=[0, 2, 1, 3]",
];

fn at(
    source: &str,
    window: &dyn Fn(&[i64]) -> ValueWindow,
    precision: RegionPrecision,
) -> (ConcreteRegion, ConcreteRegion) {
    let graph = text::parse(source).unwrap_or_else(|e| panic!("{e}\n{source}"));
    let mut numbering = ValueNumbering::new(&graph, &graph);
    let mut program = numbering.add_program(&graph);
    for n in graph.nodes.keys() {
        numbering.number_node(&mut program, n);
    }
    let root = graph.outputs[0].value;
    let region = find_region(&program, root, MAX_REGION_NODES, |_| false).expect("a small region");
    let axes = AxisSets::new(&program, &region);
    let classes: BTreeSet<ElementClass> =
        region.leaves.iter().filter_map(|&v| Some(program.elements[v].as_ref()?.class)).collect();
    let class_numbers = classes.into_iter().zip(0..).collect();
    let template = RegionTemplate {
        program: &program,
        region: &region,
        axes,
        ranks: 2,
        replication: &HashMap::new(),
        class_numbers: &class_numbers,
    };
    let sizes = SymbolBindings::new();
    let shape = template.root_shape(&sizes).expect("numbers");
    let full = template.instantiate(&sizes, &vec![None; shape.len()], precision).expect("a program");
    (full, template.instantiate(&sizes, &window(&shape), precision).expect("a program"))
}

fn cut(tensor: &Tensor, window: &ValueWindow) -> Vec<f64> {
    let shape = tensor.shape();
    let inside = (0..tensor.numel()).filter(|&position| {
        let mut remaining = position;
        shape.iter().zip(window).rev().all(|(&extent, span)| {
            let index = (remaining % extent) as i64;
            remaining /= extent;
            span.is_none_or(|s| (s.start..s.start + s.count).contains(&index))
        })
    });
    inside.map(|i| tensor.get_f64(i)).collect()
}

#[test]
fn a_window_of_a_result_is_that_part_of_the_whole() {
    let mut tried = 0;
    for body in PROGRAMS {
        let source = format!("{HEAD}{body}\nreturn %z\n");
        for seed in 0..6u64 {
            let window = |shape: &[i64]| -> ValueWindow {
                let spans = shape.iter().enumerate().map(|(axis, &extent)| {
                    let salt = seed as i64 * 5 + axis as i64 * 3;
                    let start = salt % (extent - 1).max(1);
                    let count = (1 + salt % 3).min(extent - start);
                    // Some axes are whole.
                    (!(seed as usize + axis).is_multiple_of(3)).then_some(AxisSpan { start, count })
                });
                spans.collect()
            };
            let (full, windowed) = at(&source, &window, RegionPrecision::Typed);
            let drawing = LeafDraws::new([&full, &windowed]).expect("drawn");
            let [full, windowed] = [&full, &windowed].map(|concrete| {
                run_region(concrete, &drawing, Draw::new(DrawKind::Moderate, seed), DrawChange::default())
                    .unwrap_or_else(|e| panic!("{e}\n{}", text::print(&concrete.graph)))
            });
            for (full, windowed) in full.iter().zip(&windowed) {
                let shape: Vec<i64> = full.shape().iter().map(|&n| n as i64).collect();
                let expected = cut(full, &window(&shape));
                let expected = Tensor::from_f64(DType::F64, vec![expected.len()], &expected).expect("floats");
                let actual = windowed.to_f64();
                let actual = Tensor::from_f64(DType::F64, vec![actual.len()], &actual).expect("floats");
                let comparison = compare(&actual, &expected, Tolerance::absolute(1e-6));
                assert!(comparison.agrees(), "{body} at {:?}: {comparison}", window(&shape));
            }
            tried += 1;
        }
    }
    assert_eq!(tried, 6 * PROGRAMS.len());
}
