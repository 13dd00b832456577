//! Small programs and the plans that they must give.

use symmc_ir::text;
use symmc_planner::plan::Plan;
use symmc_planner::{BucketInput, PlanConfig, plan};

fn planned(program: &str) -> Plan {
    let graph = text::parse(program).expect("parses");
    let bucket = BucketInput { graph: graph.clone(), decisions: Vec::new() };
    plan(&graph, &[bucket], &PlanConfig::default()).expect("plans")
}

#[test]
fn scratch() {
    let p = planned(&std::fs::read_to_string("/tmp/t/a.symm").unwrap());
    println!("{}\n{}", p.programs[0], p.to_json());
    println!("{:?}", symmc_planner::check::check(&p));
}
