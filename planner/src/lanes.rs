//! Assigns the lane of each step of a bucket.
//!
//! Orders are chosen and values are placed with every collective on the communication lane. Afterwards a
//! collective moves to the compute lane if it has nothing to run concurrently with, or only computation that
//! takes no longer than synchronising the two lanes for it ([`MachineProfile::lane_crossing_ns`]): two steps of
//! one lane follow each other without that time. The second kind moves only if the whole run is estimated to be
//! no slower for it.
//!
//! The new lanes preserve the order that the old lanes imposed. Compute steps keep their order, and a
//! collective waits for the collective before it if that is on the other lane.

use symmc_ir::SymbolTable;
use symmc_ir::machine::MachineProfile;
use symmc_ir::machine::timeline::{TimedStep, simulate_timeline};
use symmc_plan::Lane;

use crate::order::TaskGraph;
use crate::prepare::PreparedGraph;
use crate::steps::StepList;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LaneAssignment {
    pub lane: Lane,
    pub waits: Vec<usize>,
}

/// Assigns lanes and waits to the steps of a bucket, given their waits with every collective on the
/// communication lane.
pub fn assign_lanes(
    prepared: &PreparedGraph,
    steps: &StepList,
    waits: Vec<Vec<usize>>,
    symbols: &SymbolTable,
    profile: Option<&MachineProfile>,
) -> Vec<LaneAssignment> {
    let assigned: Vec<LaneAssignment> =
        steps.list.iter().zip(waits).map(|(step, waits)| LaneAssignment { lane: step.lane, waits }).collect();
    let crossing = profile.map_or(0, MachineProfile::lane_crossing_ns);
    // Without a crossing any computation keeps a collective on its lane.
    let separate = move_collectives(&assigned, &LaneTimes { crossing: 0, steps: vec![1; assigned.len()] });
    if crossing == 0 {
        return separate;
    }
    let timed = TaskGraph::new(prepared, steps, symbols, profile).timed;
    let times = LaneTimes { crossing, steps: timed.iter().map(|step| step.time).collect() };
    let in_line = move_collectives(&assigned, &times);
    let total = |lanes: &[LaneAssignment]| {
        let steps = timed.iter().zip(lanes);
        let steps: Vec<TimedStep> = steps
            .map(|(step, assignment)| TimedStep { communicates: assignment.lane == Lane::Comm, ..*step })
            .collect();
        simulate_timeline(&steps, crossing, |s, wait| lanes[s].waits.iter().for_each(|&w| wait(w))).total
    };
    if total(&in_line) <= total(&separate) { in_line } else { separate }
}

/// Times in nanoseconds.
struct LaneTimes {
    /// The time of synchronising a step with one of the other lane.
    crossing: u64,
    /// The time of each step alone.
    steps: Vec<u64>,
}

/// Moves collectives to the compute lane that gain nothing on their own.
fn move_collectives(steps: &[LaneAssignment], times: &LaneTimes) -> Vec<LaneAssignment> {
    let moves = find_movable_collectives(steps, times);
    let lanes: Vec<Lane> = steps
        .iter()
        .zip(moves)
        .map(|(step, is_moved)| if is_moved { Lane::Compute } else { step.lane })
        .collect();
    let mut previous_collective = None;
    // For each lane the number of steps of the other lane that are known to have completed.
    let mut completed = [0; 2];
    let mut out = Vec::with_capacity(steps.len());
    for (s, step) in steps.iter().enumerate() {
        let lane = lanes[s];
        let collective = previous_collective.filter(|_| step.lane == Lane::Comm);
        let awaited = step.waits.iter().copied().chain(collective).filter(|&w| lanes[w] != lane).max();
        // A lane runs in order, so waiting for the latest step covers all steps before it.
        let completed_steps = &mut completed[lane as usize];
        let waits = awaited.filter(|w| w + 1 > *completed_steps);
        *completed_steps = waits.map_or(*completed_steps, |w| w + 1);
        out.push(LaneAssignment { lane, waits: waits.into_iter().collect() });
        if step.lane == Lane::Comm {
            previous_collective = Some(s);
        }
    }
    out
}

