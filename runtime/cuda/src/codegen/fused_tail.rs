//! All-reduces that are fused into one kernel with the addition of a residual after them, and optionally a
//! norm.
//!
//! For peers the kernel is the all-reduce, at its place in the order; it rounds where the separate steps
//! round. For peers, a two-shot is the same with and without the addition.
//!
//! Two all-reduces have such kernels: `ll`, and the two-shot of large tensors. The two-shot takes only the
//! addition, because the norm needs a whole row, which is complete only with the last chunk. With a norm, one
//! round of lines brings the whole operand to each peer. An all-reduce so large that it goes in two rounds
//! sends less when it is not fused with the norm. It takes only the addition: this saves more than the norm's
//! own kernel costs.

use smallvec::SmallVec;
use symmc_ir::collective::{CollectiveKind as Kind, CollectiveVariant};
use symmc_ir::{BinaryOp, Op};
use symmc_runtime::exec::{LocatedTensor, MemorySpace, ResolvedCollective, ResolvedMember, StepWork};

use crate::codegen::addresses::AddressMap;
use crate::codegen::collective::{self, Addition, AllReduceNorm, PeerContext, lower_addition, lower_norm};
use crate::codegen::command::GpuCommand;
use crate::codegen::compile::KernelSource;
use crate::codegen::compute::space::is_contiguous;
use crate::codegen::compute::{self, BoundOperation, KernelLowering};
use crate::codegen::lowering_context::LoweringContext;
use crate::error::Result;

/// The elements of a row if rows are not normalised. Rows then only divide the work among blocks.
const ROW_ELEMENTS: usize = 1024;

/// The values of a fused tail, which have equal numbers of elements.
struct FusedTail<'a> {
    call: &'a ResolvedCollective,
    residual: &'a LocatedTensor,
    sum: &'a LocatedTensor,
    norm: Option<TailNorm<'a>>,
}

/// A norm over the last axis.
struct TailNorm<'a> {
    /// The number of elements of a row.
    hidden: usize,
    weight: Option<&'a LocatedTensor>,
    result: &'a LocatedTensor,
    eps: f64,
    round_first: bool,
}

/// The commands of an all-reduce, the addition after it and optionally the norm of the sum. If no kernel can
/// do all of them at these sizes, the last ones get their own kernels. `None` if the layouts do not allow
/// fusion.
pub fn lower(
    step: usize,
    members: &[ResolvedMember],
    setting: &LoweringContext<'_>,
    l: &mut KernelLowering<'_>,
) -> Result<Option<Vec<GpuCommand>>> {
    let LoweringContext { addresses, peers, .. } = *setting;
    let member_work: SmallVec<[&StepWork; 3]> = members.iter().map(|m| &m.work).collect();
    let (reduce, add, norm) = match member_work[..] {
        [reduce, add] => (reduce, add, None),
        [reduce, add, norm] => (reduce, add, Some(norm)),
        _ => return Ok(None),
    };
    let Some(mut values) = match_tail(reduce, add, norm) else { return Ok(None) };
    let call = values.call;
    let bytes = (call.elements * call.dtype.size()) as u64;
    if call.variant == CollectiveVariant::TwoShot
        || peers.thresholds.uses_two_rounds(bytes, call.cell.len() as u64)
    {
        values.norm = None;
    }
    let (mut works, done) = match lower_values(step, &values, addresses, peers, &mut l.source)? {
        Some(work) => (vec![work], if values.norm.is_some() { 3 } else { 2 }),
        // This form loads from its peers.
        None if call.variant == CollectiveVariant::TwoShot && call.result.space != MemorySpace::Inner => {
            let Some(commands) =
                collective::lower(step, call, &addresses.collective_pointers(call), peers, &mut l.source)?
            else {
                return Ok(None);
            };
            (commands, 1)
        }
        None => return Ok(None),
    };
    for work in &member_work[done..] {
        let StepWork::Kernel { op, operands, results } = work else { return Ok(None) };
        let step = BoundOperation { index: step, op, operands, results };
        works.extend(compute::lower(&step, l)?);
    }
    Ok(Some(works))
}

