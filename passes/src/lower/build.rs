//! Builds the lowered program: puts solutions in place of their regions.

use std::collections::BTreeMap;

use symmc_ir::{EntityMap, Graph, GraphOutput, NodeId, TensorType, ValueId};

use super::region::RewriteRegion;
use super::region_plan::{RegionStep, StepSource};
use super::solve::RegionSolution;
use crate::rewrite::{UniqueNames, copy_node};

pub struct SolvedRegion<'a> {
    pub region: &'a RewriteRegion,
    pub solution: &'a RegionSolution,
}

/// Returns the program with its regions replaced, and for each region the names of its steps. The names of
/// unneeded steps are empty. Inputs and symbols are those of `graph`.
pub fn replace_regions(graph: &Graph, solved: &[SolvedRegion]) -> Option<(Graph, Vec<Vec<String>>)> {
    let rebuilt = graph.without_nodes();
    let mut builder = RegionGraphBuilder {
        from: graph,
        to: rebuilt,
        names: UniqueNames::default(),
        map: EntityMap::filled(None, graph.values.len()),
        done: solved.iter().map(|s| vec![None; s.solution.steps.len()]).collect(),
    };
    // Names that stay are reserved first, so that new nodes cannot take them.
    for input in graph.inputs.values() {
        let value = &graph.values[input.value];
        let name = builder.names.unique(&value.name);
        let new = builder.to.add_input(
            input.kind,
            name,
            input.source.clone(),
            value.ty.clone(),
            input.data.clone(),
        );
        builder.map[input.value] = Some(new);
    }
    for value in graph.values.values() {
        builder.names.reserve(&value.name);
    }
    let mut positions: BTreeMap<NodeId, (usize, usize)> = BTreeMap::new();
    for (r, s) in solved.iter().enumerate() {
        positions.extend(s.region.nodes.iter().enumerate().map(|(i, &n)| (n, (r, i))));
    }
    for (n, node) in graph.nodes.iter() {
        match positions.get(&n) {
            Some(&(r, i)) => builder.region_node(solved, r, i)?,
            None => {
                copy_node(graph, node, &mut builder.to, &mut builder.map)?;
            }
        }
    }
    for output in &graph.outputs {
        let value = builder.map[output.value]?;
        builder.to.outputs.push(GraphOutput { value, kind: output.kind });
    }
    let names = builder.done.iter().map(|steps| {
        steps.iter().map(|s| s.map_or(String::new(), |n| builder.to.node_name(n).to_string())).collect()
    });
    let names = names.collect();
    Some((builder.to, names))
}

struct RegionGraphBuilder<'a> {
    from: &'a Graph,
    to: Graph,
    names: UniqueNames,
    map: EntityMap<ValueId, Option<ValueId>>,
    /// For each region, the node that each of its steps became.
    done: Vec<Vec<Option<NodeId>>>,
}

impl RegionGraphBuilder<'_> {
    /// Adds a node of a region and everything that it needs, if a node outside of the region uses it.
    fn region_node(&mut self, solved: &[SolvedRegion], r: usize, i: usize) -> Option<()> {
        let SolvedRegion { region, solution } = &solved[r];
        let old = &self.from.nodes[region.nodes[i]].outputs;
        for (k, &old) in old.iter().enumerate() {
            if !region.form.nodes[i].uses[k].outside {
                continue;
            }
            let source = solution.results.get(i)?.get(k).copied()??;
            self.map[old] = Some(self.add_operand_value(solved, r, i, source)?);
        }
        Some(())
    }

    fn add_operand_value(
        &mut self,
        solved: &[SolvedRegion],
        r: usize,
        near: usize,
        source: StepSource,
    ) -> Option<ValueId> {
        let SolvedRegion { region, solution } = &solved[r];
        match source {
            StepSource::Leaf(i) => self.map[*region.leaves.get(i)?],
            StepSource::Step(step, result) => {
                let node = match self.done[r][step] {
                    Some(node) => node,
                    None => {
                        let operands = solution.steps[step].operands.iter();
                        let inputs = operands
                            .map(|&o| self.add_operand_value(solved, r, near, o))
                            .collect::<Option<Vec<_>>>()?;
                        let results = self.step_results(region, solution, near, step);
                        let node = self.to.add_node(solution.steps[step].op.clone(), inputs, results);
                        self.done[r][step] = Some(node);
                        node
                    }
                };
                self.to.nodes[node].outputs.get(result).copied()
            }
        }
    }

    /// Names and types of the results of a step. The names are those of the node that it replaces, else
    /// names derived from the node `near`, which it helps to compute.
    fn step_results(
        &mut self,
        region: &RewriteRegion,
        solution: &RegionSolution,
        near: usize,
        step: usize,
    ) -> Vec<(String, TensorType)> {
        let from = self.from;
        let RegionStep { op, types, stands_for, .. } = &solution.steps[step];
        let replaced = stands_for
            .map(|node| &from.nodes[region.nodes[node]].outputs)
            .filter(|outputs| outputs.len() == types.len());
        let mut results = Vec::with_capacity(types.len());
        for (k, ty) in types.iter().enumerate() {
            let name = if let Some(outputs) = replaced {
                from.value_name(outputs[k]).to_string()
            } else {
                let near = from.value_name(from.nodes[region.nodes[near]].outputs[0]);
                let op = symmc_ir::text::op_name(op);
                let name = if k == 0 { format!("{near}.{op}") } else { format!("{near}.{op}.{k}") };
                self.names.unique(&name)
            };
            results.push((name, ty.clone()));
        }
        results
    }
}
