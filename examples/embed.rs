//! Embeds symmc: opens an exported program, plans it, prints the decisions of the plan, and runs it on ranks that are
//! threads of this process.
//!
//! `cargo run --release -p symmc --example embed`

use symmc::{CompileConfig, Execution, OpenOptions, Program, RunConfig, TensorFile, Workload};

fn main() -> Result<(), symmc::Error> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs");
    let program = Program::open(&folder.join("moe_ep4.pt2"), &OpenOptions::default())?;

    let plan = symmc::compile(&program, &CompileConfig::default())?;
    for decision in &plan.buckets[0].decisions {
        println!("%{} of {} bytes runs as {}", decision.collective, decision.bytes, decision.chosen);
    }
    println!("arenas: {} ordinary and {} symmetric bytes", plan.arenas.ordinary, plan.arenas.symmetric);

    let tensors = TensorFile::open(&folder.join("moe_ep4.safetensors"))?;
    let work = Workload::recorded(&program, &tensors)?;
    let outputs = symmc::run(&plan, &work, &Execution::Threads, &RunConfig::default())?;
    for (rank, outputs) in outputs.iter().enumerate() {
        println!("rank {rank}: output of shape {:?}", outputs[0].shape());
    }
    Ok(())
}
