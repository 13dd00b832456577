//! Reductions and RMS norms of rows, with the element-wise steps before, between and after them, as one kernel.
//!
//! The threads of a group (`ThreadGroup`) compute a row. They pass over it in *phases*: one per level of
//! reductions, where later levels need the results of earlier ones, and a last one that stores. Each phase
//! recomputes the elements that it needs from operands that threads keep in registers. If rows are too long
//! for this, operands are read again from the cache. Values that are one number per row are computed once, by
//! all threads of the group.
//!
//! Values are rounded to their dtypes as if they were stored, so that element-wise steps give the same bits
//! as separate steps. Memory is overwritten only after all threads of the group have read it. Results with
//! the row's shape are stored in the last phase, each element by the thread that reads it. Results with one
//! number per row are stored after that; such operands are loaded before the first reduction synchronizes.

use std::fmt::Write as _;

use smallvec::SmallVec;
use symmc_ir::dispatch::reduces_rows;
use symmc_ir::{DType, Op, ReductionKind};
use symmc_runtime::exec::{LocatedTensor, MemorySpace};

use super::element;
use super::lowering::{BoundOperation, KernelLowering, arity};
use super::map::{MapKernel, MapStatement, MapValue};
use super::rows::{ThreadGroup, reduction_name};
use super::space::{Strides, broadcast};
use super::text::{self, computed_type, float_literal, stored_type};
use crate::codegen::command::GpuCommand;
use crate::device::launch::{DevicePtr, KernelLaunch, KernelParam};
use crate::error::Result;

/// The largest size of operands that a thread keeps in registers, in blocks of up to 512 threads and in
/// larger ones, in bytes.
const KEPT_BYTES: [usize; 2] = [192, 96];

/// Lowers steps to one kernel; `None` if their shapes do not allow it.
pub fn lower(steps: &[BoundOperation<'_>], l: &mut KernelLowering<'_>) -> Result<Option<Vec<GpuCommand>>> {
    let reduction = steps.iter().find(|step| reduces_rows(step.op));
    let Some(shape) = reduction.and_then(|s| s.operands.first()).map(|x| &x.shape[..]) else {
        return Ok(None);
    };
    let Some((_, leading)) = shape.split_last() else { return Ok(None) };
    let rows: usize = leading.iter().product();
    if rows == 0 {
        return Ok(Some(Vec::new()));
    }
    let mut kernel = RowKernel::over_shape(shape);
    for step in steps {
        if !kernel.add(step, l)? {
            return Ok(None);
        }
    }
    kernel.store_results(l);
    if kernel.map.has_assertions() {
        return Ok(None);
    }
    Ok(Some(vec![kernel.finish(rows, l)]))
}

struct RowValue {
    /// The values that it is computed from.
    operands: Vec<usize>,
    /// The number of consecutive reductions before it.
    level: usize,
    is_per_row: bool,
}

struct RowReduction {
    op: RowOp,
    operand: usize,
    result: usize,
    /// The type of the accumulator.
    accumulator: &'static str,
    /// The type of the stored result.
    kind: &'static str,
}

/// The number that a reduction computes for each row.
enum RowOp {
    Elements(ReductionKind),
    /// The factor of an RMS norm. Each element is first multiplied by the value `unit`, which is 1 unless the
    /// mean of the squares is not a normal number of the type.
    NormFactor {
        eps: String,
        unit: usize,
    },
}

impl RowReduction {
    /// Whether it sets this value.
    fn sets(&self, value: usize) -> bool {
        self.result == value || matches!(self.op, RowOp::NormFactor { unit, .. } if unit == value)
    }

    fn name(&self) -> &'static str {
        match self.op {
            RowOp::Elements(op) => reduction_name(op),
            RowOp::NormFactor { .. } => "Sum",
        }
    }

    fn is_float_sum(&self) -> bool {
        let of_elements = matches!(self.op, RowOp::Elements(_));
        of_elements && self.name() == "Sum" && self.accumulator == "float"
    }

    /// Combines element `x` of the row into accumulator `k`.
    fn join(&self, k: usize, x: &str) -> String {
        match &self.op {
            RowOp::Elements(_) => format!("join_onto<{}>(a{k}, {x});", self.name()),
            RowOp::NormFactor { unit, .. } => format!("a{k} += {x} * v{unit} * ({x} * v{unit});"),
        }
    }

    /// The condition under which the row is read again after the first pass; `None` if it never is.
    fn repeat_condition(&self, k: usize) -> Option<String> {
        match &self.op {
            RowOp::NormFactor { unit, .. } => Some(format!("v{unit} != 1")),
            // A sum of floats may leave their range while its final value is within the range.
            RowOp::Elements(_) => self.is_float_sum().then(|| format!("a{k} - a{k} != 0")),
        }
    }

    /// Sets the result from accumulator `k` over `n` elements.
    fn set_result(&self, k: usize, n: usize, pass: RowPass) -> String {
        let result = self.result;
        match (&self.op, pass) {
            (RowOp::Elements(op), pass) => {
                let accumulator = self.accumulator_of(pass);
                let mean =
                    if *op == ReductionKind::Mean { format!(" / ({accumulator}){n}") } else { String::new() };
                format!("v{result} = Put<{}>::of(a{k}{mean});", self.kind)
            }
            (RowOp::NormFactor { eps, unit }, RowPass::First) => format!(
                "a{k} = a{k} / ({kind}){n} + {eps}; v{unit} = unit_for(a{k}); v{result} = 1 / u_sqrt(a{k});",
                kind = self.kind
            ),
            (RowOp::NormFactor { eps, unit }, RowPass::Again) => format!(
                "v{result} = 1 / u_sqrt(a{k} / ({kind}){n} + eps_for({eps}, v{unit}));",
                kind = self.kind
            ),
        }
    }

    fn accumulator_of(&self, pass: RowPass) -> &'static str {
        if pass == RowPass::Again && self.is_float_sum() { "double" } else { self.accumulator }
    }
}

