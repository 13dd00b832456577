//! Chooses how long collectives may be in flight, within a limit of memory. A join lies between
//! [`immediate_joins`] and [`joins_at_first_use`].
//!
//! Bytes that a collective accesses stay occupied until its join. At the start no collective is in flight. Then
//! each collective, in the order of the steps, gets the latest join for which no arena exceeds its limit at any
//! step.
//!
//! [`immediate_joins`]: crate::liveness::immediate_joins
//! [`joins_at_first_use`]: crate::liveness::joins_at_first_use

use symmc_plan::Lane;

use crate::order::ArenaDemand;
use crate::scheduled::{PlacedSteps, SizedClass};

/// The joins of each step. `sized` are the classes of `placed`, in which nothing is in flight. `awaited` are
/// the latest joins, at first use. `limit` is the number of bytes that each arena may hold at any step.
pub fn latest_joins_within(
    placed: &PlacedSteps,
    sized: &[SizedClass],
    awaited: &[u32],
    limit: ArenaDemand,
) -> Vec<u32> {
    let mut load = arena_loads(sized, awaited.len());
    // The end of each class, its bytes and its arena. A class that wraps is occupied to the end of the run
    // already.
    let mut class_memory: Vec<Option<(usize, u64, usize)>> = vec![None; placed.classes.list.len()];
    for s in sized.iter().filter(|s| s.block.start < s.block.end) {
        class_memory[s.class] = Some((s.block.end, s.block.size, s.arena as usize));
    }
    let mut joined = placed.live.joined.clone();
    for (s, step) in placed.steps.list.iter().enumerate().filter(|(_, step)| step.lane == Lane::Comm) {
        let mut own: Vec<usize> = step
            .reads
            .iter()
            .chain(&step.writes)
            .filter_map(|&v| placed.classes.class_of[v].map(|c| c as usize))
            .filter(|&c| class_memory[c].is_some())
            .collect();
        own.sort_unstable();
        own.dedup();
        let mut join = joined[s] as usize;
        while join < awaited[s] as usize {
            let mut added = [0u64; 2];
            for (end, size, arena) in own.iter().filter_map(|&c| class_memory[c]) {
                added[arena] = added[arena].saturating_add(if end <= join { size } else { 0 });
            }
            if (0..2).any(|a| added[a] > 0 && load[a][join].saturating_add(added[a]) > limit[a]) {
                break;
            }
            (0..2).for_each(|a| load[a][join] = load[a][join].saturating_add(added[a]));
            join += 1;
        }
        joined[s] = join as u32;
        for &c in &own {
            if let Some((end, ..)) = &mut class_memory[c] {
                *end = (*end).max(join);
            }
        }
    }
    joined
}

/// The bytes of each arena that are occupied at each of `steps` steps.
fn arena_loads(sized: &[SizedClass], steps: usize) -> [Vec<u64>; 2] {
    // The change of the sum from one step to the next.
    let mut rises = [vec![0i128; steps + 1], vec![0i128; steps + 1]];
    for s in sized {
        let block = s.block;
        let rises = &mut rises[s.arena as usize];
        let wraps = block.start >= block.end;
        for (start, end) in [(block.start, if wraps { steps } else { block.end }), (0, block.end)] {
            rises[start.min(steps)] += i128::from(block.size);
            rises[end.min(steps)] -= i128::from(block.size);
            if !wraps {
                break;
            }
        }
    }
    rises.map(|rises| {
        let mut sum = 0;
        let sums = rises.iter().take(steps).map(|rise| {
            sum += rise;
            u64::try_from(sum).unwrap_or(u64::MAX)
        });
        sums.collect()
    })
}
