//! Recordings of a program whose ports get other bases: the pieces of work that hold pointers to these ports, and the graph
//! nodes that launch them.

use super::DeviceProgram;
use super::item::{Nodes, Place, Ready};
use crate::device::driver::{Graph, Node, Stream};
use crate::device::launch::PortBases;
use crate::device::streams::Streams;
use crate::error::Result;
use crate::nccl::Communicators;

impl DeviceProgram {
    pub fn pieces(&self) -> usize {
        self.pieces
    }

    /// Whether one recording of it can run with these bases and with those, as far as collectives of the library go.
    pub fn serves_both(&self, one: PortBases<'_>, other: PortBases<'_>) -> bool {
        one.changed_ports(other).all(|port| self.uses.places(port).is_some())
    }

    /// For each port how many pieces of work have to be set for another base, in a recording with these nodes; `None` if they
    /// cannot be set.
    pub fn rebase_costs(&self, nodes: &Nodes) -> Vec<Option<usize>> {
        let can_be_set = |place: &Place| match (self.work(*place), nodes.of(*place)) {
            (None, _) | (_, []) => false,
            // The libraries launch as many kernels as they like.
            (Some(Ready::Gemm(_) | Ready::Attention(_)), _) => true,
            (Some(_), found) => found.len() == 1,
        };
        let cost = |port: usize| {
            let places = self.uses.places(port)?;
            places.iter().all(can_be_set).then_some(places.len())
        };
        (0..self.uses.count()).map(cost).collect()
    }

    /// The pieces of work that hold pointers to ports whose bases differ, in the order of the program.
    fn touched(&self, from: PortBases<'_>, to: PortBases<'_>) -> Vec<Place> {
        let places = |port| self.uses.places(port).unwrap_or_default();
        let mut out: Vec<Place> = from.changed_ports(to).flat_map(places).copied().collect();
        out.sort_unstable();
        out.dedup();
        out
    }

    /// Enqueues one run on streams that are recorded, as [`enqueue`](Self::enqueue), and says which nodes the work with
    /// pointers to ports became. Work that is not a chain of nodes is left out.
    pub fn enqueue_noted(
        &self,
        bases: PortBases<'_>,
        lanes: &Streams,
        nccl: &Communicators,
    ) -> Result<Nodes> {
        let mut nodes = Nodes::default();
        self.enqueue_by(lanes, &mut |place, work, stream, start| {
            if work.ports().next().is_none() {
                return self.put(work, bases, stream, start, nccl);
            }
            let before = stream.frontier()?;
            self.put(work, bases, stream, start, nccl)?;
            if let Some(found) = stream.since(&before)? {
                nodes.insert(place, &found);
            }
            Ok(())
        })?;
        Ok(nodes)
    }

    /// Sets the parameters of the nodes whose work holds pointers to ports with other bases, in a graph that was recorded with
    /// these nodes. Whether it can; if not, some of them may have changed. Work of libraries is recorded on `scratch`, and not
    /// run.
    pub fn rebase(
        &self,
        from: PortBases<'_>,
        to: PortBases<'_>,
        graph: &Graph,
        nodes: &Nodes,
        scratch: &Stream,
    ) -> Result<bool> {
        let mut of_libraries = Vec::new();
        for place in self.touched(from, to) {
            match self.work(place) {
                Some(work @ (Ready::Gemm(_) | Ready::Attention(_))) => of_libraries.push((place, work)),
                Some(work) if set(work, to, graph, nodes.of(place))? => {}
                _ => return Ok(false),
            }
        }
        self.set_as_recorded(&of_libraries, to, (graph, nodes), scratch)
    }

    /// Has nodes of a graph do this work of libraries with ports at these bases; whether they can. The libraries do not say
    /// what they launch, so all of it is recorded once on `scratch`, and not run.
    fn set_as_recorded(
        &self,
        all: &[(Place, &Ready)],
        bases: PortBases<'_>,
        (graph, nodes): (&Graph, &Nodes),
        scratch: &Stream,
    ) -> Result<bool> {
        if all.is_empty() {
            return Ok(true);
        }
        let mut recorded = Vec::with_capacity(all.len());
        let _template = scratch.record(|| {
            recorded.clear();
            for (_, work) in all {
                let before = scratch.frontier()?;
                match work {
                    // SAFETY: the work was made for memory that the checked plan lays out, or that is bound for it.
                    Ready::Gemm(gemm) => unsafe { gemm.run(scratch, self.workspace, bases)? },
                    // SAFETY: as above.
                    Ready::Attention(attention) => unsafe { attention.run(scratch, bases)? },
                    _ => {}
                }
                recorded.push(scratch.since(&before)?);
            }
            Ok(())
        })?;
        for ((place, _), like) in all.iter().zip(recorded) {
            let Some(like) = like else { return Ok(false) };
            // SAFETY: as above; what was recorded is still there.
            if !unsafe { graph.set_as(nodes.of(*place), &like)? } {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn work(&self, place: Place) -> Option<&Ready> {
        self.steps.get(place.step)?.work.get(place.number)
    }
}

/// Has nodes of a graph do this work, which is not a library's, with ports at these bases; whether they can.
fn set(work: &Ready, bases: PortBases<'_>, graph: &Graph, nodes: &[Node]) -> Result<bool> {
    let &[node] = nodes else { return Ok(false) };
    match work {
        // SAFETY: the work was made for memory that the checked plan lays out, or that is bound for it.
        Ready::Kernel(function, kernel) => unsafe { graph.set_kernel(node, *function, kernel, bases)? },
        Ready::Copy { to, from, .. } => {
            // SAFETY: as above.
            unsafe { graph.set_copy(node, to.resolve(bases), from.resolve(bases))? }
        }
        Ready::Zero { at, .. } | Ready::Store { at, .. } => {
            // SAFETY: as above.
            unsafe { graph.set_fill(node, at.resolve(bases))? }
        }
        Ready::Gemm(_) | Ready::Attention(_) | Ready::Nccl(_) => return Ok(false),
    }
    Ok(true)
}
