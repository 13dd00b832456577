//! Routing of tokens to experts: a counting sort in one kernel.
//!
//! Every block counts all slots, because that takes less time than another launch, and places a range of them.

use std::fmt::Write as _;

use symmc_ir::{DType, Route, RouteLayout, RouteScope};
use symmc_runtime::exec::LocatedTensor;

use super::assertions::AssertedFault;
use super::lowering::{KernelLowering, mismatch_error};
use super::space::IterationAxis;
use super::text::{self, offset_function, stored_type};
use crate::codegen::command::{Commands, GpuCommand};
use crate::device::launch::{KernelLaunch, KernelParam};
use crate::error::Result;

/// The largest and the smallest number of threads of a block. Blocks of few slots are smaller, so that more of
/// them share the work.
const THREADS: [usize; 2] = [1024, 32];
const SLOTS_PER_THREAD: usize = 4;
/// The largest number of blocks.
const MAX_BLOCKS: usize = 64;
/// The names of the offset functions of the results.
const RESULTS: [&str; 5] = ["own_at", "all_at", "slot_at", "count_at", "end_at"];

/// The sizes of a routing; see `kernels/route.cuh`.
struct RouteSizes {
    me: usize,
    ranks: usize,
    experts_per_rank: usize,
    sections: usize,
    slots_per_token: usize,
    slots: usize,
    capacity: usize,
    /// The rows of each section, if they all have an equal share of the capacity.
    share: Option<usize>,
}

impl RouteSizes {
    fn new(route: &Route, ids: &LocatedTensor, results: &[LocatedTensor]) -> Result<RouteSizes> {
        let (me, ranks) = match &route.scope {
            RouteScope::Local => (0, 1),
            RouteScope::Position { rank, cell } => (*rank as usize, cell.len()),
            RouteScope::Group(group) => {
                return Err(mismatch_error("route", "the position of the rank in its cell", group));
            }
        };
        let &[tokens, slots_per_token] = &ids.shape[..] else {
            return Err(mismatch_error("the ids of route", "[tokens, slots]", &ids.shape));
        };
        let experts = route.experts as usize;
        let divides = |count: usize| ranks > 0 && count.is_multiple_of(ranks);
        if me >= ranks || !divides(tokens) || !divides(experts) || experts == 0 {
            return Err(mismatch_error("route", format!("multiples of {ranks} ranks"), (tokens, experts)));
        }
        let sizes = RouteSizes {
            me,
            ranks,
            experts_per_rank: experts / ranks,
            sections: route.section_count(ranks as u32) as usize,
            slots_per_token,
            slots: tokens * slots_per_token,
            capacity: results[2].shape.iter().product(),
            share: route.section_capacity(ranks, results[2].shape.iter().product()),
        };
        let sections = sizes.sections;
        let expected = [sizes.slots / ranks, sizes.slots, sizes.capacity, sections, sections];
        let counts: Vec<usize> = results.iter().map(|r| r.shape.iter().product()).collect();
        let are_ints =
            matches!(ids.dtype, DType::I32 | DType::I64) && results.iter().all(|r| r.dtype == DType::I64);
        if counts[..] != expected || !are_ints {
            return Err(mismatch_error("the results of route", expected, counts));
        }
        let largest = sizes.slots.max(sizes.capacity);
        if largest > i32::MAX as usize {
            return Err(mismatch_error("route", format!("at most {} slots and rows", i32::MAX), largest));
        }
        Ok(sizes)
    }

    fn bins(&self) -> usize {
        self.ranks * self.sections
    }

    /// The bytes of shared memory of a block of this many threads.
    fn shared_bytes(&self, threads: usize) -> usize {
        self.ranks * 8 + self.bins() * 12 + threads / 32 * self.bins().next_multiple_of(4)
    }

    /// The most threads of a block, but not many more than there are slots, whose data fit this shared memory.
    fn threads(&self, shared: usize) -> Result<usize> {
        let [max, min] = THREADS;
        let mut threads = (self.slots / SLOTS_PER_THREAD).next_power_of_two().clamp(4 * min, max);
        while self.shared_bytes(threads) > shared {
            if threads == min {
                let expected =
                    format!("fewer sections than {} in {shared} bytes of shared memory", self.bins());
                return Err(mismatch_error("route", expected, self.bins()));
            }
            threads /= 2;
        }
        Ok(threads)
    }
}

