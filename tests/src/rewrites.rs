//! Trials of what passes make of random programs of the idioms that they rewrite ([`symmc_cases::idioms`]).
//!
//! Each program is brought into canonical form and lowered for every built-in machine, for several numerics classes. The reference
//! interpreter runs the program and every form of it on the same inputs: small integers, fractions, NaN with infinities and both zeros,
//! numbers at the ends of the range of their type, the same on all ranks and others on each. In the class `exact` all bits must be equal
//! (one NaN counts as another); sums whose order the program leaves open, and the other classes, have the tolerance of their history. For one
//! of the machines a plan is made and checked.
//!
//! The suite `rewrites` runs some in each test run; `cargo run --release -p symmc-tests --example check_rewrites -- COUNT` runs as many
//! as wanted.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use symmc::{CompileConfig, ErrorKind, MachineProfile, Numerics, NumericsClass, Program, SourceStatus};
use symmc_cases::idioms::{self, IdiomProgram};
use symmc_ir::entity::Entity;
use symmc_ir::interp::{self, ReferenceKernelRegistry, RoundingHistory, RoundingNoise, RunCount};
use symmc_ir::{DType, Graph, Op, SymbolBindings, Tensor, text};
use symmc_passes::lower::choose_forms;
use symmc_passes::{LowerConfig, canonicalize, lower};
use symmc_support::random::SplitMix;

use crate::trials::{largest, tolerance_of};

/// What trials did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RewriteCounts {
    /// Runs of forms of programs that were compared.
    pub runs: usize,
    /// Forms that are not the program with variants.
    pub forms: usize,
    /// Programs of which some form has fewer collectives.
    pub with_fewer_collectives: usize,
}

/// How inputs are drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum InputNumbers {
    SmallIntegers,
    Fractions,
    Special,
    Extreme,
}

/// The draws of every program: the numbers, and whether all ranks have the same.
pub(crate) const DRAWS: [(InputNumbers, bool); 8] = [
    (InputNumbers::SmallIntegers, false),
    (InputNumbers::SmallIntegers, true),
    (InputNumbers::Fractions, false),
    (InputNumbers::Fractions, true),
    (InputNumbers::Special, false),
    (InputNumbers::Special, true),
    (InputNumbers::Extreme, false),
    (InputNumbers::Extreme, true),
];

/// One trial.
///
/// # Errors
/// What went wrong, with all that is needed to see it again.
pub fn trial(seed: u64, all: &mut RewriteCounts) -> Result<(), String> {
    let program = idioms::program(seed);
    let tried = AssertUnwindSafe(|| compare_forms(seed, &program, all));
    let result = catch_unwind(tried).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        Err(format!("panicked: {}", text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no message")))
    });
    result.map_err(|error| format!("seed {seed}: {error}\n{}", text::print(&program.graph)))
}

fn compare_forms(seed: u64, program: &IdiomProgram, all: &mut RewriteCounts) -> Result<(), String> {
    let forms = forms(&program.graph)?;
    let fewest = forms.iter().map(|form| needed_collectives(&form.graph)).min().unwrap_or_default();
    all.forms += forms.len();
    all.with_fewer_collectives += usize::from(fewest < needed_collectives(&program.graph));
    for (draw, &(numbers, is_shared)) in DRAWS.iter().enumerate() {
        let mut r = SplitMix(seed ^ (draw as u64 + 1) << 40);
        let mut bindings = SymbolBindings::new();
        for (id, symbol) in program.graph.symbols.iter() {
            bindings.set(id, symbol.min + r.below((symbol.max - symbol.min) as usize + 1) as i64);
        }
        let inputs = inputs(&program.graph, &bindings, numbers, is_shared, &mut r);
        let expected = interp::run(&program.graph, &bindings, &inputs).map_err(|e| e.to_string())?;
        let is_rounding = |form: &ProgramForm, found: &Tensor, rank: usize, k: usize| {
            is_within_noise(&program.graph, &bindings, &inputs, form, (rank, k), (found, &expected[rank][k]))
        };
        for form in &forms {
            let is_exact = form.numerics.is_exact();
            if !is_exact && matches!(numbers, InputNumbers::Special | InputNumbers::Extreme) {
                continue;
            }
            let outputs = interp::run(&form.graph, &bindings, &with_constants(&form.graph, &inputs));
            let outputs = outputs.map_err(|e| format!("{}: {e}", form.name))?;
            for (rank, (rank_outputs, expected)) in outputs.iter().zip(&expected).enumerate() {
                for (k, (actual, expected)) in rank_outputs.iter().zip(expected).enumerate() {
                    let is_same = if is_exact && !program.has_open_sums {
                        has_same_bits(actual, expected)
                    } else {
                        is_near(actual, expected, &form.histories[k], &inputs)
                            || is_rounding(form, actual, rank, k)?
                    };
                    if !is_same {
                        return Err(format!(
                            "{}: output {k} of rank {rank} differs with {numbers:?}, shared {is_shared}\n{}\n{:?}\n{:?}",
                            form.name,
                            text::print(&form.graph),
                            actual.to_f64(),
                            expected.to_f64()
                        ));
                    }
                }
            }
            all.runs += 1;
        }
    }
    plan_and_check(seed, &program.graph)
}

