//! Sessions on GPUs, in one process with a thread for each of two ranks: runs that change between bindings and
//! buckets, against the interpreter; programs that take turns in one session; and threads whose own context is current again after a joined run.
//!
//! `check_sessions [GPU GPU]`

mod threads;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use symmc::unstable::cuda::device::driver;
use symmc::unstable::ir::interp::{self, Tolerance};
use symmc::unstable::support::random::SplitMix;
use symmc::{
    ArgumentBinding, BucketSpec, CheckedPlan, CollectiveVariant, CompileConfig, DType, Device, DrawConfig,
    GpuConfig, Group, MachineProfile, Membership, Program, RunConfig, Session, SessionConfig, Tensor,
    Weights, Workload,
};
use threads::on_ranks;

const BUCKETS_PROGRAM: &str = r#"program "buckets" ranks 2
symbol n in 1..=64
group @w world
arg %x: f32[n, 256]
param %state: f32[256] source "state"
param %w: f32[256, 256] source "w"
%y: f32[n, 256] = matmul %x, %w
%all: f32[n, 256] = all_reduce %y op=sum group=@w
%z: f32[n, 256] = add %all, %state
%next: f32[256] = reduce %z op=mean axes=[0] keep=false
return %z
mutate %state = %next
"#;

/// The bindings of the session, of two buckets, and the order in which they run.
const TOKEN_SIZES: [i64; 3] = [3, 4, 50];
const RUN_ORDER: [usize; 8] = [0, 2, 1, 2, 0, 0, 2, 1];
const RANK_COUNT: usize = 2;
const WAIT_TIMEOUT: Duration = Duration::from_secs(20);

/// What all ranks of one run get and give: for each run of the order the inputs and the first output.
struct ExpectedRuns {
    inputs: Vec<Vec<Vec<Arc<Tensor>>>>,
    outputs: Vec<Vec<Tensor>>,
}

fn expected(program: &Program) -> Result<ExpectedRuns> {
    let mut random = SplitMix(5);
    let mut draw = |shape: &[usize], scale: f64| {
        let n = shape.iter().product();
        let elements: Vec<f64> = (0..n).map(|_| random.symmetric_unit() * scale).collect();
        Arc::new(Tensor::from_f64(DType::F32, shape, &elements).expect("as many as the shape says"))
    };
    let weights: Vec<_> = (0..RANK_COUNT).map(|_| draw(&[256, 256], 0.1)).collect();
    let first = draw(&[256], 1.0);
    let mut states = vec![first; RANK_COUNT];
    let mut out = ExpectedRuns { inputs: vec![], outputs: vec![] };
    for which in RUN_ORDER {
        let x = draw(&[TOKEN_SIZES[which] as usize, 256], 1.0);
        let bindings = symmc::resolve_bindings(&program.graph, &[("n".into(), TOKEN_SIZES[which])])?;
        let inputs: Vec<Vec<_>> =
            (0..RANK_COUNT).map(|r| vec![x.clone(), states[r].clone(), weights[r].clone()]).collect();
        let results = interp::run(&program.graph, &bindings, &inputs)?;
        states = results.iter().map(|r| Arc::new(r[1].clone())).collect();
        out.inputs.push(inputs);
        out.outputs.push(results.into_iter().map(|mut r| r.swap_remove(0)).collect());
    }
    Ok(out)
}

/// One rank: a session whose sizes change, run in the order above.
fn runs(plan: &CheckedPlan, gpu: u32, group: &Group, expected: &ExpectedRuns) -> Result<()> {
    let config = SessionConfig::default().with_timeout(WAIT_TIMEOUT).with_gpu(GpuConfig::new(gpu));
    let mut session = Session::open(plan, group, &config)?;
    for (run, &which) in RUN_ORDER.iter().enumerate() {
        let rank = group.rank() as usize;
        let [x, state, weights] = &expected.inputs[run][rank][..] else { bail!("three inputs") };
        session.set("n", TOKEN_SIZES[which])?;
        session.write_tensor("x", x)?;
        if run == 0 {
            // The state lives on in the session.
            session.write_tensor("state", state)?;
            session.write_tensor("w", weights)?;
        }
        session.run()?;
        let (found, wanted) = (session.read("out.0")?, &expected.outputs[run][rank]);
        let difference = interp::compare(&found, wanted, Tolerance::absolute(1e-4));
        ensure!(difference.agrees(), "run {run} of n={} differs: {difference}", TOKEN_SIZES[which]);
    }
    Ok(session.close()?)
}

