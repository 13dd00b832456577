//! From a program to a checked plan: the pipeline of passes and planner, bucket by bucket.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::time::{Duration, Instant};

use indexmap::IndexMap;
use symmc_check::CheckedPlan;
use symmc_check::{CheckError, Report};
use symmc_ir::collective::Collective;
use symmc_ir::machine::Profile;
use symmc_ir::{CollectiveKind, Graph, InputId, InputKind, Node, Numerics, SymbolId, Variant, parallel};
use symmc_passes::{LowerConfig, Overlap, PassError};
use symmc_plan::{Decision, Plan};
use symmc_planner::{BucketInput, Decided, Order, PlanConfig, PlanError};

use crate::attempt::Attempt;
use crate::error::{Error, ErrorKind};
use crate::files::{read, utf8};
use crate::program::Program;
use crate::workload::find_symbol;

/// How to compile: for the host of this machine, until a `with_…` says otherwise.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The machine that the choices are made for.
    pub profile: Profile,
    /// Upper bounds that divide the range of a symbol. A symbol without any is divided where the machine has a kernel for
    /// several steps at small sizes only.
    pub buckets: Vec<BucketSpec>,
    /// Which arguments their callers write straight into the symmetric arena.
    pub bind: Bind,
    /// The variants that collectives may run as, besides plain; `None` for all that the profile knows.
    pub variants: Option<Vec<Variant>>,
    /// How the steps are ordered.
    pub order: Order,
    /// How much more memory than the leanest order the chosen one may take at most to overlap communication with
    /// computation, as a fraction.
    pub slack: f64,
    /// How many microseconds a run must become faster, by estimate, for each MiB of memory that overlap takes.
    pub memory_price: f64,
    /// What the symmetric arena may take. Where it would take more, exit barriers are kept, then collectives that ask for
    /// much symmetric memory run as variants that ask for less; that no plan fits is an error.
    pub symm_limit: Option<u64>,
    /// The changes of rounding that the plan may make; strict by default.
    pub numerics: Numerics,
}

impl Default for Config {
    fn default() -> Self {
        let profile = Profile::builtin("host").expect("the host profile is built in");
        let PlanConfig { order, slack, memory_price, symm_limit, .. } = PlanConfig::default();
        Config {
            profile,
            buckets: Vec::new(),
            bind: Bind::None,
            variants: None,
            order,
            slack,
            memory_price,
            symm_limit,
            numerics: Numerics::STRICT,
        }
    }
}

impl Config {
    /// Sets the machine that the choices are made for.
    pub fn with_profile(self, profile: Profile) -> Config {
        Config { profile, ..self }
    }

    /// Sets what divides the ranges of symbols.
    pub fn with_buckets(self, buckets: impl IntoIterator<Item = BucketSpec>) -> Config {
        Config { buckets: buckets.into_iter().collect(), ..self }
    }

    /// Sets which arguments their callers write straight into the symmetric arena.
    pub fn with_bind(self, bind: Bind) -> Config {
        Config { bind, ..self }
    }

    /// Sets the variants that collectives may run as, besides plain.
    pub fn with_variants(self, variants: impl Into<Option<Vec<Variant>>>) -> Config {
        Config { variants: variants.into(), ..self }
    }

    /// Sets how the steps are ordered.
    pub fn with_order(self, order: Order) -> Config {
        Config { order, ..self }
    }

    /// Sets how much more memory overlap may take at most, as a fraction of that of the leanest order.
    pub fn with_slack(self, slack: f64) -> Config {
        Config { slack, ..self }
    }

    /// Sets how many microseconds a run must become faster for each MiB of memory that overlap takes.
    pub fn with_memory_price(self, memory_price: f64) -> Config {
        Config { memory_price, ..self }
    }

    /// Sets the bytes that the symmetric arena may take.
    pub fn with_symm_limit(self, symm_limit: impl Into<Option<u64>>) -> Config {
        Config { symm_limit: symm_limit.into(), ..self }
    }

    /// Sets which changes of rounding the plan may make.
    pub fn with_numerics(self, numerics: impl Into<Numerics>) -> Config {
        Config { numerics: numerics.into(), ..self }
    }
}

