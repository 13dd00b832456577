//! Decides which droppable exit barriers run, and computes the cost of dropping them.
//!
//! A dropped exit barrier costs memory: the operand stays occupied until the next rendezvous. A barrier is
//! dropped if lifetimes can replace it, unless the caller keeps barriers to save memory
//! ([`select_barriers_to_keep`]).
//!
//! The cost of one barrier is the change of the symmetric arena's bound if this barrier alone is decided the
//! other way. Several barriers can cost nothing each and still cost something together.

use std::collections::BTreeSet;

use symmc_pack::Block;
use symmc_plan::ArenaKind;

use crate::error::Result;
use crate::liveness::{ExitChoice, Liveness, NextRendezvous};
use crate::scheduled::{PlacedSteps, ScheduledProgram, SizedClass, lifetime_block};

pub struct BarrierCosts {
    /// For each step with an exit barrier that lifetimes can replace, the bytes that dropping it costs.
    pub each: Vec<Option<u64>>,
    pub dropped: u64,
}

/// The cost of the dropped barriers of a schedule whose classes have these lifetimes and sizes.
pub fn compute_barrier_costs(placed: &PlacedSteps, sized: &[SizedClass]) -> BarrierCosts {
    let mut each = vec![None; placed.steps.list.len()];
    if placed.live.options.iter().all(|o| !matches!(o, ExitChoice::Dropped(_))) {
        return BarrierCosts { each, dropped: 0 };
    }
    let arena = SymmetricArenaLoad::new(placed, sized);
    let bound = arena.bound();
    for choice in arena.droppable_barriers() {
        let changed = (0..arena.load.len()).map(|t| {
            if choice.dropped {
                arena.load[t].saturating_sub(choice.extra_bytes_at(t))
            } else {
                arena.load[t].saturating_add(choice.extra_bytes_at(t))
            }
        });
        each[choice.step as usize] = Some(changed.max().unwrap_or(0).abs_diff(bound));
    }
    for (s, option) in placed.live.options.iter().enumerate() {
        // Operands outside of buffers cost nothing.
        if matches!(option, ExitChoice::Dropped(_)) && each[s].is_none() {
            each[s] = Some(0);
        }
    }
    let mut live = placed.live.clone();
    for (exit, option) in live.exits.iter_mut().zip(&placed.live.options) {
        if matches!(option, ExitChoice::Dropped(_)) {
            *exit = ExitChoice::Kept;
        }
    }
    let load = arena.compute_load(|s| lifetime_with_barriers(placed, &live, s));
    BarrierCosts { each, dropped: bound.saturating_sub(load.into_iter().max().unwrap_or(0)) }
}

/// Selects dropped barriers to keep, so that the symmetric arena holds at most `room` bytes at any step. If
/// that is impossible, it selects the barriers that help.
pub fn select_barriers_to_keep(placed: &PlacedSteps, sized: &[SizedClass], room: u64) -> BTreeSet<u32> {
    let mut arena = SymmetricArenaLoad::new(placed, sized);
    let barriers: Vec<DroppableBarrier> = arena
        .droppable_barriers()
        .into_iter()
        .filter(|c| c.dropped && c.operands.iter().any(|o| o.size > 0))
        .collect();
    let mut is_kept = vec![false; barriers.len()];
    for t in 0..arena.load.len() {
        while arena.load[t] > room {
            // Prefer the barrier that removes the most of the excess.
            let open = barriers.iter().enumerate().filter(|(i, c)| !is_kept[*i] && c.extra_bytes_at(t) > 0);
            let most_helpful = open.max_by_key(|(i, c)| {
                let removed = (t..arena.load.len())
                    .map(|later| arena.load[later].saturating_sub(room).min(c.extra_bytes_at(later)));
                (removed.map(u128::from).sum::<u128>(), std::cmp::Reverse(*i))
            });
            let Some((i, _)) = most_helpful else { break };
            is_kept[i] = true;
            arena.update_load(&barriers[i], u64::saturating_sub);
        }
    }
    // A barrier that was selected early may be superfluous now.
    for (i, c) in barriers.iter().enumerate().filter(|(i, _)| is_kept[*i]).collect::<Vec<_>>() {
        let fits = (0..arena.load.len()).all(|t| match c.extra_bytes_at(t) {
            0 => true,
            more => arena.load[t].saturating_add(more) <= room,
        });
        if fits {
            is_kept[i] = false;
            arena.update_load(c, u64::saturating_add);
        }
    }
    barriers.iter().zip(is_kept).filter(|(_, is_kept)| *is_kept).map(|(c, _)| c.step).collect()
}

/// An exit barrier that lifetimes can replace.
struct DroppableBarrier {
    step: u32,
    dropped: bool,
    operands: Vec<BarrierOperand>,
}

/// The class of an operand that peers read.
struct BarrierOperand {
    size: u64,
    /// The lifetime of the class if the barrier runs, and if it does not.
    with: Block,
    without: Block,
}

