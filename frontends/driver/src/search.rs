//! Searches for the plan of some buckets: the cheapest by estimate, or the fastest within a limit of memory.

use std::collections::BTreeSet;

use symmc_passes::{CoalesceConfig, JoinMode};
use symmc_plan::ExitBarrier;
use symmc_planner::BucketInput;

use crate::attempt::{JoinedSets, PlanAttempt};
use crate::divide::BucketRequest;
use crate::error::Result;
use crate::limit::fastest_within;
use crate::pipeline::{LoweredBuckets, Pipeline, VariantChoice};
use crate::variants::{PlannedBuckets, VariantSearch, WIDEST_COALESCING};

/// Plans these buckets: returns the cheapest plan, or the fastest plan within the limit of memory.
pub fn plan_buckets(pipeline: &Pipeline<'_>, buckets: &[BucketRequest]) -> Result<PlannedBuckets> {
    let planned = cheapest_plan(pipeline, buckets)?;
    match pipeline.options.symm_limit {
        Some(limit) => fastest_within(pipeline, buckets, planned, limit),
        None => Ok(planned),
    }
}

/// Returns the cheapest plan of these buckets, each in the canonical form that costs less by estimate.
fn cheapest_plan(pipeline: &Pipeline<'_>, buckets: &[BucketRequest]) -> Result<PlannedBuckets> {
    let usual = cheapest_in_form(pipeline, buckets);
    let Some(small_sizes) = pipeline.small_sizes() else { return usual };
    let (usual, mut small) = match (usual, cheapest_in_form(&small_sizes, buckets)) {
        (Ok(usual), Ok(small)) => (usual, small),
        (Ok(planned), Err(_)) | (Err(_), Ok(planned)) => return Ok(planned),
        (Err(error), Err(_)) => return Err(error),
    };
    let mut search = VariantSearch::new(pipeline, buckets, pipeline.attempt_plan(usual.inputs, usual.plan)?);
    search.take_better(pipeline.attempt_plan(small.inputs, small.plan)?)?;
    let (inputs, plan) = search.into_packed_plan();
    let mut tried = usual.tried;
    tried.append(&mut small.tried);
    Ok(PlannedBuckets { inputs, plan, by_schedule: true, joined: usual.joined, tried })
}

/// Returns the cheapest plan of these buckets in the form [`canonical`](Pipeline::canonical).
fn cheapest_in_form(pipeline: &Pipeline<'_>, buckets: &[BucketRequest]) -> Result<PlannedBuckets> {
    let LoweredBuckets { inputs, overlapped } = pipeline.lower(buckets, &VariantChoice::default())?;
    let plan = pipeline.plan_inputs(buckets, &inputs)?;

    let none = vec![BTreeSet::new(); buckets.len()];
    let packed = pipeline.joinable(
        buckets,
        &none,
        CoalesceConfig { joining: JoinMode::Packed, ..WIDEST_COALESCING },
    )?;
    let together = pipeline.joinable(
        buckets,
        &none,
        CoalesceConfig { joining: JoinMode::Together, ..WIDEST_COALESCING },
    )?;
    // The buckets whose variants depend on the schedule.
    let mut to_search: Vec<usize> = Vec::new();
    for (b, (bucket, overlapped)) in plan.buckets.iter().zip(overlapped).enumerate() {
        let keeps_exits = bucket.steps.iter().any(|s| s.exit == Some(ExitBarrier::Kept));
        if overlapped || keeps_exits || !packed[b].is_empty() || !together[b].is_empty() {
            to_search.push(b);
        }
    }
    let planned = PlannedBuckets {
        tried: if pipeline.options.symm_limit.is_some() { vec![inputs.clone()] } else { Vec::new() },
        joined: vec![JoinedSets::default(); buckets.len()],
        inputs,
        plan,
        by_schedule: !to_search.is_empty(),
    };
    if to_search.is_empty() {
        return Ok(planned);
    }
    if to_search.len() == buckets.len() {
        let first = pipeline.attempt_plan(planned.inputs, planned.plan)?;
        return search_variants(pipeline, buckets, first, planned.tried);
    }
    search_some_variants(pipeline, buckets, planned, &to_search)
}

/// Returns the plan of these buckets after a search for cheaper variants that starts from an attempt.
fn search_variants(
    pipeline: &Pipeline<'_>,
    buckets: &[BucketRequest],
    first: PlanAttempt,
    mut tried: Vec<Vec<BucketInput>>,
) -> Result<PlannedBuckets> {
    let mut search = VariantSearch::new(pipeline, buckets, first);
    search.run()?;
    tried.append(&mut search.tried);
    let joined = search.joined_sets();
    let (inputs, plan) = search.into_packed_plan();
    Ok(PlannedBuckets { inputs, plan, by_schedule: true, joined, tried })
}

