//! Noise on every rounding: sensitive results move, others hardly move, and exact results do not.

use std::sync::Arc;

use symmc_ir::interp::{
    NoiseSpread, ReferenceKernelRegistry, RoundingNoise, RunCount, SeedConfig, SeedScope, SeededInputs,
    Tolerance, compare, compare_with_spread, output_histories, run, run_with_noise,
};
use symmc_ir::{Graph, Numerics, NumericsClass, SymbolBindings, Tensor, text};

fn inputs(graph: &Graph) -> Vec<Vec<Arc<Tensor>>> {
    let config = SeedConfig { seed: 5, arguments: SeedScope::PerRank, parameters: SeedScope::PerRank };
    let bindings = SymbolBindings::new();
    let seeds = SeededInputs::new(graph, &bindings, config);
    let of_rank =
        |rank| graph.inputs.keys().map(|id| seeds.generate_input(id, rank).expect("an input")).collect();
    (0..graph.ranks.expect("ranks")).map(of_rank).collect()
}

/// The outputs of rank 0, and how far 8 runs with noise move them.
fn spreads(program: &str, numerics: Numerics) -> Vec<(Tensor, NoiseSpread)> {
    let graph = text::parse(program).unwrap_or_else(|e| panic!("{e}"));
    let inputs = inputs(&graph);
    let expected = run(&graph, &SymbolBindings::new(), &inputs).expect("it runs").remove(0);
    let mut out: Vec<_> =
        expected.into_iter().map(|t| (NoiseSpread::without_moves(&t), t)).map(|(s, t)| (t, s)).collect();
    for seed in 0..8 {
        let noise = RoundingNoise { seed, numerics };
        let noisy =
            run_with_noise(&graph, &SymbolBindings::new(), &inputs, &ReferenceKernelRegistry::new(), noise)
                .expect("it runs");
        out.iter_mut().zip(&noisy[0]).for_each(|((expected, spread), noisy)| {
            spread.widen(expected, noisy);
        });
    }
    out
}

const PROGRAM: &str = "program \"p\" ranks 2
group @w world
arg %x: f32[64]
%big: f32[64] = mul %x, 1e6
%up: f32[64] = add %x, %big
%cancels: f32[64] = sub %up, %big
%good: f32[64] = all_reduce %x op=sum group=@w
%max: f32[64] = all_reduce %x op=max group=@w
%half: f32[64] = mul %x, 0.5
%other: f32[64] = mul %half, 2.0
%tie: bool[64] = ge %other, %x
return %cancels
return %good
return %max
return %tie
";

#[test]
fn noise_moves_only_sensitive_results() {
    let outputs = spreads(PROGRAM, Numerics::EXACT);
    let off = |k: usize, by: f64| {
        let (expected, spread) = &outputs[k];
        let moved = expected.to_f64().iter().map(|x| x + by).collect::<Vec<_>>();
        let moved = Tensor::from_f64(expected.dtype(), expected.shape(), &moved).expect("as many");
        compare_with_spread(&moved, expected, Tolerance::for_dtype_of(expected), spread)
    };
    // x + 1e6 x - 1e6 x is known to a few tenths; a sum of two numbers and a maximum are not off by that.
    let cancels = off(0, 0.05);
    assert!(cancels.sensitive > 50 && cancels.beyond < 10, "{cancels}");
    assert!(!off(0, 100.0).agrees(), "noise does not explain everything");
    assert!(!off(1, 0.05).agrees() && !off(1, 1e-3).agrees() && !off(2, 1e-3).agrees());
    // Equal numbers that were rounded on the way are on either side of each other.
    let (tie, spread) = &outputs[3];
    let flipped: Vec<i64> = tie.to_i64().iter().map(|x| 1 - x).collect();
    let flipped = Tensor::from_i64(tie.dtype(), tie.shape(), &flipped).expect("as many");
    let c = compare_with_spread(&flipped, tie, Tolerance::EXACT, spread);
    assert!(c.sensitive > 32, "{c}");
    assert!(!compare_with_spread(&flipped, tie, Tolerance::EXACT, &NoiseSpread::without_moves(tie)).agrees());
}

#[test]
fn equal_seeds_give_equal_noise() {
    assert_eq!(spreads(PROGRAM, Numerics::EXACT), spreads(PROGRAM, Numerics::EXACT));
}

/// Sums among ranks may be off by what bf16 is off by, and maxima may not.
#[test]
fn noise_goes_as_far_as_the_classes() {
    let off = |numerics, k: usize| {
        let (expected, spread) = &spreads(PROGRAM, numerics)[k];
        let moved: Vec<f64> = expected.to_f64().iter().map(|x| x * 1.003).collect();
        let moved = Tensor::from_f64(expected.dtype(), expected.shape(), &moved).expect("as many");
        compare_with_spread(&moved, expected, Tolerance::EXACT, spread).beyond
    };
    let narrow = Numerics::from(NumericsClass::Narrow);
    assert!(off(narrow, 1) == 0 && off(Numerics::EXACT, 1) > 32 && off(narrow, 2) > 32);
}

