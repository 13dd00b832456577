//! The backend that runs plans on a machine, as profiles name it.
//!
//! Profiles of versions 1 and 2 have no field `backend`. `symmc tune` wrote them only for NVIDIA GPUs, with the
//! number of multiprocessors. A profile with this number is therefore read as [`Cuda`](TargetBackend::Cuda),
//! any other as [`Host`](TargetBackend::Host). From version 3 on the field is required.

use std::borrow::Cow;

use serde::{Deserialize, Serialize, de::IgnoredAny};

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

/// The last version of profiles without the field `backend`.
const LAST_VERSION_WITHOUT: u32 = 2;

#[derive(Deserialize)]
struct BackendFields {
    version: u32,
    backend: Option<IgnoredAny>,
    multiprocessors: Option<IgnoredAny>,
}

/// The text of a profile with its backend, which is added if the version of the profile lacks the field.
pub fn add_backend(text: &str) -> Cow<'_, str> {
    let Ok(fields) = serde_json::from_str::<BackendFields>(text) else { return Cow::Borrowed(text) };
    if fields.version > LAST_VERSION_WITHOUT || fields.backend.is_some() {
        return Cow::Borrowed(text);
    }
    let backend = if fields.multiprocessors.is_some() { TargetBackend::Cuda } else { TargetBackend::Host };
    // The rest of the text is unchanged, so that errors keep their lines.
    Cow::Owned(text.replacen('{', &format!("{{\"backend\": \"{backend}\", "), 1))
}
