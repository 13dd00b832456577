//! Routing of tokens to experts: a counting sort of the slots by rank and section.
//!
//! Slots are visited in order, so the rows of a section are in order of source rank, token and slot.

use symmc_ir::{Route, RouteLayout, RouteScope};

use super::error::{KernelError, Result};
use super::scratch::{Scratch, ScratchNeeds};
use super::strided::{StridedReader, StridedView, StridedWriter};

/// The sizes of a routing.
struct RouteSizes<'a> {
    /// The position of this rank in its cell, and the number of ranks.
    me: usize,
    ranks: usize,
    /// The ranks of the cell; none if the rank routes its own tokens.
    cell: &'a [u32],
    experts: usize,
    align: usize,
    /// The number of slots of each token, and of each rank.
    slots_per_token: usize,
    slots_per_rank: usize,
    capacity: usize,
    sections: usize,
    /// The most rows of an expert, if each expert has an equal share of the capacity.
    expert_capacity: Option<usize>,
}

impl<'a> RouteSizes<'a> {
    fn new(route: &'a Route, ids: &StridedView, results: &[StridedView]) -> Result<Self> {
        let (me, ranks, cell) = match &route.scope {
            RouteScope::Local => (0, 1, &[][..]),
            RouteScope::Position { rank, cell } => (*rank as usize, cell.len(), &cell[..]),
            RouteScope::Group(_) => {
                return Err(KernelError::Symbolic { what: "the position of the rank".into() });
            }
        };
        let slots = ids.numel();
        let sizes = RouteSizes {
            me,
            ranks,
            cell,
            experts: route.experts as usize,
            align: route.align.max(1) as usize,
            slots_per_token: if ids.rank() == 2 { ids.axis_len(1) } else { 0 },
            slots_per_rank: slots / ranks.max(1),
            capacity: results[2].numel(),
            sections: route.section_count(ranks as u32) as usize,
            expert_capacity: route.section_capacity(ranks, results[2].numel()),
        };
        let expected = [sizes.slots_per_rank, slots, sizes.capacity, sizes.sections, sizes.sections];
        let counts: Vec<usize> = results.iter().map(StridedView::numel).collect();
        let divides = |count: usize| ranks > 0 && count.is_multiple_of(ranks);
        if ids.rank() != 2 || !divides(ids.axis_len(0)) || !divides(sizes.experts) || counts != expected {
            return Err(KernelError::shape_mismatch("the results of route", &expected, &counts));
        }
        Ok(sizes)
    }

    fn experts_per_rank(&self) -> usize {
        self.experts / self.ranks
    }
}

/// Results: the rows of this rank's slots, the rows of all slots, the slots of this rank's rows, and the counts
/// and ends of its sections.
pub(super) fn route(
    route: &Route,
    ids: &StridedView,
    results: &[StridedView],
    scratch: &mut Scratch,
) -> Result<()> {
    let sizes = RouteSizes::new(route, ids, results)?;
    let mut experts = scratch.allocate::<i64>(ids.numel());
    let mut all_rows = scratch.allocate::<i64>(ids.numel());
    let mut slots = scratch.allocate::<i64>(sizes.capacity);
    let mut counts = scratch.allocate::<i64>(sizes.sections);
    let mut ends = scratch.allocate::<i64>(sizes.sections);
    let mut next = scratch.allocate::<i64>(sizes.experts.max(sizes.ranks));
    StridedReader::<i64>::new(ids).read_next(&mut experts);
    all_rows.fill(-1);
    slots.fill(-1);
    counts.fill(0);
    ends.fill(0);
    next.fill(0);
    let mut tables = RouteTables {
        all_rows: &mut all_rows,
        slots: &mut slots,
        counts: &mut counts,
        ends: &mut ends,
        next: &mut next,
    };
    let outcome = check_ids(&experts, &sizes).and_then(|()| match route.layout {
        RouteLayout::Expert | RouteLayout::Batched => tables.fill_by_expert(&sizes, &experts),
        RouteLayout::Rank => tables.fill_by_rank(&sizes, &experts),
    });
    if outcome.is_ok() {
        let first = sizes.me * sizes.slots_per_rank;
        let own_rows = &all_rows[first..first + sizes.slots_per_rank];
        let columns: [&[i64]; 5] = [own_rows, &all_rows, &slots, &counts, &ends];
        for (view, column) in results.iter().zip(columns) {
            StridedWriter::<i64>::new(view).write_next(column);
        }
    }
    for buffer in [experts, all_rows, slots, counts, ends, next] {
        scratch.return_buffer(buffer);
    }
    outcome
}

