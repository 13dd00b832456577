//! Slices of values that ranks take by their positions in a group.
//!
//! Whatever the notation of the program, a rank's slice of a value is lowered to a `take` with indices per
//! rank, so that ops that write into the slice find these indices. At the end of an import, slices that are
//! equal pieces of an axis, one for each position in the cells of a group, become [`Op::Shard`], which needs
//! no indices. The group is an existing one of the program if the ranks have these positions in it. Otherwise
//! a group is added: any cells with these positions have the same meaning.

use symmc_ir::{Dim, Graph, GroupDef, GroupId, GroupMembers, NodeId, Op};

/// A slice that is the piece of each rank's position.
pub(crate) struct RankShard {
    /// The node that takes the slice from its first operand.
    pub node: NodeId,
    pub axis: usize,
    pub positions: Vec<usize>,
}

/// The positions of ranks whose slices of an axis have these starts and this length. `None` if the slices are
/// not equal pieces of the whole axis. If its extent is symbolic, a rest that is shorter than a piece may belong to
/// no piece.
pub(crate) fn shard_positions(starts: &[Dim], len: &Dim, extent: &Dim) -> Option<Vec<usize>> {
    let ranks = i64::try_from(starts.len()).ok()?;
    let is_symbolic = len.as_const().is_none();
    let divides = |n: i64| {
        len.clone() * Dim::from(n) == *extent || is_symbolic && extent.floor_div(&Dim::from(n)) == *len
    };
    let count = (2..=ranks).find(|&n| divides(n))?;
    let positions = starts.iter().map(|start| {
        let position = (0..count).find(|&p| len.clone() * Dim::from(p) == *start)?;
        usize::try_from(position).ok()
    });
    let positions = positions.collect::<Option<Vec<usize>>>()?;
    let mut ranks_at = vec![0usize; usize::try_from(count).ok()?];
    for &position in &positions {
        ranks_at[position] += 1;
    }
    let are_cells = ranks_at[0] > 0 && ranks_at.iter().all(|&ranks| ranks == ranks_at[0]);
    are_cells.then_some(positions)
}

/// Converts the slices of a finished graph to shards.
pub(crate) fn make_shards(graph: &mut Graph, pieces: Vec<RankShard>) {
    for RankShard { node, axis, positions } in pieces {
        if graph.ranks.and_then(|n| usize::try_from(n).ok()) != Some(positions.len()) {
            continue;
        }
        let group = find_or_add_group(graph, &positions);
        let node = &mut graph.nodes[node];
        if matches!(node.op, Op::Take { .. }) {
            node.op = Op::Shard { axis, group };
            node.inputs.truncate(1);
        }
    }
}

/// Finds or adds a group in which ranks have these positions.
fn find_or_add_group(graph: &mut Graph, positions: &[usize]) -> GroupId {
    if let Some(existing) =
        graph.groups.keys().find(|&g| graph.ranks_within_cells(g).as_deref() == Some(positions))
    {
        return existing;
    }
    let count = positions.iter().max().map_or(1, |p| p + 1);
    let mut cells = vec![vec![0; count]; positions.len() / count];
    let mut counts = vec![0; count];
    for (rank, &p) in positions.iter().enumerate() {
        cells[counts[p]][p] = rank as u32;
        counts[p] += 1;
    }
    let mut names =
        (0..=graph.groups.len()).map(|i| if i == 0 { "shards".to_string() } else { format!("shards.{i}") });
    let name = names.find(|name| graph.groups.values().all(|g| g.name != *name)).unwrap_or_default();
    graph.groups.push(GroupDef { name, members: GroupMembers::Cells(cells) })
}

#[cfg(test)]
mod tests {
    use symmc_ir::SymbolId;
    use symmc_ir::entity::Entity;

    use super::*;

    fn found(starts: &[i64], len: i64, extent: i64) -> Option<Vec<usize>> {
        let starts: Vec<Dim> = starts.iter().map(|&s| Dim::from(s)).collect();
        shard_positions(&starts, &len.into(), &extent.into())
    }

    #[test]
    fn equal_pieces_of_a_whole_axis_have_positions() {
        assert_eq!(found(&[0, 2, 4], 2, 6), Some(vec![0, 1, 2]));
        assert_eq!(found(&[4, 0, 2], 2, 6), Some(vec![2, 0, 1]));
        assert_eq!(found(&[3, 0, 3, 0], 3, 6), Some(vec![1, 0, 1, 0]));
        // Other lengths, a rest, a piece that no rank or too many ranks take, and starts between pieces.
        assert_eq!(found(&[0, 2], 2, 5), None);
        assert_eq!(found(&[0, 2], 2, 6), None);
        assert_eq!(found(&[0, 0, 3], 3, 6), None);
        assert_eq!(found(&[0, 1], 3, 6), None);
        assert_eq!(found(&[0, 0], 6, 6), None);
    }

    #[test]
    fn pieces_of_a_symbolic_axis_may_leave_a_rest() {
        let extent: Dim = SymbolId::new(0).into();
        let len = extent.floor_div(&3.into());
        let starts = |places: &[i64]| places.iter().map(|&p| len.clone() * Dim::from(p)).collect::<Vec<_>>();
        assert_eq!(shard_positions(&starts(&[0, 1, 2]), &len, &extent), Some(vec![0, 1, 2]));
        assert_eq!(shard_positions(&starts(&[0, 1]), &len, &extent), None);
        assert_eq!(shard_positions(&starts(&[0, 1, 3]), &len, &extent), None);
    }

    #[test]
    fn groups_have_the_positions() {
        let mut graph = Graph::new("g");
        graph.ranks = Some(4);
        let world = graph.groups.push(GroupDef { name: "shards".into(), members: GroupMembers::World });
        assert_eq!(find_or_add_group(&mut graph, &[0, 1, 2, 3]), world);
        for positions in [[3, 1, 0, 2], [1, 0, 0, 1], [0, 0, 1, 1]] {
            let group = find_or_add_group(&mut graph, &positions);
            assert_eq!(graph.ranks_within_cells(group).as_deref(), Some(&positions[..]));
            assert_eq!(find_or_add_group(&mut graph, &positions), group);
        }
        let names: Vec<&str> = graph.groups.values().map(|g| g.name.as_str()).collect();
        assert_eq!(names, ["shards", "shards.1", "shards.2", "shards.3"]);
    }
}
