//! Statistics about a proof: the amount of work that the check did.

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CheckReport {
    pub buckets: usize,
    pub steps: usize,
    /// The number of base values with a location, over all buckets.
    pub values: usize,
    /// The number of ranks that were simulated. They represent all others by symmetry.
    pub simulated: usize,
    /// The number of simulated ranks whose memory was examined.
    pub examined: usize,
    pub accesses: u64,
    /// The number of pairs of accesses to shared bytes that were compared.
    pub compared: u64,
    /// The number of clocks that were joined at rendezvous.
    pub joins: u64,
    /// The number of simulated runs that follow another run.
    pub sequences: usize,
}

impl std::fmt::Display for CheckReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let buckets = if self.buckets == 1 { "bucket" } else { "buckets" };
        write!(
            f,
            "{} {buckets}, {} steps, {} values; {} accesses, {} conflicting pairs ordered, {} pairs of runs",
            self.buckets, self.steps, self.values, self.accesses, self.compared, self.sequences
        )
    }
}