/// The buffers that [`route`] uses.
pub(super) fn add_needs(
    route: &Route,
    ids: &StridedView,
    results: &[StridedView],
    out: &mut ScratchNeeds,
) -> Option<()> {
    let sizes = RouteSizes::new(route, ids, results).ok()?;
    let slots = ids.numel();
    let next = sizes.experts.max(sizes.ranks);
    for n in [slots, slots, sizes.capacity, sizes.sections, sizes.sections, next] {
        out.add::<i64>(n);
    }
    Some(())
}

fn check_ids(ids: &[i64], sizes: &RouteSizes) -> Result<()> {
    let experts = sizes.experts;
    match ids.iter().position(|&id| id < -1 || usize::try_from(id).is_ok_and(|id| id >= experts)) {
        Some(slot) => {
            let rank = sizes.cell.get(slot / sizes.slots_per_rank.max(1)).copied();
            Err(KernelError::ExpertId { rank, id: ids[slot], experts })
        }
        None => Ok(()),
    }
}

struct RouteTables<'a> {
    all_rows: &'a mut [i64],
    slots: &'a mut [i64],
    counts: &'a mut [i64],
    ends: &'a mut [i64],
    /// The next row of each expert, or of each rank.
    next: &'a mut [i64],
}

impl RouteTables<'_> {
    fn fill_by_expert(&mut self, sizes: &RouteSizes, ids: &[i64]) -> Result<()> {
        let local = sizes.experts_per_rank();
        for &id in ids.iter().filter(|&&id| id >= 0) {
            self.next[id as usize] += 1;
        }
        for rank in 0..sizes.ranks {
            let mut start = 0;
            for section in 0..local {
                let next = &mut self.next[rank * local + section];
                let count = *next;
                *next = start as i64;
                let filled = start + count as usize;
                let aligned = filled.next_multiple_of(sizes.align);
                let (end, next_start) = match sizes.expert_capacity {
                    None => (aligned, aligned),
                    Some(max_rows) => {
                        check_expert_capacity(rank * local + section, count as usize, max_rows)?;
                        (filled, start + max_rows)
                    }
                };
                start = next_start;
                if rank == sizes.me {
                    self.counts[section] = count;
                    self.ends[section] = end as i64;
                }
            }
            check_capacity(sizes, rank, start)?;
        }
        for (slot, &id) in ids.iter().enumerate().filter(|(_, id)| **id >= 0) {
            let row = self.next[id as usize];
            self.next[id as usize] += 1;
            self.place(sizes, slot, id as usize / local, row);
        }
        Ok(())
    }

    fn fill_by_rank(&mut self, sizes: &RouteSizes, ids: &[i64]) -> Result<()> {
        let local = sizes.experts_per_rank().max(1) as i64;
        for source in 0..sizes.ranks {
            let before = self.next[sizes.me];
            for slot in source * sizes.slots_per_rank..(source + 1) * sizes.slots_per_rank {
                let rank = ids[slot].div_euclid(local);
                let token_start = slot / sizes.slots_per_token * sizes.slots_per_token;
                let is_first = !ids[token_start..slot].iter().any(|id| id.div_euclid(local) == rank);
                if rank >= 0 && is_first {
                    let row = self.next[rank as usize];
                    self.next[rank as usize] += 1;
                    self.place(sizes, slot, rank as usize, row);
                }
            }
            self.counts[source] = self.next[sizes.me] - before;
            for rank in 0..sizes.ranks {
                let end = (self.next[rank] as usize).next_multiple_of(sizes.align);
                self.next[rank] = end as i64;
            }
            self.ends[source] = self.next[sizes.me];
        }
        (0..sizes.ranks).try_for_each(|rank| check_capacity(sizes, rank, self.next[rank] as usize))
    }

    /// Gives a slot the row of a rank.
    fn place(&mut self, sizes: &RouteSizes, slot: usize, rank: usize, row: i64) {
        self.all_rows[slot] = (rank * sizes.capacity) as i64 + row;
        // Rows beyond the capacity are an error, which is found when all rows are counted.
        if rank == sizes.me
            && let Some(entry) = self.slots.get_mut(row as usize)
        {
            *entry = slot as i64;
        }
    }
}

fn check_expert_capacity(expert: usize, rows: usize, capacity: usize) -> Result<()> {
    if rows > capacity { Err(KernelError::ExpertCapacity { expert, rows, capacity }) } else { Ok(()) }
}

fn check_capacity(sizes: &RouteSizes, rank: usize, rows: usize) -> Result<()> {
    let capacity = sizes.capacity;
    if rows > capacity { Err(KernelError::Capacity { rank, rows, capacity }) } else { Ok(()) }
}
