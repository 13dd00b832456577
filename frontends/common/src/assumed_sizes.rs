//! Sizes that an import assumes where a program leaves them open.
//!
//! Exporters write symbols without bounds, and a symbol for each extent that varies, even if two of them are equal in
//! every run. Two kinds of assumptions make such programs complete:
//!
//! - A symbol without an upper bound gets the largest power of two with which the values of the program fit
//!   ([`bound_open_sizes`]).
//! - An import that fails on extents is tried again with an equality, a bound or a multiple that the message suggests, until
//!   one makes it succeed ([`import_with_assumed_sizes`]).
//!
//! An assumption is a constraint that the caller could have stated. It holds for every run: other sizes are refused.

use std::cmp::Reverse;

use symmc_ir::{Graph, SymbolTable};

use crate::ranges::{MentionedSymbols, SymbolConstraint, SymbolConstraints};
use crate::sizes::CallSizes;
use crate::sizes::assumptions::{self, SizeRelation};

/// The largest value of a program whose sizes are assumed, in bytes.
const MAX_ASSUMED_BYTES: i64 = 16 << 30;

/// The maximum number of imports of one program.
const MAX_IMPORTS: usize = 64;

/// How many of them are made only to say what would help.
const MAX_IMPORTS_FOR_ADVICE: usize = 16;

/// The maximum number of numbers of a message that are tried as bounds, differences and steps.
const MAX_NUMBERS: usize = 6;

/// A symbol with the constraint that is assumed for it.
pub type SizeAssumption = (String, SymbolConstraint);

/// An error about symbolic extents.
pub struct ExtentFailure<'e> {
    /// The name of the node, or another text that is the same for errors at one place only.
    pub place: String,
    pub message: String,
    pub symbols: &'e MentionedSymbols,
}

/// Lowers the bounds of symbols to the largest power of two with which no value has more than 16 GiB, or to 1, unless all values fit
/// already. No bound becomes larger, or less than the minimum of its symbol. Returns the assumptions.
pub fn bound_open_sizes(graph: &mut Graph, open: &[String]) -> Vec<SizeAssumption> {
    let is_open = |name: &String| open.contains(name);
    let ids: Vec<_> = graph.symbols.iter().filter(|(_, s)| is_open(&s.name)).map(|(id, _)| id).collect();
    let shapes: Vec<_> = graph
        .values
        .values()
        .filter(|v| v.ty.shape.iter().any(|d| d.symbols().iter().any(|s| ids.contains(s))))
        .map(|v| (v.ty.numel(), v.ty.dtype.size() as i64))
        .collect();
    let fits = |symbols: &SymbolTable| {
        shapes.iter().all(|(elements, size)| elements.upper_bound(symbols) <= MAX_ASSUMED_BYTES / size)
    };
    let largest = ids.iter().map(|&id| graph.symbols[id].max).max().unwrap_or(1).max(1);
    let exponents = if fits(&graph.symbols) { 0..0 } else { 0..largest.ilog2() + 1 };
    for exponent in exponents.rev() {
        let mut symbols = graph.symbols.clone();
        for &id in &ids {
            let symbol = &mut symbols[id];
            symbol.max = symbol.max.min(1 << exponent).max(symbol.min);
        }
        if exponent == 0 || fits(&symbols) {
            graph.symbols = symbols;
            break;
        }
    }
    let range = |s: &symmc_ir::Symbol| SymbolConstraint::Range { min: Some(s.min), max: Some(s.max) };
    ids.iter().map(|&id| (graph.symbols[id].name.clone(), range(&graph.symbols[id]))).collect()
}

/// Imports a program, with as few assumptions as make it succeed. `import` imports with constraints. `failure` tells
/// errors about extents from others, and `suggest` gives an error what would replace the ranges that the caller states.
///
/// # Errors
/// The error without assumptions, if it is not about extents or no assumptions were found.
pub fn import_with_assumed_sizes<T, E>(
    given: &SymbolConstraints,
    import: impl FnMut(&SymbolConstraints) -> Result<T, E>,
    failure: impl Fn(&E) -> Option<ExtentFailure<'_>>,
    suggest: impl FnOnce(&mut E, Vec<SizeAssumption>),
) -> Result<(T, Vec<SizeAssumption>), E> {
    let mut search = AssumptionSearch { given, import, failure, imports: 0 };
    let mut first = match search.try_with(&[]) {
        Ok(imported) => return Ok((imported, Vec::new())),
        Err(error) if given.refuses_assumptions => return Err(error),
        Err(error) => error,
    };
    let mut assumed = Vec::new();
    let Some(mut imported) = search.extend(&first, &mut assumed).or_else(|| {
        assumed = (search.failure)(&first)?.symbols.recorded_constraints();
        (!assumed.is_empty()).then(|| search.try_with(&assumed).ok()).flatten()
    }) else {
        if let Some(suggested) = search.replace_ranges(&first) {
            suggest(&mut first, suggested);
        }
        return Err(first);
    };
    // Each assumption that the others make needless goes.
    let count = if assumed.len() > 1 { assumed.len() } else { 0 };
    for i in (0..count).rev() {
        let mut fewer = assumed.clone();
        fewer.remove(i);
        if let Ok(without) = search.try_with(&fewer) {
            (imported, assumed) = (without, fewer);
        }
    }
    Ok((imported, assumed))
}