/// A single kernel for these values, if there is one.
fn lower_values(
    step: usize,
    values: &FusedTail<'_>,
    addresses: &AddressMap,
    peers: &PeerContext,
    source: &mut KernelSource,
) -> Result<Option<GpuCommand>> {
    let FusedTail { call, residual, sum, norm } = values;
    if call.variant == CollectiveVariant::TwoShot {
        let addition = Addition { residual: addresses.address_of(residual), sum: addresses.address_of(sum) };
        let ends = [&call.operand, &call.result].map(|r| addresses.region(r));
        return lower_addition(step, call, ends, &addition, peers, source);
    }
    let row_elements = sum.shape.last().copied().unwrap_or(1);
    let hidden = match &norm {
        Some(rows) => rows.hidden,
        None if call.elements.is_multiple_of(ROW_ELEMENTS) => ROW_ELEMENTS,
        None => row_elements,
    };
    let fused = AllReduceNorm {
        operand: addresses.region(&call.operand),
        residual: addresses.address_of(residual),
        reduced: (call.result.space != MemorySpace::Inner).then(|| addresses.region(&call.result)),
        added: addresses.address_of(sum),
        weight: norm.as_ref().and_then(|n| n.weight).map(|w| addresses.address_of(w)),
        normed: norm.as_ref().map(|n| addresses.address_of(n.result)),
        hidden,
        eps: norm.as_ref().map_or(0.0, |n| n.eps),
        round_first: norm.as_ref().is_some_and(|n| n.round_first),
    };
    lower_norm(step, call, &fused, peers, source)
}

fn match_tail<'a>(
    reduce: &'a StepWork,
    add: &'a StepWork,
    norm: Option<&'a StepWork>,
) -> Option<FusedTail<'a>> {
    let StepWork::Collective(call) = reduce else { return None };
    let reduces = matches!(call.variant, CollectiveVariant::Ll | CollectiveVariant::TwoShot)
        && matches!(call.kind, Kind::AllReduce(_));
    let StepWork::Kernel { op: Op::Binary(BinaryOp::Add), operands, results } = add else { return None };
    let ([x, y], [sum]) = (&operands[..], &results[..]) else { return None };
    let residual = match (is_result(call, x), is_result(call, y)) {
        (true, false) => y,
        (false, true) => x,
        _ => return None,
    };
    let same_layout = [x, y, sum]
        .into_iter()
        .all(|v| v.dtype == call.dtype && v.shape == sum.shape && v.by_rank == 0 && is_contiguous(v));
    if !reduces || call.operand.by_rank.is_some() || !same_layout {
        return None;
    }
    let norm = match norm {
        None => None,
        Some(norm) => Some(match_norm(norm, sum)?),
    };
    Some(FusedTail { call, residual, sum, norm })
}

/// Whether a value is the result of an all-reduce, with its elements in the same order.
fn is_result(call: &ResolvedCollective, value: &LocatedTensor) -> bool {
    let result = &call.result;
    (result.space, result.offset, value.by_rank) == (value.space, value.offset, 0)
        && result.by_rank.is_none()
        && value.dtype == call.dtype
        && value.shape.iter().product::<usize>() == call.elements
        && is_contiguous(value)
}

/// Matches the norm of the rows of `sum`, which may be reshaped.
fn match_norm<'a>(norm: &'a StepWork, sum: &LocatedTensor) -> Option<TailNorm<'a>> {
    let StepWork::Kernel { op: Op::RmsNorm { axes: 1, eps, round_first }, operands, results } = norm else {
        return None;
    };
    let x = operands.first()?;
    let weight = operands.get(1);
    let result = results.first()?;
    let same_elements = x.shape.iter().product::<usize>() == sum.shape.iter().product::<usize>();
    let same_layout = [x, result]
        .into_iter()
        .all(|v| (v.dtype, &v.shape, v.by_rank) == (x.dtype, &x.shape, 0) && is_contiguous(v));
    let fits = (x.space, x.offset, x.dtype) == (sum.space, sum.offset, sum.dtype)
        && same_elements
        && same_layout
        && weight
            .is_none_or(|w| w.dtype == sum.dtype && w.shape.len() == 1 && w.by_rank == 0 && is_contiguous(w));
    let hidden = *x.shape.last()?;
    fits.then_some(TailNorm { hidden, weight, result, eps: eps.0, round_first: *round_first })
}

#[cfg(test)]
mod tests {
    use symmc_ir::{CollectiveReduceOp, DType, FloatAttribute};
    use symmc_runtime::exec::ResolvedRegion;

    use super::*;
    use crate::codegen::compute::KernelTarget;
    use crate::codegen::lowering_context::DeviceFreeContext;
    use crate::nccl::Communicators;

    const TEST_ROWS: usize = 4;
    const HIDDEN_SIZE: usize = 64;
    /// The bytes of a value. Values at different multiples of it do not overlap.
    const VALUE_BYTES: usize = TEST_ROWS * HIDDEN_SIZE * 2;

    fn value(offset: usize) -> LocatedTensor {
        LocatedTensor {
            space: MemorySpace::Ordinary,
            offset,
            by_rank: 0,
            dtype: DType::BF16,
            shape: [TEST_ROWS, HIDDEN_SIZE].into(),
            strides: [HIDDEN_SIZE as isize, 1].into(),
        }
    }

    fn kernel(op: Op, operands: Vec<LocatedTensor>, result: LocatedTensor) -> StepWork {
        StepWork::Kernel { op, operands, results: vec![result] }
    }

