//! Weights that came with a program, by rank and name.

use std::sync::Arc;

use indexmap::IndexMap;
use symmc_ir::Tensor;

/// Weights that came with a program.
#[derive(Clone, Debug, Default)]
pub struct Weights {
    /// Their data by source name: those of every rank where a file of each gave the program, else those of the one
    /// that exported it.
    pub ranks: Vec<IndexMap<String, Arc<Tensor>>>,
    /// Those of them that PyTorch calls buffers. Every rank has the same where no file says otherwise.
    pub buffers: Vec<String>,
    /// The names of tensors that have several: tied weights. What gives one of them gives all.
    pub ties: Vec<Vec<String>>,
}

impl Weights {
    /// Those of a rank among so many; `None` where only another rank's may be known.
    pub fn of(&self, rank: u32, ranks: u32) -> Option<&IndexMap<String, Arc<Tensor>>> {
        self.ranks.get(rank as usize).filter(|_| self.ranks.len() == ranks as usize)
    }

    /// The other names of a tensor.
    pub fn tied<'w>(&'w self, source: &'w str) -> impl Iterator<Item = &'w str> {
        let tie = self.ties.iter().find(|names| names.iter().any(|n| n == source));
        tie.into_iter().flatten().map(String::as_str).filter(move |n| *n != source)
    }

    /// A buffer, which every rank has alike.
    pub fn buffer(&self, source: &str) -> Option<&Arc<Tensor>> {
        let known = self.buffers.iter().any(|b| b == source);
        self.ranks.first().filter(|_| known)?.get(source)
    }
}
