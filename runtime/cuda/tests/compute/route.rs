//! Routing of tokens to experts on the host, against the kernels of host ranks.

use symmc_cases::corpus;
use symmc_cuda::codegen::compute::AlgorithmSelection;
use symmc_ir::Op;

use crate::emulate::run;

#[test]
fn routings_are_those_of_host_ranks() {
    let mut cases = corpus();
    cases.retain(|case| matches!(case.op, Op::Route(_)));
    let Some(ran) = run("routes", &cases, AlgorithmSelection::Heuristic) else { return };
    assert!(ran.wrong.is_empty(), "{}", ran.wrong.join("\n"));
    assert!(ran.all == cases.len() && ran.all > 40, "{} of {} cases", ran.all, cases.len());
}
