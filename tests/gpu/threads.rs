//! Ranks as threads of one process.

use anyhow::{Result, bail};

/// Runs something on a thread for each rank.
pub fn on_ranks(ranks: usize, work: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    std::thread::scope(|scope| {
        let work = &work;
        let ranks: Vec<_> = (0..ranks).map(|rank| scope.spawn(move || work(rank))).collect();
        ranks.into_iter().try_for_each(|rank| rank.join().unwrap_or_else(|_| bail!("a rank panicked")))
    })
}
