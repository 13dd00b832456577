//! Scaled dot-product attention: the geometry of its kernels.
//!
//! Query heads that share a head of keys form its rows, so that few queries still fill a block, and each
//! key is read once for all of them. Where there are fewer blocks than the machine holds, the keys are
//! split, and a second kernel combines the parts in a fixed order.
//!
//! bf16 and f16 go to matrix instructions, which round the weights to the type of the values: many rows through shared
//! memory ([`Way::Tensor`]), few straight from memory ([`Way::Few`]). All else is computed in f32 or f64 by the lanes of
//! warps.

use std::fmt::Write as _;

use symmc_ir::attention::{Bound, is_causal};
use symmc_ir::{DType, Float};
use symmc_runtime::exec::Located;

use super::space::{Axis, broadcast};
use super::text::{self, offset, real, stored};
use super::{Lowering, misfit};
use crate::error::CudaError;
use crate::launch::{Address, Kernel, Work};

/// Warps of a block.
const WARPS: usize = 4;
/// Keys of a tile.
const KEYS: usize = 32;
/// Parts of the keys of one block.
const MOST_SPLITS: usize = 64;
/// Dynamic shared memory that a block may have.
const MOST_SHARED: usize = 160 << 10;

/// The extents of one attention.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Extents {
    /// Heads of keys over the batch.
    heads: usize,
    /// Query heads for each of them.
    group: usize,
    queries: usize,
    keys: usize,
    e: usize,
    f: usize,
}

/// Which kernel does the work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// A lane scores a key; a warp works on this many rows.
    Lanes(usize),
    /// Matrix instructions on so many times 64 rows, and on 64 keys.
    Tensor(usize),
    /// Matrix instructions on 16 rows, with a warp for every 16 keys.
    Few,
}

/// From how many rows on they count as many.
const MANY_ROWS: usize = 32;

impl Way {
    /// Rows of a block.
    fn rows(self) -> usize {
        match self {
            Way::Lanes(rows) => rows * WARPS,
            Way::Tensor(times) => 64 * times,
            Way::Few => 16,
        }
    }

    /// Keys of a tile: what a block takes at once.
    fn keys(self) -> usize {
        match self {
            Way::Lanes(_) => KEYS,
            Way::Tensor(_) | Way::Few => 64,
        }
    }

    /// Bytes of shared memory of a block.
    fn shared(self, x: &Extents, dtype: DType) -> usize {
        match self {
            Way::Lanes(_) => {
                let pitch = if x.e.is_multiple_of(4) && wide(dtype) == 4 { x.e + 4 } else { x.e + 1 };
                (self.rows() * x.e + KEYS * pitch + KEYS * x.f) * wide(dtype)
            }
            // Two tiles of keys and values, and the queries.
            Way::Tensor(times) => (2 * 64 * (x.e + 8 + x.f + 8) + 64 * times * (x.e + 8)) * dtype.size(),
            Way::Few => WARPS * (x.group * x.queries).min(16) * (x.f + 2) * wide(dtype),
        }
    }
}

/// How the work is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Cut {
    way: Way,
    splits: usize,
    /// Keys of a split.
    chunk: usize,
}

fn extents(x: &[Located], result: &Located) -> Result<Extents, CudaError> {
    let (q, k, v) = (&x[0].shape, &x[1].shape, &x[2].shape);
    let r = q.len();
    let bad = || {
        let found = (q.clone(), k.clone(), v.clone(), result.shape.clone());
        misfit("attention", "q [.., h, l, e], k [.., g, s, e], v [.., g, s, f] for [.., h, l, f]", found)
    };
    let same = |d: DType| d == x[0].dtype && d.is_float();
    if r < 3 || k.len() != r || v.len() != r || result.shape.len() != r {
        return Err(bad());
    }
    if ![x[1].dtype, x[2].dtype, result.dtype].into_iter().all(same) {
        return Err(bad());
    }
    let (h, g) = (q[r - 3], k[r - 3]);
    let fits = q[..r - 3] == k[..r - 3]
        && q[..r - 3] == v[..r - 3]
        && v[r - 3] == g
        && k[r - 1] == q[r - 1]
        && v[r - 2] == k[r - 2]
        && result.shape[..r - 1] == q[..r - 1]
        && result.shape[r - 1] == v[r - 1];
    if !fits || (h != 0 && h.checked_rem(g) != Some(0)) {
        return Err(bad());
    }
    let heads = q[..r - 3].iter().product::<usize>() * g;
    let group = h.checked_div(g).unwrap_or(0);
    Ok(Extents { heads, group, queries: q[r - 2], keys: k[r - 2], e: q[r - 1], f: v[r - 1] })
}

