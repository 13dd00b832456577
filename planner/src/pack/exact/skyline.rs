//! A partial packing: how high each section is stacked, how low each block that is left can still lie, and what
//! follows from one for the other. Every change is recorded, so that the search can go back.
//!
//! In each section, the blocks that are left are jobs on one machine that all must end by the capacity, each released
//! at its lowest offset. From that follows:
//! - no block rests on a section's height if all that are left must lie higher, so the height rises to them;
//! - the jobs must fit when they are done by order of release;
//! - a block that would leave too little room for some others if it lay under them all lies above one of them.

use std::collections::VecDeque;

use super::Exact;

/// A section that may waste more than this part of the capacity is not asked which blocks lie above others: it
/// costs more than it finds.
const ROOMY: u64 = 32;

/// A value before a change.
enum Change {
    Height(u32, u64),
    Low(u32, u64),
    Placed(u32),
}

/// A block that is left in a section: its lowest offset, size and index.
type Job = (u64, u64);

/// See the [module](self).
pub struct Skyline<'a> {
    problem: &'a Exact,
    pub capacity: u64,
    /// How high each section is stacked: nothing that is left comes to lie lower in it.
    pub height: Vec<u64>,
    /// The sum of sizes that are left in each section.
    pub left: Vec<u64>,
    /// The lowest offset that each block can still have, or has.
    pub low: Vec<u64>,
    pub placed: Vec<bool>,
    /// The number of blocks that are left and alive on both sides of the start of each section.
    pub crossing: Vec<u32>,
    /// The blocks of each section, those that are left first, and their number.
    alive: Vec<Vec<u32>>,
    count: Vec<usize>,
    /// Where a block stands in `alive`, from its first section on.
    position: Vec<Vec<u32>>,
    /// A number for each section's set of blocks that are left and start there.
    starts: Vec<u128>,
    trail: Vec<Change>,
    /// Sections that changed so that something may follow.
    queue: VecDeque<u32>,
    queued: Vec<bool>,
    /// Sections in which some block could not lie under all others when it was last looked at.
    tight: Vec<bool>,
    jobs: Vec<u64>,
    ends: Vec<Job>,
    /// The number of blocks that were read in sections.
    pub read: u64,
}

impl<'a> Skyline<'a> {
    /// Nothing placed.
    pub fn new(problem: &'a Exact, capacity: u64) -> Self {
        let (blocks, sections) = (problem.size.len(), problem.sections.len());
        let mut skyline = Skyline {
            problem,
            capacity,
            height: vec![0; sections],
            left: vec![0; sections],
            low: vec![0; blocks],
            placed: vec![false; blocks],
            crossing: vec![0; sections],
            alive: problem.sections.clone(),
            count: problem.sections.iter().map(Vec::len).collect(),
            position: vec![Vec::new(); blocks],
            starts: vec![0; sections],
            trail: Vec::new(),
            queue: VecDeque::new(),
            queued: vec![false; sections],
            tight: vec![false; sections],
            jobs: Vec::new(),
            ends: Vec::new(),
            read: 0,
        };
        for (s, alive) in problem.sections.iter().enumerate() {
            for (&b, at) in alive.iter().zip(0..) {
                skyline.position[b as usize].push(at);
                skyline.left[s] += problem.size[b as usize];
            }
            skyline.queue.push_back(s as u32);
            skyline.queued[s] = true;
        }
        for (b, &(from, to)) in problem.life.iter().enumerate() {
            skyline.starts[from] ^= number(b as u128 + 1);
            skyline.crossing[from + 1..to].iter_mut().for_each(|c| *c += 1);
        }
        skyline
    }

    /// The blocks of a section that are left.
    pub fn alive(&self, section: usize) -> &[u32] {
        &self.alive[section][..self.count[section]]
    }

    /// Where to go back to.
    pub fn mark(&self) -> usize {
        self.trail.len()
    }

    /// Goes back to a mark.
    pub fn undo(&mut self, mark: usize) {
        for change in self.trail.drain(mark..).rev() {
            match change {
                Change::Height(s, height) => self.height[s as usize] = height,
                Change::Low(b, low) => self.low[b as usize] = low,
                Change::Placed(b) => {
                    self.placed[b as usize] = false;
                    let (from, to) = self.problem.life[b as usize];
                    for s in from..to {
                        self.left[s] += self.problem.size[b as usize];
                        self.count[s] += 1;
                    }
                    self.crossing[from + 1..to].iter_mut().for_each(|c| *c += 1);
                    self.starts[from] ^= number(u128::from(b) + 1);
                }
            }
        }
        self.queue.drain(..).for_each(|s| self.queued[s as usize] = false);
    }

    /// A number for the blocks that are left over these sections and the heights under them.
    pub fn key(&self, from: usize, to: usize) -> u128 {
        let state = self.height[from..to].iter().zip(&self.starts[from..to]);
        state.fold((from as u128) << 64 | to as u128, |key, (&height, &starts)| {
            number(key ^ u128::from(height) ^ starts)
        })
    }

