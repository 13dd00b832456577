//! A bucket of a plan with its program: which step runs what, and where values lie.

use anyhow::Result;
use symmc::unstable::ir::{EntityMap, Node, NodeId, Op, ValueId, text};
use symmc::unstable::plan::{
    ArenaKind, Bucket, Decision, FixedRole, MemoryRef, ParsedProgram, Step, StepNodes, ValuePlacement,
};
use symmc::{CheckedPlan, Graph, Plan};

pub struct PlannedBucket<'a> {
    pub bucket: &'a Bucket,
    pub program: &'a ParsedProgram,
    pub graph: &'a Graph,
    pub runs: Vec<StepNodes>,
    /// The position of the step of each node that is one or part of one.
    step_of: EntityMap<NodeId, Option<usize>>,
}

impl<'a> PlannedBucket<'a> {
    pub fn new(plan: &'a CheckedPlan, bucket: &'a Bucket) -> Result<Self> {
        let program = plan.program(bucket.program)?;
        let runs = program.resolve_steps(bucket).collect::<Result<Vec<StepNodes>, _>>()?;
        let mut step_of = EntityMap::filled(None, program.graph.nodes.len());
        for (step, run) in runs.iter().enumerate() {
            run.nodes().for_each(|n| step_of[n] = Some(step));
        }
        Ok(PlannedBucket { bucket, program, graph: &program.graph, runs, step_of })
    }

    fn find_node(&self, name: &str) -> Option<NodeId> {
        self.graph
            .defining_node(self.program.value_by_name(name)?)
            .filter(|&n| self.graph.node_name(n) == name)
    }

    /// The nodes of a step that compute something.
    pub fn nodes_of_step(&self, step: usize) -> impl Iterator<Item = &'a Node> + use<'_, 'a> {
        let nodes = self.runs.get(step).into_iter().flat_map(|run| run.nodes());
        nodes.filter(|&n| !self.program.is_view(n)).map(|n| &self.graph.nodes[n])
    }

    pub fn steps_of_decision(&self, decision: &Decision) -> Vec<&'a Step> {
        let step_of = |name: &String| self.find_node(name).and_then(|n| self.step_of[n]);
        let mut steps: Vec<usize> = decision.nodes.iter().filter_map(step_of).collect();
        steps.sort_unstable();
        steps.into_iter().map(|s| &self.bucket.steps[s]).collect()
    }

    pub fn op_names_of_step(&self, step: usize) -> String {
        let ops: Vec<&str> = self.nodes_of_step(step).map(|node| text::op_name(&node.op)).collect();
        ops.join(", ")
    }

    /// The first operand and the first result of what runs a collective.
    pub fn operand_and_result(&self, decision: &Decision) -> (Option<ValueId>, Option<ValueId>) {
        let node = |name: &String| self.find_node(name).map(|n| &self.graph.nodes[n]);
        let first = decision.nodes.first().and_then(node);
        let last = decision.nodes.last().and_then(node);
        (first.and_then(|n| n.inputs.first().copied()), last.and_then(|n| n.outputs.first().copied()))
    }

    pub fn placement(&self, value: ValueId) -> Option<&'a ValuePlacement> {
        self.bucket.places.get(self.graph.value_name(self.program.base(value)))
    }

    pub fn placement_name(&self, plan: &Plan, value: ValueId) -> String {
        match self.placement(value) {
            Some(place) => memory_name(plan, self.bucket, place.memory),
            None if self.program.is_dispatch_internal(self.program.base(value)) => "not stored".into(),
            None => "?".into(),
        }
    }

    /// The copies of the planned program: name, reason, and the input whose binding avoids it.
    pub fn copies(&self) -> Vec<(&str, String, Option<&str>)> {
        let copies = self.graph.nodes.values().filter(|n| n.op == Op::Copy);
        copies
            .filter_map(|node| {
                let (from, to) = (*node.inputs.first()?, *node.outputs.first()?);
                let place = self.placement(to)?;
                let base = self.program.base(from);
                let input = self.graph.inputs.values().find(|i| i.value == base);
                let symmetric = match place.memory {
                    MemoryRef::Buffer(i) => self.bucket.buffers.get(i)?.arena == ArenaKind::Symmetric,
                    _ => false,
                };
                let avoid = input.filter(|_| symmetric).map(|_| self.graph.value_name(base));
                Some((self.graph.value_name(to), place.why.clone(), avoid))
            })
            .collect()
    }

    pub fn step_of_value(&self, value: ValueId) -> Option<usize> {
        self.step_of[self.graph.defining_node(value)?]
    }
}

pub fn memory_name(plan: &Plan, bucket: &Bucket, memory: MemoryRef) -> String {
    match memory {
        MemoryRef::Buffer(i) => match bucket.buffers.get(i).map(|b| b.arena) {
            Some(ArenaKind::Symmetric) => "symmetric".into(),
            Some(ArenaKind::Ordinary) => "ordinary".into(),
            None => "?".into(),
        },
        MemoryRef::Fixed(i) => match plan.fixed.get(i).map(|f| &f.role) {
            Some(FixedRole::Bound { input }) => format!("bound input {input}"),
            _ => "symmetric".into(),
        },
        MemoryRef::Input(i) => format!("input {i}"),
        MemoryRef::Output(i) => format!("output {i}"),
    }
}
