//! Symmetric memory: one allocation on every GPU, mapped by every rank.
//!
//! Each rank allocates physical memory, exports it as a file descriptor, and passes the descriptor to every
//! peer over a Unix socket. Each rank maps the memory of all ranks, and may read and write it. Sizes are
//! equal on all ranks, so an offset means the same everywhere. The sockets are abstract. Their names are
//! random, and are exchanged over the run's own [`RankExchange`]; only connections from processes of the same
//! user are accepted.
//!
//! The memory is allocated with the CUDA driver's virtual memory management, as NCCL requires for windows.
//! NCCL can also allocate it ([`ArenaSource`]).

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::sys;
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket};
use serde::{Deserialize, Serialize};
use symmc_control::{Channel, collect_descriptors, random_secret};
use symmc_runtime::RunError;

use crate::device::driver::{CallersContext, Device, Stream};
use crate::device::launch::Address;
use crate::error::{CudaError, Result, check_driver_result};
use crate::exchange::RankExchange;
use crate::nccl::WindowMemory;

const PASSING_TIMEOUT: Duration = Duration::from_secs(60);

/// The allocator of symmetric memory, which also maps it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArenaSource {
    /// The driver: memory that ranks pass to each other as file descriptors.
    #[default]
    Vmm,
    /// NCCL: memory that it allocates, mapped by a window over all ranks.
    Nccl,
}

/// Memory at equal offsets on all ranks. It exists as long as a clone of this value does.
#[derive(Clone, Debug)]
pub struct SymmetricArena {
    memory: Arc<ArenaMemory>,
    /// The address of each rank's memory, as this rank maps it.
    addresses: Vec<Address>,
    rank: usize,
    len: usize,
}

#[derive(Debug)]
enum ArenaMemory {
    /// Each rank's memory as this rank maps it.
    Mapped { _mappings: Vec<Mapping> },
    /// Memory of NCCL.
    Window { _memory: WindowMemory },
}

impl SymmetricArena {
    /// Allocates at least `len` bytes on each rank, and zeroes the bytes of this rank. Returns after all
    /// peers have mapped this rank's memory. `limit` is how long NCCL may take to map it. Fails if the GPU
    /// has too little memory, cannot share it, or a peer failed.
    pub fn new(
        source: ArenaSource,
        device: &Arc<Device>,
        exchange: &dyn RankExchange,
        len: usize,
        limit: Duration,
    ) -> Result<Self> {
        let rank = exchange.rank() as usize;
        let arena = match source {
            ArenaSource::Vmm => Self::mapped(device, exchange, len)?,
            ArenaSource::Nccl => {
                let memory = WindowMemory::new(device, exchange, len, limit)?;
                let addresses = memory.addresses().to_vec();
                let len = memory.bytes();
                SymmetricArena {
                    memory: Arc::new(ArenaMemory::Window { _memory: memory }),
                    addresses,
                    rank,
                    len,
                }
            }
        };
        let len = arena.len;
        // A new stream is used, because waiting for the whole GPU would invalidate captures of other sessions
        // of this process.
        let stream = Stream::new(device)?;
        // SAFETY: the range was just mapped; no peer touches it before the exchange below.
        unsafe { stream.fill(arena.address(), 0, len)? };
        stream.synchronize()?;
        exchange.all_gather(&[0])?;
        Ok(arena)
    }

    /// Allocates the memory with the driver.
    fn mapped(device: &Arc<Device>, exchange: &dyn RankExchange, len: usize) -> Result<Self> {
        let local = PhysicalMemory::new(device, len)?;
        let len = local.len;
        let fds = exchange_descriptors(exchange, local.export()?)?;
        let mut mappings = Vec::with_capacity(fds.len());
        for (rank, fd) in fds.into_iter().enumerate() {
            let mapping = match fd {
                None => Mapping::new(device, &local, rank)?,
                Some(fd) => Mapping::new(device, &PhysicalMemory::import(device, fd, len, rank)?, rank)?,
            };
            mappings.push(mapping);
        }
        let rank = exchange.rank() as usize;
        let addresses = mappings.iter().map(|m: &Mapping| m.at).collect();
        Ok(SymmetricArena {
            memory: Arc::new(ArenaMemory::Mapped { _mappings: mappings }),
            addresses,
            rank,
            len,
        })
    }

    pub fn source(&self) -> ArenaSource {
        match *self.memory {
            ArenaMemory::Mapped { .. } => ArenaSource::Vmm,
            ArenaMemory::Window { .. } => ArenaSource::Nccl,
        }
    }

    pub fn address(&self) -> Address {
        self.addresses[self.rank]
    }

    pub fn addresses(&self) -> Vec<Address> {
        self.addresses.clone()
    }

    /// The bytes of each rank's memory.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

fn check_call(what: impl FnOnce() -> String, result: sys::CUresult) -> Result<()> {
    check_driver_result(what, result.result())
}

fn location(device: &Device) -> sys::CUmemLocation {
    // SAFETY: plain data for which zero is a valid value.
    let mut location: sys::CUmemLocation = unsafe { std::mem::zeroed() };
    location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    location.id = device.ordinal() as i32;
    location
}

/// Physical memory of a GPU. It is freed when neither this value nor a mapping holds it.
#[derive(Debug)]
struct PhysicalMemory {
    handle: sys::CUmemGenericAllocationHandle,
    len: usize,
}

const FD: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType_enum::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

impl PhysicalMemory {
    fn new(device: &Device, len: usize) -> Result<PhysicalMemory> {
        // SAFETY: plain data for which zero is a valid value.
        let mut wanted: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
        wanted.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        wanted.requestedHandleTypes = FD;
        wanted.location = location(device);
        let mut unit = 0;
        let option = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
        // SAFETY: all arguments live through the call.
        let code = unsafe { sys::cuMemGetAllocationGranularity(&mut unit, &wanted, option) };
        check_call(|| "querying the granularity of shared memory".into(), code)?;
        let len = len.max(1).next_multiple_of(unit.max(1));
        let mut handle = 0;
        // SAFETY: as above.
        let code = unsafe { sys::cuMemCreate(&mut handle, len, &wanted, 0) };
        check_call(
            || format!("allocating a symmetric arena of {len} bytes on GPU {}", device.ordinal()),
            code,
        )?;
        Ok(PhysicalMemory { handle, len })
    }

