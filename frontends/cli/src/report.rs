//! The text report of `symmc plan`, and the lines that `symmc run` prints about collectives.
//!
//! All texts here are for people. They may change with any version; `--format summary` is the form for programs.

use std::collections::HashMap;
use std::fmt::Write;

use anyhow::Result;
use indexmap::IndexMap;
use symmc::unstable::ir::{Node, text};
use symmc::unstable::plan::{ArenaKind, Bucket, Decision, ExitBarrier, FixedRole};
use symmc::{BucketEstimate, CheckedPlan, OrderStrategy, Plan};

use crate::dispatch_report;
use crate::gpu;
use crate::planned_bucket::PlannedBucket;
use crate::units::{format_bytes, format_count, format_gap, format_micros, format_table};

pub struct EstimatedTimes {
    pub chosen: Vec<BucketEstimate>,
    /// The time of each bucket if all collectives are plain, in microseconds; `None` where it is not known.
    pub plain: Vec<Option<f64>>,
}

/// The whole report without the estimated times of runs, which need a machine profile.
pub fn report(plan: &CheckedPlan) -> Result<String> {
    report_with_times(plan, None)
}

pub fn report_with_times(plan: &CheckedPlan, times: Option<&EstimatedTimes>) -> Result<String> {
    let mut out = String::new();
    writeln!(out, "{}: {}", plan.source.name, plan_line(plan))?;
    for (b, bucket) in plan.buckets.iter().enumerate() {
        let planned = PlannedBucket::new(plan, bucket)?;
        writeln!(out, "\n{}", bucket.describe_range())?;
        out.push_str(&collective_table(plan, bucket, &planned));
        out.push_str(&times.map_or_else(String::new, |t| time_line(&t.chosen[b], t.plain[b])));
        out.push_str(&total_lines(plan, bucket));
        out.push_str(&dispatch_report::dispatch_summary(&planned));
        out.push_str(&copy_lines(bucket, &planned));
    }
    out.push_str(&common_lines(plan));
    Ok(out)
}

/// One line: the estimated time of a run, its parts, and the time with plain collectives. Steps that are not estimated
/// make it a lower bound.
pub fn time_line(chosen: &BucketEstimate, plain: Option<f64>) -> String {
    let [total, compute, exposed] =
        [chosen.total_us, chosen.compute_us, chosen.exposed_us].map(format_micros);
    let plain = match plain {
        Some(plain) if chosen.total_us < plain => {
            format!(
                "; {} with plain collectives, saved {}",
                format_micros(plain),
                format_micros(plain - chosen.total_us)
            )
        }
        Some(plain) => format!("; {} with plain collectives", format_micros(plain)),
        None => String::new(),
    };
    let modelled = modelled_text(chosen);
    let (least, unestimated) = match chosen.unestimated_steps {
        0 => ("", String::new()),
        1 => ("at least ", "; 1 step is not estimated".into()),
        steps => ("at least ", format!("; {steps} steps are not estimated")),
    };
    format!(
        "  estimated time of a run: {least}{total}: computation {compute}, exposed communication {exposed}{plain}{modelled}{unestimated}\n"
    )
}

/// How many of the steps that communicate have times of a model.
fn modelled_text(chosen: &BucketEstimate) -> String {
    let steps = chosen.communication.len();
    match chosen.communication.iter().filter(|c| c.is_modelled).count() {
        0 => String::new(),
        modelled if modelled == steps => "; times of collectives are modelled, not measured".to_string(),
        modelled => format!("; times of {modelled} of {steps} collectives are modelled, not measured"),
    }
}

/// The part of the report that concerns all buckets.
pub fn common_lines(plan: &CheckedPlan) -> String {
    fixed_memory_lines(plan) + &unserved_lines(plan) + &gpu::dependent_launch(plan)
}

/// One line: ranks, machine, numerics classes if there are any, and buckets.
pub fn plan_line(plan: &Plan) -> String {
    let ranks = format_count(plan.ranks, "rank");
    let buckets = format_count(plan.buckets.len() as u64, "bucket");
    format!("{ranks}, machine {}{}, {buckets}", plan.machine, plan.numerics.report_suffix())
}

/// One line for each symbol with values above all buckets.
fn unserved_lines(plan: &CheckedPlan) -> String {
    let mut out = String::new();
    for symbol in plan.source_program().symbols.values() {
        let served = plan.buckets.iter().filter_map(|b| Some(b.symbols.get(&symbol.name)?[1])).max();
        if let Some(high) = served.filter(|&high| high < symbol.max) {
            let _ = writeln!(out, "\nno bucket serves {} above {high}", symbol.name);
        }
    }
    out
}

fn collective_table(plan: &Plan, bucket: &Bucket, planned: &PlannedBucket<'_>) -> String {
    let rows = collective_rows(plan, bucket, planned);
    if rows.len() < 2 { "  no collectives\n".into() } else { format_table(&rows) }
}

