//! What a compilation is asked for, by the ids of the graph.

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
    /// The largest value of each bucket of a symbol, ascending. A symbol that is missing is divided where other variants become
    /// faster, and where the machine has a kernel for several steps at small sizes only.
    pub buckets: IndexMap<SymbolId, Vec<i64>>,
    /// The arguments that their callers write straight into the symmetric arena.
    pub bound: BTreeSet<InputId>,
    /// The variants that collectives may run as, besides plain; `None` for all that the profile knows.
    pub variants: Option<Vec<CollectiveVariant>>,
    pub order: OrderStrategy,
    /// How much more memory than the leanest order the chosen one may take at most to overlap communication with computation,
    /// as a fraction.
    pub slack: f64,
    /// How many microseconds a run must become faster, by estimate, for each MiB of memory that overlap takes.
    pub memory_price: f64,
    /// The most bytes of the symmetric arena.
    pub symm_limit: Option<u64>,
    /// Whether several collectives may become one where a run is estimated to be faster for it.
    pub coalesce: bool,
    pub numerics: Numerics,
    /// Solutions of regions that compilations of one program share.
    pub solutions: SolutionCache,
}

impl CompileOptions {
    /// For a machine, with everything else as it is by default.
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
        for (option, found, kind) in expected {
            if !(found.is_finite() && found >= 0.0) {
                let message = format!("{option}: expected {kind} of at least 0, found {found}");
                return Err(DriverError::Option(message));
            }
        }
        Ok(())
    }
}
