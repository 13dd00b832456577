//! From a program to a checked plan: the pipeline of passes and planner, bucket by bucket.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use symmc_check::{CheckError, CheckedPlan, Report};
#[cfg(feature = "cuda")]
use symmc_ir::machine::TargetBackend;
use symmc_ir::{Graph, InputId, InputKind};
use symmc_passes::CanonicalForms;
use symmc_plan::{Plan, ReadPlan, ReadProgram, Replacement};

use crate::config::{Bind, Config};
use crate::divide::BucketRequest;
use crate::error::{Error, ErrorKind};
use crate::files::{read, utf8};
use crate::pipeline::{Choice, Pipeline};
use crate::program::Program;
use crate::ranges;
use crate::refine::refined;

/// The stages of a compilation with the time that each took.
pub type Stages = Vec<(&'static str, Duration)>;

/// Compiles a program into a plan, and checks that.
///
/// # Errors
/// The number of ranks is open, a request does not fit the program, the program cannot be planned
/// ([`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) where the machine of the profile is why,
/// [`ErrorKind::Resources`](crate::ErrorKind::Resources) where memory is), or the check finds the plan unsafe
/// ([`ErrorKind::Defect`](crate::ErrorKind::Defect), with the [plan](Error::plan)).
pub fn compile(program: &Program, config: &Config) -> Result<CheckedPlan, Error> {
    compile_timed(program, config).map(|(plan, _)| plan)
}

/// [`compile`], and how long each stage took.
///
/// # Errors
/// As [`compile`].
pub fn compile_timed(program: &Program, config: &Config) -> Result<(CheckedPlan, Stages), Error> {
    if !(config.slack.is_finite() && config.slack >= 0.0) {
        let text = format!("slack: expected a fraction of at least 0, found {}", config.slack);
        return Err(Error::request(text));
    }
    if !(config.memory_price.is_finite() && config.memory_price >= 0.0) {
        let found = config.memory_price;
        return Err(Error::request(format!("memory_price: expected a number of at least 0, found {found}")));
    }
    let mut clock = Instant::now();
    let mut times = Stages::new();
    let mut lap = |stage| times.push((stage, std::mem::replace(&mut clock, Instant::now()).elapsed()));
    let mut forms = canonical_forms(program)?;
    let replacements = replacements(&program.graph, &mut forms);
    lap("canonicalise");
    let bound = bound_inputs(&program.graph, &config.bind)?;
    let pipeline = Pipeline::new(program, config, &forms, &bound);
    let buckets = ranges::buckets(&forms.usual, config, &bound)?;
    lap("divide");
    let plan = refined(&pipeline, buckets, &ranges::unasked(&forms.usual, config))?;
    lap("plan");
    let plan = Plan { replacements, ..plan };
    let plan = proven(plan, &program.graph.name)?;
    lap("check");
    #[cfg(feature = "cuda")]
    let plan = if config.profile.backend == TargetBackend::Cuda { for_gpus(plan)? } else { plan };
    #[cfg(feature = "cuda")]
    lap("lower");
    Ok((plan, times))
}

/// The plan of a program for these buckets, which nobody runs: it is not checked, and no collectives are coalesced.
///
/// # Errors
/// As [`compile`], except that the plan is not checked.
pub fn plan_to_estimate(
    program: &Program,
    config: &Config,
    buckets: &[BucketRequest],
) -> Result<ReadPlan, Error> {
    let forms = canonical_forms(program)?;
    let bound = bound_inputs(&program.graph, &config.bind)?;
    let pipeline = Pipeline { coalesces: false, ..Pipeline::new(program, config, &forms, &bound) };
    let plan = pipeline.planned(buckets)?.plan;
    let defect = |error: &dyn std::fmt::Display| Error::new(ErrorKind::Defect, error.to_string());
    let programs: Result<Vec<ReadProgram>, _> = plan.programs.iter().map(|t| ReadProgram::read(t)).collect();
    let programs = programs.map_err(|e| defect(&e))?;
    let plan = ReadPlan::of(Arc::new(plan), program.graph.clone(), programs);
    #[cfg(feature = "cuda")]
    if config.profile.backend == TargetBackend::Cuda {
        refuse(&plan, &symmc_cuda::refusal::refusals(&plan, &[]))?;
    }
    Ok(plan)
}

/// A plan of which GPUs can run every step, with what these take beside the arenas.
#[cfg(feature = "cuda")]
fn for_gpus(plan: CheckedPlan) -> Result<CheckedPlan, Error> {
    let found = symmc_cuda::refusal::on_gpus(&plan);
    refuse(&plan, &found.refusals)?;
    Ok(plan.with_workspaces(&found.workspaces))
}

/// Refuses a plan of which GPUs cannot run every step. `gpus` is the GPU of each rank, one each if it is empty. Custom and
/// opaque ops are not looked at.
///
/// # Errors
/// The first steps that they cannot run, and why ([`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported)).
#[cfg(feature = "cuda")]
pub fn refuse_for_gpus(plan: &CheckedPlan, gpus: &[u32]) -> Result<(), Error> {
    refuse(plan, &symmc_cuda::refusal::refusals(plan, gpus))
}

#[cfg(feature = "cuda")]
fn refuse(plan: &ReadPlan, refusals: &[symmc_cuda::refusal::Refusal]) -> Result<(), Error> {
    const NAMED: usize = 5;
    let Some(first) = refusals.first() else { return Ok(()) };
    let named: Vec<String> = refusals.iter().take(NAMED).map(ToString::to_string).collect();
    let message = match refusals.len() {
        n if n <= NAMED => named.join("\n"),
        n => format!("{}\nand {} more", named.join("\n"), n - NAMED),
    };
    Err(Error::refused(&plan.source.name, (&first.node, &first.op), message))
}

/// A plan that was just made, if it checks.
fn proven(plan: Plan, program: &str) -> Result<CheckedPlan, Error> {
    CheckedPlan::or_back(plan).map_err(|refused| {
        let (plan, findings) = *refused;
        let findings = findings.iter().map(ToString::to_string).collect();
        Error::defect(program, plan, findings)
    })
}

/// Proves a plan safe.
///
/// # Errors
/// Every finding.
pub fn check(plan: &Plan) -> Result<Report, Error> {
    symmc_check::check(plan).map_err(|e| findings(&e))
}

/// Proves a plan safe, so that it can run.
///
/// # Errors
/// Every finding.
pub fn checked(plan: Plan) -> Result<CheckedPlan, Error> {
    CheckedPlan::new(plan).map_err(|e| findings(&e))
}

fn findings(errors: &[CheckError]) -> Error {
    Error::unsafe_plan(errors.iter().map(ToString::to_string).collect())
}

/// What a file with a plan holds.
const PLAN: &str = "a plan (JSON)";

/// Reads a plan from a file; [`checked`] makes it one that can run.
///
/// # Errors
/// The file cannot be read or is no plan of this version.
pub fn read_plan(path: &Path) -> Result<Plan, Error> {
    let text = utf8(path, read(path, PLAN)?, PLAN)?;
    Plan::from_json(&text).map_err(|e| Error::misread(path, e.to_string(), e))
}

/// The program with a variant for each collective: one graph for each bucket, with the ranges of its symbols. These are the
/// variants that are chosen first; [`compile`] chooses again where a schedule has less computation beside collectives than could
/// be there, and where another canonical form is faster in a bucket.
///
/// # Errors
/// As [`compile`].
pub fn lowered(program: &Program, config: &Config) -> Result<Vec<Graph>, Error> {
    let forms = canonical_forms(program)?;
    let bound = bound_inputs(&program.graph, &config.bind)?;
    let buckets = ranges::buckets(&forms.usual, config, &bound)?;
    let pipeline = Pipeline::new(program, config, &forms, &bound);
    let lowered = pipeline.lower(&buckets, &Choice::default())?;
    Ok(lowered.inputs.into_iter().map(|input| input.graph).collect())
}

/// The program in canonical form, with decomposed ops recognised.
///
/// # Errors
/// As [`compile`].
pub fn canonical(program: &Program) -> Result<Graph, Error> {
    canonical_forms(program).map(|forms| forms.usual)
}

/// The canonical forms of a program.
fn canonical_forms(program: &Program) -> Result<CanonicalForms, Error> {
    if program.graph.ranks.is_none() {
        return Err(Error::request("the number of ranks is open; fix it before compiling"));
    }
    symmc_passes::canonical_forms(&program.graph).map_err(|e| Error::pass(&program.graph.name, e))
}

/// What became of the collectives of a program in its canonical form.
fn replacements(source: &Graph, forms: &mut CanonicalForms) -> Vec<Replacement> {
    let recorded = std::mem::take(&mut forms.replaced);
    let changes = symmc_passes::changes(source, &forms.usual, recorded).into_iter();
    let replacements = changes.map(|change| Replacement {
        collective: change.replaced.collective,
        rule: change.replaced.rule.into(),
        what: change.replaced.what,
        bytes: u64::try_from(change.bytes.upper(&source.symbols)).unwrap_or(0),
        by: change.replaced.by,
    });
    replacements.collect()
}

/// The arguments that are bound, by their position.
fn bound_inputs(graph: &Graph, bind: &Bind) -> Result<BTreeSet<InputId>, Error> {
    let arguments = || graph.inputs.iter().filter(|(_, i)| i.kind == InputKind::Argument);
    match bind {
        Bind::None => Ok(BTreeSet::new()),
        Bind::All => Ok(arguments().map(|(id, _)| id).collect()),
        Bind::Named(names) => names
            .iter()
            .map(|name| {
                let wanted = name.trim_start_matches('%');
                let found = graph.inputs.iter().find(|(_, i)| graph.name_of(i.value) == wanted);
                let known: Vec<&str> = arguments().map(|(_, i)| graph.name_of(i.value)).collect();
                let known = if known.is_empty() { "none".into() } else { known.join(", ") };
                match found {
                    Some((id, input)) if input.kind == InputKind::Argument => Ok(id),
                    Some(_) => Err(Error::request(format!(
                        "{name} is no argument: what is not written between runs lies in symmetric memory \
                         wherever a collective needs it there; the program has the arguments: {known}"
                    ))),
                    None => {
                        Err(Error::request(format!("the program has no argument {name}; it has: {known}")))
                    }
                }
            })
            .collect(),
    }
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use symmc_ir::machine::Profile;
    use symmc_ir::{Form, text};
    use symmc_plan::Decision;

    use super::*;
    use crate::config::BucketSpec;

    #[test]
    fn a_plan_of_ours_that_does_not_check_is_a_defect_of_ours() {
        let graph = text::parse("program \"p\" ranks 1\narg %x: f32[4]\n%y: f32[4] = exp %x\nreturn %y\n");
        let program = Program::from_graph(graph.expect("a graph")).expect("a program");
        let mut plan = compile(&program, &Config::default()).expect("a plan").into_plan();
        plan.buckets[0].steps.clear();
        let error = proven(plan.clone(), "p").expect_err("no step computes %y");
        assert!(
            error.kind() == ErrorKind::Defect && error.to_string().contains("p: the plan that symmc made"),
            "{error}"
        );
        assert!(error.plan() == Some(&plan) && !error.findings().is_empty());
    }

    /// Two layers of which each adds its residual behind an all-reduce, and an all-reduce that something else follows.
    const LAYERS: &str = "program \"p\" ranks 4\ngroup @all world\narg %x: bf16[16, 4096]\n\
        param %w: bf16[4096, 4096]\n\
        %h: bf16[16, 4096] = matmul %x, %w\n%y: bf16[16, 4096] = all_reduce %h op=sum group=@all\n\
        %z: bf16[16, 4096] = add %x, %y\n\
        %i: bf16[16, 4096] = matmul %z, %w\n%u: bf16[16, 4096] = all_reduce %i op=sum group=@all\n\
        %v: bf16[16, 4096] = add %u, %z\n\
        %j: bf16[16, 4096] = matmul %v, %w\n%r: bf16[16, 4096] = all_reduce %j op=sum group=@all\n\
        %s: bf16[16, 4096] = mul %r, %v\nreturn %s\n";

    /// An all-reduce with a residual, beside which `beside` can run.
    fn reduced(beside: &str) -> String {
        format!(
            "program \"p\" ranks 4\ngroup @all world\narg %x: bf16[16, 4096]\narg %b: bf16[8, 4096]\n\
            param %w: bf16[4096, 64]\nparam %v: bf16[4096, 4096]\n\
            %h: bf16[16, 4096] = neg %x\n%y: bf16[16, 4096] = all_reduce %h op=sum group=@all\n{beside}\
            %z: bf16[16, 4096] = add %x, %y\n%m: bf16[16, 4096] = matmul %z, %v\nreturn %m\nreturn %c\n"
        )
    }

    /// The all-reduces of a program that are credited with a residual, and those that GPUs fuse with one.
    fn credited_and_fused(text: &str) -> [Vec<String>; 2] {
        let program = Program::from_graph(text::parse(text).expect("a graph")).expect("a program");
        let config = Config::default().with_profile(Profile::builtin("h200x4").expect("built in"));
        let plan = compile(&program, &config).expect("a plan");
        let chosen = |d: &Decision| d.alternatives.iter().find(|a| a.name == d.chosen).map(|a| a.saved_us);
        let credited = plan.buckets[0].decisions.iter().filter(|d| chosen(d) > Some(0.0));
        let credited = credited.map(|d| d.collective.clone()).collect();
        let graph = text::parse(&plan.programs[0]).expect("a graph");
        let fused = graph.dispatches.iter().filter(|d| d.form == Form::Reduction);
        [credited, fused.map(|d| graph.node_name(d.first).to_string()).collect()]
    }

    #[test]
    fn buckets_are_divided_where_dispatches_change() {
        let text = "program \"p\" ranks 2\nsymbol t in 1..=8192\ngroup @all world\narg %x: bf16[t, 4096]\n\
            param %w: bf16[4096, 4096]\n%p: bf16[4096, 4096] = permute %w perm=[1, 0]\n\
            %h: bf16[t, 4096] = matmul %x, %p\n%s: bf16[t, 4096] = silu %h\n\
            %r: bf16[t, 4096] = all_reduce %s op=sum group=@all\n%z: bf16[t, 4096] = add %x, %r\nreturn %z\n";
        let program = Program::from_graph(text::parse(text).expect("a graph")).expect("a program");
        let planned = |machine: &str, upper: &[i64]| {
            let config = Config::default().with_profile(Profile::builtin(machine).expect("built in"));
            let spec = (!upper.is_empty()).then(|| BucketSpec::new("t", upper));
            compile(&program, &config.with_buckets(spec)).expect("a plan")
        };
        let upper = |plan: &CheckedPlan| plan.buckets.iter().map(|b| b.symbols["t"][1]).collect::<Vec<i64>>();
        assert_eq!(upper(&planned("h200x2", &[16, 512])), [16, 512]);
        let plan = planned("h200x2", &[]);
        let few = upper(&plan).iter().position(|&high| high == 64).expect("a bucket that ends at 64");
        let forms = |bucket: &symmc_plan::Bucket| {
            let graph = text::parse(&plan.programs[bucket.program]).expect("a graph");
            graph.dispatches.iter().map(|d| d.form).collect::<Vec<Form>>()
        };
        let forms: Vec<Vec<Form>> = plan.buckets.iter().map(forms).collect();
        assert!(forms[few].contains(&Form::Product) && !forms[few + 1].contains(&Form::Product), "{forms:?}");
        assert!(forms[0].contains(&Form::Reduction), "{forms:?}");
    }

    #[test]
    fn gpus_fuse_the_residuals_that_variants_are_credited_with() {
        let (axis, light) = ("axis=1 log=false\n", "bf16[8, 4096] = softmax");
        let two = format!("%a: {light} %b {axis}%c: {light} %a {axis}");
        for (text, expected) in [
            (LAYERS.to_string(), &["y", "u"][..]),
            // Whatever can run beside it.
            (reduced(&two), &["y"]),
            (reduced("%c: bf16[8, 64] = matmul %b, %w\n"), &["y"]),
            // So large that they go in two shots.
            (LAYERS.replace("[16, 4096]", "[4096, 4096]"), &["y", "u"]),
        ] {
            let [credited, fused] = credited_and_fused(&text);
            assert_eq!(credited, expected, "credited: {text}");
            assert_eq!(fused, expected, "fused: {text}");
        }
    }
}
