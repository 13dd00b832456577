//! Compiles a graph into a checked plan: runs the stages in order.

use std::time::{Duration, Instant};

use symmc_check::CheckedPlan;
use symmc_ir::Graph;
use symmc_passes::CanonicalForms;
use symmc_plan::{CollectiveReplacement, Plan};

use crate::backends::lower_for_backend;
use crate::buckets::plan_refined;
use crate::error::{DriverError, Result};
use crate::options::CompileOptions;
use crate::pipeline::{BucketPrograms, Choice, Pipeline};
use crate::ranges;
use crate::search::TriedProposal;

#[derive(Clone, PartialEq, Debug, Default)]
pub struct CompileReport {
    /// The stages in order, with their durations.
    pub stages: Vec<(&'static str, Duration)>,
    /// For each searched bucket, the choices that were tried, in order.
    pub tried: Vec<Vec<TriedProposal>>,
}

struct StageClock {
    start: Instant,
    report: CompileReport,
}

impl StageClock {
    fn start() -> StageClock {
        StageClock { start: Instant::now(), report: CompileReport::default() }
    }

    fn finish_stage(&mut self, stage: &'static str) {
        let end = Instant::now();
        let elapsed = end - self.start;
        tracing::debug!(target: "symmc::compile", stage, ?elapsed, "finished a stage");
        self.report.stages.push((stage, elapsed));
        self.start = end;
    }
}

/// Compiles a graph into a plan, and checks the plan. Fails if the number of ranks is open, an option does
/// not fit the graph, the graph cannot be planned, the backend of the machine cannot run the plan, or the
/// check finds the plan unsafe.
pub fn compile(graph: &Graph, options: &CompileOptions) -> Result<(CheckedPlan, CompileReport)> {
    options.validate()?;
    let mut clock = StageClock::start();
    let mut forms = canonical_forms(graph)?;
    let replacements = collective_replacements(graph, &mut forms);
    clock.finish_stage("canonicalise");
    let pipeline = Pipeline::new(graph, options, &forms);
    let buckets = ranges::initial_buckets(&forms.default_form, options)?;
    clock.finish_stage("divide");
    let unasked = ranges::automatic_symbols(&forms.default_form, options);
    let (plan, searched) = plan_refined(&pipeline, buckets, &unasked)?;
    clock.report.tried = searched.iter().map(|bucket| bucket.tried.clone()).collect();
    clock.finish_stage("plan");
    let plan = check_plan(Plan { replacements, ..plan }.with_short_texts())?;
    clock.finish_stage("check");
    let plan = lower_for_backend(plan, options.profile.backend)?;
    clock.finish_stage("lower");
    let elapsed: Duration = clock.report.stages.iter().map(|(_, elapsed)| *elapsed).sum();
    tracing::info!(target: "symmc::compile", buckets = plan.buckets.len(), ?elapsed, "compiled a plan");
    Ok((plan, clock.report))
}

fn check_plan(plan: Plan) -> Result<CheckedPlan> {
    CheckedPlan::try_new(plan).map_err(|refused| {
        let (plan, findings) = *refused;
        let findings = findings.iter().map(ToString::to_string).collect();
        DriverError::Unsafe { plan: Box::new(plan), findings }
    })
}

/// Returns the graph with a variant for each collective: one graph per bucket, with the ranges of the
/// bucket. These are the variants of the first choice. [`compile`] chooses again if a schedule has less
/// overlap than the first choice assumed, or if another canonical form is faster in a bucket.
pub fn lower_graph(graph: &Graph, options: &CompileOptions) -> Result<Vec<Graph>> {
    let forms = canonical_forms(graph)?;
    let buckets = ranges::initial_buckets(&forms.default_form, options)?;
    let pipeline = Pipeline::new(graph, options, &forms);
    let mut lowered = Vec::with_capacity(buckets.len());
    for bucket in buckets {
        let programs = BucketPrograms::new(&pipeline, &bucket.ranges)?;
        lowered.push(pipeline.lower(&programs, &Choice::default())?.graph);
    }
    Ok(lowered)
}

/// Returns the graph in canonical form, with decomposed ops recognised.
pub fn canonicalize_graph(graph: &Graph) -> Result<Graph> {
    canonical_forms(graph).map(|forms| forms.default_form)
}

/// Fails if the number of ranks is open, or the graph breaks an invariant.
pub fn canonical_forms(graph: &Graph) -> Result<CanonicalForms> {
    if graph.ranks.is_none() {
        return Err(DriverError::OpenRanks);
    }
    Ok(symmc_passes::canonical_forms(graph)?)
}

/// The collectives of a graph that its canonical form replaces.
fn collective_replacements(source: &Graph, forms: &mut CanonicalForms) -> Vec<CollectiveReplacement> {
    let recorded = std::mem::take(&mut forms.replaced);
    let changes = symmc_passes::collective_changes(source, &forms.default_form, recorded).into_iter();
    let replacements = changes.map(|change| CollectiveReplacement {
        collective: change.replaced.collective,
        rule: change.replaced.rule.into(),
        what: change.replaced.what,
        bytes: u64::try_from(change.bytes.upper_bound(&source.symbols)).unwrap_or(0),
        by: change.replaced.by,
    });
    replacements.collect()
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use symmc_ir::machine::MachineProfile;
    use symmc_ir::{DispatchForm, text};

    use super::*;
    fn options(machine: &str) -> CompileOptions {
        CompileOptions::new(MachineProfile::builtin(machine).expect("it is built in"))
    }

    #[test]
    fn a_plan_of_ours_that_does_not_check_is_a_defect_of_ours() {
        let graph = text::parse("program \"p\" ranks 1\narg %x: f32[4]\n%y: f32[4] = exp %x\nreturn %y\n");
        let (plan, _) = compile(&graph.expect("a graph"), &options("host")).expect("a plan");
        let mut plan = plan.into_plan();
        plan.buckets[0].steps.clear();
        let error = check_plan(plan.clone()).expect_err("no step computes %y");
        assert!(error.to_string().contains("symmc made a plan that its check rejects"), "{error}");
        let DriverError::Unsafe { plan: refused, findings } = error else { panic!("{error}") };
        assert!(*refused == plan && !findings.is_empty());
    }

    /// Two layers whose all-reduces are each followed by a residual addition, and an all-reduce that another
    /// op follows.
    const LAYERS: &str = "program \"p\" ranks 4\ngroup @all world\narg %x: bf16[16, 4096]\n\
        param %w: bf16[4096, 4096]\n\
        %h: bf16[16, 4096] = matmul %x, %w\n%y: bf16[16, 4096] = all_reduce %h op=sum group=@all\n\
        %z: bf16[16, 4096] = add %x, %y\n\
        %i: bf16[16, 4096] = matmul %z, %w\n%u: bf16[16, 4096] = all_reduce %i op=sum group=@all\n\
        %v: bf16[16, 4096] = add %u, %z\n\
        %j: bf16[16, 4096] = matmul %v, %w\n%r: bf16[16, 4096] = all_reduce %j op=sum group=@all\n\
        %s: bf16[16, 4096] = mul %r, %v\nreturn %s\n";

    /// An all-reduce with a residual; `beside` can run concurrently with it.
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
        let (plan, _) = compile(&text::parse(text).expect("a graph"), &options("h200x4")).expect("a plan");
        let credited = plan.buckets[0]
            .decisions
            .iter()
            .filter(|d| {
                let chosen = d.alternatives.iter().find(|a| a.name == d.chosen);
                chosen.is_some_and(|chosen| chosen.saved_us > 0.0)
            })
            .map(|d| d.collective.clone())
            .collect();
        let graph = text::parse(&plan.programs[0]).expect("a graph");
        let fused = graph.dispatches.iter().filter(|d| d.form == DispatchForm::Reduction);
        [credited, fused.map(|d| graph.node_name(d.first).to_string()).collect()]
    }

