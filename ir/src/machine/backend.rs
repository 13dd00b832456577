//! The backend that runs plans on a machine, as profiles name it.

use serde::{Deserialize, Serialize};

crate::named_enum! {
    /// The backend that runs the plans of a machine.
    #[derive(Serialize, Deserialize)]
    #[serde(try_from = "String", into = "String")]
    Backend {
        /// Processes over shared memory.
        Host = "host",
        Cuda = "cuda",
    }
}

impl TryFrom<String> for Backend {
    type Error = String;

    fn try_from(name: String) -> Result<Backend, String> {
        Backend::from_name(&name)
            .ok_or_else(|| format!("backend: expected one of {}, found {name}", Backend::names()))
    }
}

impl From<Backend> for String {
    fn from(backend: Backend) -> String {
        backend.name().to_string()
    }
}
