//! What the driver says of the GPUs that this process sees, without a context on any of them: nothing is allocated, mapped
//! or bound.

use cudarc::driver::{result, sys};

use crate::device::driver::{count, version};
use crate::error::{Result, checked};

/// How a GPU reaches the memory of another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Reach {
    /// Not at all.
    None,
    /// By loads and stores, as over PCIe.
    Peer,
    /// By atomic operations too, as over NVLink.
    Whole,
}

/// Who may have contexts on a GPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ComputeMode {
    /// Any process.
    Shared,
    /// One process at a time.
    Exclusive,
    /// Nobody.
    Prohibited,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gpu {
    /// Its number among the GPUs that this process sees.
    pub ordinal: u32,
    pub name: String,
    /// The compute capability, major and minor.
    pub capability: [u32; 2],
    pub multiprocessors: u32,
    /// Bytes of its memory.
    pub memory: u64,
    pub mode: ComputeMode,
    /// Whether processes can pass its memory to each other as file descriptors.
    pub shares: bool,
    /// Whether it can be part of multicast objects, which symmc has no use for.
    pub multicast: bool,
    /// How it reaches each GPU, by their numbers; itself as [`Reach::Whole`].
    pub reaches: Vec<Reach>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Machine {
    /// The version of CUDA that the driver offers, major and minor.
    pub cuda: [u32; 2],
    pub gpus: Vec<Gpu>,
}

pub fn machine() -> Result<Machine> {
    let gpus = count()?;
    let gpus = (0..gpus).map(|ordinal| gpu(ordinal, gpus)).collect::<Result<_, _>>()?;
    Ok(Machine { cuda: version()?, gpus })
}

fn gpu(ordinal: u32, count: u32) -> Result<Gpu> {
    use sys::CUdevice_attribute as A;
    let what = || format!("asking for GPU {ordinal}");
    let handle = checked(what, result::device::get(ordinal as i32))?;
    // SAFETY: the device exists.
    let attribute = |a| checked(what, unsafe { result::device::get_attribute(handle, a) });
    // An attribute that an old driver does not know is one that it does not have.
    let has = |all: &[A]| all.iter().all(|&a| attribute(a).is_ok_and(|value| value != 0));
    let mode = match attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE)? as u32 {
        mode if mode == sys::CUcomputemode::CU_COMPUTEMODE_PROHIBITED as u32 => ComputeMode::Prohibited,
        mode if mode == sys::CUcomputemode::CU_COMPUTEMODE_EXCLUSIVE_PROCESS as u32 => ComputeMode::Exclusive,
        _ => ComputeMode::Shared,
    };
    let mut memory = 0;
    // SAFETY: the device exists; the call writes one number.
    checked(what, unsafe { sys::cuDeviceTotalMem_v2(&mut memory, handle) }.result())?;
    Ok(Gpu {
        ordinal,
        name: checked(what, result::device::get_name(handle))?,
        capability: [
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)? as u32,
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)? as u32,
        ],
        multiprocessors: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32,
        memory: memory as u64,
        mode,
        shares: has(&[
            A::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
            A::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
        ]),
        multicast: has(&[A::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED]),
        reaches: (0..count).map(|other| reach(handle, ordinal, other)).collect::<Result<_, _>>()?,
    })
}

fn reach(handle: sys::CUdevice, ordinal: u32, other: u32) -> Result<Reach> {
    if ordinal == other {
        return Ok(Reach::Whole);
    }
    let what = || format!("asking for the link from GPU {ordinal} to GPU {other}");
    let peer = checked(what, result::device::get(other as i32))?;
    let (mut reached, mut atomics) = (0, 0);
    // SAFETY: both devices exist; the call writes one integer.
    checked(what, unsafe { sys::cuDeviceCanAccessPeer(&mut reached, handle, peer) }.result())?;
    let attribute = sys::CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
    // SAFETY: as above.
    let asked = unsafe { sys::cuDeviceGetP2PAttribute(&mut atomics, attribute, handle, peer) };
    checked(what, asked.result())?;
    Ok(match (reached != 0, atomics != 0) {
        (false, _) => Reach::None,
        (true, false) => Reach::Peer,
        (true, true) => Reach::Whole,
    })
}
