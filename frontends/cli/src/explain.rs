//! `symmc plan --explain %value`: where a value lives, until when, who may touch it ([`life`]), with what it is computed
//! in one step ([`together`]), and how its collective was chosen.

mod life;
pub mod together;

use std::fmt::Write;

use anyhow::{Result, anyhow, bail};
use symmc::unstable::ir::{Node, NodeId, Op, Table, ValueId, text};
use symmc::unstable::plan::{ArenaKind, Barrier, Bucket, Decision, Memory, Place, Program, Run, Step};
use symmc::{CheckedPlan, Graph, Plan};

use crate::report;
use crate::units::{bytes, micros};

/// A bucket with its planned program.
pub struct Planned<'a> {
    bucket: &'a Bucket,
    program: &'a Program,
    graph: &'a Graph,
    /// What each step runs.
    runs: Vec<Run>,
    /// The position of the step of each node that is one or part of one.
    step_of: Table<NodeId, Option<usize>>,
}

impl<'a> Planned<'a> {
    /// A bucket of a plan.
    pub fn new(plan: &'a CheckedPlan, bucket: &'a Bucket) -> Result<Self> {
        let program = plan.programs().get(bucket.program);
        let program = program.ok_or_else(|| anyhow!("the plan has no program {}", bucket.program))?;
        let runs = program.runs(bucket).collect::<Result<Vec<Run>, _>>()?;
        let mut step_of = Table::filled(None, program.graph.nodes.len());
        for (step, run) in runs.iter().enumerate() {
            run.nodes().for_each(|n| step_of[n] = Some(step));
        }
        Ok(Planned { bucket, program, graph: &program.graph, runs, step_of })
    }

    /// The node of a name.
    fn node(&self, name: &str) -> Option<NodeId> {
        self.graph.def_node(self.program.named(name)?).filter(|&n| self.graph.node_name(n) == name)
    }

