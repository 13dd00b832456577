//! Finds machine profiles by the name of a built-in profile, or in a file.

use std::path::Path;

use symmc_ir::machine::MachineProfile;

use crate::error::Error;
use crate::files::{decode_utf8, read_file};

/// The expected content of a profile file, for messages.
const MACHINE: &str = "a machine or a profile file";

/// The profile of a machine: the built-in one of this name, such as `host` or `h200x8`, or the one in the file at this path.
/// `symmc tune` writes such files.
///
/// # Errors
/// There is no such machine or file, or the file does not contain a profile.
pub fn machine_profile(name: &str) -> Result<MachineProfile, Error> {
    if let Some(profile) = MachineProfile::builtin(name) {
        return Ok(profile);
    }
    let path = Path::new(name);
    if !path.exists() {
        let names = MachineProfile::builtin_names().join(", ");
        return Err(Error::invalid_request(format!(
            "there is no machine {name}; expected one of {names} or a profile file"
        )));
    }
    let text = decode_utf8(path, read_file(path, MACHINE)?, MACHINE)?;
    MachineProfile::from_json(&text).map_err(|e| Error::format_with_cause(path, e.to_string(), e))
}
