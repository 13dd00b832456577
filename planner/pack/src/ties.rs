//! Blocks whose offsets depend on one another's: a block that lies inside another, and blocks whose offsets are equal
//! modulo some number.
//!
//! Both become blocks without ties. An inner block needs no place of its own: the outer one is alive from the first
//! start to the last end of the two, and aligned so that both alignments are kept. Offsets that shall be equal modulo
//! `m` become multiples of `m`, which costs less than `m` bytes in front of each; so a given offset among them must be
//! such a multiple.

use thiserror::Error;

use super::{Block, Config, PackError, Packing, divisor, pack};

/// How the offset of a block depends on another's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tie {
    /// A block lies inside another. Each lies inside one at most.
    Inside {
        /// The inner block.
        block: usize,
        /// The outer block.
        outer: usize,
        /// Where the inner one starts in it.
        at: u64,
    },
    /// The offsets of two blocks are equal modulo a number.
    Modulo {
        /// One block.
        first: usize,
        /// The other.
        second: usize,
        /// The number, more than 0.
        modulus: u64,
    },
}

/// Tied blocks that have no packing.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum TieError {
    /// A tie that cannot be kept.
    #[error("tie {tie} cannot be kept: {reason}")]
    Tie {
        /// The index of the tie.
        tie: usize,
        /// Why.
        reason: &'static str,
    },
    /// The blocks without ties have no packing.
    #[error(transparent)]
    Pack(#[from] PackError),
}

/// Packs blocks some of which are tied. The bound counts an inner block as part of its outermost one.
///
/// # Errors
/// As [`pack`], and the first tie that cannot be kept.
pub fn pack_tied(blocks: &[Block], ties: &[Tie], config: &Config) -> Result<Packing, TieError> {
    let outer = outermost(blocks, ties)?;
    let mut own = blocks.to_vec();
    for (b, &(root, _)) in outer.iter().enumerate().filter(|(b, o)| *b != o.0) {
        let (inner, outer) = (blocks[b], &mut own[root]);
        (outer.start, outer.end) = match inner.start < inner.end && outer.start < outer.end {
            true => (outer.start.min(inner.start), outer.end.max(inner.end)),
            // One that wraps, and what it is tied to, is alive at all times.
            false => (0, 0),
        };
        outer.align = common(outer.align, inner.align).ok_or(PackError::TooLarge)?;
        own[b] = Block { size: 0, align: 1, offset: None, ..inner };
    }
    for (tie, &each) in ties.iter().enumerate() {
        if let Tie::Modulo { first, second, modulus } = each {
            let ((a, at), (b, other)) = (outer[first], outer[second]);
            if at % modulus != other % modulus {
                let reason = "the blocks lie inside others at places that differ modulo it";
                return Err(TieError::Tie { tie, reason });
            }
            for root in [a, b] {
                own[root].align = common(own[root].align, modulus).ok_or(PackError::TooLarge)?;
            }
        }
    }
    let mut packing = pack(&own, config)?;
    for (b, &(root, at)) in outer.iter().enumerate() {
        packing.offsets[b] = packing.offsets[root] + at;
    }
    Ok(packing)
}

/// The outermost block that each lies inside, itself if there is none, and where.
fn outermost(blocks: &[Block], ties: &[Tie]) -> Result<Vec<(usize, u64)>, TieError> {
    let mut outer: Vec<Option<(usize, u64)>> = vec![None; blocks.len()];
    for (tie, &each) in ties.iter().enumerate() {
        let fails = |reason| Err(TieError::Tie { tie, reason });
        match each {
            Tie::Inside { block, outer: o, .. } | Tie::Modulo { first: block, second: o, .. }
                if block.max(o) >= blocks.len() =>
            {
                return fails("there is no such block");
            }
            Tie::Modulo { modulus: 0, .. } => return fails("the modulus is 0"),
            Tie::Modulo { .. } => {}
            Tie::Inside { block, outer: o, at } => {
                let inner = blocks[block];
                if outer[block].replace((o, at)).is_some() {
                    return fails("the block already lies inside another");
                }
                if inner.offset.is_some() {
                    return fails("an inner block has no given offset; the outer one may");
                }
                if at.checked_add(inner.size).is_none_or(|end| end > blocks[o].size) {
                    return fails("the inner block ends behind the outer one");
                }
                if !at.is_multiple_of(inner.align.max(1)) {
                    return fails(
                        "the place inside the outer block is no multiple of the inner one's alignment",
                    );
                }
            }
        }
    }
    let root = |b: usize| {
        let (mut root, mut at, mut steps) = (b, 0, 0);
        while let Some((next, more)) = outer[root] {
            (root, at, steps) = (next, more.saturating_add(at), steps + 1);
            if steps > blocks.len() {
                let circle = |t: &Tie| matches!(t, Tie::Inside { block, .. } if *block == b);
                let tie = ties.iter().position(circle).unwrap_or(0);
                return Err(TieError::Tie { tie, reason: "the blocks lie inside one another in a circle" });
            }
        }
        // Both alignments are kept when the place is a multiple of the inner one's; that holds along the chain only if
        // it does from the outermost one.
        match at.is_multiple_of(blocks[b].align.max(1)) {
            true => Ok((root, at)),
            false => {
                let own = |t: &Tie| matches!(t, Tie::Inside { block, .. } if *block == b);
                let tie = ties.iter().position(own).unwrap_or(0);
                Err(TieError::Tie { tie, reason: "the place inside the outermost block is not aligned" })
            }
        }
    };
    (0..blocks.len()).map(root).collect()
}

/// The least common multiple, if it is less than 2^62.
fn common(a: u64, b: u64) -> Option<u64> {
    let (a, b) = (a.max(1), b.max(1));
    a.checked_mul(b / divisor(a, b)).filter(|&c| c < 1 << 62)
}
