//! What is known of a program before its nodes are divided.

use symmc_ir::layout::{Layout, layouts, view_of};
use symmc_ir::machine::{Capabilities, Profile};
use symmc_ir::{Dim, Form, Graph, Node, NodeId, Op, Table, ValueId, Variant};

/// Addresses that kernels read in accesses of many bytes are multiples of this.
pub const ALIGN: i64 = 16;

pub struct Facts<'a> {
    pub graph: &'a Graph,
    /// The value whose memory each value uses.
    pub base: &'a Table<ValueId, ValueId>,
    pub profile: &'a Profile,
    /// How collectives run that do not say it.
    pub assumed: Option<Variant>,
    /// For each node the last collective that it is or needs.
    pub needs: Table<NodeId, Option<NodeId>>,
    /// Whether a collective reads a value that lies in this one.
    pub communicated: Table<ValueId, bool>,
    pub users: Table<ValueId, Vec<NodeId>>,
    pub returned: Table<ValueId, bool>,
    /// The number of the dispatch of each collective that the program runs as one step with others.
    pub set_of: Table<NodeId, Option<usize>>,
}

/// The value whose memory each value of a program uses that has no copies yet.
pub fn bases(graph: &Graph) -> Table<ValueId, ValueId> {
    layouts(graph).values().map(|layout| layout.base).collect()
}

impl<'a> Facts<'a> {
    pub fn new(graph: &'a Graph, base: &'a Table<ValueId, ValueId>, profile: &'a Profile) -> Self {
        let mut communicated = Table::filled(false, graph.values.len());
        for node in graph.nodes.values().filter(|n| n.op.as_collective().is_some()) {
            node.inputs.iter().for_each(|&v| communicated[base[v]] = true);
        }
        let mut returned = Table::filled(false, graph.values.len());
        graph.outputs.iter().for_each(|o| returned[o.value] = true);
        let mut set_of = Table::filled(None, graph.nodes.len());
        for (set, dispatch) in
            graph.dispatches.iter().enumerate().filter(|(_, d)| d.form == Form::Collectives)
        {
            dispatch.nodes().for_each(|n| set_of[n] = Some(set));
        }
        let (assumed, needs, users) = (None, graph.last_collectives(), graph.users());
        Facts { graph, base, profile, assumed, needs, communicated, users, returned, set_of }
    }

    pub fn capabilities(&self) -> &'a Capabilities {
        &self.profile.dispatches
    }

    pub fn node(&self, id: NodeId) -> &'a Node {
        &self.graph.nodes[id]
    }

    /// Whether a node only gives another view of memory.
    pub fn is_view(&self, id: NodeId) -> bool {
        self.node(id).outputs.iter().all(|&v| self.base[v] != v)
    }

    pub fn source(&self, value: ValueId) -> Option<NodeId> {
        self.graph.def_node(self.base[value])
    }

    pub fn layout(&self, value: ValueId) -> Option<Layout> {
        let graph = self.graph;
        if self.base[value] == value {
            let strides = graph.ty(value).contiguous_strides();
            return Some(Layout { base: value, offset: Dim::from(0), strides });
        }
        let node = self.node(graph.def_node(value)?);
        let x = *node.inputs.first()?;
        view_of(&node.op, &self.layout(x)?, graph.ty(x), graph.ty(value))
    }

    /// Whether a value is one run of elements that starts at a multiple of [`ALIGN`] bytes of its base.
    pub fn is_run(&self, value: ValueId) -> bool {
        let ty = self.graph.ty(value);
        let layout = self.layout(value);
        layout.is_some_and(|l| l.is_contiguous(ty) && self.aligned(&l.offset, value))
    }

    /// Whether a number of elements of a value is a multiple of [`ALIGN`] bytes.
    pub fn aligned(&self, elements: &Dim, value: ValueId) -> bool {
        (elements.clone() * Dim::from(self.graph.ty(value).dtype.size() as i64)).divisible_by(ALIGN)
    }

    /// The least and the most that a dim can be.
    pub fn bounds(&self, dim: &Dim) -> [u64; 2] {
        let (low, high) = dim.bounds(&self.graph.symbols);
        [low, high].map(|n| u64::try_from(n).unwrap_or(0))
    }

    /// What a value was before nodes gave it another shape.
    pub fn unshaped(&self, value: ValueId) -> ValueId {
        let node = self.graph.def_node(value).map(|n| self.node(n));
        match node.map(|n| (&n.op, &n.inputs[..])) {
            Some((Op::Reshape, &[x])) if self.base[value] != value => self.unshaped(x),
            _ => value,
        }
    }

    /// The nodes between a value and what it was before they gave it another shape.
    pub fn reshapes(&self, value: ValueId) -> Vec<NodeId> {
        let mut out = Vec::new();
        let (mut at, first) = (value, self.unshaped(value));
        while at != first {
            let Some(node) = self.graph.def_node(at) else { break };
            out.push(node);
            at = self.node(node).inputs[0];
        }
        out
    }
}
