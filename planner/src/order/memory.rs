//! Live bytes of both arenas while an order runs.

use super::model::Tasks;

/// Bytes in the ordinary and in the symmetric arena.
pub type Bytes = [u64; 2];

pub fn bytes(of: Bytes) -> u64 {
    of[0].saturating_add(of[1])
}

/// Live bytes while an order runs.
pub struct Memory<'a> {
    tasks: &'a Tasks,
    pub live: Bytes,
    /// How many steps have still to end that touch each class.
    pub left: Vec<u32>,
    /// Whether a step that touches each class has begun.
    begun: Vec<bool>,
    /// Whether a result was written over each class, so that its bytes count for that.
    gone: Vec<bool>,
}

impl<'a> Memory<'a> {
    /// Before the first step.
    pub fn new(tasks: &'a Tasks) -> Self {
        let classes = tasks.classes.len();
        let left = (0..classes).map(|c| tasks.users.of(c).len() as u32).collect();
        Memory { tasks, live: [0; 2], left, begun: vec![false; classes], gone: vec![false; classes] }
    }

    /// Whether no step has touched the class yet.
    pub fn is_new(&self, class: u32) -> bool {
        !self.begun[class as usize]
    }

    pub fn added(&self, s: usize) -> Bytes {
        let mut bytes: Bytes = [0; 2];
        for &c in self.tasks.touches.of(s) {
            if self.is_new(c) {
                let class = &self.tasks.classes[c as usize];
                bytes[class.arena] = bytes[class.arena].saturating_add(class.bytes);
            }
        }
        if let Some(class) = self.overwritten(s).map(|c| &self.tasks.classes[c as usize]) {
            bytes[class.arena] = bytes[class.arena].saturating_sub(class.bytes);
        }
        bytes
    }

    /// The class that the result of `s` is written over if `s` runs next.
    pub fn overwritten(&self, s: usize) -> Option<u32> {
        let last = |&&c: &&u32| self.left[c as usize] == 1 && !self.is_new(c);
        self.tasks.over.of(s).iter().find(last).copied()
    }

    /// Runs a step; returns what is live during it.
    pub fn run(&mut self, s: usize) -> Bytes {
        self.begin(s);
        let during = self.live;
        self.end(s);
        during
    }

    /// Begins a step; others may run beside it until it [ends](Self::end).
    pub fn begin(&mut self, s: usize) {
        if let Some(over) = self.overwritten(s) {
            let class = &self.tasks.classes[over as usize];
            self.live[class.arena] = self.live[class.arena].saturating_sub(class.bytes);
            self.gone[over as usize] = true;
        }
        for &c in self.tasks.touches.of(s) {
            let class = &self.tasks.classes[c as usize];
            if !std::mem::replace(&mut self.begun[c as usize], true) {
                self.live[class.arena] = self.live[class.arena].saturating_add(class.bytes);
            }
        }
    }

    /// Ends a step, and with it the classes that no other step touches.
    pub fn end(&mut self, s: usize) {
        for &c in self.tasks.touches.of(s) {
            let class = &self.tasks.classes[c as usize];
            self.left[c as usize] -= 1;
            if self.left[c as usize] == 0 && !self.gone[c as usize] {
                self.live[class.arena] = self.live[class.arena].saturating_sub(class.bytes);
            }
        }
    }
}

/// What is live during each step of an order.
pub fn profile(tasks: &Tasks, order: &[u32]) -> Vec<Bytes> {
    let mut memory = Memory::new(tasks);
    order.iter().map(|&s| memory.run(s as usize)).collect()
}

pub fn peak(profile: &[Bytes]) -> Bytes {
    profile.iter().fold([0; 2], |m, b| [m[0].max(b[0]), m[1].max(b[1])])
}
