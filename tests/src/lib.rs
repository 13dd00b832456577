//! What the end-to-end suites share: the real programs of this repository, and trials of random ones.

pub mod bounds;
pub mod lengths;
pub mod mutants;
pub mod regret;
pub mod rewrites;
pub mod trials;

use std::path::{Path, PathBuf};
use std::process::Child;

/// The top folder of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A file among the real programs.
pub fn program(name: &str) -> PathBuf {
    root().join("tests/programs").join(name)
}

/// The files of a program: one archive, or an archive or an ONNX model for each rank.
pub fn files(stem: &str, ranks: u32) -> Vec<PathBuf> {
    files_in(&root().join("tests/programs"), stem, ranks)
}

/// Like [`files`], of a program in this folder.
pub fn files_in(folder: &Path, stem: &str, ranks: u32) -> Vec<PathBuf> {
    let archive = folder.join(format!("{stem}.pt2"));
    if archive.is_file() {
        return vec![archive];
    }
    let of_rank = |rank| {
        let archive = folder.join(format!("{stem}.rank{rank}.pt2"));
        if archive.is_file() { archive } else { folder.join(format!("{stem}_rank{rank}.onnx")) }
    };
    (0..ranks).map(of_rank).collect()
}

/// The programs that come with weights, inputs and outputs: stem and ranks.
pub const RUNNABLE_PROGRAMS: [(&str, u32); 6] = [
    ("megatron_tp4_f32", 4),
    ("megatron_tp4_bf16", 4),
    ("hf_llama_tp2", 2),
    ("moe_ep4", 4),
    ("gpt_tp2", 2),
    ("bias_cancel", 1),
];

/// Programs with recorded tensors, small and unlike each other: caches, symmetric inputs, several ranks.
pub const RECORDED_PROGRAMS: [&str; 8] = [
    "families/llama_static_decode",
    "families/gemma3_static_prefill",
    "families/llama_past",
    "families/qwen3_tp2",
    "moe_ep4",
    "expert_gather2",
    "megatron_tp4_bf16",
    "hf_llama_tp2",
];

/// Processes that are killed when this value goes, however a test ends.
pub struct ProcessGuard(pub Vec<Child>);

impl Drop for ProcessGuard {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The programs that are only a graph: stem and ranks.
pub const GRAPH_PROGRAMS: [(&str, u32); 4] =
    [("hf_llama_tp2_core", 2), ("fsdp4_fw_graph", 4), ("fsdp4_bw_graph", 4), ("llama70b_tp8_graph", 8)];