    /// The nodes of a step that compute something.
    fn nodes_of(&self, step: usize) -> impl Iterator<Item = &'a Node> + use<'_, 'a> {
        let nodes = self.runs.get(step).into_iter().flat_map(|run| run.nodes());
        nodes.filter(|&n| !self.program.is_view(n)).map(|n| &self.graph.nodes[n])
    }

    /// The steps that run a collective, in their order.
    pub fn steps_of(&self, decision: &Decision) -> Vec<&'a Step> {
        let step_of = |name: &String| self.node(name).and_then(|n| self.step_of[n]);
        let mut steps: Vec<usize> = decision.nodes.iter().filter_map(step_of).collect();
        steps.sort_unstable();
        steps.into_iter().map(|s| &self.bucket.steps[s]).collect()
    }

    /// The names of the ops of a step.
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

    /// The place of a value's base.
    pub fn place(&self, value: ValueId) -> Option<&'a Place> {
        self.bucket.places.get(self.graph.name_of(self.program.base(value)))
    }

    /// The memory of a value in few words.
    pub fn short_place(&self, plan: &Plan, value: ValueId) -> String {
        match self.place(value) {
            Some(place) => report::memory(plan, self.bucket, place.memory),
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

    fn step_of(&self, value: ValueId) -> Option<usize> {
        self.step_of[self.graph.def_node(value)?]
    }
}

/// The explanation of a value in every bucket.
pub fn explain(plan: &CheckedPlan, value: &str) -> Result<String> {
    let name = value.trim_start_matches('%');
    let mut out = String::new();
    let mut known = false;
    for bucket in &plan.buckets {
        let planned = Planned::new(plan, bucket)?;
        let Some(id) = planned.graph.values.iter().find(|(_, v)| v.name == name).map(|(id, _)| id) else {
            continue;
        };
        known = true;
        if plan.buckets.len() > 1 {
            writeln!(out, "{}:", bucket.range())?;
        }
        out.push_str(&one(plan, bucket, &planned, id)?);
    }
    if known { Ok(out) } else { unknown(plan, name) }
}

fn one(plan: &Plan, bucket: &Bucket, planned: &Planned<'_>, id: ValueId) -> Result<String> {
    let graph = planned.graph;
    let mut out = String::new();
    let ty = graph.ty(id).display(&graph.symbols);
    writeln!(out, "%{}: {ty}", graph.name_of(id))?;
    if let Some(node) = graph.def_node(id) {
        let step = planned.step_of(id).map_or_else(|| "a view, no step".into(), |s| format!("step {s}"));
        writeln!(out, "  made by {} ({step})", text::op_name(&graph.nodes[node].op))?;
        out.push_str(&together::text(planned, node, &plan.machine));
    }
    let base = planned.program.base(id);
    if base != id {
        writeln!(out, "  a view of %{}", graph.name_of(base))?;
    }
    if planned.program.is_inner(base) {
        writeln!(out, "  has no memory: only this step knows it")?;
    }
    if let Some(place) = planned.place(id) {
        out.push_str(&place_text(plan, bucket, place));
        out.push_str(&life::text(planned, base, place));
    }
    for decision in bucket.decisions.iter().filter(|d| about(d, graph.name_of(id))) {
        out.push_str(&decision_text(planned, decision));
    }
    Ok(out)
}

fn about(decision: &Decision, name: &str) -> bool {
    decision.collective == name || decision.nodes.iter().any(|n| n == name)
}

fn place_text(plan: &Plan, bucket: &Bucket, place: &Place) -> String {
    let mut out = String::new();
    let mut line = |text: String| {
        let _ = writeln!(out, "  {text}");
    };
    let inner = if place.offset == "0" { String::new() } else { format!(" + {}", place.offset) };
    let by_rank =
        place.by_rank.as_ref().map_or_else(String::new, |b| format!(" + {} × rank in {}", b.stride, b.group));
    match place.memory {
        Memory::Buffer(i) => {
            let Some(b) = bucket.buffers.get(i) else { return out };
            let arena = if b.arena == ArenaKind::Symmetric { "symmetric" } else { "ordinary" };
            line(format!(
                "lives in the {arena} arena at {}{inner}{by_rank}, in a buffer of {}",
                b.offset,
                bytes(b.size)
            ));
        }
        memory => line(format!("lives in {}{inner}{by_rank}", report::memory(plan, bucket, memory))),
    }
    line(format!("why: {}", place.why));
    out
}

fn decision_text(planned: &Planned<'_>, decision: &Decision) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "  chosen for %{} of {}: {}",
        decision.collective,
        bytes(decision.bytes),
        decision.chosen
    );
    for a in &decision.alternatives {
        let mark = if a.name == decision.chosen { "→" } else { " " };
        let copies =
            if a.copy_us > 0.0 { format!(", {} of it copies", micros(a.copy_us)) } else { String::new() };
        let saved = match a.saved_us {
            us if us > 0.0 => format!(", {} less because it adds the residual", micros(us)),
            _ => String::new(),
        };
        let _ = writeln!(out, "    {mark} {} {}{copies}{saved}", a.name, micros(a.us));
    }
    let _ = writeln!(out, "  rules that led there:");
    for rule in &decision.rules {
        let us = rule.us.map_or_else(String::new, |us| format!(" {}", micros(us)));
        let _ = writeln!(out, "    {}{us}", rule.name);
    }
    for step in planned.steps_of(decision) {
        let barrier = match step.exit {
            Some(Barrier::Dropped) => match step.exit_bytes.unwrap_or(0) {
                0 => "dropped: lifetimes stand in for it, in memory that is there".into(),
                n => format!("dropped: lifetimes stand in for it, for {} of the symmetric arena", bytes(n)),
            },
            Some(Barrier::Kept) => format!("kept: {}", report::kept_because(step.exit_bytes)),
            None => continue,
        };
        let _ = writeln!(out, "  exit barrier of %{}: {barrier}", step.node);
    }
    out
}

/// What to say of a value that the planned programs do not have.
///
/// # Errors
/// The imported program does not have it either.
fn unknown(plan: &CheckedPlan, name: &str) -> Result<String> {
    if plan.source_program().values.values().any(|v| v.name == name) {
        return Ok(format!(
            "%{name} was simplified away; `symmc print --stage canonical` shows what remains\n"
        ));
    }
    bail!("the program has no value %{name}; `symmc print` lists them")
}
