//! Orders that have a name. Each follows one simple rule.
//!
//! - *program*: the order of the nodes.
//! - *list*: the next step is the one that frees the most bytes relative to the bytes that it adds (XLA's list
//!   scheduler).
//! - *dfs*: each step comes after its dependences, depth first, starting with the steps that access the fewest
//!   bytes (Inductor).
//! - *dfs-users*: depth first from the last steps. Of the dependences of a step, the one with more further
//!   users and the larger cone comes first (XLA's DFS scheduler).
//! - *postorder*: each step comes directly before the first step that uses it.
//! - *lpmf*: the next step is the one that raises the peak least. Among equals it is the one that leaves the
//!   fewest bytes (Inductor's least peak memory first).
//! - *bfs*: the next step is the one whose operands were computed the longest ago (Inductor).
//!
//! Equal steps are taken in program order. All orders take time nearly linear in the number of operands of all
//! steps. *lpmf* considers at most [`MAX_SCANNED_STEPS`] ready steps from each of two lists: those that leave
//! the fewest bytes, and those that add the fewest. If these do not decide, the result is the best of the considered steps
//! only.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use petgraph::graph::DiGraph;
use petgraph::visit::DfsPostOrder;
use symmc_ir::named_enum;

use super::memory::LiveMemory;
use super::model::TaskGraph;

named_enum! {
    /// The way in which an order of the steps is found.
    #[derive(Default)]
    OrderStrategy {
        /// The order with the least estimated cost, among orders with little more memory than the leanest one.
        #[default]
        Chosen = "chosen",
        /// The order with the least memory that was found.
        Lean = "lean",
        /// The order of the nodes.
        Program = "program",
        /// The next step frees the most bytes relative to the bytes that it adds, as in XLA's list scheduler.
        List = "list",
        /// Depth first from the steps that access the fewest bytes, as in Inductor.
        Dfs = "dfs",
        /// Depth first from the last steps, dependences with more further users first, as in XLA's DFS
        /// scheduler.
        DfsUsers = "dfs-users",
        /// Each step comes directly before the first step that uses it.
        PostOrder = "post-order",
        /// The next step raises the peak least, as in Inductor's least peak memory first.
        Lpmf = "lpmf",
        /// The next step has the operands that were computed the longest ago, as in Inductor.
        Bfs = "bfs",
    }
}

impl OrderStrategy {
    /// The orders that follow one simple rule.
    pub const NAMED_ORDERS: &'static [OrderStrategy] = OrderStrategy::ALL.split_at(2).1;
}

/// The order with this name. `None` if it requires a search.
pub fn build_order(tasks: &TaskGraph, name: OrderStrategy) -> Option<Vec<u32>> {
    Some(match name {
        OrderStrategy::Chosen | OrderStrategy::Lean => return None,
        OrderStrategy::Program => (0..tasks.len() as u32).collect(),
        OrderStrategy::List => greedy(tasks, GreedyRule::Freed),
        OrderStrategy::Lpmf => greedy(tasks, GreedyRule::Peak),
        OrderStrategy::Dfs => dfs(tasks),
        OrderStrategy::DfsUsers => dfs_users(tasks),
        OrderStrategy::PostOrder => {
            let ends = (0..tasks.len() as u32).filter(|&s| tasks.after.row(s as usize).is_empty());
            depth_first(tasks, ends, |before| before.to_vec())
        }
        OrderStrategy::Bfs => bfs(tasks),
    })
}

/// Visits each step after its dependences, starting from `roots`. `arrange` sorts the dependences of a step.
fn depth_first(
    tasks: &TaskGraph,
    roots: impl Iterator<Item = u32>,
    arrange: impl Fn(&[u32]) -> Vec<u32>,
) -> Vec<u32> {
    let mut graph: DiGraph<(), ()> = DiGraph::with_capacity(tasks.len(), 0);
    for _ in 0..tasks.len() {
        graph.add_node(());
    }
    for s in 0..tasks.len() as u32 {
        for needed in arrange(tasks.before.row(s as usize)) {
            graph.add_edge(s.into(), needed.into(), ());
        }
    }
    let mut walk = DfsPostOrder::empty(&graph);
    let mut out = Vec::with_capacity(tasks.len());
    for root in roots {
        walk.move_to(root.into());
        while let Some(step) = walk.next(&graph) {
            out.push(step.index() as u32);
        }
    }
    out
}

