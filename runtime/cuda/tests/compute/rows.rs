//! Reductions of rows with the steps around them: one kernel gives the interpreter's results, also if results
//! are in place of operands.

use std::cell::Cell;
use std::sync::Arc;

use symmc_cuda::codegen::compute::{self, BoundOperation, KernelLowering, loops, selection};
use symmc_cuda::device::launch::{DevicePtr, KernelLaunch};
use symmc_ir::interp::{self, RunCount, Tolerance};
use symmc_ir::layout::compute_layouts;
use symmc_ir::{
    DispatchForm, Graph, Node, NodeId, Op, ReductionKind, SymbolBindings, Tensor, TensorType, ValueId, text,
    verify,
};
use symmc_runtime::exec::{LocatedTensor, MemorySpace};
use symmc_support::random::SplitMix;

use crate::emulate::EmulatedLibrary;
use crate::products::{RandomMemory, compiles, kernels, value};

/// A program of one dispatch and views of its inputs, with all of its values in one memory.
struct PlacedProgram {
    graph: Graph,
    /// The offset of each base in bytes.
    offsets: Vec<usize>,
    bytes: usize,
}

impl PlacedProgram {
    /// The listed results are in place of the inputs that they are paired with.
    fn new(program: &str, overlays: &[(ValueId, ValueId)]) -> PlacedProgram {
        let graph = text::parse(program).unwrap_or_else(|e| panic!("{e}\n{program}"));
        assert_eq!(verify::verify(&graph), Ok(()), "{program}");
        let mut offsets = Vec::new();
        let mut bytes = 0;
        for value in graph.values.keys() {
            offsets.push(bytes);
            bytes = (bytes + size(graph.ty(value)) + 64).next_multiple_of(64);
        }
        for (result, operand) in overlays {
            offsets[index(*result)] = offsets[index(*operand)];
        }
        PlacedProgram { graph, offsets, bytes }
    }

    fn located(&self, value: ValueId) -> LocatedTensor {
        let layouts = compute_layouts(&self.graph);
        let (layout, ty) = (&layouts[value], self.graph.ty(value));
        let number = |d: &symmc_ir::Dim| d.as_const().expect("a number");
        let inner = self.graph.dispatch_internal_values(|v| layouts[v].base)[layout.base];
        let offset = number(&layout.offset) as usize * ty.dtype.size();
        LocatedTensor {
            space: if inner { MemorySpace::Inner } else { MemorySpace::Ordinary },
            offset: self.offsets[index(layout.base)] + offset,
            by_rank: 0,
            dtype: ty.dtype,
            shape: ty.shape.iter().map(|d| number(d) as usize).collect(),
            strides: layout.strides.iter().map(|d| number(d) as isize).collect(),
        }
    }
}

fn index(value: ValueId) -> usize {
    symmc_ir::entity::Entity::index(value)
}

fn size(ty: &TensorType) -> usize {
    ty.bytes().as_const().expect("a number") as usize
}

/// A program with memory for it, and the expected results.
struct DispatchCase {
    name: String,
    placed: PlacedProgram,
    inputs: Vec<Arc<Tensor>>,
    expected: Vec<Tensor>,
    memory: Vec<u128>,
    kernels: Vec<KernelLaunch>,
}

impl DispatchCase {
    fn new(name: String, placed: PlacedProgram, seed: u64) -> DispatchCase {
        let bindings = SymbolBindings::new();
        let inputs = interp::seeded_inputs(&placed.graph, &bindings, &interp::SeedConfig::new(seed), 0)
            .expect("drawn");
        let inputs_by_rank = std::slice::from_ref(&inputs);
        let expected = interp::run(&placed.graph, &bindings, inputs_by_rank).expect("it runs").remove(0);
        let memory = vec![0u128; placed.bytes.div_ceil(16) + 32];
        DispatchCase { name, placed, inputs, expected, memory, kernels: Vec::new() }
    }

    fn base(&self) -> u64 {
        (self.memory.as_ptr().expose_provenance() as u64).next_multiple_of(256)
    }

