//! Loops that reduce rows: the axes from a position on.
//!
//! The threads of a group ([`ThreadGroup`]) compute a row. They pass over it in *phases*: one per level of reductions,
//! where later levels need the results of earlier ones, and a last one that stores. Threads keep operands that several
//! phases need, or values that are computed from them, in registers. If rows are too long for this, each phase reads its
//! operands again, from the cache. Values that are one number per row are computed once, by all threads of the group.
//!
//! Memory is overwritten only after all threads of the group have read it. A result with the row's shape that
//! lies on no operand is stored in the first phase that computes it. Any other is stored in the last phase, each element
//! by the thread that reads it. Results with one number per row are stored after the last phase; operands with one
//! number per row are loaded before the first reduction synchronizes.

use std::fmt::Write as _;

use super::super::lowering::KernelLowering;
use super::super::rows::ThreadGroup;
use super::super::text;
use super::body::{Definition, LoopBody, LoopValue, Store, linear};
use super::build::LoopBuilder;
use super::emit::{Access, ValueUse, function_text};
use super::reduction::{Pass, Reduction, ReductionOp};
use crate::codegen::command::GpuCommand;
use crate::device::launch::KernelLaunch;

/// The largest size of values that a thread keeps in registers, in blocks of up to 512 threads and in larger ones, in
/// bytes.
const MAX_KEPT_BYTES: [usize; 2] = [192, 128];
/// The accesses of a loop that are issued together if nothing is kept: of a thread with others, and of a thread that
/// computes a row alone.
const UNROLLED_ACCESSES: [usize; 2] = [2, 16];

/// The kernel of a loop whose axes from `split` on are within a row; `None` if it has another form.
pub(super) fn lower(
    mut nest: LoopBuilder<'_>,
    split: usize,
    what: &str,
    l: &mut KernelLowering<'_>,
) -> Option<Vec<GpuCommand>> {
    if nest.body.has_assertions() {
        return None;
    }
    if nest.body.len() == 0 {
        return Some(Vec::new());
    }
    let split = nest.body.collapse(split);
    let rows: usize = nest.body.shape[..split].iter().product();
    let n: usize = nest.body.shape[split..].iter().product();
    let group = thread_group(&nest.body, split, rows, n);
    let kernel = RowKernel::new(&nest, split, group);
    let text = kernel.text(rows);
    l.preludes();
    l.source.prelude(text::ROWS_SOURCE);
    let entry = l.source.function(what, text);
    let params = nest.body.addresses().collect();
    Some(vec![GpuCommand::Kernel(KernelLaunch::flat(entry, group.blocks(rows), group.block, params))])
}

/// The threads of a row.
fn thread_group(body: &LoopBody, split: usize, rows: usize, n: usize) -> ThreadGroup {
    let last_axis = body.shape.len() - 1;
    let rows_are_adjacent = body.loads().next().is_some_and(|(_, load)| {
        split > 0 && load.strides[split - 1].unsigned_abs() < load.strides[last_axis].unsigned_abs()
    });
    let has_steps = body.loads().any(|(_, load)| load.strides[last_axis].unsigned_abs() > 1);
    ThreadGroup::for_rows(rows, n, rows_are_adjacent, if has_steps { 1 } else { body.row_access_width() })
}

struct RowKernel<'k> {
    nest: &'k LoopBuilder<'k>,
    split: usize,
    group: ThreadGroup,
    /// The number of elements of a row.
    n: usize,
    /// The number of accesses of a thread to a row.
    chunks: usize,
    /// For each value, the number of consecutive reductions before it, and whether it is one number per row.
    levels: Vec<usize>,
    per_row: Vec<bool>,
    /// The uses of values by each phase; the last phase is the one that stores.
    phases: Vec<Vec<ValueUse>>,
    /// The type of offsets.
    offset_type: &'static str,
}

impl<'k> RowKernel<'k> {
    fn new(nest: &'k LoopBuilder<'k>, split: usize, group: ThreadGroup) -> Self {
        let n = nest.body.shape[split..].iter().product::<usize>();
        let chunks = n.div_ceil(group.width).div_ceil(group.threads);
        let offset_type = if n < 1 << 30 { nest.body.offset_type() } else { "i64" };
        let (levels, per_row, phases) = Default::default();
        let mut kernel = RowKernel { nest, split, group, n, chunks, levels, per_row, phases, offset_type };
        kernel.find_levels();
        kernel.phases = kernel.choose_uses();
        kernel
    }

