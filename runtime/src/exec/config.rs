//! How steps are walked, and what a run reports.

/// How steps are walked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ExecConfig {
    /// Which threads run them.
    pub lanes: Lanes,
    /// What is measured.
    pub timing: Timing,
}

/// Which threads run the steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Lanes {
    /// The caller's thread runs all steps in the order of the plan.
    #[default]
    Inline,
    /// One thread for each lane; only lanes and waits order the steps, as far as the plan allows.
    Threads,
}

/// What is measured while steps run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Timing {
    /// Nothing.
    #[default]
    Off,
    /// The time of each step.
    Steps,
}

/// What a run reports.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RunReport {
    /// The index of the bucket that served the run.
    pub bucket: usize,
    /// Nanoseconds of each step, waits for other lanes not included, if they were measured.
    pub step_ns: Option<Vec<u64>>,
}
