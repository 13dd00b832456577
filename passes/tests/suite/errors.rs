//! The graphs and configs that passes reject, and the error messages.

use symmc_ir::machine::MachineProfile;
use symmc_ir::{Graph, text};
use symmc_passes::{LowerConfig, canonicalize, lower};

const PROGRAM: &str = "program \"p\" ranks 2\nsymbol t in 2..=8\ngroup @all world\narg %x: f32[t]\n\
                       %y: f32[t] = all_reduce %x op=sum group=@all\nreturn %y\n";

fn program() -> Graph {
    text::parse(PROGRAM).unwrap()
}

fn config() -> LowerConfig {
    LowerConfig::new(MachineProfile::builtin("host").unwrap())
}

#[test]
fn a_broken_graph_is_refused_before_it_is_rewritten() {
    let mut graph = program();
    for value in graph.values.values_mut() {
        value.name = "same".into();
    }
    let message = canonicalize(&graph).unwrap_err().to_string();
    assert!(message.starts_with("before canonicalize: the graph is invalid: "), "{message}");
    assert!(message.contains("same"), "{message}");
}

#[test]
fn the_number_of_ranks_must_be_known() {
    let mut graph = program();
    graph.ranks = None;
    let message = lower(&graph, &config()).unwrap_err().to_string();
    assert_eq!(message, "lower: program p has an open number of ranks: set the number of ranks first");
}

#[test]
fn a_bucket_lies_within_its_symbol() {
    let graph = program();
    for (range, fits) in [((2, 8), true), ((3, 3), true), ((1, 8), false), ((2, 9), false), ((5, 4), false)] {
        let mut config = config();
        config.symbols.insert(graph.symbols.keys().next().unwrap(), range);
        match lower(&graph, &config) {
            Ok((out, ..)) => {
                assert!(fits, "{range:?}");
                let symbol = out.symbols.values().next().unwrap();
                assert_eq!((symbol.min, symbol.max), range);
            }
            Err(e) => {
                assert!(!fits, "{range:?}: {e}");
                assert!(e.to_string().contains("nonempty range of symbol t within 2..=8, found"), "{e}");
            }
        }
    }
}

#[test]
fn a_profile_must_know_plain() {
    let mut config = config();
    config
        .profile
        .curves
        .edit(|curves| curves.retain(|c| c.collective != symmc_ir::CollectiveName::AllReduce));
    let message = lower(&program(), &config).unwrap_err().to_string();
    assert_eq!(message, "lower: %y: profile host has no curve for the plain variant of all_reduce");
}
