//! A partial packing: the height of each section, the lowest possible offset of each remaining block, and the
//! consequences of one for the other. Every change is recorded on a trail, so that the search can undo it.
//!
//! The remaining blocks of a section are jobs on one machine. All must end by the capacity, and each is
//! released at its lowest offset. Three rules follow:
//! - If all remaining blocks must lie higher than a section's height, then no block rests there, and the height
//!   rises to the lowest of them.
//! - The jobs must fit if they are done in order of release.
//! - A block may leave too little room for some others if it lies below them all. It then lies above one of
//!   them.
//!
//! The facts about sections are stored as one array per property, and loops over the sections of a lifetime
//! have no branches. Most of the time is spent in these loops.

#[cfg(test)]
mod tests;

use super::problem::{ExactProblem, mix_bits};

/// A section is not examined by the job rules if it may waste more than this part of the capacity: the rules
/// then cost more than they find.
const ROOMY_CAPACITY_DIVISOR: u32 = 32;

/// A value before a change, for undoing it.
enum TrailEntry {
    /// The height of a section and the number of blocks that could rest there.
    Height(u32, u32, u32),
    /// The lowest possible offset of a block.
    Low(u32, u32),
    /// A block was placed. The heights and counts of its sections are saved.
    Placed(u32),
}

/// A job: an offset and, in the last 16 bits, the index of a block.
type PackedJob = u64;

fn job(offset: u32, b: usize) -> PackedJob {
    u64::from(offset) << 16 | b as u64
}

/// The block of a job and its offset.
fn unpack_job(job: PackedJob) -> (usize, u32) {
    ((job & 0xFFFF) as usize, (job >> 16) as u32)
}

pub struct Skyline<'a> {
    problem: &'a ExactProblem,
    pub capacity: u32,
    /// The height of each section. No remaining block will lie lower in it.
    pub height: Vec<u32>,
    /// The sum of the sizes of remaining blocks in each section.
    pub remaining: Vec<u32>,
    /// For each section the number of blocks that may rest at its height.
    pub resting: Vec<u32>,
    /// 1 for sections in which some block cannot lie below all others.
    tight: Vec<u32>,
    /// 1 for sections that changed and must be examined.
    pending: Vec<u32>,
    /// For each remaining block its lowest possible offset, and for each placed block its offset.
    pub low: Vec<u32>,
    unplaced: Vec<u64>,
    /// For each section the number of remaining blocks that are alive on both sides of its start.
    pub crossing: Vec<u32>,
    /// For each section a hash of the set of remaining blocks that start there.
    starts: Vec<u64>,
    trail: Vec<TrailEntry>,
    saved: Vec<u32>,
    jobs: Vec<PackedJob>,
    ends: Vec<PackedJob>,
    raises: Vec<(usize, u32)>,
    /// The number of blocks that were read in sections.
    pub read: u64,
    /// The number of blocks and sections that were scanned in other loops. It grows with the length of
    /// lifetimes.
    pub scanned: u64,
}

impl<'a> Skyline<'a> {
    pub fn new(problem: &'a ExactProblem, capacity: u32) -> Self {
        let blocks = problem.size.len();
        let sections = problem.sections;
        let mut skyline = Skyline {
            problem,
            capacity,
            height: vec![0; sections],
            remaining: vec![0; sections],
            resting: vec![0; sections],
            tight: vec![0; sections],
            pending: vec![1; sections],
            low: vec![0; blocks],
            unplaced: vec![0; problem.words],
            crossing: vec![0; sections],
            starts: vec![0; sections],
            trail: Vec::new(),
            saved: Vec::new(),
            jobs: Vec::new(),
            ends: Vec::new(),
            raises: Vec::new(),
            read: 0,
            scanned: 0,
        };
        for (b, &(from, to)) in problem.life.iter().enumerate() {
            skyline.resting[from..to].iter_mut().for_each(|r| *r += 1);
            skyline.unplace_block(b);
        }
        skyline
    }

