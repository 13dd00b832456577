//! The result of a comparison.
//!
//! Lists are bounded, and each has a count of the entries that are not listed. The text form names every part
//! that was not compared, or only in part.

use std::fmt;

use crate::proof::EquationClass;

/// The largest number of entries of each list.
pub const MAX_LISTED_ENTRIES: usize = 100;
const MAX_SHOWN_PARTS: usize = 20;

/// The result of the comparison of a plan, or of a bucket, with its source.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[non_exhaustive]
pub enum SourceStatus {
    /// The planned programs are the source, node for node.
    #[default]
    Equal,
    /// The parts that differ in form were proven equal. All other nodes are equal.
    EqualByProof,
    /// Some parts that differ in form were compared on drawn values and agree. The others were proven equal, and all
    /// other nodes are equal.
    EqualByParts,
    /// Some parts were not compared, or their comparison gave no decision. No difference was found.
    NotCompared,
    Different,
}

/// A reason why the comparison of a part is not complete.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum LimitKind {
    /// The upper end of a bucket takes too long. The part ran up to the stated sizes.
    UpTo,
    /// The part did not run at the stated sizes, which take too long.
    TooLong,
    /// The part did not run at all sizes at which a condition may change, because there are too many.
    Conditions,
    /// Only the stated positions along axes were compared.
    Sampled,
    /// The part ran on one draw of values of moderate magnitude.
    OneDraw,
    /// The part ran on one or two draws of each kind that concerns its ops.
    FewDraws,
    /// The bounds checks of the source reject the upper end of a bucket. The part ran up to the largest accepted sizes that
    /// were found.
    Bounded,
}

#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct PartLimit {
    pub kind: LimitKind,
    /// The bucket and sizes of one such case, and the sizes or positions that were compared there. A case at
    /// the upper end of a bucket is preferred.
    pub at: String,
    /// The number of sizes with this limit, in all buckets.
    pub sizes: u64,
}

impl PartLimit {
    pub(crate) fn new(kind: LimitKind, at: String) -> PartLimit {
        PartLimit { kind, at, sizes: 1 }
    }

    /// Whether the part did not run at sizes at which it should.
    pub fn is_partial(&self) -> bool {
        matches!(self.kind, LimitKind::UpTo | LimitKind::TooLong | LimitKind::Conditions)
    }
}

impl fmt::Display for PartLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PartLimit { kind, at, sizes } = self;
        match kind {
            LimitKind::UpTo => write!(f, "up to {at}; larger sizes take too long")?,
            LimitKind::TooLong => write!(f, "not at {at}, which takes too long")?,
            LimitKind::Conditions => {
                return write!(f, "not at {sizes} other sizes where a condition may change, as in {at}");
            }
            LimitKind::Sampled => write!(f, "at {at}")?,
            LimitKind::OneDraw => write!(f, "one draw at {at}")?,
            LimitKind::FewDraws => write!(f, "few draws at {at}")?,
            LimitKind::Bounded => write!(f, "up to {at}; the source rejects larger sizes")?,
        }
        match sizes.saturating_sub(1) {
            0 => Ok(()),
            more => write!(f, " (and likewise for {})", count_text(more, "other size")),
        }
    }
}

/// A part of planned programs that differs in form from the source, and that was proven equal, or compared on drawn
/// values.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ComparedPart {
    /// The compared value, in the first of its places.
    pub value: String,
    /// The number of nodes by which the source computes the value from values that both programs have.
    pub source_nodes: usize,
    /// The number of nodes of the planned program.
    pub planned_nodes: usize,
    /// The number of its places, in all planned programs.
    pub places: usize,
    /// The class of the equations that prove the part. `None` if it was compared on drawn values.
    pub proof: Option<EquationClass>,
    /// The limits of the comparison, at most one entry of each kind.
    pub limits: Vec<PartLimit>,
}

impl ComparedPart {
    pub(crate) fn new(
        value: String,
        [source_nodes, planned_nodes]: [usize; 2],
        proof: Option<EquationClass>,
    ) -> ComparedPart {
        ComparedPart { value, source_nodes, planned_nodes, places: 1, proof, limits: Vec::new() }
    }

