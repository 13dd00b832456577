//! Regret: how much worse the plan of the default options is than the best plan that other options reach, by estimate.
//!
//! Each program is planned with the default options and with sets of options that leave out collectives' variants, joins, memory
//! or orders. The default may use all that these sets use, so a cheaper plan of one of them is one that the search missed. The
//! suite `regret` runs a few programs; `cargo run --release -p symmc-tests --example check_regret -- COUNT` runs as many as wanted.

use symmc::{CollectiveVariant as V, CompileConfig, Error, MachineProfile, OrderStrategy, Program};

/// The plan of one set of options.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PlanCost {
    /// The estimated microseconds of a run of all buckets.
    pub time_us: f64,
    /// The peaks of both arenas, in MiB.
    pub memory_mib: f64,
    /// `time_us` plus the memory at the default price.
    pub cost: f64,
}

/// The plans of one program.
#[derive(Clone, Debug)]
pub struct Regret {
    pub default: PlanCost,
    /// The name and the plan of the cheapest set of options.
    pub best: (&'static str, PlanCost),
}

impl Regret {
    /// The cost of the default plan relative to that of the best one; 1 if no options are better.
    pub fn ratio(&self) -> f64 {
        self.default.cost / self.best.1.cost.min(self.default.cost)
    }
}

/// A set of options: its name, and the change of the default options.
pub type OptionSet = (&'static str, fn(CompileConfig) -> CompileConfig);

/// The sets of options that are compared with the default.
pub const OPTION_SETS: [OptionSet; 15] = [
    ("no coalescing", |config| config.with_coalesce(false)),
    ("no slack", |config| config.with_slack(0.0)),
    ("ten times the memory, for free", |config| config.with_slack(10.0).with_memory_price(0.0)),
    ("free memory", |config| config.with_memory_price(0.0)),
    ("program order", |config| config.with_order(OrderStrategy::Program)),
    ("list order", |config| config.with_order(OrderStrategy::List)),
    ("plain", |config| config.with_variants(vec![])),
    ("two_shot", |config| config.with_variants(vec![V::TwoShot])),
    ("one_shot", |config| config.with_variants(vec![V::OneShot])),
    ("ll", |config| config.with_variants(vec![V::Ll])),
    ("ll, one_shot", |config| config.with_variants(vec![V::Ll, V::OneShot])),
    ("push", |config| config.with_variants(vec![V::Push])),
    ("push, ll", |config| config.with_variants(vec![V::Push, V::Ll])),
    ("pull, push", |config| config.with_variants(vec![V::Pull, V::Push])),
    ("one_shot, two_shot, pull", |config| config.with_variants(vec![V::OneShot, V::TwoShot, V::Pull])),
];

/// Plans a program with all sets of options.
///
/// # Errors
/// The program cannot be planned with the default options.
pub fn measure(program: &Program, profile: &MachineProfile) -> Result<Regret, Error> {
    let default = plan_cost(program, CompileConfig::default().with_profile(profile.clone()))?;
    let mut best = ("default", default);
    for (name, change) in OPTION_SETS {
        // Some sets cannot plan some programs.
        let config = change(CompileConfig::default().with_profile(profile.clone()));
        let Ok(cost) = plan_cost(program, config) else { continue };
        if cost.cost < best.1.cost {
            best = (name, cost);
        }
    }
    Ok(Regret { default, best })
}

fn plan_cost(program: &Program, config: CompileConfig) -> Result<PlanCost, Error> {
    let plan = symmc::compile(program, &config)?;
    let time_us = symmc::estimate(&plan, &config.profile)?.iter().map(|bucket| bucket.total_us).sum::<f64>();
    let peaks = plan.buckets.iter().map(|b| b.totals.ordinary_peak + b.totals.symmetric_peak);
    let memory_mib = peaks.sum::<u64>() as f64 / f64::from(1 << 20);
    Ok(PlanCost { time_us, memory_mib, cost: time_us + CompileConfig::default().memory_price * memory_mib })
}
