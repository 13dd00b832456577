//! Jobs: a plan runs one or more times on all its ranks, from given inputs to the outputs of the last run.
//!
//! A job is a session on each rank. It opens the session, writes the inputs, runs, and reads the outputs.
//! This is the same for every device; callers provide the function that opens a session on the device
//! ([`OpenSession`]). Ranks are
//! - processes that this one starts ([`launch_job`]),
//! - processes that another launcher started ([`run_rank`]), or
//! - threads of this process ([`run_threads`]).

mod inputs;
mod launch;
mod needs;
mod rank;
mod run;
mod threads;
mod times;
pub mod trace;

pub use launch::{JobMessage, PlanMessage, launch_job, launch_plan_task};
pub use rank::{Job, JobResult, RankJob, run_rank};
pub use run::{OpenSession, SessionRequest, open_on_host};
pub use threads::run_threads;
pub use times::RunTimes;