/// The kernel for rows of an attention whose keys and values lie so.
fn way(x: &Extents, dtype: DType, k: &Rows, v: &Rows) -> Way {
    let rows = x.group * x.queries;
    let short = |n: usize| n.is_multiple_of(16) && (16..=128).contains(&n);
    let whole = width(k, x.e, dtype) == 8 && width(v, x.f, dtype) == 8;
    let half = matches!(dtype, DType::BF16 | DType::F16) && whole;
    // Positions are numbers of 32 bits there.
    let small = rows.max(x.keys) < 1 << 30;
    if half && rows >= MANY_ROWS && short(x.e) && short(x.f) && small {
        return tensor(rows);
    }
    if half && rows < MANY_ROWS && is_few(x) {
        return Way::Few;
    }
    lanes(rows)
}

/// Each warp reads all keys and values, so twice the rows halve what shared memory gives.
fn tensor(rows: usize) -> Way {
    Way::Tensor(if rows > 64 { 2 } else { 1 })
}

/// Whether the registers of a warp hold what [`Way::Few`] reads at once, in whole accesses.
fn is_few(x: &Extents) -> bool {
    matches!(x.e, 32 | 64 | 96 | 128) && matches!(x.f, 64 | 128)
}

fn lanes(rows: usize) -> Way {
    Way::Lanes(match rows {
        0..=4 => 1,
        5..=8 => 2,
        9..=64 => 4,
        _ => 8,
    })
}

fn cut(x: &Extents, way: Way, multiprocessors: usize) -> Cut {
    let blocks = x.heads * (x.group * x.queries).div_ceil(way.rows());
    let tiles = x.keys.div_ceil(way.keys()).max(1);
    let splits = match way {
        Way::Few => few_splits(blocks.max(1), tiles.min(MOST_SPLITS), multiprocessors),
        _ => {
            // Two blocks of a multiprocessor work at once; a part is worth a block from a few tiles on.
            let wanted = 2 * multiprocessors / blocks.max(1);
            wanted.min(tiles.div_ceil(4)).clamp(1, MOST_SPLITS)
        }
    };
    let chunk = tiles.div_ceil(splits) * way.keys();
    Cut { way, splits: x.keys.div_ceil(chunk).max(1), chunk }
}

/// The fewest splits with which every multiprocessor has about as many blocks as the others and two at least, which
/// ask for as much of memory as it gives; else as many as there may be.
fn few_splits(blocks: usize, most: usize, multiprocessors: usize) -> usize {
    let even = |splits: &usize| {
        let (all, turns) = (blocks * splits, (blocks * splits).div_ceil(multiprocessors));
        turns >= 2 && 10 * all >= 9 * turns * multiprocessors
    };
    (1..most).find(even).unwrap_or(most)
}

/// The bytes of an element as it is computed.
fn wide(dtype: DType) -> usize {
    if dtype == DType::F64 { 8 } else { 4 }
}

/// Whether the kernels are to be causal.
///
/// # Errors
/// Rows see other columns than all or those up to their own index, or scores are capped.
pub(super) fn causal(cap: Option<Float>, bounds: &[Bound]) -> Result<bool, CudaError> {
    let expected = "attention on a GPU: expected rows that see all columns or those up to their own index";
    match (cap, bounds) {
        (None, []) => Ok(false),
        (None, _) if is_causal(bounds) => Ok(true),
        (None, _) => Err(CudaError::Unsupported(format!("{expected}, found other bounds"))),
        (Some(cap), _) => {
            Err(CudaError::Unsupported(format!("{expected}, found scores that are capped at {cap}")))
        }
    }
}

pub(super) fn workspace(operands: &[Located], result: &Located, multiprocessors: u32) -> usize {
    let Ok(x) = extents(operands, result) else { return 0 };
    // Which way it is depends on addresses, which are not known yet.
    let rows = x.group * x.queries;
    let ways = [lanes(rows), tensor(rows), Way::Few];
    let bytes = |way| parts_bytes(&x, &cut(&x, way, multiprocessors as usize), operands[0].dtype);
    ways.into_iter().map(bytes).max().unwrap_or(0)
}

