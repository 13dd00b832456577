//! The selection of elements of short rows, and what is computed from such rows, as one kernel.
//!
//! A warp computes a row. The row of every value lies in shared memory, rounded to its dtype as if it were
//! stored, so the bits equal those of separate steps. Values that other steps read are stored as well.

use std::fmt::Write as _;

use symmc_ir::{DType, Op, ReductionKind};
use symmc_runtime::exec::{LocatedTensor, MemorySpace};

use super::loops::{LoopBody, op_value};
use super::lowering::{BoundOperation, KernelLowering, arity};
use super::rows::reduction_name;
use super::space::{broadcast, is_contiguous};
use super::text::{self, computed_type, stored_type};
use crate::codegen::command::GpuCommand;
use crate::device::launch::{DevicePtr, KernelLaunch, KernelParam};
use crate::error::Result;

/// The most warps of a block, and the shared memory of a block in bytes.
const MAX_WARPS: usize = 4;
const SHARED_BYTES: usize = 46 << 10;

/// Lowers steps to one kernel; `None` if their shapes do not allow it.
pub fn lower(steps: &[BoundOperation<'_>], l: &mut KernelLowering<'_>) -> Result<Option<Vec<GpuCommand>>> {
    let Some(&rows) = steps.first().and_then(|s| s.results.first()).and_then(|r| r.shape.first()) else {
        return Ok(None);
    };
    if rows == 0 {
        return Ok(Some(Vec::new()));
    }
    let mut kernel = SelectionKernel::default();
    for step in steps {
        arity(step.op, step.operands.len(), step.results.len())?;
        l.step = step.index;
        if step.results.iter().any(|r| r.shape.first() != Some(&rows) || !is_contiguous(r)) {
            return Ok(None);
        }
        if kernel.add(step, l)?.is_none() {
            return Ok(None);
        }
    }
    Ok(kernel.finish(rows, l))
}

/// A value of which shared memory has a row.
struct HeldRow<'a> {
    value: &'a LocatedTensor,
    /// The start of the row in bytes.
    at: usize,
    /// The number of elements of the row.
    count: usize,
}

#[derive(Default)]
struct SelectionKernel<'a> {
    held: Vec<HeldRow<'a>>,
    /// The bytes of the rows of all values.
    bytes: usize,
    loads: Vec<DevicePtr>,
    stores: Vec<DevicePtr>,
    assertions: Vec<u32>,
    body: String,
}

/// The number of elements of a row, all axes but the first.
fn row_count(value: &LocatedTensor) -> usize {
    value.shape.iter().skip(1).product()
}

/// Statements that compute the coordinates `c1`, … of the element `name` of a row of this shape.
fn coordinates(shape: &[usize], name: &str) -> String {
    let mut out = String::new();
    let mut below = 1;
    for (axis, &n) in shape.iter().enumerate().skip(1).rev() {
        let c = if axis == 1 { format!("{name} / {below}") } else { format!("{name} / {below} % {n}") };
        let _ = write!(out, "const int c{axis} = {c}; ");
        below *= n;
    }
    out
}

/// Statements that compute the coordinates of the element `k` of the line with the number `line`.
fn line_coordinates(shape: &[usize]) -> String {
    let Some((_, outer)) = shape.split_last() else { return String::new() };
    format!("{}const int c{} = k; ", coordinates(outer, "line"), shape.len() - 1)
}

impl<'a> SelectionKernel<'a> {
    /// Adds a step; `None` if it cannot be part of the kernel.
    fn add(&mut self, step: &BoundOperation<'a>, l: &mut KernelLowering<'_>) -> Result<Option<()>> {
        let (x, result) = (step.operands, &step.results[0]);
        let done = match step.op {
            Op::TopK { axis, largest } => self.topk(*axis, *largest, &x[0], step.results, l),
            Op::Softmax { axis, log } => self.softmax(*axis, *log, &x[0], result, l),
            Op::Reduce { op, axes, .. } => self.reduce(*op, axes, &x[0], result, l),
            Op::GatherElements { axis } => self.gather(*axis, x, result, l),
            Op::ScatterElements { axis, combine: None } => self.scatter(*axis, x, result, l),
            Op::Reshape | Op::Copy => self.copy(&x[0], result, l),
            op if op.fits_map() => return self.element_wise(step, l),
            _ => None,
        };
        if done.is_some() {
            self.body.push_str("    __syncwarp();\n");
        }
        Ok(done)
    }

    /// The element of an operand at the coordinates `c1`, … of a space of this shape, as an expression.
    fn element(&mut self, x: &LocatedTensor, shape: &[usize], l: &KernelLowering<'_>) -> Option<String> {
        self.element_at(x, shape, l, |axis| format!("c{axis}"))
    }

