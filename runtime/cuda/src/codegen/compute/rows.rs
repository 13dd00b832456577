//! Single reductions, arg-reductions and cumulative sums of rows.
//!
//! The axes of the operand are divided into those that number the rows and those within a row. The number of
//! threads that share a row depends on its length and on the layout of its elements ([`ThreadGroup`]). Few
//! long rows are first reduced in pieces, to use all multiprocessors.

use std::fmt::Write as _;

use symmc_ir::{ArgOp, DType, ReductionKind};
use symmc_runtime::exec::LocatedTensor;

use super::lowering::{KernelLowering, mismatch_error};
use super::space::{IterationAxis, collapsed_axes};
use super::text::{self, computed_type, offset_function, stored_type};
use crate::codegen::command::{Commands, GpuCommand};
use crate::device::launch::{DevicePtr, KernelLaunch, KernelParam};
use crate::error::{CudaError, Result};

/// The fewest rows that threads compute one by one, if rows are adjacent in memory.
const MIN_ADJACENT_ROWS: usize = 512;
/// The longest row, in accesses, that a single warp computes.
const WARP_ACCESSES: usize = 128;

struct RowSplit {
    at: DevicePtr,
    dtype: DType,
    row: Vec<IterationAxis>,
    within: Vec<IterationAxis>,
}

impl RowSplit {
    /// Splits the axes of `value`: the axes `inner` are within a row.
    fn new(value: &LocatedTensor, inner: &[usize], l: &KernelLowering<'_>) -> RowSplit {
        let [row, within] = [false, true].map(|is_inner| {
            let axes = (0..value.shape.len()).filter(|a| inner.contains(a) == is_inner);
            let (n, s): (Vec<usize>, Vec<isize>) = axes.map(|a| (value.shape[a], value.strides[a])).unzip();
            collapsed_axes(&n, &s)
        });
        RowSplit { at: l.address_of(value), dtype: value.dtype, row, within }
    }

    /// Whether accesses to `width` neighbours within a row are aligned, and have at most 16 bytes.
    fn allows(&self, width: usize) -> bool {
        let Some((last, outer)) = self.within.split_last() else { return width == 1 };
        width == 1
            || last.stride == 1
                && width * self.dtype.size() <= 16
                && last.n.is_multiple_of(width)
                && self.at.is_multiple_of((width * self.dtype.size()) as u64)
                && outer.iter().chain(&self.row).all(|axis| axis.has_stride_multiple_of(width))
    }

    /// The largest stride between neighbours within a row.
    fn step(&self) -> usize {
        self.within.last().map_or(1, |a| a.stride.unsigned_abs())
    }
}

/// The division of rows among threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ThreadGroup {
    /// The number of threads per row: 1, 32 or a whole block.
    pub threads: usize,
    pub block: usize,
    /// The number of elements of one access.
    pub width: usize,
}

impl ThreadGroup {
    /// The group for rows of `n` elements. The first of these operands is read most.
    fn for_operands(rows: usize, n: usize, operands: &[&RowSplit]) -> ThreadGroup {
        let size = operands.iter().map(|s| s.dtype.size()).max().unwrap_or(8);
        let rows_are_adjacent =
            operands[0].row.last().is_some_and(|a| a.stride.unsigned_abs() < operands[0].step());
        ThreadGroup::for_rows(rows, n, rows_are_adjacent, widest_access((16 / size).max(1), operands))
    }

    /// The group for rows of `n` elements, read `width` at a time. If neighbouring rows are adjacent in memory rather
    /// than the elements of a row, each thread computes a row.
    pub fn for_rows(rows: usize, n: usize, rows_are_adjacent: bool, width: usize) -> ThreadGroup {
        if n == 1 || rows_are_adjacent && rows >= MIN_ADJACENT_ROWS {
            return ThreadGroup { threads: 1, block: 128, width: 1 };
        }
        let accesses = n.div_ceil(width);
        let (threads, block) = if accesses <= WARP_ACCESSES && (rows >= 8 || accesses <= 64) {
            (32, 128)
        } else {
            let max_threads = if accesses > 4096 { 1024 } else { 512 };
            let threads = accesses.next_power_of_two().clamp(64, max_threads);
            (threads, threads)
        };
        ThreadGroup { threads, block, width }
    }