struct AssumptionSearch<'a, I, F> {
    given: &'a SymbolConstraints,
    import: I,
    failure: F,
    imports: usize,
}

impl<T, E, I, F> AssumptionSearch<'_, I, F>
where
    I: FnMut(&SymbolConstraints) -> Result<T, E>,
    F: Fn(&E) -> Option<ExtentFailure<'_>>,
{
    fn try_with(&mut self, assumed: &[SizeAssumption]) -> Result<T, E> {
        self.imports += 1;
        let mut constraints = self.given.clone();
        constraints.constraints.extend(assumed.iter().cloned());
        (self.import)(&constraints)
    }

    /// Assumptions with which the import succeeds once the ranges that the caller states for the symbols of an error are left
    /// out.
    fn replace_ranges(&mut self, error: &E) -> Option<Vec<SizeAssumption>> {
        let failure = (self.failure)(error)?;
        let symbols = failure.symbols;
        let is_named = |name: &String| symbols.named.contains(name) || symbols.aliases.contains(name);
        let is_range = |constraint: &SymbolConstraint| matches!(constraint, SymbolConstraint::Range { .. });
        let mut relaxed = self.given.clone();
        relaxed.constraints.retain(|(name, constraint)| !(is_named(name) && is_range(constraint)));
        if relaxed.constraints.len() == self.given.constraints.len() {
            return None;
        }
        let mut search = AssumptionSearch {
            given: &relaxed,
            import: &mut self.import,
            failure: &self.failure,
            imports: MAX_IMPORTS - MAX_IMPORTS_FOR_ADVICE,
        };
        let mut assumed = Vec::new();
        search.extend(error, &mut assumed).map(|_| assumed)
    }

    /// Adds assumptions to those that lead to an error, until the import succeeds. Depth first: an assumption stays if the
    /// next error is another one, and goes if no further assumptions make the import succeed.
    fn extend(&mut self, error: &E, assumed: &mut Vec<SizeAssumption>) -> Option<T> {
        let failure = (self.failure)(error)?;
        let (place, message) = (failure.place, failure.message);
        let before = assumed.len();
        for assumptions in find_assumptions(&message, failure.symbols, self.given, assumed) {
            if self.imports >= MAX_IMPORTS {
                return None;
            }
            let same = Some(message.clone());
            let expected =
                assumptions.iter().fold(same, |text, a| message_with_assumption(&text?, a, failure.symbols));
            assumed.extend(assumptions);
            match self.try_with(assumed) {
                Ok(imported) => return Some(imported),
                Err(next) => {
                    let is_other = (self.failure)(&next).is_some_and(|next| {
                        next.place != place || expected.is_some_and(|e| e != next.message)
                    });
                    if is_other && let Some(imported) = self.extend(&next, assumed) {
                        return Some(imported);
                    }
                }
            }
            assumed.truncate(before);
        }
        None
    }
}

/// The message that the same error has under an assumption, or `None` if the assumption changes more than a name.
fn message_with_assumption(
    message: &str,
    (symbol, constraint): &SizeAssumption,
    symbols: &MentionedSymbols,
) -> Option<String> {
    match constraint {
        SymbolConstraint::Range { .. } => Some(message.to_string()),
        SymbolConstraint::Equals(other) if symbols.named.contains(other) => {
            Some(replace_word(message, symbol, other))
        }
        SymbolConstraint::Equals(_) => None,
    }
}

/// The pairs of different symbols that are extents at one place of two shapes of a message, counted from the last axis.
fn symbols_at_one_place<'n>(message: &str, named: &[&'n str]) -> Vec<[&'n str; 2]> {
    let lists = message.split('[').skip(1).filter_map(|rest| Some(rest.split_once(']')?.0));
    let shapes: Vec<Vec<&str>> = lists.map(|list| list.split(", ").collect()).collect();
    let symbol = |extent: &&str| named.iter().find(|name| *name == extent).copied();
    let mut pairs = Vec::new();
    for (i, first) in shapes.iter().enumerate() {
        for second in &shapes[i + 1..] {
            let places = first.iter().rev().zip(second.iter().rev());
            let meeting = places.filter_map(|(a, b)| Some([symbol(a)?, symbol(b)?]));
            pairs.extend(meeting.filter(|[a, b]| a != b));
        }
    }
    pairs
}

