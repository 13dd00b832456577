//! Facts about a program that are computed before its nodes are divided.

use symmc_ir::layout::{Layout, compute_layouts, view_layout};
use symmc_ir::machine::{DispatchCapabilities, MachineProfile};
use symmc_ir::{CollectiveVariant, Dim, DispatchForm, EntityMap, Graph, Node, NodeId, Op, ValueId};

/// The alignment in bytes of addresses from which kernels read many bytes per access.
pub const WIDE_ACCESS_BYTES: i64 = 16;

pub struct DispatchFacts<'a> {
    pub graph: &'a Graph,
    /// The value whose memory each value uses.
    pub base: &'a EntityMap<ValueId, ValueId>,
    pub profile: &'a MachineProfile,
    /// The variant of collectives that do not have one.
    pub assumed: Option<CollectiveVariant>,
    /// For each node, the last collective that it is or depends on.
    pub last_collectives: EntityMap<NodeId, Option<NodeId>>,
    /// Whether a collective reads a value that lies in this one.
    pub communicated: EntityMap<ValueId, bool>,
    pub users: EntityMap<ValueId, Vec<NodeId>>,
    pub returned: EntityMap<ValueId, bool>,
    /// For each collective that the program runs as one step with others, the number of its dispatch.
    pub set_of: EntityMap<NodeId, Option<usize>>,
}

/// For each value of a program without copies, the value whose memory it uses.
pub fn base_values(graph: &Graph) -> EntityMap<ValueId, ValueId> {
    compute_layouts(graph).values().map(|layout| layout.base).collect()
}

impl<'a> DispatchFacts<'a> {
    pub fn new(graph: &'a Graph, base: &'a EntityMap<ValueId, ValueId>, profile: &'a MachineProfile) -> Self {
        let mut communicated = EntityMap::filled(false, graph.values.len());
        for node in graph.nodes.values().filter(|n| n.op.as_collective().is_some()) {
            node.inputs.iter().for_each(|&v| communicated[base[v]] = true);
        }
        let mut returned = EntityMap::filled(false, graph.values.len());
        graph.outputs.iter().for_each(|o| returned[o.value] = true);
        let mut set_of = EntityMap::filled(None, graph.nodes.len());
        for (set, dispatch) in
            graph.dispatches.iter().enumerate().filter(|(_, d)| d.form == DispatchForm::Collectives)
        {
            dispatch.nodes().for_each(|n| set_of[n] = Some(set));
        }
        DispatchFacts {
            graph,
            base,
            profile,
            assumed: None,
            last_collectives: graph.last_collectives(),
            communicated,
            users: graph.users(),
            returned,
            set_of,
        }
    }

    pub fn capabilities(&self) -> &'a DispatchCapabilities {
        &self.profile.dispatches
    }

    pub fn node(&self, id: NodeId) -> &'a Node {
        &self.graph.nodes[id]
    }

    /// The node that reads a value, if it is the only one and the value is not returned.
    pub fn only_reader(&self, value: ValueId) -> Option<NodeId> {
        match self.users[value][..] {
            [reader] if !self.returned[value] => Some(reader),
            _ => None,
        }
    }

    /// The shape of a node's first result.
    pub fn result_shape(&self, id: NodeId) -> Option<&'a [Dim]> {
        self.node(id).outputs.first().map(|&v| &self.graph.ty(v).shape[..])
    }

    /// Whether a node only gives another view of memory.
    pub fn is_view(&self, id: NodeId) -> bool {
        self.node(id).outputs.iter().all(|&v| self.base[v] != v)
    }

    pub fn defining_node(&self, value: ValueId) -> Option<NodeId> {
        self.graph.defining_node(self.base[value])
    }

    pub fn layout(&self, value: ValueId) -> Option<Layout> {
        let graph = self.graph;
        if self.base[value] == value {
            let strides = graph.ty(value).contiguous_strides();
            return Some(Layout { base: value, offset: Dim::from(0), strides });
        }
        let node = self.node(graph.defining_node(value)?);
        let x = *node.inputs.first()?;
        view_layout(&node.op, &self.layout(x)?, graph.ty(x), graph.ty(value))
    }

    /// Whether a value is contiguous and starts at a multiple of [`WIDE_ACCESS_BYTES`] bytes of its base.
    pub fn is_run(&self, value: ValueId) -> bool {
        let ty = self.graph.ty(value);
        let layout = self.layout(value);
        layout.is_some_and(|l| l.is_contiguous(ty) && self.is_byte_aligned(&l.offset, value))
    }

    /// Whether this many elements of a value are a multiple of [`WIDE_ACCESS_BYTES`] bytes.
    pub fn is_byte_aligned(&self, elements: &Dim, value: ValueId) -> bool {
        (elements.clone() * Dim::from(self.graph.ty(value).dtype.size() as i64))
            .is_divisible_by(WIDE_ACCESS_BYTES)
    }

    /// The least and the greatest value of a dim.
    pub fn bounds(&self, dim: &Dim) -> [u64; 2] {
        let (low, high) = dim.bounds(&self.graph.symbols);
        [low, high].map(|n| u64::try_from(n).unwrap_or(0))
    }

    /// The value before any reshapes.
    pub fn skip_reshapes(&self, value: ValueId) -> ValueId {
        let node = self.graph.defining_node(value).map(|n| self.node(n));
        match node.map(|n| (&n.op, &n.inputs[..])) {
            Some((Op::Reshape, &[x])) if self.base[value] != value => self.skip_reshapes(x),
            _ => value,
        }
    }

    /// The reshapes between a value and the value before them.
    pub fn reshapes(&self, value: ValueId) -> Vec<NodeId> {
        let mut out = Vec::new();
        let first = self.skip_reshapes(value);
        let mut current = value;
        while current != first {
            let Some(node) = self.graph.defining_node(current) else { break };
            out.push(node);
            current = self.node(node).inputs[0];
        }
        out
    }
}
