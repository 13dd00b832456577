//! Builds a program by hand, prints it in text form, and plans it: a linear layer whose partial results are
//! summed over two ranks. Text is the stable way to do so ([`Program::from_text`]); the builder is an inner crate's.
//!
//! `cargo run --release -p symmc --example build_graph`

use symmc::unstable::ir::{
    CollectiveKind, CollectiveReduceOp, Dim, GraphBuilder, GroupMembers, InputKind, Op, TensorType,
};
use symmc::{CompileConfig, DType, Program};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut b = GraphBuilder::new("linear", Some(2));
    let tokens = b.symbol("tokens", 1, 512);
    let shape = |dims: &[i64]| dims.iter().map(|&d| Dim::from(d)).collect::<Vec<_>>();
    let x = vec![Dim::from(tokens), Dim::from(64)];
    let x = b.input(InputKind::Argument, "x", "", TensorType::new(DType::F32, x), None);
    let w = b.input(
        InputKind::Parameter,
        "w",
        "layer.weight",
        TensorType::new(DType::F32, shape(&[64, 32])),
        None,
    );
    let partial = b.op("partial", Op::MatMul, &[x, w])?;
    let group = b.group("tp", GroupMembers::World);
    let sum = b.collective("sum", CollectiveKind::AllReduce(CollectiveReduceOp::Sum), group, &[partial])?;
    b.output(sum[0]);

    let program = Program::from_graph(b.finish())?;
    print!("{}", program.to_text());
    let plan = symmc::compile(&program, &CompileConfig::default())?;
    println!("%sum runs as {}", plan.buckets[0].decisions[0].chosen);
    Ok(())
}
