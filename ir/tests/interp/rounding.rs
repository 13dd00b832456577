//! Rounding histories: which float types are in the history of a value, and what may flip.

use symmc_ir::interp::{RoundingHistory, RunCount, Tolerance, output_histories, rounding_histories};
use symmc_ir::{Graph, Numerics, NumericsClass, text};

fn parse(text: &str) -> Graph {
    let graph = text::parse(text).unwrap_or_else(|e| panic!("{e}"));
    symmc_ir::verify::verify(&graph).unwrap_or_else(|e| panic!("{}", e[0]));
    graph
}

/// `exact`, or the float types and `flips`.
fn describe(history: &RoundingHistory) -> String {
    let mut words: Vec<String> = history.types().map(|dtype| dtype.to_string()).collect();
    words.extend(history.may_flip().then(|| "flips".to_string()));
    if words.is_empty() { "exact".into() } else { words.join(" ") }
}

/// Each line of the program ends in the history of its value, as a comment.
#[track_caller]
fn check(program: &str, runs: RunCount) {
    let graph = parse(program);
    let histories = rounding_histories(&graph, runs);
    let mut checked = 0;
    for line in program.lines() {
        let Some((code, expected)) = line.split_once("//") else { continue };
        let value = code.trim_start_matches("arg ").trim_start_matches('%');
        let name = value.split([':', ',']).next().unwrap_or_default();
        let id = graph.values.iter().find(|(_, v)| v.name == name).unwrap_or_else(|| panic!("no %{name}")).0;
        assert_eq!(describe(&histories[id]), expected.trim(), "{line}");
        checked += 1;
    }
    assert!(checked > 0);
}

#[test]
fn types_of_the_computation_stay_in_the_history() {
    check(
        "program \"p\" ranks 2
group @w world
arg %x: f32[4, 4] // exact
arg %h: f16[4, 4] // exact
arg %i: i64[4] // exact
%y: f32[4, 4] = matmul %x, %x // f32
%z: f64[4, 4] = cast %y // f32
%s: f16[4, 4] = softmax %h axis=1 log=false // f16
%c: f32[4, 4] = cast %s // f16
%m: f32[4, 4] = all_reduce %c op=max group=@w // f16
%r: f32[4, 4] = all_reduce %c op=sum group=@w // f32 f16
%b: bf16[4, 4] = cast %x // bf16
%w: f32[4, 4] = cast %b // bf16
%p: f32[4, 4] = permute %w perm=[1, 0] // bf16
%o: f32[4, 4] = mul %x, 0.5 // f32
%u: f32[4, 4] = cast %h // exact
%a: f32[4, 4] = all_reduce %u op=max group=@w // exact
%n: f32[4, 4] = neg %a // exact
%e: f32[4, 4] = relu %n // exact
%j: i64[4] = mul %i, %i // exact
%k: i64[4] = all_reduce %j op=sum group=@w // exact
return %z, %m, %r, %p, %o, %e, %k
",
        RunCount::One,
    );
}

#[test]
fn step_functions_of_rounded_values_may_flip() {
    check(
        "program \"p\" ranks 1
arg %x: f32[4, 4] // exact
arg %t: f32[4, 4] // exact
%y: f32[4, 4] = exp %x // f32
%g: bool[4, 4] = gt %x, %t // exact
%f: bool[4, 4] = gt %y, %t // flips
%a: i64[4] = argmax %x axis=1 keep=false // exact
%b: i64[4] = argmax %y axis=1 keep=false // flips
%s: f32[4, 4] = select %f, %x, %t // flips
%p: f32[4, 4] = select %g, %y, %t // f32
%d: f32[4, 4] = floor %y // flips
%e: f32[4, 4] = floor %x // exact
%i: i64[4, 4] = cast %y // flips
%j: f32[4, 4] = cast %i // f32 flips
%k: f32[4, 4] = take %x, %b axis=0 // flips
%v: f32[4, 4], %w: i64[4, 4] = sort %y axis=1 descending=false // f32
%q: f32[4, 4] = gather_elements %x, %w axis=1 // flips
return %s, %p, %d, %e, %j, %k, %v, %q, %a
",
        RunCount::One,
    );
}

const STATE: &str = "program \"p\" ranks 1
param %c: f32[4]
arg %x: bf16[4]
%y: bf16[4] = add %x, 1.0
%z: f32[4] = cast %y
%o: f32[4] = neg %c
mutate %c = %z
return %o
";

#[test]
fn state_has_the_history_of_earlier_runs() {
    let graph = parse(STATE);
    let described = |runs| output_histories(&graph, runs).iter().map(describe).collect::<Vec<_>>();
    assert_eq!(described(RunCount::One), ["bf16", "exact"]);
    assert_eq!(described(RunCount::Several), ["bf16", "bf16"]);
}

#[test]
fn only_a_class_that_is_used_extends_the_history() {
    let f32s = RoundingHistory::rounded_to(symmc_ir::DType::F32);
    let bf16s = RoundingHistory::rounded_to(symmc_ir::DType::BF16);
    let f16s = RoundingHistory::rounded_to(symmc_ir::DType::F16);
    let class = |class: NumericsClass| Numerics::from(class);
    for numerics in [Numerics::EXACT, class(NumericsClass::Reassociate), class(NumericsClass::NarrowF16)] {
        assert_eq!(f32s.with_numerics(numerics, &bf16s), f32s, "{numerics}");
    }
    assert_eq!(describe(&f32s.with_numerics(class(NumericsClass::Narrow), &bf16s)), "f32 bf16");
    assert_eq!(f32s.with_numerics(class(NumericsClass::Narrow), &f32s), f32s);
    assert_eq!(f32s.with_numerics(class(NumericsClass::Narrow), &f16s), f32s);
    let narrow = f32s.with_numerics(class(NumericsClass::NarrowF16), &f16s);
    assert!(describe(&narrow) == "f32 f16" && narrow.may_overflow());
}

#[test]
fn tolerances_follow_the_history_and_not_the_type() {
    let ones = |dtype| symmc_ir::Tensor::from_f64(dtype, vec![2], &[1.0, 1.0]).expect("two elements");
    let wide = ones(symmc_ir::DType::F64);
    let tolerance = |history: &RoundingHistory| Tolerance::for_history(history, &wide);
    assert_eq!(tolerance(&RoundingHistory::EXACT), Tolerance::EXACT);
    assert_eq!(tolerance(&RoundingHistory::rounded_to(symmc_ir::DType::F32)).relative, 3e-5);
    // An f16 intermediate has the steps of f16 near zero, whatever type returns it.
    let halves = tolerance(&RoundingHistory::rounded_to(symmc_ir::DType::F16));
    assert!(halves.relative == 5e-3 && halves.absolute > 5e-3 + 2e-7);
    let integers = symmc_ir::Tensor::from_i64(symmc_ir::DType::I64, vec![1], &[1]).expect("one element");
    assert_eq!(
        Tolerance::for_history(&RoundingHistory::rounded_to(symmc_ir::DType::F32), &integers),
        Tolerance::EXACT
    );
}
