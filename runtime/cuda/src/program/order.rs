//! Which stream runs each step, and what it waits for there.
//!
//! The lanes of the plan are streams. A step of the communication lane runs on the compute stream where nothing is
//! beside it, because it begins after the compute step in front of it and the next one begins after it, or only what
//! takes less time than crossing between streams: two kernels in one stream follow each other faster than that, and
//! the second may be a dependent launch (PDL). The order of the plan stays: steps of one lane follow each other
//! wherever they run, and steps of two streams of which none waits for the other may follow each other in any order.

use symmc_ir::OpCost;
use symmc_plan::Lane;
use symmc_runtime::exec::{BoundStep, Located, MemorySpace, Work};

/// How many light steps beside a collective still take less time than crossing between streams.
const FEW: usize = 2;
/// The bytes that a light step reads and writes at most.
const LIGHT: u64 = 1 << 20;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamStep {
    /// The lane whose stream it runs on.
    pub stream: Lane,
    /// Earlier steps, of the other stream, that it waits for.
    pub waits: Vec<usize>,
    /// Whether a step of the other stream waits for it.
    pub awaited: bool,
}

pub fn assign(list: &[BoundStep]) -> Vec<StreamStep> {
    let alone = alone(list);
    let stream = |place: usize| if alone[place] { Lane::Compute } else { list[place].lane };
    let mut out: Vec<StreamStep> = Vec::with_capacity(list.len());
    for (place, step) in list.iter().enumerate() {
        let own = stream(place);
        let before = list[..place].iter().rposition(|s| s.lane == step.lane);
        let mut waits: Vec<usize> = step.waits.iter().copied().chain(before).collect();
        waits.retain(|&w| stream(w) != own);
        waits.sort_unstable();
        waits.dedup();
        waits.iter().for_each(|&w| out[w].awaited = true);
        out.push(StreamStep { stream: own, waits, awaited: false });
    }
    out
}

/// For each step whether it is one of the communication lane with no compute step beside it that counts.
fn alone(list: &[BoundStep]) -> Vec<bool> {
    let compute = |s: usize| list[s].lane == Lane::Compute;
    // The first compute step that is after each step of the communication lane.
    let mut after = vec![list.len(); list.len()];
    for (place, step) in list.iter().enumerate().filter(|(p, _)| compute(*p)) {
        step.waits.iter().for_each(|&w| after[w] = after[w].min(place));
    }
    for place in (1..list.len()).rev() {
        after[place - 1] = after[place - 1].min(after[place]);
    }
    // How many compute steps are before each step of the communication lane.
    let mut begun = 0;
    let mut out = vec![false; list.len()];
    for (place, step) in list.iter().enumerate().filter(|(p, _)| !compute(*p)) {
        begun = step.waits.iter().filter(|w| compute(**w)).map(|w| w + 1).fold(begun, usize::max);
        let mut beside = (begun..after[place]).filter(|&s| compute(s));
        out[place] = beside.by_ref().take(FEW).all(|s| is_light(&list[s])) && beside.next().is_none();
    }
    out
}

/// Whether a step takes little more than its launch.
fn is_light(step: &BoundStep) -> bool {
    let bytes = |v: &Located| (v.shape.iter().product::<usize>() * v.dtype.size()) as u64;
    let has_memory = |v: &&Located| v.space != MemorySpace::Inner;
    let mut sum = 0u64;
    step.work.parts().all(|work| {
        let Work::Kernel { op, operands, results } = work else { return false };
        let moved = operands.iter().chain(results).filter(has_memory).map(bytes);
        sum = moved.fold(sum, u64::saturating_add);
        let computes = !matches!(op.facts().cost, OpCost::Bytes | OpCost::Sort);
        !computes && !op.is_opaque() && sum <= LIGHT
    })
}

#[cfg(test)]
mod tests {
    use symmc_ir::{DType, Op};

    use super::*;

    const COMPUTE: Lane = Lane::Compute;
    const COMM: Lane = Lane::Comm;

    /// Steps of which those of the compute lane are products.
    fn list(steps: &[(Lane, &[usize])]) -> Vec<BoundStep> {
        let step = |(index, (lane, waits)): (usize, &(Lane, &[usize]))| BoundStep {
            index,
            lane: *lane,
            waits: waits.to_vec(),
            node: String::new(),
            op_name: String::new(),
            work: Work::Kernel { op: Op::MatMul, operands: vec![], results: vec![] },
        };
        steps.iter().enumerate().map(step).collect()
    }

    fn streams(assigned: &[StreamStep]) -> Vec<Lane> {
        assigned.iter().map(|t| t.stream).collect()
    }

    #[test]
    fn communication_with_nothing_beside_it_runs_on_the_compute_stream() {
        let assigned =
            assign(&list(&[(COMPUTE, &[]), (COMM, &[0]), (COMM, &[]), (COMPUTE, &[2]), (COMM, &[3])]));
        assert_eq!(streams(&assigned), [COMPUTE; 5]);
        assert!(assigned.iter().all(|t| t.waits.is_empty() && !t.awaited));
    }

    #[test]
    fn communication_beside_compute_keeps_its_stream_and_order() {
        // Step 1 may run beside 2; step 3 is between 2 and 4, and after 1 as the lane says.
        let assigned =
            assign(&list(&[(COMPUTE, &[]), (COMM, &[0]), (COMPUTE, &[]), (COMM, &[2]), (COMPUTE, &[3])]));
        assert_eq!(streams(&assigned), [COMPUTE, COMM, COMPUTE, COMPUTE, COMPUTE]);
        assert_eq!(assigned[1].waits, [0]);
        assert_eq!(assigned[3].waits, [1]);
        assert!(assigned[0].awaited && assigned[1].awaited && !assigned[2].awaited);
    }

    #[test]
    fn only_the_part_of_a_run_that_both_sides_bound_moves() {
        // Step 1 does not wait for 0; 3 is not waited for by 4.
        let assigned =
            assign(&list(&[(COMPUTE, &[]), (COMM, &[]), (COMM, &[0]), (COMM, &[]), (COMPUTE, &[2])]));
        assert_eq!(streams(&assigned), [COMPUTE, COMM, COMPUTE, COMM, COMPUTE]);
        assert_eq!(assigned[2].waits, [1]);
        assert_eq!(assigned[3].waits, [2]);
    }

    #[test]
    fn few_small_steps_on_the_side_do_not_count() {
        // Steps 2 and 3 may run beside 1.
        let mut list = list(&[(COMPUTE, &[]), (COMM, &[0]), (COMPUTE, &[]), (COMPUTE, &[]), (COMPUTE, &[1])]);
        let value = |elements: usize| {
            let (shape, strides) = ([elements].into(), [1].into());
            Located {
                space: MemorySpace::Ordinary,
                offset: 0,
                by_rank: 0,
                dtype: DType::BF16,
                shape,
                strides,
            }
        };
        let copy = |n| Work::Kernel { op: Op::Copy, operands: vec![value(n)], results: vec![value(n)] };
        let stream = |list: &[BoundStep]| assign(list)[1].stream;
        list[2].work = copy(1 << 10);
        assert_eq!(stream(&list), COMM);
        list[3].work = copy(1 << 10);
        assert_eq!(stream(&list), COMPUTE);
        list[3].work = copy(1 << 20);
        assert_eq!(stream(&list), COMM);
        list[3].work = copy(1 << 10);
        list[0].work = copy(1 << 10);
        // Nobody waits for the product in front any more, so it runs beside as well: one too many.
        list[1].waits.clear();
        assert_eq!(stream(&list), COMM);
    }
}
