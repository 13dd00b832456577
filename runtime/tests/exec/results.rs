//! Planned programs give the results of the interpreter, inline and with a thread for each lane.

use symmc_ir::{DType, Tensor, interp};
use symmc_runtime::custom::KernelSignature;
use symmc_runtime::exec::{CustomKernelRegistry, ExecConfig, Lanes, Timing};

use crate::support::{
    NoCommunicator, RankBuffers, bindings, check_against_interpreter, inputs, planned, run_once,
};

/// Checks a program in both modes for several values of its symbols.
fn assert_agrees(program: &str, values: &[&[(&str, i64)]]) {
    let planned = planned(program);
    let none = (&CustomKernelRegistry::new(), &interp::ReferenceKernelRegistry::new());
    for lanes in [Lanes::Inline, Lanes::Threads] {
        for values in values {
            let config = ExecConfig { lanes, ..ExecConfig::default() };
            check_against_interpreter(&planned, none, config, values, 3);
        }
    }
}

#[test]
fn views_of_all_kinds() {
    assert_agrees(
        r#"program "views" ranks 1
symbol n in 1..=40

arg %x: f32[n, 6, 4]
param %w: f32[8, 6]
%t: f32[6, n, 4] = permute %x perm=[1, 0, 2]
%half: f32[3, n, 4] = slice %t axis=0 start=1 step=2
%flat: f32[3, 4*n] = reshape %half
%wide: f32[2, 3, 4*n] = expand %flat
%twice: f32[2, 3, 4*n] = add %wide, %wide
%wt: f32[6, 8] = permute %w perm=[1, 0]
%rows: f32[n, 4, 6] = permute %x perm=[0, 2, 1]
%y: f32[n, 4, 8] = matmul %rows, %wt
%z: f32[n, 32] = reshape %y
%cut: f32[n, 5] = slice %z axis=1 start=27 step=1
%gelu: f32[n, 5] = gelu %cut
return %twice
return %gelu
"#,
        &[&[("n", 1)], &[("n", 7)], &[("n", 40)]],
    );
}

#[test]
fn a_sharded_layer_with_overlapping_collectives() {
    let layer = |via: [&str; 3]| {
        format!(
            r#"program "layer" ranks 2
symbol n in 1..=24
group @tp world

arg %x: f32[2*n, 8]
param %w1: f32[8, 16]
param %w2: f32[16, 8]
param %gain: f32[8]
%h: f32[2*n, 16] = matmul %x, %w1
%a: f32[2*n, 16] = silu %h
%p: f32[2*n, 8] = matmul %a, %w2
%s: f32[2*n, 8] = all_reduce %p op=sum group=@tp via={}
%q: f32[2*n, 16] = mul %h, %a
%r: f32[2*n, 8] = matmul %q, %w2
%own: f32[n, 8] = reduce_scatter %r op=sum group=@tp via={}
%norm: f32[n, 8] = rms_norm %own, %gain axes=1 eps=1e-5 round_first=true
%all: f32[2*n, 8] = all_gather %norm group=@tp via={}
%y: f32[2*n, 8] = add %s, %all
%out: f32[2*n, 8] = softmax %y axis=1 log=false
return %out
return %s
"#,
            via[0], via[1], via[2]
        )
    };
    for via in [["plain", "plain", "plain"], ["one_shot", "pull", "ll"], ["two_shot", "pull", "push"]] {
        assert_agrees(&layer(via), &[&[("n", 1)], &[("n", 5)], &[("n", 24)]]);
    }
}

#[test]
fn puts_follow_changing_inputs_for_thousands_of_runs() {
    let exchange = |how: &str| {
        format!(
            r#"program "exchange" ranks 3
symbol n in 0..=9
group @all world

arg %x: f32[n, 4]
%h: f32[n, 4] = neg %x
%y: f32[n, 4] = {how} group=@all via=put
%z: f32[n, 4] = add %y, %x
%a: f32[n, 4] = {how} group=@all via=put
return %z
return %a
"#
        )
    };
    let none = (&CustomKernelRegistry::new(), &interp::ReferenceKernelRegistry::new());
    for (how, n) in [
        ("permute_ranks %h pairs=[0->1, 1->2, 2->0]", 2),
        ("permute_ranks %h pairs=[0->1, 2->2]", 9),
        ("broadcast %h root=2", 1),
        ("broadcast %h root=0", 0),
    ] {
        let planned = planned(&exchange(how));
        for lanes in [Lanes::Inline, Lanes::Threads] {
            let config = ExecConfig { lanes, ..ExecConfig::default() };
            check_against_interpreter(&planned, none, config, &[("n", n)], 2000);
        }
    }
}

#[test]
fn exchange_with_sizes_on_the_device() {
    for via in ["plain", "pull"] {
        let text = EXCHANGE.replace("VIA", via);
        assert_agrees(&text, &[&[("n", 2)], &[("n", 9)]]);
    }
}

