//! The backend that runs plans on a machine, as profiles name it.

use serde::{Deserialize, Serialize};

crate::named_enum! {
    /// The backend that runs the plans of a machine.
    #[derive(Serialize, Deserialize)]
    #[serde(try_from = "String", into = "String")]
    TargetBackend {
        /// Processes over shared memory.
        Host = "host",
        Cuda = "cuda",
    }
}

impl TryFrom<String> for TargetBackend {
    type Error = String;

    fn try_from(name: String) -> Result<TargetBackend, String> {
        TargetBackend::from_name(&name)
            .ok_or_else(|| format!("backend: expected one of {}, found {name}", TargetBackend::names()))
    }
}

impl From<TargetBackend> for String {
    fn from(backend: TargetBackend) -> String {
        backend.name().to_string()
    }
}
