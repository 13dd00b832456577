//! A bucket of a plan with its program: which step runs what, and where values lie.

use anyhow::Result;
use symmc::unstable::ir::{Node, NodeId, Op, Table, ValueId, text};
use symmc::unstable::plan::{ArenaKind, Bucket, Decision, Memory, Place, ReadProgram, Role, Run, Step};
use symmc::{CheckedPlan, Graph, Plan};

pub struct Planned<'a> {
    pub bucket: &'a Bucket,
    pub program: &'a ReadProgram,
    pub graph: &'a Graph,
    pub runs: Vec<Run>,
    /// The position of the step of each node that is one or part of one.
    step_of: Table<NodeId, Option<usize>>,
}

impl<'a> Planned<'a> {
    pub fn new(plan: &'a CheckedPlan, bucket: &'a Bucket) -> Result<Self> {
        let program = plan.program(bucket.program)?;
        let runs = program.runs(bucket).collect::<Result<Vec<Run>, _>>()?;
        let mut step_of = Table::filled(None, program.graph.nodes.len());
        for (step, run) in runs.iter().enumerate() {
            run.nodes().for_each(|n| step_of[n] = Some(step));
        }
        Ok(Planned { bucket, program, graph: &program.graph, runs, step_of })
    }

    fn node(&self, name: &str) -> Option<NodeId> {
        self.graph.def_node(self.program.named(name)?).filter(|&n| self.graph.node_name(n) == name)
    }

    /// The nodes of a step that compute something.
    pub fn nodes_of(&self, step: usize) -> impl Iterator<Item = &'a Node> + use<'_, 'a> {
        let nodes = self.runs.get(step).into_iter().flat_map(|run| run.nodes());
        nodes.filter(|&n| !self.program.is_view(n)).map(|n| &self.graph.nodes[n])
    }

    pub fn steps_of(&self, decision: &Decision) -> Vec<&'a Step> {
        let step_of = |name: &String| self.node(name).and_then(|n| self.step_of[n]);
        let mut steps: Vec<usize> = decision.nodes.iter().filter_map(step_of).collect();
        steps.sort_unstable();
        steps.into_iter().map(|s| &self.bucket.steps[s]).collect()
    }

    pub fn ops_of(&self, step: usize) -> String {
        let ops: Vec<&str> = self.nodes_of(step).map(|node| text::op_name(&node.op)).collect();
        ops.join(", ")
    }

    /// The first operand and the first result of what runs a collective.
    pub fn ends(&self, decision: &Decision) -> (Option<ValueId>, Option<ValueId>) {
        let node = |name: &String| self.node(name).map(|n| &self.graph.nodes[n]);
        let first = decision.nodes.first().and_then(node);
        let last = decision.nodes.last().and_then(node);
        (first.and_then(|n| n.inputs.first().copied()), last.and_then(|n| n.outputs.first().copied()))
    }

    pub fn place(&self, value: ValueId) -> Option<&'a Place> {
        self.bucket.places.get(self.graph.name_of(self.program.base(value)))
    }

    pub fn short_place(&self, plan: &Plan, value: ValueId) -> String {
        match self.place(value) {
            Some(place) => memory(plan, self.bucket, place.memory),
            None if self.program.is_inner(self.program.base(value)) => "not stored".into(),
            None => "?".into(),
        }
    }

    /// The copies of the planned program: name, reason, and the input whose binding avoids it.
    pub fn copies(&self) -> Vec<(&str, String, Option<&str>)> {
        let copies = self.graph.nodes.values().filter(|n| n.op == Op::Copy);
        copies
            .filter_map(|node| {
                let (from, to) = (*node.inputs.first()?, *node.outputs.first()?);
                let place = self.place(to)?;
                let base = self.program.base(from);
                let input = self.graph.inputs.values().find(|i| i.value == base);
                let symmetric = match place.memory {
                    Memory::Buffer(i) => self.bucket.buffers.get(i)?.arena == ArenaKind::Symmetric,
                    _ => false,
                };
                let avoid = input.filter(|_| symmetric).map(|_| self.graph.name_of(base));
                Some((self.graph.name_of(to), place.why.clone(), avoid))
            })
            .collect()
    }

    pub fn step_of(&self, value: ValueId) -> Option<usize> {
        self.step_of[self.graph.def_node(value)?]
    }
}

pub fn memory(plan: &Plan, bucket: &Bucket, memory: Memory) -> String {
    match memory {
        Memory::Buffer(i) => match bucket.buffers.get(i).map(|b| b.arena) {
            Some(ArenaKind::Symmetric) => "symmetric".into(),
            Some(ArenaKind::Ordinary) => "ordinary".into(),
            None => "?".into(),
        },
        Memory::Fixed(i) => match plan.fixed.get(i).map(|f| &f.role) {
            Some(Role::Bound { input }) => format!("bound input {input}"),
            _ => "symmetric".into(),
        },
        Memory::Input(i) => format!("input {i}"),
        Memory::Output(i) => format!("output {i}"),
    }
}
