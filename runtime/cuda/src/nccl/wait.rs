//! Waits for the library, which works in the background. Waits have a limit, and end when a rank has left.

use std::time::{Duration, Instant};

use nccl_sys::{Comm, Nccl, ResultCode, result_code};
use symmc_runtime::RunError;

use crate::error::{CudaError, Result};

/// The limit of a wait, and the check that the run has not ended.
#[derive(Clone, Copy)]
pub(super) struct CallDeadline<'a> {
    /// The limit of each wait.
    pub limit: Duration,
    /// Fails if another rank has ended the run.
    pub alive: &'a dyn Fn() -> Result<(), RunError>,
}

impl CallDeadline<'_> {
    /// Polls until `ask` returns a value. Fails if `ask` failed, another rank has ended the run, or `what`
    /// took longer than the limit.
    pub fn poll_until<T>(&self, what: &str, mut ask: impl FnMut() -> Result<Option<T>>) -> Result<T> {
        let start = Instant::now();
        let mut pause = Duration::from_micros(5);
        loop {
            if let Some(answer) = ask()? {
                return Ok(answer);
            }
            (self.alive)()?;
            if start.elapsed() > self.limit {
                let ms = self.limit.as_millis();
                let detail = format!("not done within {ms} ms: a rank of the group did not arrive");
                return Err(CudaError::Library { call: what.into(), detail });
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(1));
        }
    }

    /// Waits until a call on a communicator, which returned `code`, is done. Fails if the call failed, or as
    /// [`poll_until`](Self::poll_until).
    ///
    /// # Safety
    /// The communicator exists.
    pub unsafe fn wait_for_call(
        &self,
        nccl: &Nccl,
        comm: Comm,
        call: &'static str,
        code: ResultCode,
    ) -> Result<()> {
        if code != result_code::IN_PROGRESS {
            nccl.check_code(call, code)?;
        }
        // Some calls return success while their work continues; the communicator's state shows the truth.
        self.poll_until(call, || {
            // SAFETY: by the caller.
            match unsafe { nccl.async_state(comm) }? {
                result_code::IN_PROGRESS => Ok(None),
                code => nccl.check_code(call, code).map(Some).map_err(CudaError::from),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_the_answer_the_run_or_the_limit() {
        let deadline = CallDeadline { limit: Duration::from_secs(60), alive: &|| Ok(()) };
        let mut polls = 0;
        let answer = deadline.poll_until("x", || {
            polls += 1;
            Ok((polls == 3).then_some(polls))
        });
        assert_eq!(answer, Ok(3));
        let gone = RunError::Aborted { rank: 1, reason: "no library".into() };
        let deadline = CallDeadline { alive: &|| Err(gone.clone()), ..deadline };
        assert_eq!(deadline.poll_until("x", || Ok(None::<u8>)), Err(gone.clone().into()));
        let deadline = CallDeadline { limit: Duration::ZERO, alive: &|| Ok(()) };
        let error = deadline.poll_until("ncclCommInitRankConfig", || Ok(None::<u8>)).expect_err("no time");
        assert_eq!(
            error.to_string(),
            "ncclCommInitRankConfig: not done within 0 ms: a rank of the group did not arrive"
        );
    }
}
