//! A cache of solutions of regions, shared by several lowerings.
//!
//! A compilation lowers a program many times: with all possible overlap, with the overlap of a schedule,
//! with plain collectives, with coalesced ones. Most regions stay equal. [`SolutionCache`] keeps the
//! solution of each.
//!
//! A solution depends only on the [`LowerContext`] of the lowering, the [`RegionKey`] of the region and the
//! [credits](FusionCredit) of its all-reduces; all three are compared as a whole. An e-graph depends only on
//! the context and the [`RegionForm`] of the region, so it is reused under other conditions.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use symmc_support::parallel;

use super::conditions::CollectiveConditions;
use super::context::LowerContext;
use super::region::{RegionForm, RegionKey};
use super::solve::{CompiledRules, FusionCredit, RegionEGraphs, RegionSolution, solve_region};

/// The most nodes of all cached e-graphs. Each takes about half a kilobyte.
const MAX_CACHED_NODES: usize = 20_000;

/// The most contexts for which solutions are cached. The oldest is evicted first.
const MAX_CACHED_SCOPES: usize = 512;

/// The weight of a node of a region, in nodes of a program, in the decision whether to start threads.
/// Solving a region takes longer than that. But if there are several buckets, several threads already run
/// lowerings.
const REGION_NODE_WEIGHT: usize = 5;

/// The solutions of regions that lowerings of one program share. Clones share one cache.
#[derive(Clone, Default)]
pub struct SolutionCache {
    scopes: Arc<Mutex<Vec<Arc<SolutionScope>>>>,
    counts: Arc<CacheCounts>,
}

/// Counts of finished work and cached nodes.
#[derive(Default)]
struct CacheCounts {
    made: AtomicUsize,
    /// The nodes of the cached e-graphs.
    kept: AtomicUsize,
}

impl fmt::Debug for SolutionCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SolutionCache").field("scopes", &lock_cache(&self.scopes).len()).finish()
    }
}

impl SolutionCache {
    pub fn egraphs_built(&self) -> usize {
        self.counts.made.load(Relaxed)
    }

    pub(super) fn scope_for(&self, context: LowerContext) -> Result<Arc<SolutionScope>, String> {
        let mut scopes = lock_cache(&self.scopes);
        // Contexts of one compilation differ mostly in their ranges, so these are compared first.
        for scope in scopes.iter() {
            if scope.context.symbols == context.symbols && *scope.context == context {
                return Ok(scope.clone());
            }
        }
        let same_rules = scopes.iter().find(|scope| scope.context.numerics == context.numerics);
        let rules = match same_rules {
            Some(scope) => scope.rules.clone(),
            None => Arc::new(CompiledRules::compiled(context.numerics)?),
        };
        let scope = Arc::new(SolutionScope {
            context: Arc::new(context),
            rules,
            known: Mutex::default(),
            counts: self.counts.clone(),
            kept: AtomicUsize::new(0),
        });
        if scopes.len() >= MAX_CACHED_SCOPES {
            scopes.remove(0);
        }
        scopes.push(scope.clone());
        Ok(scope)
    }
}

pub struct SolutionScope {
    pub context: Arc<LowerContext>,
    rules: Arc<CompiledRules>,
    known: Mutex<HashMap<Arc<RegionForm>, CachedRegion>>,
    /// The counts of all contexts.
    counts: Arc<CacheCounts>,
    /// The nodes of the e-graphs that are cached here.
    kept: AtomicUsize,
}

impl Drop for SolutionScope {
    fn drop(&mut self) {
        self.counts.kept.fetch_sub(self.kept.load(Relaxed), Relaxed);
    }
}

#[derive(Default)]
struct CachedRegion {
    /// `None` until they are built, and if there is no room for them.
    graphs: Option<Arc<RegionEGraphs>>,
    solutions: HashMap<SolutionQuery, Arc<RegionSolution>>,
}

/// Everything on which a solution depends besides the context and the form of its region.
#[derive(Clone, PartialEq, Eq, Hash)]
struct SolutionQuery {
    conditions: CollectiveConditions,
    credits: Vec<FusionCredit>,
}

/// A solution, and whether it was computed by this call.
pub type SolveOutcome = (Arc<RegionSolution>, bool);

impl SolutionScope {
    /// The solutions of regions with these keys and credits, in order; `None` for regions that cannot run.
    pub fn solve_all(&self, regions: &[(&RegionKey, Vec<FusionCredit>)]) -> Vec<Option<SolveOutcome>> {
        let nodes: usize = regions.iter().map(|(key, _)| key.form.nodes.len()).sum();
        let regions = regions.iter().collect();
        parallel::map(regions, nodes.saturating_mul(REGION_NODE_WEIGHT), |(key, credits)| {
            self.solve(key, credits)
        })
    }

    fn solve(&self, key: &RegionKey, credits: &[FusionCredit]) -> Option<SolveOutcome> {
        let query = SolutionQuery { conditions: key.conditions, credits: credits.to_vec() };
        let graphs = {
            let mut cache = lock_cache(&self.known);
            let entry = cache.entry(key.form.clone()).or_default();
            if let Some(solution) = entry.solutions.get(&query) {
                return Some((solution.clone(), false));
            }
            entry.graphs.clone()
        };
        let are_new = graphs.is_none();
        self.counts.made.fetch_add(usize::from(are_new), Relaxed);
        let graphs = graphs.unwrap_or_default();
        let solution = Arc::new(solve_region(key, &graphs, &self.context, &self.rules, credits)?);
        let mut cache = lock_cache(&self.known);
        let entry = cache.entry(key.form.clone()).or_default();
        if are_new && entry.graphs.is_none() {
            let nodes = graphs.nodes();
            if self.counts.kept.load(Relaxed).saturating_add(nodes) <= MAX_CACHED_NODES {
                self.counts.kept.fetch_add(nodes, Relaxed);
                self.kept.fetch_add(nodes, Relaxed);
                entry.graphs = Some(graphs);
            }
        }
        entry.solutions.insert(query, solution.clone());
        Some((solution, true))
    }
}

/// Locks a cache. Entries are inserted as a whole, so a thread that panicked leaves no partial entry.
fn lock_cache<T>(cache: &Mutex<T>) -> MutexGuard<'_, T> {
    cache.lock().unwrap_or_else(PoisonError::into_inner)
}
