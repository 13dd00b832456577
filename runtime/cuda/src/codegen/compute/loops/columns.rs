//! Loops that reduce the axis before the last.
//!
//! A thread computes a few neighbours of the results. It passes over the reduced axis, and reads the rows that it needs
//! at its own columns. Terms are combined in ascending order.

use std::fmt::Write as _;

use super::super::lowering::KernelLowering;
use super::super::text;
use super::body::{Definition, LoopValue};
use super::build::LoopBuilder;
use super::emit::{Access, ValueUse, function_text};
use super::reduction::{Pass, Reduction, ReductionOp};
use crate::codegen::command::GpuCommand;
use crate::device::launch::KernelLaunch;

const THREADS_PER_BLOCK: usize = 256;
/// The most terms whose loads are all issued before the first is used.
const UNROLLED_TERMS: usize = 8;

/// The kernel; `None` if the loop has another form.
pub(super) fn lower(
    nest: &LoopBuilder<'_>,
    axis: usize,
    l: &mut KernelLowering<'_>,
) -> Option<Vec<GpuCommand>> {
    let positions: usize =
        nest.shape.iter().enumerate().filter(|(a, _)| *a != axis).map(|(_, n)| n).product();
    let terms_of_data = nest.reductions.0.iter().all(|r| matches!(r.op, ReductionOp::Elements(_)));
    let stores_results = nest.body.stores.iter().all(|store| store.is_reduced || nest.shape[axis] == 1);
    let before = nest.values_before(nest.reductions.0.iter().map(|r| r.operand));
    let mut used = nest.body.values.iter().zip(&before).filter(|(_, usage)| **usage != ValueUse::Absent);
    let is_one_pass = used.all(|(definition, _)| !matches!(definition, Definition::Reduced { .. }));
    if !terms_of_data || !stores_results || !is_one_pass || nest.body.has_divisor() {
        return None;
    }
    if positions == 0 {
        return Some(Vec::new());
    }
    if nest.shape[axis] == 0 {
        return None;
    }
    let columns = nest.shape[axis + 1];
    let mut width = nest.body.row_access_width();
    // Few threads with wide accesses would leave multiprocessors idle.
    let wanted = l.machine.multiprocessors as usize * 64;
    while width > 2 && positions / width < wanted {
        width /= 2;
    }
    let kernel = ColumnKernel { nest, axis, width, before };
    let vectors = positions / width;
    let text = kernel.text(vectors, columns / width);
    l.preludes();
    l.source.prelude(text::ROWS_SOURCE);
    let entry = l.source.function("columns", text);
    let params = nest.body.parameter_values(l);
    Some(vec![GpuCommand::Kernel(KernelLaunch::flat(
        entry,
        vectors.div_ceil(THREADS_PER_BLOCK),
        THREADS_PER_BLOCK,
        params,
    ))])
}

impl LoopBuilder<'_> {
    /// The values from which these are computed, up to the results of reductions.
    fn values_before(&self, targets: impl Iterator<Item = LoopValue>) -> Vec<ValueUse> {
        let mut out = vec![ValueUse::Absent; self.body.values.len()];
        let mut open: Vec<LoopValue> = targets.collect();
        while let Some(LoopValue(value)) = open.pop() {
            if std::mem::replace(&mut out[value], ValueUse::Computed) == ValueUse::Absent {
                match &self.body.values[value] {
                    Definition::Load(load) => open.extend(load.terms.iter().map(|term| term.index)),
                    Definition::Computed { operands, .. } => open.extend(operands),
                    Definition::Reduced { .. } => {}
                }
            }
        }
        out
    }
}

struct ColumnKernel<'k> {
    nest: &'k LoopBuilder<'k>,
    axis: usize,
    width: usize,
    /// The uses of values by the operands of the reductions.
    before: Vec<ValueUse>,
}

