//! How long collectives may be in flight: joins between [`at_once`] and [`awaited`] that fit memory.
//!
//! What a collective touches stays occupied until its join. Beginning with none in flight, one collective after
//! another, in the order of the steps, gets the latest join at which no instant exceeds the limit of its arena.
//!
//! [`at_once`]: crate::liveness::at_once
//! [`awaited`]: crate::liveness::awaited

use std::ops::Range;

use crate::bucket::{Placed, Sized};
use crate::order::Demand;
use crate::plan::Lane;

/// The joins of each step. `sized` are the classes of `placed`, which has nothing in flight; `awaited` are the latest
/// joins of use, and `limit` is what each arena may hold at any instant.
pub fn joins(placed: &Placed, sized: &[Sized], awaited: &[u32], limit: Demand) -> Vec<u32> {
    let steps = awaited.len();
    let mut load = [vec![0u64; steps], vec![0u64; steps]];
    // The end of each class, its bytes and arena.
    let mut held: Vec<Option<(usize, u64, usize)>> = vec![None; placed.classes.list.len()];
    for s in sized {
        let (block, arena) = (s.block, s.arena as usize);
        let mut occupy = |steps: Range<usize>| {
            load[arena][steps].iter_mut().for_each(|l| *l = l.saturating_add(block.size));
        };
        if block.start < block.end {
            occupy(block.start..block.end.min(steps));
            held[s.class] = Some((block.end, block.size, arena));
        } else {
            // What wraps is occupied to the end as it is.
            occupy(block.start..steps);
            occupy(0..block.end);
        }
    }
    let mut joined = placed.live.joined.clone();
    for (s, step) in placed.steps.list.iter().enumerate().filter(|(_, step)| step.lane == Lane::Comm) {
        let mut own: Vec<usize> = step
            .reads
            .iter()
            .chain(&step.writes)
            .filter_map(|&v| placed.classes.of[v].map(|c| c as usize))
            .filter(|&c| held[c].is_some())
            .collect();
        own.sort_unstable();
        own.dedup();
        let mut join = joined[s] as usize;
        while join < awaited[s] as usize {
            let mut more = [0u64; 2];
            for (end, size, arena) in own.iter().filter_map(|&c| held[c]) {
                more[arena] = more[arena].saturating_add(if end <= join { size } else { 0 });
            }
            if (0..2).any(|a| more[a] > 0 && load[a][join].saturating_add(more[a]) > limit[a]) {
                break;
            }
            (0..2).for_each(|a| load[a][join] = load[a][join].saturating_add(more[a]));
            join += 1;
        }
        joined[s] = join as u32;
        for &c in &own {
            if let Some((end, ..)) = &mut held[c] {
                *end = (*end).max(join);
            }
        }
    }
    joined
}