    /// The reduction of the value at offset 0, its sum with a residual, and the norm of the sum.
    fn layer() -> Vec<ResolvedMember> {
        let call = ResolvedCollective {
            kind: Kind::AllReduce(CollectiveReduceOp::Sum),
            variant: CollectiveVariant::Ll,
            exit: None,
            cell: vec![0, 1],
            group: 0,
            dtype: DType::BF16,
            elements: TEST_ROWS * HIDDEN_SIZE,
            row_elements: HIDDEN_SIZE,
            operand: ResolvedRegion::uniform(MemorySpace::Ordinary, 0),
            result: ResolvedRegion::uniform(MemorySpace::Ordinary, VALUE_BYTES),
            landing: Some([0, 1 << 16]),
            blocks: None,
            splits: None,
            rows: None,
        };
        let weight =
            LocatedTensor { shape: [HIDDEN_SIZE].into(), strides: [1].into(), ..value(8 * VALUE_BYTES) };
        let norm = Op::RmsNorm { axes: 1, eps: FloatAttribute(1e-6), round_first: false };
        let add = Op::Binary(BinaryOp::Add);
        let works = [
            StepWork::Collective(call),
            kernel(add, vec![value(4 * VALUE_BYTES), value(VALUE_BYTES)], value(2 * VALUE_BYTES)),
            kernel(norm, vec![value(2 * VALUE_BYTES), weight], value(3 * VALUE_BYTES)),
        ];
        works.map(|work| ResolvedMember { node: String::new(), op_name: String::new(), work }).into()
    }

    fn values_in(member: &mut ResolvedMember) -> impl Iterator<Item = &mut LocatedTensor> {
        match &mut member.work {
            StepWork::Kernel { operands, results, .. } => operands.iter_mut().chain(results),
            other => panic!("{other:?}"),
        }
    }

    fn call_in(members: &mut [ResolvedMember]) -> &mut ResolvedCollective {
        match &mut members[0].work {
            StepWork::Collective(call) => call,
            other => panic!("{other:?}"),
        }
    }

    /// The kernels of these members on a rank, with their text; `None` if there are none.
    fn lowered(members: &[ResolvedMember], rank: u32) -> Option<(Vec<GpuCommand>, String)> {
        let StepWork::Collective(call) = &members[0].work else { panic!("{members:?}") };
        let addresses = AddressMap::without_ports(1 << 40, 1 << 32);
        let arenas = (1..=call.cell.len() as u64).map(|r| r << 32).collect();
        let peers = PeerContext { rank, arenas, arena: 1 << 32, ..PeerContext::default() };
        let machine = KernelTarget::PROFILE_GPU;
        let nccl = Communicators::placeholders(&[]);
        let dry = DeviceFreeContext { addresses, peers, machine, nccl };
        let setting = dry.context();
        let address_of = |value: &_| setting.addresses.address_of(value);
        let mut l = KernelLowering::new(&address_of, setting.machine);
        let works = lower(0, members, &setting, &mut l).expect("it fits");
        works.map(|works| (works, l.source.text()))
    }

    #[test]
    fn a_reduction_its_residual_and_norm_are_one() {
        let mut members = layer();
        let fused = lowered(&members, 0).expect("a kernel");
        // In place, with each element at its own address, gives the same kernel.
        values_in(&mut members[1]).for_each(|v| v.offset = v.offset.min(2 * VALUE_BYTES));
        assert_eq!(lowered(&members, 0).expect("a kernel").1, fused.1);
        members.pop();
        assert!(lowered(&members, 0).is_some_and(|alone| alone.0 != fused.0));
        // A value that only the dispatch reads is not stored.
        call_in(&mut members).result.space = MemorySpace::Inner;
        values_in(&mut members[1])
            .filter(|v| v.offset == VALUE_BYTES)
            .for_each(|v| v.space = MemorySpace::Inner);
        assert!(lowered(&members, 0).is_some());
    }

    #[test]
    fn what_is_broadcast_or_lies_by_rank_has_no_kernel() {
        // One row is reduced, and added to each of several rows.
        let mut broadcast = layer();
        call_in(&mut broadcast).elements = HIDDEN_SIZE;
        for value in values_in(&mut broadcast[1]).take(2) {
            (value.shape, value.strides) = ([HIDDEN_SIZE].into(), [1].into());
        }
        assert!(lowered(&broadcast, 0).is_none());
        for member in [1, 2] {
            let mut sharded = layer();
            values_in(&mut sharded[member]).for_each(|v| v.by_rank = VALUE_BYTES);
            assert!(lowered(&sharded, 0).is_none());
        }
    }

