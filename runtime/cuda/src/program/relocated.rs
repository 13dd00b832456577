//! A program in other memory than it was made for: the pieces of work that hold addresses of what moved, with those
//! replaced, and the nodes of a recorded graph that launch them.

use super::DeviceProgram;
use super::item::{Item, Nodes, Place, Ready};
use crate::addresses::AddressMap;
use crate::driver::{Graph, Node, Stream};
use crate::error::CudaError;
use crate::launch::Address;
use crate::nccl::Communicators;
use crate::streams::Streams;

impl DeviceProgram {
    /// How many pieces of work it has.
    pub fn pieces(&self) -> usize {
        self.steps.iter().map(|step| step.work.len()).sum()
    }

    /// Whether it knows of any memory that may move.
    pub fn may_move(&self) -> bool {
        self.touching.any()
    }

    /// The pieces of work that hold addresses of what lies elsewhere in `to` than in `from`; `None` if something of that
    /// cannot move.
    pub fn touched(&self, from: &AddressMap, to: &AddressMap) -> Option<Vec<Place>> {
        if (from.ordinary, from.symmetric) != (to.ordinary, to.symmetric) {
            return None;
        }
        let mut out: Vec<Place> = Vec::new();
        for (base, (from, to)) in from.bases().zip(to.bases()).enumerate() {
            if from != to {
                out.extend(self.touching.places(base)?);
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

    /// Puts one run on the streams with inputs and outputs where these addresses say.
    ///
    /// # Errors
    /// The driver refuses a launch, or a library the addresses.
    pub fn enqueue_at(
        &self,
        addresses: &AddressMap,
        lanes: &Streams,
        nccl: &Communicators,
    ) -> Result<(), CudaError> {
        let bases: Vec<Address> = addresses.bases().collect();
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

    /// Has a graph that was recorded with these nodes do pieces of work with inputs and outputs where these addresses say.
    /// Whether it can; if not, some of them may be changed. Work of libraries is recorded on `scratch`, and not run.
    ///
    /// # Errors
    /// The driver refuses parameters, or a library the addresses.
    pub fn relocate(
        &self,
        places: &[Place],
        addresses: &AddressMap,
        (graph, nodes): (&Graph, &Nodes),
        scratch: &Stream,
    ) -> Result<bool, CudaError> {
        let bases: Vec<Address> = addresses.bases().collect();
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
