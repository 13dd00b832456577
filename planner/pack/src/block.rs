//! Blocks of memory, and their lifetimes.

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// The first instant at which the block is alive.
    pub start: usize,
    /// The first instant at which the block is no longer alive. With `end <= start` the lifetime wraps: the
    /// block is alive from `start` on and at all instants before `end`.
    pub end: usize,
    pub size: u64,
    /// The offset must be a multiple of this. 0 counts as 1.
    pub align: u64,
    /// The required offset, if it is given.
    pub offset: Option<u64>,
}

impl Block {
    /// A block that is alive over `start..end` and may have any offset.
    pub fn new(start: usize, end: usize, size: u64) -> Self {
        Block { start, end, size, align: 1, offset: None }
    }
}

/// The lifetimes of blocks over *sections*: the instants whose set of live blocks is not contained in that of
/// another instant. Two blocks are alive together exactly if they share a section. Blocks of size 0 are in no
/// section.
pub(crate) struct BlockSpans {
    pub sections: usize,
    /// Up to two half-open ranges per block. The second range is empty unless the lifetime wraps.
    pub ranges: Vec<[(u32, u32); 2]>,
}

impl BlockSpans {
    pub fn new(blocks: &[Block]) -> Self {
        let times = SectionIndex::new(blocks);
        let ranges = blocks
            .iter()
            .map(|b| {
                let start = times.sections_before(b.start);
                let end = times.sections_before(b.end);
                if b.size == 0 {
                    [(start, start), (0, 0)]
                } else if b.start < b.end {
                    [(start, end), (0, 0)]
                } else {
                    [(start, times.count), (0, end)]
                }
            })
            .collect();
        BlockSpans { sections: times.count as usize, ranges }
    }

    /// The non-empty half-open ranges of a block.
    pub fn ranges_of(&self, block: usize) -> impl Iterator<Item = (usize, usize)> + use<'_> {
        self.ranges[block].iter().filter(|p| p.0 < p.1).map(|p| (p.0 as usize, p.1 as usize))
    }

    pub fn alive_at(&self, block: usize, instant: usize) -> bool {
        self.ranges_of(block).any(|(from, to)| from <= instant && instant < to)
    }

    pub fn loads(&self, blocks: &[Block]) -> Vec<u64> {
        let mut change = vec![0i64; self.sections + 1];
        for (b, block) in blocks.iter().enumerate() {
            for (from, to) in self.ranges_of(b) {
                change[from] = change[from].wrapping_add(block.size as i64);
                change[to] = change[to].wrapping_sub(block.size as i64);
            }
        }
        let mut load = 0i64;
        change[..self.sections]
            .iter()
            .map(|c| {
                load = load.wrapping_add(*c);
                load as u64
            })
            .collect()
    }
}

/// The number of sections before each instant.
struct SectionIndex {
    /// The instants at which a lifetime starts or ends. Empty if instants are dense.
    sorted: Vec<usize>,
    /// The number of sections before each entry of `sorted`, or before each instant if `sorted` is not used.
    before: Vec<u32>,
    count: u32,
}

impl SectionIndex {
    const STARTS_FLAG: u32 = 1;
    const ENDS_FLAG: u32 = 2;

    fn new(blocks: &[Block]) -> Self {
        let instants_of_blocks = blocks.iter().flat_map(|b| [b.start, b.end]);
        let last_instant = instants_of_blocks.clone().max().unwrap_or(0);
        let mut sorted = Vec::new();
        if last_instant / 8 > blocks.len() {
            sorted = instants_of_blocks.chain([0]).collect();
            sorted.sort_unstable();
            sorted.dedup();
        }
        let instants = if sorted.is_empty() { last_instant + 1 } else { sorted.len() };
        let mut times = SectionIndex { sorted, before: vec![0; instants], count: 0 };
        for b in blocks.iter().filter(|b| b.size > 0) {
            let start = times.instant_index(b.start);
            let end = times.instant_index(b.end);
            times.before[start] |= Self::STARTS_FLAG;
            times.before[end] |= Self::ENDS_FLAG;
            if b.end <= b.start && b.end > 0 {
                times.before[0] |= Self::STARTS_FLAG;
            }
        }
        // A section is the last start before an end. The end of time ends all lifetimes.
        let mut open = 0;
        for t in &mut times.before {
            let marks = *t;
            if marks & Self::ENDS_FLAG != 0 {
                times.count += std::mem::take(&mut open);
            }
            *t = times.count;
            if marks & Self::STARTS_FLAG != 0 {
                open = 1;
            }
        }
        times.count += open;
        times
    }

    fn instant_index(&self, t: usize) -> usize {
        if self.sorted.is_empty() { t } else { self.sorted.partition_point(|&x| x < t) }
    }

    fn sections_before(&self, t: usize) -> u32 {
        self.before[self.instant_index(t)]
    }
}

/// Whether no block with a size has a wrapped lifetime or a given offset.
pub(crate) fn has_plain_lifetimes(blocks: &[Block]) -> bool {
    blocks.iter().all(|b| b.size == 0 || (b.start < b.end && b.offset.is_none()))
}