fn dfs(tasks: &TaskGraph) -> Vec<u32> {
    let mut roots: Vec<u32> = (0..tasks.len() as u32).collect();
    roots.sort_by_cached_key(|&s| {
        let classes = tasks.touches.row(s as usize).iter();
        classes.map(|&c| tasks.classes[c as usize].bytes).fold(0, u64::saturating_add)
    });
    depth_first(tasks, roots.into_iter(), |before| before.to_vec())
}

fn dfs_users(tasks: &TaskGraph) -> Vec<u32> {
    let mut further = vec![0u64; tasks.len()];
    let mut cone = vec![0u64; tasks.len()];
    let mut memory = LiveMemory::new(tasks);
    for s in 0..tasks.len() {
        let before = tasks.before.row(s);
        let users = (tasks.after.row(s).len() as u64).saturating_sub(1);
        further[s] = before.iter().map(|&b| further[b as usize]).fold(users, u64::saturating_add);
        let added = memory.added_bytes(s);
        let added = added[0].saturating_add(added[1]);
        cone[s] = before.iter().map(|&b| cone[b as usize]).fold(added, u64::saturating_add);
        memory.run(s);
    }
    let ends = (0..tasks.len() as u32).filter(|&s| tasks.after.row(s as usize).is_empty());
    depth_first(tasks, ends, |before| {
        let mut before = before.to_vec();
        before.sort_by_key(|&b| (Reverse(further[b as usize]), Reverse(cone[b as usize]), b));
        before
    })
}

fn bfs(tasks: &TaskGraph) -> Vec<u32> {
    let mut position_of = vec![0u32; tasks.len()];
    let mut missing: Vec<u32> = (0..tasks.len()).map(|s| tasks.before.row(s).len() as u32).collect();
    let mut ready = BinaryHeap::new();
    ready.extend((0..tasks.len() as u32).filter(|&s| missing[s as usize] == 0).map(|s| Reverse((vec![], s))));
    let mut out = Vec::with_capacity(tasks.len());
    while let Some(Reverse((_, s))) = ready.pop() {
        position_of[s as usize] = out.len() as u32;
        out.push(s);
        for &a in tasks.after.row(s as usize) {
            missing[a as usize] -= 1;
            if missing[a as usize] == 0 {
                let mut producers: Vec<u32> =
                    tasks.before.row(a as usize).iter().map(|&b| position_of[b as usize]).collect();
                producers.sort_unstable();
                ready.push(Reverse((producers, a)));
            }
        }
    }
    out
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum GreedyRule {
    /// Compares the bytes that stay live, then the number of users.
    Freed,
    /// Compares the peak, then the bytes that stay live.
    Peak,
}

/// The largest number of ready steps that are considered from each side, in the search for one that does not
/// raise the peak.
const MAX_SCANNED_STEPS: usize = 64;

/// Appends one ready step after another by a rule.
pub fn greedy(tasks: &TaskGraph, rule: GreedyRule) -> Vec<u32> {
    GreedyScheduler::new(tasks, rule).run().0
}

/// The effect of a step on the live bytes if it comes next: the bytes that stay, the tie breaker, the bytes
/// that it adds.
type Effect = (i128, i64, u64);

struct ReadyStep {
    /// The bytes of classes, by arena, that the step would be the first to access and those that it would be
    /// the last to access.
    first: [u128; 2],
    last: [u128; 2],
    /// The key of the step in the sorted sets.
    effect: Effect,
    /// Whether the bytes have changed since `effect` was computed.
    stale: bool,
}

struct GreedyScheduler<'a> {
    tasks: &'a TaskGraph,
    rule: GreedyRule,
    memory: LiveMemory<'a>,
    ready: Vec<Option<ReadyStep>>,
    by_effect: BTreeSet<(i128, i64, u32)>,
    by_added: BTreeSet<(u64, i128, u32)>,
    peak: u64,
    /// The number of classes, users of classes and entries of sorted sets that were visited.
    work: usize,
}

impl<'a> GreedyScheduler<'a> {
    fn new(tasks: &'a TaskGraph, rule: GreedyRule) -> Self {
        GreedyScheduler {
            tasks,
            rule,
            memory: LiveMemory::new(tasks),
            ready: (0..tasks.len()).map(|_| None).collect(),
            by_effect: BTreeSet::new(),
            by_added: BTreeSet::new(),
            peak: 0,
            work: 0,
        }
    }