fn parts_bytes(x: &Extents, cut: &Cut, dtype: DType) -> usize {
    if cut.splits == 1 {
        return 0;
    }
    x.heads * x.group * x.queries * cut.splits * (x.f + 2) * wide(dtype)
}

/// One operand: where its heads and rows lie.
struct Rows {
    at: Address,
    head: Vec<Axis>,
    row: Vec<Axis>,
    step: isize,
}

/// Splits `[.., heads, rows, columns]`; `group` heads in a run share a head of keys.
fn rows(at: Address, shape: &[usize], strides: &[isize], group: usize) -> Rows {
    let r = shape.len();
    let axis = |a: usize| Axis { n: shape[a], stride: strides[a] };
    let heads = axis(r - 3);
    let mut head: Vec<Axis> = (0..r - 3).map(axis).collect();
    head.push(Axis { n: heads.n / group, stride: heads.stride * group as isize });
    let row = vec![Axis { n: group, stride: heads.stride }, axis(r - 2)];
    Rows { at, head, row, step: strides[r - 1] }
}

/// The width of an access to rows of `n` elements.
fn width(rows: &Rows, n: usize, dtype: DType) -> usize {
    let mut width = 16 / dtype.size();
    let fits = |w: usize| {
        let whole = |a: &Axis| a.stride.unsigned_abs().is_multiple_of(w);
        rows.step == 1
            && n.is_multiple_of(w)
            && rows.at.is_multiple_of((w * dtype.size()) as u64)
            && rows.head.iter().chain(&rows.row).all(whole)
    };
    while width > 1 && !fits(width) {
        width /= 2;
    }
    width
}

pub(super) fn lower(
    causal: bool,
    scale: f64,
    operands: &[Located],
    result: &Located,
    l: &mut Lowering<'_>,
) -> Result<Vec<Work>, CudaError> {
    let x = extents(operands, result)?;
    if result.shape.contains(&0) {
        return Ok(Vec::new());
    }
    let dtype = result.dtype;
    let places = places(&x, operands, result, l)?;
    let way = way(&x, dtype, &places[1], &places[2]);
    let cut = cut(&x, way, l.machine.multiprocessors as usize);
    let shared = way.shared(&x, dtype);
    if shared > MOST_SHARED {
        let text = format!("attention in {dtype} over heads of {} and {} elements on a GPU", x.e, x.f);
        return Err(CudaError::Unsupported(text));
    }
    let partial = l.room("attention", parts_bytes(&x, &cut, dtype))?;
    let layout = layout(&x, &cut, scale, operands.get(3), dtype, &places, l.machine.multiprocessors);
    let mask = match operands.get(3).map(|m| m.dtype) {
        None => 0,
        Some(DType::Bool) => 1,
        Some(_) => 2,
    };
    l.preludes();
    l.source.prelude(text::ATTENTION);
    let splits = cut.splits;
    // Only the few begin to read before what is in front has ended.
    let enter = if way == Way::Few { "" } else { "symmc_enter();\n    " };
    let call = match way {
        Way::Lanes(rows) => format!("attend<sc::@_L, {rows}, {splits}, {causal}, {mask}>"),
        Way::Few => {
            l.source.prelude(text::MATRIX);
            l.source.prelude(text::DECODE);
            let steady = l.is_steady(&operands[1]) && l.is_steady(&operands[2]);
            format!("attend_few<sc::@_L, {splits}, {steady}, {causal}, {mask}>")
        }
        Way::Tensor(times) => {
            l.source.prelude(text::MATRIX);
            l.source.prelude(text::TENSOR);
            format!("attend_tensor<sc::@_L, {times}, {splits}, {causal}, {mask}>")
        }
    };
    let attend = format!(
        "{layout}extern \"C\" __global__ void __launch_bounds__(128) @(const void *q, const void *k, const void *v, const void *m, void *r, void *partial) {{\n    {enter}sc::{call}(q, k, v, m, r, partial);\n}}\n"
    );
    let rows = x.group * x.queries;
    let [q, k, v, m, r] = places.map(|p| p.at);
    let mut out = vec![Work::Kernel(Kernel {
        entry: l.source.function("attention", attend),
        grid: [(x.heads * rows.div_ceil(way.rows()) * splits) as u32, 1, 1],
        block: [128, 1, 1],
        cluster: 1,
        shared: shared as u32,
        params: [q, k, v, m, r, partial].map(Into::into).to_vec(),
    })];
    if splits > 1 {
        out.push(combine(&layout, splits, x.heads * rows, [partial, r], l));
    }
    Ok(out)
}