impl DroppableBarrier {
    /// The bytes of operands that are occupied at step `t` only because the barrier is dropped.
    fn extra_bytes_at(&self, t: usize) -> u64 {
        let only_without =
            self.operands.iter().filter(|o| is_alive_at(&o.without, t) && !is_alive_at(&o.with, t));
        only_without.fold(0, |sum, o| sum.saturating_add(o.size))
    }
}

fn is_alive_at(b: &Block, t: usize) -> bool {
    if b.start < b.end { (b.start..b.end).contains(&t) } else { t >= b.start || t < b.end }
}

/// The bytes that the symmetric arena holds during each step.
struct SymmetricArenaLoad<'a> {
    placed: &'a PlacedSteps,
    sized: &'a [SizedClass],
    load: Vec<u64>,
}

impl<'a> SymmetricArenaLoad<'a> {
    fn new(placed: &'a PlacedSteps, sized: &'a [SizedClass]) -> Self {
        let mut arena = SymmetricArenaLoad { placed, sized, load: Vec::new() };
        arena.load = arena.compute_load(|s| s.block);
        arena
    }

    fn bound(&self) -> u64 {
        self.load.iter().copied().max().unwrap_or(0)
    }

    fn compute_load(&self, block: impl Fn(&SizedClass) -> Block) -> Vec<u64> {
        load_by_step(self.sized, self.placed.steps.list.len(), ArenaKind::Symmetric, block)
    }

    fn update_load(&mut self, choice: &DroppableBarrier, change: impl Fn(u64, u64) -> u64) {
        for (t, load) in self.load.iter_mut().enumerate() {
            *load = change(*load, choice.extra_bytes_at(t));
        }
    }

    fn droppable_barriers(&self) -> Vec<DroppableBarrier> {
        let placed = self.placed;
        let mut live = self.placed.live.clone();
        let mut of_class = vec![None; placed.classes.list.len()];
        for s in self.sized.iter().filter(|s| s.arena == ArenaKind::Symmetric) {
            of_class[s.class] = Some(s);
        }
        let mut barriers = Vec::new();
        for (s, &option) in placed.live.options.iter().enumerate() {
            if !matches!(option, ExitChoice::Dropped(_)) {
                continue;
            }
            let operands = placed.steps.list[s].communicated_bases().iter();
            let classes: BTreeSet<u32> = operands.filter_map(|&v| placed.classes.class_of[v]).collect();
            let now = live.exits[s];
            let mut operands = Vec::new();
            for sized in classes.into_iter().filter_map(|c| of_class[c as usize]) {
                let [with, without] = [ExitChoice::Kept, option].map(|exit| {
                    live.exits[s] = exit;
                    lifetime_with_barriers(placed, &live, sized)
                });
                operands.push(BarrierOperand { size: sized.block.size, with, without });
            }
            live.exits[s] = now;
            if !operands.is_empty() {
                let dropped = matches!(now, ExitChoice::Dropped(_));
                barriers.push(DroppableBarrier { step: s as u32, dropped, operands });
            }
        }
        barriers
    }
}

/// The lifetime of a class if barriers are decided as in `live`.
fn lifetime_with_barriers(placed: &PlacedSteps, live: &Liveness, sized: &SizedClass) -> Block {
    let class = &placed.classes.list[sized.class];
    let readers = class.members.iter().flat_map(|m| live.readers.steps_reading(m.value));
    let wraps = readers.filter_map(|&s| match live.exits[s as usize] {
        ExitChoice::Dropped(NextRendezvous::NextRun(y)) => {
            let operands = placed.steps.list[s as usize].communicated_bases();
            let own = operands.iter().any(|&v| placed.classes.class_of[v] == Some(sized.class as u32));
            own.then_some(y)
        }
        _ => None,
    });
    lifetime_block(class, live, wraps.max())
}

/// The largest sum of bytes of classes that the symmetric arena holds at any step.
pub fn symmetric_load(program: &ScheduledProgram) -> Result<u64> {
    let steps = program.placed.steps.list.len();
    let load = load_by_step(&program.sized_classes()?, steps, ArenaKind::Symmetric, |s| s.block);
    Ok(load.into_iter().max().unwrap_or(0))
}

/// The bytes that an arena holds during each of `steps` steps. `block` gives the lifetime of each class.
pub fn load_by_step(
    sized: &[SizedClass],
    steps: usize,
    arena: ArenaKind,
    block: impl Fn(&SizedClass) -> Block,
) -> Vec<u64> {
    let mut turns = vec![0i128; steps + 1];
    for s in sized.iter().filter(|s| s.arena == arena) {
        let b = block(s);
        let size = i128::from(s.block.size);
        turns[b.start] += size;
        turns[b.end.min(steps)] -= size;
        if b.end <= b.start {
            turns[0] += size;
        }
    }
    let mut live = 0i128;
    turns[..steps]
        .iter()
        .map(|t| {
            live += t;
            u64::try_from(live).unwrap_or(u64::MAX)
        })
        .collect()
}
