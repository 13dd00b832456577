//! How many ranks a program has, and who belongs to its groups.
//!
//! A `.pt2` names its groups but not their members. What tells them: the options; the name, where it is PyTorch's for
//! the group of all ranks; a size that collectives state (`group_size`, a list of splits) and that is the number of
//! ranks. A group that nothing describes is an error, never the world.

use indexmap::IndexMap;
use symmc_ir::Members;

use crate::effects;
use crate::error::{ImportError, Result, UndescribedGroup};
use crate::numbers::{ByRank, Numbers};
use crate::options::ImportOptions;
use crate::schema::{Argument, Graph, Node, Program};

/// PyTorch's name of the default group, which has all ranks: groups are counted in the order they are made.
const DEFAULT: &str = "0";

pub(crate) struct Ranks {
    pub ranks: Option<u32>,
    /// Whether [`ImportOptions::assumed_ranks`] decided.
    pub assumed: bool,
    pub groups: IndexMap<String, Members>,
    /// What a user should know of the groups.
    pub notes: Vec<String>,
}

/// Who said how many ranks.
struct Source {
    who: String,
    ranks: u32,
}

#[derive(Default)]
struct Use {
    nodes: Vec<String>,
    size: Option<Source>,
}

pub(crate) fn settle(program: &Program<'_>, options: &ImportOptions) -> Result<Ranks> {
    let mut world = options.ranks.map(|ranks| Source { who: "the caller".into(), ranks });
    if options.ranks == Some(0) {
        return Err(ImportError::Group {
            group: "world".into(),
            message: "expected at least 1 rank, found 0".into(),
        });
    }
    for (name, cells) in &options.groups {
        let who = format!("the list of members of group `{name}`");
        agree(&mut world, "the program", Source { who, ranks: partition(name, cells)? }, "")?;
    }
    let mut uses = IndexMap::new();
    collect(&program.graph_module.graph, &mut uses)?;
    if let Some(name) = options.groups.keys().find(|name| !uses.contains_key(*name)) {
        let known: Vec<&str> = uses.keys().map(String::as_str).collect();
        let known = if known.is_empty() { "none".into() } else { known.join(", ") };
        return Err(ImportError::Group {
            group: name.clone(),
            message: format!("the program has no such group; it has: {known}"),
        });
    }
    for (name, used) in &mut uses {
        let Some(stated) = used.size.as_ref().map(|s| Source { who: s.who.clone(), ranks: s.ranks }) else {
            continue;
        };
        match options.groups.get(name) {
            Some(cells) => {
                let size = cells.first().map_or(0, |c| c.len() as u32);
                let mut given = Some(Source { who: "the list of its members".into(), ranks: size });
                agree(&mut given, &format!("group `{name}`"), stated, "")?;
            }
            None if name == DEFAULT => {
                let hint = format!("; group `{name}` is PyTorch's name for all ranks");
                agree(&mut world, "the program", stated, &hint)?;
            }
            None => {}
        }
    }
    let known = world.map(|s| s.ranks);
    let ranks = known.or(options.assumed_ranks);
    let (groups, notes) = members(uses, ranks, options)?;
    Ok(Ranks { ranks, assumed: known.is_none() && ranks.is_some(), groups, notes })
}

/// The members of the groups that a program uses, and what a user should know of them.
fn members(
    uses: IndexMap<String, Use>,
    ranks: Option<u32>,
    options: &ImportOptions,
) -> Result<(IndexMap<String, Members>, Vec<String>)> {
    let (mut groups, mut notes) = (IndexMap::new(), Vec::new());
    let mut undescribed = Vec::new();
    for (name, used) in uses {
        let size = used.size.map(|s| s.ranks);
        let members = match options.groups.get(&name) {
            Some(cells) => Members::Cells(cells.clone()),
            None if name == DEFAULT || ranks == Some(1) => Members::World,
            None if size.is_some() && size == ranks => {
                notes.push(format!(
                    "group `{name}` has as many ranks as the program: taken as all ranks in ascending order; state its \
                     members if they have another order"
                ));
                Members::World
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

/// The groups that the nodes of a graph use, those of the graphs it wraps included.
fn collect(graph: &Graph<'_>, uses: &mut IndexMap<String, Use>) -> Result<()> {
    for node in &graph.nodes {
        for input in &node.inputs {
            if let Argument::Graph(inner) = &input.arg {
                collect(inner, uses)?;
            }
        }
        let Some(group) =
            group_name(node).filter(|_| is_collective(effects::called(node).unwrap_or(&node.target)))
        else {
            continue;
        };
        let used = uses.entry(group.to_string()).or_default();
        used.nodes.push(node.name().to_string());
        if let Some(ranks) = stated_size(node) {
            let who = format!("node `{}`", node.name());
            agree(&mut used.size, &format!("group `{group}`"), Source { who, ranks }, "")?;
        }
    }
    Ok(())
}

/// The error where the caller says another number of ranks than there are archives.
pub(crate) fn another_count(asked: u32, archives: u32) -> ImportError {
    ImportError::Ranks {
        what: "the program".into(),
        first: "the caller".into(),
        first_ranks: asked,
        second: "the number of archives".into(),
        second_ranks: archives,
        hint: String::new(),
    }
}

fn agree(known: &mut Option<Source>, what: &str, new: Source, hint: &str) -> Result<()> {
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

fn partition(group: &str, cells: &[Vec<u32>]) -> Result<u32> {
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

pub(crate) fn is_collective(target: &str) -> bool {
    ["torch.ops._c10d_functional", "torch.ops.symm_mem.", "torch.ops._dtensor."]
        .iter()
        .any(|p| target.starts_with(p))
}

fn argument<'n, 'p>(node: &'n Node<'p>, names: &[&str]) -> Option<&'n Argument<'p>> {
    node.inputs.iter().find(|i| names.contains(&&*i.name)).map(|i| &i.arg)
}

fn group_name<'n>(node: &'n Node<'_>) -> Option<&'n str> {
    match argument(node, &["group_name", "group"]) {
        Some(Argument::String(s)) => Some(s),
        _ => None,
    }
}

fn stated_size(node: &Node<'_>) -> Option<u32> {
    if let Some(Argument::Int(n)) = argument(node, &["group_size"]) {
        return u32::try_from(*n).ok();
    }
    ["output_split_sizes", "input_split_sizes"].into_iter().find_map(|list| {
        let count = match argument(node, &[list])? {
            Argument::Ints(v) => v.len(),
            Argument::SymInts(v) => v.len(),
            Argument::ByRank(ByRank { numbers: Numbers::Lists(v), .. }) => v.first().map_or(0, Vec::len),
            _ => 0,
        };
        (count > 0).then_some(count as u32)
    })
}