/// The number of collectives that results of a program need.
fn needed_collectives(graph: &Graph) -> usize {
    let mut is_needed = vec![false; graph.values.len()];
    graph.outputs.iter().for_each(|output| is_needed[output.value.index()] = true);
    let mut count = 0;
    for node in graph.nodes.values().rev() {
        if node.outputs.iter().any(|v| is_needed[v.index()]) {
            node.inputs.iter().for_each(|v| is_needed[v.index()] = true);
            count += usize::from(node.op.as_collective().is_some());
        }
    }
    count
}

/// A form of a program.
struct ProgramForm {
    name: String,
    graph: Graph,
    numerics: Numerics,
    histories: Vec<RoundingHistory>,
}

/// The forms of a program that differ in more than variants.
fn forms(graph: &Graph) -> Result<Vec<ProgramForm>, String> {
    let (canonical, _) = canonicalize(graph).map_err(|e| e.to_string())?;
    let mut printed = BTreeSet::from([text::print(graph)]);
    let mut out = Vec::new();
    let mut add = |name: String, form: Graph, numerics: Numerics| {
        if printed.insert(text::print(&form)) {
            let own = interp::output_histories(&form, RunCount::Several);
            let source = interp::output_histories(graph, RunCount::Several);
            let histories = own.into_iter().zip(source).map(|(a, b)| a.join(b)).collect();
            out.push(ProgramForm { name, graph: form, numerics, histories });
        }
    };
    add("canonical form".into(), canonical.clone(), Numerics::EXACT);
    let narrow = [NumericsClass::Reassociate, NumericsClass::Narrow].into_iter().collect();
    for numerics in [Numerics::EXACT, NumericsClass::Reassociate.into(), narrow] {
        for machine in MachineProfile::builtin_names() {
            let profile = MachineProfile::builtin(machine).ok_or("no such machine")?;
            let config = LowerConfig { numerics, ..LowerConfig::new(profile) };
            let (form, _) = choose_forms(&canonical, &config).map_err(|e| e.to_string())?;
            let (mut lowered, ..) = lower(&form, &config).map_err(|e| e.to_string())?;
            for node in lowered.nodes.values_mut() {
                if let Op::Collective(c) = &mut node.op {
                    c.variant = None;
                }
            }
            add(format!("{machine}, {numerics}"), lowered, numerics);
        }
    }
    Ok(out)
}

fn plan_and_check(seed: u64, graph: &Graph) -> Result<(), String> {
    let mut r = SplitMix(seed ^ 0x0b1a_4ced);
    let program = Program::from_graph(graph.clone()).map_err(|e| format!("no program: {e}"))?;
    let profile =
        MachineProfile::builtin(r.pick(&MachineProfile::builtin_names())).ok_or("no such machine")?;
    let classes: Numerics = NumericsClass::ALL.iter().copied().filter(|_| r.one_in(3)).collect();
    let config = CompileConfig::default().with_profile(profile).with_numerics(classes);
    let plan = match symmc::compile(&program, &config) {
        Err(e) if e.kind() == ErrorKind::Unsupported => return Ok(()),
        plan => plan.map_err(|e| e.to_string())?,
    };
    let compared = symmc::compare_with_source(&plan);
    if compared.status() == SourceStatus::Different {
        return Err(format!("the plan differs from its source: {:?}", compared.differences));
    }
    Ok(())
}

pub(crate) fn inputs(
    graph: &Graph,
    bindings: &SymbolBindings,
    numbers: InputNumbers,
    is_shared: bool,
    r: &mut SplitMix,
) -> Vec<Vec<Arc<Tensor>>> {
    let ranks = graph.ranks.unwrap_or(1) as usize;
    let mut inputs = vec![Vec::new(); ranks];
    for input in graph.inputs.values() {
        let ty = graph.ty(input.value);
        let shape: Vec<usize> =
            ty.shape.iter().map(|d| d.eval(bindings).map_or(0, |n| n.max(0) as usize)).collect();
        let draw = |r: &mut SplitMix| Arc::new(tensor(ty.dtype, &shape, numbers, r));
        // The data of a constant are part of the program.
        if let Some(data) = &input.data {
            inputs.iter_mut().for_each(|own| own.push(data.clone()));
            continue;
        }
        let shared = draw(r);
        inputs.iter_mut().for_each(|own| own.push(if is_shared { shared.clone() } else { draw(r) }));
    }
    inputs
}

