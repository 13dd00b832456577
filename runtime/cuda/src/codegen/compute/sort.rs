//! Sorts along an axis: sort and top-k, with positions.

use std::fmt::Write as _;

use symmc_ir::DType;
use symmc_runtime::exec::LocatedTensor;

use super::lowering::{KernelLowering, mismatch_error};
use super::space::IterationAxis;
use super::text::{self, offset_function, stored_type};
use crate::codegen::command::{Commands, GpuCommand};
use crate::device::launch::{DevicePtr, KernelLaunch, KernelParam};

/// The longest row that is sorted in shared memory. Longer rows are sorted in tiles of this many elements.
const TILE: usize = 4096;

/// The size of the sort key of an element in bytes.
fn key(dtype: DType) -> usize {
    if dtype.size() == 8 { 8 } else { 4 }
}

/// The bytes of one copy of the keys, at a multiple of 256, and of one copy of keys and positions.
fn buffer_bytes(axis: usize, x: &LocatedTensor) -> (usize, usize) {
    let n: usize = x.shape.iter().product();
    if x.shape.get(axis).is_none_or(|&n| n <= TILE) {
        return (0, 0);
    }
    let keys = (n * key(x.dtype)).next_multiple_of(256);
    (keys, keys + (n * 4).next_multiple_of(256))
}

pub(super) fn workspace(axis: usize, x: &LocatedTensor) -> usize {
    2 * buffer_bytes(axis, x).1
}

/// Selects the first elements along `axis` in ascending or descending order, as many as the results have,
/// with their positions.
pub(super) fn lower(
    axis: usize,
    descending: bool,
    x: &LocatedTensor,
    results: &[LocatedTensor],
    l: &mut KernelLowering<'_>,
) -> Commands {
    let values = &results[0];
    let positions = &results[1];
    let rank = x.shape.len();
    let fits = axis < rank
        && values.shape == positions.shape
        && values.shape.len() == rank
        && values.dtype == x.dtype
        && positions.dtype == DType::I64
        && values.shape[axis] <= x.shape[axis]
        && (0..rank).all(|a| a == axis || values.shape[a] == x.shape[a]);
    if !fits {
        return Err(mismatch_error("the results of sorting", &x.shape, (&values.shape, &positions.shape)));
    }
    let n = x.shape[axis];
    let count = values.shape[axis];
    let lines: usize = (0..rank).filter(|&a| a != axis).map(|a| x.shape[a]).product();
    if lines * count == 0 {
        return Ok(Vec::new());
    }
    if n > u32::MAX as usize / 2 {
        return Err(mismatch_error("sorting", "at most 2147483647 elements", n));
    }
    let mut layout = format!(
        "namespace sc {{ struct @_L {{\ntypedef {} T;\nstatic const bool DESCENDING = {descending};\nstatic const i64 N = {n}, COUNT = {count}, LINES = {lines};\n",
        stored_type(x.dtype)
    );
    for (name, value) in [("x", x), ("v", values), ("p", positions)] {
        let outer = (0..rank).filter(|&a| a != axis);
        let axes: Vec<IterationAxis> =
            outer.map(|a| IterationAxis { n: value.shape[a], stride: value.strides[a] }).collect();
        layout.push_str(&offset_function(&format!("{name}_line"), &axes));
        let _ = writeln!(layout, "static const i64 {name}_step = {}ll;", value.strides[axis]);
    }
    layout.push_str("}; }\n");
    l.preludes();
    l.source.prelude(text::SORT_SOURCE);
    let [from, to, places] = [x, values, positions].map(|v| l.address_of(v));
    let job = SortJob { layout, lines, n, count };
    if n <= TILE {
        let size = n.next_power_of_two().max(2);
        let threads = (size / 2).clamp(32, 1024);
        let call = format!("sort_rows<@_L, {size}, {threads}>(a, b, c)");
        return Ok(vec![job.launch(
            "sort",
            &call,
            [from, to, places].map(KernelParam::from).to_vec(),
            lines,
            threads,
            l,
        )]);
    }
    let (keys, copy) = buffer_bytes(axis, x);
    job.sort_long_rows(keys, copy, [from, to, places], l)
}

struct SortJob {
    layout: String,
    lines: usize,
    n: usize,
    count: usize,
}

impl SortJob {
    /// A function that calls `call` with one of the parameters `a`, `b`, … for each address.
    fn launch(
        &self,
        what: &str,
        call: &str,
        params: Vec<KernelParam>,
        blocks: usize,
        threads: usize,
        l: &mut KernelLowering<'_>,
    ) -> GpuCommand {
        let names = ["void *a", "void *b", "void *c", "void *d", "unsigned long long width"];
        let text = format!(
            "{}extern \"C\" __global__ void __launch_bounds__({threads}) @({}) {{\n    symmc_enter();\n    using namespace sc;\n    {call};\n}}\n",
            self.layout,
            names[..params.len()].join(", ")
        );
        GpuCommand::Kernel(KernelLaunch::flat(l.source.function(what, text), blocks, threads, params))
    }

    /// Sorts rows that are longer than a tile.
    fn sort_long_rows(
        &self,
        keys: usize,
        copy: usize,
        [from, to, places]: [DevicePtr; 3],
        l: &mut KernelLowering<'_>,
    ) -> Commands {
        let room = l.workspace_for("sorting", 2 * copy)?;
        let buffer = |i: usize| {
            let start = room + (i * copy) as u64;
            (start, start + keys as u64)
        };
        let tiles = format!("sort_tiles<@_L, {TILE}, 1024>(a, b, c)");
        let (k, p) = buffer(0);
        let blocks = self.n.div_ceil(TILE) * self.lines;
        let mut out = vec![self.launch(
            "sort_tiles",
            &tiles,
            [from, k, p].map(KernelParam::from).to_vec(),
            blocks,
            1024,
            l,
        )];
        let mut width = TILE;
        let mut now = 0;
        while width < self.n {
            let (k, p) = buffer(now);
            let (next_k, next_p) = buffer(1 - now);
            let mut params = [k, p, next_k, next_p].map(KernelParam::from).to_vec();
            params.push((width as u64).into());
            let blocks = (self.n * self.lines).div_ceil(256);
            let call = "merge_runs<@_L>(a, b, c, d, width)";
            out.push(self.launch("sort_merge", call, params, blocks, 256, l));
            now = 1 - now;
            width *= 2;
        }
        let blocks = (self.count * self.lines).div_ceil(256);
        let params = [from, buffer(now).1, to, places].map(KernelParam::from).to_vec();
        out.push(self.launch("sort_emit", "emit_rows<@_L>(a, b, c, d)", params, blocks, 256, l));
        Ok(out)
    }
}
