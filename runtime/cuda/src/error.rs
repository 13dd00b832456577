//! Errors of the CUDA backend.

use cudarc::driver::result;
use symmc_runtime::RunError;
use thiserror::Error;

/// A result whose error is [`CudaError`] unless another one is named.
pub type Result<T, E = CudaError> = std::result::Result<T, E>;

#[derive(Clone, PartialEq, Debug, Error)]
pub enum CudaError {
    /// A library that the GPU backend needs is not on this machine.
    #[error("{library} was not found: {install}")]
    Missing {
        library: &'static str,
        /// How to install it.
        install: &'static str,
    },
    #[error("{call}: {name} ({text})")]
    Driver {
        /// The attempted call, with sizes and names.
        call: String,
        name: String,
        text: String,
    },
    /// Generated code did not compile, which is a defect of symmc.
    #[error("generated code did not compile ({detail}); this is a defect of symmc")]
    Compile {
        /// The compiler's log.
        detail: String,
    },
    /// A library other than the driver refused a call.
    #[error("{call}: {detail}")]
    Library { call: String, detail: String },
    /// The machine or the program does not support the request. The text names the thing, what was found and
    /// what was expected.
    #[error("{0}")]
    Unsupported(String),
    /// A rank that this one depends on failed or left.
    #[error(transparent)]
    Run(#[from] RunError),
}

impl From<CudaError> for RunError {
    fn from(error: CudaError) -> RunError {
        match error {
            CudaError::Run(error) => error,
            CudaError::Unsupported(text) => RunError::Invalid(text),
            error @ CudaError::Missing { .. } => RunError::Unsupported(error.to_string()),
            other => RunError::system("CUDA", other),
        }
    }
}

impl From<nccl_sys::NcclError> for CudaError {
    fn from(error: nccl_sys::NcclError) -> CudaError {
        CudaError::Library { call: error.call.into(), detail: error.to_string() }
    }
}

/// Converts the result of a driver call; `what` describes the call for the error.
pub(crate) fn check_driver_result<T>(
    what: impl FnOnce() -> String,
    result: Result<T, result::DriverError>,
) -> Result<T> {
    result.map_err(|error| CudaError::Driver {
        call: what(),
        name: read_error_text(error.error_name()),
        text: read_error_text(error.error_string()),
    })
}

fn read_error_text(text: Result<&std::ffi::CStr, result::DriverError>) -> String {
    text.map_or_else(|_| "unknown".into(), |text| text.to_string_lossy().into_owned())
}
