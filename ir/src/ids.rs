//! The ids of what a graph holds: indices into its tables.

crate::entity!(
    /// A value of a graph: an input or a result of a node.
    ValueId,
    "%v"
);
crate::entity!(
    /// A node of a graph.
    NodeId,
    "n"
);
crate::entity!(
    /// A group of ranks.
    GroupId,
    "@g"
);
crate::entity!(
    /// An input of a graph, in the order in which callers pass them.
    InputId,
    "in"
);
crate::entity!(
    /// A registered custom op.
    CustomId,
    "custom"
);
