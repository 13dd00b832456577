//! The symmc command.
fn main() {}