    fn element_at(
        &mut self,
        x: &LocatedTensor,
        shape: &[usize],
        l: &KernelLowering<'_>,
        coordinate: impl Fn(usize) -> String,
    ) -> Option<String> {
        let skipped = shape.len().checked_sub(x.shape.len())?;
        let fits = x.shape.iter().zip(&shape[skipped..]).all(|(a, b)| a == b || *a == 1);
        let strides = broadcast(shape, &x.shape, &x.strides);
        let kind = stored_type(x.dtype);
        let mut terms: Vec<String> = Vec::new();
        for (axis, stride) in strides.iter().enumerate().skip(1).filter(|(_, stride)| **stride != 0) {
            terms.push(format!("{} * {stride}", coordinate(axis)));
        }
        let held_row = self.held.iter().find(|held_row| {
            let bytes = held_row.value.shape.iter().product::<usize>() * held_row.value.dtype.size();
            held_row.value.space == x.space
                && held_row.value.by_rank == x.by_rank
                && (held_row.value.offset..held_row.value.offset + bytes).contains(&x.offset)
        });
        let base = if let Some(held_row) = held_row {
            let start = x.offset - held_row.value.offset;
            let is_row =
                skipped == 0 && held_row.value.dtype == x.dtype && start < held_row.count * x.dtype.size();
            let has_rows =
                x.shape.first() == Some(&1) || x.strides.first() == Some(&(held_row.count as isize));
            if !is_row || !has_rows {
                return None;
            }
            terms.push((start / x.dtype.size()).to_string());
            format!("((const {kind} *)(memory + {}))", held_row.at)
        } else {
            let row = strides.first().copied().filter(|stride| *stride != 0);
            terms.extend(row.map(|stride| format!("(i64)row * {stride}")));
            terms.push("0".into());
            format!("((const {kind} *)p{})", self.load_number(l.address_of(x)))
        };
        fits.then(|| format!("{base}[{}]", terms.join(" + ")))
    }

    fn load_number(&mut self, at: DevicePtr) -> usize {
        self.loads.iter().position(|address| *address == at).unwrap_or_else(|| {
            self.loads.push(at);
            self.loads.len() - 1
        })
    }

    /// Gives a result a row. Returns a function from a place in that row and an expression to the statement that
    /// stores it.
    fn hold(
        &mut self,
        result: &'a LocatedTensor,
        l: &KernelLowering<'_>,
    ) -> impl Fn(&str, &str) -> String + use<> {
        let kind = stored_type(result.dtype);
        let count = row_count(result);
        let offset = self.bytes;
        self.held.push(HeldRow { value: result, at: offset, count });
        self.bytes += (count * result.dtype.size()).next_multiple_of(16);
        let stored = (result.space != MemorySpace::Inner).then(|| {
            self.stores.push(l.address_of(result));
            self.stores.len() - 1
        });
        move |position: &str, expression: &str| {
            let shared = format!("(({kind} *)(memory + {offset}))[{position}] = y;");
            let global = stored.map(|k| format!(" (({kind} *)q{k})[(i64)row * {count} + {position}] = y;"));
            format!("{{ const {kind} y = {expression}; {shared}{} }}", global.unwrap_or_default())
        }
    }

    fn element_wise(&mut self, step: &BoundOperation<'a>, l: &mut KernelLowering<'_>) -> Result<Option<()>> {
        let result = &step.results[0];
        let mut body = LoopBody::over_shape(&result.shape);
        let mut values = Vec::with_capacity(step.operands.len());
        for x in step.operands {
            let Some(element) = self.element(x, &result.shape, l) else { return Ok(None) };
            values.push((body.compute(stored_type(x.dtype), element, []), x.dtype));
        }
        let value = op_value(&mut body, step.op, &values, result.dtype, l)?;
        let Some(statements) = body.computed_statements().filter(|_| !body.has_divisor()) else {
            return Ok(None);
        };
        let _ = writeln!(
            self.body,
            "    for (int e = lane; e < {}; e += 32) {{\n        {}",
            row_count(result),
            coordinates(&result.shape, "e")
        );
        for statement in statements {
            let _ = writeln!(self.body, "        {statement}");
        }
        let hold = self.hold(result, l);
        let _ =
            writeln!(self.body, "        {}\n    }}\n    __syncwarp();", hold("e", &LoopBody::name(value)));
        Ok(Some(()))
    }

