//! Symmetric memory that the library allocates. Its window over all ranks gives the mapped addresses of
//! peers.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::result;
use nccl_sys::{Nccl, Window};

use super::comms::{CommunicatorContext, Communicators, DEVICE_WINDOWS};
use crate::device::driver::Device;
use crate::device::launch::Address;
use crate::error::{CudaError, Result, check_driver_result};
use crate::exchange::RankExchange;

/// The granularity of sizes, at which the driver allocates anyway.
const UNIT: usize = 2 << 20;

/// This rank's memory, and the window over the memory of all ranks.
#[derive(Debug)]
pub struct WindowMemory {
    library: &'static Nccl,
    local: WindowAddress,
    /// The address of each rank's memory, as this rank maps it.
    addresses: Vec<Address>,
    len: usize,
    /// The communicator of the window. It is destroyed before the memory is freed.
    communicators: Communicators,
}

/// An address that the library returned.
#[derive(Debug)]
struct WindowAddress(*mut c_void);

// SAFETY: an address of device memory, which is not dereferenced here.
unsafe impl Send for WindowAddress {}
// SAFETY: as above.
unsafe impl Sync for WindowAddress {}

impl WindowMemory {
    /// Allocates at least `len` bytes on each rank of the run. Fails if there is no library, it lacks a
    /// function, the GPU has too little memory, or a peer failed.
    pub fn new(
        device: &Arc<Device>,
        exchange: &dyn RankExchange,
        len: usize,
        limit: Duration,
    ) -> Result<WindowMemory> {
        let library = Nccl::load().map_err(|e| CudaError::Unsupported(e.to_string()))?;
        let len = len.max(1).next_multiple_of(UNIT);
        let local = WindowAddress(library.mem_alloc(len)?);
        let address = local.0 as usize as Address;
        // From here on, dropping this value after a failure frees the memory.
        let addresses = vec![address];
        let communicators = Communicators::default();
        let mut memory = WindowMemory { library, local, addresses, len, communicators };
        let making = CommunicatorContext { exchange, device, arena: (address, len), limit, lent: None };
        let window = memory.communicators.window_of_all(&making)?;
        memory.addresses =
            (0..exchange.ranks())
                .map(|rank| {
                    if rank == exchange.rank() { Ok(address) } else { mapped_address(library, window, rank) }
                })
                .collect::<Result<_, _>>()?;
        memory.check_mapping(exchange)?;
        Ok(memory)
    }

    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    pub fn bytes(&self) -> usize {
        self.len
    }

    /// Checks the mapping: every rank writes its number to its memory, and reads that of each peer at the
    /// window's address.
    fn check_mapping(&self, exchange: &dyn RankExchange) -> Result<()> {
        let local_address = self.addresses[exchange.rank() as usize];
        // SAFETY: the memory is large enough, and nothing else uses it yet.
        let written = unsafe { result::memcpy_htod_sync(local_address, &mark_rank(exchange.rank())) };
        check_driver_result(|| "writing to the arena of NCCL".into(), written)?;
        exchange.all_gather(&[0])?;
        for (rank, &peer_address) in (0..).zip(&self.addresses) {
            let mut contents = [0; 4];
            // SAFETY: the window maps that many bytes at this address; if it does not, the driver refuses.
            let read = unsafe { result::memcpy_dtoh_sync(&mut contents, peer_address) };
            check_driver_result(|| format!("reading the arena of rank {rank} through NCCL's window"), read)?;
            if contents != mark_rank(rank) {
                let version = self.library.version();
                let text = format!("NCCL {version}: the window does not map the memory of rank {rank}");
                return Err(CudaError::Unsupported(text));
            }
        }
        exchange.all_gather(&[0]).map(|_| ()).map_err(CudaError::from)
    }
}

impl Drop for WindowMemory {
    fn drop(&mut self) {
        self.communicators = Communicators::default();
        // SAFETY: allocated by `new`; its window was deregistered just before.
        let _ = unsafe { (self.library.functions().mem_free)(self.local.0) };
    }
}

/// The mapped address of a rank's memory in a window.
fn mapped_address(library: &Nccl, window: Window, rank: u32) -> Result<Address> {
    match library.get_lsa_device_pointer() {
        Ok(call) => {
            let mut address = std::ptr::null_mut();
            // SAFETY: the window exists; the function writes one address.
            let code = unsafe { call(window, 0, rank as i32, &mut address) };
            library.check_code("ncclGetLsaDevicePointer", code)?;
            Ok(address as usize as Address)
        }
        Err(_) if library.version() >= DEVICE_WINDOWS => {
            let mut bytes = [0; WINDOW_PREFIX];
            // SAFETY: such a window is a struct in device memory that is longer than this.
            let read = unsafe { result::memcpy_dtoh_sync(&mut bytes, window.0 as usize as Address) };
            check_driver_result(|| "reading NCCL's window".into(), read)?;
            Ok(parse_window_address(&bytes, rank))
        }
        Err(missing) => Err(CudaError::Unsupported(format!("an arena allocated by NCCL: {missing}"))),
    }
}

/// The bytes by which a rank recognises the memory of another.
fn mark_rank(rank: u32) -> [u8; 4] {
    (0x5e4d_0000 + rank).to_le_bytes()
}

/// The number of bytes at the start of a window's struct that are read.
const WINDOW_PREFIX: usize = 28;

/// The mapped address from the struct of the versions without that function, 2.28.3 to 2.29.1. The struct
/// holds the address of rank 0's memory, two ranks, and the distance between ranks in units of 4 GiB.
fn parse_window_address(window: &[u8; WINDOW_PREFIX], rank: u32) -> Address {
    let [low, high, distance] =
        [8, 12, 24].map(|offset| u64::from(u32::from_le_bytes([0, 1, 2, 3].map(|i| window[offset + i]))));
    let base = low | high << 32;
    base.wrapping_add((u64::from(rank) * distance) << 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The struct as 2.28.3 declares it: `winHost`, `lsaFlatBase`, `lsaRank`, `worldRank`, `stride4G`.
    #[test]
    fn a_window_of_2_28_shows_where_peers_are() {
        let mut window = [0xff; WINDOW_PREFIX];
        window[8..16].copy_from_slice(&0x7f12_3456_0000_u64.to_le_bytes());
        window[24..28].copy_from_slice(&36_u32.to_le_bytes());
        assert_eq!(parse_window_address(&window, 0), 0x7f12_3456_0000);
        assert_eq!(parse_window_address(&window, 3), 0x7f12_3456_0000 + ((3 * 36) << 32));
    }
}
