//! The gradients of attention: the geometry of their kernels.
//!
//! Two kernels, neither of which stores scores or adds to memory that another block adds to, so that each run gives the same bits.
//! The first takes rows: it sums the gradient times the result of each, for the second, and computes the gradient of the
//! queries over all keys. The second takes keys: it computes the gradients of keys and values over all rows of the query
//! heads that share them. What cuDNN may do instead is [`fused`].

use symmc_ir::attention::Operands;
use symmc_ir::{DType, Float, Op, Scalar};
use symmc_runtime::exec::Located;

use super::attention::{
    Extents, MOST_SHARED, Scores, extents, given, layout, places, positions, sums_of, wide,
};
use super::bounds;
use super::element;
use super::fused::{self, Candidates, Form, Tensors};
use super::lowering::{Lowering, misfit};
use super::machine::{Attentions, Machine};
use super::space::Rows;
use super::text::{self, offset};
use crate::codegen::command::{Command, Commands};
use crate::cudnn::{self, Band};
use crate::device::launch::{DevicePtr, Kernel};
use crate::error::{CudaError, Result};

/// Rows and keys of a tile.
const TILE: usize = 32;

/// The operands before those of the attention.
struct OfResult<'a> {
    gradient: &'a Located,
    result: &'a Located,
    sums: &'a Located,
}

fn split_operands<'a>(
    scores: &Scores<'_>,
    operands: &'a [Located],
) -> Option<(OfResult<'a>, Operands<'a, Located>)> {
    let ([gradient, result, sums], forward) = operands.split_first_chunk::<3>()?;
    let forward = Operands::of(scores.bounds, false, forward)?;
    Some((OfResult { gradient, result, sums }, forward))
}

pub(super) fn workspace(scores: &Scores<'_>, operands: &[Located], machine: &Machine) -> usize {
    let Some((of, o)) = split_operands(scores, operands) else { return 0 };
    let Ok(x) = extents(&o, of.result) else { return 0 };
    let means = means_bytes(&x, wide(o.q.dtype));
    if machine.attention == Attentions::Kernels || o.q.dtype.size() != 2 {
        return means;
    }
    let rank = o.k.shape.len();
    let sizes = [x.queries, x.keys, x.e, x.f];
    means + cudnn::attention::gradient_workspace(x.heads * x.group, o.k.shape[rank - 3], sizes)
}

/// The bytes of a number for each row.
fn means_bytes(x: &Extents, size: usize) -> usize {
    (x.heads * x.group * x.queries * size).next_multiple_of(256)
}

pub(super) fn lower(
    scores: &Scores<'_>,
    operands: &[Located],
    results: &[Located],
    l: &mut Lowering<'_>,
) -> Commands {
    let few = || {
        let expected = "the gradient of the result, the result, the log-sum-exp, q, k, v, a mask or none, an operand for \
                        each bound that has one";
        misfit("the gradient of attention", expected, operands.len())
    };
    let (of, o) = split_operands(scores, operands).ok_or_else(few)?;
    let x = extents(&o, of.result)?;
    extents(&o, of.gradient)?;
    for (found, expected) in results.iter().zip([o.q, o.k, o.v]) {
        if found.shape != expected.shape || found.dtype != expected.dtype {
            return Err(misfit("a gradient of attention", &expected.shape, &found.shape));
        }
    }
    if [x.heads * x.group * x.queries, x.keys, x.f].contains(&0) {
        // Nothing is summed.
        return zeros(results, l);
    }
    if x.e == 0 {
        return Err(misfit("the gradient of attention", "queries that have elements", x.e));
    }
    let own = own_kernels(scores, &x, &of, &o, results, l)?;
    if l.machine.attention == Attentions::Chosen
        && let Some(candidates) = candidates(scores, &x, &of, &o, results, &own, l)
    {
        return Ok(vec![Command::Attention(Box::new(candidates))]);
    }
    Ok(own.into_iter().map(Command::Kernel).collect())
}

fn zeros(results: &[Located], l: &mut Lowering<'_>) -> Commands {
    let mut out = Vec::new();
    for result in results.iter().filter(|r| !r.shape.contains(&0)) {
        out.extend(element::lower(&Op::Full(Scalar::Float(Float(0.0))), &[], result, l)?);
    }
    Ok(out)
}

/// The gradients in both forms, if the library takes them: without a mask, and where each row sees a key.
fn candidates(
    scores: &Scores<'_>,
    x: &Extents,
    of: &OfResult<'_>,
    o: &Operands<'_, Located>,
    results: &[Located],
    own: &[Kernel],
    l: &Lowering<'_>,
) -> Option<Candidates> {
    let limits = bounds::constants(scores.bounds)?;
    let (band, keys) = bounds::band(&limits, x.queries, x.keys)?;
    if o.mask.is_some() || keys != x.keys || !sees_all(&band, x) {
        return None;
    }
    let means_bytes = means_bytes(x, 4);
    let room = l.machine.workspace_bytes.checked_sub(means_bytes)? / 256 * 256;
    let means = DevicePtr::from(l.machine.workspace) + room as u64;
    let [of_q, of_k, of_v] = results.first_chunk::<3>()?;
    let gradients = Some(([of.gradient, of_q, of_k, of_v], means));
    let tensors = Tensors { q: o.q, k: o.k, v: o.v, r: of.result, sums: Some(of.sums), gradients };
    let form = Form { scale: scores.scale.0, cap: None, band, keys };
    let attention = fused::attention(&form, &tensors, None, &|v| l.at(v))?;
    Some(Candidates { attention, room, numbers: None, filled: vec![], amend: None, own: own.to_vec() })
}

