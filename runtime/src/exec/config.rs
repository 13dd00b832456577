//! Configuration of the walk of steps, and the report of a run.

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
    /// One thread for each lane; the steps are ordered by lanes and waits only, as far as the plan allows.
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
    /// Nanoseconds of each step, without waits for other lanes, if they were measured.
    pub step_ns: Option<Vec<u64>>,
}
