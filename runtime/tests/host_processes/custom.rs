//! Custom ops on ranks: the numbers of the collectives that they replace, and how runs end when kernels fail,
//! are missing, or have another signature.

use std::time::Duration;

use symmc_control::{RankCommand, RankConfig};
use symmc_ir::{DType, interp, text};
use symmc_runtime::RunError;
use symmc_runtime::custom::{CustomCall, CustomError, CustomKernelRegistry, KernelSignature, ValueMismatch};

use crate::Test;
use crate::programs::{OwnedJob, command, launch, run_threads};

pub const TESTS: &[Test] = &[
    ("custom_ops_give_the_numbers", custom_ops_give_the_numbers),
    ("custom_ops_give_the_numbers_under_chaos", custom_ops_give_the_numbers_under_chaos),
    ("custom_ops_within_cells", custom_ops_within_cells),
    ("a_failing_kernel_ends_the_run", a_failing_kernel_ends_the_run),
    ("a_rank_without_kernels_is_named", a_rank_without_kernels_is_named),
    ("a_kernel_of_another_signature_is_refused", a_kernel_of_another_signature_is_refused),
    ("a_kernel_gets_what_it_declares", a_kernel_gets_what_it_declares),
];

/// A fused op, one that reads its peers and one that writes them, among collectives. The state gives each run
/// different values, so results of an earlier run are wrong.
const CUSTOM_PROGRAM: &str = r#"
%t: f32[8, n] = permute %y perm=[1, 0]
%a: f32[n, 8] = custom "my::fused" %t, %state
%b: f32[n, 8] = custom "my::sum" %a, %x
%s: f32[n, 8] = all_reduce %b op=sum group=@g via=one_shot
%c: f32[SIZE*n, 8] = custom "my::spread" %s
%d: f32[n, 8] = custom "my::sum" %s, %b
"#;

/// The same with ops that every backend knows.
const KNOWN_PROGRAM: &str = r#"
%f: f32[n, 8] = mul %state, 2.0
%a: f32[n, 8] = add %y, %f
%r: f32[n, 8] = all_reduce %a op=sum group=@g via=plain
%b: f32[n, 8] = add %r, %x
%s: f32[n, 8] = all_reduce %b op=sum group=@g via=one_shot
%c: f32[SIZE*n, 8] = all_gather %s group=@g via=plain
%q: f32[n, 8] = all_reduce %s op=sum group=@g via=plain
%d: f32[n, 8] = add %q, %b
"#;

fn program(ranks: u32, group: &str, size: u32, body: &str) -> String {
    let text = format!(
        r#"program "custom" ranks {ranks}
symbol n in 1..=64
group @g {group}
custom "my::fused" symmetric operands [] results []
custom "my::sum" symmetric operands [0] results [] group @g
custom "my::spread" symmetric operands [] results [0] group @g
arg %x: f32[n, 8]
arg %state: f32[n, 8]
param %w: f32[8, 8] source "w"
%y: f32[n, 8] = matmul %x, %w
{body}
%v: f32[SIZE*n, 8] = neg %c
%next: f32[n, 8] = neg %state
return %v
mutate %state = %next
return %d
"#
    );
    text.replace("SIZE", &size.to_string())
}

/// `a[i, j] = t[j, i] + 2 x[i, j]`.
fn fused(call: &mut CustomCall<'_>) -> Result<(), CustomError> {
    let (t, x) = (call.operand::<f32>(0)?, call.operand::<f32>(1)?);
    let &[rows, columns] = call.result_shape(0)? else { return Err("expected two axes".into()) };
    let a = call.result::<f32>(0)?;
    for i in 0..rows {
        for j in 0..columns {
            a[i * columns + j] = t[j * rows + i] + 2.0 * x[i * columns + j];
        }
    }
    Ok(())
}

