//! Launches that are relocated are what would have been lowered, and ranks lower alike what they do together, for every
//! program of this repository and random ones. Where memory begins is drawn anew, in any order, at multiples of 16.

use std::sync::Arc;

use symmc::unstable::cuda::addresses::AddressMap;
use symmc::unstable::cuda::command::Command;
use symmc::unstable::cuda::compute::Attentions;
use symmc::unstable::cuda::lowered::Lowered;
use symmc::unstable::cuda::relocation::{Relocations, Shifted};
use symmc::{Bind, CheckedPlan, Config, OpenOptions, Profile, Program, Registry};
use symmc_cases::programs::{self, Variants};
use symmc_ir::text;
use symmc_runtime::exec::{self, Bound};
use symmc_runtime::session::Arrangement;
use symmc_support::random::SplitMix;
use symmc_tests::{GRAPHS, RUNNABLE, files, root};

const ARENA: u64 = 1 << 41;

/// The largest and the smallest sizes of a bucket, as a rank has them.
fn bounds(plan: &CheckedPlan, rank: u32) -> Vec<Arc<Bound>> {
    let of = |(index, bucket): (usize, &symmc_plan::Bucket)| {
        let program = exec::PreparedBucket::new(plan, index, rank, &Registry::new()).expect("a program");
        [0, 1].map(|end| {
            let sizes = bucket.symbols.iter().map(|(symbol, range)| (symbol.clone(), range[end]));
            Arc::new(program.bind(&sizes.collect()).expect("sizes of the bucket"))
        })
    };
    plan.buckets.iter().enumerate().flat_map(of).collect()
}

/// Memory for everything, somewhere.
fn addresses(bound: &Bound, random: &mut SplitMix) -> AddressMap {
    let count = bound.inputs.len() + bound.outputs.len();
    let mut order: Vec<u64> = (0..count as u64).collect();
    (1..count).rev().for_each(|i| order.swap(i, random.below(i + 1)));
    let mut next = || 16 * random.below(1 << 30) as u64;
    let mut at = |place: usize| (1 << 45) + (order[place] << 38) + next();
    let mut inputs: Vec<u64> = (0..bound.inputs.len()).map(&mut at).collect();
    for (input, space) in bound.inputs.iter().zip(&mut inputs) {
        *space = input.fixed.map_or(*space, |offset| ARENA + offset as u64);
    }
    let mut outputs: Vec<u64> = (bound.inputs.len()..count).map(&mut at).collect();
    for (output, space) in bound.outputs.iter().zip(&mut outputs) {
        *space = output.held_by().map_or(*space, |input| inputs[input]);
    }
    AddressMap { ordinary: 1 << 40, symmetric: ARENA, inputs, outputs }
}

/// How many bases there are, how many of them cannot move, and how many that no library's collective has.
#[derive(Default)]
struct Count {
    bases: usize,
    fixed: usize,
    without_reason: usize,
}

