//! What `symmc plan` prints for people.

use std::collections::HashMap;
use std::fmt::Write;

use anyhow::Result;
use indexmap::IndexMap;
use symmc::unstable::ir::{Node, text};
use symmc::unstable::plan::{ArenaKind, Bucket, Decision, ExitBarrier, Role};
use symmc::{CheckedPlan, Estimate, Order, Plan};

use crate::gpu;
use crate::planned::Planned;
use crate::together;
use crate::units::{bytes, count, gap, micros, table};

pub struct Times {
    pub chosen: Vec<Estimate>,
    /// The time of each bucket if all collectives are plain, in microseconds; none where it is not known.
    pub plain: Vec<Option<f64>>,
}

/// The whole report, without estimated times of runs, which need a machine profile.
pub fn report(plan: &CheckedPlan) -> Result<String> {
    report_with_times(plan, None)
}

pub fn report_with_times(plan: &CheckedPlan, times: Option<&Times>) -> Result<String> {
    let mut out = String::new();
    writeln!(out, "{}: {}", plan.source.name, sizes(plan))?;
    for (b, bucket) in plan.buckets.iter().enumerate() {
        let planned = Planned::new(plan, bucket)?;
        writeln!(out, "\n{}", bucket.range())?;
        out.push_str(&collectives(plan, bucket, &planned));
        out.push_str(&times.map_or_else(String::new, |t| time(&t.chosen[b], t.plain[b])));
        out.push_str(&totals(plan, bucket));
        out.push_str(&together::summary(&planned));
        out.push_str(&copies(bucket, &planned));
    }
    out.push_str(&rest(plan));
    Ok(out)
}

fn time(chosen: &Estimate, plain: Option<f64>) -> String {
    let [total, compute, exposed] = [chosen.total_us, chosen.compute_us, chosen.exposed_us].map(micros);
    let plain = match plain {
        Some(plain) if chosen.total_us < plain => {
            format!("; {} with plain collectives, saved {}", micros(plain), micros(plain - chosen.total_us))
        }
        Some(plain) => format!("; {} with plain collectives", micros(plain)),
        None => String::new(),
    };
    format!(
        "  estimated time of a run: {total}: computation {compute}, exposed communication {exposed}{plain}\n"
    )
}

/// What holds for all buckets, in lines.
pub fn rest(plan: &CheckedPlan) -> String {
    fixed(plan) + &unserved(plan) + &gpu::dependent_launch(plan)
}

/// Ranks, machine, numerics classes if there are any, and buckets.
pub fn sizes(plan: &Plan) -> String {
    let (ranks, buckets) = (count(plan.ranks, "rank"), count(plan.buckets.len() as u64, "bucket"));
    format!("{ranks}, machine {}{}, {buckets}", plan.machine, plan.numerics.report_suffix())
}

/// One line for each symbol whose largest values no bucket serves.
fn unserved(plan: &CheckedPlan) -> String {
    let mut out = String::new();
    for symbol in plan.source_program().symbols.values() {
        let served = plan.buckets.iter().filter_map(|b| Some(b.symbols.get(&symbol.name)?[1])).max();
        if let Some(high) = served.filter(|&high| high < symbol.max) {
            let _ = writeln!(out, "\n{} above {high} is served by no bucket", symbol.name);
        }
    }
    out
}

fn collectives(plan: &Plan, bucket: &Bucket, planned: &Planned<'_>) -> String {
    let rows = collective_rows(plan, bucket, planned);
    if rows.len() < 2 { "  no collectives\n".into() } else { table(&rows) }
}

/// A head, and one row for each collective; equal ones share a row.
pub fn collective_rows(plan: &Plan, bucket: &Bucket, planned: &Planned<'_>) -> Vec<Vec<String>> {
    let mut rows: IndexMap<Vec<String>, Vec<&str>> = IndexMap::new();
    for decision in &bucket.decisions {
        rows.entry(row(plan, planned, decision)).or_default().push(&decision.collective);
    }
    let head = ["collective", "bytes", "chosen", "estimate", "runner-up", "", "plain", "operand", "result"];
    let mut cells = vec![head.map(str::to_string).to_vec()];
    for (row, names) in rows {
        let name = match names.as_slice() {
            [one] => format!("%{one}"),
            [first, .., last] => format!("%{first} … %{last} (×{})", names.len()),
            [] => continue,
        };
        cells.push([vec![name], row].concat());
    }
    cells
}

