//! Proposals: the changes of a choice that the search tries, as data.
//!
//! Each proposal makes choices from the best attempt so far. The search plans them and keeps the cheapest
//! ([`crate::search`]). None needs to be right: a choice that costs more is dropped.

use std::collections::{BTreeMap, BTreeSet};

use symmc_ir::{CollectiveVariant, Graph, Op};
use symmc_passes::lower::{CollectiveConditions, LowerConditions, VariantSet};
use symmc_passes::{CoalesceConfig, CoalesceReach, CoalescedSet, JoinMode};
use symmc_plan::{Bucket, Decision};
use symmc_planner::BucketInput;

use crate::attempt::Attempt;
use crate::error::Result;
use crate::pipeline::{BucketPrograms, Choice, Pipeline};

/// The state of a search that proposals read.
pub struct SearchState<'a> {
    pub pipeline: &'a Pipeline<'a>,
    pub programs: &'a BucketPrograms<'a>,
    /// The best attempt so far.
    pub best: &'a Attempt,
    /// Whether symmetric memory is limited.
    pub is_limited: bool,
}

impl SearchState<'_> {
    /// Whether fewer choices are tried, because each takes long.
    pub fn is_large(&self) -> bool {
        self.programs.graph(self.best.choice.for_small_sizes).nodes.len() > LARGE_PROGRAM_NODES
    }

    /// Whether the options allow a variant.
    fn is_allowed(&self, variant: CollectiveVariant) -> bool {
        self.pipeline.options.variants.as_ref().is_none_or(|variants| variants.contains(&variant))
    }
}

