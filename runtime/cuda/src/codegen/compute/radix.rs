//! Sorting of many small integers with their positions, in memory.
//!
//! A stable sort by digits of 8 bits, the least significant one first (D. E. Knuth, *The Art of Computer
//! Programming*, volume 3, section 5.2.5). The time grows with the number of keys, and the order is the same in
//! every run. Only the digits that the largest key has are sorted.

use super::lowering::KernelLowering;
use super::text::{self, calling_kernel};
use crate::codegen::command::GpuCommand;
use crate::device::launch::{DevicePtr, KernelLaunch, KernelParam};
use crate::error::Result;

/// The constants of `radix.cuh`.
const TILE: usize = 2048;
const VALUES: usize = 256;
const SCAN_THREADS: usize = 1024;
const DIGIT_BITS: u32 = VALUES.ilog2();

/// Whether this many keys up to `largest` can be sorted.
pub(super) fn can_sort(keys: usize, largest: usize) -> bool {
    u32::try_from(largest).is_ok() && u32::try_from(keys).is_ok()
}

/// The bytes of one buffer of keys or positions.
fn buffer_bytes(keys: usize) -> usize {
    (keys * size_of::<u32>()).next_multiple_of(256)
}

fn tiles(keys: usize) -> usize {
    keys.div_ceil(TILE)
}

/// The bytes of workspace for sorting this many keys.
pub(super) fn workspace(keys: usize) -> usize {
    4 * buffer_bytes(keys) + tiles(keys) * VALUES * size_of::<u32>()
}

/// Keys and their positions before they were sorted, both in workspace.
#[derive(Clone, Copy)]
pub(super) struct SortedKeys {
    pub keys: DevicePtr,
    pub positions: DevicePtr,
}

/// A sort whose keys are not written yet.
pub(super) struct RadixSort {
    count: usize,
    largest: usize,
    buffers: [SortedKeys; 2],
    digit_counts: DevicePtr,
}

impl RadixSort {
    /// A sort of `count` keys up to `largest`. `what` names it in an error about the workspace.
    pub(super) fn new(what: &str, count: usize, largest: usize, l: &KernelLowering<'_>) -> Result<RadixSort> {
        let room = l.workspace_for(what, workspace(count))?;
        let buffer = |i: usize| room + (i * buffer_bytes(count)) as u64;
        let buffers = [0, 2].map(|i| SortedKeys { keys: buffer(i), positions: buffer(i + 1) });
        Ok(RadixSort { count, largest, buffers, digit_counts: buffer(4) })
    }

    /// The address at which a kernel before the sort writes the keys.
    pub(super) fn keys(&self) -> DevicePtr {
        self.buffers[0].keys
    }

    /// Adds the kernels that sort.
    pub(super) fn sort(self, out: &mut Vec<GpuCommand>, l: &mut KernelLowering<'_>) -> SortedKeys {
        l.preludes();
        l.source.prelude(text::RADIX_SOURCE);
        let [n, tiles] = [self.count, tiles(self.count)];
        let counts = tiles * VALUES;
        let count = calling_kernel(
            VALUES,
            "void *k, void *c, unsigned long long shift",
            &format!("radix_count<{n}, {tiles}>(k, c, shift)"),
        );
        let count = l.source.function("radix_count", count);
        let starts = calling_kernel(SCAN_THREADS, "void *c", &format!("radix_starts<{counts}>(c)"));
        let starts = l.source.function("radix_starts", starts);
        let parameters = "void *k, void *p, void *l, void *q, void *c, unsigned long long shift";
        let moves =
            calling_kernel(VALUES, parameters, &format!("radix_move<{n}, {tiles}>(k, p, l, q, c, shift)"));
        let moves = l.source.function("radix_move", moves);
        let bits = usize::BITS - self.largest.leading_zeros();
        let [mut from, mut to] = self.buffers;
        for digit in 0..bits.div_ceil(DIGIT_BITS).max(1) {
            let shift = u64::from(digit * DIGIT_BITS);
            let old_positions = if digit == 0 { DevicePtr::NULL } else { from.positions };
            let mut launch = |entry: &String, blocks: usize, threads: usize, params: Vec<KernelParam>| {
                out.push(GpuCommand::Kernel(KernelLaunch::flat(entry.clone(), blocks, threads, params)));
            };
            launch(&count, tiles, VALUES, vec![from.keys.into(), self.digit_counts.into(), shift.into()]);
            launch(&starts, 1, SCAN_THREADS, vec![self.digit_counts.into()]);
            let pairs = [from.keys, old_positions, to.keys, to.positions, self.digit_counts];
            let mut params: Vec<KernelParam> = pairs.map(KernelParam::from).to_vec();
            params.push(shift.into());
            launch(&moves, tiles, VALUES, params);
            std::mem::swap(&mut from, &mut to);
        }
        from
    }
}
