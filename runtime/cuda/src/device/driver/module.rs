//! Loaded machine code and its kernels.
//!
//! Code stays loaded after its last user is dropped, and is reused when the same code is loaded in the same
//! context ([`cache`]). A session that is opened again then loads nothing. This also keeps device memory
//! constant: drivers (seen with 580.159, CUDA 13.0) leak 1 to 6 KiB of device memory whenever a module with a
//! fence of system scope (`__threadfence_system`) is unloaded, and every kernel that communicates has one.
//!
//! Modules are shared, so kernels have no global variables that they write.

mod cache;

use std::ffi::CString;
use std::sync::{Arc, LazyLock};

use cudarc::driver::{result, sys};
use sha2::{Digest, Sha256};

use self::cache::{CodeKey, LoadedCode, SharedModules};
use super::device::Device;
use crate::error::{Result, check_driver_result};

/// The limit of machine code without a user that stays loaded on a GPU.
const IDLE_BYTES: usize = 64 << 20;

static MODULES: LazyLock<SharedModules<RawModule>> = LazyLock::new(|| SharedModules::new(IDLE_BYTES));

#[derive(Clone, Copy, Debug)]
struct RawModule(sys::CUmodule);

// SAFETY: modules may be used from any thread.
unsafe impl Send for RawModule {}

// SAFETY: as above.
unsafe impl Sync for RawModule {}

impl RawModule {
    /// Unloads the module. Its context must be current.
    ///
    /// # Safety
    /// Its context exists, and none of its kernels runs or will be launched.
    unsafe fn unload(self) {
        // SAFETY: by the caller.
        let _ = unsafe { result::module::unload(self.0) };
    }
}

#[derive(Debug)]
pub struct Module {
    device: Arc<Device>,
    /// `None` after it was returned to the cache.
    code: Option<Arc<LoadedCode<RawModule>>>,
    handle: RawModule,
}

impl Module {
    /// Loads the result of [`crate::codegen::compile::compile`], unless it is loaded already. The context of
    /// `device` is current.
    pub fn load(device: &Arc<Device>, code: &[u8]) -> Result<Module> {
        let digest = Sha256::digest(code).into();
        let key = CodeKey { gpu: device.ordinal(), context: device.context_id()?, digest };
        let code = MODULES.get_or_load(key, code.len(), || {
            // SAFETY: the code is a whole image, which carries its own size.
            let loaded = unsafe { result::module::load_data(code.as_ptr().cast()) };
            check_driver_result(|| format!("loading {} bytes of machine code", code.len()), loaded)
                .map(RawModule)
        })?;
        Ok(Module { device: device.clone(), handle: code.module, code: Some(code) })
    }

    /// The kernel with this name, allowed to use `shared` bytes of dynamic shared memory. Fails if the module
    /// has no such kernel, or the GPU has less shared memory.
    pub fn function(&self, name: &str, shared: u32) -> Result<Function> {
        let text = CString::new(name).unwrap_or_default();
        // SAFETY: the module is loaded.
        let handle = unsafe { result::module::get_function(self.handle.0, text) };
        let function = check_driver_result(|| format!("looking up kernel {name}"), handle)?;
        if shared > 48 << 10 {
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let action = || format!("allowing {shared} bytes of shared memory to kernel {name}");
            // Programs that share the module may need different amounts: the largest stays allowed.
            // SAFETY: the function belongs to the module.
            let allowed = check_driver_result(action, unsafe {
                result::function::get_function_attribute(function, attribute)
            })?;
            if allowed < shared as i32 {
                // SAFETY: as above.
                let set =
                    unsafe { result::function::set_function_attribute(function, attribute, shared as i32) };
                check_driver_result(action, set)?;
            }
        }
        Ok(Function(function))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        self.code = None;
        let evicted = MODULES.lock().evict_idle(self.device.ordinal());
        if evicted.is_empty() {
            return;
        }
        let _ = self.device.enter();
        for code in evicted {
            // SAFETY: the code belongs to the context of this device, which exists. Nothing uses the code any
            // more, and graphs with its kernels are not launched any more.
            unsafe { code.module.unload() };
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Function(sys::CUfunction);

impl Function {
    pub(super) fn handle(self) -> sys::CUfunction {
        self.0
    }
}