    fn pointer(&self, value: ValueId) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.base() as usize + self.placed.offsets[index(value)])
    }

    /// The kernel of the dispatch.
    fn lower(&self, l: &mut KernelLowering<'_>) -> Vec<KernelLaunch> {
        let (graph, placed) = (&self.placed.graph, &self.placed);
        let layouts = compute_layouts(graph);
        let nodes = graph.dispatches[0].nodes().map(|n| &graph.nodes[n]);
        let nodes: Vec<&Node> = nodes.filter(|n| n.outputs.iter().all(|&v| layouts[v].base == v)).collect();
        let locate = |values: &[ValueId]| values.iter().map(|&v| placed.located(v)).collect::<Vec<_>>();
        let places: Vec<_> = nodes.iter().map(|n| (locate(&n.inputs), locate(&n.outputs))).collect();
        let operations = nodes.iter().zip(&places);
        let operations = operations.map(|(node, (operands, results))| BoundOperation {
            index: 0,
            op: &node.op,
            operands,
            results,
        });
        let steps: Vec<BoundOperation<'_>> = operations.collect();
        let lower = match graph.dispatches[0].form {
            DispatchForm::Selection => selection::lower,
            _ => loops::lower,
        };
        let fused = kernels(lower(&steps, l).expect("it fits").expect("one kernel"));
        assert_eq!(fused.len(), 1, "{}", self.name);
        fused
    }

    fn run(&mut self, library: &EmulatedLibrary) {
        self.memory.fill(0);
        let graph = &self.placed.graph;
        for (input, tensor) in graph.inputs.values().zip(&self.inputs) {
            let data = tensor.data();
            // SAFETY: each value has room for its bytes in `memory`, which nothing else accesses.
            unsafe { self.pointer(input.value).copy_from(data.as_ptr(), data.len()) };
        }
        // SAFETY: all addresses are within `memory`.
        self.kernels.iter().for_each(|kernel| unsafe { library.run(kernel) });
        let histories = interp::output_histories(graph, RunCount::One);
        for ((output, expected), history) in graph.outputs.iter().zip(&self.expected).zip(&histories) {
            let mut data = vec![0u8; expected.data().len()];
            // SAFETY: as above.
            unsafe { self.pointer(output.value).copy_to(data.as_mut_ptr(), data.len()) };
            let actual = Tensor::new(expected.dtype(), expected.shape(), data).expect("as many bytes");
            let comparison = interp::compare(&actual, expected, Tolerance::for_history(history, expected));
            let name = graph.value_name(output.value);
            assert!(comparison.agrees(), "{}: %{name}: {comparison:?}\n{}", self.name, text::print(graph));
        }
    }
}

/// Runs the dispatches of programs as emulated kernels, if there is a compiler, and compares the outputs.
fn check(what: &str, mut cases: Vec<DispatchCase>) {
    let base = Cell::new(0);
    let address_of = |v: &LocatedTensor| DevicePtr::from(base.get() + v.offset as u64);
    let machine = RandomMemory::new().machine;
    let mut l = KernelLowering::new(&address_of, &machine);
    for case in &mut cases {
        base.set(case.base());
        case.kernels = case.lower(&mut l);
    }
    compiles(&l.source);
    let Some(library) = EmulatedLibrary::build(what, &l.source.text(), l.source.names()) else { return };
    cases.iter_mut().for_each(|case| case.run(&library));
}

/// The results that may be in place of inputs, each with a different one.
fn overlays(program: &str) -> Vec<(ValueId, ValueId)> {
    let graph = text::parse(program).unwrap_or_else(|e| panic!("{e}"));
    let (dispatch, users) = (graph.dispatches[0], graph.users());
    let readers = |input: ValueId| {
        let operands = |&n: &NodeId| {
            let inputs = graph.nodes[n].inputs.iter().enumerate();
            inputs.filter(|(_, v)| **v == input).map(move |(k, _)| (n, k)).collect::<Vec<_>>()
        };
        users[input].iter().flat_map(operands).collect::<Vec<_>>()
    };
    let mut out: Vec<(ValueId, ValueId)> = Vec::new();
    for result in graph.outputs.iter().map(|o| o.value) {
        let writer = graph.defining_node(result).expect("a node");
        let allows = |input: &ValueId| {
            let mut uses = readers(*input).into_iter();
            uses.all(|(n, k)| dispatch.overwrite_rule(&graph, n, k).allows(n, writer))
                && size(graph.ty(*input)) == size(graph.ty(result))
                && graph.ty(*input).shape == graph.ty(result).shape
                && out.iter().all(|(_, taken)| taken != input)
        };
        let overlaid = graph.inputs.values().map(|i| i.value).find(allows);
        out.extend(overlaid.map(|input| (result, input)));
    }
    out
}

#[test]
fn rows_give_what_the_interpreter_gives() {
    let (mut cases, mut on_operands) = (Vec::new(), 0);
    for part in include_str!("rows.symm").split("//# ").skip(1) {
        let (name, program) = part.split_once('\n').expect("a name and a program");
        let overlays = overlays(program);
        on_operands += overlays.len();
        cases.push(DispatchCase::new(name.into(), PlacedProgram::new(program, &[]), 5));
        if !overlays.is_empty() {
            cases.push(DispatchCase::new(
                format!("{name}, on operands"),
                PlacedProgram::new(program, &overlays),
                6,
            ));
        }
    }
    assert!(on_operands > 5, "{on_operands}");
    check("rows", cases);
}

