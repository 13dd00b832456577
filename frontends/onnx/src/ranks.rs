//! How many ranks a program has. ONNX Runtime's collectives state it (`group_size`), and there is one file for each
//! rank.

use crate::error::FailureReason;

/// What is known of the number of ranks, from what the caller says, the number of files, and the collectives that
/// were lowered: all of them are among all ranks.
pub(crate) struct RankCount {
    files: usize,
    /// Who states the number, in words, and the number.
    stated: Option<(String, u32)>,
    communicates: bool,
}

impl RankCount {
    pub fn new(asked: Option<u32>, files: usize) -> Result<RankCount, FailureReason> {
        if asked == Some(0) {
            return Err(FailureReason::Ranks("expected at least 1 rank, found 0".into()));
        }
        let mut ranks = RankCount { files, stated: None, communicates: false };
        match asked {
            Some(n) => ranks.record_count("the caller says".into(), n).map(|()| ranks),
            None => Ok(ranks),
        }
    }

    /// Takes in a collective with its `group_size`, if it has one.
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
                Err(FailureReason::Ranks(format!("the number of ranks: {first_who} {first}, {who} {n}")))
            }
            None if self.files > 1 && self.files as u64 != u64::from(n) => Err(FailureReason::Ranks(
                format!("expected {n} files, one for each rank, as {who} {n}; found {}", self.files),
            )),
            None => {
                self.stated = Some((who, n));
                Ok(())
            }
        }
    }

    /// The number so far.
    pub fn count_so_far(&self) -> Option<u32> {
        let of_files = || u32::try_from(self.files).ok().filter(|n| *n > 1);
        self.stated.as_ref().map(|(_, n)| *n).or_else(of_files)
    }

    /// The number after all nodes; it stays open only where there are collectives that do not state it.
    pub fn final_count(&self) -> Option<u32> {
        self.count_so_far().or_else(|| (!self.communicates).then_some(1))
    }
}