/// A bf16 program whose f32 result averages over many rounded values.
const LOSS: &str = "program \"p\" ranks 2
group @w world
arg %x: bf16[64, 64]
arg %w: bf16[64, 64]
%y: bf16[64, 64] = matmul %x, %w
%t: bf16[64, 64] = tanh %y
%f: f32[64, 64] = cast %t
%q: f32[64, 64] = mul %f, %f
%m: f32[] = reduce %q op=mean axes=[0, 1] keep=false
%l: f32[] = all_reduce %m op=avg group=@w
%c: f32[64, 64] = cast %t
return %l
return %c
";

/// The tolerance of results in a finer type than those of their history follows from noise.
#[test]
fn averages_are_more_exact_than_their_terms() {
    let graph = text::parse(LOSS).unwrap_or_else(|e| panic!("{e}"));
    let inputs = inputs(&graph);
    let expected = run(&graph, &SymbolBindings::new(), &inputs).expect("it runs").remove(0);
    let histories = output_histories(&graph, RunCount::One);
    let mut widened: Vec<Tolerance> =
        expected.iter().zip(&histories).map(|(e, h)| Tolerance::for_stored_type(h, e)).collect();
    assert!(widened.iter().all(|t| t.relative == Tolerance::default_fraction(symmc_ir::DType::F32)));
    for seed in 0..8 {
        let noise = RoundingNoise { seed, numerics: Numerics::EXACT };
        let noisy =
            run_with_noise(&graph, &SymbolBindings::new(), &inputs, &ReferenceKernelRegistry::new(), noise)
                .expect("it runs");
        for (k, tolerance) in widened.iter_mut().enumerate() {
            let limit = Tolerance::for_history(&histories[k], &expected[k]);
            assert_eq!(limit.relative, Tolerance::default_fraction(symmc_ir::DType::BF16));
            *tolerance = tolerance.widened_by_noise(&expected[k], &noisy[0][k], limit);
        }
    }
    let off = |k: usize, by: f64, tolerance: Tolerance| {
        let moved: Vec<f64> = expected[k].to_f64().iter().map(|x| x * (1.0 + by)).collect();
        let moved = Tensor::from_f64(expected[k].dtype(), expected[k].shape(), &moved).expect("as many");
        compare(&moved, &expected[k], tolerance).agrees()
    };
    // An average over 4096 terms is known much better than its terms.
    let limit = Tolerance::for_history(&histories[0], &expected[0]);
    assert!(off(0, 0.02, limit) && !off(0, 0.02, widened[0]), "{}", widened[0]);
    assert!(off(0, 1e-5, widened[0]) && off(0, 1e-4, widened[0]), "{}", widened[0]);
    // Each of the terms may be off by an ulp of bf16, whatever type returns it.
    assert!(off(1, 2f64.powi(-7), widened[1]), "{}", widened[1]);
}

/// Which numbers that are not finite a class can produce, by element.
#[test]
fn overflow_is_seen_where_a_class_can_produce_it() {
    let program = "program \"p\" ranks 2
group @w world
arg %x: f32[64]
%zero: f32[64] = mul %x, 0.0
%large: f32[64] = add %zero, 60000.0
%big: f32[64] = all_reduce %large op=sum group=@w
%low: f32[64] = mul %large, -1.0
%neg: f32[64] = all_reduce %low op=sum group=@w
%small: f32[64] = all_reduce %x op=sum group=@w
return %big
return %neg
return %small
";
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    for (classes, overflows) in [
        (Numerics::from(NumericsClass::NarrowF16), true),
        (Numerics::from(NumericsClass::Narrow), false),
        (Numerics::EXACT, false),
    ] {
        let outputs = spreads(program, classes);
        let passes = |k: usize, x: f64| {
            let (expected, spread) = &outputs[k];
            let elements = vec![x; 64];
            let outlier = Tensor::from_f64(expected.dtype(), expected.shape(), &elements).expect("as many");
            let tolerance = Tolerance { may_overflow: true, ..Tolerance::for_dtype_of(expected) };
            compare_with_spread(&outlier, expected, tolerance, spread).agrees()
        };
        assert_eq!((passes(0, inf), passes(1, -inf)), (overflows, overflows), "{classes}");
        for (k, x) in [(0, -inf), (1, inf), (0, nan), (1, nan), (2, nan), (2, inf), (2, -inf)] {
            assert!(!passes(k, x), "{classes}: output {k}: {x}");
        }
    }
}