    /// The lines of a value along its last axis: their number and their length.
    fn lines(x: &LocatedTensor, axis: usize) -> Option<[usize; 2]> {
        let &n = x.shape.last().filter(|_| axis > 0 && axis + 1 == x.shape.len())?;
        (n > 0).then(|| [row_count(x) / n, n])
    }

    /// A function of a line and of `k`, which gives an element of it.
    fn line_function(&mut self, x: &LocatedTensor, wrap: &str, l: &KernelLowering<'_>) -> Option<String> {
        let element = self.element(x, &x.shape, l)?;
        let element = wrap.replace('$', &element);
        Some(format!("[&](int line, int k) {{ {}return {element}; }}", line_coordinates(&x.shape)))
    }

    fn topk(
        &mut self,
        axis: usize,
        largest: bool,
        x: &LocatedTensor,
        results: &'a [LocatedTensor],
        l: &KernelLowering<'_>,
    ) -> Option<()> {
        let [lines, n] = Self::lines(x, axis)?;
        let [values, positions] = results else { return None };
        let &count = values.shape.last()?;
        let fits = values.shape == positions.shape && count <= n && row_count(values) == lines * count;
        if !fits || positions.dtype != DType::I64 || values.dtype != x.dtype {
            return None;
        }
        let kind = stored_type(x.dtype);
        let order = if largest { "~" } else { "" };
        let key =
            self.line_function(x, &format!("(Key<{kind}>::K){order}fit_key<{kind}>(key_of(get($)))"), l)?;
        let element = self.element(x, &x.shape, l)?;
        let coordinates = line_coordinates(&x.shape);
        let hold_value = self.hold(values, l)(&format!("line * {count} + j"), &element);
        let hold_position = self.hold(positions, l)(&format!("line * {count} + j"), "(i64)k");
        let _ = writeln!(
            self.body,
            "    select_lines<{n}, {lines}, {count}>(lane, {key}, [&](int line, int j, int k) {{ {coordinates}{hold_value} {hold_position} }});"
        );
        Some(())
    }

    fn softmax(
        &mut self,
        axis: usize,
        log: bool,
        x: &LocatedTensor,
        result: &'a LocatedTensor,
        l: &KernelLowering<'_>,
    ) -> Option<()> {
        let [lines, n] = Self::lines(x, axis)?;
        let element = self.line_function(x, "get($)", l)?;
        let kind = computed_type(x.dtype);
        let stored_value = format!("Put<{}>::of(y0)", stored_type(result.dtype));
        let hold = self.hold(result, l)(&format!("line * {n} + k"), &stored_value);
        let _ = writeln!(
            self.body,
            "    softmax_lines<{log}, {n}, {lines}, {kind}>(lane, {element}, [&](int line, int k, {kind} y0) {{ {hold} }});"
        );
        Some(())
    }

    fn reduce(
        &mut self,
        op: ReductionKind,
        axes: &[usize],
        x: &LocatedTensor,
        result: &'a LocatedTensor,
        l: &KernelLowering<'_>,
    ) -> Option<()> {
        let [lines, n] = Self::lines(x, *axes.first().filter(|_| axes.len() == 1)?)?;
        let element = self.line_function(x, "get($)", l)?;
        let name = reduction_name(op);
        // Sums of floats may leave their range while the final value is within it.
        let kind = if name == "Sum" && x.dtype.is_float() { "double" } else { computed_type(x.dtype) };
        let mean = if op == ReductionKind::Mean { format!(" / {n}") } else { String::new() };
        let stored_value = format!("Put<{}>::of(a{mean})", stored_type(result.dtype));
        let hold = self.hold(result, l)("line", &stored_value);
        let _ = writeln!(
            self.body,
            "    reduce_lines<{name}, {n}, {lines}, {kind}>(lane, {element}, [&](int line, {kind} a) {{ {hold} }});"
        );
        Some(())
    }

    /// Adds a loop of a warp over the elements `e` of a row of `result`, with their coordinates in `shape`.
    fn add_element_loop(&mut self, result: &LocatedTensor, shape: &[usize], body: &str) {
        let _ = writeln!(
            self.body,
            "    for (int e = lane; e < {}; e += 32) {{ {}{body} }}",
            row_count(result),
            coordinates(shape, "e")
        );
    }

    /// A position on an axis, which is reported if it lies outside.
    fn position(&mut self, index: &str, axis: usize, extent: usize, l: &mut KernelLowering<'_>) -> String {
        self.assertions.push(l.index_assertion(axis, extent));
        format!(
            "i64 at = get({index}); if (position(at, {extent}) < 0) {{ report(status, assertion{}, at); at = 0; }}",
            self.assertions.len() - 1
        )
    }

