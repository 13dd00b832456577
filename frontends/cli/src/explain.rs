//! `symmc plan --explain NAME`: where a value is placed and why, when its memory is occupied and who accesses it
//! ([`lifetime`]), which other nodes its step runs ([`dispatch_report`]), and how its collective was chosen.
//!
//! A name is that of a value (`%x`, with or without `%`), or that of a weight or an input where the program came from
//! (`layer.0.weight`).

mod lifetime;

use std::collections::HashSet;
use std::fmt::Write;

use anyhow::{Result, bail};
use symmc::unstable::ir::{ValueId, text};
use symmc::unstable::plan::{ArenaKind, Bucket, Decision, ExitBarrier, MemoryRef, ValuePlacement};
use symmc::{CheckedPlan, Plan, TriedProposal};

use crate::dispatch_report;
use crate::planned_bucket::{self, PlannedBucket};
use crate::report::kept_barrier_reason;
use crate::units::{format_bytes, format_micros};

/// Explains one value in all buckets of a plan. `value` is the name of a value, with or without `%`, or the name under
/// which a weight or an input is stored. `tried` has the choices that the search planned for each bucket, if they are
/// known.
pub fn explain(plan: &CheckedPlan, value: &str, tried: &[Vec<TriedProposal>]) -> Result<String> {
    let name = resolve_name(plan, value);
    let mut out = String::new();
    let mut bucket_count = 0;
    for (b, bucket) in plan.buckets.iter().enumerate() {
        let planned = PlannedBucket::new(plan, bucket)?;
        let Some(id) = planned.graph.values.iter().find(|(_, v)| v.name == name).map(|(id, _)| id) else {
            continue;
        };
        bucket_count += 1;
        if plan.buckets.len() > 1 {
            writeln!(out, "{}:", bucket.describe_range())?;
        }
        out.push_str(&explain_value(plan, bucket, &planned, id)?);
        let decision = bucket.decisions.iter().find(|d| concerns(d, name));
        if let (Some(decision), Some(tried)) = (decision, tried.get(b)) {
            out.push_str(&search_text(&decision.collective, tried));
        }
    }
    let is_replaced = plan.replacements.iter().any(|r| r.collective == name);
    if bucket_count == 0 && !is_replaced {
        return explain_unknown(plan, name);
    }
    // If passes replaced the collective by one of a part, that one keeps the name, and all buckets have the value.
    let in_part = plan.replacements.iter().any(|r| r.collective == name && r.by[..] == [name.to_string()]);
    if is_replaced && (bucket_count < plan.buckets.len() || in_part) {
        if bucket_count > 0 && !in_part {
            writeln!(out, "other buckets:")?;
        }
        explain_replacements(plan, name, &mut out, usize::from(bucket_count > 0), &mut HashSet::new());
    }
    Ok(out)
}

/// The name in the program of the value that the user names. Values come first, then weights and inputs by the names
/// under which they are stored.
fn resolve_name<'a>(plan: &'a CheckedPlan, value: &'a str) -> &'a str {
    let source = plan.source_program();
    let name = value.trim_start_matches('%');
    let is_collective = plan.replacements.iter().any(|r| r.collective == name);
    if is_collective || source.values.values().any(|v| v.name == name) {
        return name;
    }
    let stored = source.inputs.values().find(|input| !input.source.is_empty() && input.source == name);
    stored.map_or(name, |input| source.value_name(input.value))
}

fn explain_value(plan: &Plan, bucket: &Bucket, planned: &PlannedBucket<'_>, id: ValueId) -> Result<String> {
    let graph = planned.graph;
    let mut out = String::new();
    let ty = graph.ty(id).display(&graph.symbols);
    writeln!(out, "%{}: {ty}", graph.value_name(id))?;
    let input = graph.inputs.values().find(|input| input.value == id);
    let stored_name = input.map_or("", |input| &input.source);
    if !stored_name.is_empty() && stored_name != graph.value_name(id) {
        writeln!(out, "  stored as {stored_name}")?;
    }
    if let Some(node) = graph.defining_node(id) {
        let step =
            planned.step_of_value(id).map_or_else(|| "a view, no step".into(), |s| format!("step {s}"));
        writeln!(out, "  made by {} ({step})", text::op_name(&graph.nodes[node].op))?;
        out.push_str(&dispatch_report::dispatch_text(planned, node, &plan.machine));
    }
    let base = planned.program.base(id);
    if base != id {
        writeln!(out, "  a view of %{}", graph.value_name(base))?;
    }
    if planned.program.is_dispatch_internal(base) {
        writeln!(out, "  has no memory: only its own step uses it")?;
    }
    if let Some(placement) = planned.placement(id) {
        out.push_str(&placement_text(plan, bucket, placement));
        out.push_str(&lifetime::lifetime_text(planned, base, placement));
    }
    for decision in bucket.decisions.iter().filter(|d| concerns(d, graph.value_name(id))) {
        out.push_str(&decision_text(planned, decision));
    }
    Ok(out)
}

/// Whether a decision is about the collective or a node of this name.
fn concerns(decision: &Decision, name: &str) -> bool {
    decision.collective == name || decision.nodes.iter().any(|n| n == name)
}