/// Delays the first rank of a cell, so that the kernels of its peers end while it still touches them.
fn come_late(call: &CustomCall<'_>) {
    if call.number() == 0 {
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The sum of the first operands of all ranks, and this rank's second one.
fn sum(call: &mut CustomCall<'_>) -> Result<(), CustomError> {
    come_late(call);
    let y = call.result::<f32>(0)?;
    y.copy_from_slice(&call.operand::<f32>(1)?);
    for number in 0..call.cell().len() {
        let x = call.peer_operand::<f32>(number, 0)?;
        y.iter_mut().zip(x.iter()).for_each(|(y, x)| *y += x);
    }
    Ok(())
}

/// Every rank's operand, one after another: each rank writes its own into all results.
fn spread(call: &mut CustomCall<'_>) -> Result<(), CustomError> {
    come_late(call);
    let x = call.operand::<f32>(0)?;
    let (mine, half) = (call.number() * x.len(), x.len() / 2);
    for number in 0..call.cell().len() {
        let y = call.peer_result::<f32>(number, 0)?;
        y.write(mine + half, &x[half..])?;
        y.write(mine, &x[..half])?;
    }
    Ok(())
}

/// The kernels of the programs here, and those that fail, on rank 1.
pub fn kernels() -> CustomKernelRegistry {
    let f32 = DType::F32;
    let mut kernels = CustomKernelRegistry::new();
    kernels.register("my::fused", KernelSignature::new(&[f32, f32], &[f32]), fused);
    kernels.register("my::sum", KernelSignature::new(&[f32, f32], &[f32]).reading_peers(&[0]), sum);
    kernels.register("my::spread", KernelSignature::new(&[f32], &[f32]).writing_peers(&[0]), spread);
    let reads = || KernelSignature::new(&[f32], &[f32]).reading_peers(&[0]);
    kernels.register("my::fails", reads(), |call| match call.rank() {
        1 => Err("it does not converge".into()),
        _ => Ok(()),
    });
    kernels.register("my::panics", KernelSignature::new(&[f32], &[f32]), |call| {
        assert!(call.rank() != 1, "no such case");
        Ok(())
    });
    kernels.register("my::curious", KernelSignature::new(&[f32, f32], &[f32]).reading_peers(&[0]), |call| {
        let errors = [
            call.operand::<f64>(0).err(),
            call.operand::<f32>(2).err(),
            call.peer_operand::<f32>(1 - call.number(), 1).err(),
            call.peer_operand::<f32>(2, 0).err(),
            call.peer_result::<f32>(0, 0).err(),
            call.result::<f32>(0).and_then(|_| call.result::<f32>(0)).err(),
        ];
        Err(errors.map(|e| e.map_or("nothing".into(), |e| e.to_string())).join("; ").into())
    });
    kernels.register("my::careless", KernelSignature::new(&[f32], &[f32]).writing_peers(&[0]), |call| {
        let shared = call.result::<f32>(0).err();
        let beyond = call.peer_result::<f32>(0, 0)?.write(usize::MAX, &[1.0]).err();
        Err([shared, beyond].map(|e| e.map_or("nothing".into(), |e| e.to_string())).join("; ").into())
    });
    kernels
}

/// This binary as a rank with other kernels.
fn rank_with(kernels: &str) -> RankCommand {
    RankCommand { args: vec!["rank-with".into(), kernels.into()], ..command() }
}

/// The kernels of such a rank.
pub fn kernels_of(name: &str) -> CustomKernelRegistry {
    let mut kernels = CustomKernelRegistry::new();
    if name == "other" {
        let signature = KernelSignature::new(&[DType::F32, DType::BF16], &[DType::F32]);
        kernels.register("my::fused", signature, fused);
    }
    kernels
}

/// The results of the program without custom ops.
fn known_job(ranks: u32, group: &str, size: u32, n: i64, repeats: u32) -> OwnedJob {
    let mut owned = OwnedJob::new(&program(ranks, group, size, KNOWN_PROGRAM), n);
    owned.repeats = repeats;
    owned
}

fn custom(ranks: u32, group: &str, size: u32, n: i64, repeats: u32) -> OwnedJob {
    let mut owned = OwnedJob::new(&program(ranks, group, size, CUSTOM_PROGRAM), n);
    owned.repeats = repeats;
    owned
}

/// The job of three ranks that join.
pub fn joined() -> OwnedJob {
    custom(3, "world", 3, 4, 1)
}

fn custom_ops_give_the_numbers() {
    for (ranks, n) in [(2, 5), (3, 1), (3, 64)] {
        let owned = custom(ranks, "world", ranks, n, 3);
        let expected = known_job(ranks, "world", ranks, n, 3).expected();
        assert_eq!(owned.expected(), expected, "the interpreter runs the kernels");
        assert_eq!(launch(&owned.job(), &command()).unwrap(), expected);
        assert_eq!(run_threads(&owned.job(), &kernels()).unwrap(), expected);
    }
}

fn custom_ops_give_the_numbers_under_chaos() {
    for ranks in [2, 3] {
        let mut owned = custom(ranks, "world", ranks, 3, 5);
        let expected = known_job(ranks, "world", ranks, 3, 5).expected();
        for seed in 0..12 {
            owned.config = RankConfig { chaos: Some(seed), ..owned.config };
            assert_eq!(run_threads(&owned.job(), &kernels()).unwrap(), expected, "threads, seed {seed}");
            if seed < 4 {
                assert_eq!(launch(&owned.job(), &command()).unwrap(), expected, "processes, seed {seed}");
            }
        }
    }
}

fn custom_ops_within_cells() {
    let cells = "[[0, 2], [3, 1]]";
    let owned = custom(4, cells, 2, 4, 2);
    let expected = known_job(4, cells, 2, 4, 2).expected();
    assert_eq!(launch(&owned.job(), &command()).unwrap(), expected);
    assert_eq!(run_threads(&owned.job(), &kernels()).unwrap(), expected);
}

/// A program of one custom op on operands of one shape, and its group if it has one.
fn single(name: &str, operands: &str, results: &str, group: &str, inputs: &str) -> OwnedJob {
    let text = format!(
        "program \"p\" ranks 2\nsymbol n in 1..=8\ngroup @g world\n\
         custom \"{name}\" symmetric operands {operands} results {results}{group}\n\
         arg %x: f32[n, 4]\narg %state: f32[n, 4]\n%e: f32[n, 4] = neg %x\n\
         %y: f32[n, 4] = custom \"{name}\" {inputs}\nreturn %y\nmutate %state = %e\n"
    );
    OwnedJob::new(&text, 2)
}

fn a_failing_kernel_ends_the_run() {
    let expect = |owned: &OwnedJob, op: &str, detail: &str| {
        for result in [run_threads(&owned.job(), &kernels()), launch(&owned.job(), &command())] {
            match result.map_err(|e| e.cause().clone()) {
                Err(RunError::Step { rank: 1, step, node, op: found, detail: why }) => {
                    assert_eq!((node.as_str(), found.as_str(), why.as_str()), ("y", op, detail));
                    assert_eq!(owned.plan.buckets[0].steps[step].node, "y");
                }
                other => panic!("expected the failure of rank 1, found {other:?}"),
            }
        }
    };
    let fails = single("my::fails", "[0]", "[]", " group @g", "%e");
    expect(&fails, "custom \"my::fails\"", "it does not converge");
    let panics = single("my::panics", "[]", "[]", "", "%e");
    expect(&panics, "custom \"my::panics\"", "the kernel panicked: no such case");
    let mut each = single("my::panics", "[]", "[]", "", "%e");
    each.config.chaos = Some(1);
    expect(&each, "custom \"my::panics\"", "the kernel panicked: no such case");
    let graph = text::parse(&fails.plan.source.text).unwrap();
    let interpreted = interp::run_with_registry(
        &graph,
        &fails.bindings,
        &fails.inputs,
        &kernels().to_interpreter_registry(),
    );
    assert!(interpreted.unwrap_err().to_string().contains("rank 1: it does not converge"));
}

/// The errors of a job on ranks without kernels, and on threads with a registry.
fn cannot_run(result: Result<Vec<Vec<symmc_ir::Tensor>>, RunError>) -> (Option<u32>, String, ValueMismatch) {
    match result {
        Err(RunError::CannotRun { rank, op, why, .. }) => (rank, op, why),
        other => panic!("expected a refusal, found {other:?}"),
    }
}

fn a_rank_without_kernels_is_named() {
    let owned = custom(2, "world", 2, 3, 1);
    let op = "custom \"my::fused\"".to_string();
    for result in [launch(&owned.job(), &rank_with("none")), run_threads(&owned.job(), &kernels_of("none"))] {
        let (rank, found, why) = cannot_run(result);
        assert!(rank.is_some_and(|r| r < 2), "{rank:?}");
        assert_eq!((found, why), (op.clone(), ValueMismatch::NoKernel));
    }
}

fn a_kernel_of_another_signature_is_refused() {
    let owned = custom(2, "world", 2, 3, 1);
    let mismatch = "operand 1: expected bf16, found f32".to_string();
    for result in [launch(&owned.job(), &rank_with("other")), run_threads(&owned.job(), &kernels_of("other"))]
    {
        assert_eq!(cannot_run(result).2, ValueMismatch::Signature(mismatch.clone()));
    }
    let differs = |signature: KernelSignature| {
        let mut kernels = kernels();
        kernels.register("my::sum", signature, sum);
        match cannot_run(run_threads(&owned.job(), &kernels)).2 {
            ValueMismatch::Signature(what) => what,
            other => panic!("expected another signature, found {other:?}"),
        }
    };
    let f32 = DType::F32;
    assert_eq!(differs(KernelSignature::new(&[f32], &[f32])), "expected 1 operand(s), found 2");
    assert_eq!(differs(KernelSignature::new(&[f32; 2], &[f32; 2])), "expected 2 result(s), found 1");
    assert_eq!(
        differs(KernelSignature::new(&[f32; 2], &[f32])),
        "operands that peers read: expected positions [], found [0]"
    );
    assert_eq!(
        differs(KernelSignature::new(&[f32; 2], &[f32]).reading_peers(&[0]).writing_peers(&[0])),
        "results that peers write: expected positions [0], found []"
    );
}

fn a_kernel_gets_what_it_declares() {
    let detail = |owned: OwnedJob| match run_threads(&owned.job(), &kernels()) {
        Err(RunError::Step { detail, .. }) => detail,
        other => panic!("expected a failure, found {other:?}"),
    };
    assert_eq!(
        detail(single("my::curious", "[0]", "[]", " group @g", "%e, %x")),
        "operand 0 is f32, the kernel accesses it as f64; \
         the kernel asks for operand 2, the op has 2; \
         the signature does not let kernels read operand 1 of peers; \
         the kernel asks for rank number 2 of a cell of 2 ranks; \
         the signature does not let kernels write result 0 of peers; \
         the kernel has borrowed result 0 already"
    );
    assert_eq!(
        detail(single("my::careless", "[]", "[0]", " group @g", "%e")),
        "peers write result 0 too: the kernel must write it as a result of peers; \
         the kernel writes 1 elements at 18446744073709551615 of result 0, which has 8"
    );
}
