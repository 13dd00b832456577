//! The options of a compilation.

use std::collections::BTreeSet;

use indexmap::IndexMap;
use symmc_driver::CompileOptions;
use symmc_ir::machine::MachineProfile;
use symmc_ir::{CollectiveVariant, Graph, InputId, InputKind, Numerics, SymbolId};
use symmc_planner::OrderStrategy;

use crate::error::Error;
use crate::program::Program;
use crate::workload::find_symbol;

/// The options of a compilation. The default compiles for the host of this machine; `with_…` methods change fields.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CompileConfig {
    /// The machine for which choices are made.
    pub profile: MachineProfile,
    /// Upper bounds that divide the range of a symbol. A symbol without bounds is divided at the sizes at which other variants
    /// become faster, and at which the machine has a kernel for several steps.
    pub buckets: Vec<BucketSpec>,
    /// The arguments that callers write directly into the symmetric arena.
    pub bind: ArgumentBinding,
    /// The variants that collectives may run as, in addition to plain. `None` allows all that the profile knows.
    pub variants: Option<Vec<CollectiveVariant>>,
    /// The strategy that orders the steps.
    pub order: OrderStrategy,
    /// The memory that may be spent to overlap communication with computation, as a fraction of the memory of the leanest
    /// order, or of 256 MiB if that is more: 0.05 allows 5 % more.
    pub slack: f64,
    /// The price of memory: overlap must make a run faster by at least this many microseconds, by estimate, for each MiB that
    /// it takes.
    pub memory_price: f64,
    /// The largest size of the symmetric arena, in bytes. The fastest plan that fits is taken: with exit barriers kept, without
    /// overlap, or with variants that need less symmetric memory. It is an error if no plan fits.
    pub symm_limit: Option<u64>,
    /// Whether several collectives may be combined into one if a run is estimated to become faster; true by default.
    pub coalesce: bool,
    /// The changes of rounding that the plan may make; [`Numerics::EXACT`] by default.
    pub numerics: Numerics,
}

impl Default for CompileConfig {
    fn default() -> Self {
        let profile = MachineProfile::builtin("host").expect("the host profile is built in");
        let options = CompileOptions::new(profile);
        CompileConfig {
            profile: options.profile,
            buckets: Vec::new(),
            bind: ArgumentBinding::None,
            variants: options.variants,
            order: options.order,
            slack: options.slack,
            memory_price: options.memory_price,
            symm_limit: options.symm_limit,
            coalesce: options.coalesce,
            numerics: options.numerics,
        }
    }
}

impl CompileConfig {
    /// Sets the machine for which choices are made.
    pub fn with_profile(self, profile: MachineProfile) -> CompileConfig {
        CompileConfig { profile, ..self }
    }

    /// Sets the buckets of symbols.
    pub fn with_buckets(self, buckets: impl IntoIterator<Item = BucketSpec>) -> CompileConfig {
        CompileConfig { buckets: buckets.into_iter().collect(), ..self }
    }

    /// Sets the arguments that callers write directly into the symmetric arena.
    pub fn with_bind(self, bind: ArgumentBinding) -> CompileConfig {
        CompileConfig { bind, ..self }
    }

    /// Sets the variants that collectives may run as, in addition to plain. `None` allows all that the profile knows.
    pub fn with_variants(self, variants: impl Into<Option<Vec<CollectiveVariant>>>) -> CompileConfig {
        CompileConfig { variants: variants.into(), ..self }
    }

    /// Sets the strategy that orders the steps.
    pub fn with_order(self, order: OrderStrategy) -> CompileConfig {
        CompileConfig { order, ..self }
    }

    /// Sets the memory that overlap may take, as a fraction of the memory of the leanest order: 0.05 allows 5 % more.
    pub fn with_slack(self, slack: f64) -> CompileConfig {
        CompileConfig { slack, ..self }
    }

    /// Sets the microseconds by which a run must become faster for each MiB of memory that overlap takes.
    pub fn with_memory_price(self, memory_price: f64) -> CompileConfig {
        CompileConfig { memory_price, ..self }
    }

