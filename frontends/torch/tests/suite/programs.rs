//! Every real program imports completely: no op stays opaque, all collectives are there, and symbols, ranks
//! and weights are those in the README of the programs.

use std::path::PathBuf;

use symmc_ir::{CollectiveKind, Graph, InputKind, Op};
use symmc_torch::{ImportOptions, ImportOutput, import};

fn program(name: &str, ranks: Option<u32>) -> ImportOutput {
    let path =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs").join(format!("{name}.pt2"));
    let options = ImportOptions { name: name.into(), ranks, ..ImportOptions::default() };
    let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{name}: {e}"));
    import(&bytes, &options).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// The numbers of collectives: all-reduce, all-gather, reduce-scatter, all-to-all.
fn collectives(graph: &Graph) -> [usize; 4] {
    let mut count = [0; 4];
    for c in graph.nodes.values().filter_map(|n| n.op.as_collective()) {
        match c.kind {
            CollectiveKind::AllReduce(_) => count[0] += 1,
            CollectiveKind::AllGather => count[1] += 1,
            CollectiveKind::ReduceScatter(_) => count[2] += 1,
            CollectiveKind::AllToAll(_) => count[3] += 1,
            _ => panic!("unexpected {}", c.kind.name()),
        }
    }
    count
}

#[test]
fn every_program_imports() {
    // Program, number of ranks that it determines, collectives, symbols, weights with data.
    for (name, ranks, expected, symbols, weights) in [
        ("megatron_tp4_f32", Some(4), [4, 1, 0, 0], vec![("tokens", 2, 4096, Some("s23"))], 15),
        ("megatron_tp4_bf16", Some(4), [4, 1, 0, 0], vec![("tokens", 2, 4096, Some("s23"))], 15),
        ("hf_llama_tp2", None, [4, 0, 0, 0], vec![], 21),
        ("hf_llama_tp2_core", None, [4, 0, 0, 0], vec![], 0),
        ("moe_ep4", Some(4), [0, 0, 0, 4], vec![], 6),
        ("fsdp4_fw_graph", Some(4), [0, 4, 0, 0], vec![], 0),
        ("fsdp4_bw_graph", Some(4), [0, 0, 4, 0], vec![], 0),
        ("llama70b_tp8_graph", None, [160, 0, 0, 0], vec![("tokens", 2, 8192, Some("s27"))], 0),
    ] {
        let imported = program(name, None);
        let graph = &imported.graph;
        assert_eq!(graph.ranks, ranks, "{name}");
        assert_eq!(collectives(graph), expected, "{name}");
        let actual: Vec<_> =
            graph.symbols.values().map(|s| (s.name.as_str(), s.min, s.max, s.alias.as_deref())).collect();
        assert_eq!(actual, symbols, "{name}");
        assert_eq!(imported.weights.len(), weights, "{name}");
        let opaque = graph.nodes.values().filter(|n| matches!(n.op, Op::Opaque { .. })).count();
        assert_eq!(opaque, 0, "{name}: {:?}", imported.notes);
        assert_eq!(symmc_ir::verify::verify(graph), Ok(()), "{name}");
        let text = symmc_ir::text::print(graph);
        assert!(
            symmc_ir::text::parse(&text).as_ref() == Ok(graph),
            "{name} differs after printing and parsing"
        );
    }
}

#[test]
fn buffers_that_are_not_in_the_state_are_constants() {
    let imported = program("hf_llama_tp2", Some(2));
    let constants: Vec<_> =
        imported.graph.inputs.values().filter(|i| i.kind == InputKind::Constant).collect();
    assert_eq!(constants.len(), 2);
    assert_eq!(constants[0].source, "m.model.rotary_emb.inv_freq");
    let data = constants[0].data.as_ref().unwrap();
    assert_eq!(data.shape(), [8]);
    assert_eq!(data.get_f64(0), 1.0);
}

#[test]
fn ranks_that_contradict_the_program_are_refused() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/moe_ep4.pt2");
    let options = ImportOptions { ranks: Some(3), ..ImportOptions::default() };
    let error = import(&std::fs::read(path).unwrap(), &options).unwrap_err().to_string();
    assert!(
        error.contains("the caller says 3 ranks") && error.contains("`all_to_all_single` says 4"),
        "{error}"
    );
}
