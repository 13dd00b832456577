//! Machine code that is loaded, and the kernels in it.

use std::ffi::CString;
use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::device::Device;
use crate::error::{CudaError, checked};

/// Loaded machine code.
#[derive(Debug)]
pub struct Module {
    device: Arc<Device>,
    handle: sys::CUmodule,
}

// SAFETY: modules may be used from any thread.
unsafe impl Send for Module {}

// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// Loads what [`crate::compile::compile`] gave.
    pub fn load(device: &Arc<Device>, code: &[u8]) -> Result<Module, CudaError> {
        // SAFETY: the code is a whole image, which carries its own size.
        let loaded = unsafe { result::module::load_data(code.as_ptr().cast()) };
        let handle = checked(|| format!("loading {} bytes of machine code", code.len()), loaded)?;
        Ok(Module { device: device.clone(), handle })
    }

    /// The kernel of this name, allowed to use `shared` bytes of dynamic shared memory.
    pub fn function(&self, name: &str, shared: u32) -> Result<Function, CudaError> {
        let text = CString::new(name).unwrap_or_default();
        // SAFETY: the module is loaded.
        let found = unsafe { result::module::get_function(self.handle, text) };
        let function = checked(|| format!("looking up kernel {name}"), found)?;
        if shared > 48 << 10 {
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function belongs to the module.
            let set = unsafe { result::function::set_function_attribute(function, attribute, shared as i32) };
            checked(|| format!("allowing {shared} bytes of shared memory to kernel {name}"), set)?;
        }
        Ok(Function(function))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let _ = self.device.enter();
        // SAFETY: loaded by `load`; graphs that use it are not launched any more.
        let _ = unsafe { result::module::unload(self.handle) };
    }
}

/// A kernel of a module that is loaded.
#[derive(Clone, Copy, Debug)]
pub struct Function(sys::CUfunction);

impl Function {
    /// The driver's handle.
    pub(super) fn handle(self) -> sys::CUfunction {
        self.0
    }
}