/// The buckets of one symbol.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct BucketSpec {
    /// The name of the symbol.
    pub symbol: String,
    /// The largest value of each bucket, ascending.
    pub upper: Vec<i64>,
}

impl BucketSpec {
    /// The buckets of a symbol by the largest value of each, ascending.
    pub fn new(symbol: impl Into<String>, upper: impl Into<Vec<i64>>) -> BucketSpec {
        BucketSpec { symbol: symbol.into(), upper: upper.into() }
    }
}

/// Which arguments are bound.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Bind {
    /// None: an argument that must be symmetric is copied.
    None,
    /// All that must be symmetric.
    All,
    /// Those of these names.
    Named(Vec<String>),
}

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
    let canonical = canonical(program)?;
    lap("canonicalise");
    let bound = bound_inputs(&program.graph, &config.bind)?;
    let ranges = ranges(&canonical, config)?;
    let pipeline = Pipeline { program, config, canonical: &canonical, bound: &bound, ranges: &ranges };
    let Lowered { inputs, overlapped } = pipeline.lower(&Choice::default())?;
    lap("choose");
    let plan = match pipeline.plan(&inputs) {
        Err(PlanError::SymmLimit { .. }) => pipeline.within_the_limit(&inputs)?,
        made if !overlapped || config.symm_limit.is_some() => made.map_err(|e| pipeline.failed(e))?,
        made => pipeline.chosen_again(inputs, made.map_err(|e| pipeline.failed(e))?)?,
    };
    lap("plan");
    let plan = proven(plan, &program.graph.name)?;
    lap("check");
    #[cfg(feature = "cuda")]
    let plan = if config.profile.multiprocessors.is_some() { for_gpus(plan)? } else { plan };
    #[cfg(feature = "cuda")]
    lap("lower");
    Ok((plan, times))
}

/// A plan of which GPUs can run every step, with what these take beside the arenas.
#[cfg(feature = "cuda")]
fn for_gpus(plan: CheckedPlan) -> Result<CheckedPlan, Error> {
    let found = symmc_cuda::refusal::on_gpus(&plan);
    refuse(&plan, &found.refusals)?;
    Ok(plan.with_workspaces(&found.workspaces))
}

/// What the passes and the planner are asked for.
struct Pipeline<'a> {
    program: &'a Program,
    config: &'a Config,
    canonical: &'a Graph,
    bound: &'a BTreeSet<InputId>,
    /// The ranges of each bucket.
    ranges: &'a [Ranges],
}

