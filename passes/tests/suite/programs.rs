//! The passes on real programs: the ops that they recognise, and equal results.

use symmc_ir::attention::is_causal;
use symmc_ir::machine::MachineProfile;
use symmc_ir::text::op_name;
use symmc_ir::{Graph, Op};
use symmc_passes::{LowerConfig, canonicalize, lower};
use symmc_torch::{ImportOptions, import};

use crate::common::{bindings, difference};

fn program(name: &str, ranks: u32) -> Graph {
    let path = format!("{}/../tests/programs/{name}.pt2", env!("CARGO_MANIFEST_DIR"));
    let options = ImportOptions { ranks: Some(ranks), ..ImportOptions::default() };
    import(&std::fs::read(path).unwrap(), &options).unwrap().graph
}

/// A program with one ONNX model per rank.
fn gpt() -> Graph {
    let path = |rank| format!("{}/../tests/programs/gpt_tp2_rank{rank}.onnx", env!("CARGO_MANIFEST_DIR"));
    let options = symmc_onnx::ImportOptions::default();
    symmc_onnx::import_files(&[path(0).into(), path(1).into()], &options).unwrap().graph
}

/// The number of nodes of an op.
fn count(graph: &Graph, name: &str) -> usize {
    graph.nodes.values().filter(|n| op_name(&n.op) == name).count()
}

/// All attention of the program is causal and takes no mask.
fn attention_is_causal(graph: &Graph) -> bool {
    let plain = |op: &Op| if let Op::Permuted { op, .. } = op { (**op).clone() } else { op.clone() };
    let mut attention = graph.nodes.values().filter(|n| matches!(plain(&n.op), Op::Attention { .. }));
    attention.all(|n| {
        matches!(plain(&n.op), Op::Attention { bounds, .. } if is_causal(&bounds)) && n.inputs.len() == 3
    })
}

/// Lowers for the machine of this many ranks and checks what holds of every program.
fn lower_for_machine(canonical: &Graph, machine: &str) -> Graph {
    let mut config = LowerConfig::new(MachineProfile::builtin(machine).unwrap());
    config.symbols = canonical.symbols.iter().map(|(id, s)| (id, (s.min, s.max.min(64)))).collect();
    let (out, choices, report) = lower(canonical, &config).unwrap();
    symmc_ir::verify::verify(&out).unwrap();
    assert!(report.distinct <= 4, "{report:?}");
    for choice in &choices {
        let us = |name: &str| choice.alternatives.iter().find(|a| a.name == name).unwrap().us;
        assert!(us(&choice.chosen) <= us("plain"), "{choice:?}");
    }
    out
}

#[test]
fn a_model_and_its_decomposed_form_are_the_same() {
    let fused = canonicalize(&program("hf_llama_tp2", 2)).unwrap().0;
    let decomposed = canonicalize(&program("hf_llama_tp2_core", 2)).unwrap().0;
    for graph in [&fused, &decomposed] {
        assert_eq!((count(graph, "rms_norm"), count(graph, "silu"), count(graph, "attention")), (5, 2, 2));
        assert!(attention_is_causal(graph));
        assert_eq!(count(graph, "expand") + count(graph, "select") + count(graph, "index"), 0);
    }
    let ops = |g: &Graph| g.nodes.values().map(|n| n.op.clone()).collect::<Vec<_>>();
    assert_eq!(ops(&fused), ops(&decomposed));
}

#[test]
fn values_are_kept() {
    let programs = [
        ("hf_llama_tp2", 2, "h200x2", 1e-5),
        ("hf_llama_tp2_core", 2, "host", 1e-5),
        ("megatron_tp4_f32", 4, "h200x4", 0.0),
        ("megatron_tp4_bf16", 4, "h200x4", 0.0),
        ("moe_ep4", 4, "h200x4", 0.0),
        ("fsdp4_fw_graph", 4, "host", 0.0),
        ("fsdp4_bw_graph", 4, "h200x4", 0.0),
    ];
    for (name, ranks, machine, allowed) in programs {
        let source = program(name, ranks);
        let out = lower_for_machine(&canonicalize(&source).unwrap().0, machine);
        let worst = difference(&source, &out, &bindings(&out, 3), 5);
        assert!(worst <= allowed, "{name}: differs by {worst}");
    }
}

#[test]
fn onnx_model_is_recognised_with_equal_values() {
    let source = gpt();
    let canonical = canonicalize(&source).unwrap().0;
    let counts = ["layer_norm", "attention", "gelu", "softmax"].map(|op| count(&canonical, op));
    assert_eq!(counts, [5, 2, 2, 0]);
    for machine in ["host", "h200x2"] {
        let out = lower_for_machine(&canonical, machine);
        let worst = difference(&source, &out, &bindings(&out, 3), 5);
        assert!(worst <= 1e-5, "{machine}: differs by {worst}");
    }
}

#[test]
fn a_large_model_is_recognised_and_solved_once() {
    let source = program("llama70b_tp8_graph", 8);
    let canonical = canonicalize(&source).unwrap().0;
    let op_counts = |g: &Graph| ["rms_norm", "attention", "silu", "all_reduce"].map(|op| count(g, op));
    assert_eq!(op_counts(&canonical), [161, 80, 80, 160]);
    assert!(attention_is_causal(&canonical));
    let out = lower_for_machine(&canonical, "h200x8");
    assert!(out.nodes.values().filter_map(|n| n.op.as_collective()).all(|c| c.variant.is_some()));
}
