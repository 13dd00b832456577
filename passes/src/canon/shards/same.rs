//! Values that are the same on all ranks of each cell of a group, bit for bit.

use symmc_ir::{Graph, GroupId, Replication, Table, ValueId};

/// Which values are the same on all ranks of each cell of a group.
pub fn same_values(graph: &Graph, group: GroupId) -> Table<ValueId, bool> {
    let cells = graph.cells(group);
    let same = |known: &Replication| cells.as_ref().is_some_and(|cells| known.holds_within(cells));
    Replication::of_graph(graph).values().map(same).collect()
}
