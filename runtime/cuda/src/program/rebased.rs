//! Recordings of a program whose ports get other bases: the pieces of work that hold pointers to these ports, and the graph
//! nodes that launch them.

use super::DeviceProgram;
use super::item::{Nodes, Place, Ready};
use crate::driver::{Graph, Node, Stream};
use crate::error::CudaError;
use crate::launch::PortBases;
use crate::nccl::Communicators;
use crate::streams::Streams;

impl DeviceProgram {
    /// How many pieces of work it has.
    pub fn pieces(&self) -> usize {
        self.steps.iter().map(|step| step.work.len()).sum()
    }

    /// The pieces of work that hold pointers to ports whose bases differ, in the order of the program; `None` if one of these
    /// ports cannot get another base in a recording.
    pub fn touched(&self, from: PortBases<'_>, to: PortBases<'_>) -> Option<Vec<Place>> {
        let mut out: Vec<Place> = Vec::new();
        for (port, (from, to)) in from.0.iter().zip(to.0).enumerate() {
            if from != to {
                out.extend(self.uses.places(port)?);
            }
        }
        out.sort_unstable();
        out.dedup();
        Some(out)
    }

    /// Enqueues one run on streams that are recorded, as [`enqueue`](Self::enqueue), and says which nodes the work with
    /// pointers to ports became. Work that is not a chain of nodes is left out.
    ///
    /// # Errors
    /// The driver refuses a launch.
    pub fn enqueue_noted(
        &self,
        bases: PortBases<'_>,
        lanes: &Streams,
        nccl: &Communicators,
    ) -> Result<Nodes, CudaError> {
        let mut nodes = Nodes::new();
        self.enqueue_by(lanes, &mut |place, work, stream, start| {
            if work.ports().next().is_none() {
                return self.put(work, bases, stream, start, nccl);
            }
            let before = stream.frontier()?;
            self.put(work, bases, stream, start, nccl)?;
            if let Some(found) = stream.since(&before)? {
                nodes.insert(place, found);
            }
            Ok(())
        })?;
        Ok(nodes)
    }

    /// Whether the pieces of work became nodes whose parameters can be set.
    pub fn has_nodes(&self, places: &[Place], nodes: &Nodes) -> bool {
        places.iter().all(|place| match (self.work(*place), nodes.get(place)) {
            // The libraries launch as many kernels as they like.
            (Some(Ready::Gemm(_) | Ready::Attention(_)), Some(_)) => true,
            (Some(_), Some(found)) => found.len() == 1,
            _ => false,
        })
    }

    /// Sets the parameters of the nodes of these pieces of work in a graph that was recorded with these nodes. Whether it can;
    /// if not, some of them may have changed. Work of libraries is recorded on `scratch`, and not run.
    ///
    /// # Errors
    /// The driver refuses parameters, or a library the addresses.
    pub fn rebase(
        &self,
        places: &[Place],
        bases: PortBases<'_>,
        graph: &Graph,
        nodes: &Nodes,
        scratch: &Stream,
    ) -> Result<bool, CudaError> {
        for place in places {
            let (Some(work), Some(nodes)) = (self.work(*place), nodes.get(place)) else { return Ok(false) };
            if !self.set(work, bases, graph, nodes, scratch)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn work(&self, place: Place) -> Option<&Ready> {
        self.steps.get(place.step)?.work.get(place.number)
    }

    /// Has nodes of a graph do this work with ports at these bases; whether they can.
    fn set(
        &self,
        work: &Ready,
        bases: PortBases<'_>,
        graph: &Graph,
        nodes: &[Node],
        scratch: &Stream,
    ) -> Result<bool, CudaError> {
        match (work, nodes) {
            (Ready::Kernel(function, kernel), &[node]) => {
                // SAFETY: the work was made for memory that the checked plan lays out, or that is bound for it.
                unsafe { graph.set_kernel(node, *function, kernel, bases)? };
                Ok(true)
            }
            (Ready::Copy { to, from, .. }, &[node]) => {
                // SAFETY: as above.
                unsafe { graph.set_copy(node, to.resolve(bases), from.resolve(bases))? };
                Ok(true)
            }
            (Ready::Zero { at, .. } | Ready::Store { at, .. }, &[node]) => {
                // SAFETY: as above.
                unsafe { graph.set_fill(node, at.resolve(bases))? };
                Ok(true)
            }
            (Ready::Gemm(_) | Ready::Attention(_), _) => {
                let mut like = None;
                let _recorded = scratch.record(|| {
                    let before = scratch.frontier()?;
                    match work {
                        // SAFETY: as above.
                        Ready::Gemm(gemm) => unsafe { gemm.run(scratch, self.workspace, bases)? },
                        // SAFETY: as above.
                        Ready::Attention(attention) => unsafe { attention.run(scratch, bases)? },
                        _ => {}
                    }
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