/// The choice of experts, and sums of rows.
#[test]
fn expert_selections_and_sums_match_the_interpreter() {
    let sections = include_str!("experts.symm").split("//# ").skip(1);
    let cases = sections.map(|part| {
        let (name, program) = part.split_once('\n').expect("a name and a program");
        DispatchCase::new(name.into(), PlacedProgram::new(program, &[]), 7)
    });
    check("experts", cases.collect());
}

/// A value of a random program.
#[derive(Clone)]
struct DrawnValue {
    name: String,
    dtype: &'static str,
    is_per_row: bool,
}

/// The inputs of a random program, and the start of its dispatch.
fn header(whole: &str, per_row: &str, n: i64) -> String {
    format!(
        "program \"random\" ranks 1\narg %i: f32[{whole}]\narg %j: bf16[{whole}]\narg %r: f32[{per_row}]\n\
         arg %w: bf16[{n}]\narg %one: f32[]\ndispatch loop {{\n"
    )
}

/// A random dispatch of reductions, norms and element-wise nodes. All numbers are positive, so that no sum cancels.
fn random_rows(r: &mut SplitMix) -> String {
    let leading = r.pick(&["1", "5", "2, 3", "4, 1"]);
    let n: i64 = r.pick(&[2, 3, 8, 31, 64, 130, 520, 1000, 2052, 4096, 9001]);
    let (whole, per_row) = (format!("{leading}, {n}"), format!("{leading}, 1"));
    let mut text = header(&whole, &per_row, n);
    let mut values: Vec<DrawnValue> = Vec::new();
    let node = |text: &mut String,
                values: &mut Vec<DrawnValue>,
                dtype: &'static str,
                is_per_row: bool,
                what: String| {
        let name = format!("%v{}", values.len());
        let shape = if is_per_row { &per_row } else { &whole };
        text.push_str(&format!("{name}: {dtype}[{shape}] = {what}\n"));
        values.push(DrawnValue { name, dtype, is_per_row });
    };
    node(&mut text, &mut values, "f32", false, "abs %i".into());
    node(&mut text, &mut values, "bf16", false, "abs %j".into());
    node(&mut text, &mut values, "f32", true, "abs %r".into());
    node(&mut text, &mut values, "f32", true, "max %r, %one".into());
    node(&mut text, &mut values, "bf16", false, "max %j, %w".into());
    // One row that all rows read.
    text.push_str(&format!("%weight: bf16[{n}] = abs %w\n"));
    for k in 0..5 + r.below(12) {
        let x = values[values.len() - 1 - r.below(values.len().min(6))].clone();
        let (dtype, is_per_row, what) = match if k == 0 { 0 } else { r.below(9) } {
            0 | 1 => {
                let x = if x.is_per_row { values[r.below(2)].clone() } else { x };
                let (op, axis) = (r.pick(&["sum", "mean", "max", "min"]), whole.split(',').count() - 1);
                (x.dtype, true, format!("reduce {} op={op} axes=[{axis}] keep=true", x.name))
            }
            2 => (if x.dtype == "f32" { "bf16" } else { "f32" }, x.is_per_row, format!("cast {}", x.name)),
            3 => {
                let operation = r.pick(&["add 1.0,", "mul 0.01,", "add 0.5,"]);
                (x.dtype, x.is_per_row, format!("{operation} {}", x.name))
            }
            4 => (x.dtype, x.is_per_row, format!("sqrt {}", x.name)),
            5 if !x.is_per_row => {
                let weight = if x.dtype == "bf16" { r.pick(&["", ", %weight", ", %w"]) } else { "" };
                (x.dtype, false, format!("rms_norm {}{weight} axes=1 eps=1e-5 round_first=true", x.name))
            }
            6 if !x.is_per_row => {
                // Of elements that differ. Those of the result cancel, so only their sizes are read.
                let x = values[r.pick(&[0, 1, 4])].clone();
                let weights =
                    if x.dtype == "bf16" { r.pick(&["", ", %weight", ", %w, %weight"]) } else { "" };
                let normed = format!(
                    "%norm{k}: {}[{whole}] = layer_norm {}{weights} axes=1 eps=1e-3\n",
                    x.dtype, x.name
                );
                text.push_str(&normed);
                (x.dtype, false, format!("abs %norm{k}"))
            }
            7 if !x.is_per_row && x.dtype == "bf16" => ("bf16", false, format!("add {}, %weight", x.name)),
            _ => {
                let alike: Vec<&DrawnValue> = values.iter().filter(|y| y.dtype == x.dtype).collect();
                let y = alike[r.below(alike.len())];
                let op = r.pick(&["add", "mul", "max", "min"]);
                (x.dtype, x.is_per_row && y.is_per_row, format!("{op} {}, {}", x.name, y.name))
            }
        };
        node(&mut text, &mut values, dtype, is_per_row, what);
    }
    text.push_str("}\n");
    text + &return_statements(r, &values)
}