/// How many kinds of collectives [`decided`] shows.
const DECIDED: usize = 4;

/// What was decided for the collectives that a run has: a line for each kind.
pub fn decided(plan: &CheckedPlan, bucket: usize) -> Result<String> {
    let Some(bucket) = plan.buckets.get(bucket) else { return Ok(String::new()) };
    let planned = Planned::new(plan, bucket)?;
    let source = plan.source_program();
    let named = |node: &Node| Some((source.name_of(*node.outputs.first()?), text::op_name(&node.op)));
    let ops: HashMap<&str, &str> = source.nodes.values().filter_map(named).collect();
    let mut kinds: IndexMap<String, usize> = IndexMap::new();
    for decision in &bucket.decisions {
        let op = ops.get(decision.collective.as_str()).copied().unwrap_or("collective");
        let place = |v: Option<_>| v.map_or_else(|| "?".into(), |v| planned.short_place(plan, v));
        let (operand, result) = planned.ends(decision);
        let estimate =
            |name: &str| decision.alternatives.iter().find(|a| a.name == name).map(|a| micros(a.us));
        let estimates = match (estimate(&decision.chosen), estimate("plain")) {
            (Some(chosen), Some(plain)) if decision.chosen != "plain" => {
                format!("; estimated {chosen}, plain {plain}")
            }
            _ => String::new(),
        };
        let (size, chosen) = (bytes(decision.bytes), &decision.chosen);
        let kind =
            format!("{op} of {size} as {chosen}, memory {} to {}{estimates}", place(operand), place(result));
        *kinds.entry(kind).or_default() += 1;
    }
    let mut out = String::new();
    for (kind, times) in kinds.iter().take(DECIDED) {
        writeln!(out, "{}: {times} × {kind}", plan.source.name)?;
    }
    if let Some(more @ 1..) = kinds.len().checked_sub(DECIDED) {
        writeln!(
            out,
            "{}: and {more} more kinds of collectives, which `symmc plan` shows",
            plan.source.name
        )?;
    }
    Ok(out)
}

fn row(plan: &Plan, planned: &Planned<'_>, decision: &Decision) -> Vec<String> {
    let estimate = |name: &str| decision.alternatives.iter().find(|a| a.name == name).map(|a| micros(a.us));
    let runner_up = decision.alternatives.iter().find(|a| a.name != decision.chosen);
    let mut chosen = decision.chosen.clone();
    for step in planned.steps_of(decision) {
        match step.exit {
            Some(ExitBarrier::Dropped) => chosen.push_str(", no exit barrier"),
            Some(ExitBarrier::Kept) => chosen.push_str(", exit barrier"),
            None => {}
        }
    }
    let (operand, result) = planned.ends(decision);
    let place = |v: Option<_>| v.map_or_else(String::new, |v| planned.short_place(plan, v));
    vec![
        bytes(decision.bytes),
        chosen,
        estimate(&decision.chosen).unwrap_or_default(),
        runner_up.map_or_else(|| "none".into(), |a| a.name.clone()),
        runner_up.map_or_else(String::new, |a| micros(a.us)),
        estimate("plain").unwrap_or_default(),
        place(operand),
        place(result),
    ]
}

/// A head, and one row for each arena.
pub fn arena_rows(bucket: &Bucket) -> [Vec<String>; 3] {
    let t = &bucket.totals;
    [
        ["arena", "peak", "max-live bound", "gap"].map(str::to_string).to_vec(),
        vec![
            "ordinary".into(),
            bytes(t.ordinary_peak),
            bytes(t.ordinary_bound),
            gap(t.ordinary_peak, t.ordinary_bound),
        ],
        vec![
            "symmetric".into(),
            bytes(t.symmetric_peak),
            bytes(t.symmetric_bound),
            gap(t.symmetric_peak, t.symmetric_bound),
        ],
    ]
}

fn totals(plan: &Plan, bucket: &Bucket) -> String {
    table(&arena_rows(bucket)) + &notes(plan, bucket)
}

