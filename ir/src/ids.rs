//! The ids of a graph's entities: indices into the tables of [`Graph`](crate::Graph).

crate::entity!(
    /// A value of a graph: an input or a result of a node.
    ValueId,
    "%v"
);
crate::entity!(NodeId, "n");
crate::entity!(GroupId, "@g");
crate::entity!(
    /// An input of a graph, in the order in which callers pass them.
    InputId,
    "in"
);
crate::entity!(CustomId, "custom");
