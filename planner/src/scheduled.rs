//! A program that is ordered and placed, and the sizes of its classes at the upper bounds of a bucket.

use std::collections::BTreeSet;
use std::sync::Arc;

use symmc_ir::{Dim, SymbolTable};
use symmc_pack::Block;
use symmc_plan::{ALIGN, ArenaKind, MAX_SIZE};

use crate::error::{PlanError, Result};
use crate::liveness::{ExitChoice, Liveness, NextRendezvous};
use crate::memory_classes::{BufferClass, BufferClasses, ClassLocation, SeparateResults};
use crate::prepare::PreparedGraph;
use crate::steps::StepList;

/// A program that is ordered and placed. Buckets that share it differ only in sizes.
pub struct ScheduledProgram {
    pub prepared: Arc<PreparedGraph>,
    pub placed: PlacedSteps,
    /// The steps whose exit barriers are kept although lifetimes could replace them.
    pub kept_barriers: BTreeSet<u32>,
    /// The larger results that are written separately from their parts.
    pub separate: SeparateResults,
}

impl ScheduledProgram {
    /// The classes with their sizes at the upper bounds of the program's symbols.
    pub fn sized_classes(&self) -> Result<Vec<SizedClass>> {
        size_classes(&self.prepared, &self.placed, &self.prepared.graph.symbols)
    }
}

/// An order of the steps of a program, with the lifetimes and classes that follow from it.
pub struct PlacedSteps {
    pub steps: StepList,
    /// When memory may be written again.
    pub live: Liveness,
    pub classes: BufferClasses,
}

impl PlacedSteps {
    /// Whether a dropped exit barrier relies on a rendezvous of the next run.
    pub fn relies_on_next_run(&self) -> bool {
        self.live.exits.iter().any(|exit| matches!(exit, ExitChoice::Dropped(NextRendezvous::NextRun(_))))
    }

    /// Keeps or drops the exit barriers that are still pending, now that the classes are known.
    pub fn resolve_pending_exits(&mut self) {
        let steps = &self.steps.list;
        let classes = &self.classes;
        for exits in [&mut self.live.exits, &mut self.live.options] {
            for (s, exit) in exits.iter_mut().enumerate() {
                let ExitChoice::Pending(y) = *exit else { continue };
                // Inputs among them are never overwritten.
                let bases = steps[s].communicated_bases();
                let mut written = bases.iter().filter(|&&v| self.steps.def[v].is_some());
                *exit = if written
                    .all(|&v| classes.class_of[v].is_some_and(|c| classes.list[c as usize].first > y))
                {
                    ExitChoice::Dropped(NextRendezvous::NextRun(y))
                } else {
                    ExitChoice::Kept
                };
            }
        }
    }
}

/// The size of a dim in bytes at the upper bounds of `symbols`, rounded up.
pub fn aligned_upper_bytes(dim: &Dim, symbols: &SymbolTable, value: &str) -> Result<u64> {
    let bytes = dim.upper_bound(symbols);
    match u64::try_from(bytes) {
        Ok(size) if size <= MAX_SIZE => Ok(size.next_multiple_of(ALIGN)),
        _ => Err(PlanError::TooLarge { value: value.to_string(), bytes }),
    }
}

/// The lifetime of each class with arena memory as a block without a size.
pub fn lifetime_block(class: &BufferClass, live: &Liveness, wraps: Option<u32>) -> Block {
    let first = class.first;
    let release = class.release_step(live).max(class.first + 1);
    let end = match wraps {
        // The results of the rendezvous may take the bytes at the earliest. The bytes must be free before they
        // are written again.
        Some(y) => match live.rendezvous_release_step(y).min(first) {
            0 => release,
            end => end,
        },
        None => release,
    };
    Block { align: ALIGN, ..Block::new(first as usize, end as usize, 0) }
}

pub struct SizedClass {
    /// The index of the class in [`BufferClasses::list`].
    pub class: usize,
    pub arena: ArenaKind,
    pub block: Block,
    /// The rendezvous of the next run that frees the class, if its lifetime wraps.
    pub wraps: Option<u32>,
}

/// The classes in an arena, with their lifetimes and their sizes at the upper bounds of `symbols`.
pub fn size_classes(
    prepared: &PreparedGraph,
    placed: &PlacedSteps,
    symbols: &SymbolTable,
) -> Result<Vec<SizedClass>> {
    let mut wraps = vec![None; placed.classes.list.len()];
    for (s, exit) in placed.live.exits.iter().enumerate() {
        let ExitChoice::Dropped(NextRendezvous::NextRun(y)) = exit else { continue };
        for c in placed.steps.list[s].communicated_bases().iter().filter_map(|&v| placed.classes.class_of[v])
        {
            wraps[c as usize] = Some(wraps[c as usize].map_or(*y, |w: u32| w.max(*y)));
        }
    }
    let arenas = placed.classes.iter().filter_map(|(c, class)| match class.space {
        ClassLocation::Arena(arena) => Some((c, class, arena)),
        ClassLocation::Output(_) => None,
    });
    arenas
        .map(|(c, class, arena)| {
            let bytes = aligned_upper_bytes(&class.size, symbols, prepared.graph.value_name(class.top))?;
            let block = Block { size: bytes, ..lifetime_block(class, &placed.live, wraps[c]) };
            Ok(SizedClass { class: c, arena, block, wraps: wraps[c] })
        })
        .collect()
}