    fn export(&self) -> Result<OwnedFd> {
        let mut fd: i32 = -1;
        // SAFETY: the handle exists, and a descriptor is an integer.
        let code = unsafe { sys::cuMemExportToShareableHandle((&raw mut fd).cast(), self.handle, FD, 0) };
        check_call(|| "exporting the symmetric arena".into(), code)?;
        // SAFETY: the driver made this descriptor for this process.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    fn import(device: &Device, fd: OwnedFd, len: usize, rank: usize) -> Result<PhysicalMemory> {
        device.enter()?;
        let mut handle = 0;
        // SAFETY: the descriptor is open; the driver does not keep it.
        let code = unsafe {
            sys::cuMemImportFromShareableHandle(&mut handle, fd.as_raw_fd() as usize as *mut _, FD)
        };
        check_call(|| format!("importing the symmetric arena of rank {rank}"), code)?;
        Ok(PhysicalMemory { handle, len })
    }
}

impl Drop for PhysicalMemory {
    fn drop(&mut self) {
        // SAFETY: created or imported once.
        let _ = unsafe { sys::cuMemRelease(self.handle) };
    }
}

/// Physical memory at an address of this rank's context.
#[derive(Debug)]
struct Mapping {
    device: Arc<Device>,
    at: Address,
    len: usize,
}

impl Mapping {
    fn new(device: &Arc<Device>, memory: &PhysicalMemory, rank: usize) -> Result<Mapping> {
        let action = || format!("mapping the symmetric arena of rank {rank} on GPU {}", device.ordinal());
        let len = memory.len;
        let mut address = 0;
        // SAFETY: reserves addresses only.
        check_call(action, unsafe { sys::cuMemAddressReserve(&mut address, len, 0, 0, 0) })?;
        // SAFETY: the range was just reserved and is as long as the memory.
        if let Err(error) = check_call(action, unsafe { sys::cuMemMap(address, len, 0, memory.handle, 0) }) {
            // SAFETY: nothing is mapped there.
            let _ = unsafe { sys::cuMemAddressFree(address, len) };
            return Err(error);
        }
        let mapping = Mapping { device: device.clone(), at: address, len };
        // SAFETY: plain data for which zero is a valid value.
        let mut access: sys::CUmemAccessDesc = unsafe { std::mem::zeroed() };
        access.location = location(device);
        access.flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        // SAFETY: the range is mapped.
        let allowed = unsafe { sys::cuMemSetAccess(address, len, &access, 1) };
        check_call(
            || format!("enabling access to the memory of rank {rank} from GPU {}", device.ordinal()),
            allowed,
        )?;
        Ok(mapping)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // The drop may happen on a thread of the application, whose context is restored.
        let _callers = CallersContext::switch_to(&self.device);
        // SAFETY: mapped and reserved by `new`; nothing uses it any more.
        unsafe {
            let _ = sys::cuMemUnmap(self.at, self.len);
            let _ = sys::cuMemAddressFree(self.at, self.len);
        }
    }
}

/// Sends every peer a descriptor, and receives one from each; `None` at this rank's own index.
fn exchange_descriptors(exchange: &dyn RankExchange, mine: OwnedFd) -> Result<Vec<Option<OwnedFd>>> {
    let me = exchange.rank();
    let name = format!("{:032x}", u128::from_le_bytes(random_secret()?)).into_bytes();
    let listener = open_socket()?;
    bind(listener.as_raw_fd(), &abstract_address(&name)?).map_err(|e| socket_error("bind", e))?;
    let backlog = Backlog::new(exchange.ranks().min(1024) as i32).unwrap_or(Backlog::MAXCONN);
    listen(&listener, backlog).map_err(|e| socket_error("listen", e))?;
    let names = exchange.all_gather(&name)?;
    let peers: Vec<u32> = (0..exchange.ranks()).filter(|rank| *rank != me).collect();
    for (rank, name) in (0..).zip(&names).filter(|(rank, _)| *rank != me) {
        let fd = open_socket()?;
        connect(fd.as_raw_fd(), &abstract_address(name)?).map_err(|e| socket_error("connect", e))?;
        let channel = Channel::new(fd, rank);
        channel.send(&me)?;
        channel.send_fds(&[mine.as_fd()])?;
    }
    let descriptors = collect_descriptors(&listener, &peers, "its symmetric arena", PASSING_TIMEOUT)?;
    let mut out: Vec<Option<OwnedFd>> = names.iter().map(|_| None).collect();
    for (rank, fd) in peers.into_iter().zip(descriptors) {
        out[rank as usize] = Some(fd);
    }
    // No rank closes its sockets before all ranks have their descriptors.
    exchange.all_gather(&[0])?;
    Ok(out)
}

fn open_socket() -> Result<OwnedFd> {
    socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)
        .map_err(|e| socket_error("socket", e))
}

fn abstract_address(name: &[u8]) -> Result<UnixAddr> {
    UnixAddr::new_abstract(name).map_err(|e| socket_error("bind", e))
}

fn socket_error(call: &str, e: nix::Error) -> CudaError {
    CudaError::Run(RunError::from_system_call("passing the symmetric arena", call, e))
}