    /// The uses that keep the operands of later reductions, which are expensive (a softmax has powers), or else those
    /// that keep the fewest bytes: loads, or the operands of the first reductions. Nothing is kept if that is too much.
    fn choose_uses(&self) -> Vec<Vec<ValueUse>> {
        let max_bytes = MAX_KEPT_BYTES[usize::from(self.group.block > 512)];
        let reduced = |is_first: bool| {
            let reductions = self.nest.reductions.0.iter().filter(move |r| (self.level(r) == 1) == is_first);
            reductions.map(|r| r.operand.0).filter(|&v| !self.per_row[v]).collect::<Vec<usize>>()
        };
        let (first, later) = (reduced(true), reduced(false));
        let smaller = |kept: &[usize]| {
            let choices = [self.find_uses(kept), self.find_uses(&[kept, &first].concat())];
            choices.into_iter().min_by_key(|uses| self.kept_bytes(uses))
        };
        let fits = |uses: &Vec<Vec<ValueUse>>| self.kept_bytes(uses) <= max_bytes;
        smaller(&later).filter(fits).or_else(|| smaller(&[]).filter(fits)).unwrap_or_else(|| {
            let mut uses = self.find_uses(&[]);
            let kept = uses.iter_mut().flatten().filter(|usage| **usage != ValueUse::Absent);
            kept.for_each(|usage| *usage = ValueUse::Computed);
            uses
        })
    }

    /// The level of the result of a reduction.
    fn level(&self, reduction: &Reduction) -> usize {
        self.levels[reduction.result.0]
    }

    fn find_levels(&mut self) {
        for definition in &self.nest.body.values {
            let (level, is_per_row) = match definition {
                Definition::Load(load) => (0, load.strides[self.split..].iter().all(|s| *s == 0)),
                Definition::Computed { operands, .. } => (
                    operands.iter().map(|v| self.levels[v.0]).max().unwrap_or(0),
                    operands.iter().all(|v| self.per_row[v.0]),
                ),
                Definition::Reduced { .. } => {
                    let value = LoopValue(self.levels.len());
                    let mut reductions = self.nest.reductions.0.iter();
                    let reduction = reductions.find(|r| r.results().any(|result| result == value));
                    let operands = reduction.into_iter().flat_map(Reduction::operands);
                    (operands.map(|v| self.levels[v.0]).max().unwrap_or(0) + 1, true)
                }
            };
            self.levels.push(level);
            self.per_row.push(is_per_row);
        }
    }

    /// The uses of values by each phase, if threads keep these values, and loads that several phases need.
    fn find_uses(&self, kept: &[usize]) -> Vec<Vec<ValueUse>> {
        let (body, reductions) = (&self.nest.body, &self.nest.reductions.0);
        let levels = reductions.iter().map(|r| self.level(r)).max().unwrap_or(0);
        let mut phases: Vec<Vec<ValueUse>> = Vec::new();
        for phase in 0..=levels {
            let reduced = reductions.iter().filter(|r| self.level(r) == phase + 1).map(|r| r.operand.0);
            let stored = body.stores.iter().filter(|store| {
                phase == levels && !store.is_reduced && first_store_phase(body, store, &phases).is_none()
            });
            let stored = stored.map(|store| store.value.0);
            let mut uses = vec![ValueUse::Absent; body.values.len()];
            let mut open: Vec<usize> = reduced.chain(stored).collect();
            while let Some(value) = open.pop() {
                if self.per_row[value] || uses[value] != ValueUse::Absent {
                    continue;
                }
                let is_known = phases.iter().any(|before| before[value] != ValueUse::Absent);
                let keeps = kept.contains(&value) || matches!(body.values[value], Definition::Load(_));
                if is_known && keeps {
                    uses[value] = ValueUse::Register;
                    continue;
                }
                uses[value] = ValueUse::Computed;
                if let Definition::Computed { operands, .. } = &body.values[value] {
                    open.extend(operands.iter().map(|v| v.0));
                }
            }
            phases.push(uses);
        }
        for value in 0..body.values.len() {
            if phases.iter().any(|uses| uses[value] == ValueUse::Register)
                && let Some(first) = phases.iter_mut().find(|uses| uses[value] == ValueUse::Computed)
            {
                first[value] = ValueUse::Kept;
            }
        }
        phases
    }

