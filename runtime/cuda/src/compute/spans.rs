//! Bytes that values take, and who reads them before they are overwritten.
//!
//! A plan is checked, so the order of its list is one in which its steps may run, and a byte that a step reads is
//! always what the last step in front of it wrote there, whichever lane it is on.
//!
//! All ranks answer alike, because what they fuse changes how products are added up: a value that lies elsewhere on
//! every rank may touch all of its home, and overwrites nothing.

use std::ops::Range;

use smallvec::SmallVec;
use symmc_ir::collective::CollectiveKind as Kind;
use symmc_runtime::exec::{BoundCollective, BoundRegion, BoundStep, Home, Located, Work};

/// Bytes of a home, from the first that strides reach to behind the last.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    home: Home,
    bytes: Range<usize>,
}

impl Span {
    pub fn of(value: &Located) -> Span {
        if value.by_rank != 0 {
            return Span { home: value.home, bytes: 0..usize::MAX };
        }
        let size = value.dtype.size();
        let (mut low, mut high) = (0isize, 0isize);
        for (&n, &s) in value.shape.iter().zip(&value.strides) {
            let reach = (n.max(1) - 1) as isize * s;
            if reach < 0 { low += reach } else { high += reach }
        }
        let start = value.offset.wrapping_add_signed(low * size as isize);
        let end = value.offset.wrapping_add_signed(high * size as isize) + size;
        let empty = value.shape.contains(&0);
        Span { home: value.home, bytes: if empty { 0..0 } else { start..end } }
    }

    /// The bytes that a region has, which has as many as the operand of its call, on a rank of which it does not
    /// depend.
    pub fn of_region(region: &BoundRegion, call: &BoundCollective) -> Span {
        let bytes = call.elements * call.dtype.size();
        Span { home: region.home, bytes: region.offset..region.offset + bytes }
    }

    /// All bytes that a region has on any rank of the run, and more.
    fn around(region: &BoundRegion, call: &BoundCollective) -> Span {
        let own = call.elements.max(1) * call.dtype.size() * call.cell.len().max(1);
        let all = region.by_rank.as_deref().unwrap_or(std::slice::from_ref(&region.offset));
        let ends = (all.iter().min(), all.iter().max());
        let (first, last) = (ends.0.copied().unwrap_or(0), ends.1.copied().unwrap_or(usize::MAX));
        Span { home: region.home, bytes: first..last.saturating_add(own) }
    }

    pub fn overlaps(&self, other: &Span) -> bool {
        self.home == other.home && self.bytes.start < other.bytes.end && other.bytes.start < self.bytes.end
    }
}

/// Whether the elements are one run, so that a result's span is written as a whole.
pub(crate) fn is_run(value: &Located) -> bool {
    super::space::axes(&value.shape, &value.strides).iter().all(|a| a.stride == 1)
}

type Spans = SmallVec<[Span; 4]>;

/// What a step may read, and what it writes whole.
fn touched(step: &BoundStep) -> (Spans, Spans) {
    let (mut reads, mut writes) = (Spans::new(), Spans::new());
    for (read, written) in step.work.parts().map(touched_by) {
        reads.extend(read);
        writes.extend(written);
    }
    (reads, writes)
}

fn touched_by(work: &Work) -> (Spans, Spans) {
    match work {
        Work::Kernel { operands, results, .. } | Work::Custom { operands, results, .. } => {
            let writes = results.iter().filter(|r| r.by_rank == 0 && is_run(r)).map(Span::of).collect();
            (operands.iter().map(Span::of).collect(), writes)
        }
        Work::Collective(call) => {
            let same = call.operand.by_rank.is_none() && call.result.by_rank.is_none();
            if matches!(call.kind, Kind::AllReduce(_)) && same {
                let [operand, result] = [&call.operand, &call.result].map(|r| Span::of_region(r, call));
                return ([operand].into_iter().collect(), [result].into_iter().collect());
            }
            // Results that not every rank gets leave what was there.
            let splits = call.splits.iter().flat_map(|(a, b)| [a, b]);
            let regions = [&call.operand, &call.result].into_iter().chain(splits);
            (regions.map(|r| Span::around(r, call)).collect(), Spans::new())
        }
        Work::Dispatch(_) => Default::default(),
    }
}

/// Whether two compute steps may change places: neither writes what the other reads or writes.
pub(crate) fn commute(one: &BoundStep, other: &BoundStep) -> bool {
    let spans = |step: &BoundStep| match &step.work {
        Work::Kernel { operands, results, .. } => {
            let [reads, writes] = [operands, results].map(|all| all.iter().map(Span::of).collect::<Spans>());
            Some((reads, writes))
        }
        Work::Custom { .. } | Work::Collective(_) | Work::Dispatch(_) => None,
    };
    let (Some((reads, writes)), Some((other_reads, other_writes))) = (spans(one), spans(other)) else {
        return false;
    };
    let apart = |a: &Spans, b: &Spans| !a.iter().any(|x| b.iter().any(|y| x.overlaps(y)));
    apart(&writes, &other_writes) && apart(&writes, &other_reads) && apart(&reads, &other_writes)
}

/// Whether a step that is not of the group, or the caller, may read what `place` wrote to these bytes.
pub(crate) fn is_read(list: &[BoundStep], place: usize, own: &Span, group: &[usize]) -> bool {
    // Only these homes are nobody else's business while the program runs.
    if !matches!(own.home, Home::Ordinary | Home::Output(_)) {
        return true;
    }
    let mut left: SmallVec<[Span; 4]> = [own.clone()].into_iter().filter(|s| !s.bytes.is_empty()).collect();
    for (other, step) in list.iter().enumerate().skip(place + 1) {
        if left.is_empty() {
            return false;
        }
        let (reads, writes) = touched(step);
        if !group.contains(&other) && reads.iter().any(|x| left.iter().any(|l| l.overlaps(x))) {
            return true;
        }
        for written in &writes {
            left = left.iter().flat_map(|l| without(l, written)).collect();
        }
    }
    !left.is_empty() && own.home != Home::Ordinary
}

/// What is left of a span outside another.
fn without(span: &Span, other: &Span) -> SmallVec<[Span; 2]> {
    if !span.overlaps(other) {
        return [span.clone()].into_iter().collect();
    }
    let below = span.bytes.start..other.bytes.start.max(span.bytes.start);
    let above = other.bytes.end.min(span.bytes.end)..span.bytes.end;
    let part = |bytes: Range<usize>| (!bytes.is_empty()).then_some(Span { home: span.home, bytes });
    [below, above].into_iter().filter_map(part).collect()
}
