//! `symmc plan --format summary`: estimated times, memory and collectives of a plan as JSON. docs/running.md describes the
//! fields.

use anyhow::Result;
use serde_json::{Value, json};
use symmc::unstable::ir::{DispatchForm, InputKind, NodeId, Op, text};
use symmc::unstable::plan::Bucket;
use symmc::{BucketEstimate, CheckedPlan};

use crate::planned_bucket::PlannedBucket;
use crate::report::EstimatedTimes;

const VERSION: u32 = 1;

pub fn summary(plan: &CheckedPlan, times: &EstimatedTimes) -> Result<String> {
    let buckets = plan.buckets.iter().zip(&times.chosen).zip(&times.plain);
    let buckets: Result<Vec<Value>> =
        buckets.map(|((b, chosen), &plain)| bucket_summary(plan, b, chosen, plain)).collect();
    let value = json!({
        "version": VERSION,
        "program": plan.source.name,
        "machine": plan.machine,
        "ranks": plan.ranks,
        "numerics": plan.numerics.to_string(),
        "buckets": buckets?,
    });
    Ok(serde_json::to_string_pretty(&value)? + "\n")
}

fn bucket_summary(
    plan: &CheckedPlan,
    bucket: &Bucket,
    chosen: &BucketEstimate,
    plain: Option<f64>,
) -> Result<Value> {
    let planned = PlannedBucket::new(plan, bucket)?;
    let graph = planned.graph;
    let symbols = planned.program.resolve_symbols(bucket)?;
    let bytes = |v| u64::try_from(graph.ty(v).bytes().upper_bound(&symbols)).unwrap_or(0);
    let weights = graph.inputs.values().filter(|i| i.kind != InputKind::Argument).map(|i| bytes(i.value));
    let collectives: Vec<Value> = chosen
        .communication
        .iter()
        .map(|c| {
            let node = &graph.nodes[c.node];
            let name = graph.node_name(c.node);
            let decision = bucket.decisions.iter().find(|d| d.nodes.iter().any(|n| n == name));
            let rules = decision.map_or_else(Vec::new, |d| d.rules.iter().map(|r| r.name.as_str()).collect());
            let (group, variant) = match &node.op {
                Op::Collective(c) => (Some(graph.groups[c.group].name.as_str()), c.variant.map(|v| v.name())),
                _ => (None, None),
            };
            let largest_value = |n: NodeId| {
                let node = &graph.nodes[n];
                node.inputs.iter().chain(&node.outputs).map(|&v| bytes(v)).max().unwrap_or(0)
            };
            let dispatch =
                graph.dispatches.iter().find(|d| d.form == DispatchForm::Collectives && d.contains(c.node));
            let other_nodes: Vec<NodeId> =
                dispatch.into_iter().flat_map(|d| d.nodes()).filter(|&n| n != c.node).collect();
            let total_bytes = other_nodes
                .iter()
                .fold(largest_value(c.node), |sum, &n| sum.saturating_add(largest_value(n)));
            let other_names: Vec<&str> = other_nodes.into_iter().map(|n| graph.node_name(n)).collect();
            json!({
                "name": name,
                "kind": text::op_name(&node.op),
                "group": group,
                "bytes": total_bytes,
                "with": other_names,
                "variant": variant,
                "us": c.us,
                "exposed_us": c.exposed_us,
                "modelled": c.is_modelled,
                "rules": rules,
            })
        })
        .collect();
    Ok(json!({
        "symbols": bucket.symbols,
        "total_us": chosen.total_us,
        "compute_us": chosen.compute_us,
        "exposed_us": chosen.exposed_us,
        "plain_total_us": plain,
        "unestimated_steps": chosen.unestimated_steps,
        "ordinary_bytes": bucket.totals.ordinary_peak,
        "symmetric_bytes": bucket.totals.symmetric_peak,
        "weight_bytes": weights.fold(0, u64::saturating_add),
        "collectives": collectives,
    }))
}
