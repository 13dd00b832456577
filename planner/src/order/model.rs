//! The model by which steps are ordered: dependences between steps, their times, and the memory that they
//! access.
//!
//! Memory is counted in *classes*: values that share memory in every order. This is the case if one step alone
//! reads a value and writes its result over or around it, as [`crate::memory_classes`] merges them. A class is
//! occupied from the first step that accesses it to the last. If several steps read a value, the last of them
//! may write its result over it. The order decides which one is last, so [`super::memory`] counts that. The
//! model does not count bytes that collectives keep occupied until they are awaited or met. The demand of a
//! placed order includes them.
//!
//! Dependences and classes are the same when read backwards, so an order of the reversed program is an order of
//! the program. Only overwriting is not symmetric: an operand dies where its result begins. The memory by which
//! backward orders are made is therefore an estimate, and the finished orders are compared forwards.

use std::collections::BTreeSet;

use symmc_ir::entity::Entity;
use symmc_ir::machine::timeline::TimedStep;
use symmc_ir::machine::{MachineProfile, StepTraffic, TrafficModel};
use symmc_ir::{CollectiveKind, Node, NodeId, Op, OutputKind, SymbolTable, ValueDef, ValueId};
use symmc_plan::{ALIGN, CopyReason, Lane};

use crate::prepare::PreparedGraph;
use crate::steps::{BaseReaders, ScheduleStep, StepList};

/// The steps in program order with all that ordering needs.
#[derive(Clone)]
pub struct TaskGraph {
    pub lane: Vec<Lane>,
    /// For each step the steps that must come before it, ascending and unique.
    pub before: IndexLists,
    /// For each step the steps that must come after it.
    pub after: IndexLists,
    /// For each step the classes that it reads or writes, each once.
    pub touches: IndexLists,
    pub users: IndexLists,
    pub classes: Vec<MemoryClass>,
    /// For each step the classes over which its result may be written, if no other step needs them any more.
    pub over: IndexLists,
    pub timed: Vec<TimedStep>,
    /// The nanoseconds between the end of a step of one lane and the start of a step of the other lane that
    /// waits for it.
    pub crossing: u64,
}

/// Values that share memory in an arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryClass {
    pub bytes: u64,
    /// The index of its arena, as in [`symmc_plan::ArenaKind`].
    pub arena: usize,
}

#[derive(Clone)]
pub struct IndexLists {
    start: Vec<u32>,
    items: Vec<u32>,
}

impl IndexLists {
    pub fn from_rows(rows: impl Iterator<Item = Vec<u32>>) -> IndexLists {
        let mut start = vec![0];
        let mut items = Vec::new();
        for row in rows {
            items.extend(row);
            start.push(items.len() as u32);
        }
        IndexLists { start, items }
    }

    pub fn row(&self, row: usize) -> &[u32] {
        &self.items[self.start[row] as usize..self.start[row + 1] as usize]
    }

    pub fn len(&self) -> usize {
        self.start.len() - 1
    }

    /// The rows that hold each index below `len`.
    pub fn transposed(&self, len: usize) -> IndexLists {
        let mut start = vec![0u32; len + 1];
        for &i in &self.items {
            start[i as usize + 1] += 1;
        }
        for i in 0..len {
            start[i + 1] += start[i];
        }
        let mut next = start.clone();
        let mut items = vec![0; self.items.len()];
        for row in 0..self.len() {
            for &i in self.row(row) {
                items[next[i as usize] as usize] = row as u32;
                next[i as usize] += 1;
            }
        }
        IndexLists { start, items }
    }
}

