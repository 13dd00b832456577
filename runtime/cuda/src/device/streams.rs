//! The streams of a rank: one per lane.

use std::sync::Arc;

use symmc_plan::Lane;

use crate::device::driver::{BorrowedStream, Device, Stream};
use crate::error::Result;

#[derive(Debug)]
pub struct LaneStreams {
    /// The compute lane; runs begin and end here.
    pub compute: Stream,
    pub comm: Stream,
}

impl LaneStreams {
    /// Creates one stream per lane. The communication stream has priority, because peers wait for it.
    pub fn new(device: &Arc<Device>) -> Result<LaneStreams> {
        Ok(LaneStreams { compute: Stream::new(device)?, comm: Stream::urgent(device)? })
    }

    /// Uses the caller's stream for the compute lane, if there is one, and creates the others.
    pub fn with_compute_stream(device: &Arc<Device>, lent: Option<BorrowedStream>) -> Result<LaneStreams> {
        match lent {
            Some(borrowed) => {
                Ok(LaneStreams { compute: Stream::adopt(device, borrowed), comm: Stream::urgent(device)? })
            }
            None => LaneStreams::new(device),
        }
    }

    pub(crate) fn stream_of(&self, lane: Lane) -> &Stream {
        match lane {
            Lane::Compute => &self.compute,
            Lane::Comm => &self.comm,
        }
    }
}
