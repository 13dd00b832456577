//! What a command that failed says, and the code that it ends with.

/// The exit code of a command that failed: 2 for bad input, 1 for all else.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    let kind = error.downcast_ref::<symmc::Error>().map(symmc::Error::kind);
    if kind.is_none_or(symmc::ErrorKind::is_bad_input) { 2 } else { 1 }
}

/// The message of an error with what it is about in front. A [`symmc::Error`] says all that its sources do.
pub fn message(error: &anyhow::Error) -> String {
    let mut parts = Vec::new();
    for cause in error.chain() {
        parts.push(cause.to_string());
        if cause.is::<symmc::Error>() {
            break;
        }
    }
    parts.join(": ")
}