/// Lines on the memory of a value, and why it is there.
fn placement_text(plan: &Plan, bucket: &Bucket, place: &ValuePlacement) -> String {
    let mut out = String::new();
    let mut line = |text: String| {
        let _ = writeln!(out, "  {text}");
    };
    let inner = if place.offset == "0" { String::new() } else { format!(" + {}", place.offset) };
    let by_rank =
        place.by_rank.as_ref().map_or_else(String::new, |b| format!(" + {} × rank in {}", b.stride, b.group));
    match place.memory {
        MemoryRef::Buffer(i) => {
            let Some(b) = bucket.buffers.get(i) else { return out };
            let arena = if b.arena == ArenaKind::Symmetric { "symmetric" } else { "ordinary" };
            line(format!(
                "lives in the {arena} arena at {}{inner}{by_rank}, in a buffer of {}",
                b.offset,
                format_bytes(b.size)
            ));
        }
        memory => {
            line(format!("lives in {}{inner}{by_rank}", planned_bucket::memory_name(plan, bucket, memory)))
        }
    }
    line(format!("why: {}", place.why));
    out
}

/// The most tried choices that are listed.
const MAX_LISTED_CHOICES: usize = 12;

/// Lines on the whole plans that the search tried for a collective, cheapest first: those that change all collectives, and
/// those that change this one.
fn search_text(collective: &str, tried: &[TriedProposal]) -> String {
    if tried.is_empty() {
        return String::new();
    }
    let last = tried.iter().map(|t| t.cost.min(t.before)).fold(f64::INFINITY, f64::min);
    let concerns =
        |t: &&TriedProposal| t.collectives.is_empty() || t.collectives.iter().any(|name| name == collective);
    let mut choices: Vec<&TriedProposal> = tried.iter().filter(concerns).collect();
    choices.sort_by(|a, b| a.cost.total_cmp(&b.cost));
    let mut out = String::new();
    let _ = writeln!(out, "  whole plans tried for it, with the cost above the chosen plan:");
    for t in choices.iter().take(MAX_LISTED_CHOICES) {
        let count = match t.collectives.len() {
            0 | 1 => String::new(),
            n => format!(" for {n} equal collectives"),
        };
        let _ = writeln!(out, "    +{} {}: {}{count}", format_micros(t.cost - last), t.proposal, t.change);
    }
    if choices.len() > MAX_LISTED_CHOICES {
        let _ = writeln!(out, "    and {} more", choices.len() - MAX_LISTED_CHOICES);
    }
    out
}

/// Lines on how a collective was chosen: all variants with their estimates, the rules, and the exit barriers.
fn decision_text(planned: &PlannedBucket<'_>, decision: &Decision) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "  chosen for %{} of {}: {}",
        decision.collective,
        format_bytes(decision.bytes),
        decision.chosen
    );
    for a in &decision.alternatives {
        let mark = if a.name == decision.chosen { "→" } else { " " };
        let copies = if a.copy_us > 0.0 {
            format!(", of this {} for copies", format_micros(a.copy_us))
        } else {
            String::new()
        };
        let saved = match a.saved_us {
            us if us > 0.0 => {
                format!(", {} less because its kernel also runs the next step", format_micros(us))
            }
            _ => String::new(),
        };
        let _ = writeln!(out, "    {mark} {} {}{copies}{saved}", a.name, format_micros(a.us));
    }
    let _ = writeln!(out, "  rules that led to it:");
    for rule in &decision.rules {
        let us = rule.us.map_or_else(String::new, |us| format!(" {}", format_micros(us)));
        let _ = writeln!(out, "    {}{us}", rule.name);
    }
    for step in planned.steps_of_decision(decision) {
        let barrier = match step.exit {
            Some(ExitBarrier::Dropped) => match step.exit_bytes.unwrap_or(0) {
                0 => "dropped: longer lifetimes replace it, without more memory".into(),
                n => format!(
                    "dropped: longer lifetimes replace it, at a cost of {} of the symmetric arena",
                    format_bytes(n)
                ),
            },
            Some(ExitBarrier::Kept) => format!("kept: {}", kept_barrier_reason(step.exit_bytes)),
            None => continue,
        };
        let _ = writeln!(out, "  exit barrier of %{}: {barrier}", step.node);
    }
    out
}

/// Explains by which rules a collective was replaced before variants were chosen, and which collectives run in its place.
/// These may have been replaced in turn.
fn explain_replacements(
    plan: &CheckedPlan,
    name: &str,
    out: &mut String,
    depth: usize,
    known: &mut HashSet<String>,
) {
    if depth >= MAX_DEPTH || !known.insert(name.to_string()) {
        return;
    }
    for r in plan.replacements.iter().filter(|r| r.collective == name) {
        let space = "  ".repeat(depth);
        let size =
            if r.bytes > 0 { format!(", {} in the program", format_bytes(r.bytes)) } else { String::new() };
        let _ = writeln!(out, "{space}%{name}{size}: {} ({})", r.what, r.rule);
        for by in r.by.iter().filter(|by| *by != name) {
            let decided = plan.buckets.iter().flat_map(|b| &b.decisions).filter(|d| concerns(d, by));
            let largest = decided.max_by_key(|d| d.bytes);
            let _ = match largest {
                Some(d) => {
                    writeln!(
                        out,
                        "{space}  in its place: %{by} of {}, by {}",
                        format_bytes(d.bytes),
                        d.chosen
                    )
                }
                None => writeln!(out, "{space}  in its place: %{by}"),
            };
            explain_replacements(plan, by, out, depth + 1, known);
        }
    }
}

/// The most replacements that are explained one inside the other.
const MAX_DEPTH: usize = 16;

/// The text for a value that no planned program has, or an error if the source does not have it either.
fn explain_unknown(plan: &CheckedPlan, name: &str) -> Result<String> {
    if plan.source_program().values.values().any(|v| v.name == name) {
        return Ok(format!(
            "%{name} was simplified away; `symmc print --stage canonical` shows the remaining values\n"
        ));
    }
    bail!("the program has no value, weight or input {name}; `symmc print` lists all names")
}
