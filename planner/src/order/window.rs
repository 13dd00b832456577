//! Improves an order at its peaks: a few steps around each peak are put into the best order that a search
//! finds.
//!
//! The live bytes depend on the set of steps that have run, not on their order. The search for an order of a
//! window of steps therefore works on such sets. For each number of steps it follows the sets with the lowest
//! peaks that stay below the current peak. If it never has to drop a set, then the order that it finds is the
//! best one.
//!
//! The peak of one arena is lowered, and the other arena stays at or below its own peak. Equal windows, such as
//! those of equal layers, are solved once.

use std::collections::HashMap;

use super::memory::{LiveMemory, live_bytes_by_step, peak_bytes};
use super::model::TaskGraph;

/// The number of steps in a window. A set of them fits into one word.
const WINDOW_STEPS: usize = 40;

/// The distances from the start of a window to the peak that are tried, in steps. They descend, so that each
/// window starts after the previous one and the steps before it have run.
const PEAK_DISTANCES: [usize; 3] = [4 * WINDOW_STEPS / 5, WINDOW_STEPS / 2, WINDOW_STEPS / 5];

/// The number of sets of equal size that are followed, and the number of sets that are visited in all windows.
const BEAM_WIDTH: usize = 100;
const MAX_VISITED_SETS: usize = 200_000;

/// The number of rounds in which peaks are searched for.
const MAX_ROUNDS: usize = 40;

pub fn improve(tasks: &TaskGraph, order: &[u32]) -> Vec<u32> {
    let mut out = WindowImprover { tasks, order: order.to_vec(), known: HashMap::new(), sets: 0 };
    let mut stuck = [false; 2];
    for _ in 0..MAX_ROUNDS {
        for (arena, stuck) in stuck.iter_mut().enumerate() {
            *stuck = *stuck || !out.lower_peak(arena);
        }
        if stuck == [true; 2] {
            break;
        }
    }
    out.order
}

struct WindowImprover<'a> {
    tasks: &'a TaskGraph,
    order: Vec<u32>,
    /// The best order of each window that was solved, as positions. `None` if no order is better.
    known: HashMap<Vec<u64>, Option<Vec<u8>>>,
    sets: usize,
}

impl WindowImprover<'_> {
    /// Lowers the peak of one arena. Returns false if some window with that peak has no better order.
    fn lower_peak(&mut self, arena: usize) -> bool {
        let before = live_bytes_by_step(self.tasks, &self.order);
        let peak = peak_bytes(&before);
        if peak[arena] == 0 {
            return false;
        }
        // The steps before a window are a prefix of the order and do not depend on later changes.
        let mut memory = LiveMemory::new(self.tasks);
        let mut done = 0;
        let mut from = 0;
        while let Some(position) = (from..before.len()).find(|&i| before[i][arena] == peak[arena]) {
            let mut improved = false;
            for ahead in PEAK_DISTANCES {
                let start = position.saturating_sub(ahead).max(done);
                let end = (start + WINDOW_STEPS).min(self.order.len());
                for &s in &self.order[done..start] {
                    memory.run(s as usize);
                }
                done = start;
                if self.sets >= MAX_VISITED_SETS {
                    return false;
                }
                let window = StepWindow::new(self.tasks, &self.order[start..end], &memory, arena, peak);
                let better_order = match self.known.get(&window.key) {
                    Some(better_order) => better_order.clone(),
                    None => {
                        let (order, sets) = window.solve();
                        self.sets += sets;
                        self.known.insert(window.key.clone(), order.clone());
                        order
                    }
                };
                if let Some(better) = better_order {
                    let steps = self.order[start..end].to_vec();
                    for (step, &i) in self.order[start..end].iter_mut().zip(&better) {
                        *step = steps[i as usize];
                    }
                    from = end;
                    improved = true;
                    break;
                }
            }
            if !improved {
                return false;
            }
        }
        true
    }
}

/// A class that some step of a window accesses.
struct WindowClass {
    bytes: u64,
    arena: usize,
    /// The steps of the window that access it.
    by: u64,
    /// Whether it is live before the window, and whether it is live after the window.
    born: bool,
    lives_on: bool,
}

struct StepWindow {
    /// For each step, the steps of the window that must come before it.
    before: Vec<u64>,
    /// For each step, the classes that it accesses and those that it may overwrite.
    touches: Vec<Vec<u32>>,
    over: Vec<Vec<u32>>,
    held: Vec<WindowClass>,
    /// The arena whose peak is to be lowered.
    arena: usize,
    /// The room above the bytes that are live at the start. The arena must stay below its limit, and the other
    /// arena at or below its own.
    room: [i128; 2],
    /// All fields above as numbers: equal windows have equal keys.
    key: Vec<u64>,
}

