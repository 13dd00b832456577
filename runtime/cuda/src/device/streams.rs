//! The streams of a rank: one for each lane.

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
    /// One stream for each lane. What communicates goes first, because peers wait for it.
    pub fn new(device: &Arc<Device>) -> Result<LaneStreams> {
        Ok(LaneStreams { compute: Stream::new(device)?, comm: Stream::urgent(device)? })
    }

    /// The caller's stream for the compute lane, if there is one, and new ones otherwise.
    pub fn with_compute_stream(device: &Arc<Device>, lent: Option<BorrowedStream>) -> Result<LaneStreams> {
        match lent {
            Some(lent) => {
                Ok(LaneStreams { compute: Stream::adopt(device, lent), comm: Stream::urgent(device)? })
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