    #[test]
    fn buckets_are_divided_where_dispatches_change() {
        let text = "program \"p\" ranks 2\nsymbol t in 1..=8192\ngroup @all world\narg %x: bf16[t, 4096]\n\
            param %w: bf16[4096, 4096]\n%p: bf16[4096, 4096] = permute %w perm=[1, 0]\n\
            %h: bf16[t, 4096] = matmul %x, %p\n%s: bf16[t, 4096] = silu %h\n\
            %r: bf16[t, 4096] = all_reduce %s op=sum group=@all\n%z: bf16[t, 4096] = add %x, %r\nreturn %z\n";
        let graph = text::parse(text).expect("a graph");
        let planned = |machine: &str, upper: &[i64]| {
            let rows = graph.symbols.keys().next().expect("a symbol");
            let request = (!upper.is_empty()).then(|| (rows, upper.to_vec()));
            let options = CompileOptions { buckets: request.into_iter().collect(), ..options(machine) };
            compile(&graph, &options).expect("a plan").0
        };
        let upper = |plan: &CheckedPlan| plan.buckets.iter().map(|b| b.symbols["t"][1]).collect::<Vec<i64>>();
        assert_eq!(upper(&planned("h200x2", &[16, 512])), [16, 512]);
        let plan = planned("h200x2", &[]);
        let small_bucket =
            upper(&plan).iter().position(|&high| high == 64).expect("a bucket that ends at 64");
        let mut forms: Vec<Vec<DispatchForm>> = Vec::new();
        for bucket in plan.buckets.iter() {
            let graph = text::parse(&plan.programs[bucket.program]).expect("a graph");
            forms.push(graph.dispatches.iter().map(|d| d.form).collect());
        }
        assert!(
            forms[small_bucket].contains(&DispatchForm::Product)
                && !forms[small_bucket + 1].contains(&DispatchForm::Product),
            "{forms:?}"
        );
        assert!(forms[0].contains(&DispatchForm::Reduction), "{forms:?}");
    }

    #[test]
    fn gpus_fuse_the_residuals_that_variants_are_credited_with() {
        let axis = "axis=1 log=false\n";
        let light = "bf16[8, 4096] = softmax";
        let two = format!("%a: {light} %b {axis}%c: {light} %a {axis}");
        for (text, expected) in [
            (LAYERS.to_string(), &["y", "u"][..]),
            // Independent of the concurrent computation.
            (reduced(&two), &["y"]),
            (reduced("%c: bf16[8, 64] = matmul %b, %w\n"), &["y"]),
            // Large enough for two shots.
            (LAYERS.replace("[16, 4096]", "[4096, 4096]"), &["y", "u"]),
        ] {
            let [credited, fused] = credited_and_fused(&text);
            assert_eq!(credited, expected, "credited: {text}");
            assert_eq!(fused, expected, "fused: {text}");
        }
    }
}
