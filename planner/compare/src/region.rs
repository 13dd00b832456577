//! Regions: the nodes of one program between a value and the nearest values that both programs have.
//!
//! Invariant: nodes are in program order. A leaf is read by a node, or is the root itself.

use std::collections::HashSet;

use symmc_ir::{NodeId, Op, ValueDef, ValueId};

use crate::number::NumberedProgram;

pub const MAX_REGION_NODES: usize = 400;

#[derive(Clone, Debug)]
pub struct ComparedRegion {
    pub root: ValueId,
    pub nodes: Vec<NodeId>,
    /// The values that the nodes read and do not define.
    pub leaves: Vec<ValueId>,
}

pub struct PairedRegions {
    pub of_source: ComparedRegion,
    pub of_planned: ComparedRegion,
    /// Whether no op of the two regions fuses or sums several roundings. Both programs compute values outside
    /// of the regions in the same way.
    pub same_bits: bool,
}

/// The region of a value up to the leaves that `is_leaf` selects. `None` if it has more nodes than `max_nodes`.
/// Inputs are leaves. Values that depend on no input are not.
pub fn find_region(
    program: &NumberedProgram<'_>,
    root: ValueId,
    max_nodes: usize,
    is_leaf: impl Fn(ValueId) -> bool,
) -> Option<ComparedRegion> {
    let graph = program.graph;
    let mut nodes = Vec::new();
    let mut leaves = Vec::new();
    let mut visited = HashSet::from([root]);
    let mut seen_nodes = HashSet::new();
    let mut open = vec![root];
    while let Some(value) = open.pop() {
        match graph.values[value].def {
            ValueDef::Node(n, _) if program.closed[value] || !is_leaf(value) => {
                if !seen_nodes.insert(n) {
                    continue;
                }
                nodes.push(n);
                if nodes.len() > max_nodes {
                    return None;
                }
                open.extend(graph.nodes[n].inputs.iter().filter(|&&v| visited.insert(v)));
            }
            _ => leaves.push(value),
        }
    }
    nodes.sort_unstable();
    leaves.sort_unstable();
    Some(ComparedRegion { root, nodes, leaves })
}

impl ComparedRegion {
    /// The reason why the interpreter cannot run a node of the region, if there is one.
    pub fn uninterpretable_reason(&self, program: &NumberedProgram<'_>) -> Option<String> {
        self.nodes.iter().find_map(|&n| match &program.graph.nodes[n].op {
            Op::Opaque { name, .. } => Some(format!("{name} is opaque: its computation is not known")),
            Op::Custom(id) => {
                let name = program.graph.customs.get(*id).map_or("", |c| c.name.as_str());
                Some(format!("the kernel of custom op {name} is not available"))
            }
            _ => None,
        })
    }

    /// Whether ranks communicate in the region, or take their pieces of values.
    pub fn depends_on_ranks(&self, program: &NumberedProgram<'_>) -> bool {
        self.nodes.iter().any(|&n| program.graph.nodes[n].op.group().is_some())
    }

    /// Whether a leaf shows elements of a constant, whose data are part of the program.
    pub fn is_constant(program: &NumberedProgram<'_>, leaf: ValueId) -> bool {
        let elements = program.elements[leaf].as_ref();
        elements.is_some_and(|elements| program.constants.contains_key(&elements.class))
    }
}
