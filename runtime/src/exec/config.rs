//! How steps are walked, and what a run reports.

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ExecConfig {
    pub lanes: Lanes,
    pub timing: Timing,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Lanes {
    /// The caller's thread runs all steps in the order of the plan.
    #[default]
    Inline,
    /// One thread for each lane; only lanes and waits order the steps, as far as the plan allows.
    Threads,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Timing {
    #[default]
    Off,
    Steps,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RunReport {
    /// The index of the bucket that served the run.
    pub bucket: usize,
    /// Nanoseconds of each step, waits for other lanes not included, if they were measured.
    pub step_ns: Option<Vec<u64>>,
}