/// The kernel that puts the parts of the splits of each row together.
fn combine(layout: &str, splits: usize, rows: usize, addresses: [Address; 2], l: &mut Lowering<'_>) -> Work {
    let text = format!(
        "{layout}extern \"C\" __global__ void __launch_bounds__(128) @(const void *partial, void *r) {{\n    symmc_enter();\n    \
         sc::combine<sc::@_L, {splits}>(partial, r);\n}}\n"
    );
    Work::Kernel(Kernel {
        entry: l.source.function("attention_combine", text),
        grid: [rows as u32, 1, 1],
        block: [128, 1, 1],
        cluster: 1,
        shared: 0,
        params: addresses.map(Into::into).to_vec(),
    })
}

/// Where q, k, v, the mask and the result lie.
fn places(
    x: &Extents,
    operands: &[Located],
    result: &Located,
    l: &Lowering<'_>,
) -> Result<[Rows; 5], CudaError> {
    let place = |v: &Located, group| rows(l.at(v), &v.shape, &v.strides, group);
    let mut scores = operands[0].shape.to_vec();
    let last = scores.len() - 1;
    scores[last] = x.keys;
    let mask = match operands.get(3) {
        None => Rows { at: 0, head: Vec::new(), row: Vec::new(), step: 0 },
        Some(m) => {
            let skip = scores.len().checked_sub(m.shape.len());
            let fits = skip.is_some_and(|s| m.shape.iter().zip(&scores[s..]).all(|(a, b)| a == b || *a == 1));
            if !fits {
                return Err(misfit("the mask of attention", &scores, &m.shape));
            }
            rows(l.at(m), &scores, &broadcast(&scores, &m.shape, &m.strides), x.group)
        }
    };
    let [q, k, v] = [(0, x.group), (1, 1), (2, 1)].map(|(i, group)| place(&operands[i], group));
    Ok([q, k, v, mask, place(result, x.group)])
}

/// The layout struct of the kernels.
fn layout(
    x: &Extents,
    cut: &Cut,
    scale: f64,
    mask: Option<&Located>,
    dtype: DType,
    places: &[Rows; 5],
    multiprocessors: u32,
) -> String {
    let [q, k, v, _, r] = places;
    let mask_type = mask.map_or("boolean", |m| stored(m.dtype));
    let mut out = format!(
        "namespace sc {{ struct @_L {{\ntypedef {} T; typedef {mask_type} M;\nstatic const i64 HEADS = {}, ROWS = {}, Q = {}, S = {}, CHUNK = {};\nstatic const int E = {}, F = {}, QW = {}, KW = {}, VW = {}, RW = {};\nstatic const u32 PROCESSORS = {multiprocessors};\n",
        stored(dtype),
        x.heads,
        x.group * x.queries,
        x.queries,
        x.keys,
        cut.chunk,
        x.e,
        x.f,
        width(q, x.e, dtype),
        width(k, x.e, dtype),
        width(v, x.f, dtype),
        width(r, x.f, dtype),
    );
    for (name, rows) in ["q", "k", "v", "m", "r"].into_iter().zip(places) {
        out.push_str(&offset(&format!("{name}_head"), &rows.head));
        out.push_str(&offset(&format!("{name}_row"), &rows.row));
        let row_step = rows.row.last().map_or(0, |a| a.stride);
        let _ =
            writeln!(out, "static const i64 {name}_step = {}ll, {name}_row_step = {row_step}ll;", rows.step);
    }
    let number = if dtype == DType::F64 { "double" } else { "float" };
    let _ = writeln!(
        out,
        "SC_FN {number} scale() {{ return {}; }}\nSC_FN void enter() {{ symmc_enter(); }}\n}}; }}",
        real(dtype, scale)
    );
    out
}
