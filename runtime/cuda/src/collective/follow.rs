//! All-reduces whose result is added to a residual, and perhaps normalised, right behind: one kernel.
//!
//! [`find`] looks for them in a list of steps. Towards peers the kernel is the all-reduce, at its place in the
//! order; it rounds where the single steps round. All ranks decide alike on packets: what lies elsewhere on every rank stays
//! single, since a rank that packs its messages otherwise than its peers would not be understood. A two-shot is the same
//! towards peers with the addition and without.
//!
//! Such kernels are the all-reduce by packets, and the two-shot of large tensors, which takes the addition alone. With a
//! norm the packets of one kernel bring the whole operand to each peer. An all-reduce so large that it goes in two rounds
//! sends less by itself, and takes the addition alone: what that saves is more than the norm's own kernel costs.

use smallvec::SmallVec;
use symmc_ir::collective::{CollectiveKind as Kind, Variant};
use symmc_ir::{BinaryOp, Op};
use symmc_plan::Lane;
use symmc_runtime::exec::{BoundCollective, BoundStep, Home, Located, Member, Work as StepWork};

use super::{Addition, FusedNorm, Peers, lower_addition, lower_norm};
use crate::compile::Source;
use crate::compute::spans::{self, Span, is_run};
use crate::error::CudaError;
use crate::homes::Homes;
use crate::launch::Work;
use crate::order::Turn;

/// The elements of a row where the rows are not normalised: then they only divide the work among blocks.
const ROW: usize = 1024;

/// Steps of a list that are done together, in place of the last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Followed {
    /// The place of the all-reduce.
    pub reduce: usize,
    /// The place of the addition. What lies between the two runs beside the all-reduce, so it may as well run first.
    pub add: usize,
    /// Whether the norm of the sum is the next.
    pub tail: Tail,
}

/// What follows the addition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tail {
    /// Something else.
    Nothing,
    /// The norm of its rows.
    Norm,
}

impl Followed {
    /// The same without the norm, if there is one.
    pub fn without_norm(self) -> Option<Followed> {
        (self.tail == Tail::Norm).then_some(Followed { tail: Tail::Nothing, ..self })
    }

    /// The places of all steps, ascending.
    pub fn places(&self) -> SmallVec<[usize; 3]> {
        let norm = (self.tail == Tail::Norm).then_some(self.add + 1);
        [self.reduce, self.add].into_iter().chain(norm).collect()
    }
}

/// Where values of one number of elements lie.
struct Values<'a> {
    call: &'a BoundCollective,
    residual: &'a Located,
    sum: &'a Located,
    norm: Option<Rows<'a>>,
}

/// A norm over the last axis.
struct Rows<'a> {
    weight: Option<&'a Located>,
    result: &'a Located,
    eps: f64,
    round_first: bool,
}

/// The all-reduces of a list that may be done together with what follows them.
pub fn find(list: &[BoundStep], turns: &[Turn]) -> Vec<Followed> {
    let alone = |place: usize| turns.get(place).is_some_and(|t| t.stream == Lane::Compute && !t.awaited);
    let of = |reduce: usize| {
        let add = (reduce + 1..list.len()).find(|&s| !is_beside(&list[s], reduce))?;
        let with = |tail| {
            let all = Followed { reduce, add, tail };
            let values = values(list, &all)?;
            (all.places().into_iter().all(alone) && apart(&values)).then_some(all)
        };
        with(Tail::Norm).or_else(|| with(Tail::Nothing))
    };
    (0..list.len()).filter(|&p| alone(p)).filter_map(of).collect()
}

/// Whether a step runs beside the all-reduce at `reduce`, which is earlier, and is no collective.
fn is_beside(step: &BoundStep, reduce: usize) -> bool {
    step.lane == Lane::Compute && !step.waits.contains(&reduce)
}

/// Whether one kernel is faster than a kernel for each; it follows from the sizes of the call alone.
fn pays(call: &BoundCollective, tail: Tail, peers: &Peers) -> bool {
    let bytes = call.elements.saturating_mul(call.dtype.size());
    tail == Tail::Nothing || !peers.forms.two_rounds(bytes, call.cell.len())
}

/// The kernel; `None` if there is none for these sizes, or if it is slower than the steps by themselves.
///
/// # Errors
/// As [`super::lower`].
pub fn lower(
    list: &[BoundStep],
    all: &Followed,
    homes: &Homes,
    peers: &Peers,
    source: &mut Source,
) -> Result<Option<Work>, CudaError> {
    let Some(values) = values(list, all) else { return Ok(None) };
    if values.call.variant == Variant::Packets && !pays(values.call, all.tail, peers) {
        return Ok(None);
    }
    let read = is_read(list, all, values.call, values.sum);
    lower_values(list[all.reduce].index, &values, read, homes, peers, source)
}