fn is_word_character(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn replace_word(text: &str, word: &str, by: &str) -> String {
    let mut out = String::new();
    for part in text.split_inclusive(|c| !is_word_character(c)) {
        let bare = part.trim_end_matches(|c| !is_word_character(c));
        out.push_str(if bare == word { by } else { bare });
        out.push_str(&part[bare.len()..]);
    }
    out
}

/// The assumptions that a message about extents suggests, likely ones first. Those that contradict recorded sizes are left out.
fn find_assumptions(
    message: &str,
    symbols: &MentionedSymbols,
    given: &SymbolConstraints,
    assumed: &[SizeAssumption],
) -> Vec<Vec<SizeAssumption>> {
    let is_constrained =
        |name: &String| given.constraints.iter().chain(assumed).any(|(symbol, _)| symbol == name);
    let is_free = |name: &str| {
        let mut names = symbols.named.iter().zip(&symbols.aliases);
        names.any(|(own, alias)| own == name && !is_constrained(own) && !is_constrained(alias))
    };
    let named: Vec<&str> = symbols.named.iter().map(String::as_str).collect();
    let free: Vec<&str> = named.iter().copied().filter(|name| is_free(name)).collect();
    let sizes: CallSizes = symbols.recorded.iter().map(|r| (r.symbol.clone(), r.size)).collect();
    let may_be = |name: &str, holds: &dyn Fn(i64) -> bool| sizes.get(name).is_none_or(|&size| holds(size));
    // A symbol that the run has a size for stays in the program.
    let is_set = |name: &str| symbols.recorded.iter().any(|r| r.symbol == name && r.is_set);
    let possible = |relations: Vec<SizeRelation>| {
        let possible = relations.into_iter().filter(|r| r.may_hold(&sizes) && !is_set(&r.symbol));
        possible.map(|r| (r.symbol, SymbolConstraint::Equals(r.expression))).collect::<Vec<_>>()
    };
    let mut numbers: Vec<i64> = Vec::new();
    for word in message.split(|c| !is_word_character(c)) {
        match word.parse::<i64>() {
            Ok(number @ 1..) if !numbers.contains(&number) && numbers.len() < MAX_NUMBERS => {
                numbers.push(number)
            }
            _ => {}
        }
    }
    numbers.sort_unstable_by_key(|&number| Reverse(number));
    let has_any = |parts: &[&str]| parts.iter().any(|part| message.contains(part));
    let range = |min, max| SymbolConstraint::Range { min, max: Some(max) };
    // Symbols at one place of two shapes are rather equal than others, and all of them at once.
    let mut meeting: Vec<SizeAssumption> = Vec::new();
    for pair in symbols_at_one_place(message, &named) {
        for (symbol, equal) in possible(assumptions::equalities(&pair, &is_free)) {
            if meeting.iter().all(|(other, _)| *other != symbol) {
                meeting.push((symbol, equal));
            }
        }
    }
    let mut out: Vec<SizeAssumption> = Vec::new();
    if has_any(&["min(", "div(", "mod("]) {
        for &name in &free {
            for &number in numbers.iter().filter(|&&n| n > 1) {
                // A program that was traced with one chunk may hold for the whole chunk only.
                for min in [None, Some(number)] {
                    if may_be(name, &|size| size <= number && min.is_none_or(|min| min <= size)) {
                        out.push((name.to_string(), range(min, number)));
                    }
                }
            }
        }
    }
    out.extend(meeting.iter().cloned());
    out.extend(possible(assumptions::equalities(&named, &is_free)));
    if has_any(&[" + ", " - "]) {
        let differences = numbers.iter().rev();
        let relations = differences.flat_map(|&number| assumptions::differences(&named, &is_free, number));
        out.extend(possible(relations.collect()));
    }
    out.extend(possible(assumptions::products(&named, &is_free, &|_| true)));
    if has_any(&["div(", "mod("]) {
        for &name in &free {
            for number in numbers.iter().filter(|&&n| n > 1 && may_be(name, &|size| size % n == 0)) {
                let steps = format!("{number}*{name}_by_{number}");
                out.push((name.to_string(), SymbolConstraint::Equals(steps)));
            }
        }
    }
    out.extend(possible(assumptions::minimums(&named, &is_free)));
    for &name in &free {
        for &number in numbers.iter().filter(|&&n| may_be(name, &|size| size == n)) {
            out.push((name.to_string(), range(Some(number), number)));
        }
    }
    let joint = Some(meeting).filter(|meeting| meeting.len() > 1);
    joint.into_iter().chain(out.into_iter().map(|one| vec![one])).collect()
}

#[cfg(test)]
mod tests {
    use symmc_ir::text;

    use super::*;
    use crate::ranges::RecordedSize;

    /// An import that fails until the constraints include all that is needed, which are tried in order. The error mentions `symbols`.
    fn search(
        needed: &[(&str, &str, &str)],
        symbols: &[&str],
        recorded: &[(&str, i64)],
    ) -> Result<(usize, Vec<String>), String> {
        let names: Vec<String> = symbols.iter().map(|s| (*s).to_string()).collect();
        let recorded = recorded.iter().map(|&(symbol, size)| RecordedSize {
            symbol: symbol.to_string(),
            size,
            is_set: false,
            is_constrained: false,
        });
        let recorded: Vec<RecordedSize> = recorded.collect();
        let mut imports = 0;
        let import = |given: &SymbolConstraints| {
            imports += 1;
            let stated: Vec<String> = given.constraints.iter().map(|(s, c)| format!("{s}={c}")).collect();
            match needed.iter().find(|(.., constraint)| !stated.iter().any(|s| s == constraint)) {
                None => Ok(()),
                Some((place, message, _)) => Err(Box::new((
                    (*place).to_string(),
                    (*message).to_string(),
                    MentionedSymbols {
                        named: names.iter().filter(|s| message.contains(*s)).cloned().collect(),
                        aliases: names.iter().filter(|s| message.contains(*s)).cloned().collect(),
                        unbounded: Vec::new(),
                        recorded: recorded.clone(),
                        suggested: Vec::new(),
                    },
                ))),
            }
        };
        let found = import_with_assumed_sizes(
            &SymbolConstraints::default(),
            import,
            |error| {
                Some(ExtentFailure { place: error.0.clone(), message: error.1.clone(), symbols: &error.2 })
            },
            |error, suggested| error.2.suggested = suggested,
        );
        match found {
            Ok((_, assumed)) => Ok((imports, assumed.iter().map(|(s, c)| format!("{s}={c}")).collect())),
            Err(error) => Err(error.1),
        }
    }

    #[test]
    fn what_a_message_suggests_is_assumed() {
        for (message, expected) in [
            ("the extents batch and rows do not broadcast", "rows=batch"),
            ("the extents min(64, rows) and rows do not broadcast", "rows=..64"),
            ("the lengths differ: batch + 1 and rows", "rows=batch + 1"),
            ("8*div(rows, 8) elements do not fit [rows]", "rows=8*rows_by_8"),
            ("[div(rows + 255, 256)] does not expand to [2]", "rows=256"),
            ("the extents rows and 7 do not broadcast", "rows=7"),
            ("the shapes [batch, 4] and [rows, 4] do not broadcast", "rows=batch"),
        ] {
            let found = search(&[("n", message, expected)], &["batch", "rows"], &[]);
            assert_eq!(found.map(|(_, assumed)| assumed), Ok(vec![expected.to_string()]), "{message}");
        }
        let several = [
            ("a", "the extents b and c do not broadcast", "c=b"),
            ("d", "the extents min(512, s) and s do not broadcast", "s=..512"),
        ];
        let found = search(&several, &["b", "c", "s"], &[]);
        assert_eq!(found.map(|(_, assumed)| assumed), Ok(vec!["c=b".to_string(), "s=..512".to_string()]));
    }

    #[test]
    fn symbols_of_many_axes_are_told_apart() {
        let symbols: Vec<String> = (0..8).flat_map(|i| [format!("a{i}_"), format!("b{i}_")]).collect();
        let names: Vec<&str> = symbols.iter().map(String::as_str).collect();
        let texts: Vec<[String; 3]> = (1..8)
            .flat_map(|i| {
                let message = format!("the shapes [a0_, b0_] and [a{i}_, b{i}_] do not broadcast");
                ["b", "a"].map(|s| [format!("n{i}{s}"), message.clone(), format!("{s}{i}_={s}0_")])
            })
            .collect();
        let needed: Vec<(&str, &str, &str)> =
            texts.iter().map(|[place, message, needed]| (&**place, &**message, &**needed)).collect();
        let expected: Vec<String> = texts.iter().map(|[.., needed]| needed.clone()).collect();
        let found = search(&needed, &names, &[]);
        assert_eq!(found.map(|(_, assumed)| assumed), Ok(expected));
    }

    #[test]
    fn nothing_is_assumed_in_vain() {
        assert_eq!(search(&[], &["b"], &[]), Ok((1, vec![])));
        // The error is the one without assumptions.
        let unsolvable = [
            ("a", "the extents b and c do not broadcast", "c=b"),
            ("d", "the rank of c is wrong", "c=nothing"),
        ];
        assert_eq!(search(&unsolvable, &["b", "c"], &[]), Err(unsolvable[0].1.to_string()));
        // Recorded sizes decide which equalities are tried.
        let message = "the extents b, c and s do not broadcast";
        let equal = search(&[("a", message, "s=c")], &["b", "c", "s"], &[("b", 3), ("c", 5), ("s", 5)]);
        assert_eq!(equal, Ok((2, vec!["s=c".to_string()])));
        // If nothing else helps, they are the sizes.
        let fixed = search(&[("a", "b is wrong", "b=3")], &["b"], &[("b", 3)]);
        assert_eq!(fixed.map(|(_, assumed)| assumed), Ok(vec!["b=3".to_string()]));
    }

    #[test]
    fn what_would_replace_a_stated_range_is_suggested() {
        let bounded = |most: i64| SymbolConstraint::Range { min: None, max: Some(most) };
        let symbols = MentionedSymbols {
            named: vec!["rows".into()],
            aliases: vec!["s12".into()],
            ..MentionedSymbols::default()
        };
        let suggested_for = |stated: &str| {
            let constraints = vec![(stated.to_string(), bounded(256))];
            let given = SymbolConstraints { constraints, ..SymbolConstraints::default() };
            let import = |given: &SymbolConstraints| {
                let fits = given.constraints.iter().any(|(_, constraint)| *constraint == bounded(64));
                if fits { Ok(()) } else { Err(Box::new(symbols.clone())) }
            };
            let message = "the extents min(64, rows) and rows do not broadcast";
            let failed = import_with_assumed_sizes(
                &given,
                import,
                |symbols| Some(ExtentFailure { place: "n".into(), message: message.into(), symbols }),
                |symbols, suggested| symbols.suggested = suggested,
            );
            failed.expect_err("the stated range is not changed").suggested
        };
        assert_eq!(suggested_for("rows"), [("rows".to_string(), bounded(64))]);
        assert_eq!(suggested_for("s12"), [("rows".to_string(), bounded(64))]);
    }

    #[test]
    fn the_search_ends() {
        let symbols: Vec<String> = (0..40).map(|i| format!("s{i}")).collect();
        let names: Vec<&str> = symbols.iter().map(String::as_str).collect();
        let message = format!("min(1, 2, 3, 4, 5) + mod({})", symbols.join(", "));
        assert_eq!(search(&[("a", &message, "never")], &names, &[]), Err(message.clone()));
    }

    #[test]
    fn open_sizes_are_powers_of_two_that_fit() {
        let bounds = |text: &str, open: &[&str]| {
            let mut graph = text::parse(text).expect("a program");
            let open: Vec<String> = open.iter().map(|s| (*s).to_string()).collect();
            let assumed = bound_open_sizes(&mut graph, &open);
            assumed.iter().map(|(s, c)| format!("{s}={c}")).collect::<Vec<_>>().join(" ")
        };
        let program = |ty: &str| {
            format!(
                "program \"p\" ranks 1\nsymbol a in 2..=1048576\nsymbol b in 0..=1048576\nsymbol c in 1..=100\n\narg %x: {ty}\n\nreturn %x\n"
            )
        };
        for (ty, expected) in [
            ("f32[a]", "a=2..1048576 b=0..1048576"),
            ("f32[a, 4096]", "a=2..1048576 b=0..1048576"),
            ("f32[a, 4097]", "a=2..524288 b=0..524288"),
            ("bool[a, b]", "a=2..131072 b=0..131072"),
            ("bool[b, a, a]", "a=2..2048 b=0..2048"),
            ("f64[c, c, c, a]", "a=2..2048 b=0..2048"),
            ("f32[1099511627776, c]", "a=2..1048576 b=0..1048576"),
            // No bound is less than the minimum, and the verifier refuses what does not fit then.
            ("f32[1099511627776, a]", "a=2 b=0..1"),
        ] {
            assert_eq!(bounds(&program(ty), &["a", "b"]), expected, "{ty}");
        }
        assert_eq!(bounds(&program("bool[b, a, a]"), &["b"]), "b=0..1");
        assert_eq!(bounds(&program("f32[c]"), &[]), "");
    }
}
