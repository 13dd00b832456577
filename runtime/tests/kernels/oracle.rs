//! Kernels against the interpreter: random operands of every op, dtype and layout.

use proptest::prelude::*;
use symmc_cases::{OP_THEMES, agree};
use symmc_ir::{DType, Tensor};
use symmc_support::random::SplitMix;

use crate::support::{PlacedTensor, call};

fn check(theme: &str, seed: u64) -> Result<(), TestCaseError> {
    let random = &mut SplitMix(seed);
    let make = OP_THEMES.into_iter().find(|t| t.0 == theme).expect("a theme").1;
    let case = make(random);
    let (types, expected) = (case.types(), case.expected());
    let operands: Vec<PlacedTensor> =
        case.operands.iter().map(|t| PlacedTensor::scattered(t, random)).collect();
    let mut results: Vec<PlacedTensor> =
        types.iter().map(|(d, shape)| PlacedTensor::room(*d, shape, random)).collect();
    let outcome = call(&case.op, &operands, &mut results);
    let context = format!("{:?} on {:?} giving {types:?}", case.op, case.operands);
    let expected = match (expected, outcome) {
        (Some(expected), Ok(())) => expected,
        (None, Err(_)) => return Ok(()),
        (expected, found) => {
            return Err(TestCaseError::fail(format!("{context}: found {found:?}, expected {expected:?}")));
        }
    };
    for (actual, expected) in results.iter().zip(&expected) {
        let agreed = agree(&actual.tensor(), expected, case.scale);
        prop_assert!(agreed.is_ok(), "{}: {}", context, agreed.unwrap_err());
        prop_assert!(actual.surroundings_are_untouched(), "{}: wrote beyond its result", context);
    }
    Ok(())
}

/// Some integers of operands become values that kernels refuse; `call` compares refusals with the stated
/// ones.
fn check_bad_data(theme: &str, seed: u64) -> Result<(), TestCaseError> {
    let random = &mut SplitMix(seed);
    let make = OP_THEMES.into_iter().find(|t| t.0 == theme).expect("a theme").1;
    let case = make(random);
    let mut results: Vec<PlacedTensor> =
        case.types().iter().map(|(d, shape)| PlacedTensor::room(*d, shape, random)).collect();
    let spoilt = case.operands.iter().map(|tensor| {
        let is_integer = matches!(tensor.dtype(), DType::I64 | DType::I32 | DType::U8);
        let bad = [0, 1, 7, 250, -1][random.below(5)];
        let elements = vec![bad; tensor.shape().iter().product()];
        let replaced = Tensor::from_i64(tensor.dtype(), tensor.shape().to_vec(), &elements);
        PlacedTensor::dense(&replaced.filter(|_| is_integer).unwrap_or_else(|| Tensor::clone(tensor)))
    });
    let operands: Vec<PlacedTensor> = spoilt.collect();
    let _ = call(&case.op, &operands, &mut results);
    prop_assert!(results.iter().all(PlacedTensor::surroundings_are_untouched), "{:?}: wrote beyond", case.op);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn elementwise_ops(seed: u64) { check("elementwise", seed)?; }
    #[test]
    fn matrix_products(seed: u64) { check("matmul", seed)?; }
    #[test]
    fn reductions(seed: u64) { check("reduction", seed)?; }
    #[test]
    fn normalisations(seed: u64) { check("normalisation", seed)?; }
    #[test]
    fn attentions(seed: u64) { check("attention", seed)?; }
    #[test]
    fn bounded_attentions(seed: u64) { check("bounded attention", seed)?; }
    #[test]
    fn attention_gradients(seed: u64) { check("attention gradient", seed)?; }
    #[test]
    fn index_ops(seed: u64) { check("indexing", seed)?; }
    #[test]
    fn movement_ops(seed: u64) { check("movement", seed)?; }
    #[test]
    fn bad_data(seed: u64) {
        for theme in ["elementwise", "matmul", "reduction", "indexing"] {
            check_bad_data(theme, seed)?;
        }
    }
}
