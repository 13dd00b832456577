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
        if let Some(error) = cause.downcast_ref::<symmc::Error>() {
            parts.push(format!("{error}{}", stated_groups(error)));
            break;
        }
        parts.push(cause.to_string());
    }
    parts.join(": ")
}

/// Example options for an error of unknown groups; empty, or starting with a separator.
fn stated_groups(error: &symmc::Error) -> String {
    let groups = error.unknown_groups();
    let [first, ..] = groups.as_slice() else { return String::new() };
    let cell = |ranks: &Vec<u32>| ranks.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let option = |g: &symmc::UnknownGroup| {
        let cells: Vec<String> = g.example.iter().map(cell).collect();
        format!("--group '{}={}'", g.name, cells.join(";"))
    };
    let options: Vec<String> = groups.iter().map(option).collect();
    let all = first.all_ranks.map_or(String::new(), |n| format!(", or --ranks {n} if it is all ranks"));
    format!("; give the ranks of each cell, such as {}{all}", options.join(" "))
}
