//! A partial packing: how high each section is stacked, how low each block that is left can still lie, and what
//! follows from one for the other. Every change is recorded, so that the search can go back.
//!
//! In each section, the blocks that are left are jobs on one machine that all must end by the capacity, each released
//! at its lowest offset. From that follows:
//! - no block rests on a section's height if all that are left must lie higher, so the height rises to them;
//! - the jobs must fit when they are done by order of release;
//! - a block that would leave too little room for some others if it lay under them all lies above one of them.
//!
//! What is known of sections lies in one list for each number, and loops over the sections of a life have no branches:
//! they are most of the time.

#[cfg(test)]
mod tests;

use super::problem::{ExactProblem, mix_bits};

/// What a section that may waste more than this part of the capacity says of its blocks is not looked at: it costs
/// more than it finds.
const ROOMY: u32 = 32;

/// A value before a change.
enum TrailEntry {
    /// The height of a section and how many rested on it.
    Height(u32, u32, u32),
    /// How low a block could lie.
    Low(u32, u32),
    /// A block was placed; heights and what rested on them in its sections are saved.
    Placed(u32),
}

/// An offset and, in the last 16 bits, the index of a block.
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
    /// How high each section is stacked: nothing that is left comes to lie lower in it.
    pub height: Vec<u32>,
    /// The sum of sizes that are left in each section.
    pub remaining: Vec<u32>,
    /// The number of blocks that may rest on each section's height.
    pub resting: Vec<u32>,
    /// 1 where some block may not lie under all others.
    tight: Vec<u32>,
    /// 1 where something changed so that something may follow.
    pending: Vec<u32>,
    /// The lowest offset that each block can still have, or has.
    pub low: Vec<u32>,
    unplaced: Vec<u64>,
    /// The number of blocks that are left and alive on both sides of the start of each section.
    pub crossing: Vec<u32>,
    /// A number for each section's set of blocks that are left and start there.
    starts: Vec<u64>,
    trail: Vec<TrailEntry>,
    saved: Vec<u32>,
    jobs: Vec<PackedJob>,
    ends: Vec<PackedJob>,
    raises: Vec<(usize, u32)>,
    /// The number of blocks that were read in sections.
    pub read: u64,
    /// The number of blocks and sections that were gone through besides: more, the longer lives are.
    pub scanned: u64,
}

impl<'a> Skyline<'a> {
    pub fn new(problem: &'a ExactProblem, capacity: u32) -> Self {
        let (blocks, sections) = (problem.size.len(), problem.sections);
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

    /// The blocks that are left and alive in one of these sections.
    pub fn unplaced_in(&self, from: usize, to: usize) -> impl Iterator<Item = usize> + use<'_> {
        let words = if from < to { self.problem.words } else { 0 };
        (0..words).flat_map(move |w| bits(w, self.problem.alive_word(from, to, w) & self.unplaced[w]))
    }

