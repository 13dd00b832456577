//! Reductions of gathered shards: every spelling of a gathered value with every reader computes the same
//! before and after the pass. Groups have all sizes and orders, and values have ties, NaN, infinities and
//! zeros of both signs.

use std::fmt::Write as _;
use std::sync::Arc;

use symmc_ir::interp;
use symmc_ir::{DType, Dim, Graph, InputKind, Node, SymbolBindings, Tensor, text};
use symmc_passes::canon::shards::{JudgedSizes, ShardsConfig, WORTH_A_COLLECTIVE, reduce_shards};
use symmc_passes::{canonical_forms, canonicalize};
use symmc_support::random::SplitMix;

/// The rows that are reduced, and the extent of a shard.
const ROWS: i64 = 3;
const EXTENT: i64 = 512;

/// Groups of ranks: the number of ranks, the members, and the size of a cell.
const GROUPS: [(u32, &str, i64); 7] = [
    (2, "world", 2),
    (3, "world", 3),
    (4, "world", 4),
    (4, "[[0, 2], [3, 1]]", 2),
    (4, "[[3, 0, 2, 1]]", 4),
    (8, "world", 8),
    // More ranks than are compared one by one.
    (12, "world", 12),
];

const SPELLINGS: [&str; 6] = ["rows", "permuted", "slices", "stacked", "three axes", "transposed"];

/// The number of axes of the gathered value `%v` of each spelling, and the axis of its shards.
fn axes_of(spelling: &str) -> (usize, usize) {
    match spelling {
        "rows" => (2, 0),
        "three axes" => (3, 2),
        _ => (2, 1),
    }
}

/// The extents of the gathered value, as text, with this one at the axis of the shards.
fn shape(spelling: &str, at_axis: i64) -> Vec<i64> {
    let (rank, axis) = axes_of(spelling);
    let mut shape = vec![ROWS; rank];
    if rank == 3 {
        shape[0] = 2;
    }
    shape[axis] = at_axis;
    shape
}

fn extent_list(shape: &[i64]) -> String {
    shape.iter().map(i64::to_string).collect::<Vec<_>>().join(", ")
}

/// The text of a program up to the gathered value `%v`.
fn prelude(spelling: &str, dtype: &str, (ranks, members, n): (u32, &str, i64)) -> String {
    let mut out = format!("program \"p\" ranks {ranks}\ngroup @g {members}\n");
    let (b, s) = (ROWS, EXTENT);
    let (own, rows) = match spelling {
        "rows" | "transposed" => (format!("{s}, {b}"), n * s),
        "three axes" => (format!("2, {b}, {s}"), n * 2),
        _ => (format!("{b}, {s}"), n * b),
    };
    let tail = own.split_once(", ").unwrap().1;
    writeln!(out, "arg %x: {dtype}[{own}]").unwrap();
    writeln!(out, "arg %t: i64[{}]", extent_list(&shape(spelling, 2))).unwrap();
    writeln!(out, "arg %r: {dtype}[{}]", extent_list(&shape(spelling, 1))).unwrap();
    writeln!(out, "arg %q: i64[3]\narg %s: i64[]").unwrap();
    writeln!(out, "arg %u: i32[{}]", extent_list(&shape(spelling, 1))).unwrap();
    let name = if spelling == "rows" { "v" } else { "g" };
    writeln!(out, "%{name}: {dtype}[{rows}, {tail}] = all_gather %x group=@g").unwrap();
    let total = n * s;
    match spelling {
        "permuted" => {
            writeln!(out, "%h: {dtype}[{n}, {b}, {s}] = reshape %g").unwrap();
            writeln!(out, "%i: {dtype}[{b}, {n}, {s}] = permute %h perm=[1, 0, 2]").unwrap();
            writeln!(out, "%v: {dtype}[{b}, {total}] = reshape %i").unwrap();
        }
        "slices" | "stacked" => {
            let is_stacked = spelling == "stacked";
            if is_stacked {
                writeln!(out, "%h: {dtype}[{n}, {b}, {s}] = reshape %g").unwrap();
            }
            for i in 0..n {
                if is_stacked {
                    writeln!(out, "%q{i}: {dtype}[1, {b}, {s}] = slice %h axis=0 start={i} step=1").unwrap();
                    writeln!(out, "%p{i}: {dtype}[{b}, {s}] = reshape %q{i}").unwrap();
                } else {
                    let start = i * b;
                    writeln!(out, "%p{i}: {dtype}[{b}, {s}] = slice %g axis=0 start={start} step=1").unwrap();
                }
            }
            let pieces = (0..n).map(|i| format!("%p{i}")).collect::<Vec<_>>().join(", ");
            writeln!(out, "%v: {dtype}[{b}, {total}] = concat {pieces} axis=1").unwrap();
        }
        "three axes" => {
            writeln!(out, "%h: {dtype}[{n}, 2, {b}, {s}] = reshape %g").unwrap();
            writeln!(out, "%i: {dtype}[2, {b}, {n}, {s}] = permute %h perm=[1, 2, 0, 3]").unwrap();
            writeln!(out, "%v: {dtype}[2, {b}, {total}] = reshape %i").unwrap();
        }
        "transposed" => writeln!(out, "%v: {dtype}[{b}, {total}] = permute %g perm=[1, 0]").unwrap(),
        _ => {}
    }
    out
}