/// One program in one memory and in another, all of it and each base in turn.
fn check(name: &str, bound: &Arc<Bound>, ranks: u32, attention: Attentions, seed: u64, count: &mut Count) {
    let mut random = SplitMix(seed);
    let here = addresses(bound, &mut random);
    let lower = |addresses: &AddressMap| Lowered::dry(bound, ranks, addresses, attention);
    let Ok(lowered) = lower(&here) else { return };
    let shifted = Shifted::new(&here, bound, ARENA..ARENA + bound.symmetric as u64);
    let other = lower(shifted.addresses()).unwrap_or_else(|e| panic!("{name}: {e}"));
    let found = Relocations::find(&lowered, &here, &other, &shifted);
    let found = found.unwrap_or_else(|| panic!("{name}: something depends on addresses otherwise"));
    let drawn = addresses(bound, &mut random);
    let (from, to): (Vec<u64>, Vec<u64>) = (here.bases().collect(), drawn.bases().collect());
    let moved = |which: &dyn Fn(usize) -> bool| {
        let at = |b: usize| if which(b) && !found.fixed()[b] { to[b] } else { from[b] };
        here.with_bases(&(0..from.len()).map(at).collect::<Vec<u64>>())
    };
    let compare = |addresses: &AddressMap, what: &str| {
        let expected = lower(addresses).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(found.relocated(&lowered, addresses), expected.work(), "{name}: {what}");
        assert_eq!(lowered.code(), expected.code(), "{name}: {what}");
    };
    compare(&moved(&|_| true), "everything elsewhere");
    let owner = |b: usize| match b.checked_sub(bound.inputs.len()) {
        Some(k) => bound.outputs[k].held_by().unwrap_or(b),
        None => b,
    };
    let step = (from.len() / 12).max(1);
    for one in (seed as usize % step..from.len()).step_by(step) {
        compare(&moved(&|b| owner(b) == owner(one)), &format!("base {one} elsewhere"));
    }
    for (base, _) in found.fixed().iter().enumerate().filter(|(b, fixed)| **fixed && owner(*b) == *b) {
        let in_arena = from[base] >= ARENA && from[base] < 1 << 45;
        let called = lowered.work().iter().flatten().any(|work| matches!(work, Command::Nccl(_)));
        count.fixed += usize::from(!in_arena);
        count.without_reason += usize::from(!in_arena && !called);
    }
    count.bases += from.len();
}

fn check_plan(name: &str, plan: &CheckedPlan, seed: u64, count: &mut Count) {
    let mut ranks = vec![0, plan.ranks - 1];
    ranks.dedup();
    for rank in ranks {
        for bound in bounds(plan, rank) {
            for attention in [Attentions::Kernels, Attentions::Chosen] {
                check(name, &bound, plan.ranks, attention, seed, count);
            }
        }
    }
}

/// What ranks do together is alike on all of them, wherever a rank has its own memory.
fn check_agreement(name: &str, plan: &CheckedPlan, seed: u64) -> usize {
    let alike = |rank: u32| -> Vec<Option<Vec<u8>>> {
        let lowered = |bound: Arc<Bound>| {
            let addresses = addresses(&bound, &mut SplitMix(seed + u64::from(rank)));
            let lowered = Lowered::dry(&bound, plan.ranks, &addresses, Attentions::Kernels).ok()?;
            Some(lowered.alike(&bound.steps))
        };
        bounds(plan, rank).into_iter().map(lowered).collect()
    };
    let first = alike(0);
    for rank in 1..plan.ranks {
        assert!(alike(rank) == first, "{name}: rank {rank} runs a collective otherwise than rank 0");
    }
    first.iter().flatten().flatten().filter(|b| **b != 0).count()
}

/// A plan for GPUs.
fn planned(program: &Program, bind: Bind) -> Option<CheckedPlan> {
    let ranks = program.graph.ranks.unwrap_or(1);
    let config = Config::default().with_profile(Profile::builtin(Profile::nearest(ranks))?).with_bind(bind);
    symmc::compile(program, &config).ok()
}

/// The recorded programs and the graphs, with the number of their ranks.
fn recorded() -> Vec<(String, u32)> {
    let known = RUNNABLE.iter().chain(&GRAPHS).map(|&(stem, ranks)| (stem.to_string(), ranks));
    let folder = std::fs::read_dir(root().join("tests/programs/families")).expect("the families");
    let stem = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.ok()?.path();
        let stem = path.file_stem()?.to_str()?.to_string();
        let ranks = if stem.ends_with("_tp2") { 2 } else { 1 };
        (path.extension()? == "pt2").then(|| (format!("families/{stem}"), ranks))
    };
    known.chain(folder.filter_map(stem)).collect()
}

