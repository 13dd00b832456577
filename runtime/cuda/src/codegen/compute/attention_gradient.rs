//! The gradients of attention: the geometry of their kernels.
//!
//! There are two kernels. Neither stores scores, or adds to memory that another block adds to, so each run
//! gives the same bits. The first kernel works by rows: it sums the gradient times the result of each row for
//! the second kernel, and computes the gradient of the queries over all keys. The second kernel works by
//! keys: it computes the gradients of keys and values over all rows of the query heads that share them. The
//! alternative by cuDNN is in [`library_attention`](super::library_attention).

use symmc_ir::attention::AttentionOperands;
use symmc_ir::{DType, FloatAttribute, Op, Scalar};
use symmc_runtime::exec::LocatedTensor;

use super::attention::{
    AttentionSizes, MAX_SHARED_BYTES, ScoreOptions, accumulator_bytes, bound_operands, extents,
    extra_pointers, layout, log_sum_exp_operand, operand_rows,
};
use super::bounds;
use super::library_attention::{self, AttentionCandidates, AttentionForm, AttentionTensors};
use super::loops::lower_elements;
use super::lowering::{KernelLowering, mismatch_error};
use super::machine::{AlgorithmSelection, KernelTarget};
use super::mask_bias;
use super::space::HeadRows;
use super::text::{self, offset_function};
use crate::codegen::command::{Commands, GpuCommand};
use crate::cudnn::{self, VisibleBand};
use crate::device::launch::{DevicePtr, KernelLaunch};
use crate::error::{CudaError, Result};

/// The number of rows and of keys of a tile.
const TILE: usize = 32;

/// The operands before the operands of the attention.
struct ForwardResult<'a> {
    gradient: &'a LocatedTensor,
    result: &'a LocatedTensor,
    sums: &'a LocatedTensor,
}

fn split_operands<'a>(
    scores: &ScoreOptions<'_>,
    operands: &'a [LocatedTensor],
) -> Option<(ForwardResult<'a>, AttentionOperands<'a, LocatedTensor>)> {
    let ([gradient, result, sums], forward) = operands.split_first_chunk::<3>()?;
    let forward = AttentionOperands::from_operands(scores.bounds, false, forward)?;
    Some((ForwardResult { gradient, result, sums }, forward))
}

pub(super) fn workspace(
    scores: &ScoreOptions<'_>,
    operands: &[LocatedTensor],
    machine: &KernelTarget,
) -> usize {
    let Some((forward, o)) = split_operands(scores, operands) else { return 0 };
    let Ok(x) = extents(&o, forward.result) else { return 0 };
    let means = row_means_bytes(&x, accumulator_bytes(o.q.dtype));
    if machine.attention == AlgorithmSelection::Heuristic || o.q.dtype.size() != 2 {
        return means;
    }
    let rank = o.k.shape.len();
    let sizes = [x.queries, x.keys, x.e, x.f];
    means + cudnn::attention::gradient_workspace(x.heads * x.group, o.k.shape[rank - 3], sizes)
}

/// The size in bytes of one number per row.
fn row_means_bytes(x: &AttentionSizes, size: usize) -> usize {
    (x.heads * x.group * x.queries * size).next_multiple_of(256)
}

pub(super) fn lower(
    scores: &ScoreOptions<'_>,
    operands: &[LocatedTensor],
    results: &[LocatedTensor],
    l: &mut KernelLowering<'_>,
) -> Commands {
    let Some((forward, o)) = split_operands(scores, operands) else {
        let expected = "the gradient of the result, the result, the log-sum-exp, q, k, v, a mask or none, an operand for \
                        each bound that has one";
        return Err(mismatch_error("the gradient of attention", expected, operands.len()));
    };
    let x = extents(&o, forward.result)?;
    extents(&o, forward.gradient)?;
    for (actual, expected) in results.iter().zip([o.q, o.k, o.v]) {
        if actual.shape != expected.shape || actual.dtype != expected.dtype {
            return Err(mismatch_error("a gradient of attention", &expected.shape, &actual.shape));
        }
    }
    if [x.heads * x.group * x.queries, x.keys, x.f].contains(&0) {
        // There are no terms to sum.
        return zeros(results, l);
    }
    if x.e == 0 {
        return Err(mismatch_error("the gradient of attention", "queries that have elements", x.e));
    }
    let kernels = gradient_kernels(scores, &x, &forward, &o, results, l)?;
    if l.machine.attention == AlgorithmSelection::Measured
        && let Some(candidates) = candidates(scores, &x, &forward, &o, results, &kernels, l)
    {
        return Ok(vec![GpuCommand::Attention(Box::new(candidates))]);
    }
    Ok(kernels.into_iter().map(GpuCommand::Kernel).collect())
}

