//! Live bytes of both arenas during a run of an order, by the model.

use super::model::TaskGraph;

/// Bytes in the ordinary and in the symmetric arena.
pub type ArenaBytes = [u64; 2];

pub fn total_bytes(bytes: ArenaBytes) -> u64 {
    bytes[0].saturating_add(bytes[1])
}

/// The live bytes at a point of a run.
pub struct LiveMemory<'a> {
    tasks: &'a TaskGraph,
    pub live: ArenaBytes,
    /// For each class the number of steps that access it and have not ended.
    pub remaining_users: Vec<u32>,
    /// For each class whether a step that accesses it has begun.
    begun: Vec<bool>,
    /// For each class whether a result was written over it. Its bytes then count for the class of the result.
    gone: Vec<bool>,
}

impl<'a> LiveMemory<'a> {
    /// The state before the first step.
    pub fn new(tasks: &'a TaskGraph) -> Self {
        let classes = tasks.classes.len();
        let remaining_users = (0..classes).map(|c| tasks.users.row(c).len() as u32).collect();
        LiveMemory {
            tasks,
            live: [0; 2],
            remaining_users,
            begun: vec![false; classes],
            gone: vec![false; classes],
        }
    }

    /// Whether no step has accessed the class yet.
    pub fn is_untouched(&self, class: u32) -> bool {
        !self.begun[class as usize]
    }

    pub fn added_bytes(&self, s: usize) -> ArenaBytes {
        let mut bytes: ArenaBytes = [0; 2];
        for &c in self.tasks.touches.row(s) {
            if self.is_untouched(c) {
                let class = &self.tasks.classes[c as usize];
                bytes[class.arena] = bytes[class.arena].saturating_add(class.bytes);
            }
        }
        if let Some(class) = self.overwritten_class(s).map(|c| &self.tasks.classes[c as usize]) {
            bytes[class.arena] = bytes[class.arena].saturating_sub(class.bytes);
        }
        bytes
    }

    /// The class over which the result of `s` is written if `s` runs next.
    pub fn overwritten_class(&self, s: usize) -> Option<u32> {
        let mut classes = self.tasks.over.row(s).iter().copied();
        classes.find(|&c| self.remaining_users[c as usize] == 1 && !self.is_untouched(c))
    }

    /// Runs a step and returns the bytes that are live during it.
    pub fn run(&mut self, s: usize) -> ArenaBytes {
        self.begin_step(s);
        let during = self.live;
        self.end_step(s);
        during
    }

    /// Begins a step. Other steps may run concurrently until it ends ([`Self::end_step`]).
    pub fn begin_step(&mut self, s: usize) {
        if let Some(over) = self.overwritten_class(s) {
            let class = &self.tasks.classes[over as usize];
            self.live[class.arena] = self.live[class.arena].saturating_sub(class.bytes);
            self.gone[over as usize] = true;
        }
        for &c in self.tasks.touches.row(s) {
            let class = &self.tasks.classes[c as usize];
            if !std::mem::replace(&mut self.begun[c as usize], true) {
                self.live[class.arena] = self.live[class.arena].saturating_add(class.bytes);
            }
        }
    }

    /// Ends a step, and frees the classes that no remaining step accesses.
    pub fn end_step(&mut self, s: usize) {
        for &c in self.tasks.touches.row(s) {
            let class = &self.tasks.classes[c as usize];
            self.remaining_users[c as usize] -= 1;
            if self.remaining_users[c as usize] == 0 && !self.gone[c as usize] {
                self.live[class.arena] = self.live[class.arena].saturating_sub(class.bytes);
            }
        }
    }
}

/// The live bytes during each step of an order.
pub fn live_bytes_by_step(tasks: &TaskGraph, order: &[u32]) -> Vec<ArenaBytes> {
    let mut memory = LiveMemory::new(tasks);
    order.iter().map(|&s| memory.run(s as usize)).collect()
}

pub fn peak_bytes(profile: &[ArenaBytes]) -> ArenaBytes {
    profile.iter().fold([0; 2], |m, b| [m[0].max(b[0]), m[1].max(b[1])])
}