/// A pass over a row for its reductions.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RowPass {
    First,
    /// For results that the first pass could not compute in the type of its accumulator.
    Again,
}

struct RowStore {
    at: DevicePtr,
    strides: Strides,
    value: usize,
}

struct RowKernel<'a> {
    map: MapKernel,
    shape: &'a [usize],
    values: Vec<RowValue>,
    reductions: Vec<RowReduction>,
    row_stores: Vec<RowStore>,
    /// The results so far, each with its value.
    known: Vec<(&'a LocatedTensor, MapValue)>,
}

impl<'a> RowKernel<'a> {
    fn over_shape(shape: &'a [usize]) -> Self {
        let (values, reductions, row_stores, known) = Default::default();
        RowKernel { map: MapKernel::over_shape(shape), shape, values, reductions, row_stores, known }
    }

    /// Adds a step; returns whether it can be part of the kernel.
    fn add(&mut self, step: &BoundOperation<'a>, l: &mut KernelLowering<'_>) -> Result<bool> {
        let BoundOperation { index, op, operands, results } = *step;
        arity(op, operands.len(), results.len())?;
        l.step = index;
        let mut values: SmallVec<[(MapValue, DType); 3]> = SmallVec::new();
        for x in operands {
            values.push((self.operand(x, l)?, x.dtype));
        }
        let operands: Vec<usize> = values.iter().map(|(v, _)| MapKernel::index(*v)).collect();
        let result = &results[0];
        let value = match op {
            Op::Reduce { op, axes, keep: true } => {
                if axes[..] != [self.shape.len() - 1] || step.operands[0].shape[..] != *self.shape {
                    return Ok(false);
                }
                self.reduce(*op, operands[0], step.operands[0].dtype, result.dtype)
            }
            Op::RmsNorm { axes: 1, eps, round_first } => {
                if step.operands[0].shape[..] != *self.shape || !self.has_full_shape(result) {
                    return Ok(false);
                }
                self.rms_norm(&operands, step.operands[0].dtype, eps.0, *round_first)
            }
            op if op.fits_map() && self.has_row_shape(result) => {
                let value = element::op_value(&mut self.map, op, &values, result.dtype, l)?;
                self.describe(operands);
                value
            }
            _ => return Ok(false),
        };
        self.known.push((result, value));
        Ok(true)
    }

