//! The comparison of a plan with its source (`symmc-compare`), as part of this API.

use symmc_check::CheckedPlan;
use symmc_compare::Outcome;

use crate::error::Error;

/// How a plan compares with its source: the worst outcome of its buckets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[non_exhaustive]
pub enum SourceStatus {
    /// The planned programs are the source, node for node.
    #[default]
    Equal,
    /// The parts that differ in form were compared on drawn values and agree. All else is equal node for node.
    EqualByParts,
    /// Some parts were not compared, and no difference was found.
    NotCompared,
    /// A planned program computes something else.
    Different,
}

/// A part of planned programs that has another form than in the source, and that was compared on drawn values.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ComparedPart {
    /// The value that was compared, in the first of its places.
    pub value: String,
    /// The number of nodes with which the source computes it from values that both programs have.
    pub source_nodes: usize,
    /// The number of nodes of the planned program.
    pub planned_nodes: usize,
    /// The number of its places, in all planned programs.
    pub places: usize,
    /// The largest sizes at which it ran, with the bucket, if larger sizes take too long.
    pub up_to: Option<String>,
}

/// The result of comparing a plan with its source.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct SourceComparison {
    /// The number of buckets.
    pub buckets: usize,
    /// The number of buckets whose program is the source, node for node.
    pub equal: usize,
    /// The number of buckets whose program is the source except for parts that were compared and agree.
    pub equal_by_parts: usize,
    /// The parts that were compared.
    pub parts: Vec<ComparedPart>,
    /// The number of elements of these parts that were compared.
    pub elements: u64,
    /// The reasons for which parts were not compared, each with its first value and the number of parts.
    pub left_out: Vec<(String, usize)>,
    /// The parts that differ in some draws only, as ties and roundings of floats do, in the form of differences.
    pub undecided: Vec<String>,
    /// The differences, at most 100: the bucket, its sizes, the value, the output, the rank and the difference.
    pub differences: Vec<String>,
    /// The number of differences that are not listed.
    pub more_differences: usize,
}

/// Compares the programs of a plan with its source, node by node, and on drawn values where the nodes differ.
pub fn compare_with_source(plan: &CheckedPlan) -> SourceComparison {
    let found = symmc_compare::compare(plan);
    let count = |outcome: Outcome| found.buckets.iter().filter(|o| **o == outcome).count();
    let part = |part: &symmc_compare::Part| ComparedPart {
        value: part.value.clone(),
        source_nodes: part.nodes[0],
        planned_nodes: part.nodes[1],
        places: part.places,
        up_to: part.up_to.clone(),
    };
    SourceComparison {
        buckets: plan.buckets.len(),
        equal: count(Outcome::Equal),
        equal_by_parts: count(Outcome::EqualByParts),
        parts: found.parts.iter().map(part).collect(),
        elements: found.elements,
        left_out: found.left_out,
        undecided: found.undecided,
        differences: found.differences,
        more_differences: found.more_differences,
    }
}

impl SourceComparison {
    /// How the plan compares with its source.
    pub fn status(&self) -> SourceStatus {
        match self {
            _ if !self.differences.is_empty() => SourceStatus::Different,
            _ if self.equal == self.buckets => SourceStatus::Equal,
            _ if self.equal + self.equal_by_parts == self.buckets => SourceStatus::EqualByParts,
            _ => SourceStatus::NotCompared,
        }
    }

    /// This comparison, if it found no difference. Parts that were not compared are not differences: see
    /// [`status`](Self::status).
    ///
    /// # Errors
    /// The differences ([`ErrorKind::Check`](crate::ErrorKind::Check)).
    pub fn agreed(self) -> Result<SourceComparison, Error> {
        if self.differences.is_empty() {
            return Ok(self);
        }
        let mut differences = self.differences;
        if self.more_differences > 0 {
            differences.push(format!("{} more differences are not listed", self.more_differences));
        }
        Err(Error::unlike_source(differences))
    }
}