    /// Sets the largest size of the symmetric arena, in bytes. `None` removes the limit.
    pub fn with_symm_limit(self, symm_limit: impl Into<Option<u64>>) -> CompileConfig {
        CompileConfig { symm_limit: symm_limit.into(), ..self }
    }

    /// Sets whether several collectives may be combined into one.
    pub fn with_coalesce(self, coalesce: bool) -> CompileConfig {
        CompileConfig { coalesce, ..self }
    }

    /// Sets the changes of rounding that the plan may make.
    pub fn with_numerics(self, numerics: impl Into<Numerics>) -> CompileConfig {
        CompileConfig { numerics: numerics.into(), ..self }
    }
}

impl CompileConfig {
    /// The options of the driver, with names resolved in a program.
    ///
    /// # Errors
    /// The program has no symbol or argument of a given name, or the buckets of a symbol are given twice.
    pub(crate) fn resolve_options(&self, program: &Program) -> Result<CompileOptions, Error> {
        Ok(CompileOptions {
            profile: self.profile.clone(),
            buckets: resolve_buckets(&program.graph, &self.buckets)?,
            bound: resolve_bound_arguments(&program.graph, &self.bind)?,
            variants: self.variants.clone(),
            order: self.order,
            slack: self.slack,
            memory_price: self.memory_price,
            symm_limit: self.symm_limit,
            coalesce: self.coalesce,
            numerics: self.numerics,
            solutions: program.solutions.clone(),
        })
    }
}

/// The upper bounds of buckets, by the symbols that they divide.
fn resolve_buckets(graph: &Graph, specs: &[BucketSpec]) -> Result<IndexMap<SymbolId, Vec<i64>>, Error> {
    let mut upper = IndexMap::new();
    for spec in specs {
        if upper.insert(find_symbol(graph, &spec.symbol)?, spec.upper.clone()).is_some() {
            return Err(Error::invalid_request(format!("the buckets of {} are given twice", spec.symbol)));
        }
    }
    Ok(upper)
}

/// The arguments that callers write directly into the symmetric arena.
fn resolve_bound_arguments(graph: &Graph, bind: &ArgumentBinding) -> Result<BTreeSet<InputId>, Error> {
    let arguments = || graph.inputs.iter().filter(|(_, i)| i.kind == InputKind::Argument);
    let resolve = |name: &String| {
        let wanted = name.trim_start_matches('%');
        let input = graph.inputs.iter().find(|(_, i)| graph.value_name(i.value) == wanted);
        if let Some((id, _)) = input.filter(|(_, input)| input.kind == InputKind::Argument) {
            return Ok(id);
        }
        let names: Vec<&str> = arguments().map(|(_, i)| graph.value_name(i.value)).collect();
        let names = if names.is_empty() { "none".into() } else { names.join(", ") };
        Err(Error::invalid_request(match input {
            Some(_) => format!(
                "{name} is not an argument: only arguments are bound, since other values are in symmetric memory wherever a \
                 collective needs it; the arguments of the program are: {names}"
            ),
            None => format!("the program has no argument {name}; it has: {names}"),
        }))
    };
    match bind {
        ArgumentBinding::None => Ok(BTreeSet::new()),
        ArgumentBinding::All => Ok(arguments().map(|(id, _)| id).collect()),
        ArgumentBinding::Named(names) => names.iter().map(resolve).collect(),
    }
}

/// The buckets of one symbol: ranges of its values, each with a plan for its sizes.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct BucketSpec {
    /// The name of the symbol in the program.
    pub symbol: String,
    /// The largest value of each bucket, in ascending order.
    pub upper: Vec<i64>,
}

impl BucketSpec {
    /// The buckets of a symbol. `upper` is the largest value of each, in ascending order.
    pub fn new(symbol: impl Into<String>, upper: impl Into<Vec<i64>>) -> BucketSpec {
        BucketSpec { symbol: symbol.into(), upper: upper.into() }
    }
}

/// The arguments that callers write directly into the symmetric arena.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ArgumentBinding {
    /// No argument: one that a collective needs in symmetric memory is copied there.
    None,
    /// All arguments that a collective needs in symmetric memory.
    All,
    /// The arguments of these names.
    Named(Vec<String>),
}