    /// Whether a result has one number per row, or is inner to the kernel with the shape of one row.
    fn has_row_shape(&self, result: &LocatedTensor) -> bool {
        let is_inner_row = result.space == MemorySpace::Inner
            && result.shape.iter().rev().skip(1).all(|n| *n == 1)
            && result.shape.last() == self.shape.last();
        self.has_full_shape(result) || self.is_per_row(result) || is_inner_row
    }

    fn has_full_shape(&self, value: &LocatedTensor) -> bool {
        value.shape[..] == *self.shape
    }

    fn is_per_row(&self, value: &LocatedTensor) -> bool {
        let leading = self.shape.split_last().map(|(_, leading)| leading);
        value.shape.split_last().is_some_and(|(last, outer)| *last == 1 && Some(outer) == leading)
    }

    /// The value of an operand: the result of an earlier step, or a load.
    fn operand(&mut self, x: &LocatedTensor, l: &KernelLowering<'_>) -> Result<MapValue> {
        let computed = self.known.iter().rev().find(|(r, _)| reads_same_elements(r, x, self.shape));
        if let Some((_, value)) = computed {
            return Ok(*value);
        }
        let value = element::load(&mut self.map, x, self.shape, l)?;
        if MapKernel::index(value) == self.values.len() {
            let is_per_row = broadcast(self.shape, &x.shape, &x.strides).last().is_none_or(|s| *s == 0);
            self.values.push(RowValue { operands: Vec::new(), level: 0, is_per_row });
        }
        Ok(value)
    }

    /// Describes the last value of the map, if it is a new one.
    fn describe(&mut self, operands: Vec<usize>) {
        if self.map.statements().len() > self.values.len() {
            let level = operands.iter().map(|&v| self.values[v].level).max().unwrap_or(0);
            let is_per_row = operands.iter().all(|&v| self.values[v].is_per_row);
            self.values.push(RowValue { operands, level, is_per_row });
        }
    }

    fn reduce(&mut self, op: ReductionKind, operand: usize, from: DType, to: DType) -> MapValue {
        // A product may leave the range of float in either direction while its final value is within the
        // range.
        let accumulator =
            if op == ReductionKind::Prod && from.is_float() { "double" } else { computed_type(from) };
        let kind = stored_type(to);
        let value = self.add_reduced(operand, kind);
        let result = MapKernel::index(value);
        let op = RowOp::Elements(op);
        self.reductions.push(RowReduction { op, operand, result, accumulator, kind });
        value
    }

    /// A number per row that a reduction of `operand` sets.
    fn add_reduced(&mut self, operand: usize, kind: &'static str) -> MapValue {
        let value = self.map.compute(kind, String::new());
        let level = self.values[operand].level + 1;
        self.values.push(RowValue { operands: Vec::new(), level, is_per_row: true });
        value
    }

    /// An RMS norm of these operands: the elements of the rows, and the weight if there is one.
    fn rms_norm(&mut self, operands: &[usize], dtype: DType, eps: f64, round_first: bool) -> MapValue {
        let x = operands[0];
        let kind = computed_type(dtype);
        let stored = stored_type(dtype);
        let unit = MapKernel::index(self.add_reduced(x, kind));
        let result = MapKernel::index(self.add_reduced(x, kind));
        let eps = format!("({kind}){}", float_literal(dtype, eps));
        let op = RowOp::NormFactor { eps, unit };
        self.reductions.push(RowReduction { op, operand: x, result, accumulator: kind, kind });
        let mut normed = format!("get(v{x}) * v{unit} * v{result}");
        if let Some(weight) = operands.get(1) {
            if round_first {
                normed = format!("get(Put<{stored}>::of({normed}))");
            }
            normed = format!("{normed} * get(v{weight})");
        }
        let value = self.map.compute(stored, format!("Put<{stored}>::of({normed})"));
        self.describe([&[x, unit, result][..], &operands[1..]].concat());
        value
    }