    /// Whether the part did not run at sizes at which it should: the upper end of a bucket, or a size at which a condition
    /// may change.
    pub fn is_partial(&self) -> bool {
        self.limits.iter().any(PartLimit::is_partial)
    }

    pub(crate) fn add_limits(&mut self, limits: &[PartLimit]) {
        for limit in limits {
            add_limit(&mut self.limits, limit.clone(), true);
        }
    }
}

/// Adds a limit. `replaces` says whether its sizes replace those that are stated already.
pub(crate) fn add_limit(limits: &mut Vec<PartLimit>, limit: PartLimit, replaces: bool) {
    match limits.iter_mut().find(|existing| existing.kind == limit.kind) {
        Some(existing) => {
            existing.sizes = existing.sizes.saturating_add(limit.sizes);
            if replaces {
                existing.at = limit.at;
            }
        }
        None => {
            limits.push(limit);
            limits.sort_by_key(|limit| limit.kind);
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct SourceComparison {
    pub buckets: Vec<SourceStatus>,
    /// The parts that were proven equal, or compared on drawn values.
    pub parts: Vec<ComparedPart>,
    /// The number of result elements that were compared.
    pub elements: u64,
    /// The reasons for which parts were not compared, each with its first part and the number of parts; at most 100.
    pub left_out: Vec<(String, usize)>,
    /// The number of parts that were not compared for reasons that are not listed.
    pub more_left_out: usize,
    /// The parts that differ by more than rounding in some draws only, so that nothing is decided; at most 100.
    pub undecided: Vec<String>,
    /// The number of undecided parts that are not listed.
    pub more_undecided: usize,
    /// The differences, at most 100: the bucket, its sizes, the value, the output, the rank and the difference.
    pub differences: Vec<String>,
    /// The number of differences that are not listed.
    pub more_differences: usize,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceDifferences(pub Vec<String>);

impl SourceComparison {
    /// How the plan compares with its source: the worst status of its buckets.
    pub fn status(&self) -> SourceStatus {
        if !self.differences.is_empty() {
            return SourceStatus::Different;
        }
        self.buckets.iter().copied().max().unwrap_or_default()
    }

    /// Whether no difference was found, and every part was compared: at both ends of each bucket, and at the sizes at which
    /// conditions change.
    pub fn is_complete(&self) -> bool {
        self.status() <= SourceStatus::EqualByParts && !self.parts.iter().any(ComparedPart::is_partial)
    }

    /// This comparison, if it found no difference. Parts that were not compared are not differences: see
    /// [`is_complete`](Self::is_complete).
    pub fn into_agreement(self) -> Result<SourceComparison, SourceDifferences> {
        if self.differences.is_empty() {
            return Ok(self);
        }
        let mut differences = self.differences;
        if self.more_differences > 0 {
            differences.push(format!("{} more differences are not listed", self.more_differences));
        }
        Err(SourceDifferences(differences))
    }

    /// Adds a part that was not compared: `value` for `reason`.
    pub(crate) fn add_uncompared(&mut self, value: &str, reason: &str) {
        let entry = self.left_out.iter_mut().find(|(text, _)| text.ends_with(reason));
        if let Some((_, count)) = entry {
            *count += 1;
        } else if self.left_out.len() < MAX_LISTED_ENTRIES {
            self.left_out.push((format!("{value}: {reason}"), 1));
        } else {
            self.more_left_out += 1;
        }
    }

    pub(crate) fn add_undecided(&mut self, what: String) {
        match self.undecided.len() {
            n if n < MAX_LISTED_ENTRIES => self.undecided.push(what),
            _ => self.more_undecided += 1,
        }
    }

    pub(crate) fn add_difference(&mut self, difference: String) {
        match self.differences.len() {
            n if n < MAX_LISTED_ENTRIES => self.differences.push(difference),
            _ => self.more_differences += 1,
        }
    }

    fn describe_proofs(&self) -> String {
        match self.parts.iter().filter(|part| part.proof.is_some()).count() {
            0 => String::new(),
            proven => format!("proof of {}, and by ", count_text(proven, "part")),
        }
    }

    fn summary(&self) -> String {
        let undecided = self.undecided.len() + self.more_undecided;
        match self.status() {
            SourceStatus::Equal => {
                format!("equal to its source, node for node, in {}", count_text(self.buckets.len(), "bucket"))
            }
            SourceStatus::EqualByProof => format!(
                "equal to its source by proof of {}; all else is equal node for node",
                count_text(self.parts.len(), "part"),
            ),
            SourceStatus::EqualByParts => format!(
                "equal to its source by {}comparison of {} on drawn values ({}); all else is equal node for node",
                self.describe_proofs(),
                count_text(self.parts.iter().filter(|part| part.proof.is_none()).count(), "part"),
                count_text(self.elements, "element"),
            ),
            SourceStatus::NotCompared => {
                let uncompared = self.left_out.iter().map(|(_, n)| n).sum::<usize>() + self.more_left_out;
                let mut caveats = Vec::new();
                if uncompared > 0 || undecided == 0 {
                    caveats
                        .push(format!("not compared with its source in {}", count_text(uncompared, "part")));
                }
                if undecided > 0 {
                    caveats.push(format!("undecided in {}", count_text(undecided, "part")));
                }
                format!("{}; no difference found in the others", caveats.join(", "))
            }
            SourceStatus::Different => {
                format!(
                    "{} from its source",
                    count_text(self.differences.len() + self.more_differences, "difference")
                )
            }
        }
    }
}

/// The summary, then a line for each part and reason. Differences are listed by [`SourceComparison::into_agreement`].
impl fmt::Display for SourceComparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.summary())?;
        let (partial, complete): (Vec<_>, Vec<_>) = self.parts.iter().partition(|part| part.is_partial());
        let (proven, compared): (Vec<_>, Vec<_>) =
            complete.into_iter().partition(|part| part.proof.is_some());
        for (how, parts) in [("compared", [partial, compared].concat()), ("proven", proven)] {
            for part in parts.iter().take(MAX_SHOWN_PARTS) {
                writeln!(f, "  {how}: {part}")?;
            }
            if let Some(unshown) = parts.len().checked_sub(MAX_SHOWN_PARTS).filter(|unshown| *unshown > 0) {
                writeln!(f, "  {how}: {} more", count_text(unshown, "part"))?;
            }
        }
        for (reason, times) in &self.left_out {
            let places = if *times > 1 { format!(" (and {} more)", times - 1) } else { String::new() };
            writeln!(f, "  not compared: {reason}{places}")?;
        }
        if self.more_left_out > 0 {
            writeln!(f, "  not compared: {} for other reasons", count_text(self.more_left_out, "more part"))?;
        }
        for difference in &self.undecided {
            writeln!(
                f,
                "  undecided: differs by more than rounding for some drawn values only: {difference}"
            )?;
        }
        if self.more_undecided > 0 {
            writeln!(f, "  undecided: {}", count_text(self.more_undecided, "more part"))?;
        }
        Ok(())
    }
}

impl fmt::Display for ComparedPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = count_text(self.source_nodes, "node");
        let planned = self.planned_nodes;
        write!(f, "%{} ({source} of the source, {planned} planned", self.value)?;
        if self.places > 1 {
            write!(f, ", in {} places", self.places)?;
        }
        match self.proof {
            Some(EquationClass::Rounding) => f.write_str("; up to the rounding of intermediate values")?,
            Some(EquationClass::Reassociate) => f.write_str("; up to the order of sums")?,
            Some(EquationClass::Bits) | None => {}
        }
        for limit in &self.limits {
            write!(f, "; {limit}")?;
        }
        f.write_str(")")
    }
}

impl fmt::Display for SourceDifferences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for SourceDifferences {}

fn count_text(n: impl TryInto<u64>, what: &str) -> String {
    let n = n.try_into().unwrap_or(u64::MAX);
    let plural = if n == 1 { "" } else { "s" };
    format!("{n} {what}{plural}")
}
