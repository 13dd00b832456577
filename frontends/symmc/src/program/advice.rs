//! Names of programs, and advice in the importers' messages on the ranges of symbols.
//!
//! The texts show ranges as `NAME=MIN..MAX`. They name no option of a frontend.

use std::path::Path;

use symmc_import::ranges::MentionedSymbols;

/// Examples of ranges for symbols.
fn format_range_options(symbols: &[String]) -> String {
    symbols.iter().map(|s| format!("{s}=MIN..MAX")).collect::<Vec<_>>().join(" ")
}

/// A message about extents, with advice on the ranges of its symbols. If the message is not about the size of a value, the
/// advice also mentions that symbols may be equal. `size` says whether it is.
pub(super) fn with_range_advice(message: String, symbols: &MentionedSymbols, size: bool) -> String {
    if !symbols.suggested.is_empty() {
        let suggested =
            symbols.suggested.iter().map(|(symbol, constraint)| format!(" {symbol}={constraint}"));
        return format!("{message}; the program holds with{}", suggested.collect::<String>());
    }
    let narrow = if size && symbols.unbounded.is_empty() { &symbols.named } else { &symbols.unbounded };
    let mut out = message;
    if !narrow.is_empty() {
        let (adjective, which) = match (symbols.unbounded.is_empty(), narrow.len()) {
            (true, _) => ("narrower ", narrow.join(", ")),
            (false, 1) => ("", format!("{}, which has no upper bound in the program", narrow[0])),
            (false, _) => ("", format!("{}, which have no upper bound in the program", narrow.join(", "))),
        };
        out.push_str(&format!("; give a {adjective}range to {which}: {}", format_range_options(narrow)));
    }
    if let (false, [first, others @ ..]) = (size, symbols.named.as_slice())
        && !others.is_empty()
    {
        let equalities: Vec<String> = others.iter().map(|s| format!("{s}={first}")).collect();
        out.push_str(&format!("; if extents are equal in every run, state it: {}", equalities.join(" ")));
    }
    out
}

/// The name of a program from its file.
pub(super) fn program_name(path: &Path) -> String {
    path.file_stem().map_or_else(|| "program".into(), |s| s.to_string_lossy().into_owned())
}

/// The name of a program from the file of its rank 0.
pub(super) fn program_name_of_ranks(path: &Path) -> String {
    let stem = program_name(path);
    stem.strip_suffix("_rank0").unwrap_or(&stem).to_string()
}
