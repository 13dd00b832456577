//! How many ranks a program has, and who belongs to its groups.
//!
//! A `.pt2` names its groups but not their members. Members come from the options; a group without is the
//! world. Collectives that state a size (`group_size`, a list of splits) fix the size of their group, and
//! with that, for the world, the number of ranks.

use indexmap::IndexMap;
use symmc_ir::Members;

use crate::ImportOptions;
use crate::error::ImportError;
use crate::functionalised;
use crate::schema::{Argument, Node, Program};

/// The number of ranks and the members of each group of the program.
pub(crate) struct Ranks {
    pub ranks: Option<u32>,
    pub groups: IndexMap<String, Members>,
}

/// Who said how many ranks.
struct Source {
    who: String,
    ranks: u32,
}

/// Settles ranks and groups.
pub(crate) fn settle(program: &Program<'_>, options: &ImportOptions) -> Result<Ranks, ImportError> {
    let mut world = options.ranks.map(|ranks| Source { who: "the caller".into(), ranks });
    if options.ranks == Some(0) {
        return Err(ImportError::Group {
            group: "world".into(),
            message: "expected at least 1 rank, found 0".into(),
        });
    }
    for (name, cells) in &options.groups {
        let ranks = partition(name, cells)?;
        agree(
            &mut world,
            "the program",
            Source { who: format!("the members of group `{name}`"), ranks },
            "",
        )?;
    }
    let mut groups = IndexMap::new();
    let target = |n: &Node<'_>| is_collective(functionalised::called(n).unwrap_or(&n.target));
    for node in program.graph_module.graph.nodes.iter().filter(|n| target(n)) {
        let Some(group) = group_name(node) else { continue };
        let cells = options.groups.get(group);
        let members = cells.map_or(Members::World, |c| Members::Cells(c.clone()));
        groups.entry(group.to_string()).or_insert(members);
        let Some(ranks) = stated_size(node) else { continue };
        let source = Source { who: format!("node `{}`", node.name()), ranks };
        match cells {
            Some(cells) => {
                let size = cells.first().map_or(0, |c| c.len() as u32);
                let mut given = Some(Source { who: "its members".into(), ranks: size });
                agree(&mut given, &format!("group `{group}`"), source, "")?;
            }
            None => {
                let hint = format!("; group `{group}` is taken for all ranks as its members are not given");
                agree(&mut world, "the program", source, &hint)?;
            }
        }
    }
    if let Some(name) = options.groups.keys().find(|name| !groups.contains_key(*name)) {
        let known: Vec<&str> = groups.keys().map(String::as_str).collect();
        let known = if known.is_empty() { "none".into() } else { known.join(", ") };
        return Err(ImportError::Group {
            group: name.clone(),
            message: format!("the program has no such group; it has: {known}"),
        });
    }
    Ok(Ranks { ranks: world.map(|s| s.ranks), groups })
}

fn agree(known: &mut Option<Source>, what: &str, new: Source, hint: &str) -> Result<(), ImportError> {
    match known {
        None => *known = Some(new),
        Some(old) if old.ranks == new.ranks => {}
        Some(old) => {
            return Err(ImportError::Ranks {
                what: what.into(),
                first: std::mem::take(&mut old.who),
                first_ranks: old.ranks,
                second: new.who,
                second_ranks: new.ranks,
                hint: hint.into(),
            });
        }
    }
    Ok(())
}

/// The number of ranks that the cells of a group partition.
fn partition(group: &str, cells: &[Vec<u32>]) -> Result<u32, ImportError> {
    let error = |message: String| ImportError::Group { group: group.into(), message };
    let size = cells.first().map_or(0, Vec::len);
    if size == 0 || cells.iter().any(|c| c.len() != size) {
        return Err(error(format!("expected lists of ranks of one length, found {cells:?}")));
    }
    let mut all: Vec<u32> = cells.iter().flatten().copied().collect();
    all.sort_unstable();
    if all.iter().enumerate().any(|(i, &r)| i as u64 != u64::from(r)) {
        return Err(error(format!("expected every rank from 0 to {} once, found {all:?}", all.len() - 1)));
    }
    Ok(all.len() as u32)
}

/// Whether a target communicates.
pub(crate) fn is_collective(target: &str) -> bool {
    ["torch.ops._c10d_functional", "torch.ops.symm_mem.", "torch.ops._dtensor."]
        .iter()
        .any(|p| target.starts_with(p))
}

fn argument<'n, 'p>(node: &'n Node<'p>, names: &[&str]) -> Option<&'n Argument<'p>> {
    node.inputs.iter().find(|i| names.contains(&&*i.name)).map(|i| &i.arg)
}

/// The group that a collective names.
fn group_name<'n>(node: &'n Node<'_>) -> Option<&'n str> {
    match argument(node, &["group_name", "group"]) {
        Some(Argument::String(s)) => Some(s),
        _ => None,
    }
}

/// The size of its group, if a collective states it.
fn stated_size(node: &Node<'_>) -> Option<u32> {
    if let Some(Argument::Int(n)) = argument(node, &["group_size"]) {
        return u32::try_from(*n).ok();
    }
    ["output_split_sizes", "input_split_sizes"].into_iter().find_map(|list| {
        let count = match argument(node, &[list])? {
            Argument::Ints(v) => v.len(),
            Argument::SymInts(v) => v.len(),
            _ => 0,
        };
        (count > 0).then_some(count as u32)
    })
}
