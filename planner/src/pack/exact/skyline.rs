//! A partial packing: how high each section is stacked, how low each block that is left can still lie, and what
//! follows from one for the other. Every change is recorded, so that the search can go back.
//!
//! In each section, the blocks that are left are jobs on one machine that all must end by the capacity, each released
//! at its lowest offset. From that follows:
//! - no block rests on a section's height if all that are left must lie higher, so the height rises to them;
//! - the jobs must fit when they are done by order of release;
//! - a block that would leave too little room for some others if it lay under them all lies above one of them.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use super::Exact;

/// What a section that may waste more than this part of the capacity says of its blocks is not looked at: it costs
/// more than it finds.
const ROOMY: u64 = 32;

/// A value before a change.
enum Change {
    Height(u32, u64),
    Resting(u32, u32),
    Low(u32, u64),
    Placed(u32),
}

/// An offset and, in the last 16 bits, the index of a block.
type Job = u64;

/// What is known of a section.
#[derive(Clone, Copy)]
pub struct Level {
    /// How high it is stacked: nothing that is left comes to lie lower in it.
    pub height: u64,
    /// The sum of sizes that are left.
    pub left: u64,
    /// The number of blocks that may rest on its height.
    pub resting: u32,
    /// Whether some block may not lie under all others.
    tight: bool,
    queued: bool,
}

impl Level {
    /// Of a section with these blocks, before any is placed.
    fn of(problem: &Exact, blocks: &[u32]) -> Self {
        let left = blocks.iter().map(|&b| problem.size[b as usize]).sum();
        Level { height: 0, left, resting: blocks.len() as u32, tight: false, queued: true }
    }

    /// Whether so much may be wasted that nothing more is concluded.
    fn roomy(&self, capacity: u64) -> bool {
        self.height + self.left + capacity / ROOMY < capacity
    }

    fn queue(&mut self, section: usize, queue: &mut VecDeque<u32>) {
        if !self.queued {
            self.queued = true;
            queue.push_back(section as u32);
        }
    }
}

/// See the [module](self).
pub struct Skyline<'a> {
    problem: &'a Exact,
    pub capacity: u64,
    pub levels: Vec<Level>,
    /// The lowest offset that each block can still have, or has.
    pub low: Vec<u64>,
    pub placed: Vec<bool>,
    /// The number of blocks that are left and alive on both sides of the start of each section.
    pub crossing: Vec<u32>,
    /// The blocks of each section, those that are left first, and their number.
    alive: Vec<Vec<u32>>,
    count: Vec<usize>,
    /// A number for each section's set of blocks that are left and start there.
    starts: Vec<u128>,
    trail: Vec<Change>,
    /// Sections that changed so that something may follow.
    queue: VecDeque<u32>,
    jobs: Vec<Job>,
    ends: Vec<Job>,
    raises: Vec<(u32, u64)>,
    /// The number of blocks that were read in sections.
    pub read: u64,
    /// The number of blocks and sections that were gone through besides: more, the longer lives are.
    pub scanned: u64,
}