const EXCHANGE: &str = r#"program "exchange" ranks 2
symbol n in 2..=9
group @ep world

arg %x: f32[n, 3]
const %one: i64[2] = hex"01000000000000000100000000000000"
%y: f32[n, 3], %received: i64[2] = all_to_all %x, %one splits=device group=@ep via=VIA
return %y
return %received
"#;

#[test]
fn in_place_results_and_parts_match_the_interpreter() {
    let program = |via: &str| {
        format!(
            r#"program "over" ranks 2
symbol n in 3..=70
group @tp world

arg %x: f32[n, 8]
arg %at: i64[3]
arg %to: i64[n, 8]
param %w: f32[8, 8]
param %gain: f32[8]
%h: f32[n, 8] = matmul %x, %w
%soft: f32[n, 8] = softmax %h axis=0 log=true
%norm: f32[n, 8] = rms_norm %soft, %gain axes=1 eps=1e-5 round_first=false
%layer: f32[n, 8] = layer_norm %norm, %gain axes=1 eps=1e-5
%sums: f32[n, 8] = cumsum %layer axis=0
%root: f32[n, 8] = broadcast %sums root=1 group=@tp via={via}
%rows: f32[3, 8] = slice %x axis=0 start=0 step=1
%put: f32[n, 8] = index_put %root, %rows, %at axis=0 accumulate=false
%added: f32[n, 8] = index_add %put, %at, %rows axis=0
%spread: f32[n, 8] = scatter_elements %added, %to, %x axis=0 combine=sum
%part: f32[n, 8] = matmul %spread, %w
%both: f32[2*n, 8] = concat %part, %x axis=0
%later: f32[n, 8] = exp %part
%wide: f32[2*n, 8] = tanh %both
%last: f32[3*n, 8] = concat %wide, %later axis=0
%out: f32[3*n, 8] = matmul %last, %w
return %out
"#
        )
    };
    for via in ["plain", "put"] {
        assert_agrees(&program(via), &[&[("n", 3)], &[("n", 9)], &[("n", 70)]]);
    }
}

#[test]
fn large_steps_that_run_in_slabs() {
    assert_agrees(
        r#"program "slabs" ranks 1
symbol n in 1..=40

arg %x: f32[n, 30, 80]
arg %t: f32[30, 80, n]
param %w: f32[80]
param %c: f32[30, 1]
%sub: f32[n, 30, 80] = sub %x, %c
%turned: f32[n, 30, 80] = permute %t perm=[2, 0, 1]
%sum: f32[n, 30, 80] = add %sub, %turned
%norm: f32[n, 30, 80] = layer_norm %sum, %w, %w axes=1 eps=1e-5
%tanh: f32[n, 30, 80] = tanh %norm
%wide: f64[n, 30, 80] = cast %tanh
%back: f32[n, 30, 80] = cast %wide
%more: f32[n, 30, 80] = mul %back, %sum
%soft: f32[n, 30, 80] = softmax %more axis=2 log=false
%flip: f32[n, 30, 80] = neg %soft
%p: f32[30, 80, n] = permute %flip perm=[1, 2, 0]
%next: f32[30, 80, n] = add %p, %t
return %flip
return %more
return %next
"#,
        &[&[("n", 1)], &[("n", 27)], &[("n", 40)]],
    );
}

#[test]
fn attention_over_a_mask_from_positions() {
    assert_agrees(
        r#"program "attention" ranks 1
symbol n in 1..=90

arg %q: bf16[4, n, 8]
arg %k: bf16[2, n, 8]
arg %ids: i64[n]
param %e: bf16[32, 8]
%rows: bf16[n, 8] = take %e, %ids axis=0
%v1: bf16[1, n, 8] = reshape %rows
%v: bf16[2, n, 8] = concat %v1, %v1 axis=0
%i: i64[n] = iota start=0 step=1
%c: i64[n, 1] = reshape %i
%seen: bool[n, n] = ge %c, %i
%o: bf16[4, n, 8] = attention %q, %k, %v, %seen causal=false scale=0.3
%m: bf16[n, 4, 8] = permute %o perm=[1, 0, 2]
%y: bf16[n, 32] = reshape %m
return %y
"#,
        &[&[("n", 1)], &[("n", 90)]],
    );
}

#[test]
fn attention_bounds_follow_the_sizes_of_a_run() {
    assert_agrees(
        r#"program "attention" ranks 1
symbol n in 1..=90
symbol m in 0..=40

arg %q: bf16[4, n, 8]
arg %k: bf16[2, m + n, 8]
arg %ids: i64[4, 1, 1]
%at: i64[4, 1, 1] = rem %ids, 50
%o: bf16[4, n, 8] = attention %q, %k, %k, %at bounds=[below row + (m + 1), from operand + (-m)] scale=0.3
return %o
"#,
        &[&[("n", 1), ("m", 0)], &[("n", 90), ("m", 40)], &[("n", 7), ("m", 30)]],
    );
}

