//! Recordings of a program whose ports get other bases: the pieces of work that hold pointers to these ports, and the graph
//! nodes that launch them. In an indirect recording, kernels that resolve their pointers hold none, and the nodes that write
//! the table are set in their place.

use super::DeviceProgram;
use super::indirect::IndirectPorts;
use super::item::{Nodes, Place, Ready};
use crate::device::driver::{Graph, Node, Stream};
use crate::device::launch::PortBases;
use crate::device::streams::Streams;
use crate::error::Result;
use crate::nccl::Communicators;

/// How many pieces of work have to be set if the base of a port changes; `None` if they cannot be set.
#[derive(Clone, Copy, Debug)]
pub struct RebaseCost {
    /// In a direct recording.
    pub direct: Option<usize>,
    /// In an indirect one, besides the nodes that write the table.
    pub indirect: Option<usize>,
}

impl DeviceProgram {
    pub fn pieces(&self) -> usize {
        self.pieces
    }

    /// Whether one recording of it can run with these bases and with those, as far as collectives of the library go.
    pub fn serves_both(&self, one: PortBases<'_>, other: PortBases<'_>) -> bool {
        one.changed_ports(other).all(|port| self.uses.places(port).is_some())
    }

    /// What other bases cost, for each port, in recordings whose work became these nodes.
    pub fn rebase_costs(&self, nodes: &Nodes) -> Vec<RebaseCost> {
        let can_be_set = |place: &Place| match (self.work(*place), nodes.of(*place)) {
            (None, _) | (_, []) => false,
            // The libraries launch as many kernels as they like.
            (Some(Ready::Gemm(_) | Ready::Attention(_)), _) => true,
            (Some(_), found) => found.len() == 1,
        };
        let cost = |port: usize| {
            let count =
                |places: Option<&[Place]>| places.filter(|p| p.iter().all(can_be_set)).map(<[Place]>::len);
            RebaseCost {
                direct: count(self.uses.places(port)),
                indirect: count(self.uses.places_by_host(port)),
            }
        };
        (0..self.uses.count()).map(cost).collect()
    }

    /// The pieces of work that hold pointers to ports whose bases differ, in the order of the program.
    fn touched(&self, from: PortBases<'_>, to: PortBases<'_>, is_indirect: bool) -> Vec<Place> {
        let places = |port| match is_indirect {
            true => self.uses.places_by_host(port).unwrap_or_default(),
            false => self.uses.places(port).unwrap_or_default(),
        };
        let mut out: Vec<Place> = from.changed_ports(to).flat_map(places).copied().collect();
        out.sort_unstable();
        out.dedup();
        out
    }

    /// Enqueues one run on streams that are recorded, as [`enqueue`](Self::enqueue), and says which nodes the work with
    /// pointers to ports became. Work that is not a chain of nodes is left out. With `indirect`, kernels that resolve their
    /// pointers find them there.
    pub fn enqueue_noted(
        &self,
        bases: PortBases<'_>,
        mut indirect: Option<&mut IndirectPorts>,
        lanes: &Streams,
        nccl: &Communicators,
    ) -> Result<Nodes> {
        let mut nodes = Nodes::default();
        // Kernels of both streams start after it: the first ones are no dependent launches.
        if let Some(indirect) = &mut indirect {
            indirect.record(bases, &lanes.compute)?;
        }
        self.enqueue_by(lanes, &mut |place, work, stream, start| {
            if work.ports().next().is_none() {
                return self.put(work, bases, stream, start, nccl);
            }
            if let (Ready::Kernel(function, kernel), Some(indirect)) = (work, &indirect)
                && work.resolves_ports()
            {
                // SAFETY: the work was made for memory that the checked plan lays out, or that is bound for it; the table
                // has its pointers and lives as long as the recording.
                return unsafe { stream.launch(*function, &indirect.indirect(kernel), bases, start) };
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
    /// these nodes, and `indirect` if it is an indirect one. Whether it can; if not, some of them may have changed. Work of
    /// libraries is recorded on `scratch`, and not run.
    pub fn rebase(
        &self,
        from: PortBases<'_>,
        to: PortBases<'_>,
        (graph, nodes, indirect): (&Graph, &Nodes, Option<&IndirectPorts>),
        scratch: &Stream,
    ) -> Result<bool> {
        if let Some(indirect) = indirect
            && !indirect.rebase(to, graph)?
        {
            return Ok(false);
        }
        for place in self.touched(from, to, indirect.is_some()) {
            let Some(work) = self.work(place) else { return Ok(false) };
            if !self.set(work, to, graph, nodes.of(place), scratch)? {
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
    ) -> Result<bool> {
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