    /// Stores the results that have memory, unless a later one overwrites them.
    fn store_results(&mut self, l: &KernelLowering<'_>) {
        for (k, (result, value)) in self.known.iter().enumerate() {
            let is_overwritten =
                self.known[k + 1..].iter().any(|(r, _)| reads_same_elements(r, result, self.shape));
            if result.space == MemorySpace::Inner || is_overwritten {
                continue;
            }
            let address = l.address_of(result);
            let value = *value;
            if self.has_full_shape(result) {
                self.map.store(address, Strides::from_slice(&result.strides), value);
            } else {
                let strides = broadcast(self.shape, &result.shape, &result.strides);
                self.row_stores.push(RowStore { at: address, strides, value: MapKernel::index(value) });
            }
        }
    }

    fn finish(self, rows: usize, l: &mut KernelLowering<'_>) -> GpuCommand {
        let n = self.shape.last().copied().unwrap_or(1);
        let group = ThreadGroup::for_contiguous(rows, n, self.map.contiguous_access_width());
        let text = PhaseWriter::new(&self, group, n).text(rows);
        l.preludes();
        l.source.prelude(text::ROWS_SOURCE);
        let entry = l.source.function("rows", text);
        let stores = self.row_stores.iter().map(|s| KernelParam::from(s.at));
        let params = self.map.addresses().chain(stores).collect();
        GpuCommand::Kernel(KernelLaunch::flat(entry, group.blocks(rows), group.block, params))
    }
}

/// Whether `x`, broadcast over the rows, reads the elements of the result `r`.
fn reads_same_elements(r: &LocatedTensor, x: &LocatedTensor, shape: &[usize]) -> bool {
    r.space == x.space
        && (r.offset, r.by_rank) == (x.offset, x.by_rank)
        && r.dtype == x.dtype
        && broadcast(shape, &r.shape, &r.strides) == broadcast(shape, &x.shape, &x.strides)
}

struct PhaseWriter<'k> {
    kernel: &'k RowKernel<'k>,
    statements: Vec<MapStatement<'k>>,
    group: ThreadGroup,
    /// The number of elements of a row.
    n: usize,
    /// The number of accesses of a thread to a row.
    chunks: usize,
    /// The values that each phase computes per element; the last phase is the one that stores.
    needed: Vec<Vec<bool>>,
    /// Whether operands that several phases need are kept in registers.
    keeps_in_registers: bool,
}

impl<'k> PhaseWriter<'k> {
    fn new(kernel: &'k RowKernel<'k>, group: ThreadGroup, n: usize) -> Self {
        let statements = kernel.map.statements();
        let chunks = n.div_ceil(group.width).div_ceil(group.threads);
        let levels = kernel.reductions.iter().map(|r| kernel.values[r.result].level).max().unwrap_or(0);
        let mut needed = Vec::new();
        for phase in 0..levels {
            let operands = kernel.reductions.iter().filter(|r| kernel.values[r.result].level == phase + 1);
            needed.push(values_per_element(kernel, operands.map(|r| r.operand)));
        }
        needed.push(values_per_element(kernel, kernel.map.stored_values().map(MapKernel::index)));
        let mut phases =
            PhaseWriter { kernel, statements, group, n, chunks, needed, keeps_in_registers: true };
        let in_registers = (0..phases.statements.len()).filter(|&i| phases.is_in_registers(i));
        let bytes: usize = in_registers.map(|i| phases.statements[i].bytes() * group.width * chunks).sum();
        phases.keeps_in_registers = bytes <= KEPT_BYTES[usize::from(group.block > 512)];
        phases
    }

    fn levels(&self) -> usize {
        self.needed.len() - 1
    }

    /// Whether threads keep an operand in registers from one phase to another.
    fn is_in_registers(&self, value: usize) -> bool {
        let loads = matches!(self.statements[value], MapStatement::Load { .. });
        self.keeps_in_registers && loads && self.needed.iter().filter(|needed| needed[value]).count() > 1
    }

