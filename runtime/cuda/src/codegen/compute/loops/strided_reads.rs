//! Wide reads of operands whose neighbours are a few elements apart, such as every second column.
//!
//! A thread that computes several neighbours reads all of memory from its first element to its last, in
//! aligned accesses, and uses some of the elements. Operands that interleave, such as the even and the odd
//! columns of one value, share these accesses.
//!
//! An access is aligned to its own size, and has at least one element of the operand. It therefore stays
//! within the memory of the operand's allocation, even if it begins before the operand or ends after it.
//! Elements between those of the operand are never used, so other threads may write them.

use std::fmt::Write as _;

use crate::device::launch::DevicePtr;

/// The longest distance of neighbours, in elements.
const MAX_STEP: isize = 4;
/// The sizes of accesses in bytes.
const ACCESS_BYTES: [usize; 3] = [16, 8, 4];

/// An operand with this many elements between neighbours.
#[derive(Clone, Copy, Debug)]
pub(super) struct StridedOperand {
    pub at: DevicePtr,
    /// The size of an element in bytes.
    pub size: usize,
    pub step: usize,
    /// The largest number of elements that divides the distance of any two vectors along other axes.
    pub outer_alignment: usize,
}

/// The accesses that read an operand at the neighbours of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ReadWindow {
    /// The address of the window of the first thread.
    pub start: DevicePtr,
    /// The number of elements from there to the operand's first.
    pub phase: usize,
    pub step: usize,
    /// The number of elements of an access.
    pub access: usize,
    /// The number of accesses.
    pub count: usize,
}

/// The distance of neighbours, if windows can have it.
pub(super) fn step_of(stride: isize) -> Option<usize> {
    (2..=MAX_STEP).contains(&stride).then_some(stride.unsigned_abs())
}

/// The window of a thread that computes `width` neighbours; `None` if accesses of single elements are as few.
pub(super) fn read_window(operand: &StridedOperand, width: usize) -> Option<ReadWindow> {
    let step = operand.step;
    ACCESS_BYTES.into_iter().find_map(|bytes| {
        let access = bytes / operand.size;
        let fits = access >= step.max(2)
            && (width * step).is_multiple_of(access)
            && operand.outer_alignment.is_multiple_of(access);
        if !fits {
            return None;
        }
        let start = |phase: usize| operand.at.offset_by(-((phase * operand.size) as i64));
        let phase = (0..access).find(|&phase| start(phase).is_multiple_of(bytes as u64))?;
        let count = ((width - 1) * step + phase + 1).div_ceil(access);
        (count < width).then(|| ReadWindow { start: start(phase), phase, step, access, count })
    })
}

impl ReadWindow {
    /// Whether both windows read the same memory, except that one may end earlier.
    pub fn covers_same_memory(&self, other: &ReadWindow) -> bool {
        (self.start, self.step, self.access) == (other.start, other.step, other.access)
    }

    /// Statements that read the window into `name`. `element` is the address of the operand's first element.
    pub fn read_text(&self, out: &mut String, name: &str, kind: &str, element: &str) {
        let ReadWindow { phase, access, count, .. } = self;
        let _ = writeln!(
            out,
            "        Few<{kind}, {access}> {name}[{count}];\n#pragma unroll\n        \
             for (int k = 0; k < {count}; k++) read<{kind}, {access}>({name}[k], {element} - {phase} + k * {access});"
        );
    }

    /// The element of neighbour `j` in the window `name`.
    pub fn element_text(&self, name: &str) -> String {
        let ReadWindow { phase, step, access, .. } = self;
        format!("{name}[({phase} + j * {step}) / {access}].e[({phase} + j * {step}) % {access}]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(at: u64, size: usize, step: usize, outer_alignment: usize, width: usize) -> Option<[usize; 3]> {
        let operand = StridedOperand { at: DevicePtr::from(at), size, step, outer_alignment };
        let window = read_window(&operand, width)?;
        assert_eq!(window.start.offset_by((window.phase * size) as i64), operand.at);
        Some([window.phase, window.access, window.count])
    }

    #[test]
    fn windows_are_as_wide_as_alignment_allows() {
        // Even and odd columns of two bytes.
        assert_eq!(window(0x100, 2, 2, 4096, 8), Some([0, 8, 2]));
        assert_eq!(window(0x102, 2, 2, 4096, 8), Some([1, 8, 2]));
        // The last odd columns of a vector that begins in the middle of an access.
        assert_eq!(window(0x10a, 2, 2, 4096, 8), Some([5, 8, 3]));
        // Rows of 4 · n elements.
        assert_eq!(window(0x102, 2, 2, 4, 8), Some([1, 4, 4]));
        assert_eq!(window(0x100, 2, 2, 3, 8), None);
        assert_eq!(window(0x100, 2, 3, 8, 8), Some([0, 8, 3]));
        assert_eq!(window(0x100, 2, 4, 8, 8), Some([0, 8, 4]));
        assert_eq!(window(0x104, 4, 2, 4, 4), Some([1, 4, 2]));
        assert_eq!(window(0x100, 4, 4, 4, 4), None);
        assert_eq!(window(0x100, 8, 2, 2, 2), None);
        assert_eq!(window(0x103, 1, 2, 16, 16), Some([3, 16, 3]));
        // Addresses that are no multiple of an element's size have no window.
        assert_eq!(window(0x101, 2, 2, 8, 8), None);
    }

    #[test]
    fn every_access_has_an_element() {
        for size in [1, 2, 4, 8] {
            for step in 2..=4 {
                for width in [2, 4, 8, 16] {
                    for first in 0..16 {
                        let address = DevicePtr::from((0x100 + first * size) as u64);
                        let operand = StridedOperand { at: address, size, step, outer_alignment: 16 };
                        let Some(window) = read_window(&operand, width) else { continue };
                        for k in 0..window.count {
                            let used = (0..width).any(|j| (window.phase + j * step) / window.access == k);
                            assert!(used, "{operand:?} {width}: access {k} of {window:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn steps_are_short_and_positive() {
        assert_eq!([-2, 0, 1, 2, 4, 5].map(step_of), [None, None, None, Some(2), Some(4), None]);
    }
}
