//! Makes candidate orders of the steps.
//!
//! Memory and overlap conflict: a collective that starts early and is awaited late keeps its operand and its
//! result occupied for longer. So the module makes candidates, each a topological order, and two questions
//! select among them:
//! - Which order is the *leanest*? The candidates are the orders that have a name ([`named`]) and some orders
//!   that are made backwards. The best of them are improved at their peaks ([`window`]).
//! - Which order costs least? The cost is the estimated time plus the memory at a price ([`super::schedule`]).
//!   Memory is limited relative to the leanest order. The overlapped forms ([`overlap`]) of the leanest order
//!   and of program order are candidates here.
//!
//! The memory of an order is its demand after its values are placed ([`ArenaDemand`]): the largest sum of live
//! bytes in each arena, with all bytes that collectives keep occupied. The simpler [`model`] only narrows down
//! the search.
//!
//! # Determinism
//! All ranks must choose the same order. All sums and comparisons use integers. Floating point occurs only in
//! estimated times and in [`with_slack`], in sums, products and quotients, which are the same on every machine.
//! All budgets are counts of work. Estimates decide nothing except the order.
//!
//! # Deliberately absent
//! There is no rematerialisation. There are no orders for symbolic sizes: an order is made for the upper
//! bounds.

mod memory;
mod model;
mod named;
mod overlap;
mod window;

pub use memory::total_bytes;
pub use model::TaskGraph;
pub use named::OrderStrategy;
pub use overlap::{OverlappedOrder, makespan};
pub use window::improve;

use memory::live_bytes_by_step;
use overlap::{Prefetches, overlap};

/// The largest sum of live bytes in the ordinary and in the symmetric arena, for an order whose values are
/// placed.
pub type ArenaDemand = [u64; 2];

/// The demand of an order as the model estimates it.
pub fn estimate_peak(tasks: &TaskGraph, order: &[u32]) -> ArenaDemand {
    memory::peak_bytes(&live_bytes_by_step(tasks, order))
}

/// The order with this name. `None` if it requires a search.
pub fn build_order(tasks: &TaskGraph, order: OrderStrategy) -> Option<Vec<u32>> {
    named::build_order(tasks, order)
}

/// Orders that are made backwards, from the last step to the first, by the rules that consider memory.
pub fn backward_orders(tasks: &TaskGraph) -> [Vec<u32>; 2] {
    let reversed = tasks.reversed();
    [named::GreedyRule::Freed, named::GreedyRule::Peak].map(|rule| {
        let mut order = named::greedy(&reversed, rule);
        order.reverse();
        order
    })
}

/// The overlapped forms of an order: with prefetches just in time, and with earlier prefetches.
pub struct OverlapVariants<'a> {
    tasks: &'a TaskGraph,
    order: &'a [u32],
    prefetches: [Prefetches; PREFETCH_LEADS.len()],
}

impl<'a> OverlapVariants<'a> {
    pub fn new(tasks: &'a TaskGraph, order: &'a [u32]) -> OverlapVariants<'a> {
        OverlapVariants {
            tasks,
            order,
            prefetches: PREFETCH_LEADS.map(|lead| Prefetches::new(tasks, order, lead)),
        }
    }

    /// The forms whose live bytes in both arenas stay within `budget`, by the model.
    pub fn within_budget(&self, budget: u64) -> impl Iterator<Item = OverlappedOrder> {
        self.prefetches.iter().map(move |prefetches| overlap(self.tasks, self.order, prefetches, budget))
    }
}

/// The lead of prefetches over their latest start, in percent of their time, for each overlapped form.
const PREFETCH_LEADS: [u64; 2] = [25, 150];

/// The bytes plus the fraction `share` of them, or of `least_base` bytes if that is more.
pub fn with_slack(bytes: u64, share: f64, least_base: u64) -> u64 {
    bytes.saturating_add((bytes.max(least_base) as f64 * share) as u64)
}