    pub fn blocks(&self, rows: usize) -> usize {
        rows.div_ceil(self.block / self.threads)
    }

    /// The template arguments for the division of rows among threads.
    fn args(&self) -> String {
        format!("{}, {}", self.threads, self.block)
    }
}

/// The largest access width, up to `width`, that all operands allow.
fn widest_access(mut width: usize, operands: &[&RowSplit]) -> usize {
    while !operands.iter().all(|s| s.allows(width)) {
        width /= 2;
    }
    width
}

/// The layout struct of a kernel, with the name `@_L`.
fn layout(rows: usize, n: usize, width: usize, x: &RowSplit, r: &RowSplit, more: &str) -> String {
    let mut out = format!(
        "namespace sc {{ struct @_L {{\ntypedef {} X; typedef {} R;\nstatic const i64 ROWS = {rows}, N = {n}; static const int V = {width};\n",
        stored_type(x.dtype),
        stored_type(r.dtype)
    );
    for (name, axes) in [("x_row", &x.row), ("x_in", &x.within), ("r_row", &r.row), ("r_in", &r.within)] {
        out.push_str(&offset_function(name, axes));
    }
    let _ = writeln!(out, "{more}}}; }}");
    out
}

/// Adds the function of `call` with its layout, and returns its launch.
fn launch(
    what: &str,
    layout: &str,
    params: &[(&str, DevicePtr)],
    call: &str,
    blocks: usize,
    block: usize,
    l: &mut KernelLowering<'_>,
) -> Vec<GpuCommand> {
    l.preludes();
    l.source.prelude(text::ROWS_SOURCE);
    let list: Vec<&str> = params.iter().map(|p| p.0).collect();
    let declared: Vec<String> = list.iter().map(|name| format!("void *{name}")).collect();
    let function = format!(
        "{layout}extern \"C\" __global__ void __launch_bounds__({block}) @({}) {{\n    symmc_enter();\n    using namespace sc;\n    {call}({});\n}}\n",
        declared.join(", "),
        list.join(", ")
    );
    let entry = l.source.function(what, function);
    let params = params.iter().map(|p| KernelParam::from(p.1)).collect();
    vec![GpuCommand::Kernel(KernelLaunch::flat(entry, blocks, block, params))]
}

pub(super) fn reduction_name(op: ReductionKind) -> &'static str {
    match op {
        ReductionKind::Sum | ReductionKind::Mean => "Sum",
        ReductionKind::Prod => "Prod",
        ReductionKind::Max => "Max",
        ReductionKind::Min => "Min",
        ReductionKind::Any => "Any",
        ReductionKind::All => "All",
    }
}

/// The axes that remain without the axes of a row; they number the rows.
fn kept_axes(x: &LocatedTensor, axes: &[usize], result: &LocatedTensor) -> Result<Vec<usize>> {
    let outer_axes: Vec<usize> = (0..x.shape.len()).filter(|a| !axes.contains(a)).collect();
    let rows: Vec<usize> = outer_axes.iter().map(|&a| x.shape[a]).collect();
    let keepdim_shape: Vec<usize> =
        (0..x.shape.len()).map(|a| if axes.contains(&a) { 1 } else { x.shape[a] }).collect();
    let fits = axes.iter().all(|&a| a < x.shape.len());
    if !fits || (result.shape[..] != rows[..] && result.shape[..] != keepdim_shape[..]) {
        return Err(mismatch_error("the result of a reduction", rows, &result.shape));
    }
    Ok(outer_axes)
}

fn empty(op: impl std::fmt::Display) -> CudaError {
    CudaError::Unsupported(format!("{op} of no elements"))
}

fn per_row_result(result: &LocatedTensor, l: &KernelLowering<'_>) -> RowSplit {
    RowSplit {
        at: l.address_of(result),
        dtype: result.dtype,
        row: collapsed_axes(&result.shape, &result.strides),
        within: Vec::new(),
    }
}

/// A reduction of rows of `n` elements, which may be partial results of rows of `count` elements.
struct ReductionPass {
    op: ReductionKind,
    x: RowSplit,
    r: RowSplit,
    rows: usize,
    n: usize,
    count: usize,
}

