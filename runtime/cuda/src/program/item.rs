//! Pieces of work with everything looked up, and which of their words are addresses of memory that may move.

use std::collections::HashMap;

use crate::compute::gemm::Prepared;
use crate::cudnn;
use crate::driver::{Function, Node};
use crate::error::CudaError;
use crate::launch::{Address, Kernel, Start};
use crate::nccl::call::NcclCall;
use crate::order::StreamStep;
use crate::relocation::{Addresses, Relocation, count, relocate};

/// A piece of work: which of which step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place {
    /// The step.
    pub step: usize,
    /// Its number among the work of the step.
    pub number: usize,
}

/// The nodes that pieces of work became, of those that hold addresses of memory that may move.
pub type Nodes = HashMap<Place, Vec<Node>>;

/// A step with everything looked up, its kernels loaded.
pub(super) struct LoadedStep {
    pub on: StreamStep,
    pub work: Vec<Item>,
}

/// A piece of work, and which of its words are addresses of memory that may move.
pub(super) struct Item {
    pub ready: Ready,
    pub relocations: Box<[Relocation]>,
}

pub(super) enum Ready {
    Kernel(Function, Kernel),
    Gemm(Prepared),
    Attention(cudnn::Prepared),
    Copy { to: u64, from: u64, bytes: usize },
    Store { at: u64, word: u32 },
    Zero { at: u64, bytes: usize },
    Nccl(NcclCall),
}

impl Ready {
    /// When a kernel behind this in its stream may start: by PDL only behind kernels that let it.
    pub fn next(&self) -> Start {
        match self {
            // The library's attention lets it when it ends.
            Ready::Kernel(..) | Ready::Attention(_) => Start::Dependent,
            Ready::Gemm(_)
            | Ready::Copy { .. }
            | Ready::Store { .. }
            | Ready::Zero { .. }
            | Ready::Nccl(_) => Start::After,
        }
    }
}

impl Item {
    /// The same with its addresses in memory that begins at these bases.
    pub fn at(&self, bases: &[Address]) -> Result<Ready, CudaError> {
        let found = &self.relocations;
        Ok(match &self.ready {
            Ready::Kernel(function, kernel) => {
                let mut kernel = kernel.clone();
                relocate(&mut kernel, found, bases);
                Ready::Kernel(*function, kernel)
            }
            Ready::Gemm(prepared) => {
                let mut gemm = prepared.gemm();
                relocate(&mut gemm, found, bases);
                Ready::Gemm(prepared.at([gemm.a.at, gemm.b.at, gemm.c.at]))
            }
            Ready::Attention(prepared) => {
                let mut attention = *prepared.attention();
                relocate(&mut attention, found, bases);
                Ready::Attention(prepared.at(&attention)?)
            }
            Ready::Nccl(call) => {
                let mut call = call.clone();
                relocate(&mut call, found, bases);
                Ready::Nccl(call)
            }
            &Ready::Copy { to, from, bytes } => {
                let mut ends = [to, from];
                relocate(&mut ends, found, bases);
                let [to, from] = ends;
                Ready::Copy { to, from, bytes }
            }
            &Ready::Store { at, word } => {
                let mut at = [at];
                relocate(&mut at, found, bases);
                Ready::Store { at: at[0], word }
            }
            &Ready::Zero { at, bytes } => {
                let mut at = [at];
                relocate(&mut at, found, bases);
                Ready::Zero { at: at[0], bytes }
            }
        })
    }
}

/// The pieces of work that hold addresses of each base; `None` for those that cannot move.
pub(super) struct Touching(Vec<Option<Vec<Place>>>);

impl Touching {
    /// Of a program with these bases that cannot move; all cannot without.
    pub fn of(steps: &[LoadedStep], fixed: Option<Vec<bool>>) -> Touching {
        let free = |fixed: bool| if fixed { None } else { Some(Vec::new()) };
        let mut out: Vec<Option<Vec<Place>>> = fixed.into_iter().flatten().map(free).collect();
        for (step, work) in steps.iter().enumerate() {
            for (number, item) in work.work.iter().enumerate() {
                for base in item.relocations.iter().map(|r| r.base as usize) {
                    if let Some(Some(places)) = out.get_mut(base)
                        && places.last() != Some(&Place { step, number })
                    {
                        places.push(Place { step, number });
                    }
                }
            }
        }
        Touching(out)
    }

    /// Whether any memory may move.
    pub fn any(&self) -> bool {
        self.0.iter().any(Option::is_some)
    }

    /// Those that hold addresses of a base; `None` if it cannot move.
    pub fn places(&self, base: usize) -> Option<&[Place]> {
        self.0.get(base)?.as_deref()
    }
}

/// Relocations of what becomes several pieces of work, in their order.
pub(super) struct Split<'r> {
    left: &'r [Relocation],
    /// The words in front of the next piece.
    words: u32,
}

impl<'r> Split<'r> {
    pub fn of(all: &'r [Relocation]) -> Split<'r> {
        Split { left: all, words: 0 }
    }

    /// Those of the next piece.
    pub fn next(&mut self, piece: &mut impl Addresses) -> Box<[Relocation]> {
        let (start, end) = (self.words, self.words + count(piece));
        let (own, left) = self.left.split_at(self.left.partition_point(|r| r.word < end));
        (self.left, self.words) = (left, end);
        own.iter().map(|r| Relocation { word: r.word - start, ..*r }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::Param;

    fn kernel(words: &[u64]) -> Kernel {
        let params = words.iter().map(|&w| Param::from(w)).collect();
        Kernel::flat("k".into(), 1, 1, params)
    }

    #[test]
    fn each_piece_gets_the_words_that_are_its_own() {
        let relocation = |word| Relocation { word, base: word, addend: 0 };
        let all: Vec<Relocation> = [0, 2, 3, 5].map(relocation).into();
        let mut split = Split::of(&all);
        let words = |found: Box<[Relocation]>| found.iter().map(|r| (r.word, r.base)).collect::<Vec<_>>();
        assert_eq!(words(split.next(&mut kernel(&[0; 2]))), [(0, 0)]);
        assert_eq!(words(split.next(&mut kernel(&[]))), []);
        assert_eq!(words(split.next(&mut kernel(&[0; 2]))), [(0, 2), (1, 3)]);
        assert_eq!(words(split.next(&mut kernel(&[0; 3]))), [(1, 5)]);
    }
}