/// The kernel of a dispatch.
///
/// # Errors
/// As [`super::lower`].
pub fn lower_dispatch(
    step: usize,
    members: &[Member],
    homes: &Homes,
    peers: &Peers,
    source: &mut Source,
) -> Result<Option<Work>, CudaError> {
    let parts: SmallVec<[&StepWork; 3]> = members.iter().map(|m| &m.work).collect();
    let (reduce, add, norm) = match parts[..] {
        [reduce, add] => (reduce, add, None),
        [reduce, add, norm] => (reduce, add, Some(norm)),
        _ => return Ok(None),
    };
    let Some(values) = values_of(reduce, add, norm) else { return Ok(None) };
    let read = values.call.result.home != Home::Inner;
    lower_values(step, &values, read, homes, peers, source)
}

/// The kernel of these values. `read` says that the reduction is read by somebody else.
fn lower_values(
    step: usize,
    values: &Values<'_>,
    read: bool,
    homes: &Homes,
    peers: &Peers,
    source: &mut Source,
) -> Result<Option<Work>, CudaError> {
    let Values { call, residual, sum, norm } = values;
    if call.variant == Variant::TwoShot {
        let addition = Addition { residual: homes.at(residual), sum: homes.at(sum) };
        let own = [&call.operand, &call.result].map(|r| homes.region(r));
        // What the norm needs comes with the last chunk.
        let alone = norm.is_none();
        return if alone { lower_addition(step, call, own, &addition, peers, source) } else { Ok(None) };
    }
    let last = sum.shape.last().copied().unwrap_or(1);
    let hidden = match &norm {
        Some(_) => last,
        None if call.elements.is_multiple_of(ROW) => ROW,
        None => last,
    };
    let fused = FusedNorm {
        operand: homes.region(&call.operand),
        residual: homes.at(residual),
        reduced: read.then(|| homes.region(&call.result)),
        added: homes.at(sum),
        weight: norm.as_ref().and_then(|n| n.weight).map(|w| homes.at(w)),
        normed: norm.as_ref().map(|n| homes.at(n.result)),
        hidden,
        eps: norm.as_ref().map_or(0.0, |n| n.eps),
        round_first: norm.as_ref().is_some_and(|n| n.round_first),
    };
    lower_norm(step, call, &fused, peers, source)
}

fn values<'a>(list: &'a [BoundStep], all: &Followed) -> Option<Values<'a>> {
    let norm = match all.tail {
        Tail::Nothing => None,
        Tail::Norm => Some(&list.get(all.add + 1)?.work),
    };
    values_of(&list.get(all.reduce)?.work, &list.get(all.add)?.work, norm)
}

fn values_of<'a>(reduce: &'a StepWork, add: &'a StepWork, norm: Option<&'a StepWork>) -> Option<Values<'a>> {
    let StepWork::Collective(call) = reduce else { return None };
    let reduces = matches!(call.variant, Variant::Packets | Variant::TwoShot)
        && matches!(call.kind, Kind::AllReduce(_));
    let StepWork::Kernel { op: Op::Binary(BinaryOp::Add), operands, results } = add else { return None };
    let ([x, y], [sum]) = (&operands[..], &results[..]) else { return None };
    let residual = match (is_result(call, x), is_result(call, y)) {
        (true, false) => y,
        (false, true) => x,
        _ => return None,
    };
    let same = |v: &Located| v.dtype == call.dtype && v.shape == sum.shape && v.by_rank == 0 && is_run(v);
    if !reduces || call.operand.by_rank.is_some() || ![x, y, sum].into_iter().all(same) {
        return None;
    }
    let norm = match norm {
        None => None,
        Some(norm) => Some(rows(norm, sum)?),
    };
    Some(Values { call, residual, sum, norm })
}

/// Whether a value is the result of an all-reduce, element by element in the same order.
fn is_result(call: &BoundCollective, value: &Located) -> bool {
    let at = &call.result;
    (at.home, at.offset, value.by_rank) == (value.home, value.offset, 0)
        && at.by_rank.is_none()
        && value.dtype == call.dtype
        && value.shape.iter().product::<usize>() == call.elements
        && is_run(value)
}

