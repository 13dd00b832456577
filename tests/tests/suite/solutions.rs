//! Lowerings that share solutions of regions give the same results as lowerings that do not.

use symmc::{CompileConfig, Program};
use symmc_cases::idioms;
use symmc_ir::machine::MachineProfile;
use symmc_ir::{CollectiveVariant, Graph, Numerics, NumericsClass, text};
use symmc_passes::lower::{CollectiveConditions, LowerConditions, VariantSet};
use symmc_passes::{LowerConfig, SolutionCache, canonicalize, lower};
use symmc_support::random::SplitMix;

fn draw_conditions(r: &mut SplitMix) -> CollectiveConditions {
    let all = VariantSet::from_iter(CollectiveVariant::ALL.iter().copied());
    let some = CollectiveVariant::ALL.iter().copied().filter(|_| r.one_in(3)).collect();
    CollectiveConditions {
        hidden_eighths: r.pick(&[0, 1, 4, 8]),
        exit_kept: r.one_in(3),
        variants: if r.one_in(2) { all } else { some },
        rewriting: !r.one_in(3),
        max_symmetric_bytes: r.pick(&[0, 1 << 10, 1 << 16, u64::MAX, u64::MAX, u64::MAX]),
    }
}

/// A lowering of a program with random properties.
fn config(graph: &Graph, r: &mut SplitMix) -> LowerConfig {
    let profile = MachineProfile::builtin(r.pick(&MachineProfile::builtin_names())).expect("it is built in");
    let collectives = graph.nodes.iter().filter(|(_, node)| node.op.as_collective().is_some());
    let names: Vec<String> = collectives.map(|(n, _)| graph.node_name(n).to_string()).collect();
    let mut conditions = LowerConditions::uniform(draw_conditions(r));
    for name in names {
        if r.one_in(2) {
            *conditions.entry(&name) = draw_conditions(r);
        }
    }
    let symbols = graph.symbols.iter().map(|(id, s)| (id, (s.min, r.pick(&[s.min, s.max])))).collect();
    LowerConfig {
        conditions,
        variants: if r.one_in(4) { Some(Vec::new()) } else { None },
        numerics: NumericsClass::ALL.iter().copied().filter(|_| r.one_in(3)).collect(),
        symbols,
        ..LowerConfig::new(profile)
    }
}

#[test]
fn shared_solutions_change_no_lowering() {
    let shared = SolutionCache::default();
    for seed in 0..150 {
        let mut r = SplitMix(seed ^ 0x50_1f);
        let (graph, _) = canonicalize(&idioms::program(seed).graph).expect("a canonical form");
        for _ in 0..5 {
            let config = config(&graph, &mut r);
            let lowered = |config: &LowerConfig| {
                let (lowered, decisions, _) = lower(&graph, config).expect("a lowered program");
                (text::print(&lowered), decisions)
            };
            let separate = lowered(&config);
            let with_others = LowerConfig { solutions: shared.clone(), ..config };
            assert_eq!(separate, lowered(&with_others), "seed {seed}: {with_others:?}");
            // All of its solutions are known now.
            let built = shared.egraphs_built();
            assert_eq!(separate, lowered(&with_others), "seed {seed} again");
            assert_eq!(built, shared.egraphs_built(), "seed {seed}: an e-graph is made again");
        }
    }
}

#[test]
fn compilations_of_one_program_do_not_affect_each_other() {
    for seed in 0..12 {
        let graph = idioms::program(seed).graph;
        let program = || Program::from_graph(graph.clone()).expect("a program");
        let shared = program();
        for (machine, numerics) in [
            ("h200x4", Numerics::EXACT),
            ("h200x8", Numerics::EXACT),
            ("h200x4", NumericsClass::Reassociate.into()),
            ("host", Numerics::EXACT),
        ] {
            let profile = MachineProfile::builtin(machine).expect("it is built in");
            let config = CompileConfig::default().with_profile(profile).with_numerics(numerics);
            let plan = |program: &Program| {
                symmc::compile(program, &config).map(|plan| plan.into_plan()).map_err(|e| e.to_string())
            };
            assert_eq!(plan(&shared), plan(&program()), "seed {seed}: {machine}, {numerics}");
        }
    }
}
