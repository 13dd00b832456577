//! Loops without reductions: each thread computes neighbours of the space, or a product kernel computes the body at
//! each position of its result.

use std::fmt::Write as _;

use super::super::lowering::KernelLowering;
use super::super::skinny::ProductEpilogue;
use super::body::{Definition, LoopBody, linear};
use super::emit::{Access, ValueUse, function_text};
use crate::codegen::command::GpuCommand;
use crate::device::launch::{KernelLaunch, KernelParam};

/// Threads of a block.
const THREADS_PER_BLOCK: usize = 256;
const MAX_GRID_BLOCKS: usize = i32::MAX as usize;

impl LoopBody {
    /// The launch; `None` if there is no position.
    pub fn finish(mut self, what: &str, lowering: &mut KernelLowering<'_>) -> Option<GpuCommand> {
        if self.len() == 0 || self.stores.is_empty() {
            return None;
        }
        self.sort_axes();
        self.collapse(0);
        let width = self.width();
        let total: usize = self.shape.iter().product();
        let vectors = total / width;
        let text = self.flat_text(width, vectors, total - vectors * width);
        lowering.preludes();
        let entry = lowering.source.function(what, text);
        // Each thread computes one vector. Many short blocks reach a higher memory bandwidth than persistent
        // blocks.
        let blocks = vectors.div_ceil(THREADS_PER_BLOCK).clamp(1, MAX_GRID_BLOCKS);
        let params = self.parameter_values(lowering);
        Some(GpuCommand::Kernel(KernelLaunch::flat(entry, blocks, THREADS_PER_BLOCK, params)))
    }

    /// The values of [`parameters`](Self::parameters).
    pub(super) fn parameter_values(&self, lowering: &KernelLowering<'_>) -> Vec<KernelParam> {
        let mut out: Vec<KernelParam> = self.addresses().collect();
        if self.has_assertions() {
            out.push(lowering.machine.status.into());
            out.extend(self.assertions().map(KernelParam::from));
        }
        out
    }

    fn flat_text(&self, width: usize, vectors: usize, rest: usize) -> String {
        let total: usize = self.shape.iter().product();
        // The index must not wrap around when all threads step beyond the last position.
        let index = if total < 1 << 31 { "u32" } else { "u64" };
        let mut out = format!("    typedef {index} I;\n    typedef {} O;\n", self.offset_type());
        let _ = writeln!(
            out,
            "    for (I i = (I)blockIdx.x * {THREADS_PER_BLOCK}u + threadIdx.x; i < (I){vectors}ull; i += (I)gridDim.x * {THREADS_PER_BLOCK}u) {{"
        );
        self.emit_flat(&mut out, width, 0);
        out.push_str("    }\n");
        if rest > 0 {
            let _ =
                writeln!(out, "    if (blockIdx.x == 0 && threadIdx.x < {rest}u) {{\n    I i = threadIdx.x;");
            self.emit_flat(&mut out, 1, vectors * width);
            out.push_str("    }\n");
        }
        function_text(THREADS_PER_BLOCK, &self.parameters(), &out)
    }

    /// The work at vector `i` of `width` positions, counted from position `first` of a space of one axis.
    fn emit_flat(&self, out: &mut String, width: usize, first: usize) {
        let last_axis = self.shape.len() - 1;
        let _ = writeln!(out, "        I t = i;");
        for axis in (0..=last_axis).rev() {
            let n = if axis == last_axis && first == 0 { self.shape[axis] / width } else { self.shape[axis] };
            let scale = if axis == last_axis { width } else { 1 };
            let c = if axis == 0 { "t".to_string() } else { format!("t % (I){n}u") };
            let start =
                if axis == last_axis && first > 0 { format!(" + (O){first}ll") } else { String::new() };
            let _ = writeln!(out, "        O c{axis} = (O)({c}) * {scale}{start};");
            if axis > 0 {
                let _ = writeln!(out, "        t /= (I){n}u;");
            }
        }
        let uses = vec![ValueUse::Computed; self.values.len()];
        let stores: Vec<usize> = (0..self.stores.len()).collect();
        self.emit(out, &Access { width, uses: &uses, stores: &stores, reduced: &[], each: "" });
    }

    /// The epilogue of a product kernel at one position, if this body is over its `[m, n]`, with leading axes
    /// joined. Values may be expressions of `sum`.
    pub fn epilogue(self, [m, n]: [usize; 2]) -> Option<ProductEpilogue> {
        let (&last, leading) = self.shape.split_last()?;
        if last != n
            || leading.iter().product::<usize>() != m
            || self.has_assertions()
            || self.stores.is_empty()
        {
            return None;
        }
        let mut body = String::from("        typedef i64 O;\n        i64 t = row;\n");
        for (axis, extent) in leading.iter().enumerate().rev() {
            let _ = writeln!(body, "        const i64 c{axis} = t % {extent}; t /= {extent};");
        }
        let _ = writeln!(body, "        const i64 c{} = column;", leading.len());
        for (i, definition) in self.values.iter().enumerate() {
            let kind = definition.kind();
            let value = match definition {
                Definition::Load(load) => format!("((const {kind} *)p{i})[{}]", linear(&load.strides)),
                Definition::Computed { expression, .. } => expression.clone(),
                Definition::Reduced { .. } => return None,
            };
            let _ = writeln!(body, "        const {kind} v{i} = {value};");
        }
        for (k, store) in self.stores.iter().enumerate() {
            let kind = self.kind(store.value);
            let position = linear(&store.strides);
            let _ = writeln!(body, "        (({kind} *)q{k})[{position}] = v{};", store.value.0);
        }
        let declared = self.declared().collect();
        let params = self.addresses().collect();
        Some(ProductEpilogue { layouts: String::new(), declared, params, body })
    }
}