    pub fn unplaced_at(&self, section: usize) -> impl Iterator<Item = usize> + use<'_> {
        self.unplaced_in(section, section + 1)
    }

    /// Where to go back to.
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

    /// Counts a block as left.
    fn unplace_block(&mut self, b: usize) {
        let (from, to) = self.problem.life[b];
        self.unplaced[b / 64] |= 1 << (b % 64);
        self.remaining[from..to].iter_mut().for_each(|left| *left += self.problem.size[b]);
        self.crossing[from + 1..to].iter_mut().for_each(|c| *c += 1);
        self.starts[from] ^= mix_bits(b as u64 + 1);
    }

    /// A number for the blocks that are left over these sections and the heights under them.
    pub fn key(&self, from: usize, to: usize) -> u128 {
        let state = self.height[from..to].iter().zip(&self.starts[from..to]).zip(from as u64..);
        let (mut key, mut more) = (mix_bits(to as u64), 0u64);
        for ((&height, &starts), s) in state {
            let number = mix_bits(starts ^ (s << 32 | u64::from(height)).wrapping_mul(0x9E37_79B9_7F4A_7C15));
            key = key.wrapping_add(number);
            more = more.wrapping_add((number ^ number >> 29).wrapping_mul(0xC2B2_AE3D_27D4_EB4F) >> 7);
        }
        u128::from(key) << 64 | u128::from(more)
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

    /// Says that nothing lies lower than this in a section.
    pub fn lift(&mut self, section: usize, height: u32) {
        self.trail.push(TrailEntry::Height(section as u32, self.height[section], self.resting[section]));
        (self.height[section], self.resting[section]) = (height, 0);
        self.pending[section] = 1;
        self.raise_all(section, section + 1, height);
    }

    /// Says that no block of these sections lies lower than their new height.
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

    /// Says that a block lies no lower than this, which is higher than was known.
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
        // Negative where it cannot be placed any more.
        let room = self.capacity as i32 - low as i32;
        let (height, left) = (&self.height[from..end], &self.remaining[from..end]);
        let (resting, tight) = (&mut self.resting[from..end], &mut self.tight[from..end]);
        let flags = tight.iter_mut().zip(&mut self.pending[from..end]);
        for (((&height, &left), resting), (tight, pending)) in height.iter().zip(left).zip(resting).zip(flags)
        {
            let rested = u32::from(height == before);
            *resting -= rested;
            *tight |= u32::from(left as i32 > room);
            *pending |= *tight | rested & u32::from(*resting == 0);
        }
    }

    /// Draws all conclusions; the section that cannot be stacked, if there is one.
    pub fn propagate(&mut self) -> Result<(), usize> {
        let mut from = 0;
        loop {
            let (before, after) = self.pending.split_at(from);
            let next = |pending: &[u32]| pending.iter().position(|&p| p > 0);
            let Some(s) = next(after).map(|s| s + from).or_else(|| next(before)) else {
                return Ok(());
            };
            let left = self.remaining[s] > 0;
            let settled = !left || self.propagate_section(s);
            self.pending[s] = 0;
            if !settled || left && self.tight[s] > 0 && !self.propagate_jobs(s) {
                return Err(s);
            }
            from = s;
        }
    }

    /// Lifts a section on which nothing rests to the lowest of its blocks; whether there is room for them.
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

    /// The blocks of a section as jobs on one machine: whether they fit, and which cannot lie under others.
    fn propagate_jobs(&mut self, s: usize) -> bool {
        // Where much may be wasted nothing more is concluded.
        if self.height[s] + self.remaining[s] + self.capacity / ROOMY < self.capacity {
            return true;
        }
        let under = self.capacity - self.remaining[s];
        let mut jobs = std::mem::take(&mut self.jobs);
        jobs.clear();
        // Those above `under` cannot lie under all others.
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

    /// What of the others cannot all lie above a block of these, the lowest first, is above some offset: the block lies
    /// above one of them. Whether the blocks fit so.
    fn lie_above(&mut self, s: usize, jobs: &[PackedJob], under: u32) -> bool {
        let mut ends = std::mem::take(&mut self.ends);
        let size = |job: PackedJob| self.problem.size[unpack_job(job).0];
        ends.clear();
        // All that ends below the lowest job counts for each.
        let (lowest, mut sum) = (unpack_job(jobs[0]).1, 0);
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
        // The ends up to each job's offset, with their sizes summed up.
        let mut first = 0;
        for &job in jobs {
            let (b, low) = unpack_job(job);
            while let Some(&end) = ends.get(first).filter(|&&end| unpack_job(end).1 <= low) {
                sum += size(end);
                first += 1;
            }
            // Less fills the room under the block than what must lie there.
            let (mut fill, mut to, room) = (sum, low, low - under);
            let mut others = ends[first..].iter().filter(|&&end| unpack_job(end).0 != b);
            while fill < room
                && let Some(&end) = others.next()
            {
                to = unpack_job(end).1;
                self.scanned += 1;
                fill += size(end);
            }
            if to > low {
                self.raises.push((b, to));
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

/// The blocks of a word of a set.
fn bits(word: usize, mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (set != 0).then(|| 64 * word + set.trailing_zeros() as usize);
        set &= set.wrapping_sub(1);
        bit
    })
}
