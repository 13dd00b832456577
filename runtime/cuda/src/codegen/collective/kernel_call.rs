//! A kernel with its parameters, ready to be launched: one small function that instantiates a template of
//! `kernels/`.

use symmc_ir::DType;
use symmc_ir::collective::{CollectiveKind as Kind, CollectiveReduceOp};

use super::call::RankCollective;
use super::params::declarations;
use super::peers::PeerContext;
use crate::codegen::compile::KernelSource;
use crate::device::driver::LinkAtomicity;
use crate::device::launch::{Address, KernelLaunch, KernelParam};
use crate::error::Result;

/// Operations that access peers.
pub(super) const DEVICE_SOURCE: &str = include_str!("kernels/device.cu");

const KERNEL_SOURCES: &str = concat!(
    include_str!("kernels/waits.cu"),
    include_str!("kernels/elements.cu"),
    include_str!("kernels/barrier.cu"),
    include_str!("kernels/several.cu"),
    include_str!("kernels/pushed.cu"),
    include_str!("kernels/ll.cu"),
    include_str!("kernels/ll128.cu"),
    include_str!("kernels/norm.cu"),
    include_str!("kernels/splits.cu"),
    include_str!("kernels/row_exchange.cu"),
    include_str!("kernels/row_sums.cu"),
);

/// The text before the kernels that enables random delays around every access to a peer.
const CHAOS_DEFINE: &str = "#define SYMMC_CHAOS\n";

/// The text before the kernels if links may split lines of LL128.
const SPLIT_LL128: &str = "#define SYMMC_SPLIT_LL128\n";

pub(super) struct KernelCall {
    /// A short description for profilers.
    pub what: String,
    /// The template instance that the body calls, without namespace.
    pub body: String,
    pub params: (&'static str, KernelParam),
    /// An optional second parameter with its type.
    pub extra_param: Option<(&'static str, KernelParam)>,
    /// The largest number of threads per block that it is compiled for. With fewer threads, each may have
    /// more registers.
    pub most_threads: u32,
    pub blocks: [u32; 2],
}

impl KernelCall {
    pub fn launch(self, peers: &PeerContext, source: &mut KernelSource) -> KernelLaunch {
        if peers.chaos.is_some() {
            source.prelude(CHAOS_DEFINE);
        }
        if peers.links == LinkAtomicity::MaySplit {
            source.prelude(SPLIT_LL128);
        }
        source.prelude(DEVICE_SOURCE);
        source.prelude(declarations());
        source.prelude(KERNEL_SOURCES);
        let [blocks, threads] = self.blocks;
        let (family, params) = self.params;
        let (declared, passed) = match &self.extra_param {
            Some((ty, _)) => (format!(", const __grid_constant__ {ty} beside"), ", beside"),
            None => (String::new(), ""),
        };
        // The kernel is in the namespace of the templates, so that other code in the program may use the same
        // names.
        let text = format!(
            "namespace symmc_peer {{\nextern \"C\" __global__ void __launch_bounds__({}) \
             @(const __grid_constant__ {family} call{declared}) {{\n    symmc_enter();\n    {}(call{passed});\n}}\n}}\n",
            self.most_threads, self.body
        );
        let extra_param = self.extra_param.map(|(_, param)| param);
        let params = [params].into_iter().chain(extra_param).collect();
        KernelLaunch::flat(source.function(&self.what, text), blocks as usize, threads as usize, params)
    }
}

/// The kernels' type name of an element.
pub(super) fn element(dtype: DType) -> String {
    match dtype {
        DType::Bool | DType::F8E4M3 | DType::F8E5M2 | DType::F8E8M0 => "U8".to_string(),
        dtype => dtype.name().to_uppercase(),
    }
}

/// The kernels' type names of the element and the operation.
pub(super) fn reduction(dtype: DType, op: CollectiveReduceOp) -> (String, &'static str) {
    let average = op == CollectiveReduceOp::Avg;
    let element = element(dtype);
    // Sums are divided at the end.
    let is_widened = average && !matches!(dtype, DType::Bool) && dtype.size() < 8 && !dtype.is_float();
    let element = if is_widened { format!("Wide{element}") } else { element };
    let operation = match (dtype, op) {
        (DType::Bool, CollectiveReduceOp::Sum | CollectiveReduceOp::Max) => "Or",
        (DType::Bool, CollectiveReduceOp::Prod | CollectiveReduceOp::Min | CollectiveReduceOp::Avg) => "And",
        (_, CollectiveReduceOp::Sum) => "Sum",
        (_, CollectiveReduceOp::Avg) => "Avg",
        (_, CollectiveReduceOp::Max) => "Max",
        (_, CollectiveReduceOp::Min) => "Min",
        (_, CollectiveReduceOp::Prod) => "Prod",
    };
    (element, operation)
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum SendPattern {
    SameToAll,
    /// Each peer gets its own slice.
    OnePerPeer,
}

impl SendPattern {
    pub fn of_kind(kind: &Kind) -> SendPattern {
        if matches!(kind, Kind::AllGather) { SendPattern::SameToAll } else { SendPattern::OnePerPeer }
    }
}

/// The bytes that each rank receives from each, and a function from a receiver's index to its offset in the
/// sender's operand.
pub(super) fn message_slices(running: &RankCollective) -> Result<(usize, impl Fn(usize) -> Address + use<>)> {
    let sends_all = SendPattern::of_kind(&running.bound.kind) == SendPattern::SameToAll;
    let piece = if sends_all { running.bytes } else { running.slice_bytes()? };
    Ok((piece, move |receiver| if sends_all { 0 } else { (receiver * piece) as Address }))
}
