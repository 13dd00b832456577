//! Kernel launches as data: grids and parameters, with all constants fixed and symbolic pointers to ports.
//!
//! Addresses belong to this rank's context. Peers' arenas are mapped there, so their addresses do too. A
//! parameter is plain bytes, or a tensor map: a matrix that kernels load in boxes by TMA (`CUtensorMap`,
//! compute capability 9).

use std::ffi::c_void;

use cudarc::driver::sys;
use smallvec::SmallVec;

pub use crate::device::pointer::{Address, DevicePtr, PortBases};
use crate::error::{Result, check_driver_result};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LaunchOrder {
    /// After all earlier work in its stream has ended.
    After,
    /// By programmatic dependent launch (PDL) if the device supports it (compute capability 9), else as
    /// [`After`](Self::After). When every block of the previous kernel has started, blocks of this kernel are
    /// scheduled. They wait in `symmc_enter()` until the previous kernel has ended.
    Dependent,
}

#[derive(Clone, PartialEq, Debug)]
pub struct KernelLaunch {
    /// The name of the function, unmangled.
    pub entry: String,
    pub grid: [u32; 3],
    /// Threads per block in x, y and z.
    pub block: [u32; 3],
    /// The number of blocks, neighbours in x, that run concurrently and read each other's shared memory; 1
    /// for no cluster. More than 1 needs compute capability 9, and must divide the grid.
    pub cluster: u32,
    /// Bytes of dynamic shared memory. Above 48 KiB, the function gets permission when it is loaded.
    pub shared: u32,
    pub params: Vec<KernelParam>,
}

impl KernelLaunch {
    /// A one-dimensional grid of blocks without dynamic shared memory.
    pub(crate) fn flat(
        entry: String,
        blocks: usize,
        threads: usize,
        params: Vec<KernelParam>,
    ) -> KernelLaunch {
        let grid = [blocks as u32, 1, 1];
        let block = [threads as u32, 1, 1];
        KernelLaunch { entry, grid, block, cluster: 1, shared: 0, params }
    }

    pub(crate) fn ports(&self) -> impl Iterator<Item = DevicePtr> {
        self.params.iter().flat_map(KernelParam::ports)
    }

    /// A copy with addresses instead of pointers to ports, for kernels that run on the host.
    pub fn resolved(&self, bases: PortBases<'_>) -> KernelLaunch {
        let params = self.params.iter().map(|param| match param {
            KernelParam::Value(plain) => {
                let mut words = plain.words.clone();
                for (word, pointer) in &plain.ports {
                    words[*word as usize] = pointer.resolve(bases);
                }
                KernelParam::Value(ValueParam { words, ports: SmallVec::new() })
            }
            KernelParam::Map(map) => {
                KernelParam::Map(Box::new(TensorMap { at: map.at.resolve(bases).into(), ..**map }))
            }
        });
        KernelLaunch { params: params.collect(), ..self.clone() }
    }
}

/// Values whose bytes are all initialised: numbers, arrays of numbers, and structs without padding.
///
/// # Safety
/// No byte of a value is padding, and the alignment is at most 8.
pub(crate) unsafe trait Plain: Copy {
    /// Visits the pointers in the value, each with its byte offset in the parameter. The value begins at
    /// `at`.
    fn visit_pointers(&self, at: usize, visit: &mut dyn FnMut(usize, DevicePtr));
}

/// Numbers are plain and contain no pointers.
macro_rules! plain_numbers {
    ($($ty:ty),*) => {$(
        // SAFETY: a number.
        unsafe impl Plain for $ty {
            fn visit_pointers(&self, _: usize, _: &mut dyn FnMut(usize, DevicePtr)) {}
        }
    )*};
}
plain_numbers!(u32, u64, f32);

// SAFETY: a transparent u64.
unsafe impl Plain for DevicePtr {
    fn visit_pointers(&self, at: usize, visit: &mut dyn FnMut(usize, DevicePtr)) {
        visit(at, *self);
    }
}

// SAFETY: an array has no padding between its elements.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {
    fn visit_pointers(&self, at: usize, visit: &mut dyn FnMut(usize, DevicePtr)) {
        for (i, element) in self.iter().enumerate() {
            element.visit_pointers(at + i * size_of::<T>(), visit);
        }
    }
}

