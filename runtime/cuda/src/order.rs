//! Which stream runs each step, and what it waits for there.
//!
//! The lanes of the plan are streams. A step of the communication lane with nothing beside it, because it
//! begins after the compute step in front of it and the next one begins after it, runs on the compute stream:
//! two kernels in one stream follow each other faster than across streams, and the second may be launched
//! early. The order of the plan stays: steps of one lane follow each other wherever they run.

use symmc_planner::plan::Lane;
use symmc_runtime::exec::BoundStep;

/// Where and after what a step runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Turn {
    /// The lane whose stream it runs on.
    pub stream: Lane,
    /// Earlier steps, of the other stream, that it waits for.
    pub waits: Vec<usize>,
    /// Whether a step of the other stream waits for it.
    pub awaited: bool,
}

/// The turn of each step of a list.
pub fn turns(list: &[BoundStep]) -> Vec<Turn> {
    let alone = alone(list);
    let stream = |place: usize| if alone[place] { Lane::Compute } else { list[place].lane };
    let mut out: Vec<Turn> = Vec::with_capacity(list.len());
    for (place, step) in list.iter().enumerate() {
        let own = stream(place);
        let before = list[..place].iter().rposition(|s| s.lane == step.lane);
        let mut waits: Vec<usize> = step.waits.iter().copied().chain(before).collect();
        waits.retain(|&w| stream(w) != own);
        waits.sort_unstable();
        waits.dedup();
        waits.iter().for_each(|&w| out[w].awaited = true);
        out.push(Turn { stream: own, waits, awaited: false });
    }
    out
}

/// For each step whether it is one of the communication lane with no compute step beside it.
fn alone(list: &[BoundStep]) -> Vec<bool> {
    let mut out = vec![false; list.len()];
    let compute = |s: &BoundStep| s.lane == Lane::Compute;
    let mut start = 0;
    // Between two compute steps there are only communication steps.
    while start < list.len() {
        let end = list[start..].iter().position(compute).map_or(list.len(), |n| start + n);
        let run = start..end;
        let before = start.checked_sub(1);
        // All from the first that waits for what is in front are after it; all up to the last that what is
        // behind waits for are before it.
        let first = match before {
            Some(before) => run.clone().find(|&s| list[s].waits.contains(&before)),
            None => Some(start),
        };
        let last = match list.get(end) {
            Some(next) => run.clone().rev().find(|s| next.waits.contains(s)),
            None => end.checked_sub(1),
        };
        if let (Some(first), Some(last)) = (first, last) {
            run.filter(|s| (first..=last).contains(s)).for_each(|s| out[s] = true);
        }
        start = end + 1;
    }
    out
}

#[cfg(test)]
mod tests {
    use symmc_ir::Op;
    use symmc_runtime::exec::Work;

    use super::*;

    const COMPUTE: Lane = Lane::Compute;
    const COMM: Lane = Lane::Comm;

    fn list(steps: &[(Lane, &[usize])]) -> Vec<BoundStep> {
        let step = |(index, (lane, waits)): (usize, &(Lane, &[usize]))| BoundStep {
            index,
            lane: *lane,
            waits: waits.to_vec(),
            node: String::new(),
            op_name: String::new(),
            work: Work::Kernel { op: Op::Copy, operands: vec![], results: vec![] },
        };
        steps.iter().enumerate().map(step).collect()
    }

    fn streams(turns: &[Turn]) -> Vec<Lane> {
        turns.iter().map(|t| t.stream).collect()
    }

    #[test]
    fn communication_with_nothing_beside_it_runs_on_the_compute_stream() {
        let turns = turns(&list(&[(COMPUTE, &[]), (COMM, &[0]), (COMM, &[]), (COMPUTE, &[2]), (COMM, &[3])]));
        assert_eq!(streams(&turns), [COMPUTE; 5]);
        assert!(turns.iter().all(|t| t.waits.is_empty() && !t.awaited));
    }

    #[test]
    fn communication_beside_compute_keeps_its_stream_and_order() {
        // Step 1 may run beside 2; step 3 is between 2 and 4, and after 1 as the lane says.
        let turns =
            turns(&list(&[(COMPUTE, &[]), (COMM, &[0]), (COMPUTE, &[]), (COMM, &[2]), (COMPUTE, &[3])]));
        assert_eq!(streams(&turns), [COMPUTE, COMM, COMPUTE, COMPUTE, COMPUTE]);
        assert_eq!(turns[1].waits, [0]);
        assert_eq!(turns[3].waits, [1]);
        assert!(turns[0].awaited && turns[1].awaited && !turns[2].awaited);
    }

    #[test]
    fn only_the_part_of_a_run_that_both_sides_bound_moves() {
        // Step 1 does not wait for 0; 3 is not waited for by 4.
        let turns = turns(&list(&[(COMPUTE, &[]), (COMM, &[]), (COMM, &[0]), (COMM, &[]), (COMPUTE, &[2])]));
        assert_eq!(streams(&turns), [COMPUTE, COMM, COMPUTE, COMM, COMPUTE]);
        assert_eq!(turns[2].waits, [1]);
        assert_eq!(turns[3].waits, [2]);
    }
}