impl TaskGraph {
    /// The tasks of `steps` with sizes at the upper bounds of `symbols` and times from `profile`.
    pub fn new(
        program: &PreparedGraph,
        steps: &StepList,
        symbols: &SymbolTable,
        profile: Option<&MachineProfile>,
    ) -> TaskGraph {
        let values = program.graph.values.values();
        let sizes: Vec<u64> =
            values.map(|v| v.ty.bytes().upper_bound(symbols).clamp(0, 1 << 52) as u64).collect();
        let readers = steps.readers();
        let mut before: Vec<Vec<u32>> =
            steps.list.iter().map(|s| s.reads.iter().filter_map(|&v| steps.def[v]).collect()).collect();
        order_output_copies_last(program, steps, &readers, &mut before);
        for row in &mut before {
            row.sort_unstable();
            row.dedup();
        }
        let before = IndexLists::from_rows(before.into_iter());
        let mut shared = SharedMemorySets::new(program, steps, &readers, &sizes);
        shared.merge_operands();
        let together: Vec<usize> = program.graph.values.keys().map(|v| shared.find_root(v)).collect();
        let (classes, class_of) = shared.memory_classes();
        let class = |v: &ValueId| Some(class_of[v.index()]).filter(|&c| c != NO_CLASS);
        let touches = IndexLists::from_rows(steps.list.iter().map(|s| {
            let mut row: Vec<u32> = s.reads.iter().chain(&s.writes).filter_map(class).collect();
            row.sort_unstable();
            row.dedup();
            row
        }));
        let over = IndexLists::from_rows((0..steps.list.len()).map(|s| {
            let result = steps.list[s].writes.first().and_then(class);
            shared
                .overwritable_operands(s)
                .filter_map(|v| class(&v))
                .filter(|&c| result.is_some_and(|r| r != c && classes[r as usize] == classes[c as usize]))
                .collect()
        }));
        let replaced = program.graph.outputs.iter().filter_map(|o| match o.kind {
            OutputKind::Mutates(input) => Some(input.index()),
            OutputKind::Returned | OutputKind::Length { .. } => None,
        });
        let memory =
            InPlaceOperands { program, steps, readers: &readers, replaced: replaced.collect(), together };
        let timed_steps = steps.list.iter().enumerate().map(|(position, step)| {
            estimate_step(
                program,
                step_traffic(program, &sizes, position, step, &memory),
                step,
                symbols,
                profile,
            )
        });
        TaskGraph {
            lane: steps.list.iter().map(|s| s.lane).collect(),
            after: before.transposed(steps.list.len()),
            before,
            users: touches.transposed(classes.len()),
            touches,
            classes,
            over,
            timed: timed_steps.collect(),
            crossing: profile.map_or(0, MachineProfile::lane_crossing_ns),
        }
    }

    pub fn len(&self) -> usize {
        self.lane.len()
    }

    /// The same tasks in reverse.
    pub fn reversed(&self) -> TaskGraph {
        TaskGraph { before: self.after.clone(), after: self.before.clone(), ..self.clone() }
    }
}

/// Makes a copy into an output follow the other readers of its operand. The operand can then use the memory of
/// the output, and the copy moves nothing.
fn order_output_copies_last(
    program: &PreparedGraph,
    steps: &StepList,
    readers: &BaseReaders,
    before: &mut [Vec<u32>],
) {
    let returns = program.copies.iter().filter(|c| c.reason == CopyReason::Output);
    let returns = returns
        .filter(|c| program.covers_base[c.source])
        .filter_map(|c| Some((program.base[c.source], steps.def[c.value]?)));
    for (base, copy) in returns {
        if steps.def[base].is_some() && !program.symmetric[base] {
            before[copy as usize].extend(readers.steps_reading(base).iter().filter(|&&s| s < copy));
        }
    }
}

const NO_CLASS: u32 = u32::MAX;

/// Sets of values that share memory in every order, as a union-find structure with one root value per set.
struct SharedMemorySets<'a> {
    program: &'a PreparedGraph,
    steps: &'a StepList,
    readers: &'a BaseReaders,
    sizes: &'a [u64],
    output: Vec<bool>,
    /// For each value another value of its set, or itself for the root.
    toward: Vec<u32>,
}

impl<'a> SharedMemorySets<'a> {
    fn new(
        program: &'a PreparedGraph,
        steps: &'a StepList,
        readers: &'a BaseReaders,
        sizes: &'a [u64],
    ) -> Self {
        let mut output = vec![false; sizes.len()];
        for o in &program.graph.outputs {
            output[o.value.index()] = true;
        }
        SharedMemorySets { program, steps, readers, sizes, output, toward: (0..sizes.len() as u32).collect() }
    }

    /// The root of the set of `v`. Each search halves the path, so long chains are found fast.
    fn find_root(&mut self, v: ValueId) -> usize {
        let mut node = v.index();
        while self.toward[node] as usize != node {
            self.toward[node] = self.toward[self.toward[node] as usize];
            node = self.toward[node] as usize;
        }
        node
    }

