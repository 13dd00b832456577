//! How many ranks a program has. ONNX Runtime's collectives state it (`group_size`), and there is one file for each
//! rank.

use crate::error::Reason;
use crate::ops::{MICROSOFT, normalised};
use crate::proto;

/// The collectives, whose groups are all ranks.
const COLLECTIVES: [&str; 3] = ["AllReduce", "AllGather", "AllToAll"];

/// The number of ranks, from what the caller says, the number of files, and all collectives of the program; it stays
/// open only where those do not state it.
pub(crate) fn settle(model: &proto::Model, asked: Option<u32>, files: usize) -> Result<Option<u32>, Reason> {
    let mut known: Option<(String, u32)> = asked.map(|ranks| ("the caller says".into(), ranks));
    if asked == Some(0) {
        return Err(Reason::Ranks("expected at least 1 rank, found 0".into()));
    }
    let mut communicates = false;
    let graph = model.graph.iter().flat_map(|g| &g.node);
    for node in graph.chain(model.functions.iter().flat_map(|f| &f.node)) {
        if normalised(&node.domain) != MICROSOFT || !COLLECTIVES.contains(&node.op_type.as_str()) {
            continue;
        }
        communicates = true;
        let Some(size) = node.attribute.iter().find(|a| a.name == "group_size") else { continue };
        let name = crate::lower::label(node);
        let ranks = u32::try_from(size.i).ok().filter(|n| *n > 0).ok_or_else(|| {
            Reason::Ranks(format!("node `{name}`: expected a group_size of at least 1, found {}", size.i))
        })?;
        let who = format!("the group_size of node `{name}` is");
        match &known {
            None => known = Some((who, ranks)),
            Some((_, first)) if *first == ranks => {}
            Some((first_who, first)) => {
                return Err(Reason::Ranks(format!(
                    "the number of ranks: {first_who} {first}, {who} {ranks}"
                )));
            }
        }
    }
    match (files, known) {
        (1, None) if !communicates => Ok(Some(1)),
        (1, known) => Ok(known.map(|(_, ranks)| ranks)),
        (n, None) => Ok(u32::try_from(n).ok()),
        (n, Some((_, ranks))) if n as u64 == u64::from(ranks) => Ok(Some(ranks)),
        (n, Some((who, ranks))) => Err(Reason::Ranks(format!(
            "expected {ranks} files, one for each rank, as {who} {ranks}; found {n}"
        ))),
    }
}
