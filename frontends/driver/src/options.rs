//! Options of a compilation, in terms of the graph's ids.

use std::collections::BTreeSet;

use indexmap::IndexMap;
use symmc_ir::machine::MachineProfile;
use symmc_ir::{CollectiveVariant, InputId, Numerics, SymbolId};
use symmc_passes::SolutionCache;
use symmc_planner::{OrderStrategy, PlanConfig};

use crate::error::{DriverError, Result};

#[derive(Clone, Debug)]
pub struct CompileOptions {
    pub profile: MachineProfile,
    /// The largest value of each bucket of a symbol, ascending. If a symbol is missing, its range is divided
    /// where other variants become faster, and where the machine has a kernel for several steps only at
    /// small sizes.
    pub buckets: IndexMap<SymbolId, Vec<i64>>,
    /// The arguments that their callers write directly into the symmetric arena.
    pub bound: BTreeSet<InputId>,
    /// The variants that collectives may use in addition to plain; `None` for all that the profile knows.
    pub variants: Option<Vec<CollectiveVariant>>,
    pub order: OrderStrategy,
    /// The most memory that the chosen order may use for overlap beyond the leanest order, as a fraction of that
    /// order's memory, or of 256 MiB if that is more.
    pub slack: f64,
    /// The microseconds by which overlap must speed up a run, by estimate, for each MiB of memory that it
    /// takes.
    pub memory_price: f64,
    /// The most bytes of the symmetric arena.
    pub symm_limit: Option<u64>,
    /// Whether several collectives may become one if that is estimated to make a run faster.
    pub coalesce: bool,
    pub numerics: Numerics,
    /// Solutions of regions that compilations of one program share.
    pub solutions: SolutionCache,
}

impl CompileOptions {
    /// Default options for a machine.
    pub fn new(profile: MachineProfile) -> CompileOptions {
        let PlanConfig { order, slack, memory_price, numerics, .. } = PlanConfig::default();
        CompileOptions {
            profile,
            buckets: IndexMap::new(),
            bound: BTreeSet::new(),
            variants: None,
            order,
            slack,
            memory_price,
            symm_limit: None,
            coalesce: true,
            numerics,
            solutions: SolutionCache::default(),
        }
    }

    /// Rejects numbers that are out of range.
    pub fn validate(&self) -> Result<()> {
        let expected = [("slack", self.slack, "a fraction"), ("memory_price", self.memory_price, "a number")];
        for (option, value, kind) in expected {
            if !(value.is_finite() && value >= 0.0) {
                let message = format!("{option}: expected {kind} of at least 0, found {value}");
                return Err(DriverError::Option(message));
            }
        }
        Ok(())
    }
}
