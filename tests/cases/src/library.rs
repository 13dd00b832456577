//! Kernels of a device as code of the host: C++ that is compiled and loaded by a test.

use std::ffi::{CString, c_void};
use std::process::Command;

use crate::skip::skip_test_outside_ci;

/// A library of the host, loaded as long as this value lives.
#[derive(Debug)]
pub struct HostLibrary(*mut c_void);

// SAFETY: the handle may be used from any thread.
unsafe impl Sync for HostLibrary {}

impl Drop for HostLibrary {
    fn drop(&mut self) {
        // SAFETY: opened by `build`; none of its functions runs, as their callers borrow this value.
        unsafe { libc::dlclose(self.0) };
    }
}

impl HostLibrary {
    /// Compiles C++ for the test of this name, with these flags in addition to the usual ones. `None` without a compiler:
    /// the test is skipped.
    ///
    /// # Panics
    /// The compiler rejects the code, or CI has no compiler.
    pub fn build(name: &str, code: &str, flags: &[&str]) -> Option<HostLibrary> {
        let folder = std::env::temp_dir().join(format!("symmc-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder for the code");
        let (source, library) = (folder.join("kernels.cpp"), folder.join("kernels.so"));
        std::fs::write(&source, code).expect("the code is written");
        // More optimisation takes longer to compile than it saves.
        let usual = ["-Og", "-fno-strict-aliasing", "-ffp-contract=off", "-shared", "-fPIC"];
        let mut compiler = Command::new("g++");
        let built = compiler.args(usual).args(flags).arg("-o").arg(&library).arg(&source).output();
        let Ok(built) = built else {
            skip_test_outside_ci("g++");
            return None;
        };
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let path = CString::new(library.as_os_str().as_encoded_bytes()).expect("a path");
        // SAFETY: the library was just built; loading it runs nothing but constructors of the C++ runtime.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null(), "{} loads", library.display());
        let _ = std::fs::remove_dir_all(folder);
        Some(HostLibrary(handle))
    }

    /// The address of a function.
    ///
    /// # Panics
    /// There is none of this name.
    pub fn symbol(&self, name: &str) -> *const c_void {
        let text = CString::new(name).expect("a name");
        // SAFETY: the library stays loaded.
        let address = unsafe { libc::dlsym(self.0, text.as_ptr()) };
        assert!(!address.is_null(), "{name}");
        address
    }
}