    fn text(&self, rows: usize) -> String {
        let ThreadGroup { threads, block, width, .. } = self.group;
        let stores = (0..self.kernel.row_stores.len()).map(|k| format!("void *s{k}"));
        let params: Vec<String> = self.kernel.map.declared().chain(stores).collect();
        let mut out = format!(
            "extern \"C\" __global__ void __launch_bounds__({block}) @({}) {{\n    symmc_enter();\n    using namespace sc;\n    \
             typedef i64 O;\n    const u32 at = group_row<{threads}, {block}>(), lane = threadIdx.x % {threads};\n    \
             if (at >= {rows}u) return;\n{}",
            params.join(", "),
            self.kernel.map.row_coordinates("at"),
        );
        for (i, statement) in self.statements.iter().enumerate().filter(|(i, _)| self.is_in_registers(*i)) {
            let _ = writeln!(out, "    Few<{}, {width}> x{i}[{}];", statement.kind(), self.chunks);
        }
        for level in 0..self.levels() {
            self.emit_row_scalars(&mut out, level);
            self.reduction_phase(&mut out, level);
        }
        self.emit_row_scalars(&mut out, self.levels());
        self.store_phase(&mut out);
        out.push_str("}\n");
        out
    }

    /// Emits the values of this level that are one number per row.
    fn emit_row_scalars(&self, out: &mut String, level: usize) {
        for (i, statement) in self.statements.iter().enumerate() {
            let value = &self.kernel.values[i];
            let reduced = self.kernel.reductions.iter().any(|r| r.sets(i));
            if !value.is_per_row || value.level != level || reduced {
                continue;
            }
            let (kind, expression) = match statement {
                MapStatement::Load { kind, place: position } => {
                    (kind, format!("((const {kind} *)p{i})[{position}]"))
                }
                MapStatement::Computed { kind, expression } => (kind, expression.to_string()),
            };
            let _ = writeln!(out, "    const {kind} v{i} = {expression};");
        }
    }

    /// Emits the reductions whose operands are of this level.
    fn reduction_phase(&self, out: &mut String, level: usize) {
        let reductions = self.kernel.reductions.iter();
        let current: Vec<&RowReduction> =
            reductions.filter(|r| self.kernel.values[r.result].level == level + 1).collect();
        for r in &current {
            let _ = writeln!(out, "    {} v{};", r.kind, r.result);
            if let RowOp::NormFactor { unit, .. } = r.op {
                let _ = writeln!(out, "    {} v{unit} = 1;", r.kind);
            }
        }
        out.push_str("    {\n");
        let joins = current
            .iter()
            .enumerate()
            .map(|(k, r)| format!("                {}\n", r.join(k, &format!("get(v{})", r.operand))));
        let mut pass = String::new();
        self.loop_over_row(&mut pass, level, &joins.collect::<String>(), "");
        self.run_pass(out, &pass, &current, RowPass::First);
        let conditions: Vec<Option<String>> =
            current.iter().enumerate().map(|(k, r)| r.repeat_condition(k)).collect();
        let any: Vec<&str> = conditions.iter().flatten().map(String::as_str).collect();
        if !any.is_empty() {
            let _ = writeln!(out, "    if ({}) {{", any.join(" || "));
            for (k, condition) in conditions.iter().enumerate() {
                let _ =
                    writeln!(out, "    const bool again{k} = {};", condition.as_deref().unwrap_or("false"));
            }
            self.run_pass(out, &pass, &current, RowPass::Again);
            out.push_str("    }\n");
        }
        out.push_str("    }\n");
    }

    /// Emits a pass over the row, and sets the results that it gives.
    fn run_pass(&self, out: &mut String, loop_text: &str, current: &[&RowReduction], pass: RowPass) {
        for (k, r) in current.iter().enumerate() {
            let kind = r.accumulator_of(pass);
            let _ = writeln!(out, "    {kind} a{k} = {}::start<{kind}>();", r.name());
        }
        let _ = writeln!(out, "    {{\n{loop_text}    }}");
        for (k, r) in current.iter().enumerate() {
            let condition = if pass == RowPass::Again { format!("if (again{k}) ") } else { String::new() };
            let _ = writeln!(
                out,
                "    a{k} = group_join<{}, {}>(a{k});\n    {condition}{{ {} }}",
                r.name(),
                self.group.threads,
                r.set_result(k, self.n, pass),
            );
        }
    }

