//! The number of ranks of a program. ONNX Runtime's collectives state it as `group_size`, and there is one
//! file per rank.

use crate::error::FailureReason;

/// The number of ranks as known from the caller, the number of files, and the collectives lowered so far. All
/// collectives span all ranks.
#[derive(Clone)]
pub(crate) struct RankCount {
    files: usize,
    /// A phrase that says where the number comes from, and the number.
    stated: Option<(String, u32)>,
    communicates: bool,
}

impl RankCount {
    pub fn new(requested: Option<u32>, files: usize) -> Result<RankCount, FailureReason> {
        if requested == Some(0) {
            return Err(FailureReason::Ranks("expected at least 1 rank, found 0".into()));
        }
        let mut ranks = RankCount { files, stated: None, communicates: false };
        match requested {
            Some(n) => ranks.record_count("the caller says".into(), n).map(|()| ranks),
            None => Ok(ranks),
        }
    }

    /// Records a collective and its `group_size`, if it has one.
    pub fn record_collective(&mut self, node: &str, group_size: Option<i64>) -> Result<(), FailureReason> {
        self.communicates = true;
        let Some(size) = group_size else { return Ok(()) };
        let n = u32::try_from(size).ok().filter(|n| *n > 0).ok_or_else(|| {
            FailureReason::Ranks(format!("node `{node}`: expected a group_size of at least 1, found {size}"))
        })?;
        self.record_count(format!("the group_size of node `{node}` is"), n)
    }

    fn record_count(&mut self, who: String, n: u32) -> Result<(), FailureReason> {
        match &self.stated {
            Some((_, first)) if *first == n => Ok(()),
            Some((first_who, first)) => {
                let message = format!("conflicting numbers of ranks: {first_who} {first}, {who} {n}");
                Err(FailureReason::Ranks(message))
            }
            None if self.files > 1 && self.files as u64 != u64::from(n) => Err(FailureReason::Ranks(
                format!("expected {n} files, one for each rank, because {who} {n}; found {}", self.files),
            )),
            None => {
                self.stated = Some((who, n));
                Ok(())
            }
        }
    }

    /// The number of ranks as far as it is known now.
    pub fn count_so_far(&self) -> Option<u32> {
        if let Some((_, count)) = &self.stated {
            return Some(*count);
        }
        u32::try_from(self.files).ok().filter(|n| *n > 1)
    }

    /// The number of ranks after all nodes. It is unknown only if there are collectives that do not state it.
    pub fn final_count(&self) -> Option<u32> {
        self.count_so_far().or_else(|| (!self.communicates).then_some(1))
    }
}