/// Whether each row sees a key.
fn sees_all(band: &Band, x: &Extents) -> bool {
    let (last, keys) = (x.queries as i64 - 1, x.keys as i64);
    let first_sees = band.below.is_none_or(|below| below >= 1);
    let last_sees = band.from.is_none_or(|from| last + from < keys);
    let width = match (band.below, band.from) {
        (Some(below), Some(from)) => below > from,
        _ => true,
    };
    first_sees && last_sees && width
}

struct Places {
    gradient: Rows,
    sums: Rows,
    of_q: Rows,
    of_k: Rows,
    of_v: Rows,
}

impl Places {
    fn new(x: &Extents, of: &OfResult<'_>, results: &[Located], l: &Lowering<'_>) -> Result<Places> {
        let place = |v: &Located, group| Rows::new(l.at(v), &v.shape, &v.strides, group);
        Ok(Places {
            gradient: place(of.gradient, x.group),
            sums: sums_of(x, of.sums, of.result, l)?.at,
            of_q: place(&results[0], x.group),
            of_k: place(&results[1], 1),
            of_v: place(&results[2], 1),
        })
    }

    /// The members of the layout that say where they lie.
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
            out.push_str(&offset(&format!("{name}_head"), &rows.head));
            out.push_str(&offset(&format!("{name}_row"), &rows.row));
            out.push_str(&format!("static const i64 {name}_step = {}ll;\n", rows.step));
        }
        out
    }
}

fn own_kernels(
    scores: &Scores<'_>,
    x: &Extents,
    of: &OfResult<'_>,
    o: &Operands<'_, Located>,
    results: &[Located],
    l: &mut Lowering<'_>,
) -> Result<Vec<Kernel>> {
    let dtype = o.q.dtype;
    let open = || misfit("the bounds of attention", "positions of known size", scores.bounds);
    let limits = bounds::constants(scores.bounds).ok_or_else(open)?;
    let forward = places(x, o, of.result, l)?;
    let positions = positions(x, o, of.result, l)?;
    let more = Places::new(x, of, results, l)?;
    let mut layout = layout(x, scores, o.mask, dtype, &forward, l.machine.multiprocessors);
    layout.push_str(&bounds::layout(&limits, &positions));
    layout.push_str(&bounds::sink(None, 0));
    layout.push_str(&bounds::sums(None, 0));
    layout.push_str(&more.layout());
    l.preludes();
    l.source.prelude(text::ATTENTION);
    l.source.prelude(text::ATTENTION_GRADIENT);
    let shared = shared_numbers(x) * wide(dtype);
    if shared > MOST_SHARED {
        let text =
            format!("gradients of attention in {dtype} over heads of {} and {} elements on a GPU", x.e, x.f);
        return Err(CudaError::Unsupported(text));
    }
    let means = l.room("the gradient of attention", means_bytes(x, wide(dtype)))?;
    let mask = match o.mask {
        None => 0,
        Some(m) if m.dtype == DType::Bool => 1,
        Some(_) => 2,
    };
    let [q, k, v, m, r] = [0, 1, 2, 3, 4].map(|i| forward[i].at);
    let operands = [more.gradient.at, r, more.sums.at, q, k, v, m, means];
    let rows = x.group * x.queries;
    let kernels = [
        ("rows", "attend_back_rows", rows, [more.of_q.at, DevicePtr::NULL]),
        ("keys", "attend_back_keys", x.keys, [more.of_k.at, more.of_v.at]),
    ];
    let (parameters, given) = given(positions.len());
    let kernel = |(name, function, n, outputs): (&str, &str, usize, [DevicePtr; 2])| {
        let text = format!(
            "namespace sc {{ struct @_L {{\n{layout}}};\n}}\nextern \"C\" __global__ void __launch_bounds__(128) @(const void *g, \
             const void *r, const void *sums, const void *q, const void *k, const void *v, const void *m, void *means, void *x, \
             void *y{parameters}) {{\n    symmc_enter();\n    const void *const given[] = {{{given}}};\n    \
             sc::{function}<sc::@_L, {mask}>(g, r, sums, q, k, v, m, means, x, y, given);\n}}\n"
        );
        let entry = l.source.function(&format!("attention_gradient_{name}"), text);
        let params = operands.into_iter().chain(outputs).chain(positions.iter().map(|p| p.at.at));
        let params = params.map(Into::into).collect();
        Kernel { shared: shared as u32, ..Kernel::flat(entry, x.heads * n.div_ceil(TILE), 128, params) }
    };
    Ok(kernels.map(kernel).to_vec())
}

/// The numbers that a block has in shared memory.
fn shared_numbers(x: &Extents) -> usize {
    let rows = TILE * (x.e + x.f);
    let keys = TILE * (x.e + 1 + x.f + 1);
    rows + keys + 2 * TILE * (TILE + 1) + 2 * TILE
}