    /// The remaining blocks that are alive in one of these sections.
    pub fn unplaced_in(&self, from: usize, to: usize) -> impl Iterator<Item = usize> + use<'_> {
        let words = if from < to { self.problem.words } else { 0 };
        (0..words).flat_map(move |w| bits(w, self.problem.alive_word(from, to, w) & self.unplaced[w]))
    }

    pub fn unplaced_at(&self, section: usize) -> impl Iterator<Item = usize> + use<'_> {
        self.unplaced_in(section, section + 1)
    }

    /// The current position of the trail, for undoing later changes.
    pub fn mark(&self) -> usize {
        self.trail.len()
    }

    pub fn undo(&mut self, mark: usize) {
        while self.trail.len() > mark
            && let Some(change) = self.trail.pop()
        {
            match change {
                TrailEntry::Height(s, height, resting) => {
                    (self.height[s as usize], self.resting[s as usize]) = (height, resting);
                }
                TrailEntry::Low(b, low) => {
                    self.low[b as usize] = low;
                    let (from, to) = self.problem.life[b as usize];
                    let levels = self.resting[from..to].iter_mut().zip(&self.height[from..to]);
                    levels.for_each(|(resting, &height)| *resting += u32::from(height == low));
                }
                TrailEntry::Placed(b) => {
                    let (from, to) = self.problem.life[b as usize];
                    self.unplace_block(b as usize);
                    self.tight[from..to].fill(1);
                    let saved = self.saved.len() - 2 * (to - from);
                    let (heights, resting) = self.saved[saved..].split_at(to - from);
                    self.height[from..to].copy_from_slice(heights);
                    self.resting[from..to].copy_from_slice(resting);
                    self.saved.truncate(saved);
                }
            }
        }
        self.pending.fill(0);
    }

    /// Counts a block as remaining.
    fn unplace_block(&mut self, b: usize) {
        let (from, to) = self.problem.life[b];
        self.unplaced[b / 64] |= 1 << (b % 64);
        self.remaining[from..to].iter_mut().for_each(|left| *left += self.problem.size[b]);
        self.crossing[from + 1..to].iter_mut().for_each(|c| *c += 1);
        self.starts[from] ^= mix_bits(b as u64 + 1);
    }

    /// A hash of the remaining blocks over these sections and the heights below them.
    pub fn key(&self, from: usize, to: usize) -> u128 {
        let state = self.height[from..to].iter().zip(&self.starts[from..to]).zip(from as u64..);
        let mut key = mix_bits(to as u64);
        let mut starts_hash = 0u64;
        for ((&height, &starts), s) in state {
            let number = mix_bits(starts ^ (s << 32 | u64::from(height)).wrapping_mul(0x9E37_79B9_7F4A_7C15));
            key = key.wrapping_add(number);
            starts_hash =
                starts_hash.wrapping_add((number ^ number >> 29).wrapping_mul(0xC2B2_AE3D_27D4_EB4F) >> 7);
        }
        u128::from(key) << 64 | u128::from(starts_hash)
    }

    pub fn place(&mut self, b: usize, at: u32) {
        let (from, to) = self.problem.life[b];
        let size = self.problem.size[b];
        let height = at + size;
        self.trail.push(TrailEntry::Placed(b as u32));
        self.saved.extend_from_slice(&self.height[from..to]);
        self.saved.extend_from_slice(&self.resting[from..to]);
        self.unplaced[b / 64] &= !(1 << (b % 64));
        self.low[b] = at;
        self.remaining[from..to].iter_mut().for_each(|left| *left -= size);
        self.height[from..to].fill(height);
        self.resting[from..to].fill(0);
        self.pending[from..to].fill(1);
        self.crossing[from + 1..to].iter_mut().for_each(|c| *c -= 1);
        self.starts[from] ^= mix_bits(b as u64 + 1);
        self.scanned += (to - from) as u64;
        self.raise_all(from, to, height);
    }

    /// Raises a section: no block lies below this height.
    pub fn lift(&mut self, section: usize, height: u32) {
        self.trail.push(TrailEntry::Height(section as u32, self.height[section], self.resting[section]));
        (self.height[section], self.resting[section]) = (height, 0);
        self.pending[section] = 1;
        self.raise_all(section, section + 1, height);
    }

    /// Raises all blocks of these sections to at least their new height.
    fn raise_all(&mut self, from: usize, to: usize, height: u32) {
        for w in 0..self.problem.words {
            for b in bits(w, self.problem.alive_word(from, to, w) & self.unplaced[w]) {
                self.read += 1;
                if self.low[b] < height {
                    self.raise(b, height);
                }
                if self.low[b] == height {
                    let (start, end) = self.problem.life[b];
                    self.resting[start.max(from)..end.min(to)].iter_mut().for_each(|r| *r += 1);
                }
            }
        }
    }

    /// Raises the lowest possible offset of a block.
    fn raise(&mut self, b: usize, to: u32) {
        let before = self.low[b];
        let (from, end) = self.problem.life[b];
        let low = match self.problem.align[b] {
            1 => to,
            align => to.next_multiple_of(align),
        };
        self.trail.push(TrailEntry::Low(b as u32, before));
        self.low[b] = low;
        self.scanned += (end - from) as u64;
        // Negative if the block can no longer be placed.
        let room = self.capacity as i32 - low as i32;
        let height = &self.height[from..end];
        let remaining = &self.remaining[from..end];
        let resting = &mut self.resting[from..end];
        let tight = &mut self.tight[from..end];
        let flags = tight.iter_mut().zip(&mut self.pending[from..end]);
        for (((&height, &left), resting), (tight, pending)) in
            height.iter().zip(remaining).zip(resting).zip(flags)
        {
            let rested = u32::from(height == before);
            *resting -= rested;
            *tight |= u32::from(left as i32 > room);
            *pending |= *tight | rested & u32::from(*resting == 0);
        }
    }

    /// Applies the rules until nothing changes. Fails with a section that cannot be stacked.
    pub fn propagate(&mut self) -> Result<(), usize> {
        let mut from = 0;
        loop {
            let (before, after) = self.pending.split_at(from);
            let next = first_pending(after).map(|s| s + from).or_else(|| first_pending(before));
            let Some(s) = next else {
                return Ok(());
            };
            let is_open = self.remaining[s] > 0;
            let is_done = !is_open || self.propagate_section(s);
            self.pending[s] = 0;
            if !is_done || is_open && self.tight[s] > 0 && !self.propagate_jobs(s) {
                return Err(s);
            }
            from = s;
        }
    }

    /// Raises a section on which nothing rests to the lowest of its blocks. Returns whether the blocks still
    /// fit.
    fn propagate_section(&mut self, s: usize) -> bool {
        let mut height = self.height[s];
        let rises = self.resting[s] == 0;
        if rises {
            height = self.unplaced_at(s).map(|b| self.low[b]).min().unwrap_or(height);
        }
        let fits = height + self.remaining[s] <= self.capacity;
        if fits && rises {
            self.lift(s, height);
        }
        fits
    }

    /// Applies the rules for jobs to a section. Returns whether the blocks fit.
    fn propagate_jobs(&mut self, s: usize) -> bool {
        // If much space may be wasted, the rules conclude nothing.
        if self.height[s] + self.remaining[s] + self.capacity / ROOMY_CAPACITY_DIVISOR < self.capacity {
            return true;
        }
        let under = self.capacity - self.remaining[s];
        let mut jobs = std::mem::take(&mut self.jobs);
        jobs.clear();
        // Blocks above `under` cannot lie below all others.
        let mut read = 0;
        self.unplaced_at(s).for_each(|b| {
            read += 1;
            if self.low[b] > under {
                jobs.push(job(self.low[b], b));
            }
        });
        self.read += read;
        jobs.sort_unstable();
        self.scanned += jobs.len() as u64;
        self.tight[s] = u32::from(!jobs.is_empty());
        let mut above = 0;
        let mut fits = jobs.iter().rev().all(|&job| {
            let (b, low) = unpack_job(job);
            above += self.problem.size[b];
            low + above <= self.capacity
        });
        if fits && !jobs.is_empty() {
            fits = self.lie_above(s, &jobs, under);
        }
        self.jobs = jobs;
        fits
    }

    /// Each of `jobs` is a block that cannot lie below all the others. Raises it to the lowest offset at which
    /// it lies above one of them. The jobs are sorted, lowest first. Returns whether the blocks still fit.
    fn lie_above(&mut self, s: usize, jobs: &[PackedJob], under: u32) -> bool {
        let mut ends = std::mem::take(&mut self.ends);
        ends.clear();
        // The blocks that end below the lowest job count for all jobs.
        let lowest = unpack_job(jobs[0]).1;
        let mut sum = 0;
        self.unplaced_at(s).for_each(|b| {
            let end = self.low[b] + self.problem.size[b];
            if end > lowest {
                ends.push(job(end, b));
            } else {
                sum += self.problem.size[b];
            }
        });
        ends.sort_unstable();
        self.raises.clear();
        // The ends up to each job's offset, with their sizes added.
        let mut first = 0;
        for &job in jobs {
            let (b, low) = unpack_job(job);
            while let Some(&end) = ends.get(first).filter(|&&end| unpack_job(end).1 <= low) {
                sum += self.problem.size[unpack_job(end).0];
                first += 1;
            }
            // Blocks of at least `room` bytes must end at or below the block's offset. It rises to the first end that
            // reaches this.
            let mut fill = sum;
            let mut offset = low;
            let room = low - under;
            let mut higher = ends[first..].iter().filter(|&&end| unpack_job(end).0 != b);
            while fill < room
                && let Some(&end) = higher.next()
            {
                let (block, low) = unpack_job(end);
                offset = low;
                self.scanned += 1;
                fill += self.problem.size[block];
            }
            if offset > low {
                self.raises.push((b, offset));
            }
        }
        self.ends = ends;
        while let Some((b, to)) = self.raises.pop() {
            if to + self.problem.size[b] > self.capacity {
                return false;
            }
            self.raise(b, to);
        }
        true
    }
}

fn first_pending(pending: &[u32]) -> Option<usize> {
    pending.iter().position(|&p| p > 0)
}

/// The indices in one word of a set.
fn bits(word: usize, mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (set != 0).then(|| 64 * word + set.trailing_zeros() as usize);
        set &= set.wrapping_sub(1);
        bit
    })
}