    /// Merges operands that no other step reads with the results, as [`crate::memory_classes`] does.
    fn merge_operands(&mut self) {
        for s in 0..self.steps.list.len() {
            let node = &self.program.graph.nodes[self.steps.list[s].node];
            if self.can_enclose_operands(s) {
                for &operand in &node.inputs {
                    self.share_memory(s, operand, node.outputs[0]);
                }
            }
        }
        for s in 0..self.steps.list.len() {
            let first =
                self.overwritable_operands(s).find(|&base| self.readers.steps_reading(base) == [s as u32]);
            if let Some(base) = first {
                self.share_memory(s, base, self.steps.list[s].writes[0]);
            }
        }
    }

    /// Whether operands of the step may be placed inside of its result.
    fn can_enclose_operands(&self, s: usize) -> bool {
        let graph = &self.program.graph;
        let step = &self.steps.list[s];
        let node = &graph.nodes[step.node];
        match &node.op {
            Op::Concat { axis } => {
                graph.ty(node.outputs[0]).shape[..*axis].iter().all(|d| d.as_const() == Some(1))
            }
            Op::Collective(c) => {
                let in_place = step.dispatch.is_none() && step.peers.is_some_and(|p| p.contract.in_place);
                in_place && c.kind == CollectiveKind::AllGather
            }
            _ => false,
        }
    }

    /// Gives `operand`, which only step `s` reads, the memory of `result`.
    fn share_memory(&mut self, s: usize, operand: ValueId, result: ValueId) {
        let base = self.program.base[operand];
        let sole_reader = self.steps.def[base].is_some() && self.readers.steps_reading(base) == [s as u32];
        let from = self.find_root(base);
        let into = self.find_root(result);
        let [from_symmetric, into_symmetric] =
            [from, into].map(|v| self.program.symmetric[ValueId::new(v)] && !self.output[v]);
        let reaches = !from_symmetric || into_symmetric;
        if sole_reader && self.program.covers_base[operand] && !self.output[from] && reaches && from != into {
            self.toward[from] = into as u32;
        }
    }

    /// The bases of a step's operands over which its result may be written, regardless of their lifetimes.
    fn overwritable_operands(&self, s: usize) -> impl Iterator<Item = ValueId> {
        let graph = &self.program.graph;
        let step = &self.steps.list[s];
        let operands = step.operands(graph, &self.program.base);
        operands.into_iter().filter_map(move |o| {
            let result = *step.writes.first().filter(|&&r| o.may_be_overwritten_by(graph, r))?;
            let ty = graph.ty(result);
            let arena = self.program.symmetric[result];
            let operand_type = graph.ty(o.value);
            let base = self.program.base[o.value];
            let same_layout = operand_type.shape == ty.shape && operand_type.dtype.size() == ty.dtype.size();
            let near = self.program.symmetric[base] == arena && !self.output[base.index()];
            let fits =
                same_layout && near && self.program.covers_base[o.value] && self.steps.def[base].is_some();
            fits.then_some(base)
        })
    }

    fn memory_classes(&mut self) -> (Vec<MemoryClass>, Vec<u32>) {
        let mut class_of = vec![NO_CLASS; self.toward.len()];
        let mut classes = Vec::new();
        for (v, def) in self.steps.def.iter() {
            let root = self.find_root(v);
            // Inputs and outputs take no arena memory.
            if def.is_none() || self.output[root] {
                continue;
            }
            if class_of[root] == NO_CLASS {
                class_of[root] = classes.len() as u32;
                let arena = usize::from(self.program.symmetric[ValueId::new(root)]);
                classes.push(MemoryClass { bytes: self.sizes[root].next_multiple_of(ALIGN), arena });
            }
            class_of[v.index()] = class_of[root];
        }
        (classes, class_of)
    }
}

/// Decides which operands are stored in place at the elements of the result.
struct InPlaceOperands<'a> {
    program: &'a PreparedGraph,
    steps: &'a StepList,
    readers: &'a BaseReaders,
    /// The inputs that outputs replace.
    replaced: BTreeSet<usize>,
    /// For each value the number of its set. Values with equal numbers share memory in every order.
    together: Vec<usize>,
}

impl InPlaceOperands<'_> {
    /// Whether an operand of a node of this step is a piece of the result, or can be overwritten in program
    /// order. The last reader can overwrite a value if a step defines it or an output replaces it.
    fn is_in_place(&self, step: usize, node: NodeId, k: usize) -> bool {
        let graph = &self.program.graph;
        let Node { op, inputs, outputs } = &graph.nodes[node];
        let Some(base) = inputs.get(k).map(|&v| self.program.base[v]) else { return false };
        if matches!(op, Op::Concat { .. }) {
            let is_whole = self.program.covers_base[inputs[k]] && self.steps.def[base].is_some();
            let class = self.together[base.index()];
            return is_whole && outputs.first().is_some_and(|result| self.together[result.index()] == class);
        }
        let owned = match graph.values[base].def {
            ValueDef::Input(input) => self.replaced.contains(&input.index()),
            ValueDef::Node(..) => self.steps.def[base].is_some(),
        };
        owned && self.readers.steps_reading(base).last() == Some(&(step as u32))
    }
}

