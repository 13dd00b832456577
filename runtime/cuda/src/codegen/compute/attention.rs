//! Scaled dot-product attention: the geometry of its kernels.
//!
//! The query heads that share a head of keys form its rows. A few queries can thus fill a block, and each key
//! is read once for all of them. If there are fewer blocks than the machine can hold, the keys are split
//! (split-KV, as in flash-decoding), and a second kernel combines the parts in a fixed order.
//!
//! bf16 and f16 use tensor cores, which round the weights to the type of the values. Many rows go through
//! shared memory ([`AttentionAlgorithm::TensorCores`]), few rows are computed directly from memory
//! ([`AttentionAlgorithm::Decode`]). All other cases are computed in f32 or f64 by the lanes of warps. All
//! kernels support any bounds, and skip keys that no row of a block sees. The alternative by cuDNN is in
//! [`library_attention`](super::library_attention).

use std::fmt::Write as _;

use symmc_ir::attention::{AttentionBound, AttentionOperands};
use symmc_ir::{DType, FloatAttribute};
use symmc_runtime::exec::LocatedTensor;

use super::bounds::{self, BoundPosition};
use super::library_attention::{self, AttentionCandidates, AttentionForm, PlacedMask};
use super::lowering::{KernelLowering, mismatch_error};
use super::machine::{AlgorithmSelection, KernelTarget};
use super::mask_bias;
use super::space::{HeadRows, broadcast};
use super::text::{self, float_literal, offset_function, stored_type};
use crate::codegen::command::{Commands, GpuCommand};
use crate::cudnn;
use crate::device::launch::{DevicePtr, KernelLaunch};
use crate::error::{CudaError, Result};

