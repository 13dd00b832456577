//! How often the interpreter runs a program.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use symmc::custom::CustomCall;
use symmc::{Backend, Config, Draw, Program, Registry, RunConfig, Signature, Workload};
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
    let mut kernels = Registry::new();
    let count = counted.clone();
    kernels.register(
        "my::count",
        Signature::new(&[DType::F32], &[DType::F32]),
        move |call: &mut CustomCall<'_>| {
            count.fetch_add(1, Ordering::Relaxed);
            let x = call.operand::<f32>(0)?.to_vec();
            call.result::<f32>(0)?.copy_from_slice(&x);
            Ok(())
        },
    );
    let program = Program::from_graph(text::parse(program).expect("a program")).expect("verified");
    let plan = symmc::compile(&program, &Config::default()).expect("a plan");
    let work = Workload::gather(
        &program.graph,
        &program.weights,
        None,
        &Draw { arguments: true, ..Draw::default() },
    );
    let config = RunConfig { kernels, repeats, ..RunConfig::default() };
    symmc::run(&plan, &work.expect("inputs"), &Backend::Interpreter, &config).expect("outputs");
    counted.load(Ordering::Relaxed)
}

#[test]
fn the_interpreter_runs_as_often_as_asked() {
    assert_eq!(calls(PROGRAM, 1), 2);
    assert_eq!(calls(PROGRAM, 5), 10);
    let changed = PROGRAM.replace("return %next", "return %next\nmutate %state = %next");
    assert_eq!(calls(&changed, 5), 10);
}