    /// The bytes that a thread keeps.
    fn kept_bytes(&self, phases: &[Vec<ValueUse>]) -> usize {
        let kept = kept_values(phases).map(|value| self.nest.body.values[value].bytes());
        kept.sum::<usize>() * self.group.width * self.chunks
    }

    fn text(&self, rows: usize) -> String {
        let ThreadGroup { threads, block, width } = self.group;
        let body = &self.nest.body;
        let mut out = format!(
            "    typedef {} O;\n    const u32 at = group_row<{threads}, {block}>(), lane = threadIdx.x % {threads};\n    \
             if (at >= {rows}u) return;\n    u32 t = at;\n",
            self.offset_type
        );
        for (axis, n) in body.shape[..self.split].iter().enumerate().skip(1).rev() {
            let _ = writeln!(out, "    const O c{axis} = (O)(t % {n}u); t /= {n}u;");
        }
        if self.split > 0 {
            out.push_str("    const O c0 = (O)t;\n");
        }
        for value in kept_values(&self.phases) {
            let (definition, chunks) = (&body.values[value], self.chunks);
            let kind = definition.kind();
            let _ = match definition {
                Definition::Load(_) => writeln!(out, "    Few<{kind}, {width}> x{value}[{chunks}];"),
                _ => writeln!(out, "    {kind} x{value}[{chunks}][{width}];"),
            };
        }
        for level in 0..self.phases.len() {
            self.emit_row_scalars(&mut out, level);
            if level + 1 < self.phases.len() {
                self.emit_reductions(&mut out, level);
            }
        }
        self.emit_stores(&mut out);
        function_text(block, &body.parameters(), &out)
    }

    /// Emits the values of this level that are one number per row.
    fn emit_row_scalars(&self, out: &mut String, level: usize) {
        for (i, definition) in self.nest.body.values.iter().enumerate() {
            if !self.per_row[i] || self.levels[i] != level {
                continue;
            }
            let kind = definition.kind();
            let expression = match definition {
                Definition::Load(load) => format!("((const {kind} *)p{i})[{}]", linear(&load.strides)),
                Definition::Computed { expression, .. } => expression.clone(),
                Definition::Reduced { .. } => continue,
            };
            let _ = writeln!(out, "    const {kind} v{i} = {expression};");
        }
    }

    /// Emits the reductions whose operands are of this level.
    fn emit_reductions(&self, out: &mut String, level: usize) {
        let reductions = self.nest.reductions.0.iter().filter(|r| self.level(r) == level + 1);
        let current: Vec<(String, &Reduction)> =
            reductions.enumerate().map(|(k, r)| (format!("a{k}"), r)).collect();
        for (_, r) in &current {
            let _ = writeln!(out, "    {} v{};", r.kind, r.result.0);
            if let ReductionOp::NormFactor { unit, .. } = r.op {
                let _ = writeln!(out, "    {} v{} = 1;", r.kind, unit.0);
            }
        }
        let joins: Vec<String> = current.iter().map(|(a, r)| r.join(a)).collect();
        let mut elements = String::new();
        self.loop_over_row(&mut elements, level, &self.stores_of(level), &joins.join(" "));
        out.push_str("    {\n");
        self.run_pass(out, &elements, &current, Pass::First);
        let conditions: Vec<Option<String>> = current.iter().map(|(a, r)| r.repeat_condition(a)).collect();
        let any: Vec<&str> = conditions.iter().flatten().map(String::as_str).collect();
        if !any.is_empty() {
            let _ = writeln!(out, "    if ({}) {{", any.join(" || "));
            for (k, condition) in conditions.iter().enumerate() {
                let _ =
                    writeln!(out, "    const bool again{k} = {};", condition.as_deref().unwrap_or("false"));
            }
            self.recenter(out, level, &current);
            self.run_pass(out, &elements, &current, Pass::Again);
            out.push_str("    }\n");
        }
        out.push_str("    }\n");
    }

    /// Emits the computation of the centers of norms in their units.
    fn recenter(&self, out: &mut String, level: usize, current: &[(String, &Reduction)]) {
        for (k, (_, r)) in current.iter().enumerate() {
            let Some((center, add)) = r.recentered("sum") else { continue };
            let _ = writeln!(out, "    {{\n    {} sum = 0;", r.kind);
            self.loop_over_row(out, level, &[], &add);
            let threads = self.group.threads;
            let _ = writeln!(
                out,
                "    sum = group_join<Sum, {threads}>(sum) / ({}){};\n    if (again{k}) v{} = sum;\n    }}",
                r.kind, self.n, center.0
            );
        }
    }