    /// Returns the order and the work that it took.
    fn run(mut self) -> (Vec<u32>, usize) {
        let tasks = self.tasks;
        let mut missing: Vec<u32> = (0..tasks.len()).map(|s| tasks.before.row(s).len() as u32).collect();
        (0..tasks.len()).filter(|&s| missing[s] == 0).for_each(|s| self.add_ready(s));
        let mut out = Vec::with_capacity(tasks.len());
        while let Some(s) = self.next_step() {
            self.remove_ready(s);
            let during = self.memory.run(s);
            self.peak = self.peak.max(during[0].saturating_add(during[1]));
            out.push(s as u32);
            self.update_ready_effects(s);
            for &a in tasks.after.row(s) {
                missing[a as usize] -= 1;
                if missing[a as usize] == 0 {
                    self.add_ready(a as usize);
                }
            }
        }
        (out, self.work)
    }

    fn add_ready(&mut self, s: usize) {
        let mut first_bytes = [0; 2];
        let mut last_bytes = [0; 2];
        for &c in self.tasks.touches.row(s) {
            let class = &self.tasks.classes[c as usize];
            if self.memory.is_untouched(c) {
                first_bytes[class.arena] += u128::from(class.bytes);
            }
            if self.memory.remaining_users[c as usize] == 1 {
                last_bytes[class.arena] += u128::from(class.bytes);
            }
        }
        self.work += self.tasks.touches.row(s).len();
        self.insert_sorted(s, first_bytes, last_bytes);
    }

    /// Inserts a ready step into the sorted sets.
    fn insert_sorted(&mut self, s: usize, first: [u128; 2], last: [u128; 2]) {
        let mut added = first.map(saturate_to_u64);
        if let Some(class) = self.memory.overwritten_class(s).map(|c| &self.tasks.classes[c as usize]) {
            added[class.arena] = added[class.arena].saturating_sub(class.bytes);
        }
        let added = added[0].saturating_add(added[1]);
        let freed = last.map(saturate_to_u64);
        let stays = i128::from(added) - i128::from(freed[0].saturating_add(freed[1]));
        let tie = match self.rule {
            GreedyRule::Freed => -(self.tasks.after.row(s).len() as i64),
            GreedyRule::Peak => 0,
        };
        self.ready[s] = Some(ReadyStep { first, last, effect: (stays, tie, added), stale: false });
        self.by_effect.insert((stays, tie, s as u32));
        self.by_added.insert((added, stays, s as u32));
    }

    fn remove_ready(&mut self, s: usize) -> Option<ReadyStep> {
        let ready = self.ready[s].take()?;
        let (stays, tie, added) = ready.effect;
        self.by_effect.remove(&(stays, tie, s as u32));
        self.by_added.remove(&(added, stays, s as u32));
        Some(ready)
    }

    /// Updates the ready steps after step `s`. The first and the last but one user of a class change the
    /// effects of the users that remain. Each of these is reinserted once.
    fn update_ready_effects(&mut self, s: usize) {
        let mut stale = Vec::new();
        for &c in self.tasks.touches.row(s) {
            let class = &self.tasks.classes[c as usize];
            let users = self.tasks.users.row(c as usize);
            let remaining = self.memory.remaining_users[c as usize] as usize;
            let touched = remaining + 1 == users.len();
            let ends = remaining == 1;
            if !touched && !ends {
                continue;
            }
            self.work += users.len();
            for &u in users {
                let Some(ready) = &mut self.ready[u as usize] else { continue };
                if touched {
                    ready.first[class.arena] -= u128::from(class.bytes);
                }
                if ends {
                    ready.last[class.arena] += u128::from(class.bytes);
                }
                if !std::mem::replace(&mut ready.stale, true) {
                    stale.push(u as usize);
                }
            }
        }
        self.work += stale.len();
        for u in stale {
            if let Some(ReadyStep { first, last, .. }) = self.remove_ready(u) {
                self.insert_sorted(u, first, last);
            }
        }
    }

    fn next_step(&mut self) -> Option<usize> {
        let first = match self.rule {
            GreedyRule::Freed => self.by_effect.first().map(|e| e.2),
            GreedyRule::Peak => self.best_below_peak().or_else(|| self.by_added.first().map(|e| e.2)),
        };
        first.map(|s| s as usize)
    }

