//! A kernel with its parameters, ready to be launched: one small function of what the templates in `kernels/` declare.

use symmc_ir::DType;
use symmc_ir::collective::{CollectiveKind as Kind, ReduceOp};

use super::call::Running;
use super::params::declarations;
use super::peers::Peers;
use crate::codegen::compile::Source;
use crate::device::driver::Links;
use crate::device::launch::{Address, Kernel, Param};
use crate::error::Result;

/// Operations that reach peers.
pub(super) const DEVICE: &str = include_str!("kernels/device.cu");

const KERNELS: &str = concat!(
    include_str!("kernels/waits.cu"),
    include_str!("kernels/elements.cu"),
    include_str!("kernels/barrier.cu"),
    include_str!("kernels/several.cu"),
    include_str!("kernels/pushed.cu"),
    include_str!("kernels/ll.cu"),
    include_str!("kernels/ll128.cu"),
    include_str!("kernels/norm.cu"),
    include_str!("kernels/splits.cu"),
);

/// What stands before them for delays around every touch of a peer.
const CHAOS: &str = "#define SYMMC_CHAOS\n";

/// What stands before them where links may split lines of LL128.
const SPLIT_LL128: &str = "#define SYMMC_SPLIT_LL128\n";

pub(super) struct Prepared {
    /// What it does, for profilers.
    pub what: String,
    /// Its body, without namespace.
    pub body: String,
    pub params: (&'static str, Param),
    /// A second parameter and its type.
    pub beside: Option<(&'static str, Param)>,
    /// The most threads of a block that it is compiled for: fewer may have more registers.
    pub most_threads: u32,
    pub blocks: [u32; 2],
}

impl Prepared {
    pub fn launch(self, peers: &Peers, source: &mut Source) -> Kernel {
        if peers.chaos.is_some() {
            source.prelude(CHAOS);
        }
        if peers.links == Links::MaySplit {
            source.prelude(SPLIT_LL128);
        }
        source.prelude(DEVICE);
        source.prelude(declarations());
        source.prelude(KERNELS);
        let [blocks, threads] = self.blocks;
        let (family, params) = self.params;
        let (declared, passed) = match &self.beside {
            Some((ty, _)) => (format!(", const __grid_constant__ {ty} beside"), ", beside"),
            None => (String::new(), ""),
        };
        // In the namespace of the kernels, so that other code in the program may use the same names.
        let text = format!(
            "namespace symmc_peer {{\nextern \"C\" __global__ void __launch_bounds__({}) \
             @(const __grid_constant__ {family} call{declared}) {{\n    symmc_enter();\n    {}(call{passed});\n}}\n}}\n",
            self.most_threads, self.body
        );
        let beside = self.beside.map(|(_, param)| param);
        let params = [params].into_iter().chain(beside).collect();
        Kernel::flat(source.function(&self.what, text), blocks as usize, threads as usize, params)
    }
}

/// The types of the kernels' elements and operation.
pub(super) fn reduction(dtype: DType, op: ReduceOp) -> (String, &'static str) {
    let average = op == ReduceOp::Avg;
    let name = dtype.name().to_uppercase();
    let element = match dtype {
        DType::Bool => "U8".to_string(),
        // Sums are divided at the end.
        dtype if average && dtype.size() < 8 && !dtype.is_float() => format!("Wide{name}"),
        _ => name,
    };
    let operation = match (dtype, op) {
        (DType::Bool, ReduceOp::Sum | ReduceOp::Max) => "Or",
        (DType::Bool, ReduceOp::Prod | ReduceOp::Min | ReduceOp::Avg) => "And",
        (_, ReduceOp::Sum) => "Sum",
        (_, ReduceOp::Avg) => "Avg",
        (_, ReduceOp::Max) => "Max",
        (_, ReduceOp::Min) => "Min",
        (_, ReduceOp::Prod) => "Prod",
    };
    (element, operation)
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Sends {
    One,
    /// To each its own.
    Each,
}

impl Sends {
    pub fn of(kind: &Kind) -> Sends {
        if matches!(kind, Kind::AllGather) { Sends::One } else { Sends::Each }
    }
}

/// The bytes that each rank gets of each, and from where in a sender's operand the receiver of this number
/// takes them.
pub(super) fn pieces(running: &Running) -> Result<(usize, impl Fn(usize) -> Address + use<>)> {
    let whole = Sends::of(&running.bound.kind) == Sends::One;
    let piece = if whole { running.bytes } else { running.piece()? };
    Ok((piece, move |receiver| if whole { 0 } else { (receiver * piece) as Address }))
}
