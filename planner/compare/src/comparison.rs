//! What a comparison shows, and what the comparisons of all programs of a plan share.

use std::collections::HashMap;

use symmc_ir::numerics::Numerics;

use crate::judge::Verdict;

/// The most differences that are listed; others are counted.
pub const MOST: usize = 100;

/// How a bucket compares with the source.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Outcome {
    /// Its program is the source's, node for node.
    Equal,
    /// What differs was compared by numbers, and agrees.
    EqualByParts,
    /// Some of what differs was not compared.
    NotCompared,
    /// It computes something else.
    Different,
}

/// A place where planned programs are written in another way than the source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// The value, the first one of those that are alike.
    pub value: String,
    /// The number of nodes in the source, and in the planned program.
    pub nodes: [usize; 2],
    /// The number of places that are alike, in all programs.
    pub places: usize,
    /// The largest sizes that were run, where larger ones take too long.
    pub up_to: Option<String>,
}

/// What comparing a plan with its source showed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Comparison {
    /// How each bucket compares.
    pub buckets: Vec<Outcome>,
    /// The places that were compared by numbers.
    pub parts: Vec<Part>,
    /// The number of elements of results of these.
    pub elements: u64,
    /// Why places were not compared, each reason with the first place and how many there are.
    pub left_out: Vec<(String, usize)>,
    /// What differs in some draws alone, as ties and roundings of floats do.
    pub undecided: Vec<String>,
    /// What differs, at most [`MOST`]: the bucket, its sizes, the output, the value, the rank and the difference.
    pub differences: Vec<String>,
    /// The number of differences that are not listed.
    pub more_differences: usize,
}

/// What the comparisons of all programs share.
pub struct Shared {
    /// What they showed.
    pub comparison: Comparison,
    /// What pairs of parts showed that were run, by their text.
    pub known: HashMap<String, Verdict>,
    /// The parts, by their text at the least sizes of the source.
    pub parts: HashMap<String, usize>,
    /// The numerics classes that the plan declares.
    pub numerics: Numerics,
    /// What may still be computed.
    pub room: u128,
}

impl Comparison {
    /// Adds a reason why a place was not compared.
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
