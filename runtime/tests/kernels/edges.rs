//! Kernels against the interpreter on the values at the edges of every dtype.

use symmc_cases::special;
use symmc_ir::Tensor;

use crate::support::{PlacedTensor, call};

#[test]
fn every_op_at_the_edges_of_its_dtypes() {
    let cases = special();
    assert!(cases.len() > 3000, "{}", cases.len());
    let mut wrong = Vec::new();
    for case in &cases {
        let operands: Vec<PlacedTensor> =
            case.operands.iter().map(|p| PlacedTensor::dense(&p.tensor)).collect();
        let mut results: Vec<PlacedTensor> =
            case.rooms().iter().map(|p| PlacedTensor::dense(&p.tensor)).collect();
        let ended = call(&case.op, &operands, &mut results);
        let tensors: Vec<Tensor> = results.iter().map(PlacedTensor::tensor).collect();
        match (&case.expected, ended) {
            (Ok(expected), Ok(())) => {
                let pairs = tensors.iter().zip(expected);
                let differ = pairs.filter_map(|(found, expected)| case.agrees(found, &expected.tensor).err());
                wrong.extend(differ.map(|e| format!("{}: {e}", case.name)));
            }
            (Err(expected), Err(found)) if *expected == found => {}
            (expected, ended) => {
                wrong.push(format!("{}: ended {ended:?}, expected {:?}", case.name, expected.as_ref().err()));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {} cases\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}