    /// Emits a pass over the elements of the row, and sets the results that it gives.
    fn run_pass(&self, out: &mut String, elements: &str, current: &[(String, &Reduction)], pass: Pass) {
        for (a, r) in current {
            let kind = r.accumulator_of(pass);
            let _ = writeln!(out, "    {kind} {a} = {}::start<{kind}>();", r.name());
        }
        let _ = writeln!(out, "    {{\n{elements}    }}");
        for (k, (a, r)) in current.iter().enumerate() {
            let condition = if pass == Pass::Again { format!("if (again{k}) ") } else { String::new() };
            let _ = writeln!(
                out,
                "    {a} = group_join<{}, {}>({a});\n    {condition}{{ {} }}",
                r.name(),
                self.group.threads,
                r.set_results(a, self.n, pass),
            );
        }
    }

    /// The stores of results with the row's shape in a phase: the first that computes their value, or the last if they
    /// are in place of an operand.
    fn stores_of(&self, phase: usize) -> Vec<usize> {
        let stores = self.nest.body.stores.iter().enumerate().filter(|(_, store)| !store.is_reduced);
        let phase_of = |store: &Store| first_store_phase(&self.nest.body, store, &self.phases);
        let last = self.phases.len() - 1;
        stores.filter(|(_, store)| phase_of(store).unwrap_or(last) == phase).map(|(k, _)| k).collect()
    }

    /// Emits the remaining stores of full rows, and then those of numbers per row.
    fn emit_stores(&self, out: &mut String) {
        let stores = &self.nest.body.stores;
        let of_rows: Vec<usize> = (0..stores.len()).filter(|&k| stores[k].is_reduced).collect();
        let last = self.phases.len() - 1;
        let full = self.stores_of(last);
        if !full.is_empty() {
            self.loop_over_row(out, last, &full, "");
        }
        if of_rows.is_empty() {
            return;
        }
        out.push_str("    __syncwarp();\n    if (lane == 0) {\n");
        for k in of_rows {
            let kind = self.nest.body.kind(stores[k].value);
            let position = linear(&stores[k].strides);
            let _ = writeln!(out, "        (({kind} *)q{k})[{position}] = v{};", stores[k].value.0);
        }
        out.push_str("    }\n");
    }

    /// Emits a loop over the elements of a row that a thread has.
    fn loop_over_row(&self, out: &mut String, phase: usize, stores: &[usize], each: &str) {
        let ThreadGroup { threads, width, .. } = self.group;
        let is_kept = kept_values(&self.phases).next().is_some();
        let unroll = if is_kept { self.chunks.max(1) } else { UNROLLED_ACCESSES[usize::from(threads == 1)] };
        let _ = writeln!(
            out,
            "#pragma unroll {unroll}\n        for (int i = 0; i < {}; i++) {{\n        const O k = ((O)i * {threads} + (O)lane) * {width};\n        \
             if (k >= {}) continue;",
            self.chunks, self.n
        );
        let inner = &self.nest.body.shape[self.split..];
        let mut stride = self.n;
        for (position, n) in inner.iter().enumerate() {
            let axis = self.split + position;
            let whole = if position == 0 { String::new() } else { format!(" % {stride}") };
            stride /= n;
            let divided = if stride == 1 { String::new() } else { format!(" / {stride}") };
            let _ = writeln!(out, "        const O c{axis} = k{whole}{divided};");
        }
        let access = Access { width, uses: &self.phases[phase], stores, reduced: &[], each };
        self.nest.body.emit(out, &access);
        out.push_str("        }\n");
    }
}

/// The first of these phases that computes the stored value for each element, if the result is in place of no operand.
fn first_store_phase(body: &LoopBody, store: &Store, phases: &[Vec<ValueUse>]) -> Option<usize> {
    let is_in_place = body.loads().any(|(_, load)| load.at == store.at);
    let computes = |uses: &Vec<ValueUse>| matches!(uses[store.value.0], ValueUse::Computed | ValueUse::Kept);
    phases.iter().position(computes).filter(|_| !is_in_place)
}

/// The values that threads keep in registers from one phase to another.
fn kept_values(phases: &[Vec<ValueUse>]) -> impl Iterator<Item = usize> {
    let count = phases.first().map_or(0, Vec::len);
    (0..count).filter(|&value| phases.iter().any(|uses| uses[value] == ValueUse::Kept))
}
