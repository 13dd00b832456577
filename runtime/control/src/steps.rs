//! Names of the steps that ranks run, for the errors of ranks that died or stopped there.
//!
//! The coordinator sees numbers of runs, buckets and steps. The code that runs plans knows their names.

use std::fmt;
use std::sync::Arc;

use crate::control::RankProgress;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StepName {
    /// The index of the step in its bucket.
    pub step: usize,
    pub node: String,
    pub op: String,
}

/// Names the step that a rank had begun. Ranks that run no plan have no names.
#[derive(Clone, Default)]
pub struct LocateStep(Option<Arc<Locate>>);

type Locate = dyn Fn(&RankProgress) -> Option<StepName> + Send + Sync;

impl LocateStep {
    pub fn new(locate: impl Fn(&RankProgress) -> Option<StepName> + Send + Sync + 'static) -> LocateStep {
        LocateStep(Some(Arc::new(locate)))
    }

    /// The step that a rank had begun; `None` outside of a run.
    pub fn name(&self, progress: &RankProgress) -> Option<StepName> {
        self.0.as_ref()?(progress)
    }
}

impl fmt::Debug for LocateStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "LocateStep(..)" } else { "LocateStep(none)" })
    }
}
