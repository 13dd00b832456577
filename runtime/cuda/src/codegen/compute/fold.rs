//! The reduction over the axis before the last of what is computed element by element, where rows may be taken
//! at positions that are data, as one kernel.
//!
//! A thread computes a few neighbours of the result. It passes over the reduced axis, and reads the rows that
//! it needs at its own columns. Values are rounded to their dtypes as if they were stored, and terms are
//! combined in ascending order.

use std::fmt::Write as _;

use smallvec::SmallVec;
use symmc_ir::{Op, ReductionKind};
use symmc_runtime::exec::LocatedTensor;

use super::element;
use super::fused_map::{evaluate, reads_same_elements, store, take};
use super::lowering::{BoundOperation, KernelLowering, arity};
use super::map::{MapKernel, MapValue};
use super::rows::reduction_name;
use super::text::{self, computed_type, stored_type};
use crate::codegen::command::GpuCommand;
use crate::device::launch::{KernelLaunch, KernelParam};
use crate::error::Result;

const THREADS: usize = 256;
/// The most terms whose loads are all issued before the first is used.
const UNROLLED_TERMS: usize = 8;

/// Lowers steps to one kernel; `None` if their shapes do not allow it.
pub fn lower(steps: &[BoundOperation<'_>], l: &mut KernelLowering<'_>) -> Result<Option<Vec<GpuCommand>>> {
    let reduction = steps.iter().find(|step| matches!(step.op, Op::Reduce { .. }));
    let Some(BoundOperation { op: Op::Reduce { op, axes, .. }, operands: [x], results: [y], .. }) = reduction
    else {
        return Ok(None);
    };
    let Some(axis) = x.shape.len().checked_sub(2).filter(|&axis| axes[..] == [axis]) else { return Ok(None) };
    let mut before = MapKernel::over_shape(&x.shape);
    let mut after = MapKernel::over_shape(&y.shape);
    let total = after.compute(stored_type(y.dtype), result_expression(*op, y, x.shape[axis]));
    let mut terms: Vec<(&LocatedTensor, MapValue)> = Vec::new();
    let mut results: Vec<(&LocatedTensor, MapValue)> = vec![(y, total)];
    for step in steps {
        arity(step.op, step.operands.len(), step.results.len())?;
        let shape = &step.results[0].shape[..];
        match step.op {
            Op::Reduce { .. } => {}
            Op::Take { axis: 0 } if *shape == *x.shape => {
                l.step = step.index;
                let Some(value) = take(&mut before, step, l) else { return Ok(None) };
                terms.push((&step.results[0], value));
            }
            op if op.fits_map() && *shape == *x.shape => evaluate(&mut before, step, &mut terms, shape, l)?,
            op if op.fits_map() && *shape == *y.shape => evaluate(&mut after, step, &mut results, shape, l)?,
            _ => return Ok(None),
        }
    }
    store(&mut after, &results, &y.shape, l);
    if after.has_assertions() || after.len() == 0 || x.shape[axis] == 0 {
        return Ok((after.len() == 0).then(Vec::new));
    }
    let matching = terms.iter().rev().find(|(r, _)| reads_same_elements(r, x, &x.shape));
    let term = match matching {
        Some((_, value)) => *value,
        None => element::load(&mut before, x, &x.shape, l)?,
    };
    let fold = FoldKernel {
        op: *op,
        axis,
        shape: &x.shape,
        before,
        term,
        after,
        accumulator: computed_type(x.dtype),
    };
    Ok(Some(vec![fold.finish(l)]))
}

/// The stored result of the accumulator `a[j]`.
fn result_expression(op: ReductionKind, result: &LocatedTensor, terms: usize) -> String {
    let mean = if op == ReductionKind::Mean { format!(" / {terms}") } else { String::new() };
    format!("Put<{}>::of(a[j]{mean})", stored_type(result.dtype))
}

struct FoldKernel<'a> {
    op: ReductionKind,
    /// The reduced axis of `shape`.
    axis: usize,
    shape: &'a [usize],
    before: MapKernel,
    /// The value of `before` that is reduced.
    term: MapValue,
    after: MapKernel,
    accumulator: &'static str,
}