    fn gather(
        &mut self,
        axis: usize,
        operands: &[LocatedTensor],
        result: &'a LocatedTensor,
        l: &mut KernelLowering<'_>,
    ) -> Option<()> {
        let [x, index] = operands else { return None };
        Self::lines(x, axis)?;
        let index = self.element(index, &result.shape, l)?;
        let mut space = result.shape.to_vec();
        space[axis] = x.shape[axis];
        let element =
            self.element_at(x, &space, l, |a| if a == axis { "at".into() } else { format!("c{a}") })?;
        let position = self.position(&index, axis, x.shape[axis], l);
        let hold = self.hold(result, l)("e", &element);
        self.add_element_loop(result, &result.shape, &format!("{position} {hold}"));
        Some(())
    }

    fn scatter(
        &mut self,
        axis: usize,
        operands: &[LocatedTensor],
        result: &'a LocatedTensor,
        l: &mut KernelLowering<'_>,
    ) -> Option<()> {
        let [x, index, source] = operands else { return None };
        if axis != 1 || result.shape.len() != 2 || result.dtype != x.dtype || source.dtype != x.dtype {
            return None;
        }
        let old = self.element(x, &result.shape, l)?;
        let position = self.element(index, &index.shape, l)?;
        let new = self.element(source, &index.shape, l)?;
        let position = self.position(&position, axis, x.shape[axis], l);
        // Where positions are equal, the last element is stored.
        let find = format!(
            "for (int k = 0; k < {}; k++) {{ const int c1 = k; {position} if (at == e) last = k; }}",
            row_count(index)
        );
        let hold = self.hold(result, l);
        let kind = stored_type(result.dtype);
        let _ = writeln!(
            self.body,
            "    for (int e = lane; e < {}; e += 32) {{\n        int last = -1;\n        {find}\n        {kind} z;\n        \
             if (last < 0) {{ const int c1 = e; z = {old}; }} else {{ const int c1 = last; z = {new}; }}\n        {}\n    }}",
            row_count(result),
            hold("e", "z")
        );
        Some(())
    }

    fn copy(&mut self, x: &LocatedTensor, result: &'a LocatedTensor, l: &KernelLowering<'_>) -> Option<()> {
        if row_count(x) != row_count(result) || x.shape.first() != result.shape.first() {
            return None;
        }
        let element = self.element(x, &x.shape, l)?;
        let hold = self.hold(result, l)("e", &element);
        self.add_element_loop(result, &x.shape, &hold);
        Some(())
    }

    fn finish(self, rows: usize, l: &mut KernelLowering<'_>) -> Option<Vec<GpuCommand>> {
        let warps = (SHARED_BYTES / self.bytes.max(1)).min(MAX_WARPS);
        // Few rows are distributed over as many multiprocessors as there are.
        let warps = warps.min(rows.div_ceil(l.machine.multiprocessors as usize).max(1));
        if warps == 0 || rows >= 1 << 31 {
            return None;
        }
        let mut declared: Vec<String> = (0..self.loads.len()).map(|i| format!("const void *p{i}")).collect();
        declared.extend((0..self.stores.len()).map(|k| format!("void *q{k}")));
        let mut params: Vec<KernelParam> =
            self.loads.iter().chain(&self.stores).map(|&address| KernelParam::from(address)).collect();
        if !self.assertions.is_empty() {
            declared.push("void *status".into());
            declared.extend((0..self.assertions.len()).map(|i| format!("unsigned assertion{i}")));
            params.push(l.machine.status.into());
            params.extend(self.assertions.iter().map(|&a| KernelParam::from(a)));
        }
        let text = format!(
            "extern \"C\" __global__ void __launch_bounds__({threads}) @({}) {{\n    symmc_enter();\n    using namespace sc;\n    \
             __shared__ uint4 all[{warps}][{}];\n    u8 *memory = (u8 *)all[threadIdx.x / 32];\n    const u32 lane = threadIdx.x % 32;\n    \
             const u32 row = blockIdx.x * {warps}u + threadIdx.x / 32;\n    if (row >= {rows}u) return;\n{}}}\n",
            declared.join(", "),
            self.bytes.max(16) / 16,
            self.body,
            threads = warps * 32,
        );
        l.preludes();
        l.source.prelude(text::ROWS_SOURCE);
        l.source.prelude(text::SORT_SOURCE);
        l.source.prelude(text::SELECTION_SOURCE);
        let entry = l.source.function("selection", text);
        Some(vec![GpuCommand::Kernel(KernelLaunch::flat(entry, rows.div_ceil(warps), warps * 32, params))])
    }
}