#[test]
fn recorded_programs_are_relocated_as_they_would_be_lowered_and_alike_on_all_ranks() {
    let (mut count, mut compared) = (Count::default(), 0);
    for (number, (stem, ranks)) in recorded().iter().enumerate() {
        let options = OpenOptions::default().with_ranks(*ranks);
        let program = Program::open_files(&files(stem, *ranks), &options).expect("a valid program");
        for bind in [Bind::None, Bind::All] {
            let plan = planned(&program, bind).unwrap_or_else(|| panic!("{stem}: no plan"));
            check_plan(stem, &plan, number as u64, &mut count);
            compared += check_agreement(stem, &plan, number as u64);
        }
    }
    assert!(compared > 1000, "{compared} bytes say what ranks do together");
    let Count { bases, fixed, without_reason } = count;
    println!("{bases} bases, of which {fixed} cannot move");
    assert!(
        bases > 1000 && without_reason == 0,
        "{bases} bases, {without_reason} cannot move without reason"
    );
    assert!(fixed * 20 < bases, "{fixed} of {bases} bases cannot move");
}

#[test]
fn gradients_of_attention_are_relocated_as_they_would_be_lowered() {
    let mut count = Count::default();
    let path = root().join("tests/programs/attention_gradient.symm");
    let program = Program::open(&path, &OpenOptions::default()).expect("a program");
    for bind in [Bind::None, Bind::All] {
        let plan = planned(&program, bind).expect("a plan");
        check_plan("gradients", &plan, 1, &mut count);
    }
    assert!(count.bases > 10 && count.without_reason == 0, "{} bases", count.bases);
}

#[test]
fn random_programs_are_relocated_as_they_would_be_lowered_and_alike_on_all_ranks() {
    let mut count = Count::default();
    for seed in 0..150 {
        let graph = programs::program(seed, 4 + seed as usize % 20, Variants::Drawn);
        let program = Program::from_text(&text::print(&graph)).expect("a program");
        for bind in [Bind::None, Bind::All] {
            let Some(plan) = planned(&program, bind) else { continue };
            check_plan(&format!("seed {seed}"), &plan, seed, &mut count);
            check_agreement(&format!("seed {seed}"), &plan, seed);
        }
    }
    assert!(count.bases > 1000 && count.without_reason == 0, "{} bases", count.bases);
}

/// A program that takes turns with others is lowered as it is by itself, after a kernel in which all ranks meet.
#[test]
fn programs_that_take_turns_are_lowered_behind_a_barrier() {
    let (mut plans, mut compared) = (0, 0);
    for seed in 0..60 {
        let graph = programs::program(seed, 4 + seed as usize % 20, Variants::Drawn);
        let program = Program::from_text(&text::print(&graph)).expect("a program");
        let Some(plan) = planned(&program, Bind::All).filter(|plan| plan.ranks > 1) else { continue };
        let mut arrangement = Arrangement::new(&plan, None);
        let number = arrangement.add(&plan, None).expect("there is no limit");
        let placement = arrangement.placement(number);
        let lowered = |bound: &Arc<Bound>, rank: u32| {
            let addresses = addresses(bound, &mut SplitMix(seed + u64::from(rank)));
            Lowered::dry(bound, plan.ranks, &addresses, Attentions::Kernels)
        };
        let alike = |rank: u32| -> Vec<Option<Vec<u8>>> {
            let one = |bound: Arc<Bound>| {
                let alone = lowered(&bound, rank).ok()?;
                let placed = Arc::new(bound.placed(&placement));
                let others = lowered(&placed, rank).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
                let [first, rest @ ..] = others.work() else { panic!("seed {seed}: no steps") };
                assert!(matches!(first[..], [Command::Kernel(_)]), "seed {seed}: {first:?}");
                let kinds = |work: &[Vec<Command>]| -> Vec<Vec<std::mem::Discriminant<Command>>> {
                    work.iter().map(|all| all.iter().map(std::mem::discriminant).collect()).collect()
                };
                assert_eq!(kinds(rest), kinds(alone.work()), "seed {seed}");
                Some(others.alike(&placed.steps))
            };
            bounds(&plan, rank).into_iter().map(one).collect()
        };
        let first = alike(0);
        assert!((1..plan.ranks).all(|rank| alike(rank) == first), "seed {seed}: ranks differ");
        compared += first.iter().flatten().count();
        plans += 1;
    }
    assert!(plans > 30 && compared > 30, "{plans} plans, {compared} programs");
}