pub struct Proposal {
    /// The name in the log and in reports.
    pub name: &'static str,
    /// An explanation: the change, and why it may be faster.
    pub reason: &'static str,
    /// Whether variants are chosen again with the schedule of a choice before it is dropped.
    pub changes_schedule: bool,
    pub choices: fn(&SearchState<'_>) -> Result<Vec<ProposedChoice>>,
}

/// A choice of a proposal.
#[derive(Clone)]
pub struct ProposedChoice {
    pub choice: Choice,
    /// The change, for readers.
    pub change: String,
    /// The collectives that the choice changes; none if it concerns all.
    pub collectives: Vec<String>,
}

impl ProposedChoice {
    fn of_all(choice: Choice, change: impl Into<String>) -> ProposedChoice {
        ProposedChoice { choice, change: change.into(), collectives: Vec::new() }
    }
}

/// The proposals in the order in which they are tried.
pub const PROPOSALS: &[Proposal] = &[
    Proposal {
        name: "small_sizes",
        reason: "the canonical form in which shards of few rows are not reduced separately",
        changes_schedule: true,
        choices: use_small_sizes,
    },
    Proposal {
        name: "other_overlap",
        reason: "variants chosen as if computation ran concurrently with all, half or the scheduled part of each collective",
        changes_schedule: true,
        choices: assume_other_overlap,
    },
    Proposal {
        name: "one_variant",
        reason: "every collective by one variant, or by plain; collectives decided alone can disagree with their schedule",
        changes_schedule: true,
        choices: use_one_variant,
    },
    Proposal {
        name: "no_rewriting",
        reason: "the collectives of the program, if those that rules made of them disagree with the schedule",
        changes_schedule: true,
        choices: use_no_rewriting,
    },
    Proposal {
        name: "coalesce_collectives",
        reason: "several collectives as one, which has one start-up",
        changes_schedule: true,
        choices: |search| join_collectives(search, JoinMode::Packed),
    },
    Proposal {
        name: "run_collectives_together",
        reason: "several collectives as one step, which has one pair of barriers",
        changes_schedule: true,
        choices: |search| join_collectives(search, JoinMode::Together),
    },
    Proposal {
        name: "separate_collectives",
        reason: "no collectives joined, if others are better alone than those with which the sets were found",
        changes_schedule: true,
        choices: separate_collectives,
    },
    EQUAL_COLLECTIVES,
    Proposal {
        name: "single_collective",
        reason: "another form for one of several collectives that have equal alternatives",
        changes_schedule: false,
        choices: change_single_collectives,
    },
    Proposal {
        name: "less_symmetric_memory",
        reason: "variants that ask for less symmetric memory, if it is limited",
        changes_schedule: false,
        choices: need_less_symmetric_memory,
    },
];

const EQUAL_COLLECTIVES: Proposal = Proposal {
    name: "equal_collectives",
    reason: "another form for all collectives that have equal alternatives",
    changes_schedule: false,
    choices: change_equal_collectives,
};

/// The proposals that are tried from runner-ups.
pub const FORM_PROPOSALS: &[Proposal] = &[EQUAL_COLLECTIVES];

/// The proposal that the search makes after each improvement.
pub static OBSERVED_SCHEDULE: Proposal = Proposal {
    name: "observed_schedule",
    reason: "variants chosen again with the overlap and the exit barriers of the schedule",
    changes_schedule: false,
    choices: observe_schedule,
};

fn observe_schedule(search: &SearchState<'_>) -> Result<Vec<ProposedChoice>> {
    let choice = Choice { conditions: search.best.observed_conditions()?, ..search.best.choice.clone() };
    Ok(vec![ProposedChoice::of_all(choice, "with the schedule of the best attempt")])
}

fn use_small_sizes(search: &SearchState<'_>) -> Result<Vec<ProposedChoice>> {
    if search.pipeline.for_small_sizes.is_none() {
        return Ok(Vec::new());
    }
    // Sets of collectives refer to the nodes of one form.
    let other_form = !search.best.choice.for_small_sizes;
    let choice = Choice { for_small_sizes: other_form, ..Choice::default() };
    Ok(vec![ProposedChoice::of_all(choice, "the other canonical form")])
}

fn assume_other_overlap(search: &SearchState<'_>) -> Result<Vec<ProposedChoice>> {
    if search.best.estimate.communication.iter().all(|c| c.overlapped_us == 0.0) {
        return Ok(Vec::new());
    }
    let observed = search.best.observed_conditions()?;
    let mut choices = Vec::new();
    for (hidden_eighths, change) in
        [(None, "as scheduled"), (Some(8), "all hidden"), (Some(4), "half hidden")]
    {
        let mut conditions = observed.clone();
        // Forms that were chosen for single collectives are open again.
        conditions.change_all(|conditions| {
            let hidden_eighths = hidden_eighths.unwrap_or(conditions.hidden_eighths);
            *conditions = CollectiveConditions { hidden_eighths, ..CollectiveConditions::default() };
        });
        let choice = Choice { conditions, ..search.best.choice.clone() };
        choices.push(ProposedChoice::of_all(choice, change));
    }
    Ok(choices)
}

fn use_one_variant(search: &SearchState<'_>) -> Result<Vec<ProposedChoice>> {
    let graph = search.programs.graph(search.best.choice.for_small_sizes);
    let mut variants: BTreeSet<CollectiveVariant> = BTreeSet::from([CollectiveVariant::Plain]);
    for collective in graph.nodes.values().filter_map(|node| node.op.as_collective()) {
        let supported = search.pipeline.options.profile.supported_variants(&collective.kind);
        variants.extend(supported.into_iter().filter(|v| search.is_allowed(*v)));
    }
    let mut choices = Vec::with_capacity(variants.len());
    for variant in variants {
        let variants = VariantSet::from_iter([CollectiveVariant::Plain, variant]);
        let conditions = LowerConditions::uniform(CollectiveConditions { variants, ..Default::default() });
        let choice = Choice { conditions, ..search.best.choice.clone() };
        choices.push(ProposedChoice::of_all(choice, variant.name()));
    }
    Ok(choices)
}

fn use_no_rewriting(search: &SearchState<'_>) -> Result<Vec<ProposedChoice>> {
    let unchanged = CollectiveConditions { rewriting: false, ..CollectiveConditions::default() };
    let choice = Choice { conditions: LowerConditions::uniform(unchanged), ..search.best.choice.clone() };
    Ok(vec![ProposedChoice::of_all(choice, "only variants")])
}

/// Joins collectives within each of a few reaches, in addition to existing sets of the other mode. Variants are
/// chosen with the conditions of the best choice, and with one variant for all.
fn join_collectives(search: &SearchState<'_>, joining: JoinMode) -> Result<Vec<ProposedChoice>> {
    let best = &search.best.choice;
    let program = search.programs.graph(best.for_small_sizes);
    let is_large = search.is_large();
    let reaches = if is_large { &COALESCE_REACHES[..LARGE_PROGRAM_REACHES] } else { COALESCE_REACHES };
    let members = |sets: &[CoalescedSet]| -> BTreeSet<String> {
        sets.iter().flatten().map(|&n| program.node_name(n).to_string()).collect()
    };
    let packed = members(&best.packed);
    let rewritten: BTreeSet<String> =
        rewritten_collectives(&search.best.bucket).difference(&packed).cloned().collect();
    let sets = |joining, reach, kept: &BTreeSet<String>| {
        let config = CoalesceConfig { joining, reach, kept: rewritten.union(kept).cloned().collect() };
        search.pipeline.joinable(search.programs, best.for_small_sizes, &config)
    };
    let mut bases = vec![best.clone()];
    if joining == JoinMode::Together {
        // Packed collectives cannot run together with others, and small ones may be the only ones to pack.
        let none = BTreeSet::new();
        let small = sets(JoinMode::Packed, SMALL_COLLECTIVES, &none)?;
        bases.push(Choice { packed: small, ..best.clone() });
        bases.dedup();
    }
    let mut choices: Vec<ProposedChoice> = Vec::new();
    for base in &bases {
        let kept = if joining == JoinMode::Together { members(&base.packed) } else { BTreeSet::new() };
        for &reach in reaches {
            let sets = sets(joining, reach, &kept)?;
            if sets.is_empty() {
                continue;
            }
            let joined = sets.iter().map(Vec::len).sum::<usize>();
            let change = format!("{joined} collectives in {} sets", sets.len());
            let choice = match joining {
                JoinMode::Packed => Choice { packed: sets, ..base.clone() },
                JoinMode::Together => Choice { together: sets, ..base.clone() },
            };
            if choice != *best && !choices.iter().any(|known| known.choice == choice) {
                choices.push(ProposedChoice::of_all(choice, change));
            }
        }
    }
    if is_large {
        return Ok(choices);
    }
    // A set can pay with other variants than those of single collectives.
    let by_variant = use_one_variant(search)?;
    for joined in choices.clone() {
        for ProposedChoice { choice, change: variant, .. } in &by_variant {
            let choice = Choice { conditions: choice.conditions.clone(), ..joined.choice.clone() };
            choices.push(ProposedChoice::of_all(choice, format!("{}, by {variant}", joined.change)));
        }
    }
    Ok(choices)
}

fn separate_collectives(search: &SearchState<'_>) -> Result<Vec<ProposedChoice>> {
    let best = &search.best.choice;
    let apart = Choice { packed: Vec::new(), together: Vec::new(), ..best.clone() };
    let default = Choice { conditions: LowerConditions::default(), ..apart.clone() };
    let change = "none joined";
    Ok(vec![ProposedChoice::of_all(apart, change), ProposedChoice::of_all(default, change)])
}

/// The reaches that are tried. Start-up is half of the time of small collectives. Collectives whose time is
/// mostly that of their bytes are left apart: measurements show that they lose more overlap than a start-up
/// is worth (two all-reduces of 16 MiB in each of four layers, on two H200: 1834 µs as one, 1789 µs apart).
const COALESCE_REACHES: &[CoalesceReach] = &[
    CoalesceReach { window_us: 160.0, least_startup: 0.5 },
    SMALL_COLLECTIVES,
    CoalesceReach { window_us: 160.0, least_startup: MIN_STARTUP_FRACTION },
    CoalesceReach { window_us: 640.0, least_startup: MIN_STARTUP_FRACTION },
    CoalesceReach { window_us: 10.0, least_startup: MIN_STARTUP_FRACTION },
    CoalesceReach { window_us: f64::INFINITY, least_startup: MIN_STARTUP_FRACTION / 2.0 },
];

/// The reach of all collectives that are mostly start-up.
const SMALL_COLLECTIVES: CoalesceReach = CoalesceReach { window_us: f64::INFINITY, least_startup: 0.5 };

/// The number of reaches that are tried for programs of more than [`LARGE_PROGRAM_NODES`] nodes.
const LARGE_PROGRAM_REACHES: usize = 4;
const LARGE_PROGRAM_NODES: usize = 1_500;

/// The least fraction of a collective's time that must be start-up for it to be coalesced.
const MIN_STARTUP_FRACTION: f64 = 0.2;

/// The collectives that rewriting uses: other nodes than the one with their name run them.
fn rewritten_collectives(bucket: &Bucket) -> BTreeSet<String> {
    let decisions = bucket.decisions.iter().filter(|d| !d.nodes.contains(&d.collective));
    decisions.map(|d| d.collective.clone()).collect()
}

/// Groups of collectives that have the same alternatives, the same chosen one and the same bytes. Each group lists
/// indices of decisions of the bucket.
fn equal_collectives(bucket: &Bucket) -> Vec<Vec<usize>> {
    let mut groups: BTreeMap<(&str, u64, Vec<&str>), Vec<usize>> = BTreeMap::new();
    for (d, decision) in bucket.decisions.iter().enumerate().filter(|(_, d)| !d.nodes.is_empty()) {
        let names = decision.alternatives.iter().map(|a| a.name.as_str()).collect();
        groups.entry((&decision.chosen, decision.bytes, names)).or_default().push(d);
    }
    let mut groups: Vec<Vec<usize>> = groups.into_values().collect();
    groups.sort();
    groups
}

/// The most alternatives of a collective that are tried, cheapest first.
const MAX_ALTERNATIVES: usize = 12;

/// The most that an alternative may take alone, relative to the chosen one, to be tried.
const MAX_FORM_RATIO: f64 = 2.0;

/// A form of a collective: the variants that may run it, and whether it may be rewritten.
#[derive(Clone, Copy, PartialEq, Eq)]
struct CollectiveForm {
    variants: VariantSet,
    rewriting: bool,
}

/// The forms of the alternatives of a decision other than the chosen one: those of each alternative, and each variant
/// for all parts of a rewritten form.
fn other_forms(decision: &Decision) -> Vec<CollectiveForm> {
    let mut forms: Vec<CollectiveForm> = Vec::new();
    let chosen = decision.alternatives.iter().find(|a| a.name == decision.chosen);
    let max_us = chosen.map_or(f64::INFINITY, |chosen| MAX_FORM_RATIO * (chosen.us + chosen.copy_us));
    for alternative in decision.alternatives.iter().filter(|a| a.us <= max_us) {
        let parts = alternative.name.split(" + ").map(|part| part.rsplit_once('.').map_or(part, |(_, v)| v));
        let Some(variants) = parts.map(CollectiveVariant::from_name).collect::<Option<VariantSet>>() else {
            continue;
        };
        let rewriting = alternative.name.contains('.');
        let parts = variants.iter().map(|part| VariantSet::from_iter([part])).filter(|_| rewriting);
        let whole = (alternative.name != decision.chosen).then_some(variants);
        for variants in whole.into_iter().chain(parts) {
            let form = CollectiveForm { variants, rewriting };
            if !forms.contains(&form) {
                forms.push(form);
            }
        }
    }
    forms.truncate(MAX_ALTERNATIVES);
    forms
}

/// The best choice with another form for these collectives.
fn with_form(search: &SearchState<'_>, decisions: &[usize], form: CollectiveForm) -> ProposedChoice {
    let mut choice = search.best.choice.clone();
    let mut collectives = Vec::with_capacity(decisions.len());
    for &d in decisions {
        let name = &search.best.bucket.decisions[d].collective;
        let own = choice.conditions.entry(name);
        own.variants = form.variants;
        own.rewriting = form.rewriting;
        collectives.push(name.clone());
    }
    let variants: Vec<&str> = form.variants.iter().map(|variant| variant.name()).collect();
    let rewritten = if form.rewriting { "rewritten, by " } else { "" };
    ProposedChoice { choice, change: format!("{rewritten}{}", variants.join(" and ")), collectives }
}

fn change_equal_collectives(search: &SearchState<'_>) -> Result<Vec<ProposedChoice>> {
    let decisions = &search.best.bucket.decisions;
    let mut choices = Vec::new();
    for group in equal_collectives(&search.best.bucket) {
        let forms = other_forms(&decisions[group[0]]);
        choices.extend(forms.into_iter().map(|form| with_form(search, &group, form)));
    }
    Ok(choices)
}

/// The most collectives that are changed alone.
const MAX_CHANGED_ALONE: usize = 12;

/// The least part of the cost that a collective must add to the run to be changed alone.
const MIN_EXPOSED_PART: f64 = 2e-3;

/// Other forms for single collectives out of groups of equal ones, for those that add most to the run.
fn change_single_collectives(search: &SearchState<'_>) -> Result<Vec<ProposedChoice>> {
    let decisions = &search.best.bucket.decisions;
    let exposed = search.best.exposed_times()?;
    let groups = equal_collectives(&search.best.bucket).into_iter().filter(|group| group.len() > 1);
    let mut changed: Vec<usize> =
        groups.flatten().filter(|&d| exposed[d] >= MIN_EXPOSED_PART * search.best.cost).collect();
    changed.sort_by(|&a, &b| exposed[b].total_cmp(&exposed[a]));
    changed.truncate(MAX_CHANGED_ALONE);
    let mut choices = Vec::new();
    for d in changed {
        let forms = other_forms(&decisions[d]);
        choices.extend(forms.into_iter().map(|form| with_form(search, &[d], form)));
    }
    Ok(choices)
}

/// The number of choices that forbid only the largest request. Later ones forbid all requests above half of
/// it.
const EXACT_DESCENTS: u32 = 8;

/// Choices that ask for ever less symmetric memory, with the collectives of the best choice joined and with none.
fn need_less_symmetric_memory(search: &SearchState<'_>) -> Result<Vec<ProposedChoice>> {
    let mut choices = Vec::new();
    if !search.is_limited {
        return Ok(choices);
    }
    let best = &search.best.choice;
    let apart = Choice { for_small_sizes: best.for_small_sizes, ..Choice::default() };
    let joined = Choice { packed: best.packed.clone(), together: best.together.clone(), ..apart.clone() };
    for mut choice in if joined == apart { vec![apart] } else { vec![joined, apart] } {
        let mut requested = largest_symmetric_request(&search.pipeline.lower(search.programs, &choice)?);
        let mut descents = 0;
        choices.push(ProposedChoice::of_all(choice.clone(), "any request"));
        while requested > 0 {
            let limit = if descents < EXACT_DESCENTS { requested - 1 } else { requested / 2 };
            choice.conditions.change_all(|conditions| conditions.max_symmetric_bytes = limit);
            requested =
                largest_symmetric_request(&search.pipeline.lower(search.programs, &choice)?).min(limit);
            descents += 1;
            choices
                .push(ProposedChoice::of_all(choice.clone(), format!("at most {limit} bytes a collective")));
        }
    }
    Ok(choices)
}

/// The bytes of symmetric memory that each collective of a lowered program asks for.
pub fn symmetric_requests(graph: &Graph) -> impl Iterator<Item = u64> {
    graph.nodes.values().filter_map(|node| {
        let Op::Collective(c) = &node.op else { return None };
        let operands: Vec<_> = node.inputs.iter().map(|&v| graph.ty(v)).collect();
        let results: Vec<_> = node.outputs.iter().map(|&v| graph.ty(v)).collect();
        let bytes = c.kind.sized_type(&operands, &results)?.bytes().upper_bound(&graph.symbols);
        let ranks = u64::from(graph.group_size(c.group)?);
        Some(c.variant?.symmetric_bytes(&c.kind, u64::try_from(bytes).unwrap_or(0), ranks))
    })
}

fn largest_symmetric_request(input: &BucketInput) -> u64 {
    symmetric_requests(&input.graph).max().unwrap_or(0)
}