/// The readers of a gathered value, as text. `V` stands for its type, `A` for its axis, `K` and `W` for its
/// type with another extent, `R` for its type with one row, `N` for its extent, and `D` for its dtype.
struct GatherReader {
    name: &'static str,
    /// Lines of the program; the results that are returned are `%y` and `%z`.
    lines: &'static [&'static str],
    takes: fn(DType) -> bool,
    /// Whether sums of floats are added in another order.
    sums: bool,
}

fn any(_: DType) -> bool {
    true
}

fn number(dtype: DType) -> bool {
    dtype != DType::Bool
}

const fn exact(name: &'static str, takes: fn(DType) -> bool, lines: &'static [&'static str]) -> GatherReader {
    GatherReader { name, lines, takes, sums: false }
}

const fn summed(
    name: &'static str,
    takes: fn(DType) -> bool,
    lines: &'static [&'static str],
) -> GatherReader {
    GatherReader { name, lines, takes, sums: true }
}

const READERS: &[GatherReader] = &[
    exact("argmax", any, &["%y: K[i64, 1] = argmax %v axis=A keep=true"]),
    exact("argmin", any, &["%y: K[i64, 1] = argmin %v axis=A keep=true"]),
    exact("max", any, &["%y: K[D, 1] = reduce %v op=max axes=[A] keep=true"]),
    exact("min", any, &["%y: K[D, 1] = reduce %v op=min axes=[A] keep=true"]),
    exact("any", any, &["%y: K[bool, 1] = reduce %v op=any axes=[A] keep=true"]),
    exact("all", any, &["%y: K[bool, 1] = reduce %v op=all axes=[A] keep=true"]),
    exact(
        "argmax of scaled and capped logits",
        DType::is_float,
        &[
            "%a: V[D] = div %v, 0.7",
            "%b: V[D] = tanh %a",
            "%c: V[D] = mul %b, 30.0",
            "%d: V[f32] = cast %c",
            "%y: K[i64, 1] = argmax %d axis=A keep=true",
        ],
    ),
    exact(
        "argmax and maximum of one value",
        any,
        &["%y: K[i64, 1] = argmax %v axis=A keep=true", "%z: K[D, 1] = reduce %v op=max axes=[A] keep=true"],
    ),
    exact(
        "argmax of a window",
        any,
        &["%w: W[D, 5] = window %v", "%y: K[i64, 1] = argmax %w axis=A keep=true"],
    ),
    exact(
        "minimum of a window of a window",
        any,
        &[
            "%w: W[D, 2] = window %v",
            "%a: W[D, 5] = window %w",
            "%y: K[D, 1] = reduce %a op=min axes=[A] keep=true",
        ],
    ),
    exact("top k", any, &["%y: K[D, 3], %z: K[i64, 3] = topk %v axis=A largest=true"]),
    exact("least k", number, &["%y: K[D, 3], %z: K[i64, 3] = topk %v axis=A largest=false"]),
    exact(
        "top k of a window",
        number,
        &["%w: W[D, 5] = window %v", "%y: K[D, 4], %z: K[i64, 4] = topk %w axis=A largest=true"],
    ),
    exact("elements at positions", any, &["%y: K[D, 2] = gather_elements %v, %t axis=A"]),
    exact(
        "elements at narrow positions",
        number,
        &["%a: V[D] = add %v, 1", "%y: K[D, 1] = gather_elements %a, %u axis=A"],
    ),
    exact(
        "elements of a window at positions",
        any,
        &["%w: W[D, 5] = window %v", "%y: K[D, 2] = gather_elements %w, %t axis=A"],
    ),
    exact("slices at positions", any, &["%y: P[D, 3] = take %v, %q axis=A"]),
    exact(
        "slices at one position of a window",
        any,
        &["%w: W[D, 5] = window %v", "%y: Q[D] = take %w, %s axis=A"],
    ),
    exact(
        "slices at positions that all ranks look for",
        any,
        &["%o: i64[3] = broadcast %q root=1 group=@g", "%y: P[D, 3] = take %v, %o axis=A"],
    ),
    exact(
        "elements at the position of the maximum",
        any,
        &[
            "%a: K[i64, 1] = argmax %v axis=A keep=true",
            "%y: K[D, 1] = gather_elements %v, %a axis=A",
            "%b: K[i64, 1] = argmin %v axis=A keep=true",
            "%z: K[D, 1] = gather_elements %v, %b axis=A",
        ],
    ),
    summed("sum", number, &["%y: K[S, 1] = reduce %v op=sum axes=[A] keep=true"]),
    summed("mean", DType::is_float, &["%y: K[D, 1] = reduce %v op=mean axes=[A] keep=true"]),
    summed(
        "mean of a window",
        DType::is_float,
        &["%w: W[D, 5] = window %v", "%y: K[D, 1] = reduce %w op=mean axes=[A] keep=true"],
    ),
    summed("sum of everything", number, &["%y: S[] = reduce %v op=sum axes=[ALL] keep=false"]),
    summed(
        "cross-entropy with label smoothing",
        DType::is_float,
        &[
            "%a: V[f32] = cast %v",
            "%b: V[f32] = softmax %a axis=A log=true",
            "%y: K[f32, 2] = gather_elements %b, %t axis=A",
            "%z: K[f32, 1] = reduce %b op=mean axes=[A] keep=true",
        ],
    ),
    summed(
        "probabilities at positions",
        DType::is_float,
        &["%b: V[D] = softmax %v axis=A log=false", "%y: K[D, 2] = gather_elements %b, %t axis=A"],
    ),
    summed(
        "cross-entropy of a window",
        DType::is_float,
        &[
            "%w: W[D, 5] = window %v",
            "%b: W[D, 5] = softmax %w axis=A log=true",
            "%y: K[D, 2] = gather_elements %b, %t axis=A",
        ],
    ),
    summed(
        "written-out log-sum-exp",
        DType::is_float,
        &[
            "%a: V[f32] = cast %v",
            "%m: K[f32, 1] = reduce %a op=max axes=[A] keep=true",
            "%b: V[f32] = sub %a, %m",
            "%c: V[f32] = exp %b",
            "%d: K[f32, 1] = reduce %c op=sum axes=[A] keep=true",
            "%e: K[f32, 1] = log %d",
            "%y: K[f32, 1] = add %e, %m",
        ],
    ),
];