    #[test]
    fn what_goes_in_two_rounds_has_its_norm_apart_on_all_ranks() {
        for (rows, hidden) in [(1, 4096), (32, 4096), (1, 8192), (8, 8192)] {
            assert_eq!(count_kernels(4, rows, hidden), 1, "{rows} x {hidden}");
        }
        for (rows, hidden) in [(128, 4096), (32, 8192), (128, 8192), (2048, 4096)] {
            assert_eq!(count_kernels(4, rows, hidden), 2, "{rows} x {hidden}");
        }
        // Between two ranks, two rounds save nothing; among more ranks they are used for smaller sizes.
        assert_eq!([count_kernels(2, 128, 8192), count_kernels(2, 2048, 4096)], [1, 1]);
        assert_eq!([count_kernels(8, 4, 8192), count_kernels(8, 8, 8192)], [1, 2]);
    }

    fn count_kernels(ranks: u32, rows: usize, hidden: usize) -> usize {
        let zone = 64 << 20;
        let mut members = layer();
        let call = call_in(&mut members);
        (call.cell, call.elements) = ((0..ranks).collect(), rows * hidden);
        (call.landing, call.operand.offset, call.result.offset) = (Some([0, zone]), 0, zone);
        for value in members[1..].iter_mut().flat_map(values_in) {
            let is_weight = value.shape.len() == 1;
            value.shape = if is_weight { [hidden].into() } else { [rows, hidden].into() };
            value.strides = if is_weight { [1].into() } else { [hidden as isize, 1].into() };
            value.offset = value.offset / VALUE_BYTES * zone;
        }
        let counts: Vec<usize> =
            (0..ranks).map(|rank| lowered(&members, rank).expect("kernels").0.len()).collect();
        assert!(counts.iter().all(|n| *n == counts[0]), "{ranks} ranks, {rows} x {hidden}: {counts:?}");
        counts[0]
    }

    /// A two-shot reduction of `rows` rows of 4096 elements on two ranks, and its residual.
    fn two_shot(rows: usize) -> Vec<ResolvedMember> {
        let hidden = 4096;
        let mut members = layer();
        members.truncate(2);
        let call = call_in(&mut members);
        (call.variant, call.elements, call.landing) = (CollectiveVariant::TwoShot, rows * hidden, None);
        call.operand = ResolvedRegion::uniform(MemorySpace::Symmetric, 0);
        call.result = ResolvedRegion::uniform(MemorySpace::Symmetric, VALUE_BYTES << 16);
        values_in(&mut members[1]).for_each(|v| {
            (v.shape, v.strides) = ([rows, hidden].into(), [hidden as isize, 1].into());
            v.offset <<= 16;
            v.space = if v.offset < (4 * VALUE_BYTES) << 16 {
                MemorySpace::Symmetric
            } else {
                MemorySpace::Ordinary
            };
        });
        members
    }

    #[test]
    fn a_two_shot_by_stores_alone_takes_the_addition() {
        assert!(
            text_of_one_kernel(&two_shot(4096))
                .expect("a kernel")
                .contains("pushed_add<BF16, Sum, 2, 4, false>")
        );
        assert_eq!(text_of_one_kernel(&two_shot(2048)), None, "it loads from peers");
        let mut on_result = two_shot(4096);
        let sum = values_in(&mut on_result[1]).last().expect("the sum");
        (sum.space, sum.offset) = (MemorySpace::Symmetric, VALUE_BYTES << 16);
        assert!(text_of_one_kernel(&on_result).is_some(), "the sum on the result");
        let mut in_place = two_shot(4096);
        let call = call_in(&mut in_place);
        call.operand = call.result.clone();
        assert!(
            text_of_one_kernel(&in_place).expect("a kernel").contains("pushed_add<BF16, Sum, 2, 4, true>")
        );
        let mut odd = two_shot(4096);
        values_in(&mut odd[1]).take(1).for_each(|v| v.offset += 8);
        assert_eq!(text_of_one_kernel(&odd), None, "a residual that is not aligned");
        let mut normed = two_shot(4096);
        normed.push(layer().pop().expect("a norm"));
        values_in(&mut normed[2]).for_each(|v| v.offset <<= 16);
        values_in(&mut normed[2]).take(1).for_each(|v| v.space = MemorySpace::Symmetric);
        values_in(&mut normed[2]).for_each(|v| {
            let is_weight = v.shape.len() == 1;
            v.shape = if is_weight { [4096].into() } else { [4096, 4096].into() };
            v.strides = if is_weight { [1].into() } else { [4096, 1].into() };
        });
        assert_eq!(lowered(&normed, 0).expect("kernels").0.len(), 2, "the norm is apart");
    }

    /// The text, if there is exactly one kernel.
    fn text_of_one_kernel(members: &[ResolvedMember]) -> Option<String> {
        let (works, text) = lowered(members, 0).expect("kernels");
        (works.len() == 1).then_some(text)
    }
}
