//! The interpreter runs a program as often as asked, and computes with the same numbers as the kernels.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use symmc::custom::CustomCall;
use symmc::{
    CompileConfig, CustomKernelRegistry, DrawConfig, Execution, KernelSignature, Program, RunConfig, Tensor,
    Workload,
};
use symmc_ir::{DType, text};

const PROGRAM: &str = r#"program "counted" ranks 2
group @all world
custom "my::count" symmetric operands [] results []
param %state: f32[4]
arg %x: f32[4]
%c: f32[4] = custom "my::count" %x
%next: f32[4] = add %c, %state
return %next
"#;

/// Calls of the op in so many runs of both ranks.
fn calls(program: &str, repeats: u32) -> usize {
    let counted = Arc::new(AtomicUsize::new(0));
    let mut kernels = CustomKernelRegistry::new();
    let count = counted.clone();
    kernels.register(
        "my::count",
        KernelSignature::new(&[DType::F32], &[DType::F32]),
        move |call: &mut CustomCall<'_>| {
            count.fetch_add(1, Ordering::Relaxed);
            let x = call.operand::<f32>(0)?.to_vec();
            call.result::<f32>(0)?.copy_from_slice(&x);
            Ok(())
        },
    );
    let program = Program::from_graph(text::parse(program).expect("a program")).expect("verified");
    let plan = symmc::compile(&program, &CompileConfig::default()).expect("a plan");
    let work =
        Workload::gather(&program.graph, &program.weights, None, &DrawConfig::default().with_arguments(true));
    let config = RunConfig::default().with_kernels(kernels).with_repeats(repeats);
    symmc::run(&plan, &work.expect("inputs"), &Execution::Interpreter, &config).expect("outputs");
    counted.load(Ordering::Relaxed)
}

#[test]
fn the_interpreter_runs_as_often_as_asked() {
    assert_eq!(calls(PROGRAM, 1), 2);
    assert_eq!(calls(PROGRAM, 5), 10);
    let changed = PROGRAM.replace("return %next", "return %next\nmutate %state = %next");
    assert_eq!(calls(&changed, 5), 10);
}

#[test]
fn out_of_range_scalars_wrap_on_every_backend() {
    let ops = ["gt", "eq", "lt", "rem", "floor_div", "max", "min", "add", "mul"];
    for (dtype, number, same) in [("u8", -3, 253), ("u8", 300, 44), ("i32", (1 << 32) - 2, -2)] {
        let program = |number: i64| {
            let mut text = format!("program \"p\" ranks 1\narg %x: {dtype}[6]\n");
            for (i, op) in ops.iter().enumerate() {
                let result = if i < 3 { "bool" } else { dtype };
                text += &format!("%a{i}: {result}[6] = {op} %x, {number}\n");
                text += &format!("%b{i}: {result}[6] = {op} {number}, %x\n");
            }
            let names: Vec<String> = (0..ops.len()).map(|i| format!("%a{i}, %b{i}")).collect();
            text + &format!("return {}\n", names.join(", "))
        };
        let outputs = |number: i64, execution: &Execution| {
            let program =
                Program::from_graph(text::parse(&program(number)).expect("a program")).expect("verified");
            let plan = symmc::compile(&program, &CompileConfig::default()).expect("a plan");
            let mut work = Workload::gather(&program.graph, &program.weights, None, &DrawConfig::default())
                .expect("inputs");
            let dtype = program.graph.inputs.values().map(|i| program.graph.ty(i.value).dtype).next();
            let x = Tensor::from_f64(dtype.expect("an input"), [6], &[1.0, 2.0, 253.0, 44.0, 7.0, 255.0]);
            work.inputs = vec![vec![Arc::new(x.expect("six elements"))]];
            let results = symmc::run(&plan, &work, execution, &RunConfig::default()).expect("outputs");
            results[0].iter().map(|t| t.to_f64()).collect::<Vec<_>>()
        };
        let expected = outputs(same, &Execution::Interpreter);
        for execution in [Execution::Interpreter, Execution::Threads] {
            assert_eq!(outputs(number, &execution), expected, "{dtype} {number} {execution:?}");
        }
    }
}
