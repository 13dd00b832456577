//! Waits for the device while peers may fail, and measures times.

use std::time::{Duration, Instant};

use symmc_runtime::RunError;

use crate::codegen::collective;
use crate::device::driver::{Event, ExecutableGraph, PinnedBuffer};
use crate::device::streams::LaneStreams;
use crate::error::Result;

/// How long a failure waits for kernels that were asked to end, so that their reports are seen.
const REPORT_TIMEOUT: Duration = Duration::from_secs(3);

/// Replays a graph and waits like [`wait_until_idle`]. Returns its time on the device in microseconds.
///
/// # Safety
/// Everything that the graph uses exists.
pub(crate) unsafe fn replay(
    streams: &LaneStreams,
    graph: &ExecutableGraph,
    status: &PinnedBuffer,
    alive: &dyn Fn() -> Result<(), RunError>,
) -> Result<f64> {
    let begin = Event::timed()?;
    let end = Event::timed()?;
    begin.record(&streams.compute)?;
    // SAFETY: by the caller.
    unsafe { streams.compute.replay(graph)? };
    end.record(&streams.compute)?;
    wait_until_idle(streams, status, alive)?;
    begin.microseconds_to(&end)
}

/// Whether both streams are idle. A failed stream counts as idle.
pub(crate) fn are_idle(streams: &LaneStreams) -> bool {
    [&streams.compute, &streams.comm].iter().all(|s| s.is_idle().unwrap_or(true))
}

/// Waits for both streams, and polls `alive` from time to time. When it fails, kernels that wait for peers
/// are asked to end through the status words. Kernels may still run after a failure.
pub(crate) fn wait_until_idle(
    streams: &LaneStreams,
    status: &PinnedBuffer,
    alive: &dyn Fn() -> Result<(), RunError>,
) -> Result<()> {
    let start = Instant::now();
    let mut ended_by = None;
    let mut pause = Duration::from_micros(1);
    while !(streams.compute.is_idle()? && streams.comm.is_idle()?) {
        if let (None, Err(error)) = (&ended_by, alive()) {
            collective::abort_waits(status);
            ended_by = Some((error, Instant::now()));
        }
        if let Some((error, since)) = &ended_by
            && since.elapsed() > REPORT_TIMEOUT
        {
            return Err(error.clone().into());
        }
        if start.elapsed() > Duration::from_millis(2) {
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(1));
        } else {
            std::hint::spin_loop();
        }
    }
    match ended_by {
        Some((error, _)) => Err(error.into()),
        None => Ok(()),
    }
}

/// The minimum, median and maximum of some times; zeros if there are none.
pub(crate) fn min_median_max(mut times: Vec<f64>) -> [f64; 3] {
    times.sort_by(f64::total_cmp);
    let indices = [0, times.len() / 2, times.len().saturating_sub(1)];
    indices.map(|index| times.get(index).copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::min_median_max;

    #[test]
    fn times_are_put_in_order() {
        assert_eq!(min_median_max(vec![3.0, 1.0, 2.0]), [1.0, 2.0, 3.0]);
        assert_eq!(min_median_max(vec![4.0]), [4.0; 3]);
        assert_eq!(min_median_max(vec![]), [0.0; 3]);
    }
}
