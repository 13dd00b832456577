//! Whether a plan computes what its source does, as far as numbers tell.
//!
//! The check proves a plan safe; that the planned programs equal the source it carries is not proven anywhere. Here the
//! reference interpreter runs both on inputs drawn from seeds, at small sizes of each bucket, and every output on every
//! rank is compared: integers exactly, floats within [`Tolerance::of_history`], as sums may be taken in another order. What no floats
//! are in is equal in every draw; of all else one draw is compared, and where that differs others. What is larger than
//! [`WORK`] allows, or has ops that the interpreter does not run, is left out and named.

use std::sync::Arc;

use symmc_check::CheckedPlan;
use symmc_ir::interp::{
    Draw, Noise, Registry, RoundingHistory, Runs, SeedConfig, Seeds, Spread, Tolerance, compare,
    compare_with_spread, run, run_with_noise,
};
use symmc_ir::{Bindings, Graph, Numerics, Op, Table, Tensor, ValueId};
use symmc_plan::Bucket;

use crate::error::Error;

/// The most that is computed for one plan, in elements of values and products of elements, on all ranks together.
const WORK: u128 = 1 << 25;

/// The most of that for further buckets of programs that were compared already.
const MORE: u128 = 1 << 23;

/// How often inputs are drawn, where one draw does not tell: a tie or a rounding that shows in one does not show in all.
const DRAWS: u64 = 3;

/// After this many differences no more are looked for.
const ENOUGH: usize = 100;

/// How far the outputs of a planned program may be from those of the source.
struct AllowedRounding {
    /// Of each output.
    histories: Vec<RoundingHistory>,
    /// The classes of the plan.
    numerics: Numerics,
}

/// What comparing a plan with its source showed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct SourceComparison {
    /// The number of buckets.
    pub buckets: usize,
    /// The number of buckets whose program was run beside the source.
    pub compared: usize,
    /// The number of elements of outputs that were compared.
    pub elements: u64,
    /// Why buckets were not compared, each reason with how often.
    pub left_out: Vec<(String, usize)>,
    /// What differs in some draws alone, as ties and roundings of floats do: the same as of differences.
    pub undecided: Vec<String>,
    /// What differs: the bucket, its sizes, the output, the rank and the difference.
    pub differences: Vec<String>,
}

/// Compares the programs of a plan with its source on drawn inputs.
pub fn compare_with_source(plan: &CheckedPlan) -> SourceComparison {
    let source = Graph { ranks: Some(plan.ranks), ..plan.source_program().clone() };
    let mut out = SourceComparison { buckets: plan.buckets.len(), ..SourceComparison::default() };
    let mut room = WORK;
    // A bucket of every program first, in case there is no room for all.
    let mut seen = vec![0usize; plan.programs.len()];
    let mut order: Vec<(usize, usize)> = Vec::with_capacity(plan.buckets.len());
    for (b, bucket) in plan.buckets.iter().enumerate() {
        order.push((seen[bucket.program], b));
        seen[bucket.program] += 1;
    }
    order.sort_unstable();
    for (nth, b) in order {
        if nth > 0 {
            room = room.min(MORE);
        }
        if out.differences.len() >= ENOUGH {
            break;
        }
        let bucket = &plan.buckets[b];
        let compared = plan.program(bucket.program).map_err(|e| e.to_string()).and_then(|planned| {
            let histories = plan.output_histories(bucket.program, Runs::One).map_err(|e| e.to_string())?;
            let allowed = AllowedRounding { histories, numerics: plan.numerics };
            of_bucket((&source, &planned.graph, &allowed), (b, bucket), &mut room, &mut out)
        });
        match compared {
            Ok(()) => out.compared += 1,
            Err(reason) => out.leave_out(reason),
        }
    }
    out
}

