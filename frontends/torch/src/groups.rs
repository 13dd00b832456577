//! The number of ranks of a program, and the members of its groups.
//!
//! A `.pt2` names its groups but does not list their members. They are known from the options, from the name
//! (PyTorch's name for the group of all ranks), or from a size that collectives state (`group_size`, a list
//! of splits) if it equals the number of ranks. A group without any of these is an error; it is never assumed
//! to be all ranks.

use indexmap::IndexMap;
use symmc_ir::GroupMembers;

use crate::definition::OpDefinitions;
use crate::effects;
use crate::error::{ImportError, Result, UndescribedGroup};
use crate::options::ImportOptions;
use crate::per_rank::{PerRankArgument, PerRankNumbers};
use crate::schema::{Argument, ExportedGraph, ExportedNode, ExportedProgram};

/// PyTorch's name of the default group of all ranks. PyTorch numbers groups in the order of their creation.
const DEFAULT: &str = "0";

pub(crate) struct ResolvedGroups {
    pub ranks: Option<u32>,
    /// Whether [`ImportOptions::assumed_ranks`] gave the number of ranks.
    pub assumed: bool,
    pub groups: IndexMap<String, GroupMembers>,
    /// Remarks for the user about the groups.
    pub notes: Vec<String>,
}

/// A number of ranks and its source.
struct RankCountSource {
    source: String,
    ranks: u32,
}

#[derive(Default)]
struct GroupUse {
    nodes: Vec<String>,
    size: Option<RankCountSource>,
}

pub(crate) fn resolve_groups(
    program: &ExportedProgram<'_>,
    definitions: &OpDefinitions,
    options: &ImportOptions,
) -> Result<ResolvedGroups> {
    let mut world = options.ranks.map(|ranks| RankCountSource { source: "the caller".into(), ranks });
    if options.ranks == Some(0) {
        return Err(ImportError::Group {
            group: "world".into(),
            message: "expected at least 1 rank, found 0".into(),
        });
    }
    for (name, cells) in &options.groups {
        let source = format!("the list of members of group `{name}`");
        let ranks = check_partition(name, cells)?;
        merge_rank_count(&mut world, "the program", RankCountSource { source, ranks }, "")?;
    }
    let mut uses = IndexMap::new();
    collect_group_uses(&program.graph_module.graph, definitions, &mut uses)?;
    if let Some(name) = options.groups.keys().find(|name| !uses.contains_key(*name)) {
        let group_names: Vec<&str> = uses.keys().map(String::as_str).collect();
        let group_names = if group_names.is_empty() { "none".into() } else { group_names.join(", ") };
        return Err(ImportError::Group {
            group: name.clone(),
            message: format!("the program has no such group; it has: {group_names}"),
        });
    }
    for (name, used) in &mut uses {
        let Some(RankCountSource { source, ranks }) = &used.size else { continue };
        let stated = RankCountSource { source: source.clone(), ranks: *ranks };
        match options.groups.get(name) {
            Some(cells) => {
                let size = cells.first().map_or(0, |c| c.len() as u32);
                let mut member_count =
                    Some(RankCountSource { source: "the list of its members".into(), ranks: size });
                merge_rank_count(&mut member_count, &format!("group `{name}`"), stated, "")?;
            }
            None if name == DEFAULT => {
                let hint = format!("; group `{name}` is PyTorch's name for all ranks");
                merge_rank_count(&mut world, "the program", stated, &hint)?;
            }
            None => {}
        }
    }
    let stated_ranks = world.map(|s| s.ranks);
    let ranks = stated_ranks.or(options.assumed_ranks);
    let (groups, notes) = resolve_members(uses, ranks, options)?;
    Ok(ResolvedGroups { ranks, assumed: stated_ranks.is_none() && ranks.is_some(), groups, notes })
}

/// The members of the groups that a program uses, and remarks for the user about them.
fn resolve_members(
    uses: IndexMap<String, GroupUse>,
    ranks: Option<u32>,
    options: &ImportOptions,
) -> Result<(IndexMap<String, GroupMembers>, Vec<String>)> {
    let mut groups = IndexMap::new();
    let mut notes = Vec::new();
    let mut undescribed = Vec::new();
    for (name, used) in uses {
        let size = used.size.map(|s| s.ranks);
        let members = match options.groups.get(&name) {
            Some(cells) => GroupMembers::Cells(cells.clone()),
            None if name == DEFAULT || ranks == Some(1) => GroupMembers::World,
            None if size.is_some() && size == ranks => {
                notes.push(format!(
                    "group `{name}` has as many ranks as the program: assuming all ranks in ascending order; give its \
                     members if they have another order"
                ));
                GroupMembers::World
            }
            None => {
                undescribed.push(UndescribedGroup { name, size, nodes: used.nodes });
                continue;
            }
        };
        groups.insert(name, members);
    }
    if !undescribed.is_empty() {
        return Err(ImportError::Undescribed { groups: undescribed, ranks });
    }
    Ok((groups, notes))
}

