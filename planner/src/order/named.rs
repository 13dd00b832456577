//! Orders that are known by a name, each by one simple rule.
//!
//! - *program*: the order of the nodes.
//! - *list*: next comes the step that frees the most bytes over what it adds (XLA's list scheduler).
//! - *dfs*: each step after all that it needs, depth first, beginning with those that touch the fewest bytes
//!   (Inductor).
//! - *dfs-users*: depth first from the ends; of what a step needs, first what has the more further users above it
//!   and the larger cone (XLA's DFS scheduler).
//! - *postorder*: each step directly before the first that uses it.
//! - *lpmf*: next comes the step that raises the peak least, then the one that leaves the fewest bytes (Inductor's
//!   least peak memory first).
//! - *bfs*: next comes the step whose operands were made the longest ago (Inductor).
//!
//! Equals are taken in program order. All take time near linear in steps and operands, but for *lpmf* where many
//! steps that could come next would raise the peak.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use super::Order;
use super::memory::Memory;
use super::model::Tasks;

/// The order of this name; none where it takes a search.
pub fn named(tasks: &Tasks, name: Order) -> Option<Vec<u32>> {
    Some(match name {
        Order::Chosen | Order::Lean => return None,
        Order::Program => (0..tasks.len() as u32).collect(),
        Order::List => greedy(tasks, Rule::Freed),
        Order::Lpmf => greedy(tasks, Rule::Peak),
        Order::Dfs => dfs(tasks),
        Order::DfsUsers => dfs_users(tasks),
        Order::PostOrder => {
            let ends = (0..tasks.len() as u32).filter(|&s| tasks.after.of(s as usize).is_empty());
            depth_first(tasks, ends, |before| before.to_vec())
        }
        Order::Bfs => bfs(tasks),
    })
}

/// Each step after all that it needs, from `roots` on; `arrange` says in which order to go to what a step needs.
fn depth_first(
    tasks: &Tasks,
    roots: impl Iterator<Item = u32>,
    arrange: impl Fn(&[u32]) -> Vec<u32>,
) -> Vec<u32> {
    let mut out = Vec::with_capacity(tasks.len());
    let mut done = vec![false; tasks.len()];
    let mut stack: Vec<(u32, bool)> = Vec::new();
    for root in roots {
        stack.push((root, false));
        while let Some((s, ready)) = stack.pop() {
            if done[s as usize] {
                continue;
            }
            if ready {
                done[s as usize] = true;
                out.push(s);
                continue;
            }
            stack.push((s, true));
            let needed = arrange(tasks.before.of(s as usize));
            stack.extend(needed.iter().rev().filter(|&&b| !done[b as usize]).map(|&b| (b, false)));
        }
    }
    out
}

fn dfs(tasks: &Tasks) -> Vec<u32> {
    let bytes = |s: u32| {
        let classes = tasks.touches.of(s as usize).iter();
        classes.map(|&c| tasks.classes[c as usize].bytes).fold(0, u64::saturating_add)
    };
    let mut roots: Vec<u32> = (0..tasks.len() as u32).collect();
    roots.sort_by_cached_key(|&s| bytes(s));
    depth_first(tasks, roots.into_iter(), |before| before.to_vec())
}

fn dfs_users(tasks: &Tasks) -> Vec<u32> {
    let mut further = vec![0u64; tasks.len()];
    let mut cone = vec![0u64; tasks.len()];
    let mut memory = Memory::new(tasks);
    for s in 0..tasks.len() {
        let before = || tasks.before.of(s).iter().map(|&b| b as usize);
        let users = (tasks.after.of(s).len() as u64).saturating_sub(1);
        further[s] = before().map(|b| further[b]).fold(users, u64::saturating_add);
        let added = memory.added(s);
        let own = added[0].saturating_add(added[1]);
        cone[s] = before().map(|b| cone[b]).fold(own, u64::saturating_add);
        memory.run(s);
    }
    let ends = (0..tasks.len() as u32).filter(|&s| tasks.after.of(s as usize).is_empty());
    depth_first(tasks, ends, |before| {
        let mut before = before.to_vec();
        before.sort_by_key(|&b| (Reverse(further[b as usize]), Reverse(cone[b as usize]), b));
        before
    })
}