    /// Places a block on a niche.
    pub fn place(&mut self, b: u32, at: u64) {
        let (block, (from, to)) = (b as usize, self.problem.life[b as usize]);
        let size = self.problem.size[block];
        self.trail.push(Change::Placed(b));
        self.placed[block] = true;
        self.low[block] = at;
        for s in from..to {
            self.left[s] -= size;
            self.count[s] -= 1;
            let (here, last) = (self.position[block][s - from], self.count[s]);
            let other = self.alive[s][last] as usize;
            self.alive[s].swap(here as usize, last);
            self.position[other][s - self.problem.life[other].0] = here;
            self.position[block][s - from] = last as u32;
        }
        self.crossing[from + 1..to].iter_mut().for_each(|c| *c -= 1);
        self.starts[from] ^= number(u128::from(b) + 1);
        for s in from..to {
            self.lift(s, at + size);
        }
    }

    /// Says that nothing lies lower than this in a section.
    pub fn lift(&mut self, section: usize, height: u64) {
        self.trail.push(Change::Height(section as u32, self.height[section]));
        self.height[section] = height;
        self.queue(section);
        for i in 0..self.count[section] {
            let b = self.alive[section][i];
            if self.low[b as usize] < height {
                self.raise(b, height);
            }
        }
        self.read += self.count[section] as u64;
    }

    /// Says that a block does not lie lower than this.
    fn raise(&mut self, b: u32, to: u64) {
        let (from, end) = self.problem.life[b as usize];
        let before = self.low[b as usize];
        let low = to.next_multiple_of(self.problem.align[b as usize]);
        self.trail.push(Change::Low(b, before));
        self.low[b as usize] = low;
        for s in from..end {
            if before == self.height[s] || low + self.left[s] > self.capacity || self.tight[s] {
                self.queue(s);
            }
        }
    }

    fn queue(&mut self, section: usize) {
        if !self.queued[section] {
            self.queued[section] = true;
            self.queue.push_back(section as u32);
        }
    }

    /// Draws all conclusions; the section that cannot be stacked, if there is one.
    pub fn conclude(&mut self) -> Result<(), usize> {
        while let Some(s) = self.queue.pop_front() {
            let s = s as usize;
            self.queued[s] = false;
            if self.count[s] > 0 && !self.section(s) {
                return Err(s);
            }
        }
        Ok(())
    }

    /// Draws the conclusions of one section; whether it may be stacked.
    fn section(&mut self, s: usize) -> bool {
        self.read += self.count[s] as u64;
        let lows = self.alive(s).iter().map(|&b| self.low[b as usize]);
        let (least, most) = lows.fold((u64::MAX, 0), |(least, most), low| (least.min(low), most.max(low)));
        let under = self.capacity.checked_sub(self.left[s]);
        let Some(under) = under.filter(|&u| self.height[s].max(least) <= u) else {
            return false;
        };
        self.tight[s] = most > under;
        if self.tight[s] {
            let (mut jobs, mut ends) = (std::mem::take(&mut self.jobs), std::mem::take(&mut self.ends));
            let fits = self.machine(s, under, &mut jobs, &mut ends);
            (self.jobs, self.ends) = (jobs, ends);
            if !fits {
                return false;
            }
        }
        if least > self.height[s] {
            self.lift(s, least);
        }
        true
    }

    /// The blocks of a section as jobs on one machine: whether they fit, and which cannot lie under others. A block
    /// above `under` cannot lie under all.
    fn machine(&mut self, s: usize, under: u64, jobs: &mut Vec<u64>, ends: &mut Vec<Job>) -> bool {
        let low = |&b: &u32| self.low[b as usize] << 16 | u64::from(b);
        jobs.clear();
        jobs.extend(self.alive(s).iter().map(low).filter(|job| job >> 16 > under));
        jobs.sort_unstable_by_key(|&job| std::cmp::Reverse(job));
        let mut above = 0;
        let fits = jobs.iter().all(|job| {
            above += self.problem.size[(job & 0xFFFF) as usize];
            (job >> 16) + above <= self.capacity
        });
        if !fits {
            return false;
        }
        if under - self.height[s] > self.capacity / ROOMY {
            return true;
        }
        // What of the others cannot all lie above a block of these is above some offset: the block lies above one of
        // them. Those are the first by descending end, with their sizes summed up.
        ends.clear();
        ends.extend(self.alive(s).iter().map(|b| (low(b) + (self.problem.size[*b as usize] << 16), 0)));
        ends.sort_unstable_by_key(|&job| std::cmp::Reverse(job.0));
        let mut sum = 0;
        for job in ends.iter_mut() {
            sum += self.problem.size[(job.0 & 0xFFFF) as usize];
            *job = (job.0 >> 16, sum);
        }
        for job in jobs {
            let (low, b) = (*job >> 16, (*job & 0xFFFF) as u32);
            let size = self.problem.size[b as usize];
            let end = low + size;
            let mut first = ends.partition_point(|other| other.1 + end <= self.capacity);
            if ends.get(first).is_none_or(|other| other.0 <= end) {
                // The block itself may be among them.
                first = ends.partition_point(|other| other.1 + low <= self.capacity || other.0 > end);
            }
            let lowest = ends.get(first).map_or(0, |other| other.0);
            if lowest > low {
                if lowest + size > self.capacity {
                    return false;
                }
                self.raise(b, lowest);
            }
        }
        true
    }
}

/// A number that has nothing in common with another's.
fn number(from: u128) -> u128 {
    const ODD: u128 = 0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835;
    let mixed = (from ^ (from >> 64)).wrapping_mul(ODD);
    let mixed = (mixed ^ (mixed >> 61)).wrapping_mul(ODD);
    mixed ^ (mixed >> 67)
}