/// The program in which a reader reads a spelling; `None` if it does not support the dtype.
fn program(
    spelling: &str,
    dtype: DType,
    group: (u32, &'static str, i64),
    reader: &GatherReader,
) -> Option<Graph> {
    if !(reader.takes)(dtype) {
        return None;
    }
    let name = dtype.name();
    let sum = if dtype.is_float() { name } else { "i64" };
    let (rank, axis) = axes_of(spelling);
    let total = EXTENT * group.2;
    let ty = |dtype: &str, extent: i64| format!("{dtype}[{}]", extent_list(&shape(spelling, extent)));
    let mut out = prelude(spelling, name, group);
    let mut row = vec![1; rank];
    row[axis] = total;
    for line in reader.lines {
        let mut line = line
            .replace("R[bool]", &format!("bool[{}]", extent_list(&row)))
            .replace("[N]", &format!("[{total}]"));
        for dtype in ["D", "f32"] {
            line = line.replace(&format!("V[{dtype}]"), &ty(dtype, total));
        }
        for dtype in ["D", "S", "i64", "f32", "bool"] {
            for extent in 1..=4 {
                line = line.replace(&format!("K[{dtype}, {extent}]"), &ty(dtype, extent));
            }
            for cropped in [2, 5] {
                line = line.replace(&format!("W[{dtype}, {cropped}]"), &ty(dtype, total - cropped));
            }
        }
        let mut outer = shape(spelling, 1);
        outer.remove(axis);
        line = line.replace("P[D, 3]", &ty("D", 3)).replace("Q[D]", &format!("D[{}]", extent_list(&outer)));
        let axes = (0..rank).map(|a| a.to_string()).collect::<Vec<_>>().join(", ");
        line = line.replace("ALL", &axes).replace("axis=A", &format!("axis={axis}"));
        line = line.replace("[A]", &format!("[{axis}]"));
        if line.contains("window") {
            line = line.replace("window", "slice") + &format!(" axis={axis} start=1 step=1");
        }
        for (from, to) in [(" D[", name), (" S[", sum)] {
            line = line.replace(from, &format!(" {to}["));
        }
        if dtype != DType::Bool && !dtype.is_float() {
            line = line.replace(", 1.0", ", 1");
        } else if dtype.is_float() && line.contains("add %v, 1") {
            line += ".0";
        }
        writeln!(out, "{line}").unwrap();
    }
    writeln!(out, "return %y").unwrap();
    if reader.lines.iter().any(|line| line.contains("%z:")) {
        writeln!(out, "return %z").unwrap();
    }
    let graph = text::parse(&out).unwrap_or_else(|e| panic!("{}: {e}\n{out}", reader.name));
    symmc_ir::verify::verify(&graph).unwrap_or_else(|e| panic!("{}: {}\n{out}", reader.name, e[0]));
    Some(graph)
}

/// The distribution of random elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ElementDraw {
    /// Few small integers, so that there are many equal elements.
    Ties,
    /// Numbers between -8 and 8.
    Uniform,
    /// Ties, NaN, infinities and zeros of both signs; whole rows of minus infinity.
    Special,
}

