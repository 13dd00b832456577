//! Small exchanges between ranks, before they share memory and while they choose algorithms together.

use symmc_control::RankCommunicator;
use symmc_runtime::RunError;

use crate::error::Result;

/// Exchanges small values between ranks before they share memory. All ranks make the same calls in the same
/// order.
pub trait RankExchange {
    fn rank(&self) -> u32;
    fn ranks(&self) -> u32;
    /// Gathers the bytes of every rank, by rank. All ranks pass the same number of bytes.
    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, RunError>;
    /// Fails if the run was ended. Callers poll this while they wait for peers by other means.
    fn expect_running(&self) -> Result<(), RunError> {
        Ok(())
    }
}

impl RankExchange for RankCommunicator {
    fn rank(&self) -> u32 {
        RankCommunicator::rank(self)
    }

    fn ranks(&self) -> u32 {
        RankCommunicator::ranks(self)
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, RunError> {
        self.exchange_bytes(mine)
    }

    fn expect_running(&self) -> Result<(), RunError> {
        self.control().abort_reason().map_or(Ok(()), Err)
    }
}

/// Gathers the bytes of all ranks and returns those of rank 0.
pub(crate) fn value_of_rank_0(exchange: &dyn RankExchange, mine: &[u8]) -> Result<Vec<u8>> {
    let first = exchange.all_gather(mine)?.into_iter().next();
    Ok(first.ok_or_else(|| RunError::system("choosing algorithms", "there is no rank 0"))?)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::{Barrier, Mutex};

    use super::*;

    /// Two threads that act as ranks.
    pub struct ThreadPair {
        said: Mutex<[Vec<u8>; 2]>,
        both: Barrier,
    }

    impl ThreadPair {
        pub fn new() -> ThreadPair {
            ThreadPair { said: Mutex::default(), both: Barrier::new(2) }
        }
    }

    pub struct ThreadRank<'a>(pub &'a ThreadPair, pub usize);

    impl RankExchange for ThreadRank<'_> {
        fn rank(&self) -> u32 {
            self.1 as u32
        }
        fn ranks(&self) -> u32 {
            2
        }
        fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, RunError> {
            self.0.said.lock().unwrap()[self.1] = mine.to_vec();
            self.0.both.wait();
            let shares = self.0.said.lock().unwrap().to_vec();
            self.0.both.wait();
            Ok(shares)
        }
    }
}