fn zeros(results: &[LocatedTensor], l: &mut KernelLowering<'_>) -> Commands {
    let mut out = Vec::new();
    for result in results.iter().filter(|r| !r.shape.contains(&0)) {
        out.extend(lower_elements(&Op::Full(Scalar::Float(FloatAttribute(0.0))), &[], result, l)?);
    }
    Ok(out)
}

/// Both forms of the gradients, if the library supports them: no mask, and each row sees a key.
fn candidates(
    scores: &ScoreOptions<'_>,
    x: &AttentionSizes,
    forward: &ForwardResult<'_>,
    o: &AttentionOperands<'_, LocatedTensor>,
    results: &[LocatedTensor],
    kernels: &[KernelLaunch],
    l: &KernelLowering<'_>,
) -> Option<AttentionCandidates> {
    let limits = bounds::constants(scores.bounds)?;
    let (band, keys) = bounds::band(&limits, x.queries, x.keys)?;
    if o.mask.is_some() || keys != x.keys || !every_row_has_visible_key(&band, x) {
        return None;
    }
    let means_bytes = row_means_bytes(x, 4);
    let room = l.machine.workspace_bytes.checked_sub(means_bytes)? / 256 * 256;
    let means = DevicePtr::from(l.machine.workspace) + room as u64;
    let [of_q, of_k, of_v] = results.first_chunk::<3>()?;
    let gradients = Some(([forward.gradient, of_q, of_k, of_v], means));
    let tensors =
        AttentionTensors { q: o.q, k: o.k, v: o.v, r: forward.result, sums: Some(forward.sums), gradients };
    let form = AttentionForm { scale: scores.scale.0, cap: None, band, keys };
    let attention = library_attention::attention(&form, &tensors, None, &|v| l.address_of(v))?;
    let gradient_tensors = [forward.gradient, forward.result, forward.sums];
    Some(AttentionCandidates {
        attention,
        library_workspace_bytes: room,
        numbers: None,
        filled: mask_bias::timing_fills(o, &[], &gradient_tensors, &|x| l.address_of(x)),
        amend: None,
        kernels: kernels.to_vec(),
    })
}

/// Whether each row sees a key.
fn every_row_has_visible_key(band: &VisibleBand, x: &AttentionSizes) -> bool {
    let last_row = x.queries as i64 - 1;
    let keys = x.keys as i64;
    let first_sees = band.below.is_none_or(|below| below >= 1);
    let last_sees = band.from.is_none_or(|from| last_row + from < keys);
    let width = match (band.below, band.from) {
        (Some(below), Some(from)) => below > from,
        _ => true,
    };
    first_sees && last_sees && width
}

struct GradientOperands {
    gradient: HeadRows,
    sums: HeadRows,
    of_q: HeadRows,
    of_k: HeadRows,
    of_v: HeadRows,
}

impl GradientOperands {
    fn new(
        x: &AttentionSizes,
        forward: &ForwardResult<'_>,
        results: &[LocatedTensor],
        l: &KernelLowering<'_>,
    ) -> Result<GradientOperands> {
        let head_rows =
            |v: &LocatedTensor, group| HeadRows::new(l.address_of(v), &v.shape, &v.strides, group);
        Ok(GradientOperands {
            gradient: head_rows(forward.gradient, x.group),
            sums: log_sum_exp_operand(x, forward.sums, forward.result, l)?.at,
            of_q: head_rows(&results[0], x.group),
            of_k: head_rows(&results[1], 1),
            of_v: head_rows(&results[2], 1),
        })
    }

