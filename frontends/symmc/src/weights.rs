//! Weights that came with a program, by rank and name.

use std::sync::Arc;

use indexmap::IndexMap;
use symmc_ir::Tensor;

/// Weights that came with a program, by rank and by the name under which they are stored.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Weights {
    /// The data of each rank, by source name. If only one file gave the program, there is one entry: the rank that exported it.
    pub(crate) ranks: Vec<IndexMap<String, Arc<Tensor>>>,
    /// The weights that PyTorch calls buffers. Every rank has the same value unless a file says otherwise.
    pub(crate) buffers: Vec<String>,
    /// The sets of names of tied weights. A file that gives one of the names gives all.
    pub(crate) ties: Vec<Vec<String>>,
}

impl Weights {
    /// Weights by source name, one item for each rank, or one item for the rank that exported the program.
    pub fn new<N: Into<String>>(
        ranks: impl IntoIterator<Item = impl IntoIterator<Item = (N, Arc<Tensor>)>>,
    ) -> Weights {
        let named = |(name, tensor): (N, Arc<Tensor>)| (name.into(), tensor);
        let ranks = ranks.into_iter().map(|rank| rank.into_iter().map(named).collect());
        Weights { ranks: ranks.collect(), ..Weights::default() }
    }

    /// Sets the names of the weights that PyTorch calls buffers: every rank has the same value of these.
    pub fn with_buffers(self, buffers: impl IntoIterator<Item = impl Into<String>>) -> Weights {
        Weights { buffers: buffers.into_iter().map(Into::into).collect(), ..self }
    }

    /// Sets the names that belong to one tensor (tied weights), one list for each such tensor.
    pub fn with_ties<N: Into<String>>(
        self,
        ties: impl IntoIterator<Item = impl IntoIterator<Item = N>>,
    ) -> Weights {
        let ties = ties.into_iter().map(|names| names.into_iter().map(Into::into).collect());
        Weights { ties: ties.collect(), ..self }
    }

    /// The weight of a rank of `ranks` that is stored under `source`, if it came with the program.
    pub fn get(&self, source: &str, rank: u32, ranks: u32) -> Option<&Arc<Tensor>> {
        self.weights_of_rank(rank, ranks)?.get(source)
    }

    /// The weights of a rank of `ranks`; `None` if only those of another rank may be known.
    pub(crate) fn weights_of_rank(&self, rank: u32, ranks: u32) -> Option<&IndexMap<String, Arc<Tensor>>> {
        self.ranks.get(rank as usize).filter(|_| self.ranks.len() == ranks as usize)
    }

    /// The other names of a tensor.
    pub(crate) fn tied_names<'w>(&'w self, source: &'w str) -> impl Iterator<Item = &'w str> {
        let tie = self.ties.iter().find(|names| names.iter().any(|n| n == source));
        tie.into_iter().flatten().map(String::as_str).filter(move |n| *n != source)
    }

    /// A buffer, which has the same value on every rank.
    pub(crate) fn find_buffer(&self, source: &str) -> Option<&Arc<Tensor>> {
        let is_buffer = self.buffers.iter().any(|b| b == source);
        self.ranks.first().filter(|_| is_buffer)?.get(source)
    }
}