pub(super) fn lower(
    route: &Route,
    ids: &LocatedTensor,
    results: &[LocatedTensor],
    l: &mut KernelLowering<'_>,
) -> Commands {
    let sizes = RouteSizes::new(route, ids, results)?;
    let threads = sizes.threads(l.machine.shared)?;
    let span = sizes.slots.div_ceil(MAX_BLOCKS).next_multiple_of(threads).max(threads);
    let blocks = sizes.slots.div_ceil(span).max(1);
    let layout = layout_text(route, &sizes, ids, results, [threads, span]);
    let text = format!(
        "{layout}extern \"C\" __global__ void __launch_bounds__({threads}) @(const void *ids, void *own, void *all, void *slots, \
         void *counts, void *ends, void *status, unsigned bad_id, unsigned too_many, unsigned too_many_of_expert) {{\n    symmc_enter();\n    \
         sc::route<sc::@_L>(ids, own, all, slots, counts, ends, status, bad_id, too_many, too_many_of_expert);\n}}\n"
    );
    l.preludes();
    l.source.prelude(text::ROUTE_SOURCE);
    let cell = match &route.scope {
        RouteScope::Position { cell, .. } => cell.clone(),
        RouteScope::Local | RouteScope::Group(_) => Vec::new().into(),
    };
    let bad_id = l.assertion(AssertedFault::ExpertId { experts: route.experts as usize, cell });
    let too_many = l.assertion(AssertedFault::Capacity { capacity: sizes.capacity });
    let too_many_of_expert =
        l.assertion(AssertedFault::ExpertCapacity { capacity: sizes.share.unwrap_or(sizes.capacity) });
    let entry = l.source.function("route", text);
    let mut params: Vec<KernelParam> = vec![l.address_of(ids).into()];
    params.extend(results.iter().map(|result| KernelParam::from(l.address_of(result))));
    params.extend([l.machine.status.into(), bad_id.into(), too_many.into(), too_many_of_expert.into()]);
    let kernel = KernelLaunch::flat(entry, blocks, threads, params);
    Ok(vec![GpuCommand::Kernel(KernelLaunch { shared: sizes.shared_bytes(threads) as u32, ..kernel })])
}

/// The struct of a kernel's sizes and offsets.
fn layout_text(
    route: &Route,
    sizes: &RouteSizes,
    ids: &LocatedTensor,
    results: &[LocatedTensor],
    [threads, span]: [usize; 2],
) -> String {
    let RouteSizes { me, ranks, experts_per_rank, sections, slots_per_token, slots, capacity, share } =
        *sizes;
    let mut out = format!(
        "namespace sc {{ struct @_L {{\ntypedef {} T;\nstatic const bool BY_RANK = {};\n\
         static const int ME = {me}, RANKS = {ranks}, LOCAL = {experts_per_rank}, SECTIONS = {sections}, BINS = {}, \
         THREADS = {threads};\n\
         static const i64 SLOTS = {slots}, OWN = {}, K = {}, CAPACITY = {capacity}, SPAN = {span}, SHARE = {};\n\
         static const u64 ALIGN = {};\n",
        stored_type(ids.dtype),
        route.layout == RouteLayout::Rank,
        sizes.bins(),
        (slots / ranks).max(1),
        slots_per_token.max(1),
        share.map_or(-1, |share| share as i64),
        route.align.max(1),
    );
    for (name, value) in ["id_at"].into_iter().zip([ids]).chain(RESULTS.into_iter().zip(results)) {
        let axes = value.shape.iter().zip(&value.strides);
        let axes: Vec<IterationAxis> = axes.map(|(&n, &stride)| IterationAxis { n, stride }).collect();
        out.push_str(&offset_function(name, &axes));
    }
    let _ = writeln!(out, "}}; }}");
    out
}