    /// The members of the layout that give the locations.
    fn layout(&self) -> String {
        let named = [
            ("g", &self.gradient),
            ("sums", &self.sums),
            ("dq", &self.of_q),
            ("dk", &self.of_k),
            ("dv", &self.of_v),
        ];
        let mut out = String::new();
        for (name, rows) in named {
            out.push_str(&offset_function(&format!("{name}_head"), &rows.head));
            out.push_str(&offset_function(&format!("{name}_row"), &rows.row));
            out.push_str(&format!("static const i64 {name}_step = {}ll;\n", rows.step));
        }
        out
    }
}

fn gradient_kernels(
    scores: &ScoreOptions<'_>,
    x: &AttentionSizes,
    forward: &ForwardResult<'_>,
    o: &AttentionOperands<'_, LocatedTensor>,
    results: &[LocatedTensor],
    l: &mut KernelLowering<'_>,
) -> Result<Vec<KernelLaunch>> {
    let dtype = o.q.dtype;
    let Some(limits) = bounds::constants(scores.bounds) else {
        return Err(mismatch_error("the bounds of attention", "positions of known size", scores.bounds));
    };
    let forward_rows = operand_rows(x, o, forward.result, l)?;
    let positions = bound_operands(x, o, forward.result, l)?;
    let gradient_operands = GradientOperands::new(x, forward, results, l)?;
    let mut layout = layout(x, scores, o.mask, dtype, &forward_rows, l.machine.multiprocessors);
    layout.push_str(&bounds::layout(&limits, &positions));
    layout.push_str(&bounds::sink(None, 0));
    layout.push_str(&bounds::sums(None, 0));
    layout.push_str(&gradient_operands.layout());
    l.preludes();
    l.source.prelude(text::ATTENTION_SOURCE);
    l.source.prelude(text::ATTENTION_GRADIENT_SOURCE);
    let shared = shared_elements(x) * accumulator_bytes(dtype);
    if shared > MAX_SHARED_BYTES {
        let text = format!(
            "GPUs have no kernel for gradients of attention in {dtype} with heads of {} and {} elements",
            x.e, x.f
        );
        return Err(CudaError::Unsupported(text));
    }
    let means = l.workspace_for("the gradient of attention", row_means_bytes(x, accumulator_bytes(dtype)))?;
    let mask = match o.mask {
        None => 0,
        Some(m) if m.dtype == DType::Bool => 1,
        Some(_) => 2,
    };
    let [q, k, v, m, r] = [0, 1, 2, 3, 4].map(|i| forward_rows[i].at);
    let operands = [gradient_operands.gradient.at, r, gradient_operands.sums.at, q, k, v, m, means];
    let rows = x.group * x.queries;
    let (parameters, elements) = extra_pointers(positions.len());
    let mut kernels = Vec::with_capacity(2);
    for (name, function, n, outputs) in [
        ("rows", "attend_back_rows", rows, [gradient_operands.of_q.at, DevicePtr::NULL]),
        ("keys", "attend_back_keys", x.keys, [gradient_operands.of_k.at, gradient_operands.of_v.at]),
    ] {
        let text = format!(
            "namespace sc {{ struct @_L {{\n{layout}}};\n}}\nextern \"C\" __global__ void __launch_bounds__(128) @(const void *g, \
             const void *r, const void *sums, const void *q, const void *k, const void *v, const void *m, void *means, void *x, \
             void *y{parameters}) {{\n    symmc_enter();\n    const void *const given[] = {{{elements}}};\n    \
             sc::{function}<sc::@_L, {mask}>(g, r, sums, q, k, v, m, means, x, y, given);\n}}\n"
        );
        let entry = l.source.function(&format!("attention_gradient_{name}"), text);
        let params = operands.into_iter().chain(outputs).chain(positions.iter().map(|p| p.at.at));
        let params = params.map(Into::into).collect();
        kernels.push(KernelLaunch {
            shared: shared as u32,
            ..KernelLaunch::flat(entry, x.heads * n.div_ceil(TILE), 128, params)
        });
    }
    Ok(kernels)
}

/// The number of elements that a block holds in shared memory.
fn shared_elements(x: &AttentionSizes) -> usize {
    let rows = TILE * (x.e + x.f);
    let keys = TILE * (x.e + 1 + x.f + 1);
    rows + keys + 2 * TILE * (TILE + 1) + 2 * TILE
}