impl ReductionPass {
    /// Whether neighbouring rows are adjacent in memory.
    fn are_columns(&self) -> bool {
        let rows_are_adjacent = self.x.row.last().is_some_and(|a| a.stride.unsigned_abs() < self.x.step());
        rows_are_adjacent && self.n >= 16 && self.rows >= 32
    }

    fn blocks(&self) -> usize {
        if self.are_columns() {
            self.rows.div_ceil(COLUMNS_PER_BLOCK)
        } else {
            self.group().blocks(self.rows)
        }
    }

    fn group(&self) -> ThreadGroup {
        ThreadGroup::for_operands(self.rows, self.n.max(1), &[&self.x])
    }

    /// The type of the accumulator. A product may leave the range of float in either direction while its
    /// final value is within the range.
    fn accumulator(&self) -> DType {
        match self.x.dtype {
            dtype if !dtype.is_float() => DType::I64,
            DType::F64 => DType::F64,
            _ if self.op == ReductionKind::Prod => DType::F64,
            _ => DType::F32,
        }
    }

    /// Splits the reduction into two passes, if rows are so few and long that more blocks pay off: the first
    /// pass reduces pieces of rows into the workspace.
    fn into_passes(self, l: &KernelLowering<'_>) -> Result<Vec<ReductionPass>> {
        let blocks = self.blocks();
        let columns = self.are_columns();
        let wanted = l.machine.multiprocessors as usize * if columns { 8 } else { 2 };
        let min_elements = if columns { 8 * COLUMNS_PER_BLOCK } else { MIN_PIECE_ELEMENTS };
        let max_pieces =
            (wanted / blocks.max(1)).min(self.n / min_elements).min(MAX_PARTIAL_RESULTS / self.rows);
        let Some(&first) = self.x.within.first().filter(|_| max_pieces > 1) else { return Ok(vec![self]) };
        let Some(pieces) = (2..=max_pieces).rev().find(|p| first.n.is_multiple_of(*p)) else {
            return Ok(vec![self]);
        };
        let each = first.n / pieces;
        let mut within = self.x.within.clone();
        let mut row = self.x.row.clone();
        within[0].n = each;
        row.insert(0, IterationAxis { n: pieces, stride: first.stride * each as isize });
        // Sums of floats may leave the range of their type while the mean is within it.
        let dtype = match (self.op, self.accumulator()) {
            (ReductionKind::Sum | ReductionKind::Mean | ReductionKind::Prod, dtype) if dtype.is_float() => {
                DType::F64
            }
            (ReductionKind::Any | ReductionKind::All, _) => DType::Bool,
            (_, dtype) => dtype,
        };
        let partial_results = l.workspace_for("a reduction", pieces * self.rows * dtype.size())?;
        let partial_axis = vec![IterationAxis { n: pieces * self.rows, stride: 1 }];
        let of_row = vec![IterationAxis { n: self.rows, stride: 1 }];
        let by_piece = vec![IterationAxis { n: pieces, stride: self.rows as isize }];
        let op = if self.op == ReductionKind::Mean { ReductionKind::Sum } else { self.op };
        let rows = self.rows * pieces;
        let n = self.n / pieces;
        let x = RowSplit { row, within, ..self.x };
        let r = RowSplit { at: partial_results, dtype, row: partial_axis, within: Vec::new() };
        let first = ReductionPass { op, x, r, rows, n, count: n };
        let x = RowSplit { at: partial_results, dtype, row: of_row, within: by_piece };
        Ok(vec![first, ReductionPass { x, n: pieces, ..self }])
    }

    fn launch(self, l: &mut KernelLowering<'_>) -> Vec<GpuCommand> {
        let accumulated = computed_type(self.accumulator());
        let mean = self.op == ReductionKind::Mean;
        let params = [("x", self.x.at), ("r", self.r.at)];
        let count = format!("static const i64 COUNT = {};\n", self.count);
        let ReductionPass { rows, n, .. } = self;
        if self.are_columns() {
            let call = format!("reduce_columns<@_L, {}, {accumulated}, {mean}>", reduction_name(self.op));
            let layout = layout(rows, n, 1, &self.x, &self.r, &count);
            return launch("reduce", &layout, &params, &call, self.blocks(), 256, l);
        }
        let group = self.group();
        let call =
            format!("reduce_rows<@_L, {}, {accumulated}, {mean}, {}>", reduction_name(self.op), group.args());
        let layout = layout(rows, n, group.width, &self.x, &self.r, &count);
        launch("reduce", &layout, &params, &call, group.blocks(rows), group.block, l)
    }
}