fn bfs(tasks: &Tasks) -> Vec<u32> {
    let mut at = vec![0u32; tasks.len()];
    let mut missing: Vec<u32> = (0..tasks.len()).map(|s| tasks.before.of(s).len() as u32).collect();
    let mut ready = BinaryHeap::new();
    ready.extend((0..tasks.len() as u32).filter(|&s| missing[s as usize] == 0).map(|s| Reverse((vec![], s))));
    let mut out = Vec::with_capacity(tasks.len());
    while let Some(Reverse((_, s))) = ready.pop() {
        at[s as usize] = out.len() as u32;
        out.push(s);
        for &a in tasks.after.of(s as usize) {
            missing[a as usize] -= 1;
            if missing[a as usize] == 0 {
                let mut made: Vec<u32> =
                    tasks.before.of(a as usize).iter().map(|&b| at[b as usize]).collect();
                made.sort_unstable();
                ready.push(Reverse((made, a)));
            }
        }
    }
    out
}

/// What a greedy order looks at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// The bytes that stay, then the number of users.
    Freed,
    /// The peak, then the bytes that stay.
    Peak,
}

/// What a step would do to the live bytes if it came next: what stays, the tie breaker, what it adds.
type Effect = (i128, i64, u64);

/// Takes one step after another by a rule.
pub fn greedy(tasks: &Tasks, rule: Rule) -> Vec<u32> {
    Greedy {
        tasks,
        rule,
        memory: Memory::new(tasks),
        effect: vec![None; tasks.len()],
        by_effect: BTreeSet::new(),
        by_added: BTreeSet::new(),
        peak: 0,
    }
    .run()
}

struct Greedy<'a> {
    tasks: &'a Tasks,
    rule: Rule,
    memory: Memory<'a>,
    /// Of the steps that could come next.
    effect: Vec<Option<Effect>>,
    by_effect: BTreeSet<(i128, i64, u32)>,
    by_added: BTreeSet<(u64, i128, u32)>,
    peak: u64,
}

impl Greedy<'_> {
    fn run(mut self) -> Vec<u32> {
        let tasks = self.tasks;
        let mut missing: Vec<u32> = (0..tasks.len()).map(|s| tasks.before.of(s).len() as u32).collect();
        (0..tasks.len()).filter(|&s| missing[s] == 0).for_each(|s| self.enter(s));
        let mut out = Vec::with_capacity(tasks.len());
        while let Some(s) = self.next() {
            self.leave(s);
            let during = self.memory.run(s);
            self.peak = self.peak.max(during[0].saturating_add(during[1]));
            out.push(s as u32);
            for &c in tasks.touches.of(s) {
                // What the first and the last user of a class do has changed for those that remain.
                let left = self.memory.left[c as usize] as usize;
                let users = tasks.users.of(c as usize);
                if left == 1 || left + 1 == users.len() {
                    for &u in users {
                        if self.effect[u as usize].is_some() {
                            self.leave(u as usize);
                            self.enter(u as usize);
                        }
                    }
                }
            }
            for &a in tasks.after.of(s) {
                missing[a as usize] -= 1;
                if missing[a as usize] == 0 {
                    self.enter(a as usize);
                }
            }
        }
        out
    }

    fn enter(&mut self, s: usize) {
        let (added, freed) = (self.memory.added(s), self.memory.freed(s));
        let sum = |b: [u64; 2]| b[0].saturating_add(b[1]);
        let stays = i128::from(sum(added)) - i128::from(sum(freed));
        let tie = match self.rule {
            Rule::Freed => -(self.tasks.after.of(s).len() as i64),
            Rule::Peak => 0,
        };
        self.effect[s] = Some((stays, tie, sum(added)));
        self.by_effect.insert((stays, tie, s as u32));
        self.by_added.insert((sum(added), stays, s as u32));
    }

    fn leave(&mut self, s: usize) {
        if let Some((stays, tie, added)) = self.effect[s].take() {
            self.by_effect.remove(&(stays, tie, s as u32));
            self.by_added.remove(&(added, stays, s as u32));
        }
    }

    fn next(&self) -> Option<usize> {
        let live = self.memory.live[0].saturating_add(self.memory.live[1]);
        let fits = |s: u32| self.effect[s as usize].is_some_and(|e| live.saturating_add(e.2) <= self.peak);
        let first = match self.rule {
            Rule::Freed => self.by_effect.first().map(|e| e.2),
            Rule::Peak => {
                let below = self.by_effect.iter().map(|e| e.2).find(|&s| fits(s));
                below.or_else(|| self.by_added.first().map(|e| e.2))
            }
        };
        first.map(|s| s as usize)
    }
}
