//! Ranks that are said to hold the same bits of a value do, for every value of random programs on random meshes.

use std::sync::Arc;

use symmc_cases::programs::{VariantMode, program};
use symmc_ir::{GraphOutput, OutputKind, Replication, SymbolBindings, Tensor, interp};

/// Programs that are drawn.
const PROGRAMS: u64 = 400;

#[test]
fn values_have_the_bits_that_are_promised() {
    let (mut ran, mut pairs) = (0, 0);
    for seed in 0..PROGRAMS {
        let mut graph = program(seed, 4 + seed as usize % 24, VariantMode::Open);
        let returned = |value| GraphOutput { value, kind: OutputKind::Returned };
        graph.outputs = graph.values.keys().map(returned).collect();
        let bindings = SymbolBindings::at_lower_bounds(&graph.symbols);
        let ranks = graph.ranks.expect("closed");
        let inputs: Option<Vec<Vec<Arc<Tensor>>>> = (0..ranks)
            .map(|rank| interp::seeded_inputs(&graph, &bindings, &interp::SeedConfig::new(seed), rank).ok())
            .collect();
        // Some programs fail on their data, such as sizes that do not fit.
        let Some(Ok(outputs)) = inputs.map(|inputs| interp::run(&graph, &bindings, &inputs)) else {
            continue;
        };
        ran += 1;
        let replication = Replication::of_graph(&graph);
        for (i, value) in graph.values.keys().enumerate() {
            for (a, b) in (0..ranks).flat_map(|a| (0..a).map(move |b| (a, b))) {
                if replication[value].are_replicas(a, b) {
                    pairs += 1;
                    let [x, y] = [a, b].map(|rank| outputs[rank as usize][i].data());
                    assert!(
                        x == y,
                        "seed {seed}: %{} differs between ranks {a} and {b}",
                        graph.value_name(value)
                    );
                }
            }
        }
    }
    assert!(ran > PROGRAMS / 2 && pairs > 1000, "{ran} programs, {pairs} pairs");
}