impl<'a> Skyline<'a> {
    /// Nothing placed.
    pub fn new(problem: &'a Exact, capacity: u64) -> Self {
        let (blocks, sections) = (problem.size.len(), problem.sections.len());
        let mut skyline = Skyline {
            problem,
            capacity,
            levels: problem.sections.iter().map(|blocks| Level::of(problem, blocks)).collect(),
            low: vec![0; blocks],
            placed: vec![false; blocks],
            crossing: vec![0; sections],
            alive: problem.sections.clone(),
            count: problem.sections.iter().map(Vec::len).collect(),
            starts: vec![0; sections],
            trail: Vec::new(),
            queue: (0..sections as u32).collect(),
            jobs: Vec::new(),
            ends: Vec::new(),
            raises: Vec::new(),
            read: 0,
            scanned: 0,
        };
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
                Change::Height(s, height) => self.levels[s as usize].height = height,
                Change::Resting(s, resting) => self.levels[s as usize].resting = resting,
                Change::Low(b, low) => self.low[b as usize] = low,
                Change::Placed(b) => {
                    self.placed[b as usize] = false;
                    let (from, to) = self.problem.life[b as usize];
                    for s in from..to {
                        self.levels[s].tight = true;
                        self.levels[s].left += self.problem.size[b as usize];
                        self.count[s] += 1;
                    }
                    self.crossing[from + 1..to].iter_mut().for_each(|c| *c += 1);
                    self.starts[from] ^= number(u128::from(b) + 1);
                }
            }
        }
        self.queue.drain(..).for_each(|s| self.levels[s as usize].queued = false);
    }

    /// A number for the blocks that are left over these sections and the heights under them.
    pub fn key(&self, from: usize, to: usize) -> u128 {
        let state = self.levels[from..to].iter().zip(&self.starts[from..to]);
        state.fold((from as u128) << 64 | to as u128, |key, (level, &starts)| {
            number(key ^ u128::from(level.height) ^ starts)
        })
    }

    /// Places a block on a niche.
    pub fn place(&mut self, b: u32, at: u64) {
        let (block, (from, to)) = (b as usize, self.problem.life[b as usize]);
        let size = self.problem.size[block];
        let height = at + size;
        self.trail.push(Change::Placed(b));
        self.placed[block] = true;
        self.low[block] = at;
        for s in from..to {
            self.levels[s].left -= size;
            self.count[s] -= 1;
            let alive = &mut self.alive[s][..=self.count[s]];
            if let Some(here) = alive.iter().rposition(|&o| o == b) {
                alive.swap(here, self.count[s]);
                self.scanned += (self.count[s] - here) as u64;
            }
            self.stack(s, height);
        }
        self.crossing[from + 1..to].iter_mut().for_each(|c| *c -= 1);
        self.starts[from] ^= number(u128::from(b) + 1);
        let problem = self.problem;
        for &other in &problem.meets[block] {
            if self.placed[other as usize] {
                continue;
            }
            self.raise(other, height);
            if self.low[other as usize] == height {
                let (start, end) = problem.life[other as usize];
                self.levels[start.max(from)..end.min(to)].iter_mut().for_each(|s| s.resting += 1);
            }
        }
        self.read += problem.meets[block].len() as u64;
        self.scanned += (to - from) as u64;
    }

    /// Says that nothing lies lower than this in a section.
    pub fn lift(&mut self, section: usize, height: u64) {
        self.stack(section, height);
        for i in 0..self.count[section] {
            let b = self.alive[section][i];
            self.raise(b, height);
            self.levels[section].resting += u32::from(self.low[b as usize] == height);
        }
        self.read += self.count[section] as u64;
    }

    /// Gives a section a height on which nothing rests yet.
    fn stack(&mut self, section: usize, height: u64) {
        let level = &mut self.levels[section];
        self.trail.push(Change::Height(section as u32, level.height));
        self.trail.push(Change::Resting(section as u32, level.resting));
        (level.height, level.resting) = (height, 0);
        level.queue(section, &mut self.queue);
    }

    /// Says that a block does not lie lower than this.
    fn raise(&mut self, b: u32, to: u64) {
        let before = self.low[b as usize];
        if before >= to {
            return;
        }
        let (from, end) = self.problem.life[b as usize];
        let low = match self.problem.align[b as usize] {
            1 => to,
            align => to.next_multiple_of(align),
        };
        self.trail.push(Change::Low(b, before));
        self.low[b as usize] = low;
        self.scanned += (end - from) as u64;
        for (s, level) in (from..end).zip(&mut self.levels[from..end]) {
            let rested = before == level.height;
            if rested {
                self.trail.push(Change::Resting(s as u32, level.resting));
                level.resting -= 1;
            }
            level.tight |= low + level.left > self.capacity;
            if level.tight || rested && level.resting == 0 {
                level.queue(s, &mut self.queue);
            }
        }
    }

    /// Draws all conclusions; the section that cannot be stacked, if there is one.
    pub fn conclude(&mut self) -> Result<(), usize> {
        while let Some(s) = self.queue.pop_front() {
            let s = s as usize;
            let left = self.count[s] > 0;
            let settled = !left || self.settle(s);
            self.levels[s].queued = false;
            if !settled || left && self.levels[s].tight && !self.machine(s) {
                return Err(s);
            }
        }
        Ok(())
    }

    /// Lifts a section on which nothing rests to the lowest of its blocks; whether there is room for them.
    fn settle(&mut self, s: usize) -> bool {
        let Level { mut height, left, resting, .. } = self.levels[s];
        if resting == 0 {
            let low = |&b: &u32| self.low[b as usize];
            height = self.alive(s).iter().map(low).min().unwrap_or(height);
        }
        let fits = height + left <= self.capacity;
        if fits && resting == 0 {
            self.lift(s, height);
        }
        fits
    }

    /// The blocks of a section as jobs on one machine: whether they fit, and which cannot lie under others.
    fn machine(&mut self, s: usize) -> bool {
        if self.levels[s].roomy(self.capacity) {
            return true;
        }
        self.read += self.count[s] as u64;
        let under = self.capacity - self.levels[s].left;
        let mut jobs = std::mem::take(&mut self.jobs);
        self.sort_jobs(s, under, &mut jobs);
        self.levels[s].tight = !jobs.is_empty();
        let mut above = 0;
        let mut fits = jobs.iter().all(|job| {
            above += self.problem.size[(job & 0xFFFF) as usize];
            (job >> 16) + above <= self.capacity
        });
        if fits && !jobs.is_empty() {
            fits = self.lie_above(s, &jobs, under);
        }
        self.jobs = jobs;
        fits
    }

    /// The blocks of a section above `under`, the highest first: they cannot lie under all others. They go last in
    /// `alive` and stay there in this order, which is nearly right the next time.
    fn sort_jobs(&mut self, s: usize, under: u64, jobs: &mut Vec<Job>) {
        let alive = &mut self.alive[s][..self.count[s]];
        jobs.clear();
        jobs.resize(alive.len(), 0);
        let (mut count, mut rest) = (0, 0);
        for i in 0..alive.len() {
            let b = alive[i];
            let low = self.low[b as usize];
            // Both are written, and one stays: which one is hard to guess.
            (jobs[count], alive[rest]) = (low << 16 | Job::from(b), b);
            count += usize::from(low > under);
            rest += usize::from(low <= under);
        }
        jobs.truncate(count);
        for i in 1..count {
            let job = jobs[i];
            let mut at = i;
            while at > 0 && jobs[at - 1] < job {
                jobs[at] = jobs[at - 1];
                at -= 1;
            }
            jobs[at] = job;
            self.scanned += (i - at) as u64;
        }
        alive[rest..].iter_mut().zip(jobs).for_each(|(b, job)| *b = (*job & 0xFFFF) as u32);
    }

    /// What of the others cannot all lie above a block of these is above some offset: the block lies above one of
    /// them. Whether the blocks fit so.
    fn lie_above(&mut self, s: usize, jobs: &[Job], under: u64) -> bool {
        let mut ends = std::mem::take(&mut self.ends);
        let size = |job: Job| self.problem.size[(job & 0xFFFF) as usize];
        ends.clear();
        let end = |&b: &u32| (self.low[b as usize] + self.problem.size[b as usize]) << 16 | u64::from(b);
        ends.extend(self.alive(s).iter().map(end));
        ends.sort_unstable();
        self.raises.clear();
        // From the lowest job up: the ends up to its offset, with their sizes summed up.
        let (mut first, mut sum) = (0, 0);
        for &job in jobs.iter().rev() {
            let (low, b) = (job >> 16, job & 0xFFFF);
            while let Some(&end) = ends.get(first).filter(|&end| end >> 16 <= low) {
                sum += size(end);
                first += 1;
            }
            // Less fills the room under the block than what must lie there.
            let (mut fill, mut to, room) = (sum, low, low - under);
            let mut others = ends[first..].iter().filter(|&end| end & 0xFFFF != b);
            while fill < room
                && let Some(&end) = others.next()
            {
                to = end >> 16;
                self.scanned += 1;
                fill += size(end);
            }
            if to > low {
                self.raises.push((b as u32, to));
            }
        }
        self.ends = ends;
        while let Some((b, to)) = self.raises.pop() {
            if to + self.problem.size[b as usize] > self.capacity {
                return false;
            }
            self.raise(b, to);
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
