//! The order of the steps.
//!
//! Memory and overlap pull apart: a collective that starts early and is waited for late keeps its operand
//! and its result for longer. So candidates are made, each a topological order, and two questions asked:
//! - which is the *leanest*: the orders that are known by a name ([`named`]) and some of them made backwards, the
//!   best of these improved where it peaks ([`window`]);
//! - which costs least: its estimated time, and its memory at a price ([`super::schedule`]), among those within a limit over the
//!   leanest; the overlapped forms ([`overlap`]) of the leanest and of program order are candidates here.
//!
//! Memory is that of the order once its values are placed ([`Demand`]): the largest sum of live bytes in each
//! arena, with all that collectives keep occupied. Only what narrows the search down is counted by the simpler
//! [`model`].
//!
//! Estimates decide nothing but the order. All sums and comparisons are of integers; floating point is only in the
//! estimated times and in what [`more`] allows, by sums, products and quotients, which are the same on every machine.
//! All budgets are counts of work. So every rank agrees. Not here: rematerialisation; orders of symbolic sizes, which are those of the upper bounds.

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

/// The largest sum of live bytes in the ordinary and in the symmetric arena, of an order whose values are placed.
pub type ArenaDemand = [u64; 2];

/// The demand of an order by the model.
pub fn estimate_peak(tasks: &TaskGraph, order: &[u32]) -> ArenaDemand {
    memory::peak_bytes(&live_bytes_by_step(tasks, order))
}

/// The order of this name; `None` if it takes a search.
pub fn build_order(tasks: &TaskGraph, order: OrderStrategy) -> Option<Vec<u32>> {
    named::build_order(tasks, order)
}

/// Orders made backwards, from the last step to the first, by the rules that look at memory.
pub fn backward_orders(tasks: &TaskGraph) -> [Vec<u32>; 2] {
    let reversed = tasks.reversed();
    [named::GreedyRule::Freed, named::GreedyRule::Peak].map(|rule| {
        let mut order = named::greedy(&reversed, rule);
        order.reverse();
        order
    })
}

/// The overlapped forms of an order: with prefetches just in time, and with earlier ones.
pub struct OverlapVariants<'a> {
    tasks: &'a TaskGraph,
    order: &'a [u32],
    prefetches: [Prefetches; LEADS.len()],
}

impl<'a> OverlapVariants<'a> {
    pub fn new(tasks: &'a TaskGraph, order: &'a [u32]) -> OverlapVariants<'a> {
        OverlapVariants { tasks, order, prefetches: LEADS.map(|lead| Prefetches::new(tasks, order, lead)) }
    }

    /// Those that keep to so many bytes of both arenas by the model.
    pub fn within_budget(&self, budget: u64) -> impl Iterator<Item = OverlappedOrder> {
        self.prefetches.iter().map(move |prefetches| overlap(self.tasks, self.order, prefetches, budget))
    }
}

/// How much earlier than at its latest start a prefetch starts, in percent of its time, in each overlapped form.
const LEADS: [u64; 2] = [25, 150];

/// So many bytes and the fraction `share` of them.
pub fn with_slack(bytes: u64, share: f64) -> u64 {
    bytes.saturating_add((bytes as f64 * share) as u64)
}