impl StepWindow {
    fn new(
        tasks: &TaskGraph,
        steps: &[u32],
        memory: &LiveMemory<'_>,
        arena: usize,
        most: [u64; 2],
    ) -> StepWindow {
        let local: HashMap<u32, usize> = steps.iter().enumerate().map(|(i, &s)| (s, i)).collect();
        let before: Vec<u64> = steps
            .iter()
            .map(|&s| {
                let needed = tasks.before.row(s as usize).iter().filter_map(|s| local.get(s));
                needed.fold(0u64, |set, i| set | 1 << i)
            })
            .collect();
        let mut index: HashMap<u32, u32> = HashMap::new();
        let mut classes: Vec<WindowClass> = Vec::new();
        let mut touches = Vec::with_capacity(steps.len());
        for (i, &s) in steps.iter().enumerate() {
            let mut row = Vec::new();
            for &c in tasks.touches.row(s as usize) {
                let k = *index.entry(c).or_insert_with(|| {
                    let class = tasks.classes[c as usize];
                    let born = !memory.is_untouched(c);
                    classes.push(WindowClass {
                        bytes: class.bytes,
                        arena: class.arena,
                        by: 0,
                        born,
                        lives_on: true,
                    });
                    classes.len() as u32 - 1
                });
                classes[k as usize].by |= 1 << i;
                row.push(k);
            }
            touches.push(row);
        }
        for (c, &k) in &index {
            let h = &mut classes[k as usize];
            h.lives_on = memory.remaining_users[*c as usize] > h.by.count_ones();
        }
        let over = steps
            .iter()
            .map(|&s| tasks.over.row(s as usize).iter().filter_map(|c| index.get(c).copied()).collect())
            .collect();
        let room = [0, 1].map(|a| i128::from(most[a]) - i128::from(memory.live[a]));
        let mut window = StepWindow { before, touches, over, held: classes, arena, room, key: Vec::new() };
        window.key = window.key();
        window
    }

    fn key(&self) -> Vec<u64> {
        let mut key = vec![self.arena as u64];
        key.extend(self.room.iter().flat_map(|&r| [r as u64, (r >> 64) as u64]));
        for (i, before) in self.before.iter().enumerate() {
            key.extend([*before, self.touches[i].len() as u64, self.over[i].len() as u64]);
            key.extend(self.touches[i].iter().chain(&self.over[i]).map(|&k| u64::from(k)));
        }
        for h in &self.held {
            key.extend([h.bytes, (h.arena as u64) << 2 | u64::from(h.born) << 1 | u64::from(h.lives_on)]);
        }
        key
    }

    /// The live bytes relative to the start of the window, during step `i` and after it. The steps of `set`
    /// have run, and `live` are the live bytes then.
    fn step_memory(&self, i: usize, set: u64, live: [i128; 2]) -> ([i128; 2], [i128; 2]) {
        let bit = 1u64 << i;
        let mut during = live;
        let mut after = live;
        for &k in &self.touches[i] {
            let h = &self.held[k as usize];
            if !h.born && h.by & set == 0 {
                during[h.arena] += i128::from(h.bytes);
                after[h.arena] += i128::from(h.bytes);
            }
            if !h.lives_on && (set | bit) & h.by == h.by {
                after[h.arena] -= i128::from(h.bytes);
            }
        }
        let mut overwritable = self.over[i].iter().map(|&k| &self.held[k as usize]);
        let dies =
            overwritable.find(|h| !h.lives_on && (set | bit) & h.by == h.by && (h.born || h.by & set != 0));
        if let Some(h) = dies {
            during[h.arena] -= i128::from(h.bytes);
        }
        (during, after)
    }

    /// The order with the lowest peak that the search finds, if that is lower than the current peak, and the
    /// number of visited sets.
    fn solve(&self) -> (Option<Vec<u8>>, usize) {
        let mut reached = vec![ReachedSet { before: 0, step: 0, set: 0, live: [0; 2], peak: 0 }];
        let mut level = vec![0u32];
        for _ in 0..self.before.len() {
            // The best way to each set.
            let mut next: HashMap<u64, u32> = HashMap::new();
            for &index in &level {
                for new in self.extend_set(index, &reached[index as usize]) {
                    match next.get(&new.set) {
                        Some(&i) if reached[i as usize].peak <= new.peak => {}
                        Some(&i) => reached[i as usize] = new,
                        None => {
                            next.insert(new.set, reached.len() as u32);
                            reached.push(new);
                        }
                    }
                }
            }
            level = next.into_values().collect();
            level.sort_unstable_by_key(|&i| {
                let r = &reached[i as usize];
                (r.peak, r.live[0] + r.live[1], i)
            });
            level.truncate(BEAM_WIDTH);
        }
        let best = level.first().map(|&index| {
            let mut out = Vec::with_capacity(self.before.len());
            let mut index = index as usize;
            while index != 0 {
                out.push(reached[index].step);
                index = reached[index].before as usize;
            }
            out.reverse();
            out
        });
        (best, reached.len())
    }