/// A header, and one row for each collective. Collectives with equal cells share a row.
pub fn collective_rows(plan: &Plan, bucket: &Bucket, planned: &PlannedBucket<'_>) -> Vec<Vec<String>> {
    let mut rows: IndexMap<Vec<String>, Vec<&str>> = IndexMap::new();
    for decision in &bucket.decisions {
        rows.entry(decision_row(plan, planned, decision)).or_default().push(&decision.collective);
    }
    let header = ["collective", "bytes", "chosen", "estimate", "runner-up", "", "plain", "operand", "result"];
    let mut cells = vec![header.map(str::to_string).to_vec()];
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

/// The most kinds of collectives that [`decision_lines`] shows.
const SHOWN_KINDS: usize = 4;

/// How the collectives of a run were chosen: a line for each kind, with the bytes at the sizes of the run. `sizes` has the
/// values of the symbols by name. Estimates are for the upper ends of the bucket, and say so where the bytes differ.
pub fn decision_lines(plan: &CheckedPlan, bucket: usize, sizes: &IndexMap<String, i64>) -> Result<String> {
    let Some(bucket) = plan.buckets.get(bucket) else { return Ok(String::new()) };
    let planned = PlannedBucket::new(plan, bucket)?;
    let source = plan.source_program();
    let named = |node: &Node| Some((source.value_name(*node.outputs.first()?), text::op_name(&node.op)));
    let ops: HashMap<&str, &str> = source.nodes.values().filter_map(named).collect();
    let mut kinds: IndexMap<String, usize> = IndexMap::new();
    for decision in &bucket.decisions {
        let op = ops.get(decision.collective.as_str()).copied().unwrap_or("collective");
        let placement = |v: Option<_>| v.map_or_else(|| "?".into(), |v| planned.placement_name(plan, v));
        let (operand, result) = planned.operand_and_result(decision);
        let bytes = planned.bytes_at(decision, source, sizes);
        let estimate =
            |name: &str| decision.alternatives.iter().find(|a| a.name == name).map(|a| format_micros(a.us));
        let estimates = match (estimate(&decision.chosen), estimate("plain")) {
            (Some(chosen), Some(plain)) if decision.chosen != "plain" => {
                let size_text = if bytes == decision.bytes {
                    String::new()
                } else {
                    format!(" at {}", format_bytes(decision.bytes))
                };
                format!("; estimated for {}{size_text}: {chosen}, plain {plain}", plan.machine)
            }
            _ => String::new(),
        };
        let kind = format!(
            "{op} of {} as {}, memory {} to {}{estimates}",
            format_bytes(bytes),
            decision.chosen,
            placement(operand),
            placement(result)
        );
        *kinds.entry(kind).or_default() += 1;
    }
    let mut out = String::new();
    for (kind, times) in kinds.iter().take(SHOWN_KINDS) {
        writeln!(out, "{}: {times} × {kind}", plan.source.name)?;
    }
    if let Some(more @ 1..) = kinds.len().checked_sub(SHOWN_KINDS) {
        writeln!(out, "{}: {more} more kinds of collectives; `symmc plan` shows all", plan.source.name)?;
    }
    Ok(out)
}

fn decision_row(plan: &Plan, planned: &PlannedBucket<'_>, decision: &Decision) -> Vec<String> {
    let estimate =
        |name: &str| decision.alternatives.iter().find(|a| a.name == name).map(|a| format_micros(a.us));
    let runner_up = decision.alternatives.iter().find(|a| a.name != decision.chosen);
    let mut chosen = decision.chosen.clone();
    for step in planned.steps_of_decision(decision) {
        match step.exit {
            Some(ExitBarrier::Dropped) => chosen.push_str(", no exit barrier"),
            Some(ExitBarrier::Kept) => chosen.push_str(", exit barrier"),
            None => {}
        }
    }
    let (operand, result) = planned.operand_and_result(decision);
    let placement = |v: Option<_>| v.map_or_else(String::new, |v| planned.placement_name(plan, v));
    vec![
        format_bytes(decision.bytes),
        chosen,
        estimate(&decision.chosen).unwrap_or_default(),
        runner_up.map_or_else(|| "none".into(), |a| a.name.clone()),
        runner_up.map_or_else(String::new, |a| format_micros(a.us)),
        estimate("plain").unwrap_or_default(),
        placement(operand),
        placement(result),
    ]
}

/// A header, and one row for each arena.
pub fn arena_rows(bucket: &Bucket) -> [Vec<String>; 3] {
    let t = &bucket.totals;
    [
        ["arena", "peak", "max-live bound", "gap"].map(str::to_string).to_vec(),
        vec![
            "ordinary".into(),
            format_bytes(t.ordinary_peak),
            format_bytes(t.ordinary_bound),
            format_gap(t.ordinary_peak, t.ordinary_bound),
        ],
        vec![
            "symmetric".into(),
            format_bytes(t.symmetric_peak),
            format_bytes(t.symmetric_bound),
            format_gap(t.symmetric_peak, t.symmetric_bound),
        ],
    ]
}

fn total_lines(plan: &Plan, bucket: &Bucket) -> String {
    format_table(&arena_rows(bucket)) + &arena_notes(plan, bucket)
}

/// Lines on the number of steps and buffers, the arenas, the workspace and the exit barriers.
pub fn arena_notes(plan: &Plan, bucket: &Bucket) -> String {
    let t = &bucket.totals;
    let mut out = String::new();
    let buffers = |kind| bucket.buffers.iter().filter(|b| b.arena == kind).count();
    let _ = writeln!(
        out,
        "  {}; {} ordinary and {} symmetric buffers; arenas of {} and {} serve all buckets",
        format_count(bucket.steps.len() as u64, "step"),
        buffers(ArenaKind::Ordinary),
        buffers(ArenaKind::Symmetric),
        format_bytes(plan.arenas.ordinary),
        format_bytes(plan.arenas.symmetric),
    );
    if t.workspace > 0 {
        let _ = writeln!(
            out,
            "  GPUs use another {} as workspace, one step at a time",
            format_bytes(t.workspace)
        );
    }
    out.push_str(&barrier_lines(bucket));
    out
}

/// How many exit barriers are dropped and kept, and why barriers are kept. Barriers with the same reason share a line.
fn barrier_lines(bucket: &Bucket) -> String {
    let t = &bucket.totals;
    let cost = match t.barrier_bytes {
        0 => String::new(),
        n => format!(" at a cost of {} of the symmetric arena", format_bytes(n)),
    };
    let mut out =
        format!("  exit barriers: {} dropped{cost}, {} kept\n", t.barriers_dropped, t.barriers_kept);
    let mut nodes_by_bytes: IndexMap<Option<u64>, Vec<&str>> = IndexMap::new();
    for step in bucket.steps.iter().filter(|s| s.exit == Some(ExitBarrier::Kept)) {
        nodes_by_bytes.entry(step.exit_bytes).or_default().push(&step.node);
    }
    for (cost, nodes) in nodes_by_bytes {
        let names = match nodes.as_slice() {
            [one] => format!("%{one}"),
            [first, .., last] => format!("%{first} … %{last} (×{}), each", nodes.len()),
            [] => continue,
        };
        let _ = writeln!(out, "    {names}: {}", kept_barrier_reason(cost));
    }
    out
}

/// Why an exit barrier that could be dropped is kept. `cost` is the memory that dropping it alone would cost.
pub fn kept_barrier_reason(cost: Option<u64>) -> String {
    match cost {
        None => "no other barrier shows that peers have read its operand before that is written again".into(),
        Some(0) => "dropping it together with others would exceed the limit of the symmetric arena".into(),
        Some(n) => format!("dropping it would cost {} of the symmetric arena", format_bytes(n)),
    }
}

pub fn copy_lines(bucket: &Bucket, planned: &PlannedBucket<'_>) -> String {
    let t = &bucket.totals;
    if t.copies == 0 {
        return "  copies: none\n".into();
    }
    let mut out = format!("  copies: {}, {} in each run\n", t.copies, format_bytes(t.copied));
    for (name, why, avoid) in planned.copies() {
        let _ = writeln!(out, "    %{name}: {why}");
        if let Some(input) = avoid {
            let _ = writeln!(out, "      --bind {input} avoids this copy");
        }
    }
    out
}

fn fixed_memory_lines(plan: &Plan) -> String {
    let mut out = String::new();
    for fixed in &plan.fixed {
        let role = match &fixed.role {
            FixedRole::Landing { group, zone } => format!("landing zone {zone} of group {group}"),
            FixedRole::Bound { input } => format!("bound input {input}"),
        };
        if out.is_empty() {
            out.push_str("\nfixed symmetric memory\n");
        }
        let _ = writeln!(out, "  {role}: {} at {}", format_bytes(fixed.size), fixed.offset);
    }
    out
}

/// The peaks of plans of one program in several orders: a row for each plan, in the given order.
pub fn order_table(plans: &[(OrderStrategy, CheckedPlan)]) -> String {
    let peaks_of_largest_bucket = |plan: &Plan| {
        let peaks = plan.buckets.iter().map(|b| (b.totals.ordinary_peak, b.totals.symmetric_peak));
        peaks.max_by_key(|(ordinary, symmetric)| ordinary + symmetric).unwrap_or_default()
    };
    let program_order = plans.iter().find(|(order, _)| *order == OrderStrategy::Program);
    let program_peak = program_order.map_or(0, |(_, plan)| {
        let (ordinary, symmetric) = peaks_of_largest_bucket(plan);
        ordinary + symmetric
    });
    let mut rows = vec![["order", "ordinary", "symmetric", "both", ""].map(str::to_string).to_vec()];
    for (order, plan) in plans {
        let (ordinary, symmetric) = peaks_of_largest_bucket(plan);
        let total = ordinary + symmetric;
        let percent = (total as f64 / program_peak.max(1) as f64 - 1.0) * 100.0;
        let change = if total == program_peak { "=".into() } else { format!("{percent:+.1} %") };
        rows.push(vec![
            order.name().into(),
            format_bytes(ordinary),
            format_bytes(symmetric),
            format_bytes(total),
            change,
        ]);
    }
    format!(
        "peaks of the largest bucket; the last column compares with program order\n{}",
        format_table(&rows)
    )
}