impl FoldKernel<'_> {
    fn finish(self, l: &mut KernelLowering<'_>) -> GpuCommand {
        let columns = self.shape[self.axis + 1];
        let mut width = self.before.row_access_width().min(self.after.row_access_width());
        // Few threads with wide accesses would leave multiprocessors idle.
        let wanted = l.machine.multiprocessors as usize * 64;
        while width > 2 && self.after.len() / width < wanted {
            width /= 2;
        }
        let vectors = self.after.len() / width;
        let text = self.text(width, vectors, columns / width);
        l.preludes();
        l.source.prelude(text::ROWS_SOURCE);
        let entry = l.source.function("fold", text);
        let mut params: SmallVec<[KernelParam; 8]> =
            self.before.addresses().chain(self.after.addresses()).collect();
        if self.before.has_assertions() {
            params.push(l.machine.status.into());
            params.extend(self.before.assertions().map(KernelParam::from));
        }
        GpuCommand::Kernel(KernelLaunch::flat(entry, vectors.div_ceil(THREADS), THREADS, params.into_vec()))
    }

    fn text(&self, width: usize, vectors: usize, columns: usize) -> String {
        let renamed: Vec<String> = self.after.declared().map(|p| p.replace('*', "*after_")).collect();
        let mut params: Vec<String> = self.before.declared().chain(renamed).collect();
        if self.before.has_assertions() {
            params.push("void *status".into());
            params.extend((0..self.before.assertions().count()).map(|i| format!("unsigned assertion{i}")));
        }
        let offset =
            if self.before.max_offset().max(self.after.max_offset()) < 1 << 31 { "int" } else { "i64" };
        let mut out = format!(
            "extern \"C\" __global__ void __launch_bounds__({THREADS}) @({}) {{\n    symmc_enter();\n    using namespace sc;\n    \
             typedef {offset} O;\n    u64 t = (u64)blockIdx.x * {THREADS}u + threadIdx.x;\n    if (t >= {vectors}ull) return;\n",
            params.join(", ")
        );
        let last_axis = self.axis + 1;
        let _ = writeln!(out, "    const O at{last_axis} = (O)(t % {columns}u) * {width}; t /= {columns}u;");
        for axis in (0..self.axis).rev() {
            let n = self.shape[axis];
            let _ = writeln!(out, "    const O at{axis} = (O)(t % {n}u); t /= {n}u;");
        }
        self.emit_pass(&mut out, width, self.accumulator);
        // A sum of floats may leave their range while its final value is within the range.
        if reduction_name(self.op) == "Sum" && self.accumulator == "float" {
            let _ = writeln!(
                out,
                "    bool again = false;\n#pragma unroll\n    for (int j = 0; j < {width}; j++) again = again || a[j] - a[j] != 0;\n    \
                 if (again) {{"
            );
            self.emit_pass(&mut out, width, "double");
            self.emit_results(&mut out, width);
            out.push_str("    return;\n    }\n");
        }
        self.emit_results(&mut out, width);
        out.push_str("}\n");
        out
    }

    /// Emits the combination of the terms into accumulators `a` of a type.
    fn emit_pass(&self, out: &mut String, width: usize, kind: &str) {
        let terms = self.shape[self.axis];
        let name = reduction_name(self.op);
        let unroll = if terms <= UNROLLED_TERMS { terms } else { UNROLLED_TERMS / 2 };
        let _ = writeln!(
            out,
            "    {kind} a[{width}];\n#pragma unroll\n    for (int j = 0; j < {width}; j++) a[j] = {name}::start<{kind}>();\n\
             #pragma unroll {unroll}\n    for (int term = 0; term < {terms}; term++) {{"
        );
        for axis in 0..self.shape.len() {
            let coordinate = if axis == self.axis { "term".to_string() } else { format!("at{axis}") };
            let _ = writeln!(out, "        const O c{axis} = {coordinate};");
        }
        let term = MapKernel::name(self.term);
        self.before.emit_vector(out, width, &format!("join_onto<{name}>(a[j], get({term}));"));
        out.push_str("    }\n");
    }

    /// Emits the element-wise nodes of the result, and the stores.
    fn emit_results(&self, out: &mut String, width: usize) {
        out.push_str("    {\n");
        for declared in self.after.declared() {
            let name = declared.rsplit('*').next().unwrap_or_default();
            let _ = writeln!(out, "        {declared} = after_{name};");
        }
        // A reduction that keeps its axis has a coordinate more.
        let keeps = self.after.rank() == self.shape.len();
        let axes = (0..self.shape.len()).filter(|&axis| keeps || axis != self.axis);
        for (position, axis) in axes.enumerate() {
            let coordinate = if axis == self.axis { "0".to_string() } else { format!("at{axis}") };
            let _ = writeln!(out, "        const O c{position} = {coordinate};");
        }
        self.after.emit_vector(out, width, "");
        out.push_str("    }\n");
    }
}