#[test]
fn inputs_are_mutated_from_run_to_run() {
    let program = |via: &str| {
        format!(
            r#"program "state" ranks 2
group @tp world

arg %x: f32[4]
param %state: f32[4]
param %log: f32[4]
%sum: f32[4] = all_reduce %state op=avg group=@tp via={via}
%next: f32[4] = add %sum, %x
%longer: f32[4] = mul %log, %x
return %sum
mutate %state = %next
mutate %log = %longer
"#
        )
    };
    assert_agrees(&program("plain"), &[&[]]);
    // The one-shot variant needs its operand in the symmetric arena: the parameter is held there.
    assert_agrees(&program("one_shot"), &[&[]]);
}

#[test]
fn a_cache_is_changed_where_it_lies() {
    let program = |rest: &str| {
        format!(
            r#"program "cache" ranks 2
symbol n in 4..=40
group @tp world

arg %x: f32[2, 8]
arg %at: i64[2]
param %keys: f32[n, 8]
param %sums: f32[2, 8]
%own: f32[2, 8] = all_reduce %x op=avg group=@tp via=plain
%next: f32[n, 8] = index_put %keys, %own, %at axis=0 accumulate=true
%more: f32[2, 8] = add %own, %sums
{rest}
return %z
mutate %sums = %more
mutate %keys = %next
"#
        )
    };
    let used = program("%z: f32[n, 8] = exp %next");
    assert!(planned(&used).plan.to_json().contains("in one memory with output 2"));
    // The old value is read after the new one is made.
    let read = program("%z: f32[n, 8] = sub %next, %keys");
    assert!(!planned(&read).plan.to_json().contains("in one memory with output 2"));
    for program in [used, read] {
        assert_agrees(&program, &[&[("n", 4)], &[("n", 31)]]);
    }
}

#[test]
fn custom_ops_run_registered_kernels() {
    let planned = planned(
        r#"program "custom" ranks 1
custom "my::twice" symmetric operands [] results []

arg %x: f32[6]
%y: f32[6] = custom "my::twice" %x
return %y
"#,
    );
    let mut kernels = CustomKernelRegistry::new();
    kernels.register("my::twice", KernelSignature::new(&[DType::F32], &[DType::F32]), |call| {
        let x = call.operand::<f32>(0)?;
        call.result::<f32>(0)?.iter_mut().zip(x.iter()).for_each(|(y, x)| *y = 2.0 * x);
        Ok(())
    });
    let mut oracle = interp::ReferenceKernelRegistry::new();
    oracle.register("my::twice", |call| {
        let twice = |x: &Tensor| x.to_f64().iter().map(|x| 2.0 * x).collect::<Vec<_>>();
        let result =
            |x: &Tensor| Tensor::from_f64(DType::F32, x.shape(), &twice(x)).ok_or("too large".to_string());
        call.operands.iter().map(|x| Ok(vec![result(&x[0])?])).collect()
    });
    check_against_interpreter(&planned, (&kernels, &oracle), ExecConfig::default(), &[], 1);
}

#[test]
fn steps_are_timed_where_asked() {
    let planned = planned("program \"p\" ranks 1\narg %x: f32[4]\n%y: f32[4] = exp %x\nreturn %y\n");
    let none = bindings(&planned.graph, &[]);
    let mut rank = RankBuffers::new(&planned, &none, &inputs(&planned.graph, &none, 1)[0]);
    let (memory, registry) = (rank.memory(), CustomKernelRegistry::new());
    let timed = ExecConfig { timing: Timing::Steps, ..ExecConfig::default() };
    let report = run_once(&planned.plan, &registry, timed, &none, &memory, &NoCommunicator).expect("runs");
    assert_eq!(report.step_ns.map(|ns| ns.len()), Some(planned.plan.buckets[0].steps.len()));
    let report = run_once(&planned.plan, &registry, ExecConfig::default(), &none, &memory, &NoCommunicator)
        .expect("runs");
    assert_eq!(report.step_ns, None);
}

#[test]
fn rows_without_elements_are_sent_and_counted() {
    for via in ["plain", "pull"] {
        assert_agrees(
            &format!(
                "program \"rows\" ranks 2\nsymbol n in 0..=3\ngroup @w world\narg %x: i64[4, n]\narg %s: i64[2]\n\
                 %k: i64[4, n] = neg %x\n\
                 %y: i64[4, n], %c: i64[2] = all_to_all %k, %s splits=device group=@w via={via}\n\
                 return %y\nreturn %c\n"
            ),
            &[&[("n", 0)], &[("n", 3)]],
        );
    }
}
