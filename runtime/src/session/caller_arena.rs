//! Symmetric memory of the caller: a part of the arenas after the plan's memory, with the same size on all
//! ranks.
//!
//! Blocks have the same offset on all ranks and are never reused, so an offset names one block for as long as
//! the session exists.

use std::ops::Range;

use symmc_plan::{PAGE, Plan};

use super::port::DeviceRange;
use crate::error::{Result, RunError};

const BLOCK: usize = 256;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallerArena {
    /// In bytes from the start of the arena.
    range: Range<usize>,
    /// The lowest offset of the next block.
    next: usize,
}

impl CallerArena {
    /// A part of `bytes` bytes, without any blocks. Fails if the arena would be larger than any memory.
    pub fn new(plan: &Plan, bytes: usize) -> Result<CallerArena> {
        let planned = usize::try_from(plan.arenas.symmetric).ok();
        let start = planned.and_then(|end| end.checked_next_multiple_of(PAGE as usize));
        let end = start.and_then(|start| start.checked_add(bytes)?.checked_next_multiple_of(PAGE as usize));
        let (Some(start), Some(end)) = (start, end) else {
            return Err(RunError::Memory {
                what: "the symmetric arena".into(),
                bytes,
                error: "its size overflows".into(),
            });
        };
        let range = if bytes == 0 { start..start } else { start..end };
        Ok(CallerArena { next: start, range })
    }

    /// The end of the part, which is the size of the arena.
    pub fn end(&self) -> usize {
        self.range.end
    }

    /// Whether no block was allocated.
    pub fn is_unused(&self) -> bool {
        self.next == self.range.start
    }

    /// Allocates a block. `requests` are the sizes that the ranks request, which all of them know. Fails if the
    /// ranks request different sizes, or not enough memory is left; on all ranks with the same error.
    pub fn allocate_block(&mut self, requests: &[Vec<u8>], rank: u32) -> Result<Range<usize>> {
        let sizes: Vec<u64> = requests
            .iter()
            .map(|bytes| <[u8; 8]>::try_from(&bytes[..]).map(u64::from_le_bytes).unwrap_or(0))
            .collect();
        let mine = sizes.get(rank as usize).copied().unwrap_or(0);
        if sizes.iter().any(|&other| other != mine) {
            return Err(RunError::Invalid(format!(
                "symmetric memory of the caller: all ranks must allocate the same size, found {sizes:?} bytes by rank"
            )));
        }
        let remaining = self.range.end - self.next;
        let block = usize::try_from(mine).ok().filter(|&bytes| bytes <= remaining);
        let Some(bytes) = block else {
            return Err(RunError::Invalid(format!(
                "symmetric memory of the caller: expected at most {remaining} bytes, found {mine}; its size is set when the \
                 session is opened"
            )));
        };
        let start = self.next;
        self.next = (start + bytes).next_multiple_of(BLOCK).min(self.range.end);
        Ok(start..start + bytes)
    }

    /// The offset of memory in the arena, if it lies in allocated blocks.
    pub fn block_offset(&self, memory: DeviceRange, arena: DeviceRange) -> Option<usize> {
        let start = usize::try_from(memory.address.checked_sub(arena.address)?).ok()?;
        let end = start.checked_add(memory.bytes)?;
        (start >= self.range.start && end <= self.next).then_some(start)
    }

    /// The parts of the arena that do not belong to the caller's blocks.
    pub fn surrounding_ranges(&self, arena: DeviceRange) -> [DeviceRange; 2] {
        let after = arena.bytes.max(self.next);
        [subrange(arena, 0, self.range.start), subrange(arena, self.next, after)]
    }
}

fn subrange(arena: DeviceRange, start: usize, end: usize) -> DeviceRange {
    DeviceRange { address: arena.address.saturating_add(start as u64), bytes: end.saturating_sub(start) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(start: usize, end: usize) -> CallerArena {
        CallerArena { range: start..end, next: start }
    }

    fn asked(bytes: [u64; 2]) -> Vec<Vec<u8>> {
        bytes.iter().map(|n| n.to_le_bytes().to_vec()).collect()
    }

    #[test]
    fn blocks_lie_behind_each_other_until_nothing_is_left() {
        let mut arena = part(4096, 8192);
        let ranges = arena.surrounding_ranges(DeviceRange { address: 0, bytes: 9000 });
        assert_eq!(
            ranges,
            [DeviceRange { address: 0, bytes: 4096 }, DeviceRange { address: 4096, bytes: 4904 }]
        );
        let mut end = 4096;
        for (bytes, taken) in [(1, 256), (256, 256), (0, 0), (3000, 3072)] {
            assert_eq!(
                arena.allocate_block(&asked([bytes; 2]), 1).expect("it fits"),
                end..end + bytes as usize
            );
            end += taken;
        }
        let error = arena.allocate_block(&asked([513; 2]), 0).expect_err("512 bytes are left").to_string();
        assert!(error.contains("expected at most 512 bytes, found 513"), "{error}");
        let error = arena.allocate_block(&asked([8, 9]), 0).expect_err("they differ").to_string();
        assert!(error.contains("[8, 9]"), "{error}");
        assert!(arena.allocate_block(&asked([u64::MAX; 2]), 0).is_err());
        assert_eq!(arena.allocate_block(&asked([512; 2]), 0).expect("it fits"), 7680..8192);
    }

    #[test]
    fn memory_is_the_callers_where_all_of_it_was_taken() {
        let mut caller = part(4096, 8192);
        caller.allocate_block(&asked([1000; 2]), 0).expect("it fits");
        let arena = DeviceRange { address: 1 << 20, bytes: 1 << 14 };
        let offset_of = |offset: u64, bytes| {
            caller.block_offset(DeviceRange { address: (1 << 20) + offset, bytes }, arena)
        };
        assert_eq!((offset_of(4096, 1000), offset_of(4160, 8)), (Some(4096), Some(4160)));
        assert_eq!((offset_of(4095, 8), offset_of(4096, 1025), offset_of(8192, 0)), (None, None, None));
        assert_eq!(caller.block_offset(DeviceRange { address: 5, bytes: 8 }, arena), None);
    }
}