impl Pipeline<'_> {
    fn failed(&self, error: PlanError) -> Error {
        Error::planner(&self.program.graph.name, error)
    }

    /// The buckets with a variant for each collective.
    fn lower(&self, choice: &Choice) -> Result<Lowered, Error> {
        let nodes = self.ranges.len() * self.canonical.nodes.len();
        let buckets = self.ranges.iter().enumerate().collect();
        let lowered: Result<Vec<(BucketInput, bool)>, PassError> =
            parallel::map(buckets, nodes, |(b, symbols)| {
                let overlap = choice.overlap.get(b).cloned().unwrap_or_default();
                let choice = BucketChoice { symbols, overlap, choice };
                let (graph, decisions, report) = lower(self.canonical, self.config, self.bound, choice)?;
                let collectives = collectives(&graph);
                let decided = |decision| decided(decision, &graph, &collectives, &self.config.profile);
                let decisions = decisions.into_iter().map(decided).collect();
                Ok((BucketInput { graph, decisions }, report.overlapped > 0))
            })
            .into_iter()
            .collect();
        let lowered = lowered.map_err(|e| Error::pass(&self.program.graph.name, e))?;
        let overlapped = lowered.iter().any(|l| l.1);
        Ok(Lowered { inputs: lowered.into_iter().map(|l| l.0).collect(), overlapped })
    }

    /// The plan, or a cheaper one by estimate: the first choice of variants assumes all overlap that is possible; others are
    /// made with the overlap that a schedule has, and with plain collectives alone. Each bucket takes the best of them.
    fn chosen_again(&self, inputs: Vec<BucketInput>, plan: Plan) -> Result<Plan, Error> {
        let mut best = self.attempt(inputs, plan)?;
        for _ in 0..ROUNDS {
            let choice = Choice { overlap: best.overlap.clone(), ..Choice::default() };
            if !self.improve(&mut best, &choice)? {
                break;
            }
        }
        self.improve(&mut best, &Choice { plain: true, ..Choice::default() })?;
        Ok(best.plan)
    }

    /// Takes another choice of variants for the buckets where it costs less; whether there are any. A choice that cannot be
    /// planned is no better.
    fn improve(&self, best: &mut Attempt, choice: &Choice) -> Result<bool, Error> {
        let inputs = self.lower(choice)?.inputs;
        if inputs.iter().zip(&best.inputs).all(|(a, b)| a.graph == b.graph) {
            return Ok(false);
        }
        let Ok(plan) = self.plan(&inputs) else { return Ok(false) };
        let mut other = self.attempt(inputs, plan)?;
        let better: Vec<bool> = best.costs.iter().zip(&other.costs).map(|(a, b)| b < a).collect();
        if !better.contains(&true) {
            return Ok(false);
        }
        if better.contains(&false) {
            let mixed = best.inputs.iter().zip(other.inputs).zip(better);
            let mixed: Vec<BucketInput> =
                mixed.map(|((a, b), better)| if better { b } else { a.clone() }).collect();
            let Ok(plan) = self.plan(&mixed) else { return Ok(false) };
            other = self.attempt(mixed, plan)?;
            // Buckets share arenas, and their orders can differ in company.
            if other.costs.iter().zip(&best.costs).any(|(a, b)| a > b) {
                return Ok(false);
            }
        }
        *best = other;
        Ok(true)
    }

    fn attempt(&self, inputs: Vec<BucketInput>, plan: Plan) -> Result<Attempt, Error> {
        Attempt::new(inputs, plan, &self.config.profile, self.config.memory_price)
            .map_err(|message| Error::new(ErrorKind::Defect, message))
    }

    fn plan(&self, inputs: &[BucketInput]) -> Result<Plan, PlanError> {
        let config = PlanConfig {
            machine: self.config.profile.name.clone(),
            bind: self.bound.clone(),
            profile: Some(self.config.profile.clone()),
            order: self.config.order,
            slack: self.config.slack,
            memory_price: self.config.memory_price,
            symm_limit: self.config.symm_limit,
            numerics: self.config.numerics,
            ..PlanConfig::default()
        };
        symmc_planner::plan(&self.program.graph, inputs, &config)
    }

    /// A plan whose collectives ask for less symmetric memory than those of `inputs`, which do not fit the limit. What asks
    /// for the most runs otherwise, until all fits.
    fn within_the_limit(&self, inputs: &[BucketInput]) -> Result<Plan, Error> {
        let mut largest = largest_asked(inputs);
        let mut tries = 0;
        loop {
            let most = if tries < EXACT_TRIES { largest.saturating_sub(1) } else { largest / 2 };
            let inputs = self.lower(&Choice { symmetric: Some(most), ..Choice::default() })?.inputs;
            match self.plan(&inputs) {
                Err(PlanError::SymmLimit { .. }) if most > 0 => largest = largest_asked(&inputs).min(most),
                made => return made.map_err(|e| self.failed(e)),
            }
            tries += 1;
        }
    }
}

/// How often variants are chosen again with the overlap of a schedule.
const ROUNDS: u32 = 2;

/// What a choice of variants is made with, for all buckets.
#[derive(Default)]
struct Choice {
    /// The most symmetric memory that one collective may ask for.
    symmetric: Option<u64>,
    /// Whether all collectives are plain.
    plain: bool,
    /// The overlap of each bucket; what is possible for the others.
    overlap: Vec<Overlap>,
}

/// What a choice of variants is made with, for one bucket.
struct BucketChoice<'a> {
    symbols: &'a Ranges,
    overlap: Overlap,
    choice: &'a Choice,
}

/// The buckets with a variant for each collective.
struct Lowered {
    inputs: Vec<BucketInput>,
    /// Whether the choice depends on computation beside a collective.
    overlapped: bool,
}

/// How often only what asks for the most symmetric memory is forbidden; then all that asks for more than half of it.
const EXACT_TRIES: u32 = 8;