/// For each step whether it is a collective that moves.
fn find_movable_collectives(steps: &[LaneAssignment], times: &LaneTimes) -> Vec<bool> {
    // The first compute step that is ordered after each collective.
    let mut first_after = vec![steps.len(); steps.len()];
    for (s, step) in steps.iter().enumerate().filter(|(_, step)| step.lane == Lane::Compute) {
        step.waits.iter().for_each(|&w| first_after[w] = first_after[w].min(s));
    }
    for s in (1..steps.len()).rev() {
        first_after[s - 1] = first_after[s - 1].min(first_after[s]);
    }
    // The end of the compute steps that are ordered before each collective.
    let mut end_before = 0;
    let mut moves = vec![false; steps.len()];
    for (s, step) in steps.iter().enumerate().filter(|(_, step)| step.lane != Lane::Compute) {
        let awaited = step.waits.iter().filter(|&&w| steps[w].lane == Lane::Compute).map(|w| w + 1).max();
        end_before = end_before.max(awaited.unwrap_or(0));
        let crossings = u64::from(awaited.is_some()) + u64::from(first_after[s] < steps.len());
        let limit = crossings.saturating_mul(times.crossing);
        let mut concurrent = (end_before..first_after[s]).filter(|&c| steps[c].lane == Lane::Compute);
        let total = concurrent
            .try_fold(0u64, |total, c| Some(total.saturating_add(times.steps[c])).filter(|&t| t <= limit));
        moves[s] = total.is_some();
    }
    moves
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use symmc_support::random::SplitMix;

    use super::*;

    const COMPUTE: Lane = Lane::Compute;
    const COMM: Lane = Lane::Comm;

    fn steps(list: &[(Lane, &[usize])]) -> Vec<LaneAssignment> {
        list.iter().map(|(lane, waits)| LaneAssignment { lane: *lane, waits: waits.to_vec() }).collect()
    }

    /// The lanes and waits after the move, if lanes synchronise in no time.
    fn moved(list: &[(Lane, &[usize])]) -> Vec<LaneAssignment> {
        move_collectives(&steps(list), &LaneTimes { crossing: 0, steps: vec![1; list.len()] })
    }

    #[test]
    fn collectives_with_nothing_to_overlap_move_to_the_compute_lane() {
        let list = [(COMPUTE, &[][..]), (COMM, &[0]), (COMM, &[]), (COMPUTE, &[2]), (COMM, &[3])];
        assert_eq!(moved(&list), steps(&[(COMPUTE, &[][..]); 5]));
    }

    #[test]
    fn collectives_that_overlap_computation_keep_their_lane_and_order() {
        // Step 1 may run concurrently with 2. Step 3 is between 2 and 4, and follows 1 as the lane says.
        let list = [(COMPUTE, &[][..]), (COMM, &[0]), (COMPUTE, &[]), (COMM, &[2]), (COMPUTE, &[3])];
        let expected = [(COMPUTE, &[][..]), (COMM, &[0]), (COMPUTE, &[]), (COMPUTE, &[1]), (COMPUTE, &[])];
        assert_eq!(moved(&list), steps(&expected));
    }

    #[test]
    fn only_collectives_that_are_bounded_on_both_sides_move() {
        // Step 1 does not wait for 0, and 4 does not wait for 3.
        let list = [(COMPUTE, &[][..]), (COMM, &[]), (COMM, &[0]), (COMM, &[]), (COMPUTE, &[2])];
        let expected = [(COMPUTE, &[][..]), (COMM, &[]), (COMPUTE, &[1]), (COMM, &[2]), (COMPUTE, &[])];
        assert_eq!(moved(&list), steps(&expected));
    }

    #[test]
    fn computation_that_takes_less_than_crossings_does_not_keep_a_collective_on_its_lane() {
        // Step 2 may run concurrently with 1, which two crossings of 3 separate from the other lane.
        let list = [(COMPUTE, &[][..]), (COMM, &[0]), (COMPUTE, &[]), (COMPUTE, &[1])];
        let lane_of_1 = |list: &[(Lane, &[usize])], times: [u64; 4]| {
            move_collectives(&steps(list), &LaneTimes { crossing: 3, steps: times.to_vec() })[1].lane
        };
        assert_eq!(lane_of_1(&list, [9, 9, 6, 9]), COMPUTE);
        assert_eq!(lane_of_1(&list, [9, 9, 7, 9]), COMM);
        // Step 1 does not wait for step 0, so step 0 is concurrent too, and one crossing is left.
        let list = [(COMPUTE, &[][..]), (COMM, &[]), (COMPUTE, &[]), (COMPUTE, &[1])];
        assert_eq!(lane_of_1(&list, [1, 9, 2, 9]), COMPUTE);
        assert_eq!(lane_of_1(&list, [2, 9, 2, 9]), COMM);
        // No step waits for step 1.
        let list = [(COMPUTE, &[][..]), (COMM, &[0]), (COMPUTE, &[]), (COMPUTE, &[])];
        assert_eq!(lane_of_1(&list, [9, 9, 1, 2]), COMPUTE);
        assert_eq!(lane_of_1(&list, [9, 9, 2, 2]), COMM);
    }

    #[test]
    fn steps_stay_ordered_as_they_were() {
        let mut rng = SplitMix(7);
        for _ in 0..2000 {
            let count = 1 + rng.below(12);
            let mut list: Vec<LaneAssignment> = Vec::new();
            for s in 0..count {
                let lane = if rng.one_in(2) { COMPUTE } else { COMM };
                let candidates: Vec<usize> = (0..s).filter(|&w| list[w].lane != lane).collect();
                let wait = candidates.get(rng.below(4)).copied();
                list.push(LaneAssignment { lane, waits: wait.into_iter().collect() });
            }
            let times = (0..count).map(|_| rng.below(5) as u64).collect();
            let after = move_collectives(&list, &LaneTimes { crossing: 3, steps: times });
            let old = ordered_before(&list);
            let new = ordered_before(&after);
            for s in 0..count {
                assert!(old[s].iter().all(|earlier| new[s].contains(earlier)), "{list:?} became {after:?}");
                assert!(after[s].waits.iter().all(|&w| after[w].lane != after[s].lane));
            }
        }
    }

    /// For each step the steps that are ordered before it.
    fn ordered_before(list: &[LaneAssignment]) -> Vec<BTreeSet<usize>> {
        let mut out: Vec<BTreeSet<usize>> = Vec::new();
        for (s, step) in list.iter().enumerate() {
            let in_lane = (0..s).rev().find(|&earlier| list[earlier].lane == step.lane);
            let direct = step.waits.iter().copied().chain(in_lane);
            out.push(direct.flat_map(|d| out[d].iter().copied().chain([d]).collect::<Vec<_>>()).collect());
        }
        out
    }
}
