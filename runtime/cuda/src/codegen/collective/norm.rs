//! All-reduce by `ll`, the addition of a residual and the RMS norm of each row, as one kernel.
//!
//! Each of the three rounds as its separate kernel does, so fusion changes only the order in which the
//! squares of a row are summed. For peers the kernel is the all-reduce by `ll` of the same call. A block
//! handles whole rows; if there are few rows, further blocks send parts of them. Without a norm a large
//! reduction goes in two rounds, like an unfused one.

use symmc_ir::DType;
use symmc_ir::collective::{CollectiveKind as Kind, CollectiveVariant};
use symmc_runtime::exec::ResolvedCollective;

use super::blocks::{LlProtocol, MAX_THREADS, RowGrid};
use super::call::RankCollective;
use super::kernel_call::{KernelCall, reduction};
use super::ll;
use super::params::Norm;
use super::peers::PeerContext;
use crate::codegen::command::GpuCommand;
use crate::codegen::compile::KernelSource;
use crate::device::launch::{DevicePtr, KernelParam};
use crate::device::pointer::all_multiples_of;
use crate::error::Result;

/// The values of the steps after the all-reduce, in its dtype. The operands and results may share memory if
/// each element has the same address in both.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AllReduceNorm {
    pub operand: DevicePtr,
    /// The value that is added to the reduction.
    pub residual: DevicePtr,
    /// The factor of a normalised row.
    pub weight: Option<DevicePtr>,
    /// The destination of the reduction, if other steps use it.
    pub reduced: Option<DevicePtr>,
    /// The destination of the sum with the residual.
    pub added: DevicePtr,
    /// The destination of the norm. Without a norm, rows only divide the work, and the fields of the norm
    /// have no meaning.
    pub normed: Option<DevicePtr>,
    /// The number of elements of a row.
    pub hidden: usize,
    /// Added to the mean of the squares.
    pub eps: f64,
    /// Whether the normalised row is rounded before the weight multiplies it.
    pub round_first: bool,
}

impl AllReduceNorm {
    /// Whether a result shares memory with the operand of `bytes` bytes. The answer may differ between ranks.
    fn is_in_place(&self, bytes: usize) -> bool {
        let results = [self.reduced, Some(self.added), self.normed];
        results.into_iter().flatten().any(|address| {
            address.distance_from(self.operand).is_some_and(|distance| distance.unsigned_abs() < bytes as u64)
        })
    }

    /// The parameters for an operand of `bytes` bytes in rows of `row` bytes; the share is not set.
    fn parameters(&self, bytes: usize, row: usize) -> Norm {
        Norm {
            residual: self.residual,
            weight: self.weight.unwrap_or_default(),
            reduced: self.reduced.unwrap_or_default(),
            added: self.added,
            normed: self.normed.unwrap_or_default(),
            row: (row / 8) as u32,
            eps: self.eps as f32,
            share: 0,
            in_place: u32::from(self.is_in_place(bytes)),
        }
    }
}

/// The launch that runs `call` and the steps after it; `None` if they do not fit one kernel.
pub fn lower_norm(
    step: usize,
    call: &ResolvedCollective,
    norm: &AllReduceNorm,
    peers: &PeerContext,
    source: &mut KernelSource,
) -> Result<Option<GpuCommand>> {
    let (CollectiveVariant::Ll, Kind::AllReduce(op)) = (call.variant, &call.kind) else { return Ok(None) };
    let row = norm.hidden * call.dtype.size();
    let optional = [norm.weight, norm.reduced, norm.normed].into_iter().flatten();
    let addresses = [norm.operand, norm.residual, norm.added].into_iter().chain(optional);
    let vector = all_multiples_of(addresses, 8);
    let fits = matches!(call.dtype, DType::F32 | DType::F16 | DType::BF16)
        && call.cell.len() > 1
        && call.elements > 0
        && row > 0
        && row.is_multiple_of(8)
        && call.elements.is_multiple_of(norm.hidden);
    if !fits {
        return Ok(None);
    }
    let running = RankCollective::new(step, call, [norm.operand, norm.added], peers)?;
    let tail = norm.parameters(running.bytes, row);
    if norm.normed.is_none() && peers.thresholds.uses_two_rounds(running.bytes as u64, running.n as u64) {
        let prepared = ll::reduce_and_add(&running, *op, vector, ("Norm", KernelParam::from_value(&tail)))?;
        return Ok(Some(GpuCommand::Kernel(prepared.launch(peers, source))));
    }
    let protocol = running.protocol(running.bytes);
    let rows = call.elements / norm.hidden;
    let units = ll::units(protocol, row);
    let Some(RowGrid { blocks, pieces, share }) = peers.blocks.norm.rows(rows, units) else {
        return Ok(None);
    };
    // Rows begin with a line of LL128, so short rows may need more lines than the zone has.
    if protocol == LlProtocol::Ll128 && units * 16 * 15 > row * 17 {
        return Ok(None);
    }
    let mut parameters = running.ll(running.bytes, protocol, rows * units, 1)?;
    parameters.from[0] = norm.operand;
    let tail = Norm { share, ..tail };
    let (element, operation) = reduction(call.dtype, *op);
    let n = running.n;
    let first = norm.round_first;
    let prepared = KernelCall {
        what: format!("ll_norm_{}", call.dtype),
        body: format!(
            "ll_norm<{element}, {operation}, {n}, {}, {pieces}, {first}, {vector}>",
            protocol.name()
        ),
        params: ("LandingParams", KernelParam::from_value(&parameters)),
        extra_param: Some(("Norm", KernelParam::from_value(&tail))),
        most_threads: MAX_THREADS,
        blocks,
    };
    Ok(Some(GpuCommand::Kernel(prepared.launch(peers, source))))
}