/// The most symmetric memory that one collective asks for.
fn largest_asked(inputs: &[BucketInput]) -> u64 {
    let of = |graph: &Graph, node: &Node| {
        let c = node.op.as_collective()?;
        let sized = if c.kind == CollectiveKind::AllGather { &node.outputs } else { &node.inputs };
        let bytes = graph.ty(*sized.first()?).bytes().upper(&graph.symbols);
        let n = u64::from(graph.group_size(c.group)?);
        Some(c.variant?.symmetric_bytes(&c.kind, u64::try_from(bytes).unwrap_or(0), n))
    };
    let all = inputs.iter().flat_map(|b| b.graph.nodes.values().filter_map(|n| of(&b.graph, n)));
    all.max().unwrap_or(0)
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
fn refuse(plan: &CheckedPlan, refusals: &[symmc_cuda::refusal::Refusal]) -> Result<(), Error> {
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
/// be there.
///
/// # Errors
/// As [`compile`].
pub fn lowered(program: &Program, config: &Config) -> Result<Vec<Graph>, Error> {
    let canonical = canonical(program)?;
    let bound = bound_inputs(&program.graph, &config.bind)?;
    let fail = |e| Error::pass(&program.graph.name, e);
    let ranges = ranges(&canonical, config)?;
    let choice = Choice::default();
    let lowered = ranges.iter().map(|symbols| {
        let bucket = BucketChoice { symbols, overlap: Overlap::default(), choice: &choice };
        lower(&canonical, config, &bound, bucket).map(|(graph, ..)| graph)
    });
    lowered.collect::<Result<_, _>>().map_err(fail)
}

/// The program in canonical form, with decomposed ops recognised.
///
/// # Errors
/// As [`compile`].
pub fn canonical(program: &Program) -> Result<Graph, Error> {
    if program.graph.ranks.is_none() {
        return Err(Error::request("the number of ranks is open; fix it before compiling"));
    }
    symmc_passes::canonicalize(&program.graph).map_err(|e| Error::pass(&program.graph.name, e))
}

fn lower(
    canonical: &Graph,
    config: &Config,
    bound: &BTreeSet<InputId>,
    bucket: BucketChoice<'_>,
) -> Result<(Graph, Vec<Decision>, symmc_passes::lower::Report), PassError> {
    let BucketChoice { symbols, overlap, choice } = bucket;
    // The planner puts parameters and constants where collectives need them.
    let held = canonical.inputs.iter().filter(|(_, i)| i.kind != InputKind::Argument).map(|(id, _)| id);
    let lower = LowerConfig {
        symbols: symbols.clone(),
        bound: held.chain(bound.iter().copied()).collect(),
        variants: if choice.plain { Some(Vec::new()) } else { config.variants.clone() },
        symmetric: choice.symmetric,
        overlap,
        numerics: config.numerics,
        ..LowerConfig::new(config.profile.clone())
    };
    symmc_passes::lower_with_report(canonical, &lower)
}

/// The collectives of a program by the name of their node.
fn collectives(graph: &Graph) -> HashMap<&str, &Collective> {
    graph.nodes.iter().filter_map(|(n, node)| Some((graph.node_name(n), node.op.as_collective()?))).collect()
}

/// A decision, with the most blocks of each of its kernels.
fn decided(
    decision: Decision,
    graph: &Graph,
    collectives: &HashMap<&str, &Collective>,
    profile: &Profile,
) -> Decided {
    let blocks = |name: &String| {
        let c = collectives.get(name.as_str())?;
        profile.blocks(&c.kind, c.variant?, decision.bytes, graph.group_size(c.group)?)
    };
    let blocks = decision.nodes.iter().map(blocks).collect();
    Decided { decision, blocks }
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

/// The most buckets of a plan.
const MAX_BUCKETS: usize = 4096;
/// The most of which nobody asks: each is planned, checked and kept.
const MAX_UNASKED: usize = 16;

/// The ranges of each bucket of a program in canonical form: as asked for, and of symbols of which nothing is asked divided
/// where dispatches change, as long as these are few.
fn ranges(canonical: &Graph, config: &Config) -> Result<Vec<Ranges>, Error> {
    let mut all = bucket_ranges(canonical, &config.buckets)?;
    let asked = |symbol: &SymbolId| {
        config.buckets.iter().any(|b| find_symbol(canonical, &b.symbol).is_ok_and(|s| s == *symbol))
    };
    if canonical.symbols.keys().all(|symbol| asked(&symbol)) {
        return Ok(all);
    }
    let limits = symmc_dispatch::limits(canonical, &config.profile);
    for (symbol, sizes) in limits.into_iter().filter(|(symbol, _)| !asked(symbol)) {
        for size in sizes {
            let divided: Vec<Ranges> = all.iter().flat_map(|of| divided(of, symbol, size)).collect();
            if divided.len() <= MAX_UNASKED {
                all = divided;
            }
        }
    }
    Ok(all)
}

/// The ranges up to this size of a symbol, and those beyond it.
fn divided(of: &Ranges, symbol: SymbolId, size: i64) -> Vec<Ranges> {
    let Some(&(low, high)) = of.get(&symbol).filter(|(low, high)| (low..high).contains(&&size)) else {
        return vec![of.clone()];
    };
    let with = |range| {
        let mut out = of.clone();
        out.insert(symbol, range);
        out
    };
    vec![with((low, size)), with((size + 1, high))]
}

/// The inclusive range of each symbol in one bucket.
type Ranges = IndexMap<SymbolId, (i64, i64)>;

/// The ranges of each bucket: all combinations of the divided symbols.
fn bucket_ranges(graph: &Graph, specs: &[BucketSpec]) -> Result<Vec<Ranges>, Error> {
    let full: Ranges = graph.symbols.iter().map(|(id, s)| (id, (s.min, s.max))).collect();
    let count = specs.iter().map(|s| s.upper.len()).fold(1usize, usize::saturating_mul);
    if count > MAX_BUCKETS {
        let counts: Vec<String> =
            specs.iter().map(|s| format!("{} of {}", s.upper.len(), s.symbol)).collect();
        return Err(Error::request(format!(
            "expected at most {MAX_BUCKETS} buckets, found {count}, every combination of {}: name fewer upper \
             bounds, or divide fewer symbols",
            counts.join(" and ")
        )));
    }
    let mut all = vec![full];
    let mut divided = BTreeSet::new();
    for spec in specs {
        let id = find_symbol(graph, &spec.symbol)?;
        if !divided.insert(id) {
            return Err(Error::request(format!("the buckets of {} are given twice", spec.symbol)));
        }
        let ranges = split_range(spec, graph.symbols[id].min, graph.symbols[id].max)?;
        all = all
            .into_iter()
            .flat_map(|base| {
                ranges.iter().map(move |&range| {
                    let mut next = base.clone();
                    next.insert(id, range);
                    next
                })
            })
            .collect();
    }
    Ok(all)
}

fn split_range(spec: &BucketSpec, min: i64, max: i64) -> Result<Vec<(i64, i64)>, Error> {
    let name = &spec.symbol;
    let mut low = min;
    let mut ranges = Vec::new();
    for &high in &spec.upper {
        if !(min..=max).contains(&high) {
            return Err(Error::request(format!(
                "bucket {name}={high} is out of range: expected {min} to {max}"
            )));
        }
        if high < low {
            return Err(Error::request(format!("the buckets of {name} must ascend: {:?}", spec.upper)));
        }
        ranges.push((low, high));
        low = high + 1;
    }
    if ranges.is_empty() {
        return Err(Error::request(format!("the buckets of {name} are empty")));
    }
    Ok(ranges)
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use symmc_ir::{Form, text};

    use super::*;
    use crate::error::ErrorKind;

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
        assert_eq!(upper(&planned("host", &[])), [8192]);
        assert_eq!(upper(&planned("h200x2", &[16, 512])), [16, 512]);
        let plan = planned("h200x2", &[]);
        assert_eq!(upper(&plan), [64, 8192]);
        let forms = |bucket: &symmc_plan::Bucket| {
            let graph = text::parse(&plan.programs[bucket.program]).expect("a graph");
            graph.dispatches.iter().map(|d| d.form).collect::<Vec<Form>>()
        };
        let forms: Vec<Vec<Form>> = plan.buckets.iter().map(forms).collect();
        assert!(forms[0].contains(&Form::Product) && !forms[1].contains(&Form::Product), "{forms:?}");
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
