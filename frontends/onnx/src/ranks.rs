//! How many ranks a program has. ONNX Runtime's collectives state it (`group_size`), and there is one file for each
//! rank.

use crate::error::Reason;

/// What is known of the number of ranks, from what the caller says, the number of files, and the collectives that
/// were lowered: all of them are among all ranks.
pub(crate) struct Ranks {
    files: usize,
    /// Who states the number, in words, and the number.
    stated: Option<(String, u32)>,
    communicates: bool,
}

impl Ranks {
    pub fn new(asked: Option<u32>, files: usize) -> Result<Ranks, Reason> {
        if asked == Some(0) {
            return Err(Reason::Ranks("expected at least 1 rank, found 0".into()));
        }
        let mut ranks = Ranks { files, stated: None, communicates: false };
        match asked {
            Some(n) => ranks.state("the caller says".into(), n).map(|()| ranks),
            None => Ok(ranks),
        }
    }

    /// Takes in a collective with its `group_size`, if it has one.
    pub fn collective(&mut self, node: &str, group_size: Option<i64>) -> Result<(), Reason> {
        self.communicates = true;
        let Some(size) = group_size else { return Ok(()) };
        let n = u32::try_from(size).ok().filter(|n| *n > 0).ok_or_else(|| {
            Reason::Ranks(format!("node `{node}`: expected a group_size of at least 1, found {size}"))
        })?;
        self.state(format!("the group_size of node `{node}` is"), n)
    }

    fn state(&mut self, who: String, n: u32) -> Result<(), Reason> {
        match &self.stated {
            Some((_, first)) if *first == n => Ok(()),
            Some((first_who, first)) => {
                Err(Reason::Ranks(format!("the number of ranks: {first_who} {first}, {who} {n}")))
            }
            None if self.files > 1 && self.files as u64 != u64::from(n) => Err(Reason::Ranks(format!(
                "expected {n} files, one for each rank, as {who} {n}; found {}",
                self.files
            ))),
            None => {
                self.stated = Some((who, n));
                Ok(())
            }
        }
    }

    /// The number so far.
    pub fn known(&self) -> Option<u32> {
        let of_files = || u32::try_from(self.files).ok().filter(|n| *n > 1);
        self.stated.as_ref().map(|(_, n)| *n).or_else(of_files)
    }

    /// The number after all nodes; it stays open only where there are collectives that do not state it.
    pub fn settled(&self) -> Option<u32> {
        self.known().or_else(|| (!self.communicates).then_some(1))
    }
}
