//! A program in other memory than it was made for: the pieces of work that hold addresses of what moved, with those
//! replaced, and the nodes of a recorded graph that launch them.

use std::collections::HashMap;

use super::{Item, Program, Ready, Step, Streams};
use crate::driver::{Graph, Node, Stream};
use crate::error::CudaError;
use crate::homes::Homes;
use crate::launch::Address;
use crate::nccl::Communicators;
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

/// The pieces of work that hold addresses of each base; `None` for those that cannot move.
pub(super) struct Touching(Vec<Option<Vec<Place>>>);

impl Touching {
    /// Of a program with these bases that cannot move; all cannot without.
    pub fn of(steps: &[Step], fixed: Option<Vec<bool>>) -> Touching {
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

impl Item {
    /// The same with its addresses in memory that begins at these bases.
    fn at(&self, bases: &[Address]) -> Result<Ready, CudaError> {
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

impl Program {
    /// How many pieces of work it has.
    pub fn pieces(&self) -> usize {
        self.steps.iter().map(|step| step.work.len()).sum()
    }

    /// Whether it knows of any memory that may move.
    pub fn may_move(&self) -> bool {
        self.touching.0.iter().any(Option::is_some)
    }

    /// The pieces of work that hold addresses of what lies elsewhere in `to` than in `from`; `None` if something of that
    /// cannot move.
    pub fn touched(&self, from: &Homes, to: &Homes) -> Option<Vec<Place>> {
        if (from.ordinary, from.symmetric) != (to.ordinary, to.symmetric) {
            return None;
        }
        let mut out: Vec<Place> = Vec::new();
        for (base, (from, to)) in from.bases().zip(to.bases()).enumerate() {
            if from != to {
                out.extend(self.touching.0.get(base)?.as_ref()?);
            }
        }
        out.sort_unstable();
        out.dedup();
        Some(out)
    }

    /// Puts one run on the streams as [`enqueue`](Self::enqueue) does, which are recorded, and says which nodes became of
    /// what may move. What is no chain of nodes is left out.
    ///
    /// # Errors
    /// The driver refuses a launch.
    pub fn enqueue_noted(&self, lanes: &Streams, nccl: &Communicators) -> Result<Nodes, CudaError> {
        let mut nodes = Nodes::new();
        self.enqueue_by(lanes, &mut |place, item, stream, start| {
            if item.relocations.is_empty() {
                return self.put(&item.ready, stream, start, nccl);
            }
            let before = stream.frontier()?;
            self.put(&item.ready, stream, start, nccl)?;
            if let Some(found) = stream.since(&before)? {
                nodes.insert(place, found);
            }
            Ok(())
        })?;
        Ok(nodes)
    }

    /// Puts one run on the streams with inputs and outputs where these homes say.
    ///
    /// # Errors
    /// The driver refuses a launch, or a library the addresses.
    pub fn enqueue_at(&self, homes: &Homes, lanes: &Streams, nccl: &Communicators) -> Result<(), CudaError> {
        let bases: Vec<Address> = homes.bases().collect();
        self.enqueue_by(lanes, &mut |_, item, stream, start| match item.relocations.is_empty() {
            true => self.put(&item.ready, stream, start, nccl),
            false => self.put(&item.at(&bases)?, stream, start, nccl),
        })
    }

    /// Whether pieces of work became nodes whose parameters can be set.
    pub fn has_nodes(&self, places: &[Place], nodes: &Nodes) -> bool {
        let alone = |item: &Item| !matches!(item.ready, Ready::Gemm(_) | Ready::Attention(_));
        let item = |place: &Place| self.steps.get(place.step)?.work.get(place.number);
        let has = |place| Some(!alone(item(place)?) || nodes.get(place)?.len() == 1);
        places.iter().all(|place| nodes.contains_key(place) && has(place) == Some(true))
    }

    /// Has a graph that was recorded with these nodes do pieces of work with inputs and outputs where these homes say.
    /// Whether it can; if not, some of them may be changed. Work of libraries is recorded on `scratch`, and not run.
    ///
    /// # Errors
    /// The driver refuses parameters, or a library the addresses.
    pub fn relocate(
        &self,
        places: &[Place],
        homes: &Homes,
        (graph, nodes): (&Graph, &Nodes),
        scratch: &Stream,
    ) -> Result<bool, CudaError> {
        let bases: Vec<Address> = homes.bases().collect();
        for place in places {
            let item = self.steps.get(place.step).and_then(|step| step.work.get(place.number));
            let (Some(item), Some(nodes)) = (item, nodes.get(place)) else { return Ok(false) };
            if !self.set(&item.at(&bases)?, (graph, nodes), scratch)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Has nodes of a graph do this work; whether they can.
    fn set(
        &self,
        work: &Ready,
        (graph, nodes): (&Graph, &[Node]),
        scratch: &Stream,
    ) -> Result<bool, CudaError> {
        let put = || match work {
            // SAFETY: the work was made for memory that the checked plan lays out, or that is lent for it.
            Ready::Gemm(gemm) => unsafe { gemm.run(scratch, self.workspace) },
            // SAFETY: as above.
            Ready::Attention(attention) => unsafe { attention.run(scratch) },
            _ => Ok(()),
        };
        match (work, nodes) {
            (Ready::Kernel(function, kernel), &[node]) => {
                // SAFETY: as above.
                unsafe { graph.set_kernel(node, *function, kernel)? };
                Ok(true)
            }
            (&Ready::Copy { to, from, .. }, &[node]) => {
                // SAFETY: as above.
                unsafe { graph.set_copy(node, to, from)? };
                Ok(true)
            }
            (&(Ready::Zero { at, .. } | Ready::Store { at, .. }), &[node]) => {
                // SAFETY: as above.
                unsafe { graph.set_fill(node, at)? };
                Ok(true)
            }
            (Ready::Gemm(_) | Ready::Attention(_), _) => {
                let mut like = None;
                let _recorded = scratch.record(|| {
                    let before = scratch.frontier()?;
                    put()?;
                    like = scratch.since(&before)?;
                    Ok(())
                })?;
                // SAFETY: as above; what was recorded is still there.
                like.map_or(Ok(false), |like| unsafe { graph.set_as(nodes, &like) })
            }
            _ => Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::{Kernel, Param};

    fn kernel(words: &[u64]) -> Kernel {
        let params = words.iter().map(|&w| Param::from(w)).collect();
        Kernel { entry: "k".into(), grid: [1; 3], block: [1; 3], cluster: 1, shared: 0, params }
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