/// The norm of the rows of `sum`.
fn rows<'a>(norm: &'a StepWork, sum: &Located) -> Option<Rows<'a>> {
    let StepWork::Kernel { op: Op::RmsNorm { axes: 1, eps, round_first }, operands, results } = norm else {
        return None;
    };
    let (x, weight) = (operands.first()?, operands.get(1));
    let result = results.first()?;
    let same =
        |a: &Located, b: &Located| (a.dtype, &a.shape) == (b.dtype, &b.shape) && b.by_rank == 0 && is_run(b);
    let fits = (x.home, x.offset, &x.strides) == (sum.home, sum.offset, &sum.strides)
        && same(x, sum)
        && same(sum, result)
        && weight.is_none_or(|w| w.dtype == sum.dtype && w.shape.len() == 1 && w.by_rank == 0 && is_run(w));
    fits.then_some(Rows { weight, result, eps: eps.0, round_first: *round_first })
}

/// Whether what the kernel writes is, for each of its values, the same places as what it reads or writes, or apart.
fn apart(values: &Values<'_>) -> bool {
    let Values { call, residual, sum, norm } = values;
    let operand = Span::of_region(&call.operand, call);
    let result = Span::of_region(&call.result, call);
    let mut reads: SmallVec<[Span; 3]> = SmallVec::from_iter([operand, Span::of(residual)]);
    let mut writes: SmallVec<[Span; 3]> = SmallVec::from_iter([result, Span::of(sum)]);
    if let Some(norm) = norm {
        // All rows multiply the same weight: nothing may be written there.
        let weight = norm.weight.map(Span::of);
        let normed = Span::of(norm.result);
        if weight.is_some_and(|w| writes.iter().chain([&normed]).any(|s| s.overlaps(&w))) {
            return false;
        }
        reads.push(Span::of(sum));
        writes.push(normed);
    }
    let clean = |a: &Span, b: &Span| a == b || !a.overlaps(b);
    writes.iter().all(|w| reads.iter().chain(&writes).all(|other| clean(w, other)))
}

/// Whether the reduction itself is read by somebody else.
fn is_read(list: &[BoundStep], all: &Followed, call: &BoundCollective, sum: &Located) -> bool {
    let own = Span::of_region(&call.result, call);
    let overwritten = own == Span::of(sum);
    !overwritten && spans::is_read(list, all.reduce, &own, &all.places())
}

#[cfg(test)]
mod tests {
    use symmc_ir::{DType, Float, ReduceOp};
    use symmc_runtime::exec::BoundRegion;

    use super::*;
    use crate::order;

    const ROWS: usize = 4;
    const HIDDEN: usize = 64;
    /// Bytes of a value, and places that are apart.
    const BYTES: usize = ROWS * HIDDEN * 2;

    fn value(offset: usize) -> Located {
        let (shape, strides) = ([ROWS, HIDDEN].into(), [HIDDEN as isize, 1].into());
        Located { home: Home::Ordinary, offset, by_rank: 0, dtype: DType::BF16, shape, strides }
    }

    fn step(index: usize, lane: Lane, waits: &[usize], work: StepWork) -> BoundStep {
        let (node, op_name) = (format!("n{index}"), String::new());
        BoundStep { index, lane, waits: waits.to_vec(), node, op_name, work }
    }

    /// A product at 0, its reduction, the sum with what lies at `residual`, and the norm of that.
    fn layer(residual: usize) -> Vec<BoundStep> {
        let region = |offset| BoundRegion::even(Home::Ordinary, offset);
        let call = BoundCollective {
            kind: Kind::AllReduce(ReduceOp::Sum),
            variant: Variant::Packets,
            exit: None,
            cell: vec![0, 1],
            group: 0,
            dtype: DType::BF16,
            elements: ROWS * HIDDEN,
            row: HIDDEN,
            operand: region(0),
            result: region(BYTES),
            landing: Some([0, 1 << 16]),
            blocks: None,
            splits: None,
        };
        let kernel = |op, operands, result| StepWork::Kernel { op, operands, results: vec![result] };
        let weight = Located { shape: [HIDDEN].into(), strides: [1].into(), ..value(8 * BYTES) };
        let norm = Op::RmsNorm { axes: 1, eps: Float(1e-6), round_first: false };
        let add = Op::Binary(BinaryOp::Add);
        vec![
            step(0, Lane::Compute, &[], kernel(Op::Copy, vec![value(9 * BYTES)], value(0))),
            step(1, Lane::Comm, &[0], StepWork::Collective(call)),
            step(2, Lane::Compute, &[1], kernel(add, vec![value(residual), value(BYTES)], value(2 * BYTES))),
            step(3, Lane::Compute, &[], kernel(norm, vec![value(2 * BYTES), weight], value(3 * BYTES))),
        ]
    }

    fn found(list: &[BoundStep]) -> Vec<Followed> {
        find(list, &order::turns(list))
    }

