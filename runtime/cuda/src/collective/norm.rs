//! All-reduce by packets, the addition of a residual and the RMS norm of each row as one kernel.
//!
//! Each of the three rounds as it would alone, so fusing changes nothing but the order in which the squares of
//! a row are summed. Towards peers the kernel is the packets all-reduce of the same call.

use symmc_ir::DType;
use symmc_ir::collective::{CollectiveKind as Kind, Variant};
use symmc_runtime::exec::BoundCollective;

use super::call::Turn;
use super::{Peers, Prepared, reduction};
use crate::compile::Source;
use crate::error::CudaError;
use crate::launch::{Address, Param, Work, plain};

/// The most packets of a row that one thread has.
const MOST: usize = 4;

/// What follows the all-reduce, in its dtype. The operands and results may lie on each other's bytes, element on
/// element.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FusedNorm {
    /// The operand of the all-reduce.
    pub operand: Address,
    /// What is added to the reduction.
    pub residual: Address,
    /// What multiplies a normalised row.
    pub weight: Option<Address>,
    /// Where the reduction goes, if anything else uses it.
    pub reduced: Option<Address>,
    /// Where the sum with the residual goes.
    pub added: Address,
    /// Where the norm goes.
    pub normed: Address,
    /// The elements of a row.
    pub hidden: usize,
    /// Added to the mean of the squares.
    pub eps: f64,
    /// Whether the normalised row is rounded before the weight multiplies it.
    pub round_first: bool,
}

plain! {
    /// The parameters beside the call, as `kernels/norm.cu` declares them.
    struct Norm {
        residual: Address,
        weight: Address,
        reduced: Address,
        added: Address,
        normed: Address,
        row: u32,
        eps: f32,
    }
}

/// The launch that runs `call` and what follows it; `None` if they do not fit one kernel.
///
/// # Errors
/// As for [`super::lower`].
pub fn lower_norm(
    step: usize,
    call: &BoundCollective,
    norm: &FusedNorm,
    peers: &Peers,
    source: &mut Source,
) -> Result<Option<Work>, CudaError> {
    let (Variant::Packets, Kind::AllReduce(op)) = (call.variant, &call.kind) else { return Ok(None) };
    let row = norm.hidden * call.dtype.size();
    let optional = [norm.weight, norm.reduced].into_iter().flatten();
    let aligned = [norm.operand, norm.residual, norm.added, norm.normed].into_iter().chain(optional);
    let fits = matches!(call.dtype, DType::F32 | DType::F16 | DType::BF16)
        && call.cell.len() > 1
        && call.elements > 0
        && row > 0
        && row.is_multiple_of(8)
        && call.elements.is_multiple_of(norm.hidden)
        && aligned.fold(0, |all, a| all | a).is_multiple_of(8);
    if !fits {
        return Ok(None);
    }
    let blocks = peers.blocks.norm.rows(call.elements / norm.hidden, row / 8);
    let each = (row / 8).div_ceil(blocks[1] as usize);
    if each > MOST {
        return Ok(None);
    }
    let turn = Turn::new(step, call, [norm.operand, norm.normed], peers)?;
    let mut parameters = turn.packets(turn.bytes)?;
    parameters.from[0] = norm.operand;
    let beside = Norm {
        residual: norm.residual,
        weight: norm.weight.unwrap_or(0),
        reduced: norm.reduced.unwrap_or(0),
        added: norm.added,
        normed: norm.normed,
        row: (row / 8) as u32,
        eps: norm.eps as f32,
    };
    let (element, operation) = reduction(call.dtype, *op);
    let prepared = Prepared {
        what: format!("packets_norm_{}", call.dtype),
        body: format!("packets_norm<{element}, {operation}, {}, {each}, {}>", turn.n, norm.round_first),
        call: parameters,
        beside: Some(("Norm", Param::of(&beside))),
        blocks,
    };
    Ok(Some(Work::Kernel(prepared.launch(peers, source))))
}