pub(crate) trait CudaField {
    /// The declaration of a field with this name, without a semicolon.
    fn declare(name: &str) -> String;
}

impl CudaField for u32 {
    fn declare(name: &str) -> String {
        format!("u32 {name}")
    }
}

impl CudaField for u64 {
    fn declare(name: &str) -> String {
        format!("u64 {name}")
    }
}

impl CudaField for f32 {
    fn declare(name: &str) -> String {
        format!("float {name}")
    }
}

impl CudaField for DevicePtr {
    fn declare(name: &str) -> String {
        u64::declare(name)
    }
}

impl<T: CudaField, const N: usize> CudaField for [T; N] {
    fn declare(name: &str) -> String {
        T::declare(&format!("{name}[{N}]"))
    }
}

/// Structs that kernels receive as parameters.
pub(crate) trait CudaStruct {
    /// The declaration in CUDA C. It needs earlier declarations of `u32` and `u64`.
    fn declaration() -> String;
}

/// Declares a `repr(C)` struct that is [`Plain`], with its CUDA C declaration ([`CudaStruct`]). A struct can
/// extend another one: the base is the first field in Rust and the base struct in C. A struct with padding
/// does not compile.
macro_rules! plain {
    ($(#[$meta:meta])* $vis:vis struct $name:ident $(extends $base:ident as $base_field:ident)? {
        $($(#[$about:meta])* $of:vis $field:ident: $ty:ty),* $(,)?
    }) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy)]
        $vis struct $name { $(pub $base_field: $base,)? $($(#[$about])* $of $field: $ty),* }
        const _: () = {
            let fields = 0 $(+ size_of::<$base>())? $(+ size_of::<$ty>())*;
            assert!(size_of::<$name>() == fields, "bytes between or after the fields");
            assert!(align_of::<$name>() <= 8, "kernel parameters are aligned to 8 bytes at most");
        };
        // SAFETY: all fields are plain, and the struct has no padding.
        unsafe impl $crate::device::launch::Plain for $name where $($ty: $crate::device::launch::Plain),* {
            fn visit_pointers(
                &self,
                at: usize,
                visit: &mut dyn FnMut(usize, $crate::device::launch::DevicePtr),
            ) {
                $($crate::device::launch::Plain::visit_pointers(
                    &self.$base_field,
                    at + std::mem::offset_of!($name, $base_field),
                    visit,
                );)?
                $($crate::device::launch::Plain::visit_pointers(
                    &self.$field,
                    at + std::mem::offset_of!($name, $field),
                    visit,
                );)*
            }
        }
        impl $crate::device::launch::CudaField for $name {
            fn declare(name: &str) -> String {
                format!(concat!(stringify!($name), " {}"), name)
            }
        }
        impl $crate::device::launch::CudaStruct for $name {
            fn declaration() -> String {
                let mut out = String::from(concat!("struct ", stringify!($name), $(" : ", stringify!($base),)? " {\n"));
                $(
                    out.push_str("    ");
                    out.push_str(&<$ty as $crate::device::launch::CudaField>::declare(stringify!($field)));
                    out.push_str(";\n");
                )*
                out.push_str("};\n");
                out
            }
        }
    };
}
pub(crate) use plain;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KernelParam {
    Value(ValueParam),
    /// A tensor map. The launch passes the driver's encoding of it to the kernel.
    Map(Box<TensorMap>),
}

/// The bytes of a parameter, at an address aligned to 8 bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ValueParam {
    words: SmallVec<[u64; 1]>,
    /// The words that are pointers to ports, with their pointers.
    ports: SmallVec<[(u32, DevicePtr); 1]>,
}

impl ValueParam {
    /// The words as the kernel receives them, except [pointers to ports](Self::ports).
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    pub fn ports(&self) -> &[(u32, DevicePtr)] {
        &self.ports
    }
}

impl KernelParam {
    /// A struct passed by value, laid out as the kernel declares it.
    pub(crate) fn from_value<T: Plain>(value: &T) -> KernelParam {
        let mut words: SmallVec<[u64; 1]> = SmallVec::from_elem(0u64, size_of::<T>().div_ceil(8));
        // SAFETY: the words are at least as many bytes as the value, all of which are written.
        unsafe {
            std::ptr::copy_nonoverlapping(
                std::ptr::from_ref(value).cast::<u8>(),
                words.as_mut_ptr().cast::<u8>(),
                size_of::<T>(),
            );
        }
        let mut ports = SmallVec::new();
        value.visit_pointers(0, &mut |offset, pointer| {
            if pointer.port_number().is_some() {
                ports.push(((offset / 8) as u32, pointer));
            }
        });
        KernelParam::Value(ValueParam { words, ports })
    }

    pub(crate) fn ports(&self) -> impl Iterator<Item = DevicePtr> {
        let (words, map) = match self {
            KernelParam::Value(plain) => (&plain.ports[..], None),
            KernelParam::Map(map) => (&[][..], Some(map.at)),
        };
        words.iter().map(|&(_, pointer)| pointer).chain(map)
    }

    /// The address of the parameter, or of the map's description. Pointers to ports are not resolved there.
    pub fn as_ptr(&self) -> *const u64 {
        match self {
            KernelParam::Value(plain) => plain.words.as_ptr(),
            KernelParam::Map(map) => std::ptr::from_ref(&**map).cast(),
        }
    }
}

impl From<DevicePtr> for KernelParam {
    fn from(value: DevicePtr) -> KernelParam {
        KernelParam::from_value(&value)
    }
}

impl From<u64> for KernelParam {
    fn from(value: u64) -> KernelParam {
        KernelParam::from_value(&value)
    }
}

impl From<u32> for KernelParam {
    fn from(value: u32) -> KernelParam {
        KernelParam::from_value(&value)
    }
}

/// Columns of a box: 128 bytes.
const COLUMNS: u32 = 64;

/// A tensor map of a matrix of two-byte elements, or of several. Kernels load boxes of it to shared memory by
/// TMA, each of `box_rows` rows and 64 columns of one matrix, with zeros outside the matrix, or store them.
/// Pieces of 16 bytes are swizzled by their row number. Kernels that run on the host, in tests, receive this
/// struct itself.
#[repr(C)]
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorMap {
    /// The first element, at a multiple of 16.
    at: DevicePtr,
    rows: u64,
    columns: u64,
    /// Bytes from row to row, a multiple of 16.
    step: u64,
    /// Rows of a box, up to 256.
    box_rows: u64,
    /// The number of matrices; 0 if kernels address the map of one matrix without the number of its plane.
    planes: u64,
    /// Bytes from matrix to matrix, a multiple of 16.
    plane_step: u64,
}

impl TensorMap {
    /// `rows` × `columns` elements, `step` bytes from row to row, boxes of `box_rows` rows.
    pub(crate) fn new(at: DevicePtr, [rows, columns]: [usize; 2], step: usize, box_rows: usize) -> TensorMap {
        let [rows, columns, step, box_rows] = [rows, columns, step, box_rows].map(|n| n as u64);
        TensorMap { at, rows, columns, step, box_rows, planes: 0, plane_step: 0 }
    }

    /// The same for this number of matrices, `plane_step` bytes from one to the next.
    pub(crate) fn with_planes(self, planes: usize, plane_step: usize) -> TensorMap {
        TensorMap { planes: planes as u64, plane_step: plane_step as u64, ..self }
    }

    pub(crate) fn encode(&self, bases: PortBases<'_>) -> Result<sys::CUtensorMap> {
        let mut out = sys::CUtensorMap { opaque: [0; 16] };
        let rank = if self.planes > 0 { 3 } else { 2 };
        let sizes = [self.columns, self.rows, self.planes];
        let steps = [self.step, self.plane_step];
        let box_sizes = [COLUMNS, self.box_rows as u32, 1];
        let every = [1, 1, 1];
        let address: *mut c_void = std::ptr::with_exposed_provenance_mut(self.at.resolve(bases) as usize);
        // SAFETY: of sizes and of sizes of a box `rank` are read, and one step less; the map is written. The memory is not
        // touched.
        let encoded = unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut out,
                sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT16,
                rank,
                address,
                sizes.as_ptr(),
                steps.as_ptr(),
                box_sizes.as_ptr(),
                every.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        let TensorMap { at, rows, columns, step, box_rows, planes, plane_step } = self;
        check_driver_result(
            || {
                format!(
                    "describing {rows} × {columns} elements at {at:?}, {step} bytes apart, by {box_rows} rows, \
                     {planes} times, {plane_step} bytes apart"
                )
            },
            encoded.result(),
        )?;
        Ok(out)
    }
}