/// The number of rows that a block reduces together, if rows are adjacent in memory.
const COLUMNS_PER_BLOCK: usize = 32;
/// The smallest number of elements of a piece of a row that a block reduces.
const MIN_PIECE_ELEMENTS: usize = 4096;
/// The largest number of results of pieces.
const MAX_PARTIAL_RESULTS: usize = 1 << 16;

/// The workspace of a reduction in bytes.
pub(super) const REDUCE_WORKSPACE: usize = MAX_PARTIAL_RESULTS * 8;

pub(super) fn reduce(
    op: ReductionKind,
    inner: &[usize],
    x: &LocatedTensor,
    result: &LocatedTensor,
    l: &mut KernelLowering<'_>,
) -> Commands {
    kept_axes(x, inner, result)?;
    let rows: usize = result.shape.iter().product();
    let n: usize = inner.iter().map(|&a| x.shape[a]).product();
    if rows == 0 {
        return Ok(Vec::new());
    }
    if n == 0 && matches!(op, ReductionKind::Max | ReductionKind::Min) {
        return Err(empty(op));
    }
    let x = RowSplit::new(x, inner, l);
    let r = per_row_result(result, l);
    let passes = ReductionPass { op, x, r, rows, n, count: n }.into_passes(l)?;
    Ok(passes.into_iter().flat_map(|pass| pass.launch(l)).collect())
}

pub(super) fn arg_reduce(
    op: ArgOp,
    axis: usize,
    x: &LocatedTensor,
    result: &LocatedTensor,
    l: &mut KernelLowering<'_>,
) -> Commands {
    kept_axes(x, &[axis], result)?;
    let rows = result.shape.iter().product::<usize>();
    let n = x.shape[axis];
    if rows == 0 {
        return Ok(Vec::new());
    }
    if n == 0 {
        return Err(empty(op));
    }
    let xs = RowSplit::new(x, &[axis], l);
    let rs = per_row_result(result, l);
    let group = ThreadGroup::for_operands(rows, n, &[&xs]);
    let call = format!("arg_rows<@_L, {}, {}>", op == ArgOp::Max, group.args());
    let layout = layout(rows, n, group.width, &xs, &rs, "");
    let params = [("x", xs.at), ("r", rs.at)];
    Ok(launch("arg_reduce", &layout, &params, &call, group.blocks(rows), group.block, l))
}

pub(super) fn cumsum(
    axis: usize,
    x: &LocatedTensor,
    result: &LocatedTensor,
    l: &mut KernelLowering<'_>,
) -> Commands {
    let Some((rows, n)) = row_extents(&[axis], x, result)? else { return Ok(Vec::new()) };
    let xs = RowSplit::new(x, &[axis], l);
    let rs = RowSplit::new(result, &[axis], l);
    let threads = if ThreadGroup::for_operands(rows, n, &[&xs, &rs]).threads == 1 { 1 } else { 32 };
    // The error of a long sum of floats would be visible, so sums are in double.
    let sum = if result.dtype.is_float() { "double" } else { "i64" };
    let call = format!("cumsum_rows<@_L, {sum}, {threads}, 128>");
    let layout = layout(rows, n, 1, &xs, &rs, "");
    let params = [("x", xs.at), ("r", rs.at)];
    Ok(launch("cumsum", &layout, &params, &call, rows.div_ceil(128 / threads), 128, l))
}

/// The number of rows and their length; `None` if there are no elements.
fn row_extents(inner: &[usize], x: &LocatedTensor, result: &LocatedTensor) -> Result<Option<(usize, usize)>> {
    if x.shape != result.shape || inner.iter().any(|&a| a >= x.shape.len()) {
        return Err(mismatch_error("the result of an op on rows", &x.shape, &result.shape));
    }
    let n: usize = inner.iter().map(|&a| x.shape[a]).product();
    let total: usize = x.shape.iter().product();
    Ok((total > 0).then(|| (total / n, n)))
}
