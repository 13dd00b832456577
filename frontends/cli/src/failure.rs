//! Error messages and exit codes of commands that failed.

use symmc::GroupSyntax;

/// The exit code of a command that failed: 2 for bad input, 1 for other failures.
pub fn exit_code(error: &anyhow::Error) -> u8 {
    let kind = error.downcast_ref::<symmc::Error>().map(symmc::Error::kind);
    if kind.is_none_or(symmc::ErrorKind::is_bad_input) { 2 } else { 1 }
}

/// The message of an error, after the contexts that were added to it. The text of a [`symmc::Error`] contains those of its
/// sources, so they are not repeated.
pub fn error_message(error: &anyhow::Error) -> String {
    let mut messages = Vec::new();
    for cause in error.chain() {
        if let Some(error) = cause.downcast_ref::<symmc::Error>() {
            messages.push(format!("{error}{}{}", error.group_hint(&OPTIONS), dim_hint(error)));
            break;
        }
        messages.push(cause.to_string());
    }
    messages.join(": ")
}

/// A hint at the option that gives symbols a range, for errors that are about the ranges of symbols; else empty.
fn dim_hint(error: &symmc::Error) -> &'static str {
    if error.symbols().is_empty() { "" } else { "; the option --dim states ranges and equal sizes" }
}

/// How groups and ranks are written as options of the command.
const OPTIONS: GroupSyntax = GroupSyntax {
    entry: |group| {
        let cell = |ranks: &Vec<u32>| ranks.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let cells: Vec<String> = group.example.iter().map(cell).collect();
        format!("--group '{}={}'", group.name, cells.join(";"))
    },
    entries: |entries| entries.join(" "),
    ranks: |ranks| format!("--ranks {ranks}"),
};
