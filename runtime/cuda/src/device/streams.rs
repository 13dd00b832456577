//! The streams of a rank: one for each lane.

use std::sync::Arc;

use symmc_plan::Lane;

use crate::device::driver::{Device, LentStream, Stream};
use crate::error::Result;

#[derive(Debug)]
pub struct Streams {
    /// The compute lane; runs begin and end here.
    pub compute: Stream,
    pub comm: Stream,
}

impl Streams {
    /// One stream for each lane. What communicates goes first, because peers wait for it.
    pub fn new(device: &Arc<Device>) -> Result<Streams> {
        Ok(Streams { compute: Stream::new(device)?, comm: Stream::urgent(device)? })
    }

    /// The caller's stream for the compute lane, if there is one, and new ones otherwise.
    pub fn with(device: &Arc<Device>, lent: Option<LentStream>) -> Result<Streams> {
        match lent {
            Some(lent) => Ok(Streams { compute: Stream::adopt(device, lent), comm: Stream::urgent(device)? }),
            None => Streams::new(device),
        }
    }

    pub(crate) fn of(&self, lane: Lane) -> &Stream {
        match lane {
            Lane::Compute => &self.compute,
            Lane::Comm => &self.comm,
        }
    }
}
