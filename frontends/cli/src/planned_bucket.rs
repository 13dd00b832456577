//! A bucket of a plan together with its program: which nodes each step runs, and where values are placed.

use anyhow::Result;
use indexmap::IndexMap;
use symmc::unstable::ir::{EntityMap, Node, NodeId, Op, ValueId, text};
use symmc::unstable::plan::{
    ArenaKind, Bucket, Decision, FixedRole, MemoryRef, ParsedProgram, Step, StepNodes, ValuePlacement,
};
use symmc::{CheckedPlan, Graph, Plan};

pub struct PlannedBucket<'a> {
    pub bucket: &'a Bucket,
    pub program: &'a ParsedProgram,
    pub graph: &'a Graph,
    /// The nodes of each step.
    pub runs: Vec<StepNodes>,
    /// The index of the step that runs each node; `None` for nodes that no step runs, such as views.
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

    /// The nodes of a step, without views.
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

    /// The operand of the first node that runs a collective, and the result of the last one.
    pub fn operand_and_result(&self, decision: &Decision) -> (Option<ValueId>, Option<ValueId>) {
        let node = |name: &String| self.find_node(name).map(|n| &self.graph.nodes[n]);
        let first = decision.nodes.first().and_then(node);
        let last_node = decision.nodes.last().and_then(node);
        (first.and_then(|n| n.inputs.first().copied()), last_node.and_then(|n| n.outputs.first().copied()))
    }

    /// The bytes of a collective at `sizes`, the values of the symbols by name, in the sense of [`Decision::bytes`], which
    /// is for the upper ends of the bucket.
    ///
    /// The bytes are those of the larger of operand and result: of the nodes that run the collective, or of the collective
    /// in the `source`. If passes changed both, so that neither has the bytes of the decision at the upper ends, the bytes
    /// are scaled in proportion.
    pub fn bytes_at(&self, decision: &Decision, source: &Graph, sizes: &IndexMap<String, i64>) -> u64 {
        let upper: IndexMap<String, i64> =
            self.bucket.symbols.iter().map(|(name, range)| (name.clone(), range[1])).collect();
        let (operand, result) = self.operand_and_result(decision);
        let planned_values: Vec<ValueId> = operand.into_iter().chain(result).collect();
        let in_source = source
            .nodes
            .values()
            .find(|node| node.outputs.first().is_some_and(|&v| source.value_name(v) == decision.collective));
        let source_values: Vec<ValueId> = in_source
            .map(|node| node.inputs.first().into_iter().chain(node.outputs.first()).copied().collect())
            .unwrap_or_default();
        let mut scaled = None;
        for (graph, values) in [(self.graph, planned_values), (source, source_values)] {
            let at_upper = largest_bytes(graph, &values, &upper);
            let at_sizes = largest_bytes(graph, &values, sizes);
            if at_upper == decision.bytes {
                return at_sizes;
            }
            if at_upper > 0 && scaled.is_none() {
                scaled = Some(u128::from(decision.bytes) * u128::from(at_sizes) / u128::from(at_upper));
            }
        }
        scaled.map_or(decision.bytes, |bytes| u64::try_from(bytes).unwrap_or(u64::MAX))
    }

    pub fn placement(&self, value: ValueId) -> Option<&'a ValuePlacement> {
        self.bucket.places.get(self.graph.value_name(self.program.base(value)))
    }

    pub fn placement_name(&self, plan: &Plan, value: ValueId) -> String {
        match self.placement(value) {
            Some(placement) => memory_name(plan, self.bucket, placement.memory),
            None if self.program.is_dispatch_internal(self.program.base(value)) => "not stored".into(),
            None => "?".into(),
        }
    }

    /// The copies of the planned program: the name and the reason of each, and the input to bind to avoid it.
    pub fn copies(&self) -> Vec<(&str, String, Option<&str>)> {
        let copies = self.graph.nodes.values().filter(|n| n.op == Op::Copy);
        copies
            .filter_map(|node| {
                let from = *node.inputs.first()?;
                let result = *node.outputs.first()?;
                let placement = self.placement(result)?;
                let base = self.program.base(from);
                let input = self.graph.inputs.values().find(|i| i.value == base);
                let symmetric = match placement.memory {
                    MemoryRef::Buffer(i) => self.bucket.buffers.get(i)?.arena == ArenaKind::Symmetric,
                    _ => false,
                };
                let avoid = input.filter(|_| symmetric).map(|_| self.graph.value_name(base));
                Some((self.graph.value_name(result), placement.why.clone(), avoid))
            })
            .collect()
    }

    pub fn step_of_value(&self, value: ValueId) -> Option<usize> {
        self.step_of[self.graph.defining_node(value)?]
    }
}

/// The bytes of the largest of these values at `sizes`. Symbols without a size count at the upper ends of their ranges.
fn largest_bytes(graph: &Graph, values: &[ValueId], sizes: &IndexMap<String, i64>) -> u64 {
    let mut symbols = graph.symbols.clone();
    for symbol in symbols.values_mut() {
        if let Some(&size) = sizes.get(&symbol.name) {
            symbol.min = size;
            symbol.max = size;
        }
    }
    let bytes = |&v: &ValueId| u64::try_from(graph.ty(v).bytes().upper_bound(&symbols)).unwrap_or(0);
    values.iter().map(bytes).max().unwrap_or(0)
}

/// How reports name the memory that a value is placed in.
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