/// The inputs with the constants that a form has behind those of the program.
pub(crate) fn with_constants(form: &Graph, inputs: &[Vec<Arc<Tensor>>]) -> Vec<Vec<Arc<Tensor>>> {
    let append_constants = |own: &Vec<Arc<Tensor>>| {
        let constants = form.inputs.values().skip(own.len()).filter_map(|input| input.data.clone());
        own.iter().cloned().chain(constants).collect()
    };
    inputs.iter().map(append_constants).collect()
}

fn tensor(dtype: DType, shape: &[usize], numbers: InputNumbers, r: &mut SplitMix) -> Tensor {
    let mut element = || {
        let integer = r.below(7) as f64 - 3.0;
        let largest = match dtype {
            DType::F16 => 60000.0,
            DType::F64 => 1e308,
            DType::I32 => f64::from(i32::MAX),
            DType::I64 => 2f64.powi(62),
            DType::U8 => 255.0,
            _ => 3e38,
        };
        match numbers {
            InputNumbers::SmallIntegers => integer,
            InputNumbers::Fractions if dtype.is_float() => r.symmetric_unit(),
            InputNumbers::Special if dtype.is_float() => {
                r.pick(&[f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 1.0, -2.0, 1e-40, integer])
            }
            InputNumbers::Extreme => r.pick(&[largest, -largest, largest / 2.0, 1.0, 0.0, integer]),
            _ => integer,
        }
    };
    let count: usize = shape.iter().product();
    let elements: Vec<f64> = (0..count).map(|_| element()).collect();
    Tensor::from_f64(dtype, shape.to_vec(), &elements).expect("as many elements as the shape has")
}

/// The runs with noise that show how far rounding moves the elements of an output.
const NOISY_RUNS: u64 = 8;

/// Whether the elements of output `k` of a rank that are not near the expected ones are moved as far by noise on the roundings of the
/// program. Sums whose terms cancel have elements that no fraction of inputs and outputs bounds.
fn is_within_noise(
    graph: &Graph,
    bindings: &SymbolBindings,
    inputs: &[Vec<Arc<Tensor>>],
    form: &ProgramForm,
    (rank, k): (usize, usize),
    (found, expected): (&Tensor, &Tensor),
) -> Result<bool, String> {
    let tolerance = tolerance_of(&form.histories[k], expected, largest_of(inputs, expected));
    let mut spread = interp::spread_of_beyond(found, expected, tolerance);
    for seed in 0..NOISY_RUNS {
        let noise = RoundingNoise { seed, numerics: form.numerics };
        let registry = ReferenceKernelRegistry::new();
        let noisy = interp::run_with_noise(graph, bindings, inputs, &registry, noise);
        spread.widen(expected, &noisy.map_err(|e| e.to_string())?[rank][k]);
    }
    Ok(interp::compare_with_spread(found, expected, tolerance, &spread).agrees())
}

/// The largest magnitude of inputs and an output. Terms that cancel are as large as inputs, at least.
fn largest_of(inputs: &[Vec<Arc<Tensor>>], expected: &Tensor) -> f64 {
    inputs.iter().flatten().fold(largest(expected), |most, t| most.max(largest(t)))
}

/// Whether all elements have the same bits, or are both NaN.
pub(crate) fn has_same_bits(a: &Tensor, b: &Tensor) -> bool {
    let size = a.dtype().size();
    let bits = a.data().chunks_exact(size).zip(b.data().chunks_exact(size));
    let is_nan = |x: f64| x.is_nan();
    a.shape() == b.shape()
        && bits.enumerate().all(|(i, (x, y))| x == y || (is_nan(a.get_f64(i)) && is_nan(b.get_f64(i))))
}

/// Whether a tensor is as near to the one that the program gives as its rounding history explains.
pub(crate) fn is_near(
    found: &Tensor,
    expected: &Tensor,
    history: &RoundingHistory,
    inputs: &[Vec<Arc<Tensor>>],
) -> bool {
    let tolerance = tolerance_of(history, expected, largest_of(inputs, expected));
    interp::compare(found, expected, tolerance).agrees()
}