const DRAWS: [ElementDraw; 3] = [ElementDraw::Ties, ElementDraw::Uniform, ElementDraw::Special];

fn element(draw: ElementDraw, dtype: DType, random: &mut SplitMix) -> f64 {
    let small = random.below(4) as f64;
    match draw {
        ElementDraw::Uniform if dtype.is_float() => random.symmetric_unit() * 8.0,
        ElementDraw::Special if dtype.is_float() => random.pick(&[
            f64::NAN,
            f64::INFINITY,
            -0.0,
            0.0,
            1.0,
            2.0,
            f64::NEG_INFINITY,
            f64::NEG_INFINITY,
            2.0,
            1.0,
            -1.0,
            2.0,
        ]),
        _ if dtype == DType::Bool => f64::from(u8::from(small == 0.0)),
        _ => small,
    }
}

fn inputs(graph: &Graph, draw: ElementDraw, positions: i64, random: &mut SplitMix) -> Vec<Vec<Arc<Tensor>>> {
    // Rows without NaN, and rows of minus infinity, occur as well.
    let calm = random.one_in(2);
    let mut tensor = |value: symmc_ir::ValueId| {
        let ty = graph.ty(value);
        let shape = ty.concrete_shape(&SymbolBindings::new()).unwrap();
        let count: usize = shape.iter().product();
        let is_index = matches!(graph.value_name(value), "t" | "u" | "q" | "s");
        let elements: Vec<f64> = (0..count)
            .map(|_| {
                if is_index {
                    return random.below(positions as usize) as f64;
                }
                let x = element(draw, ty.dtype, random);
                if calm && (x.is_nan() || x == f64::INFINITY) { f64::NEG_INFINITY } else { x }
            })
            .collect();
        Arc::new(Tensor::from_f64(ty.dtype, shape, &elements).unwrap())
    };
    (0..graph.ranks.unwrap()).map(|_| graph.inputs.values().map(|i| tensor(i.value)).collect()).collect()
}

