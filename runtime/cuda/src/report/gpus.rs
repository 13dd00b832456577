//! The driver's description of the GPUs that this process sees. No context is created on any of them: nothing
//! is allocated, mapped or bound.

use cudarc::driver::{result, sys};

use crate::device::driver::{count_gpus, cuda_version};
use crate::error::{Result, check_driver_result};

/// How a GPU reaches the memory of another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum GpuPeerAccess {
    /// No access.
    None,
    /// Loads and stores, as over PCIe.
    LoadStore,
    /// Atomic operations too, as over NVLink.
    Atomic,
}

/// Which processes may have contexts on a GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ComputeMode {
    /// Any process.
    Shared,
    /// One process at a time.
    Exclusive,
    /// No process.
    Prohibited,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GpuInfo {
    /// Its ordinal among the GPUs that this process sees.
    pub ordinal: u32,
    pub name: String,
    /// The compute capability, major and minor.
    pub capability: [u32; 2],
    pub multiprocessors: u32,
    /// The size of its memory in bytes.
    pub memory: u64,
    pub compute_mode: ComputeMode,
    /// Whether processes can share its memory as file descriptors.
    pub exports_memory: bool,
    /// Whether it can be part of multicast objects. symmc does not use them.
    pub multicast: bool,
    /// Its access to each GPU, by ordinal; itself as [`GpuPeerAccess::Atomic`].
    pub peer_access: Vec<GpuPeerAccess>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GpuInventory {
    /// The version of CUDA that the driver offers, major and minor.
    pub cuda: [u32; 2],
    pub gpus: Vec<GpuInfo>,
}

pub fn machine() -> Result<GpuInventory> {
    let gpus = count_gpus()?;
    let gpus = (0..gpus).map(|ordinal| gpu(ordinal, gpus)).collect::<Result<_, _>>()?;
    Ok(GpuInventory { cuda: cuda_version()?, gpus })
}

fn gpu(ordinal: u32, count: u32) -> Result<GpuInfo> {
    use sys::CUdevice_attribute as A;
    let action = || format!("querying GPU {ordinal}");
    let handle = check_driver_result(action, result::device::get(ordinal as i32))?;
    // SAFETY: the device exists.
    let attribute = |a| check_driver_result(action, unsafe { result::device::get_attribute(handle, a) });
    // An attribute that an old driver does not know counts as unsupported.
    let supports = |a| attribute(a).is_ok_and(|value| value != 0);
    let mode = match attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE)? as u32 {
        mode if mode == sys::CUcomputemode::CU_COMPUTEMODE_PROHIBITED as u32 => ComputeMode::Prohibited,
        mode if mode == sys::CUcomputemode::CU_COMPUTEMODE_EXCLUSIVE_PROCESS as u32 => ComputeMode::Exclusive,
        _ => ComputeMode::Shared,
    };
    let mut memory = 0;
    // SAFETY: the device exists; the call writes one number.
    check_driver_result(action, unsafe { sys::cuDeviceTotalMem_v2(&mut memory, handle) }.result())?;
    Ok(GpuInfo {
        ordinal,
        name: check_driver_result(action, result::device::get_name(handle))?,
        capability: [
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)? as u32,
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)? as u32,
        ],
        multiprocessors: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32,
        memory: memory as u64,
        compute_mode: mode,
        exports_memory: supports(A::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)
            && supports(A::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED),
        multicast: supports(A::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED),
        peer_access: (0..count).map(|other| reach(handle, ordinal, other)).collect::<Result<_, _>>()?,
    })
}

fn reach(handle: sys::CUdevice, ordinal: u32, other: u32) -> Result<GpuPeerAccess> {
    if ordinal == other {
        return Ok(GpuPeerAccess::Atomic);
    }
    let action = || format!("querying the link from GPU {ordinal} to GPU {other}");
    let peer = check_driver_result(action, result::device::get(other as i32))?;
    let mut reached = 0;
    let mut atomics = 0;
    // SAFETY: both devices exist; the call writes one integer.
    check_driver_result(action, unsafe { sys::cuDeviceCanAccessPeer(&mut reached, handle, peer) }.result())?;
    let attribute = sys::CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
    // SAFETY: as above.
    let code = unsafe { sys::cuDeviceGetP2PAttribute(&mut atomics, attribute, handle, peer) };
    check_driver_result(action, code.result())?;
    Ok(match (reached != 0, atomics != 0) {
        (false, _) => GpuPeerAccess::None,
        (true, false) => GpuPeerAccess::LoadStore,
        (true, true) => GpuPeerAccess::Atomic,
    })
}