/// Collects the groups that the nodes of a graph use, including those of wrapped graphs.
fn collect_group_uses(
    graph: &ExportedGraph<'_>,
    definitions: &OpDefinitions,
    uses: &mut IndexMap<String, GroupUse>,
) -> Result<()> {
    for node in &graph.nodes {
        for input in &node.inputs {
            if let Argument::Graph(inner) = &input.arg {
                collect_group_uses(inner, definitions, uses)?;
            }
        }
        let target = effects::functionalized_op(node).unwrap_or(&node.target);
        if definitions.find(target).is_some() {
            for group in definitions.group_names(target, node) {
                uses.entry(group).or_default().nodes.push(node.name().to_string());
            }
            continue;
        }
        let Some(group) = group_name(node).filter(|_| is_collective(target)) else {
            continue;
        };
        let used = uses.entry(group.to_string()).or_default();
        used.nodes.push(node.name().to_string());
        if let Some(ranks) = stated_size(node) {
            let source = format!("node `{}`", node.name());
            let group = format!("group `{group}`");
            merge_rank_count(&mut used.size, &group, RankCountSource { source, ranks }, "")?;
        }
    }
    Ok(())
}

/// The error for a number of archives that is not the caller's number of ranks.
pub(crate) fn rank_count_mismatch(requested: u32, archives: u32) -> ImportError {
    ImportError::Ranks {
        what: "the program".into(),
        first: "the caller".into(),
        first_ranks: requested,
        second: "the number of archives".into(),
        second_ranks: archives,
        hint: String::new(),
    }
}

fn merge_rank_count(
    count: &mut Option<RankCountSource>,
    what: &str,
    new: RankCountSource,
    hint: &str,
) -> Result<()> {
    match count {
        None => *count = Some(new),
        Some(old) if old.ranks == new.ranks => {}
        Some(old) => {
            return Err(ImportError::Ranks {
                what: what.into(),
                first: std::mem::take(&mut old.source),
                first_ranks: old.ranks,
                second: new.source,
                second_ranks: new.ranks,
                hint: hint.into(),
            });
        }
    }
    Ok(())
}

fn check_partition(group: &str, cells: &[Vec<u32>]) -> Result<u32> {
    let size = cells.first().map_or(0, Vec::len);
    if size == 0 || cells.iter().any(|c| c.len() != size) {
        let message = format!("expected lists of ranks of equal length, found {cells:?}");
        return Err(ImportError::Group { group: group.into(), message });
    }
    let mut ranks: Vec<u32> = cells.iter().flatten().copied().collect();
    ranks.sort_unstable();
    if ranks.iter().enumerate().any(|(i, &r)| i as u64 != u64::from(r)) {
        let message = format!("expected every rank from 0 to {} once, found {ranks:?}", ranks.len() - 1);
        return Err(ImportError::Group { group: group.into(), message });
    }
    Ok(ranks.len() as u32)
}

pub(crate) fn is_collective(target: &str) -> bool {
    ["torch.ops._c10d_functional", "torch.ops.symm_mem.", "torch.ops._dtensor."]
        .iter()
        .any(|p| target.starts_with(p))
}

fn argument<'n, 'p>(node: &'n ExportedNode<'p>, names: &[&str]) -> Option<&'n Argument<'p>> {
    node.inputs.iter().find(|i| names.contains(&&*i.name)).map(|i| &i.arg)
}

fn group_name<'n>(node: &'n ExportedNode<'_>) -> Option<&'n str> {
    match argument(node, &["group_name", "group"]) {
        Some(Argument::String(s)) => Some(s),
        _ => None,
    }
}

fn stated_size(node: &ExportedNode<'_>) -> Option<u32> {
    if let Some(Argument::Int(n)) = argument(node, &["group_size"]) {
        return u32::try_from(*n).ok();
    }
    ["output_split_sizes", "input_split_sizes"].into_iter().find_map(|list| {
        let count = match argument(node, &[list])? {
            Argument::Ints(v) => v.len(),
            Argument::SymInts(v) => v.len(),
            Argument::ByRank(PerRankArgument { numbers: PerRankNumbers::Lists(v), .. }) => {
                v.first().map_or(0, Vec::len)
            }
            _ => 0,
        };
        (count > 0).then_some(count as u32)
    })
}
