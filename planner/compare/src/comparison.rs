//! The result of a comparison, and the state that the comparisons of all programs of a plan share.

use std::collections::HashMap;

use symmc_ir::numerics::Numerics;

use crate::judge::Verdict;

/// The most differences that are listed; others are counted.
pub const MOST: usize = 100;

/// How a bucket compares with the source.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Outcome {
    /// Its program is the source, node for node.
    Equal,
    /// The parts that differ from the source agree on drawn values.
    EqualByParts,
    /// Some parts that differ from the source were not compared.
    NotCompared,
    /// Its program computes something else.
    Different,
}

/// A part of planned programs that has another form than in the source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// The value that it computes, in the first of its places.
    pub value: String,
    /// The number of nodes in the source, and in the planned program.
    pub nodes: [usize; 2],
    /// The number of its places, in all programs.
    pub places: usize,
    /// The largest sizes at which it ran, if larger sizes take too long.
    pub up_to: Option<String>,
}

/// The result of comparing a plan with its source.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Comparison {
    /// How each bucket compares.
    pub buckets: Vec<Outcome>,
    /// The parts that were compared on drawn values.
    pub parts: Vec<Part>,
    /// The number of result elements that were compared.
    pub elements: u64,
    /// The reasons for which parts were not compared, each with its first part and the number of parts.
    pub left_out: Vec<(String, usize)>,
    /// The parts that differ in some draws only, as ties and roundings of floats do.
    pub undecided: Vec<String>,
    /// The differences, at most [`MOST`]: the bucket, its sizes, the output, the value, the rank and the difference.
    pub differences: Vec<String>,
    /// The number of differences that are not listed.
    pub more_differences: usize,
}

/// The state that the comparisons of all programs share.
pub struct Shared {
    /// The result so far.
    pub comparison: Comparison,
    /// The verdicts on pairs of parts that were run, by their text.
    pub known: HashMap<String, Verdict>,
    /// The parts, by their text at the least sizes of the source.
    pub parts: HashMap<String, usize>,
    /// The numerics classes that the plan declares.
    pub numerics: Numerics,
    /// The elements that may still be computed.
    pub room: u128,
}

impl Comparison {
    /// Adds a reason for which a part was not compared.
    pub fn leave_out(&mut self, reason: String) {
        if let Some((_, count)) = self.left_out.iter_mut().find(|(known, _)| *known == reason) {
            *count += 1;
        } else if self.left_out.len() < MOST {
            self.left_out.push((reason, 1));
        }
    }

    /// Adds a difference.
    pub fn differ(&mut self, difference: String) {
        match self.differences.len() {
            n if n < MOST => self.differences.push(difference),
            _ => self.more_differences += 1,
        }
    }
}