    /// Emits the stores of full rows, and then those of numbers per row.
    fn store_phase(&self, out: &mut String) {
        let width = self.group.width;
        let stores: Vec<(&'static str, String, usize)> = self.kernel.map.stores().collect();
        let mut each = String::new();
        let mut after = String::new();
        let mut before = String::new();
        for (k, (kind, position, value)) in stores.iter().enumerate() {
            let _ = writeln!(before, "            Few<{kind}, {width}> r{k};");
            let _ = writeln!(each, "                r{k}.e[j] = v{value};");
            let _ =
                writeln!(after, "            write<{kind}, {width}>(({kind} *)q{k} + ({position}), r{k});");
        }
        if !stores.is_empty() {
            self.loop_over_row(out, self.levels(), &each, &(before + "@" + &after));
        }
        if self.kernel.row_stores.is_empty() {
            return;
        }
        out.push_str("    __syncwarp();\n    if (lane == 0) {\n");
        for (k, store) in self.kernel.row_stores.iter().enumerate() {
            let kind = self.statements[store.value].kind();
            let position = super::map::linear(&store.strides);
            let _ = writeln!(out, "        (({kind} *)s{k})[{position}] = v{};", store.value);
        }
        out.push_str("    }\n");
    }

    /// Emits a loop over the elements of a row that a thread has. `each` runs with the values of each
    /// element. `around` is the code before and after the elements of an access, separated by `@`.
    fn loop_over_row(&self, out: &mut String, phase: usize, each: &str, around: &str) {
        let ThreadGroup { threads, width, .. } = self.group;
        let (before, after) = around.split_once('@').unwrap_or_default();
        let unroll = if self.keeps_in_registers { self.chunks.max(1) } else { 2 };
        let last_axis = self.kernel.shape.len() - 1;
        let _ = writeln!(
            out,
            "#pragma unroll {unroll}\n        for (int i = 0; i < {}; i++) {{\n            const i64 k = ((i64)i * {threads} + lane) * {width};\n            \
             if (k >= {}) continue;\n            const i64 c{last_axis} = k;",
            self.chunks, self.n
        );
        let needed = &self.needed[phase];
        for i in (0..self.statements.len()).filter(|&i| needed[i]) {
            let MapStatement::Load { kind, place } = &self.statements[i] else { continue };
            let first = self.needed.iter().position(|needed| needed[i]) == Some(phase);
            let (declared, source) = if self.is_in_registers(i) {
                (String::new(), format!("x{i}[i]"))
            } else {
                (format!("Few<{kind}, {width}> x{i}; "), format!("x{i}"))
            };
            if first || !self.is_in_registers(i) {
                let _ = writeln!(
                    out,
                    "            {declared}read<{kind}, {width}>({source}, (const {kind} *)p{i} + ({place}));"
                );
            }
        }
        let _ = write!(out, "{before}#pragma unroll\n            for (int j = 0; j < {width}; j++) {{\n");
        for i in (0..self.statements.len()).filter(|&i| needed[i]) {
            let _ = match &self.statements[i] {
                MapStatement::Load { kind, .. } => {
                    let source = if self.is_in_registers(i) { format!("x{i}[i]") } else { format!("x{i}") };
                    writeln!(out, "                const {kind} v{i} = {source}.e[j];")
                }
                MapStatement::Computed { kind, expression } => {
                    writeln!(out, "                const {kind} v{i} = {expression};")
                }
            };
        }
        let _ = writeln!(out, "{each}            }}\n{after}        }}");
    }
}

/// The values that a phase must compute per element to obtain these values.
fn values_per_element(kernel: &RowKernel<'_>, of: impl Iterator<Item = usize>) -> Vec<bool> {
    let mut out = vec![false; kernel.values.len()];
    let mut open: Vec<usize> = of.collect();
    while let Some(value) = open.pop() {
        if !kernel.values[value].is_per_row && !out[value] {
            out[value] = true;
            open.extend(&kernel.values[value].operands);
        }
    }
    out
}