/// Checks that two tensors are equal. Elements may differ by `allowed`, relative to elements above 1.
fn compare(found: &Tensor, expected: &Tensor, allowed: f64, at: &str) {
    assert_eq!((found.dtype(), found.shape()), (expected.dtype(), expected.shape()), "{at}");
    for (x, y) in found.to_f64().into_iter().zip(expected.to_f64()) {
        let is_same = x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= allowed * y.abs().max(1.0);
        assert!(is_same, "{at}: found {x}, expected {y}");
    }
}

/// The allowed difference of sums: each is rounded to its dtype once, and partial sums to f32 once for each
/// rank.
fn tolerance(dtype: DType, ranks: i64) -> f64 {
    let unit = |bits: i32| f64::powi(2.0, -bits);
    let partial = if dtype == DType::F64 { unit(50) } else { unit(22) * (ranks + 2) as f64 };
    let rounded = match dtype {
        DType::BF16 => unit(7),
        DType::F16 => unit(10),
        _ => 0.0,
    };
    // Sums of this test have up to 8 · 512 · 3 · 2 elements below 8. If they cancel, the error is relative
    // to those.
    64.0 * partial + rounded
}

fn communicated(graph: &Graph) -> i64 {
    let nodes = graph.nodes.values().filter(|n| n.op.as_collective().is_some());
    nodes.map(|n| graph.ty(n.outputs[0]).bytes().as_const().unwrap()).sum()
}

