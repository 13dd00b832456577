//! Divides a problem into parts: stretches of time that no lifetime connects. Parts are packed separately, and
//! parts of equal shape once.
//!
//! Deliberately absent: wrapped lifetimes, which connect both ends of time, and given offsets.

use std::collections::HashMap;

use crate::block::{Block, BlockSpans, has_plain_lifetimes};

/// Start and end within the part, size and alignment.
type Shape = (u32, u32, u64, u64);

/// The blocks of each part. Parts are in order of time, and the blocks of a part in order of their index.
/// `None` if there is only one part.
pub fn split_into_parts(blocks: &[Block], spans: &BlockSpans) -> Option<Vec<Vec<u32>>> {
    if !has_plain_lifetimes(blocks) {
        return None;
    }
    // The number of lifetimes that continue at each section, by differences. Afterwards the number of the part.
    let mut change = vec![0i32; spans.sections + 1];
    for [(from, to), _] in spans.ranges.iter().filter(|[(from, to), _]| from < to) {
        change[*from as usize + 1] += 1;
        change[*to as usize] -= 1;
    }
    let mut going_on = 0;
    let mut part_index = 0u32;
    let number: Vec<u32> = change
        .iter()
        .enumerate()
        .map(|(t, c)| {
            going_on += c;
            part_index += u32::from(going_on == 0 && t > 0);
            part_index
        })
        .collect();
    let mut part_blocks = vec![Vec::new(); part_index as usize + 1];
    for (b, [(from, _), _]) in (0..).zip(&spans.ranges) {
        part_blocks[number[*from as usize] as usize].push(b);
    }
    part_blocks.retain(|p: &Vec<u32>| !p.is_empty());
    (part_blocks.len() > 1).then_some(part_blocks)
}

/// The offsets of parts, by their shapes.
#[derive(Default)]
pub struct PartOffsets {
    offsets: HashMap<Vec<Shape>, Vec<u64>>,
}

impl PartOffsets {
    /// Stores the offsets of a part: those of an earlier part of its shape, or the result of `pack`.
    pub fn place_part<E>(
        &mut self,
        blocks: &[Block],
        spans: &BlockSpans,
        part: &[u32],
        offsets: &mut [u64],
        pack: impl FnOnce(&[Block]) -> Result<Vec<u64>, E>,
    ) -> Result<(), E> {
        let start = part.iter().map(|&b| spans.ranges[b as usize][0].0).min().unwrap_or(0);
        let mut shapes: Vec<(Shape, u32)> = (0..)
            .zip(part)
            .map(|(i, &b)| {
                let ([(from, to), _], block) = (spans.ranges[b as usize], &blocks[b as usize]);
                ((from - start, to - start, block.size, block.align.max(1)), i)
            })
            .collect();
        shapes.sort_unstable();
        let shape: Vec<Shape> = shapes.iter().map(|s| s.0).collect();
        if let Some(stored) = self.offsets.get(&shape) {
            shapes
                .iter()
                .zip(stored)
                .for_each(|(&(_, i), &offset)| offsets[part[i as usize] as usize] = offset);
            return Ok(());
        }
        let own: Vec<Block> = part.iter().map(|&b| blocks[b as usize]).collect();
        let packed = pack(&own)?;
        part.iter().zip(&packed).for_each(|(&b, &offset)| offsets[b as usize] = offset);
        self.offsets.insert(shape, shapes.iter().map(|&(_, i)| packed[i as usize]).collect());
        Ok(())
    }
}