/// Returns the plan with other variants for the buckets `to_search` if those cost less.
fn search_some_variants(
    pipeline: &Pipeline<'_>,
    buckets: &[BucketRequest],
    mut planned: PlannedBuckets,
    to_search: &[usize],
) -> Result<PlannedBuckets> {
    let requests: Vec<BucketRequest> = to_search.iter().map(|&b| buckets[b].clone()).collect();
    let first: Vec<BucketInput> = to_search.iter().map(|&b| planned.inputs[b].clone()).collect();
    let among_others = Pipeline { among_others: true, ..*pipeline };
    let trial_plan = among_others.plan_on_trial(&requests, &first)?;
    let mut search =
        VariantSearch::new(&among_others, &requests, among_others.attempt_plan(first, trial_plan)?);
    search.run()?;
    let chosen = replace_inputs(&planned.inputs, to_search, &search.best.inputs);
    for tried in &search.tried {
        planned.tried.push(replace_inputs(&planned.inputs, to_search, tried));
    }
    for (&b, joined) in to_search.iter().zip(search.joined_sets()) {
        planned.joined[b] = joined;
    }
    if chosen.iter().zip(&planned.inputs).any(|(a, b)| a.graph != b.graph) {
        // Other buckets have as much room as before, except for new landing zones.
        if let Ok(plan) = pipeline.plan_inputs(buckets, &chosen) {
            planned.inputs = chosen;
            planned.plan = plan;
        }
    }
    Ok(planned)
}

/// All inputs, with those at `positions` replaced.
fn replace_inputs(inputs: &[BucketInput], positions: &[usize], replaced: &[BucketInput]) -> Vec<BucketInput> {
    let mut out = inputs.to_vec();
    for (&b, input) in positions.iter().zip(replaced) {
        out[b] = input.clone();
    }
    out
}

#[cfg(test)]
mod tests {
    use symmc_ir::machine::MachineProfile;
    use symmc_ir::{Graph, text};

    use crate::options::CompileOptions;
    use crate::{compile, estimate_plain};

    /// A program of this many all-reduces of different sizes, small enough to be coalesced.
    fn different_collectives(count: usize) -> Graph {
        let mut text = String::from("program \"p\" ranks 4\ngroup @w world\n");
        let mut body = String::new();
        for i in 0..count {
            let ty = format!("f32[{}, 64]", 64 + 4 * i);
            text += &format!("arg %a{i}: {ty}\n");
            body += &format!("%n{i}: {ty} = exp %a{i}\n%r{i}: {ty} = all_reduce %n{i} op=sum group=@w\n");
            body += &format!("%s{i}: {ty} = exp %r{i}\n");
        }
        text += &body;
        (0..count).for_each(|i| text += &format!("return %s{i}\n"));
        text::parse(&text).expect("a program")
    }

    #[test]
    fn the_egraph_of_a_region_is_made_once_for_all_attempts() {
        for count in [12, 24, 48] {
            let graph = different_collectives(count);
            let options = CompileOptions::new(MachineProfile::builtin("h200x4").expect("it is built in"));
            let (plan, _) = compile(&graph, &options).expect("a plan");
            estimate_plain(&graph, &plan, &options).expect("estimates");
            let coalesced = plan.buckets[0].decisions.iter().filter(|d| d.chosen == "absorbed").count();
            assert!(coalesced > 0, "nothing is coalesced, so that few choices are tried");
            // Each collective alone, with the chosen variants and with plain ones. The others are coalesced
            // ones: a few sets for each reach.
            let built = options.solutions.egraphs_built();
            assert!((2 * count..=4 * count).contains(&built), "{built} e-graphs for {count} collectives");
        }
    }

    #[test]
    fn buckets_of_many_tokens_return_sums_and_say_why() {
        let text = "program \"p\" ranks 2\nsymbol t in 1..=4096\ngroup @ep world\narg %tokens: bf16[t, 1024]\n\
            arg %own_ids: i64[t, 8]\narg %w: f32[t, 8]\n%ids: i64[2*t, 8] = all_gather %own_ids group=@ep\n\
            %rows: i64[t, 8], %all: i64[2*t, 8], %slots: i64[16*t], %counts: i64[16], %ends: i64[16] = \
            route %ids experts=32 align=1 layout=expert group=@ep\n\
            %sent: bf16[16*t, 1024] = dispatch_rows %tokens, %slots, %all group=@ep\n\
            %h: bf16[16*t, 1024] = silu %sent\n\
            %y: bf16[t, 1024] = combine_rows %h, %rows, %w group=@ep\nreturn %y\n";
        let graph = text::parse(text).expect("a program");
        let mut options = CompileOptions::new(MachineProfile::builtin("h200x2").expect("it is built in"));
        options.buckets.extend(graph.symbols.keys().map(|t| (t, vec![8, 4096])));
        let (plan, _) = compile(&graph, &options).expect("a plan");
        let mut forms = Vec::new();
        for bucket in &plan.buckets {
            let decision = bucket.decisions.iter().find(|d| d.collective == "y").expect("a decision");
            let as_sums = decision.rules.first().is_some_and(|rule| rule.name == "combine_rows_as_sums");
            let has_rows = decision.alternatives.iter().any(|a| a.name == "combine_rows.pull");
            assert_eq!(as_sums, has_rows, "{decision:?}");
            assert_eq!(decision.chosen, if as_sums { "push" } else { "pull" }, "{decision:?}");
            forms.push(as_sums);
        }
        assert_eq!(forms, [false, true]);
    }
}