/// One rank: a session in which more and more programs take turns, each of which has a state that lives on.
fn turns(plans: &[CheckedPlan], gpu: u32, group: &Group, expected: &ExpectedRuns) -> Result<()> {
    let config = SessionConfig::default().with_timeout(WAIT_TIMEOUT).with_gpu(GpuConfig::new(gpu));
    let mut sessions: Vec<(Session, usize)> = Vec::new();
    for _ in 0..plans.len() + RUN_ORDER.len() {
        if let Some(plan) = plans.get(sessions.len()) {
            let opened = match sessions.first() {
                None => Session::open(plan, group, &config)?,
                Some((first, _)) => first.open_program(plan)?,
            };
            sessions.push((opened, 0));
        }
        for (number, (session, run)) in
            sessions.iter_mut().enumerate().filter(|(_, (_, run))| *run < RUN_ORDER.len())
        {
            let which = RUN_ORDER[*run];
            let rank = group.rank() as usize;
            let [x, state, weights] = &expected.inputs[*run][rank][..] else { bail!("three inputs") };
            session.set("n", TOKEN_SIZES[which])?;
            session.write_tensor("x", x)?;
            if *run == 0 {
                session.write_tensor("state", state)?;
                session.write_tensor("w", weights)?;
            }
            session.enqueue()?;
            session.wait(WAIT_TIMEOUT)?;
            let (found, wanted) = (session.read("out.0")?, &expected.outputs[*run][rank]);
            let difference = interp::compare(&found, wanted, Tolerance::absolute(1e-4));
            ensure!(
                difference.agrees(),
                "program {number}, run {run} of n={} differs: {difference}",
                TOKEN_SIZES[which]
            );
            *run += 1;
        }
    }
    sessions.into_iter().try_for_each(|(session, _)| Ok(session.close()?))
}

/// Joins a run while the context of the other rank's GPU is current, which it must be afterwards.
fn joins(plan: &CheckedPlan, work: &Workload, rank: usize, gpus: [u32; RANK_COUNT]) -> Result<()> {
    let other_device = driver::Device::open(gpus[RANK_COUNT - 1 - rank])?;
    let run = format!("check_sessions {}", std::process::id());
    let membership = Membership { rank: rank as u32, ranks: RANK_COUNT as u32, run };
    let device = Device::Gpu(GpuConfig::default().with_gpus(gpus));
    symmc::run_joined(
        plan,
        work,
        &membership,
        &RunConfig::default().with_device(device).with_timeout(WAIT_TIMEOUT),
    )?;
    ensure!(other_device.is_current()?, "rank {rank}: the caller's context is not current after the run");
    Ok(())
}

fn run(gpus: [u32; RANK_COUNT]) -> Result<()> {
    let program = Program::from_text(BUCKETS_PROGRAM)?;
    let buckets = [BucketSpec::new("n", [4, 64])];
    let profile = MachineProfile::builtin("h200x2").context("no profile h200x2")?;
    let plan =
        symmc::compile(&program, &CompileConfig::default().with_profile(profile).with_buckets(buckets))?;
    let wanted = expected(&program)?;
    ensure!(plan.buckets.len() == 2, "expected 2 buckets, found {}", plan.buckets.len());
    let groups = Group::threads(RANK_COUNT as u32);
    on_ranks(RANK_COUNT, |rank| runs(&plan, gpus[rank], &groups[rank], &wanted))?;
    println!(
        "{} runs between {} bindings of 2 buckets: as the interpreter",
        RUN_ORDER.len(),
        TOKEN_SIZES.len()
    );
    let variants = [
        CollectiveVariant::OneShot,
        CollectiveVariant::Ll,
        CollectiveVariant::NcclWindow,
        CollectiveVariant::Plain,
        CollectiveVariant::TwoShot,
    ];
    let plans = variants.map(|variant| {
        let config = CompileConfig::default()
            .with_profile(MachineProfile::builtin("h200x2").context("no profile h200x2")?);
        let config = config.with_bind(ArgumentBinding::All).with_variants(Some(vec![variant]));
        Ok(symmc::compile(&program, &config)?)
    });
    let plans = plans.into_iter().collect::<Result<Vec<_>>>()?;
    on_ranks(RANK_COUNT, |rank| turns(&plans, gpus[rank], &groups[rank], &wanted))?;
    println!("{} programs take turns in one session: as the interpreter", plans.len());
    let draw = DrawConfig::default().with_symbols([("n", 4)]);
    let work = Workload::gather(&program.graph, &Weights::default(), None, &draw)?;
    on_ranks(RANK_COUNT, |rank| joins(&plan, &work, rank, gpus))?;
    println!("joined runs leave the caller's context as it was");
    Ok(())
}

fn main() -> ExitCode {
    let numbers: Result<Vec<u32>, _> = std::env::args().skip(1).map(|a| a.parse()).collect();
    let gpus = match numbers.as_deref() {
        Ok([]) => [0, 1],
        Ok(&[a, b]) => [a, b],
        _ => {
            eprintln!("usage: check_sessions [GPU GPU]");
            return ExitCode::from(2);
        }
    };
    match run(gpus) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(1)
        }
    }
}
