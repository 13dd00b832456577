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

pub use memory::bytes;
pub use model::Tasks;
pub use named::Order;
pub use overlap::{Overlapped, makespan};
pub use window::improve;

use memory::profile;
use overlap::{Prefetches, overlap};

/// The largest sum of live bytes in the ordinary and in the symmetric arena, of an order whose values are placed.
pub type Demand = [u64; 2];

/// The demand of an order by the model.
pub fn peak(tasks: &Tasks, order: &[u32]) -> Demand {
    memory::peak(&profile(tasks, order))
}

/// The order of this name; `None` if it takes a search.
pub fn named(tasks: &Tasks, order: Order) -> Option<Vec<u32>> {
    named::named(tasks, order)
}

/// Orders made backwards, from the last step to the first, by the rules that look at memory.
pub fn backwards(tasks: &Tasks) -> [Vec<u32>; 2] {
    let reversed = tasks.reversed();
    [named::Rule::Freed, named::Rule::Peak].map(|rule| {
        let mut order = named::greedy(&reversed, rule);
        order.reverse();
        order
    })
}

/// The overlapped forms of an order: with prefetches just in time, and with earlier ones.
pub struct Overlaps<'a> {
    tasks: &'a Tasks,
    order: &'a [u32],
    prefetches: [Prefetches; LEADS.len()],
}

impl<'a> Overlaps<'a> {
    pub fn new(tasks: &'a Tasks, order: &'a [u32]) -> Overlaps<'a> {
        Overlaps { tasks, order, prefetches: LEADS.map(|lead| Prefetches::new(tasks, order, lead)) }
    }

    /// Those that keep to so many bytes of both arenas by the model.
    pub fn within(&self, budget: u64) -> impl Iterator<Item = Overlapped> {
        self.prefetches.iter().map(move |prefetches| overlap(self.tasks, self.order, prefetches, budget))
    }
}

/// How much earlier than at its latest start a prefetch starts, in percent of its time, in each overlapped form.
const LEADS: [u64; 2] = [25, 150];

/// So many bytes and the fraction `share` of them.
pub fn more(bytes: u64, share: f64) -> u64 {
    bytes.saturating_add((bytes as f64 * share) as u64)
}
