//! Machines by the name of a built-in profile, or by a file with one.

use std::path::Path;

use symmc_ir::machine::Profile;

use crate::error::Error;
use crate::files::{read, utf8};

/// What such a file should be.
const MACHINE: &str = "a machine or a profile file";

/// The profile of a machine: the built-in one of this name, as `host` or `h200x8`, or that in the file at this path, as
/// `symmc tune` writes it.
///
/// # Errors
/// There is no such machine or file, or the file is no profile.
pub fn machine(name: &str) -> Result<Profile, Error> {
    if let Some(profile) = Profile::builtin(name) {
        return Ok(profile);
    }
    let path = Path::new(name);
    if !path.exists() {
        let known = Profile::builtin_names().join(", ");
        return Err(Error::request(format!(
            "there is no machine {name}; expected one of {known} or a profile file"
        )));
    }
    let text = utf8(path, read(path, MACHINE)?, MACHINE)?;
    Profile::from_json(&text).map_err(|e| Error::misread(path, e.to_string(), e))
}