/// Runs one reader of one spelling on all draws.
fn check(spelling: &str, dtype: DType, group: (u32, &'static str, i64), reader: &GatherReader) -> bool {
    let Some(source) = program(spelling, dtype, group, reader) else { return false };
    let label = format!("{} of {} {spelling} in {}", reader.name, dtype.name(), group.1);
    let reduced = reduce_shards_that_save(&source, 0).unwrap_or_else(|| panic!("{label}: nothing changed"));
    symmc_ir::verify::verify(&reduced)
        .unwrap_or_else(|e| panic!("{label}: {}\n{}", e[0], text::print(&reduced)));
    assert!(communicated(&reduced) < communicated(&source), "{label}: {}", text::print(&reduced));
    let canonical = canonicalize(&reduced).unwrap().0;
    let is_gathered = |n: &symmc_ir::Node| n.inputs.iter().any(|&v| source_gather(&reduced, v));
    assert!(!reduced.nodes.values().any(is_gathered), "{label}: the shard is still gathered");
    let mut random = SplitMix(dtype as u64 * 31 + group.2 as u64);
    for draw in DRAWS {
        let positions = EXTENT * group.2 - 5;
        let inputs = inputs(&source, draw, positions, &mut random);
        let expected = interp::run(&source, &SymbolBindings::new(), &inputs).unwrap();
        for graph in [&reduced, &canonical] {
            let results = interp::run(graph, &SymbolBindings::new(), &inputs).unwrap();
            for (x, y) in results.iter().flatten().zip(expected.iter().flatten()) {
                let allowed =
                    if reader.sums && y.dtype().is_float() { tolerance(y.dtype(), group.2) } else { 0.0 };
                compare(x, y, allowed, &format!("{label}, {draw:?}"));
            }
        }
    }
    true
}

/// Whether a value is the shard itself, gathered.
fn source_gather(graph: &Graph, v: symmc_ir::ValueId) -> bool {
    let x = graph.inputs.values().find(|i| i.kind == InputKind::Argument).map(|i| i.value);
    graph.defining_node(v).is_some_and(|n| {
        let node = &graph.nodes[n];
        node.op.as_collective().is_some() && node.inputs.first().copied() == x
    })
}

fn reduce_shards_that_save(graph: &Graph, bytes: i64) -> Option<Graph> {
    reduce_shards(graph, ShardsConfig { bytes, sizes: JudgedSizes::Largest }).map(|reduced| reduced.graph)
}

fn reduce_shards_first(graph: &Graph) -> Option<Graph> {
    reduce_shards_that_save(graph, WORTH_A_COLLECTIVE)
}

#[test]
fn every_reader_of_every_spelling() {
    let mut count = 0;
    for (i, reader) in READERS.iter().enumerate() {
        // Readers compute.
        for (k, &dtype) in DType::ALL.iter().filter(|dtype| !dtype.is_storage_float()).enumerate() {
            // Each reader is combined with each dtype, each spelling and each group, and so is each
            // spelling.
            for j in [k, k + 3] {
                let spelling = SPELLINGS[j % SPELLINGS.len()];
                let group = GROUPS[(i + j / 2) % GROUPS.len()];
                count += usize::from(check(spelling, dtype, group, reader));
            }
        }
    }
    assert!(count > 300, "{count}");
}

/// The text of a program that reads gathered logits of `rows` rows by an argmax.
fn greedy(rows: i64, more: &str) -> Graph {
    text::parse(&format!(
        "program \"p\" ranks 4\ngroup @g world\narg %x: bf16[{rows}, 4096]\narg %u: f32[16384]\n\
         %g: bf16[{}, 4096] = all_gather %x group=@g\n%h: bf16[4, {rows}, 4096] = reshape %g\n\
         %i: bf16[{rows}, 4, 4096] = permute %h perm=[1, 0, 2]\n%v: bf16[{rows}, 16384] = reshape %i\n\
         {more}return %y\n",
        4 * rows
    ))
    .unwrap()
}

#[test]
fn small_gathers_stay() {
    let argmax = |rows: i64| format!("%y: i64[{rows}] = argmax %v axis=1 keep=false\n");
    let bytes = |rows: i64| rows * 16384 * 2;
    let (few, many) = (32, 80);
    assert!(bytes(few) < 2 * WORTH_A_COLLECTIVE && bytes(many) > 2 * WORTH_A_COLLECTIVE);
    assert!(reduce_shards_first(&greedy(few, &argmax(few))).is_none());
    assert!(reduce_shards_first(&greedy(many, &argmax(many))).is_some());
}

/// The text of a program that reads gathered logits of `t` rows, and of 80 rows, by an argmax.
fn greedy_of_rows(range: &str) -> Graph {
    let head = |name: &str, rows: &str, all: &str| {
        format!(
            "%{name}g: bf16[{all}, 4096] = all_gather %{name} group=@g\n%{name}h: bf16[4, {rows}, 4096] = reshape %{name}g\n\
             %{name}i: bf16[{rows}, 4, 4096] = permute %{name}h perm=[1, 0, 2]\n\
             %{name}v: bf16[{rows}, 16384] = reshape %{name}i\n%{name}y: i64[{rows}] = argmax %{name}v axis=1 keep=false\n"
        )
    };
    let (few, many) = (head("x", "t", "4*t"), head("z", "80", "320"));
    text::parse(&format!(
        "program \"p\" ranks 4\nsymbol t in {range}\ngroup @g world\narg %x: bf16[t, 4096]\narg %z: bf16[80, 4096]\n\
         {few}{many}return %xy\nreturn %zy\n"
    ))
    .unwrap()
}

#[test]
fn a_second_form_exists_where_sizes_decide() {
    let gathers = |graph: &Graph| {
        let is_whole = |node: &&Node| {
            node.op.as_collective().is_some()
                && graph.ty(node.outputs[0]).dtype == DType::BF16
                && graph.ty(node.outputs[0]).shape.last() == Some(&Dim::from(4096))
        };
        graph.nodes.values().filter(is_whole).count()
    };
    for (range, usual, small) in [
        ("1..=80", 0, Some(1)),
        // This pays at the smallest size as well.
        ("70..=80", 0, None),
        // This does not even pay at the largest size.
        ("1..=32", 1, None),
    ] {
        let source = greedy_of_rows(range);
        let forms = canonical_forms(&source).unwrap();
        assert_eq!(forms.default_form, canonicalize(&source).unwrap().0);
        assert_eq!(gathers(&forms.default_form), usual, "{range}");
        assert_eq!(forms.for_small_sizes.as_ref().map(gathers), small, "{range}");
    }
}

#[test]
fn other_readers_and_operands_that_differ_keep_the_gather() {
    let argmax = "%y: i64[80] = argmax %v axis=1 keep=false\n";
    for kept in [
        // A result of the program needs the whole value.
        format!("{argmax}return %v\n"),
        format!("{argmax}%c: bf16[80, 16384] = cumsum %v axis=1\nreturn %c\n"),
        // The bias may differ between ranks, and each rank adds its own to all logits.
        "%f: f32[80, 16384] = cast %v\n%d: f32[80, 16384] = add %f, %u\n%y: i64[80] = argmax %d axis=1 keep=false\n"
            .to_string(),
        // Products are rounded between factors.
        "%y: bf16[80] = reduce %v op=prod axes=[1] keep=false\n".to_string(),
    ] {
        assert!(reduce_shards_first(&greedy(80, &kept)).is_none(), "{kept}");
    }
    assert!(reduce_shards_first(&greedy(80, argmax)).is_some());
}

#[test]
fn positions_outside_of_the_axis_stay_errors() {
    let group = GROUPS[2];
    for (name, input) in [
        ("elements at positions", "t"),
        ("elements of a window at positions", "t"),
        ("slices at positions", "q"),
        ("slices at one position of a window", "s"),
    ] {
        let reader = READERS.iter().find(|r| r.name == name).unwrap();
        let source = program("permuted", DType::F32, group, reader).unwrap();
        let reduced = reduce_shards_that_save(&source, 0).unwrap();
        let input = source.inputs.values().position(|i| source.value_name(i.value) == input).unwrap();
        let cropped = if name.contains("window") { 5 } else { 0 };
        let extent = EXTENT * group.2 - cropped;
        for (index, fails) in [(-1, true), (extent, true), (extent - 1, false), (0, false)] {
            let mut inputs = inputs(&source, ElementDraw::Ties, 1, &mut SplitMix(1));
            let t = &inputs[1][input];
            let last_element = t.numel() - 1;
            let elements: Vec<i64> =
                (0..=last_element).map(|i| if i == last_element { index } else { 0 }).collect();
            inputs[1][input] = Arc::new(Tensor::from_i64(DType::I64, t.shape(), &elements).unwrap());
            for graph in [&source, &reduced] {
                let result = interp::run(graph, &SymbolBindings::new(), &inputs);
                assert_eq!(result.is_err(), fails, "{name} at {index}");
            }
        }
    }
}
