//! Ranks as threads of one process.

use std::sync::{Barrier, Mutex, PoisonError};

use anyhow::{Result, bail};
use symmc::unstable::cuda::arena::Exchange;
use symmc_runtime::RunError;

/// Where the threads of all ranks meet.
pub struct Threads {
    said: Mutex<Vec<Vec<u8>>>,
    all: Barrier,
}

/// One of them.
pub struct Rank<'a> {
    threads: &'a Threads,
    /// Which.
    pub number: usize,
}

impl Threads {
    /// For so many ranks.
    pub fn new(ranks: usize) -> Threads {
        Threads { said: Mutex::new(vec![vec![]; ranks]), all: Barrier::new(ranks) }
    }

    /// One of them.
    pub fn rank(&self, number: usize) -> Rank<'_> {
        Rank { threads: self, number }
    }

    fn said<T>(&self, with: impl FnOnce(&mut Vec<Vec<u8>>) -> T) -> T {
        with(&mut self.said.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Exchange for Rank<'_> {
    fn rank(&self) -> u32 {
        self.number as u32
    }

    fn ranks(&self) -> u32 {
        self.threads.said(|said| said.len() as u32)
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, RunError> {
        self.threads.said(|said| said[self.number] = mine.to_vec());
        self.threads.all.wait();
        let all = self.threads.said(|said| said.clone());
        self.threads.all.wait();
        Ok(all)
    }
}

/// Runs something on a thread for each rank.
pub fn on_ranks(ranks: usize, work: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    std::thread::scope(|scope| {
        let work = &work;
        let ranks: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || work(rank))).collect();
        ranks.into_iter().try_for_each(|rank| rank.join().unwrap_or_else(|_| bail!("a rank panicked")))
    })
}