    /// The sets that one more step leads to, as far as they stay within the room. A step that lowers the live
    /// bytes without a new peak is taken at once, because it would do the same later.
    fn extend_set(&self, at: u32, from: &ReachedSet) -> Vec<ReachedSet> {
        let other_arena = 1 - self.arena;
        let mut out = Vec::new();
        for i in 0..self.before.len() {
            let bit = 1u64 << i;
            if from.set & bit != 0 || self.before[i] & !from.set != 0 {
                continue;
            }
            let (during, live) = self.step_memory(i, from.set, from.live);
            if during[self.arena] >= self.room[self.arena] || during[other_arena] > self.room[other_arena] {
                continue;
            }
            let peak = from.peak.max(during[self.arena]);
            let new = ReachedSet { before: at, step: i as u8, set: from.set | bit, live, peak };
            if peak == from.peak && (0..2).all(|a| live[a] <= from.live[a]) {
                return vec![new];
            }
            out.push(new);
        }
        out
    }
}

struct ReachedSet {
    /// The index of the set before the last step, and that step.
    before: u32,
    step: u8,
    set: u64,
    /// The live bytes relative to the start of the window, and the peak so far of the arena that is to be
    /// lowered.
    live: [i128; 2],
    peak: i128,
}

#[cfg(test)]
mod tests {
    use symmc_support::random::SplitMix;

    use super::*;

    /// The least peak of one arena among all orders in which the other stays at or below `limit`.
    fn least(tasks: &TaskGraph, arena: usize, limit: u64) -> u64 {
        fn go(tasks: &TaskGraph, done: &mut Vec<u32>, arena: usize, limit: u64, best: &mut u64) {
            let peak = peak_bytes(&live_bytes_by_step(tasks, done));
            if peak[arena] >= *best || peak[1 - arena] > limit {
                return;
            }
            if done.len() == tasks.len() {
                *best = peak[arena];
                return;
            }
            for s in 0..tasks.len() as u32 {
                if !done.contains(&s) && tasks.before.row(s as usize).iter().all(|b| done.contains(b)) {
                    done.push(s);
                    go(tasks, done, arena, limit, best);
                    done.pop();
                }
            }
        }
        let mut best = u64::MAX;
        go(tasks, &mut Vec::new(), arena, limit, &mut best);
        best
    }

    #[test]
    fn no_order_of_a_small_program_has_a_lower_peak() {
        let mut gained = 0;
        for seed in 0..60 {
            let tasks = TaskGraph::random(&mut SplitMix(seed), 8, 1);
            let program: Vec<u32> = (0..tasks.len() as u32).collect();
            let order = improve(&tasks, &program);
            assert!(
                order
                    .iter()
                    .enumerate()
                    .all(|(i, &s)| { tasks.before.row(s as usize).iter().all(|b| order[..i].contains(b)) })
            );
            let from = peak_bytes(&live_bytes_by_step(&tasks, &program));
            let to = peak_bytes(&live_bytes_by_step(&tasks, &order));
            for arena in 0..2 {
                assert!(to[arena] <= from[arena], "seed {seed}");
                assert_eq!(to[arena], least(&tasks, arena, to[1 - arena]), "seed {seed}, arena {arena}");
            }
            gained += usize::from(to != from);
        }
        assert!(gained > 20, "{gained}");
    }

    #[test]
    fn the_peak_of_equal_layers_is_lowered_in_all_of_them() {
        let mut gained = 0;
        for seed in 0..30 {
            let [one, many] = [1, 100].map(|copies| {
                let tasks = TaskGraph::random(&mut SplitMix(seed), 30, copies);
                let program: Vec<u32> = (0..tasks.len() as u32).collect();
                let order = improve(&tasks, &program);
                (
                    peak_bytes(&live_bytes_by_step(&tasks, &program)),
                    peak_bytes(&live_bytes_by_step(&tasks, &order)),
                )
            });
            gained += usize::from(one.1 != one.0 && many.1 != many.0);
        }
        assert_eq!(gained, 30);
    }
}