impl ColumnKernel<'_> {
    fn reductions(&self) -> impl Iterator<Item = (usize, &Reduction)> {
        self.nest.reductions.0.iter().enumerate()
    }

    fn text(&self, vectors: usize, columns: usize) -> String {
        let (nest, width) = (self.nest, self.width);
        let last_axis = self.axis + 1;
        let mut out = format!(
            "    typedef {} O;\n    u64 t = (u64)blockIdx.x * {THREADS_PER_BLOCK}u + threadIdx.x;\n    if (t >= {vectors}ull) return;\n",
            nest.body.offset_type()
        );
        let _ = writeln!(out, "    const O at{last_axis} = (O)(t % {columns}u) * {width}; t /= {columns}u;");
        for axis in (0..self.axis).rev() {
            let n = nest.shape[axis];
            let _ = writeln!(out, "    const O at{axis} = (O)(t % {n}u); t /= {n}u;");
        }
        self.emit_pass(&mut out, Pass::First);
        let repeated = self.reductions().filter_map(|(k, r)| r.repeat_condition(&format!("a{k}[j]")));
        let repeated: Vec<String> = repeated.collect();
        if !repeated.is_empty() {
            let _ = writeln!(
                out,
                "    bool again = false;\n#pragma unroll\n    for (int j = 0; j < {width}; j++) again = again || {};\n    \
                 if (again) {{",
                repeated.join(" || ")
            );
            self.emit_pass(&mut out, Pass::Again);
            self.emit_results(&mut out, Pass::Again);
            out.push_str("    return;\n    }\n");
        }
        self.emit_results(&mut out, Pass::First);
        function_text(THREADS_PER_BLOCK, &nest.body.parameters(), &out)
    }

    /// Emits the combination of the terms into the accumulators `a0`, `a1`, ….
    fn emit_pass(&self, out: &mut String, pass: Pass) {
        let (nest, width) = (self.nest, self.width);
        for (k, r) in self.reductions() {
            let (kind, name) = (r.accumulator_of(pass), r.name());
            let _ = writeln!(
                out,
                "    {kind} a{k}[{width}];\n#pragma unroll\n    for (int j = 0; j < {width}; j++) a{k}[j] = {name}::start<{kind}>();"
            );
        }
        let terms = nest.shape[self.axis];
        let unroll = if terms <= UNROLLED_TERMS { terms } else { UNROLLED_TERMS / 2 };
        let _ = writeln!(out, "#pragma unroll {unroll}\n    for (int term = 0; term < {terms}; term++) {{");
        self.emit_coordinates(out, "term");
        let joins: String = self.reductions().map(|(k, r)| r.join(&format!("a{k}[j]"))).collect();
        let access = Access { width, uses: &self.before, stores: &[], reduced: &[], each: &joins };
        nest.body.emit(out, &access);
        out.push_str("    }\n");
    }

    /// Emits the values that are computed from the results of the reductions, and the stores.
    fn emit_results(&self, out: &mut String, pass: Pass) {
        let (nest, n) = (self.nest, self.nest.shape[self.axis]);
        out.push_str("    {\n");
        self.emit_coordinates(out, "0");
        let reduced: Vec<(LoopValue, String)> = self
            .reductions()
            .map(|(k, r)| (r.result, r.reduced_elements(&format!("a{k}[j]"), n, pass)))
            .collect();
        let uses = nest.values_before(nest.body.stores.iter().map(|store| store.value));
        let stores: Vec<usize> = (0..nest.body.stores.len()).collect();
        let access = Access { width: self.width, uses: &uses, stores: &stores, reduced: &reduced, each: "" };
        nest.body.emit(out, &access);
        out.push_str("    }\n");
    }

    fn emit_coordinates(&self, out: &mut String, reduced: &str) {
        for axis in 0..self.nest.shape.len() {
            let coordinate = if axis == self.axis { reduced.to_string() } else { format!("at{axis}") };
            let _ = writeln!(out, "        const O c{axis} = {coordinate};");
        }
    }
}