fn step_traffic(
    program: &PreparedGraph,
    sizes: &[u64],
    at: usize,
    step: &ScheduleStep,
    in_place: &InPlaceOperands<'_>,
) -> StepTraffic {
    let graph = &program.graph;
    let memory = TrafficModel {
        base: |v| program.base[v],
        bytes: |v: ValueId| sizes[v.index()],
        in_place: |n, k| in_place.is_in_place(at, n, k),
    };
    let reads = step.nodes().flat_map(|n| (0..graph.nodes[n].inputs.len()).map(move |k| (n, k)));
    let step_nodes = step.node..=step.dispatch.map_or(step.node, |d| d.last);
    let reads = reads.filter(|&(n, k)| {
        let base = program.base[graph.nodes[n].inputs[k]];
        graph.defining_node(base).is_none_or(|n| !step_nodes.contains(&n))
    });
    memory.step_traffic(graph, step.nodes(), reads, step.writes.iter().copied())
}

/// A step with its estimated time. Without a profile, computation takes 1000 ns per kernel and 1 ns per 2 bytes, and
/// communication takes 8000 ns and 1 ns per 100 bytes.
fn estimate_step(
    program: &PreparedGraph,
    moved: StepTraffic,
    step: &ScheduleStep,
    symbols: &SymbolTable,
    profile: Option<&MachineProfile>,
) -> TimedStep {
    let communicates = step.lane == Lane::Comm;
    let timed = match profile {
        Some(profile) => profile.timed_step(&program.graph, step.nodes(), moved, Some(false), |dim| {
            u64::try_from(dim.upper_bound(symbols).max(1)).unwrap_or(u64::MAX)
        }),
        None if communicates => TimedStep::compute(8000 + moved.bytes / 100),
        None => TimedStep::compute(1000 * moved.kernels + moved.bytes / 2),
    };
    TimedStep { communicates, ..timed }
}

#[cfg(test)]
mod tests {
    use symmc_support::random::SplitMix;

    use super::*;

    impl TaskGraph {
        /// Steps that write one value each, of these classes, and read the values of the steps `before` them. A
        /// result may be written over an operand of the same class.
        pub fn of_values(before: impl Iterator<Item = Vec<u32>>, classes: Vec<MemoryClass>) -> TaskGraph {
            let before = IndexLists::from_rows(before);
            let n = classes.len();
            let touches = IndexLists::from_rows(
                (0..n).map(|s| before.row(s).iter().copied().chain([s as u32]).collect()),
            );
            let over = IndexLists::from_rows((0..n).map(|s| {
                let before = before.row(s).iter().copied();
                before.filter(|&b| classes[b as usize] == classes[s]).collect()
            }));
            TaskGraph {
                lane: vec![Lane::Compute; n],
                after: before.transposed(n),
                before,
                users: touches.transposed(n),
                touches,
                classes,
                over,
                timed: vec![TimedStep::compute(1); n],
                crossing: 0,
            }
        }

        /// Random dependences between steps that write a value of random size each, repeated `copies` times in
        /// a row.
        pub fn random(rng: &mut SplitMix, steps: usize, copies: usize) -> TaskGraph {
            let mut before: Vec<Vec<u32>> = Vec::new();
            let mut classes = Vec::new();
            let first = rng.0;
            for copy in 0..copies {
                // Every copy is the same and depends on the last value of the copy before.
                rng.0 = first;
                for s in 0..steps {
                    let mut row: Vec<u32> = (0..rng.below(4))
                        .filter(|_| s > 0)
                        .map(|_| (copy * steps + rng.below(s.max(1))) as u32)
                        .collect();
                    if copy > 0 && row.is_empty() {
                        row.push((copy * steps - 1) as u32);
                    }
                    row.sort_unstable();
                    row.dedup();
                    before.push(row);
                    classes.push(MemoryClass {
                        bytes: 1 + rng.below(40) as u64,
                        arena: usize::from(rng.one_in(4)),
                    });
                }
            }
            TaskGraph::of_values(before.into_iter(), classes)
        }
    }
}