/// Compares one bucket; why it could not be, if so.
fn of_bucket(
    (source, planned, allowed): (&Graph, &Graph, &AllowedRounding),
    (index, bucket): (usize, &Bucket),
    room: &mut u128,
    out: &mut SourceComparison,
) -> Result<(), String> {
    if let Some(reason) = [source, planned].into_iter().find_map(without_meaning) {
        return Err(reason);
    }
    let exact: Vec<bool> = exact(source).into_iter().zip(exact(planned)).map(|(a, b)| a && b).collect();
    for (i, sizes) in small_sizes(bucket).iter().enumerate() {
        let bound = |graph: &Graph| bindings(graph, sizes);
        let [of_source, of_planned] = [bound(source), bound(planned)];
        let needed = work(source, &of_source).saturating_add(work(planned, &of_planned));
        if needed > *room {
            // The least sizes are what counts; further ones are taken where there is room.
            let reason = "more elements would have to be computed than the check takes time for".to_string();
            return if i == 0 { Err(reason) } else { Ok(()) };
        }
        *room -= needed;
        let mut first = draw((source, planned, allowed), (&of_source, &of_planned), 0)?;
        out.elements += first.elements;
        let mut undecided = Vec::new();
        for seed in 1..DRAWS {
            let differs = first.outputs.iter().any(Option::is_some);
            if !(differs || exact.contains(&true) && needed <= *room) {
                break;
            }
            *room -= needed.min(*room);
            let Ok(again) = draw((source, planned, allowed), (&of_source, &of_planned), seed) else {
                continue;
            };
            out.elements += again.elements;
            for ((known, again), exact) in first.outputs.iter_mut().zip(again.outputs).zip(&exact) {
                match (known.is_some(), again) {
                    (false, Some(again)) if *exact => *known = Some(again),
                    (true, None) if !exact => undecided.extend(known.take()),
                    _ => {}
                }
            }
        }
        let sizes: Vec<String> = sizes.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let at = if sizes.is_empty() { String::new() } else { format!(" ({})", sizes.join(", ")) };
        let named = |what| format!("bucket {index}{at}: {what}");
        out.differences.extend(first.outputs.into_iter().flatten().map(named));
        out.undecided.extend(undecided.into_iter().map(named));
    }
    Ok(())
}

impl SourceComparison {
    /// This comparison, if it showed no difference.
    ///
    /// # Errors
    /// The differences ([`ErrorKind::Check`](crate::ErrorKind::Check)).
    pub fn agreed(self) -> Result<SourceComparison, Error> {
        if self.differences.is_empty() { Ok(self) } else { Err(Error::unlike_source(self.differences)) }
    }

    fn leave_out(&mut self, reason: String) {
        match self.left_out.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, count)) => *count += 1,
            None => self.left_out.push((reason, 1)),
        }
    }
}

/// Why the interpreter does not run a program, if it has an op that it knows nothing of.
fn without_meaning(graph: &Graph) -> Option<String> {
    graph.nodes.values().find_map(|node| match &node.op {
        Op::Opaque { name, .. } => Some(format!("{name} is opaque: nothing says what it computes")),
        Op::Custom(id) => {
            let name = graph.customs.get(*id).map_or("", |c| c.name.as_str());
            Some(format!("the kernel of custom op {name} is not here"))
        }
        _ => None,
    })
}

/// Whether no floats are in each output.
fn exact(graph: &Graph) -> Vec<bool> {
    let mut floats = Table::filled(false, graph.values.len());
    for input in graph.inputs.values() {
        floats[input.value] = graph.ty(input.value).dtype.is_float();
    }
    for node in graph.nodes.values() {
        let given = node.inputs.iter().any(|&v| floats[v]);
        node.outputs.iter().for_each(|&v| floats[v] = given || graph.ty(v).dtype.is_float());
    }
    graph.outputs.iter().map(|o| !floats[o.value]).collect()
}

/// The least sizes of a bucket, and others that are nearly as small and differ from one symbol to the next.
fn small_sizes(bucket: &Bucket) -> Vec<Vec<(String, i64)>> {
    let with = |step: i64| -> Vec<(String, i64)> {
        let size = |(i, (name, &[low, high])): (usize, (&String, &[i64; 2]))| {
            (name.clone(), low.saturating_add(step * (i as i64 % 4 + 1)).min(high))
        };
        bucket.symbols.iter().enumerate().map(size).collect()
    };
    let mut sizes = vec![with(0), with(1)];
    sizes.dedup();
    sizes
}

/// A symbol that the bucket does not name has no part in its program; it takes its least value.
fn bindings(graph: &Graph, sizes: &[(String, i64)]) -> Bindings {
    let mut out = Bindings::new();
    for (id, symbol) in graph.symbols.iter() {
        let size = sizes.iter().find(|(name, _)| *name == symbol.name).map_or(symbol.min, |s| s.1);
        out.set(id, size);
    }
    out
}