    /// Among the steps that do not raise the peak, the one that leaves the fewest bytes.
    fn best_below_peak(&mut self) -> Option<u32> {
        let live = self.memory.live[0].saturating_add(self.memory.live[1]);
        let mut best = None;
        for (&(_, _, s), &(added, stays, t)) in
            self.by_effect.iter().zip(&self.by_added).take(MAX_SCANNED_STEPS)
        {
            self.work += 1;
            if self.ready[s as usize].as_ref().is_some_and(|r| live.saturating_add(r.effect.2) <= self.peak) {
                return Some(s);
            }
            if live.saturating_add(added) > self.peak {
                break;
            }
            best = Some(best.map_or((stays, t), |b: (i128, u32)| b.min((stays, t))));
        }
        best.map(|(_, s)| s)
    }
}

fn saturate_to_u64(bytes: u128) -> u64 {
    bytes.min(u128::from(u64::MAX)) as u64
}

#[cfg(test)]
mod tests {
    use symmc_support::random::SplitMix;

    use super::*;
    use crate::order::model::MemoryClass;

    const RULES: [GreedyRule; 2] = [GreedyRule::Freed, GreedyRule::Peak];

    /// Steps that write a value each: `wide` steps without operands, one reader of each if `read`, and `ends`
    /// readers of all.
    fn fan(wide: usize, read: bool, ends: usize) -> TaskGraph {
        let readers = if read { wide } else { 0 };
        let steps = wide + readers + ends;
        let before = (0..steps).map(|s| match s {
            _ if s < wide => vec![],
            _ if s < wide + readers => vec![(s - wide) as u32],
            _ => (0..wide as u32).collect(),
        });
        let classes = (0..steps).map(|s| MemoryClass { bytes: 64 * (1 + s as u64 % 7), arena: 0 });
        TaskGraph::of_values(before, classes.collect())
    }

    #[test]
    fn the_work_of_wide_programs_is_linear_in_their_operands() {
        for (wide, read, ends) in [(2000, false, 2), (200, false, 100), (2000, true, 1), (100, true, 100)] {
            let tasks = fan(wide, read, ends);
            for (tasks, rule) in [&tasks, &tasks.reversed()].iter().flat_map(|t| RULES.map(|r| (*t, r))) {
                let (order, work) = GreedyScheduler::new(tasks, rule).run();
                let operands: usize = (0..tasks.len()).map(|s| tasks.touches.row(s).len()).sum();
                assert_eq!(order.len(), tasks.len());
                let max_work = 4 * operands + 2 * MAX_SCANNED_STEPS * tasks.len();
                assert!(work <= max_work, "{wide}, {read}, {ends}: {work} of {operands} operands");
            }
        }
    }

    /// The same rules by a visit of every ready step each time.
    fn slow(tasks: &TaskGraph, rule: GreedyRule) -> Vec<u32> {
        let mut memory = LiveMemory::new(tasks);
        let mut order = Vec::new();
        let mut peak = 0;
        while order.len() < tasks.len() {
            let ready = (0..tasks.len() as u32).filter(|s| {
                !order.contains(s) && tasks.before.row(*s as usize).iter().all(|b| order.contains(b))
            });
            let live: u64 = memory.live.iter().sum();
            let next = ready.min_by_key(|&s| {
                let added = memory.added_bytes(s as usize).iter().sum::<u64>() as i64;
                let ends = tasks
                    .touches
                    .row(s as usize)
                    .iter()
                    .filter(|&&c| memory.remaining_users[c as usize] == 1);
                let stays = added - ends.map(|&c| tasks.classes[c as usize].bytes as i64).sum::<i64>();
                match rule {
                    GreedyRule::Freed => (0, stays, -(tasks.after.row(s as usize).len() as i64), s),
                    GreedyRule::Peak if live as i64 + added <= peak => (-1, stays, 0, s),
                    GreedyRule::Peak => (added, stays, 0, s),
                }
            });
            let next = next.expect("a step is ready");
            peak = peak.max(memory.run(next as usize).iter().sum::<u64>() as i64);
            order.push(next);
        }
        order
    }

    #[test]
    fn greedy_orders_follow_their_rules() {
        for seed in 0..60 {
            let tasks = TaskGraph::random(&mut SplitMix(seed), 40, 1);
            for (tasks, rule) in [&tasks, &tasks.reversed()].iter().flat_map(|t| RULES.map(|r| (*t, r))) {
                assert_eq!(greedy(tasks, rule), slow(tasks, rule), "seed {seed}");
            }
        }
    }
}