/// A random dispatch of reductions of the axis before the last, of rows that are taken and element-wise nodes.
fn random_columns(r: &mut SplitMix) -> String {
    let leading = r.pick(&["", "3, ", "2, 2, "]);
    let terms = r.pick(&[1, 2, 7, 8, 9, 64]);
    let n = r.pick(&[1, 3, 8, 24, 130, 512]);
    let axis = leading.matches(',').count();
    let keep = r.below(2) == 0;
    let whole = format!("{leading}{terms}, {n}");
    let wide = 2 * n;
    let reduced = format!("{leading}{}{n}", if keep { "1, " } else { "" });
    let mut text = format!(
        "program \"random\" ranks 1\narg %i: bf16[{whole}]\narg %w: bf16[{leading}{terms}, 1]\n\
         arg %at: i64[{leading}{terms}]\narg %table: bf16[5, {n}]\narg %r: f32[{reduced}]\narg %s: f32[{wide}]\n\
         %even: f32[{n}] = slice %s axis=0 start=0 step=2\n%odd: f32[{n}] = slice %s axis=0 start=1 step=2\n\
         dispatch loop {{\n\
         %x0: bf16[{whole}] = {}\n%x1: bf16[{whole}] = mul %x0, %w\n%x2: f32[{whole}] = cast %x1\n\
         %x3: f32[{whole}] = add %x2, %even\n",
        r.pick(&["take %table, %at axis=0", "abs %i"])
    );
    let count = 1 + r.below(3);
    for k in 0..count {
        let (operand, dtype) = r.pick(&[("%x1", "bf16"), ("%x2", "f32"), ("%x3", "f32")]);
        let op = r.pick(&["sum", "mean", "max", "min"]);
        text.push_str(&format!(
            "%y{k}: {dtype}[{reduced}] = reduce {operand} op={op} axes=[{axis}] keep={keep}\n\
             %z{k}: f32[{reduced}] = cast %y{k}\n"
        ));
    }
    text.push_str(&format!("%u: f32[{reduced}] = max %z0, %r\n%v: f32[{reduced}] = max %u, %odd\n"));
    for k in 1..count {
        text.push_str(&format!("%t{k}: f32[{reduced}] = max %z{k}, %v\n"));
    }
    text.push_str("}\nreturn %v\n");
    (1..count).for_each(|k| text.push_str(&format!("return %t{k}\n")));
    if r.one_in(2) {
        text.push_str("return %z0\n");
    }
    text
}

#[test]
fn random_columns_give_what_the_interpreter_gives() {
    let mut r = SplitMix(29);
    let case = |number| {
        let program = random_columns(&mut r);
        DispatchCase::new(format!("columns {number}"), PlacedProgram::new(&program, &[]), number)
    };
    check("columns-random", (0..24).map(case).collect());
}

/// The return statements for the last value and some others.
fn return_statements(r: &mut SplitMix, values: &[DrawnValue]) -> String {
    let last_value = values.len() - 1;
    let named = values.iter().enumerate().skip(5).filter(|(k, _)| *k == last_value || r.one_in(4));
    named.map(|(_, value)| format!("return {}\n", value.name)).collect()
}

#[test]
fn random_rows_give_what_the_interpreter_gives() {
    let mut r = SplitMix(23);
    let case = |number| {
        let program = random_rows(&mut r);
        let overlays = if number % 2 == 0 { overlays(&program) } else { Vec::new() };
        DispatchCase::new(format!("random {number}"), PlacedProgram::new(&program, &overlays), number)
    };
    check("rows-random", (0..24).map(case).collect());
}

/// Reductions with few result rows, or with adjacent rows, have more blocks than rows.
#[test]
fn long_reductions_use_all_multiprocessors() {
    let machine = crate::machine(1 << 20, 225 << 10);
    let address_of = |v: &LocatedTensor| DevicePtr::from((v.offset + 0x10_0000) as u64);
    for (axes, kept) in [(vec![0, 1], vec![]), (vec![0], vec![4096])] {
        let op = Op::Reduce { op: ReductionKind::Mean, axes, keep: false };
        let x = value(MemorySpace::Ordinary, 0, [8192, 4096], [4096, 1]);
        let strides = kept.iter().map(|_| 1).collect();
        let r =
            LocatedTensor { shape: kept.into(), strides, ..value(MemorySpace::Ordinary, 1, [1, 1], [1, 1]) };
        let step = BoundOperation { index: 0, op: &op, operands: &[x], results: &[r] };
        let passes =
            kernels(compute::lower(&step, &mut KernelLowering::new(&address_of, &machine)).expect("it fits"));
        assert_eq!(passes.len(), 2, "{op:?}");
        assert!(passes[0].grid[0] >= machine.multiprocessors, "{op:?}: {:?}", passes[0].grid);
    }
}
