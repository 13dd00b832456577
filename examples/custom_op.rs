//! Custom ops: a fused op of one rank, and an op that reads its peers' operand. They run on threads, on processes of this
//! program, and in the interpreter.
//!
//! `cargo run --release -p symmc --example custom_op`

use std::process::ExitCode;

use symmc::custom::{CustomCall, CustomError};
use symmc::{
    CompileConfig, CustomKernelRegistry, DType, DrawConfig, Execution, KernelSignature, Program, RunConfig,
    Workload,
};

/// `my::neighbour` reads operand 0 of its peers, which are the ranks of its group.
const PROGRAM: &str = r#"program "custom" ranks 3
symbol tokens in 1..=64
group @ring world
custom "my::gate" symmetric operands [] results []
custom "my::neighbour" symmetric operands [0] results [] group @ring
arg %x: f32[tokens, 8]
arg %y: f32[tokens, 8]
%g: f32[tokens, 8] = custom "my::gate" %x, %y
%n: f32[tokens, 8] = custom "my::neighbour" %g
%s: f32[tokens, 8] = all_reduce %n op=max group=@ring
return %n
return %s
"#;

/// `silu(x) * y`, in one pass.
fn gate(call: &mut CustomCall<'_>) -> Result<(), CustomError> {
    let x = call.operand::<f32>(0)?;
    let y = call.operand::<f32>(1)?;
    for (i, z) in call.result::<f32>(0)?.iter_mut().enumerate() {
        *z = x[i] / (1.0 + (-x[i]).exp()) * y[i];
    }
    Ok(())
}

/// Copies the operand of the next rank of the group. Every peer has computed its operand by now, and none overwrites it before
/// all have read it.
fn neighbour(call: &mut CustomCall<'_>) -> Result<(), CustomError> {
    let next = (call.number() + 1) % call.cell().len();
    let x = call.peer_operand::<f32>(next, 0)?;
    call.result::<f32>(0)?.copy_from_slice(&x);
    Ok(())
}

fn kernels() -> CustomKernelRegistry {
    let mut kernels = CustomKernelRegistry::new();
    kernels.register("my::gate", KernelSignature::new(&[DType::F32; 2], &[DType::F32]), gate);
    let signature = KernelSignature::new(&[DType::F32], &[DType::F32]).reading_peers(&[0]);
    kernels.register("my::neighbour", signature, neighbour);
    kernels
}

fn main() -> ExitCode {
    // In the process of a rank, this program runs that rank only.
    if let Some(code) = symmc::rank_main(&kernels()) {
        return code;
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let program = Program::from_text(PROGRAM)?;
    let plan = symmc::compile(&program, &CompileConfig::default())?;
    let work = Workload::gather(&program.graph, &program.weights, None, &DrawConfig::default())?;
    let config = RunConfig::default().with_kernels(kernels()).with_repeats(3);
    let expected = symmc::run(&plan, &work, &Execution::Interpreter, &config)?;
    for execution in [Execution::Threads, Execution::this_program()?] {
        let found = symmc::run(&plan, &work, &execution, &config)?;
        if found != expected {
            return Err(format!("{execution:?} gives other outputs than the interpreter").into());
        }
    }
    println!("{} ranks give the outputs of the interpreter, as threads and as processes", plan.ranks);
    Ok(())
}