/// About what a run of a program computes on all ranks: the elements of all values, and for ops that multiply operands
/// as matrices the number of products, the root of the elements of the three.
fn work(graph: &Graph, bindings: &Bindings) -> u128 {
    let numel = |v: ValueId| {
        let elements = graph.ty(v).numel().eval(bindings);
        elements.and_then(|n| u128::try_from(n).ok()).unwrap_or(u128::from(u64::MAX))
    };
    let inputs = graph.inputs.values().map(|i| numel(i.value)).fold(0, u128::saturating_add);
    let of_node = |node: &symmc_ir::Node| {
        let values = node.inputs.iter().chain(&node.outputs).map(|&v| numel(v));
        let moved = values.clone().fold(0, u128::saturating_add);
        let products = match node.op {
            Op::MatMul | Op::GroupedMatMul | Op::Attention { .. } | Op::Permuted { .. } => {
                values.fold(1, u128::saturating_mul).isqrt()
            }
            _ => 0,
        };
        moved.saturating_add(products)
    };
    let nodes = graph.nodes.values().map(of_node).fold(0, u128::saturating_add);
    inputs.saturating_add(nodes).saturating_mul(u128::from(graph.ranks.unwrap_or(1)))
}

/// How the outputs of one draw differ, each on the first rank where it does.
struct Differing {
    elements: u64,
    outputs: Vec<Option<String>>,
}

/// Runs both programs on inputs drawn from a seed, others on each rank, and compares their outputs.
///
/// # Errors
/// Why the source does not run.
fn draw(
    (source, planned, allowed): (&Graph, &Graph, &AllowedRounding),
    (of_source, of_planned): (&Bindings, &Bindings),
    seed: u64,
) -> Result<Differing, String> {
    let config = SeedConfig { seed, arguments: Draw::PerRank, parameters: Draw::PerRank };
    let seeds = Seeds::new(source, of_source, config);
    let of_rank = |rank| source.inputs.keys().map(|id| seeds.input(id, rank)).collect();
    let inputs: Result<Vec<Vec<Arc<Tensor>>>, _> = (0..source.ranks.unwrap_or(1)).map(of_rank).collect();
    let inputs = inputs.map_err(|e| format!("inputs cannot be drawn: {e}"))?;
    let expected = run(source, of_source, &inputs)
        .map_err(|e| format!("the interpreter does not run the source on drawn inputs: {e}"))?;
    let mut out = Differing { elements: 0, outputs: vec![None; source.outputs.len()] };
    let found = match run(planned, of_planned, &inputs) {
        Ok(found) => found,
        Err(e) => {
            out.outputs
                .fill(Some(format!("the source runs on drawn inputs, the planned program does not: {e}")));
            out.outputs.truncate(1);
            return Ok(out);
        }
    };
    for (rank, (found, expected)) in found.iter().zip(&expected).enumerate() {
        for (k, ((found, expected), history)) in
            found.iter().zip(expected).zip(&allowed.histories).enumerate()
        {
            let tolerance = Tolerance::of_history(history, expected);
            let result = compare(found, expected, tolerance);
            out.elements += result.elements as u64;
            let sensitive = || {
                let noisy = |seed| {
                    let noise = Noise { seed, numerics: allowed.numerics };
                    run_with_noise(source, of_source, &inputs, &Registry::new(), noise)
                };
                moves_as_far((found, expected), tolerance, |seed| {
                    Some(noisy(seed).ok()?.swap_remove(rank).swap_remove(k))
                })
            };
            if !result.agrees() && out.outputs[k].is_none() && !sensitive() {
                let name = source.name_of(source.outputs[k].value);
                out.outputs[k] = Some(format!("output {k} (%{name}) on rank {rank}: {result}"));
            }
        }
    }
    Ok(out)
}

/// The most runs of the source with noise for one output.
const NOISY_RUNS: u64 = 4;

/// Whether noise on every rounding of the source moves an output as far as it differs.
fn moves_as_far(
    (found, expected): (&Tensor, &Tensor),
    tolerance: Tolerance,
    noisy: impl Fn(u64) -> Option<Tensor>,
) -> bool {
    let mut spread = Spread::none(expected);
    (0..NOISY_RUNS).map_while(noisy).any(|noisy| {
        spread.widen(expected, &noisy);
        compare_with_spread(found, expected, tolerance, &spread).agrees()
    })
}