/// Warps of a block.
const WARPS_PER_BLOCK: usize = 4;
/// Keys of a tile.
const KEYS_PER_TILE: usize = 32;
/// Up to this many splits of a row are combined by one warp, in registers; more are combined by a block.
const FEW_SPLITS: usize = 8;
/// The rows that a block combines by warps.
const COMBINING_WARPS: usize = 4;
/// The largest number of splits of the keys of one block.
const MAX_SPLITS: usize = 64;
/// The largest dynamic shared memory of a block.
pub(super) const MAX_SHARED_BYTES: usize = 160 << 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct AttentionSizes {
    /// The number of key heads over the batch.
    pub heads: usize,
    /// The number of query heads per key head.
    pub group: usize,
    pub queries: usize,
    pub keys: usize,
    pub e: usize,
    pub f: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AttentionAlgorithm {
    /// A lane scores a key; a warp computes this many rows.
    CudaCores(usize),
    /// Tensor cores on this many times 64 rows, and on 64 keys.
    TensorCores(usize),
    /// Tensor cores on 16 rows, with a warp for every 16 keys.
    Decode,
}

/// The number of rows from which tensor cores with shared memory are used.
const MANY_ROWS: usize = 32;

impl AttentionAlgorithm {
    fn rows(self) -> usize {
        match self {
            AttentionAlgorithm::CudaCores(rows) => rows * WARPS_PER_BLOCK,
            AttentionAlgorithm::TensorCores(times) => 64 * times,
            AttentionAlgorithm::Decode => 16,
        }
    }

    /// The number of keys of a tile, which a block processes at once.
    fn keys(self) -> usize {
        match self {
            AttentionAlgorithm::CudaCores(_) => KEYS_PER_TILE,
            AttentionAlgorithm::TensorCores(_) | AttentionAlgorithm::Decode => 64,
        }
    }

    /// The shared memory of a block in bytes.
    fn shared(self, x: &AttentionSizes, dtype: DType) -> usize {
        match self {
            AttentionAlgorithm::CudaCores(_) => {
                let pitch =
                    if x.e.is_multiple_of(4) && accumulator_bytes(dtype) == 4 { x.e + 4 } else { x.e + 1 };
                (self.rows() * x.e + KEYS_PER_TILE * pitch + KEYS_PER_TILE * x.f) * accumulator_bytes(dtype)
            }
            // Two tiles of keys and values, and the queries.
            AttentionAlgorithm::TensorCores(times) => {
                (2 * 64 * (x.e + 8 + x.f + 8) + 64 * times * (x.e + 8)) * dtype.size()
            }
            AttentionAlgorithm::Decode => {
                WARPS_PER_BLOCK * (x.group * x.queries).min(16) * (x.f + 2) * accumulator_bytes(dtype)
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct KeySplit {
    algorithm: AttentionAlgorithm,
    splits: usize,
    /// Keys of a split.
    chunk: usize,
}

pub(super) fn extents(
    x: &AttentionOperands<'_, LocatedTensor>,
    result: &LocatedTensor,
) -> Result<AttentionSizes> {
    let q = &x.q.shape;
    let k = &x.k.shape;
    let v = &x.v.shape;
    let r = q.len();
    let shape_error = || {
        let shapes = (q.clone(), k.clone(), v.clone(), result.shape.clone());
        mismatch_error(
            "attention",
            "q [.., h, l, e], k [.., g, s, e], v [.., g, s, f] for [.., h, l, f]",
            shapes,
        )
    };
    if r < 3 || k.len() != r || v.len() != r || result.shape.len() != r {
        return Err(shape_error());
    }
    let dtypes = [x.k.dtype, x.v.dtype, result.dtype];
    if !dtypes.into_iter().all(|dtype| dtype == x.q.dtype && dtype.is_float()) {
        return Err(shape_error());
    }
    let h = q[r - 3];
    let g = k[r - 3];
    let fits = q[..r - 3] == k[..r - 3]
        && q[..r - 3] == v[..r - 3]
        && v[r - 3] == g
        && k[r - 1] == q[r - 1]
        && v[r - 2] == k[r - 2]
        && result.shape[..r - 1] == q[..r - 1]
        && result.shape[r - 1] == v[r - 1];
    if !fits || (h != 0 && h.checked_rem(g) != Some(0)) {
        return Err(shape_error());
    }
    let heads = q[..r - 3].iter().product::<usize>() * g;
    let group = h.checked_div(g).unwrap_or(0);
    Ok(AttentionSizes { heads, group, queries: q[r - 2], keys: k[r - 2], e: q[r - 1], f: v[r - 1] })
}

/// The kernel for the rows of an attention with this layout of keys and values.
fn algorithm(x: &AttentionSizes, dtype: DType, k: &HeadRows, v: &HeadRows) -> AttentionAlgorithm {
    let rows = x.group * x.queries;
    let short = [x.e, x.f].into_iter().all(|n| n.is_multiple_of(16) && (16..=128).contains(&n));
    let wide = width(k, x.e, dtype) == 8 && width(v, x.f, dtype) == 8;
    let half = matches!(dtype, DType::BF16 | DType::F16) && wide;
    // These kernels use 32-bit positions.
    let small = rows.max(x.keys) < 1 << 30;
    if half && rows >= MANY_ROWS && short && small {
        return tensor_core_kernel(rows);
    }
    if half && rows < MANY_ROWS && fits_decode(x) {
        return AttentionAlgorithm::Decode;
    }
    cuda_core_kernel(rows)
}

/// Each warp reads all keys and values, so twice the rows halve the shared memory traffic per row.
fn tensor_core_kernel(rows: usize) -> AttentionAlgorithm {
    AttentionAlgorithm::TensorCores(if rows > 64 { 2 } else { 1 })
}

/// Whether the registers of a warp can hold the data that [`AttentionAlgorithm::Decode`] reads at once, in
/// whole accesses.
fn fits_decode(x: &AttentionSizes) -> bool {
    matches!(x.e, 32 | 64 | 96 | 128) && matches!(x.f, 64 | 128)
}

fn cuda_core_kernel(rows: usize) -> AttentionAlgorithm {
    AttentionAlgorithm::CudaCores(match rows {
        0..=4 => 1,
        5..=8 => 2,
        9..=64 => 4,
        _ => 8,
    })
}

fn split(x: &AttentionSizes, algorithm: AttentionAlgorithm, multiprocessors: usize) -> KeySplit {
    let blocks = x.heads * (x.group * x.queries).div_ceil(algorithm.rows());
    let tiles = x.keys.div_ceil(algorithm.keys()).max(1);
    let splits = match algorithm {
        AttentionAlgorithm::Decode => decode_splits(blocks.max(1), tiles.min(MAX_SPLITS), multiprocessors),
        _ => {
            // Two blocks per multiprocessor run concurrently. A split pays off from a few tiles on.
            let wanted = 2 * multiprocessors / blocks.max(1);
            wanted.min(tiles.div_ceil(4)).clamp(1, MAX_SPLITS)
        }
    };
    let chunk = tiles.div_ceil(splits) * algorithm.keys();
    KeySplit { algorithm, splits: x.keys.div_ceil(chunk).max(1), chunk }
}

/// The smallest number of splits that gives every multiprocessor about equally many blocks, and at least two.
/// These saturate the memory bandwidth. If there is no such number, the largest allowed one.
fn decode_splits(blocks: usize, max_splits: usize, multiprocessors: usize) -> usize {
    for splits in 1..max_splits {
        let total_blocks = blocks * splits;
        let waves = total_blocks.div_ceil(multiprocessors);
        if waves >= 2 && 10 * total_blocks >= 9 * waves * multiprocessors {
            return splits;
        }
    }
    max_splits
}

pub(super) fn accumulator_bytes(dtype: DType) -> usize {
    if dtype == DType::F64 { 8 } else { 4 }
}

/// How scores are computed, and which of them count.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScoreOptions<'a> {
    pub scale: FloatAttribute,
    pub cap: Option<FloatAttribute>,
    pub bounds: &'a [AttentionBound],
    pub sink: bool,
}

pub(super) fn workspace(
    scores: &ScoreOptions<'_>,
    operands: &[LocatedTensor],
    result: &LocatedTensor,
    machine: &KernelTarget,
) -> usize {
    let Some(o) = AttentionOperands::from_operands(scores.bounds, scores.sink, operands) else { return 0 };
    let Ok(x) = extents(&o, result) else { return 0 };
    // The algorithm depends on addresses, which are not known yet.
    let rows = x.group * x.queries;
    let algorithms = [cuda_core_kernel(rows), tensor_core_kernel(rows), AttentionAlgorithm::Decode];
    let partials = algorithms.map(|algorithm| {
        partial_bytes(&x, &split(&x, algorithm, machine.multiprocessors as usize), o.q.dtype)
    });
    let partials = partials.into_iter().max().unwrap_or(0);
    if machine.attention == AlgorithmSelection::Heuristic || o.q.dtype.size() != 2 {
        return partials;
    }
    let numbers = if mask_bias::needs_bias(&o, scores.bounds) {
        mask_bias::bias_layout(&o, scores.bounds, x.keys)
    } else {
        None
    };
    partials.max(cudnn::attention::workspace() + numbers.as_ref().map_or(0, mask_bias::bytes))
}

fn partial_bytes(x: &AttentionSizes, split: &KeySplit, dtype: DType) -> usize {
    if split.splits == 1 {
        return 0;
    }
    x.heads * x.group * x.queries * split.splits * (x.f + 2) * accumulator_bytes(dtype)
}

/// The width of an access to rows of `n` elements.
pub(super) fn width(rows: &HeadRows, n: usize, dtype: DType) -> usize {
    let mut width = 16 / dtype.size();
    while width > 1 && !allows_width(rows, n, dtype, width) {
        width /= 2;
    }
    width
}

fn allows_width(rows: &HeadRows, n: usize, dtype: DType, width: usize) -> bool {
    rows.step == 1
        && n.is_multiple_of(width)
        && rows.at.is_multiple_of((width * dtype.size()) as u64)
        && rows.head.iter().chain(&rows.row).all(|axis| axis.has_stride_multiple_of(width))
}

struct AttentionLowering<'a> {
    x: AttentionSizes,
    dtype: DType,
    mask: Option<&'a LocatedTensor>,
    /// The locations of q, k, v, the mask and the result.
    places: [HeadRows; 5],
    /// The operands of the bounds, the sink, and the destination of the log-sum-exp.
    operands: Vec<BoundPosition>,
    /// The members of the layout that depend on neither the algorithm nor the split.
    layout: String,
    /// Whether keys and values do not change while the program runs, and the visible keys do not depend on
    /// data.
    steady: bool,
}

pub(super) fn lower(
    scores: &ScoreOptions<'_>,
    operands: &[LocatedTensor],
    results: &[LocatedTensor],
    l: &mut KernelLowering<'_>,
) -> Commands {
    let result = &results[0];
    let sums = results.get(1);
    let Some(o) = AttentionOperands::from_operands(scores.bounds, scores.sink, operands) else {
        return Err(mismatch_error(
            "attention",
            "q, k, v, a mask or none, an operand for each bound that has one, and a sink if there is one",
            operands.len(),
        ));
    };
    let x = extents(&o, result)?;
    if result.shape.contains(&0) {
        // No kernel computes sums of rows whose values have no elements.
        return match sums {
            Some(sums) if !sums.shape.contains(&0) => {
                Err(mismatch_error("attention with log_sum_exp", "values that have elements", x.f))
            }
            _ => Ok(Vec::new()),
        };
    }
    let Some(limits) = bounds::constants(scores.bounds) else {
        return Err(mismatch_error("the bounds of attention", "positions of known size", scores.bounds));
    };
    let places = operand_rows(&x, &o, result, l)?;
    let positions = bound_operands(&x, &o, result, l)?;
    let sink = o.sink.map(|v| sink(&x, v, result, l)).transpose()?;
    let at_sums = sums.map(|v| log_sum_exp_operand(&x, v, result, l)).transpose()?;
    let steady = positions.is_empty() && l.is_never_written(o.k) && l.is_never_written(o.v);
    let mut layout = layout(&x, scores, o.mask, result.dtype, &places, l.machine.multiprocessors);
    layout.push_str(&bounds::layout(&limits, &positions));
    layout.push_str(&bounds::sink(sink.as_ref(), positions.len()));
    let number = positions.len() + usize::from(sink.is_some());
    layout.push_str(&bounds::sums(at_sums.as_ref(), number));
    let steady = steady && sink.is_none();
    let operands: Vec<BoundPosition> = positions.into_iter().chain(sink).chain(at_sums).collect();
    let a = AttentionLowering { x, dtype: result.dtype, mask: o.mask, places, operands, layout, steady };
    l.preludes();
    l.source.prelude(text::ATTENTION_SOURCE);
    let algorithm = match algorithm(&x, a.dtype, &a.places[1], &a.places[2]) {
        // This algorithm keeps no sums.
        AttentionAlgorithm::Decode if sums.is_some() => cuda_core_kernel(x.group * x.queries),
        algorithm => algorithm,
    };
    let kernels_only = a.kernels(algorithm, RecomputeRows::All, l)?;
    if l.machine.attention == AlgorithmSelection::Measured
        && !scores.sink
        && let Some(candidates) = a.candidates(scores, &limits, &o, result, sums, &kernels_only, l)?
    {
        return Ok(vec![GpuCommand::Attention(Box::new(candidates))]);
    }
    Ok(kernels_only.into_iter().map(GpuCommand::Kernel).collect())
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RecomputeRows {
    All,
    /// The rows with a result that is not finite. All elements are checked in one of every this many rows.
    Damaged(usize),
}

/// The smallest number of neighbouring rows that an instruction of the library multiplies at once.
const LIBRARY_TILE_ROWS: usize = 16;

impl AttentionLowering<'_> {
    /// Both forms of the attention, if the library supports it.
    fn candidates(
        &self,
        scores: &ScoreOptions<'_>,
        limits: &[(&AttentionBound, i64)],
        o: &AttentionOperands<'_, LocatedTensor>,
        result: &LocatedTensor,
        sums: Option<&LocatedTensor>,
        kernels_only: &[KernelLaunch],
        l: &mut KernelLowering<'_>,
    ) -> Result<Option<AttentionCandidates>> {
        let (by_data, band_limits): (Vec<_>, Vec<_>) =
            limits.iter().copied().partition(|(bound, _)| bound.operand);
        let Some((band, keys)) = bounds::band(&band_limits, self.x.queries, self.x.keys) else {
            return Ok(None);
        };
        let form = AttentionForm { scale: scores.scale.0, cap: scores.cap.map(|c| c.0), band, keys };
        let placed_bias = mask_bias::bias_layout(o, scores.bounds, self.x.keys).and_then(|n| {
            let (address, before) = mask_bias::place_bias(&n, &l.machine)?;
            Some((n, address, before))
        });
        let wanted = mask_bias::needs_bias(o, scores.bounds);
        let (mask, room) = match (wanted, &placed_bias) {
            (false, _) => {
                (o.mask.map(|mask| PlacedMask { at: l.address_of(mask), mask }), l.machine.workspace_bytes)
            }
            (true, Some((mask, address, before))) => (Some(PlacedMask { at: *address, mask }), *before),
            (true, None) => return Ok(None),
        };
        let tensors =
            library_attention::AttentionTensors { q: o.q, k: o.k, v: o.v, r: result, sums, gradients: None };
        let attention = library_attention::attention(&form, &tensors, mask, &|v| l.address_of(v));
        let Some(attention) = attention else { return Ok(None) };
        let numbers = mask.filter(|_| wanted);
        let numbers = numbers.map(|n| mask_bias::kernel(o, &by_data, n.mask, n.at, l));
        let hides = attention.band != cudnn::VisibleBand::default() || attention.bias.is_some();
        let amend = if hides { Some(self.amend(l)?) } else { None };
        let filled = mask_bias::timing_fills(o, &by_data, &[], &|x| l.address_of(x));
        Ok(Some(AttentionCandidates {
            attention,
            library_workspace_bytes: room,
            numbers,
            filled,
            amend,
            kernels: kernels_only.to_vec(),
        }))
    }

    /// The kernel that recomputes rows into which hidden values leaked. The library may place query heads
    /// that share a key head side by side.
    fn amend(&self, l: &mut KernelLowering<'_>) -> Result<KernelLaunch> {
        let x = &self.x;
        let rows = x.group * x.queries;
        let algorithm = match algorithm(
            &AttentionSizes { queries: x.queries.max(MANY_ROWS), ..*x },
            self.dtype,
            &self.places[1],
            &self.places[2],
        ) {
            AttentionAlgorithm::TensorCores(_) => tensor_core_kernel(rows),
            _ => cuda_core_kernel(rows),
        };
        let step = (LIBRARY_TILE_ROWS / x.group.next_power_of_two()).max(1);
        let kernels = self.kernels(algorithm, RecomputeRows::Damaged(step), l)?;
        kernels.into_iter().next().ok_or_else(|| CudaError::Unsupported("the attention has no kernel".into()))
    }

    /// The kernel that combines the splits of each row.
    fn combine(
        &self,
        layout: &str,
        splits: usize,
        rows: usize,
        addresses: [DevicePtr; 2],
        l: &mut KernelLowering<'_>,
    ) -> KernelLaunch {
        let (parameters, elements) = extra_pointers(self.operands.len());
        let (call, blocks) = if splits <= FEW_SPLITS {
            (
                format!("combine_few<sc::@_L, {splits}, {COMBINING_WARPS}>(partial, r, given, {rows})"),
                rows.div_ceil(COMBINING_WARPS),
            )
        } else {
            (format!("combine<sc::@_L, {splits}>(partial, r, given)"), rows)
        };
        let text = format!(
            "{layout}extern \"C\" __global__ void __launch_bounds__(128) @(const void *partial, void *r{parameters}) {{\n    \
             symmc_enter();\n    const void *const given[] = {{{elements}}};\n    sc::{call};\n}}\n"
        );
        let entry = l.source.function("attention_combine", text);
        let params = addresses.into_iter().chain(self.operands.iter().map(|p| p.at.at));
        KernelLaunch::flat(entry, blocks, 128, params.map(Into::into).collect())
    }

    fn kernels(
        &self,
        algorithm: AttentionAlgorithm,
        redo: RecomputeRows,
        l: &mut KernelLowering<'_>,
    ) -> Result<Vec<KernelLaunch>> {
        let x = &self.x;
        let dtype = self.dtype;
        let mut split = split(x, algorithm, l.machine.multiprocessors as usize);
        let step = match redo {
            RecomputeRows::All => 0,
            RecomputeRows::Damaged(step) => step,
        };
        if redo != RecomputeRows::All {
            split = KeySplit {
                algorithm,
                splits: 1,
                chunk: x.keys.div_ceil(algorithm.keys()).max(1) * algorithm.keys(),
            };
        }
        let shared = match (algorithm, redo) {
            // 64 rows at a time, and a tile of keys and values.
            (AttentionAlgorithm::TensorCores(_), RecomputeRows::Damaged(_)) => {
                64 * (2 * (x.e + 8) + x.f + 8) * dtype.size()
            }
            _ => algorithm.shared(x, dtype),
        };
        if shared > MAX_SHARED_BYTES {
            let text = format!(
                "GPUs have no kernel for attention in {dtype} with heads of {} and {} elements",
                x.e, x.f
            );
            return Err(CudaError::Unsupported(text));
        }
        let partial = l.workspace_for("attention", partial_bytes(x, &split, dtype))?;
        let splits = split.splits;
        let layout = format!(
            "namespace sc {{ struct @_L {{\n{}static const i64 CHUNK = {};\n}}; }}\n",
            self.layout, split.chunk
        );
        let entry = self.entry(algorithm, splits, step, &layout, l);
        let [q, k, v, m, r] = [0, 1, 2, 3, 4].map(|i| self.places[i].at);
        let positions = self.operands.iter().map(|p| p.at.at);
        let rows = x.group * x.queries;
        let params = [q, k, v, m, r, partial].into_iter().chain(positions).map(Into::into).collect();
        let blocks = x.heads * rows.div_ceil(algorithm.rows()) * splits;
        let mut out =
            vec![KernelLaunch { shared: shared as u32, ..KernelLaunch::flat(entry, blocks, 128, params) }];
        if splits > 1 {
            out.push(self.combine(&layout, splits, x.heads * rows, [partial, r], l));
        }
        Ok(out)
    }

    /// Adds the kernel's text; returns its name.
    fn entry(
        &self,
        algorithm: AttentionAlgorithm,
        splits: usize,
        step: usize,
        layout: &str,
        l: &mut KernelLowering<'_>,
    ) -> String {
        let mask = match self.mask.map(|m| m.dtype) {
            None => 0,
            Some(DType::Bool) => 1,
            Some(_) => 2,
        };
        // Only this algorithm starts reading before the previous kernel has ended.
        let enter = if algorithm == AttentionAlgorithm::Decode { "" } else { "symmc_enter();\n    " };
        let call = match algorithm {
            AttentionAlgorithm::CudaCores(rows) => {
                format!("attend<sc::@_L, {rows}, {splits}, {step}, {mask}>")
            }
            AttentionAlgorithm::Decode => {
                l.source.prelude(text::MATRIX_SOURCE);
                l.source.prelude(text::DECODE_SOURCE);
                format!("attend_decode<sc::@_L, {splits}, {}, {mask}>", self.steady)
            }
            AttentionAlgorithm::TensorCores(times) => {
                l.source.prelude(text::MATRIX_SOURCE);
                l.source.prelude(text::TENSOR_SOURCE);
                format!("attend_tensor<sc::@_L, {times}, {splits}, {step}, {mask}>")
            }
        };
        let (parameters, elements) = extra_pointers(self.operands.len());
        let text = format!(
            "{layout}extern \"C\" __global__ void __launch_bounds__(128) @(const void *q, const void *k, const void *v, const void *m, void *r, void *partial{parameters}) {{\n    {enter}const void *const given[] = {{{elements}}};\n    sc::{call}(q, k, v, m, r, partial, given);\n}}\n"
        );
        l.source.function(if step == 0 { "attention" } else { "attention_amend" }, text)
    }
}

/// The declarations of this many further address parameters, and the elements of an array of them.
pub(super) fn extra_pointers(n: usize) -> (String, String) {
    let names: Vec<String> = (0..n).map(|i| format!("b{i}")).collect();
    let parameters: String = names.iter().map(|b| format!(", const void *{b}")).collect();
    let elements = if n == 0 { "0".into() } else { names.join(", ") };
    (parameters, elements)
}

/// An operand that broadcasts to rows of all query heads with this many columns.
fn broadcast_rows(
    v: &LocatedTensor,
    scores: &[usize],
    group: usize,
    what: &str,
    l: &KernelLowering<'_>,
) -> Result<HeadRows> {
    let skip = scores.len().checked_sub(v.shape.len());
    let fits = skip.is_some_and(|s| v.shape.iter().zip(&scores[s..]).all(|(a, b)| a == b || *a == 1));
    if !fits {
        return Err(mismatch_error(what, scores, &v.shape));
    }
    Ok(HeadRows::new(l.address_of(v), scores, &broadcast(scores, &v.shape, &v.strides), group))
}

fn with_columns(q: &LocatedTensor, columns: usize) -> Vec<usize> {
    let mut shape = q.shape.to_vec();
    if let Some(last) = shape.last_mut() {
        *last = columns;
    }
    shape
}

pub(super) fn operand_rows(
    x: &AttentionSizes,
    o: &AttentionOperands<'_, LocatedTensor>,
    result: &LocatedTensor,
    l: &KernelLowering<'_>,
) -> Result<[HeadRows; 5]> {
    let head_rows = |v: &LocatedTensor, group| HeadRows::new(l.address_of(v), &v.shape, &v.strides, group);
    let mask = match o.mask {
        None => HeadRows { at: DevicePtr::NULL, head: Vec::new(), row: Vec::new(), step: 0 },
        Some(m) => broadcast_rows(m, &with_columns(o.q, x.keys), x.group, "the mask of attention", l)?,
    };
    Ok([head_rows(o.q, x.group), head_rows(o.k, 1), head_rows(o.v, 1), mask, head_rows(result, x.group)])
}

/// The locations of the operands of the bounds.
pub(super) fn bound_operands(
    x: &AttentionSizes,
    o: &AttentionOperands<'_, LocatedTensor>,
    result: &LocatedTensor,
    l: &KernelLowering<'_>,
) -> Result<Vec<BoundPosition>> {
    let mut positions = Vec::with_capacity(o.positions.len());
    for v in o.positions {
        if !matches!(v.dtype, DType::I32 | DType::I64) {
            return Err(mismatch_error("an operand of the bounds of attention", "i32 or i64", v.dtype));
        }
        let rows =
            broadcast_rows(v, &with_columns(result, 1), x.group, "an operand of the bounds of attention", l)?;
        positions.push(BoundPosition { at: rows, dtype: v.dtype });
    }
    Ok(positions)
}

/// The location of the sinks of the rows.
fn sink(
    x: &AttentionSizes,
    v: &LocatedTensor,
    result: &LocatedTensor,
    l: &KernelLowering<'_>,
) -> Result<BoundPosition> {
    if !v.dtype.is_float() {
        return Err(mismatch_error("the sink of attention", "a float", v.dtype));
    }
    let rows = broadcast_rows(v, &with_columns(result, 1), x.group, "the sink of attention", l)?;
    Ok(BoundPosition { at: rows, dtype: v.dtype })
}

/// The destination of the log-sum-exp of each row.
pub(super) fn log_sum_exp_operand(
    x: &AttentionSizes,
    v: &LocatedTensor,
    result: &LocatedTensor,
    l: &KernelLowering<'_>,
) -> Result<BoundPosition> {
    let rows = &result.shape[..result.shape.len() - 1];
    if *v.shape != *rows || v.dtype != result.dtype.compute_dtype() {
        return Err(mismatch_error(
            "the log-sum-exp of attention",
            (result.dtype.compute_dtype(), rows),
            (v.dtype, &v.shape),
        ));
    }
    let shape = [&v.shape[..], &[1]].concat();
    let strides = [&v.strides[..], &[1]].concat();
    Ok(BoundPosition { at: HeadRows::new(l.address_of(v), &shape, &strides, x.group), dtype: v.dtype })
}

/// The members of the layout struct that all kernels of an attention share.
pub(super) fn layout(
    x: &AttentionSizes,
    scores: &ScoreOptions<'_>,
    mask: Option<&LocatedTensor>,
    dtype: DType,
    places: &[HeadRows; 5],
    multiprocessors: u32,
) -> String {
    let [q, k, v, _, r] = places;
    let mask_type = mask.map_or("boolean", |m| stored_type(m.dtype));
    let mut out = format!(
        "typedef {} T; typedef {mask_type} M;\nstatic const i64 HEADS = {}, ROWS = {}, Q = {}, S = {};\nstatic const int E = {}, F = {}, QW = {}, KW = {}, VW = {}, RW = {};\nstatic const u32 PROCESSORS = {multiprocessors};\nstatic const bool CAPPED = {};\n",
        stored_type(dtype),
        x.heads,
        x.group * x.queries,
        x.queries,
        x.keys,
        x.e,
        x.f,
        width(q, x.e, dtype),
        width(k, x.e, dtype),
        width(v, x.f, dtype),
        width(r, x.f, dtype),
        scores.cap.is_some(),
    );
    for (name, rows) in ["q", "k", "v", "m", "r"].into_iter().zip(places) {
        out.push_str(&offset_function(&format!("{name}_head"), &rows.head));
        out.push_str(&offset_function(&format!("{name}_row"), &rows.row));
        let row_step = rows.row.last().map_or(0, |a| a.stride);
        let _ =
            writeln!(out, "static const i64 {name}_step = {}ll, {name}_row_step = {row_step}ll;", rows.step);
    }
    let number = if dtype == DType::F64 { "double" } else { "float" };
    let _ = writeln!(
        out,
        "SC_FN {number} scale() {{ return {}; }}\nSC_FN {number} cap() {{ return {}; }}\nSC_FN void enter() {{ symmc_enter(); }}",
        float_literal(dtype, scores.scale.0),
        float_literal(dtype, scores.cap.map_or(1.0, |c| c.0)),
    );
    out
}
