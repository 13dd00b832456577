//! Changes recordings of a program to other port bases: finds the pieces of work that hold pointers to these
//! ports, and the graph nodes that launch them.

use super::DeviceProgram;
use super::work::{LoadedWork, WorkId, WorkNodes};
use crate::device::driver::{ExecutableGraph, GraphNode, Stream};
use crate::device::launch::PortBases;
use crate::device::streams::LaneStreams;
use crate::error::Result;
use crate::nccl::Communicators;

impl DeviceProgram {
    pub fn pieces(&self) -> usize {
        self.pieces
    }

    /// Whether the library's collectives allow one recording to run with either of these bases.
    pub fn serves_both(&self, one: PortBases<'_>, other: PortBases<'_>) -> bool {
        one.changed_ports(other).all(|port| self.uses.work_ids(port).is_some())
    }

    /// For each port, the number of pieces of work that must be updated for another base, in a recording with
    /// these nodes; `None` if they cannot be updated.
    pub fn rebase_costs(&self, nodes: &WorkNodes) -> Vec<Option<usize>> {
        (0..self.uses.port_count())
            .map(|port| {
                let places = self.uses.work_ids(port)?;
                places.iter().all(|id| self.can_rebase_work(*id, nodes)).then_some(places.len())
            })
            .collect()
    }

    fn can_rebase_work(&self, place: WorkId, nodes: &WorkNodes) -> bool {
        match (self.find_work(place), nodes.nodes_of(place)) {
            (None, _) | (_, []) => false,
            // The libraries launch any number of kernels.
            (Some(LoadedWork::Gemm(_) | LoadedWork::Attention(_)), _) => true,
            (Some(_), recorded) => recorded.len() == 1,
        }
    }

    /// The pieces of work that hold pointers to ports whose bases differ, in program order.
    fn affected_work(&self, from: PortBases<'_>, to: PortBases<'_>) -> Vec<WorkId> {
        let mut out: Vec<WorkId> = from
            .changed_ports(to)
            .flat_map(|port| self.uses.work_ids(port).unwrap_or_default())
            .copied()
            .collect();
        out.sort_unstable();
        out.dedup();
        out
    }

    /// Enqueues one run on streams that are being captured, as [`enqueue`](Self::enqueue), and returns the
    /// nodes of the work that holds pointers to ports. Work that is not a chain of nodes is left out.
    pub fn enqueue_noted(
        &self,
        bases: PortBases<'_>,
        lanes: &LaneStreams,
        nccl: &Communicators,
    ) -> Result<WorkNodes> {
        let mut nodes = WorkNodes::default();
        self.enqueue_with(lanes, &mut |id, work, stream, start| {
            if work.ports().next().is_none() {
                return self.enqueue_work(work, bases, stream, start, nccl);
            }
            let before = stream.frontier()?;
            self.enqueue_work(work, bases, stream, start, nccl)?;
            if let Some(captured) = stream.nodes_since(&before)? {
                nodes.insert(id, &captured);
            }
            Ok(())
        })?;
        Ok(nodes)
    }

    /// Updates the nodes whose work holds pointers to ports with other bases, in a graph that was recorded
    /// with these nodes. Returns `false` if a node cannot be updated; some nodes may then have changed.
    /// Library work is captured on `scratch` and not run.
    pub fn rebase(
        &self,
        from: PortBases<'_>,
        to: PortBases<'_>,
        graph: &ExecutableGraph,
        nodes: &WorkNodes,
        scratch: &Stream,
    ) -> Result<bool> {
        let mut of_libraries = Vec::new();
        for id in self.affected_work(from, to) {
            match self.find_work(id) {
                Some(work @ (LoadedWork::Gemm(_) | LoadedWork::Attention(_))) => {
                    of_libraries.push((id, work))
                }
                Some(work) if update_node(work, to, graph, nodes.nodes_of(id))? => {}
                _ => return Ok(false),
            }
        }
        self.update_library_nodes(&of_libraries, to, graph, nodes, scratch)
    }

    /// Updates nodes of a graph to do this library work with ports at these bases; returns `false` if they
    /// cannot. The libraries do not say what they launch, so all of their work is captured once on `scratch`,
    /// and not run.
    fn update_library_nodes(
        &self,
        all: &[(WorkId, &LoadedWork)],
        bases: PortBases<'_>,
        graph: &ExecutableGraph,
        nodes: &WorkNodes,
        scratch: &Stream,
    ) -> Result<bool> {
        if all.is_empty() {
            return Ok(true);
        }
        let mut recorded = Vec::with_capacity(all.len());
        let _template = scratch.capture_template(|| {
            recorded.clear();
            for (_, work) in all {
                let before = scratch.frontier()?;
                match work {
                    // SAFETY: the work was made for memory that the checked plan lays out, or that is bound for it.
                    LoadedWork::Gemm(gemm) => unsafe { gemm.run(scratch, self.workspace, bases)? },
                    // SAFETY: as above.
                    LoadedWork::Attention(attention) => unsafe { attention.run(scratch, bases)? },
                    _ => {}
                }
                recorded.push(scratch.nodes_since(&before)?);
            }
            Ok(())
        })?;
        for ((id, _), like) in all.iter().zip(recorded) {
            let Some(like) = like else { return Ok(false) };
            // SAFETY: as above; the capture still exists.
            if !unsafe { graph.copy_parameters(nodes.nodes_of(*id), &like)? } {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn find_work(&self, place: WorkId) -> Option<&LoadedWork> {
        self.steps.get(place.step)?.work.get(place.index)
    }
}

/// Updates a node of a graph to do this work (not a library's) with ports at these bases; returns `false` if
/// it cannot.
fn update_node(
    work: &LoadedWork,
    bases: PortBases<'_>,
    graph: &ExecutableGraph,
    nodes: &[GraphNode],
) -> Result<bool> {
    let &[node] = nodes else { return Ok(false) };
    match work {
        // SAFETY: the work was made for memory that the checked plan lays out, or that is bound for it.
        LoadedWork::Kernel(function, kernel) => unsafe { graph.set_kernel(node, *function, kernel, bases)? },
        LoadedWork::Copy { to, from, .. } => {
            // SAFETY: as above.
            unsafe { graph.set_copy(node, to.resolve(bases), from.resolve(bases))? }
        }
        LoadedWork::Zero { at, .. } | LoadedWork::Store { at, .. } => {
            // SAFETY: as above.
            unsafe { graph.set_fill(node, at.resolve(bases))? }
        }
        LoadedWork::Gemm(_) | LoadedWork::Attention(_) | LoadedWork::Nccl(_) => return Ok(false),
    }
    Ok(true)
}
