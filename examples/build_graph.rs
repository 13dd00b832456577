//! Builds a program in memory, prints it in text form, and plans it: a linear layer whose partial results are
//! summed over two ranks. The builder belongs to an unstable inner crate. The stable way is to parse text
//! ([`Program::from_text`]).
//!
//! `cargo run --release -p symmc --example build_graph`

use symmc::unstable::ir::{
    CollectiveKind, CollectiveReduceOp, Dim, GraphBuilder, GroupMembers, InputKind, Op, TensorType,
};
use symmc::{CompileConfig, DType, Program};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut builder = GraphBuilder::new("linear", Some(2));
    let tokens = builder.symbol("tokens", 1, 512);
    let shape = |dims: &[i64]| dims.iter().map(|&d| Dim::from(d)).collect::<Vec<_>>();
    let x = vec![Dim::from(tokens), Dim::from(64)];
    let x = builder.input(InputKind::Argument, "x", "", TensorType::new(DType::F32, x), None);
    let w = builder.input(
        InputKind::Parameter,
        "w",
        "layer.weight",
        TensorType::new(DType::F32, shape(&[64, 32])),
        None,
    );
    let partial = builder.op("partial", Op::MATMUL, &[x, w])?;
    let group = builder.group("tp", GroupMembers::World);
    let all_reduce = CollectiveKind::AllReduce(CollectiveReduceOp::Sum);
    let sum = builder.collective("sum", all_reduce, group, &[partial])?;
    builder.output(sum[0]);

    let program = Program::from_graph(builder.finish())?;
    print!("{}", program.to_text());
    let plan = symmc::compile(&program, &CompileConfig::default())?;
    println!("%sum runs as {}", plan.buckets[0].decisions[0].chosen);
    Ok(())
}