    #[test]
    fn a_reduction_its_residual_and_norm_are_one() {
        let mut list = layer(4 * BYTES);
        assert_eq!(found(&list), [Followed { reduce: 1, add: 2, tail: Tail::Norm }]);
        // In place, element on element, is the same.
        assert_eq!(found(&layer(2 * BYTES)), [Followed { reduce: 1, add: 2, tail: Tail::Norm }]);
        list.pop();
        assert_eq!(found(&list), [Followed { reduce: 1, add: 2, tail: Tail::Nothing }]);
    }

    /// The operands and the result of a step.
    fn values_of(step: &mut BoundStep) -> impl Iterator<Item = &mut Located> {
        match &mut step.work {
            StepWork::Kernel { operands, results, .. } => operands.iter_mut().chain(results),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_broadcast_or_lies_by_rank_stays_single() {
        // One row is reduced, and added to each of several.
        let mut broadcast = layer(4 * BYTES);
        if let StepWork::Collective(call) = &mut broadcast[1].work {
            call.elements = HIDDEN;
        }
        for value in values_of(&mut broadcast[2]).take(2) {
            (value.shape, value.strides) = ([HIDDEN].into(), [1].into());
        }
        assert_eq!(found(&broadcast), []);
        let mut sharded = layer(4 * BYTES);
        values_of(&mut sharded[3]).for_each(|v| v.by_rank = BYTES);
        assert_eq!(found(&sharded), [Followed { reduce: 1, add: 2, tail: Tail::Nothing }]);
        values_of(&mut sharded[2]).for_each(|v| v.by_rank = BYTES);
        assert_eq!(found(&sharded), []);
    }

    #[test]
    fn what_lies_across_its_operands_or_has_compute_beside_it_stays_single() {
        // The norm is written one row behind the reduction, which nobody reads any more.
        let mut across = layer(4 * BYTES);
        if let Some(normed) = values_of(&mut across[3]).last() {
            normed.offset = BYTES + HIDDEN * 2;
        }
        assert_eq!(found(&across), [Followed { reduce: 1, add: 2, tail: Tail::Nothing }]);
        // The sum is written one row behind the residual.
        assert_eq!(found(&layer(2 * BYTES + HIDDEN * 2)), []);
        let mut beside = layer(4 * BYTES);
        // The addition does not wait for the reduction: it may run first.
        beside[2].waits.clear();
        assert_eq!(found(&beside), []);
    }

    #[test]
    fn a_small_step_beside_the_reduction_runs_before_it() {
        let mut list = layer(4 * BYTES);
        let copy = |to| StepWork::Kernel {
            op: Op::Copy,
            operands: vec![value(9 * BYTES)],
            results: vec![value(to)],
        };
        list.insert(2, step(2, Lane::Compute, &[], copy(10 * BYTES)));
        assert_eq!(found(&list), [Followed { reduce: 1, add: 3, tail: Tail::Norm }]);
        // What waits for the reduction does not.
        list[2].waits = vec![1];
        assert_eq!(found(&list), []);
    }

    /// Whether `rows` rows of `hidden` elements are reduced, added and normalised as one kernel, as each rank decides.
    fn is_one(ranks: u32, rows: usize, hidden: usize) -> bool {
        let zone = 64 << 20;
        let mut list = layer(4 * BYTES);
        for step in &mut list {
            match &mut step.work {
                StepWork::Collective(call) => {
                    (call.cell, call.elements) = ((0..ranks).collect(), rows * hidden);
                    call.landing = Some([0, zone]);
                    (call.operand.offset, call.result.offset) = (0, zone);
                }
                _ => values_of(step).for_each(|v| {
                    let is_weight = v.shape.len() == 1;
                    v.shape = if is_weight { [hidden].into() } else { [rows, hidden].into() };
                    v.strides = if is_weight { [1].into() } else { [hidden as isize, 1].into() };
                    v.offset = v.offset / BYTES * zone;
                }),
            }
        }
        let found = found(&list);
        assert_eq!(found, [Followed { reduce: 1, add: 2, tail: Tail::Norm }]);
        let homes = Homes { ordinary: 1 << 40, symmetric: 1 << 32, inputs: vec![], outputs: vec![] };
        let one = |rank| {
            let arenas = (1..=u64::from(ranks)).map(|r| r << 32).collect();
            let peers = Peers { rank, arenas, arena: 2 * zone, ..Peers::default() };
            let mut source = Source::new();
            let mut lower =
                |all: &Followed| lower(&list, all, &homes, &peers, &mut source).expect("it fits").is_some();
            assert!(lower(&found[0].without_norm().expect("a norm")), "{ranks} ranks, {rows} rows");
            lower(&found[0])
        };
        let decided: Vec<bool> = (0..ranks).map(one).collect();
        assert!(decided.iter().all(|&d| d == decided[0]), "{ranks} ranks, {rows} x {hidden}: {decided:?}");
        decided[0]
    }

    #[test]
    fn what_goes_in_two_rounds_by_itself_takes_the_addition_alone() {
        for (rows, hidden) in [(1, 4096), (32, 4096), (1, 8192), (8, 8192)] {
            assert!(is_one(4, rows, hidden), "{rows} x {hidden}");
        }
        for (rows, hidden) in [(128, 4096), (32, 8192), (128, 8192), (2048, 4096)] {
            assert!(!is_one(4, rows, hidden), "{rows} x {hidden}");
        }
        // Between two ranks there is nothing to save; among more it is sooner.
        assert!(is_one(2, 128, 8192) && is_one(2, 2048, 4096));
        assert!(is_one(8, 4, 8192) && !is_one(8, 8, 8192));
    }

    /// A layer without norm whose reduction takes two shots, of `rows` rows of 4096 elements on two ranks.
    fn two_shot(rows: usize) -> Vec<BoundStep> {
        let hidden = 4096;
        let mut list = layer(4 * BYTES);
        list.truncate(3);
        for step in &mut list {
            match &mut step.work {
                StepWork::Collective(call) => {
                    let region = |offset| BoundRegion::even(Home::Symmetric, offset);
                    (call.variant, call.elements, call.landing) = (Variant::TwoShot, rows * hidden, None);
                    (call.operand, call.result) = (region(0), region(BYTES << 20));
                }
                _ => values_of(step).for_each(|v| {
                    (v.shape, v.strides) = ([rows, hidden].into(), [hidden as isize, 1].into());
                    v.offset <<= 20;
                    v.home = if v.offset < (4 * BYTES) << 20 { Home::Symmetric } else { Home::Ordinary };
                }),
            }
        }
        list
    }

    /// The text of the kernel that a two-shot and its addition are, if they are one.
    fn two_shot_kernel(list: &[BoundStep]) -> Option<String> {
        let found = found(list);
        assert_eq!(found, [Followed { reduce: 1, add: 2, tail: Tail::Nothing }]);
        let homes = Homes { ordinary: 1 << 40, symmetric: 1 << 32, inputs: vec![], outputs: vec![] };
        let peers = Peers { rank: 0, arenas: vec![1 << 32, 2 << 32], arena: 1 << 32, ..Peers::default() };
        let mut source = Source::new();
        lower(list, &found[0], &homes, &peers, &mut source).expect("it fits").map(|_| source.text())
    }

    #[test]
    fn a_two_shot_by_stores_alone_takes_the_addition() {
        let text = two_shot_kernel(&two_shot(4096)).expect("a kernel");
        assert!(text.contains("pushed_add<BF16, Sum, 2, 4, false>"));
        assert_eq!(two_shot_kernel(&two_shot(2048)), None, "it loads from peers");
        let on_result = |which: usize| {
            let mut list = two_shot(4096);
            let value = values_of(&mut list[2]).nth(which).expect("three values");
            (value.home, value.offset) = (Home::Symmetric, BYTES << 20);
            list
        };
        assert!(two_shot_kernel(&on_result(2)).is_some(), "the sum on the result");
        assert_eq!(found(&on_result(0)), [], "the residual on the result");
        let mut in_place = two_shot(4096);
        if let StepWork::Collective(call) = &mut in_place[1].work {
            call.operand = call.result.clone();
        }
        let text = two_shot_kernel(&in_place).expect("a kernel");
        assert!(text.contains("pushed_add<BF16, Sum, 2, 4, true>"));
        let mut odd = two_shot(4096);
        values_of(&mut odd[2]).take(1).for_each(|v| v.offset += 8);
        assert_eq!(two_shot_kernel(&odd), None, "a residual that is not aligned");
    }

    #[test]
    fn the_reduction_is_stored_where_somebody_reads_it() {
        let mut list = layer(4 * BYTES);
        let all = Followed { reduce: 1, add: 2, tail: Tail::Norm };
        let stored = |list: &[BoundStep]| {
            let Some(Values { call, sum, .. }) = values(list, &all) else { panic!("it is one") };
            is_read(list, &all, call, sum)
        };
        assert!(!stored(&list));
        let (op, operands) = (Op::Copy, vec![value(BYTES)]);
        let reader = StepWork::Kernel { op, operands, results: vec![value(5 * BYTES)] };
        list.push(step(4, Lane::Compute, &[], reader));
        assert!(stored(&list));
    }
}