/// What arenas, barriers and the workspace take, in lines.
pub fn notes(plan: &Plan, bucket: &Bucket) -> String {
    let (t, mut out) = (&bucket.totals, String::new());
    let buffers = |kind| bucket.buffers.iter().filter(|b| b.arena == kind).count();
    let _ = writeln!(
        out,
        "  {}; {} ordinary and {} symmetric buffers; arenas of {} and {} serve all buckets",
        count(bucket.steps.len() as u64, "step"),
        buffers(ArenaKind::Ordinary),
        buffers(ArenaKind::Symmetric),
        bytes(plan.arenas.ordinary),
        bytes(plan.arenas.symmetric),
    );
    if t.workspace > 0 {
        let _ =
            writeln!(out, "  GPUs use a workspace of {} beside them, one step at a time", bytes(t.workspace));
    }
    out.push_str(&barriers(bucket));
    out
}

/// How many exit barriers are dropped and kept, and why those are kept; equal ones share a line.
fn barriers(bucket: &Bucket) -> String {
    let t = &bucket.totals;
    let cost = match t.barrier_bytes {
        0 => String::new(),
        n => format!(" for {} of the symmetric arena", bytes(n)),
    };
    let mut out =
        format!("  exit barriers: {} dropped{cost}, {} kept\n", t.barriers_dropped, t.barriers_kept);
    let mut kept: IndexMap<Option<u64>, Vec<&str>> = IndexMap::new();
    for step in bucket.steps.iter().filter(|s| s.exit == Some(ExitBarrier::Kept)) {
        kept.entry(step.exit_bytes).or_default().push(&step.node);
    }
    for (cost, nodes) in kept {
        let names = match nodes.as_slice() {
            [one] => format!("%{one}"),
            [first, .., last] => format!("%{first} … %{last} (×{}), each", nodes.len()),
            [] => continue,
        };
        let _ = writeln!(out, "    {names}: {}", kept_because(cost));
    }
    out
}

/// Why a droppable exit barrier is kept, by what dropping it alone would cost.
pub fn kept_because(cost: Option<u64>) -> String {
    match cost {
        None => "nothing else tells that peers have left its operand when that is written again".into(),
        Some(0) => "dropping it together with others would take more than the limit".into(),
        Some(n) => format!("dropping it would take {} more of the symmetric arena", bytes(n)),
    }
}

pub fn copies(bucket: &Bucket, planned: &Planned<'_>) -> String {
    let t = &bucket.totals;
    if t.copies == 0 {
        return "  copies: none\n".into();
    }
    let mut out = format!("  copies: {}, {} in each run\n", t.copies, bytes(t.copied));
    for (name, why, avoid) in planned.copies() {
        let _ = writeln!(out, "    %{name}: {why}");
        if let Some(input) = avoid {
            let _ = writeln!(out, "      a caller avoids it with --bind {input}");
        }
    }
    out
}

fn fixed(plan: &Plan) -> String {
    let mut out = String::new();
    for fixed in &plan.fixed {
        let what = match &fixed.role {
            Role::Landing { group, zone } => format!("landing zone {zone} of group {group}"),
            Role::Bound { input } => format!("bound input {input}"),
        };
        if out.is_empty() {
            out.push_str("\nfixed symmetric memory\n");
        }
        let _ = writeln!(out, "  {what}: {} at {}", bytes(fixed.size), fixed.offset);
    }
    out
}

/// What plans of one program in several orders need, a row for each as they are given.
pub fn orders(plans: &[(Order, CheckedPlan)]) -> String {
    let need = |plan: &Plan| {
        let peaks = plan.buckets.iter().map(|b| (b.totals.ordinary_peak, b.totals.symmetric_peak));
        peaks.max_by_key(|(o, s)| o + s).unwrap_or_default()
    };
    let program = plans.iter().find(|(order, _)| *order == Order::Program).map(|(_, p)| need(p));
    let program = program.map_or(0, |(o, s)| o + s);
    let mut rows = vec![["order", "ordinary", "symmetric", "both", ""].map(str::to_string).to_vec()];
    for (order, plan) in plans {
        let (ordinary, symmetric) = need(plan);
        let both = ordinary + symmetric;
        let change = (both as f64 / program.max(1) as f64 - 1.0) * 100.0;
        let change = if both == program { "=".into() } else { format!("{change:+.1} %") };
        rows.push(vec![order.name().into(), bytes(ordinary), bytes(symmetric), bytes(both), change]);
    }
    format!("peaks of the largest bucket; the last column is against program order\n{}", table(&rows))
}
