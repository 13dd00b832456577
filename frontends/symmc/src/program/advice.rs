//! What importers say of files: names, and what a caller may say of symbols.

use std::path::Path;

use symmc_import::ranges::MentionedSymbols;

/// The notes of an import, with what may be said of the symbols that nobody bounds.
pub(super) fn add_range_advice(mut notes: Vec<String>, open: &[String]) -> Vec<String> {
    if !open.is_empty() {
        notes.push(format!(
            "{} would bound {}",
            format_range_options(open),
            if open.len() == 1 { "it" } else { "them" }
        ));
    }
    notes
}

/// The options that give symbols a range.
fn format_range_options(symbols: &[String]) -> String {
    symbols.iter().map(|s| format!("--dim {s}=MIN..MAX")).collect::<Vec<_>>().join(" ")
}

/// A message about extents, and what may be said of their symbols: that they have a range, or, where it is not about
/// their size, that some are equal.
pub(super) fn with_range_advice(message: String, symbols: &MentionedSymbols, size: bool) -> String {
    let narrow = if size && symbols.unbounded.is_empty() { &symbols.named } else { &symbols.unbounded };
    let mut out = message;
    if !narrow.is_empty() {
        let (what, which) = match (symbols.unbounded.is_empty(), narrow.len()) {
            (true, _) => ("narrower ", narrow.join(", ")),
            (false, 1) => ("", format!("{}, which has no upper bound in the program", narrow[0])),
            (false, _) => ("", format!("{}, which have no upper bound in the program", narrow.join(", "))),
        };
        out.push_str(&format!("; give a {what}range to {which}: {}", format_range_options(narrow)));
    }
    if let (false, [first, others @ ..]) = (size, symbols.named.as_slice())
        && !others.is_empty()
    {
        let same: Vec<String> = others.iter().map(|s| format!("--dim {s}={first}")).collect();
        out.push_str(&format!("; if extents are equal in every run, say so, as with {}", same.join(" ")));
    }
    out
}

/// The name of a program by its file.
pub(super) fn program_name(path: &Path) -> String {
    path.file_stem().map_or_else(|| "program".into(), |s| s.to_string_lossy().into_owned())
}

/// The name of a program by the file of its rank 0.
pub(super) fn program_name_of_ranks(path: &Path) -> String {
    let stem = program_name(path);
    stem.strip_suffix("_rank0").unwrap_or(&stem).to_string()
}
