//! What the end-to-end suites share: the real programs of this repository.

use std::path::{Path, PathBuf};

/// The top folder of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A file among the real programs.
pub fn program(name: &str) -> PathBuf {
    root().join("tests/programs").join(name)
}

/// The programs that come with weights, inputs and outputs: stem and ranks.
pub const RUNNABLE: [(&str, u32); 4] =
    [("megatron_tp4_f32", 4), ("megatron_tp4_bf16", 4), ("hf_llama_tp2", 2), ("moe_ep4", 4)];

/// The programs that are only a graph: stem and ranks.
pub const GRAPHS: [(&str, u32); 4] =
    [("hf_llama_tp2_core", 2), ("fsdp4_fw_graph", 4), ("fsdp4_bw_graph", 4), ("llama70b_tp8_graph", 8)];
