//! Generated kernels of GPUs, compiled for the host as they are.

use std::ffi::c_void;
use std::fmt::Write as _;

use crate::library::HostLibrary;

/// Machine instructions, which `emulate.h` has other means for.
const PTX: &str = include_str!("../../../runtime/cuda/src/codegen/compute/kernels/ptx.cuh");

/// Generated code as a library of the host. Each thread of a kernel is a context of one thread of the host.
#[derive(Debug)]
pub struct KernelLibrary(HostLibrary);

/// A launch: parameters, blocks, threads of a block, blocks of a cluster.
type Launch = unsafe extern "C" fn(*const *const u64, u32, u32, u32);

impl KernelLibrary {
    /// Compiles `text`, whose kernels have these names, for the test `what`; `None` where there is no compiler.
    ///
    /// # Panics
    /// The compiler refuses the code, or it lacks the machine instructions that generated code begins with.
    pub fn build<'a>(what: &str, text: &str, names: impl Iterator<Item = &'a str>) -> Option<KernelLibrary> {
        let host = include_str!("emulate.h");
        assert!(text.contains(PTX), "{what}: no generated code");
        let mut code = format!("{host}{}", text.replace(PTX, ""));
        for name in names {
            let _ = writeln!(
                code,
                "extern \"C\" void emulate_{name}(const unsigned long long *const *p, unsigned g, unsigned t, unsigned c) \
                 {{ emulate::launch({name}, p, g, t, c); }}"
            );
        }
        HostLibrary::build(&format!("compute-{what}"), &code, &["-std=c++17", "-w"]).map(KernelLibrary)
    }

    /// Runs a kernel with these parameters in this many blocks, threads of a block and blocks of a cluster.
    ///
    /// # Safety
    /// The kernel was generated for these parameters, and the memory that they name exists.
    pub unsafe fn run(&self, entry: &str, params: &[*const u64], [blocks, threads, cluster]: [u32; 3]) {
        let symbol: *const c_void = self.0.symbol(&format!("emulate_{entry}"));
        // SAFETY: `build` gave all functions of this name this type.
        let launch: Launch = unsafe { std::mem::transmute(symbol) };
        // SAFETY: by the caller.
        unsafe { launch(params.as_ptr(), blocks, threads, cluster) };
    }
}
