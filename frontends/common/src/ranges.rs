//! The symbols of an imported program: their declarations in the file, and the constraints of the caller.
//!
//! A caller narrows the range of a symbol or defines it as an expression of other symbols. Exporters write a
//! symbol for each extent that varies, even if two of them are equal in every run. A symbol that is defined
//! by an expression vanishes from the program. A symbol that takes steps of 2 is an expression of a new
//! symbol, such as `2*pairs`. So is a symbol that is never less than others: `tokens + rest`.
//!
//! A symbol without an upper bound takes the bound of the recorded arguments if there are some, else a
//! default ([`crate::assumed_sizes`] lowers it). The result lists these symbols.

use std::fmt;

use symmc_ir::{Dim, Symbol, SymbolId, SymbolTable};
use thiserror::Error;

use crate::sympy;

/// Upper bounds from here on mean "unbounded": PyTorch writes such numbers for open ends.
const OPEN: i64 = 1 << 40;

/// A caller's constraint on a symbol.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SymbolConstraint {
    /// The range, both ends included. An end that is left out keeps the value of the program.
    Range { min: Option<i64>, max: Option<i64> },
    /// The symbol is an expression of other symbols, such as `past` or `past + 1`. It may use one new symbol,
    /// for the number of steps (`2*pairs`) or for the difference from others (`past + rest`).
    Equals(String),
}

impl SymbolConstraint {
    /// Parses `1..64`, `2..`, `..64`, `64`, or an expression of symbols.
    pub fn parse(text: &str) -> Result<SymbolConstraint, String> {
        let text = text.trim();
        let range = match (text.split_once(".."), text.parse::<i64>()) {
            (Some((min, max)), _) => (parse_bound(min)?, parse_bound(max.trim_start_matches('='))?),
            (None, Ok(n)) => (Some(n), Some(n)),
            (None, Err(_)) => {
                if text.is_empty() || sympy::parse(text).is_err() {
                    let expected = "expected a range such as 1..64 or an expression of symbols";
                    return Err(format!("{expected}, found {text:?}"));
                }
                return Ok(SymbolConstraint::Equals(text.to_string()));
            }
        };
        match range {
            (None, None) => Err(format!("expected a range such as 1..64, found {text:?}")),
            (Some(min), _) if min < 0 => Err(format!("expected an extent of 0 or more, found {min}")),
            (Some(min), Some(max)) if min > max => {
                Err(format!("expected a minimum that is at most the maximum, found {text}"))
            }
            (min, max) => Ok(SymbolConstraint::Range { min, max }),
        }
    }
}

impl fmt::Display for SymbolConstraint {
    /// Writes the constraint as [`SymbolConstraint::parse`] reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SymbolConstraint::Range { min, max } => f.write_str(&display_range(*min, *max)),
            SymbolConstraint::Equals(expression) => f.write_str(expression),
        }
    }
}

fn parse_bound(text: &str) -> Result<Option<i64>, String> {
    match text.trim() {
        "" => Ok(None),
        number => number.parse().map(Some).map_err(|_| format!("expected an integer, found {number:?}")),
    }
}

/// A caller's constraints on the symbols of a program.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SymbolConstraints {
    /// By the name of the symbol, in the program or in the file.
    pub constraints: Vec<(String, SymbolConstraint)>,
    /// Upper bounds for symbols that have none, by name. They come from other requests of the caller, such as
    /// buckets.
    pub fallback_bounds: Vec<(String, i64)>,
    /// The shapes of the recorded arguments, in their order. They also bound symbols that have no bound.
    pub recorded_shapes: Vec<Vec<usize>>,
    /// The sizes of the run that the program is opened for, by name. Assumptions do not contradict them.
    pub run_sizes: Vec<(String, i64)>,
    /// Whether an import fails rather than assume relations of symbols and bounds that only a relation needs
    /// ([`crate::assumed_sizes`]).
    pub refuses_assumptions: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeclaredSymbol {
    pub name: String,
    /// Its name in the file, if it is different.
    pub alias: Option<String>,
    pub min: i64,
    /// The largest value, if the file states one.
    pub max: Option<i64>,
    /// Its value in the recorded arguments.
    pub recorded: Option<i64>,
}

impl DeclaredSymbol {
    fn display_name(&self) -> String {
        match &self.alias {
            Some(alias) => format!("{} ({alias})", self.name),
            None => self.name.clone(),
        }
    }
}

/// The range of a symbol, from the ends that the file states. The maximum is `None` if there is no upper
/// bound. A range of one value may be any integer: such a symbol is a constant. Fails if the range is empty,
/// or starts where upper bounds mean "unbounded".
pub fn normalize_range(
    symbol: &str,
    min: Option<i64>,
    max: Option<i64>,
) -> Result<(i64, Option<i64>), RangeError> {
    if let (Some(value), Some(max)) = (min, max)
        && value == max
    {
        return Ok((value, Some(value)));
    }
    let min = min.unwrap_or(0).max(0);
    let max = max.filter(|m| *m < OPEN);
    if max.is_some_and(|max| min > max) || min >= OPEN {
        let expected = format!("a non-empty range that starts below {OPEN}");
        return Err(range_error(symbol, &expected, format!("{min}..={}", max.unwrap_or(OPEN))));
    }
    Ok((min, max))
}

/// A symbol's name in the file, changed to an identifier of the text form.
pub fn to_identifier(name: &str) -> String {
    let letters = name.chars();
    let mut out: String =
        letters.map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).collect();
    if out.is_empty() || out.starts_with(|c: char| c.is_ascii_digit()) {
        out.insert(0, '_');
    }
    out
}

/// A constraint on a symbol that contradicts another constraint or the program.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("symbol `{symbol}`: expected {expected}, found {found}")]
pub struct RangeError {
    pub symbol: String,
    pub expected: String,
    pub found: String,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct ResolvedSymbols {
    /// The symbols that remain in the program.
    pub table: SymbolTable,
    /// The value of each declared symbol, in terms of the remaining ones.
    pub dims: Vec<Dim>,
    pub open: OpenSizes,
}

/// The symbols without an upper bound in a program, and the sizes that a run or recorded arguments give.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct OpenSizes {
    /// The names of the symbols that had no upper bound.
    pub unbounded: Vec<String>,
    /// The symbols among `unbounded` whose bound is the default.
    pub with_default: Vec<String>,
    pub recorded: Vec<RecordedSize>,
}

/// The size of a symbol in the run that the program is opened for, or in the recorded arguments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordedSize {
    pub symbol: String,
    pub size: i64,
    /// Whether the caller gives the size by the name of the symbol.
    pub is_set: bool,
    /// Whether the caller constrains the symbol.
    pub is_constrained: bool,
}

impl OpenSizes {
    /// Adds the symbols and sizes of `others`.
    pub fn extend(&mut self, others: OpenSizes) {
        self.unbounded.extend(others.unbounded);
        self.with_default.extend(others.with_default);
        self.recorded.extend(others.recorded);
    }
}

/// Resolves the symbols of a program. `default` bounds the symbols without an upper bound. Fails if a caller
/// names an unknown symbol, or a constraint contradicts the program.
pub fn resolve_symbols(
    declared: &[DeclaredSymbol],
    given: &SymbolConstraints,
    default: i64,
    notes: &mut Vec<String>,
) -> Result<ResolvedSymbols, RangeError> {
    let declared_in_file = declared.len();
    let with_new_symbols = add_new_symbols(declared, given, notes)?;
    let declared = with_new_symbols.as_slice();
    let mut narrowed: Vec<DeclaredSymbol> = declared.to_vec();
    let mut constraints: Vec<Option<&SymbolConstraint>> = vec![None; declared.len()];
    for (name, constraint) in &given.constraints {
        let index = find_symbol(declared, name)?;
        if constraints[index].replace(constraint).is_some() {
            return Err(range_error(name, "one constraint", "two".into()));
        }
        if let SymbolConstraint::Range { min, max } = constraint {
            narrow_range(&mut narrowed[index], (*min, *max), notes)?;
        }
    }
    // Two symbols that are equal both have the intersection of their ranges.
    let mut equal_pairs: Vec<(usize, usize)> = Vec::new();
    for (index, constraint) in constraints.iter().enumerate() {
        let Some(SymbolConstraint::Equals(text)) = constraint else { continue };
        let used = symbols_of_expression(declared, &narrowed[index], text)?;
        let defined = used.iter().find(|i| matches!(constraints[**i], Some(SymbolConstraint::Equals(_))));
        if let Some(defined) = defined {
            let definition = format!("{text}, in which {} is itself an expression", declared[*defined].name);
            return Err(range_error(
                &narrowed[index].name,
                "an expression of symbols that have a range",
                definition,
            ));
        }
        if let ([other], Ok(sympy::SizeExpr::Symbol(_))) = (used.as_slice(), sympy::parse(text)) {
            equal_pairs.push((index, *other));
        }
    }
    for (index, other) in equal_pairs {
        let min = narrowed[index].min;
        let max = narrowed[index].max;
        let remaining = &mut narrowed[other];
        remaining.min = remaining.min.max(min);
        remaining.max = remaining.max.into_iter().chain(max).min();
        if remaining.max.is_some_and(|max| max < remaining.min) {
            let expected = format!("a range that overlaps the range of {}", declared[index].display_name());
            return Err(range_error(&remaining.name, &expected, "no common value".into()));
        }
    }
    let mut resolved = ResolvedSymbols::default();
    let mut ids = vec![None; narrowed.len()];
    for (index, symbol) in narrowed.iter().enumerate() {
        // A constant that cannot be an extent gets no symbol.
        let is_number = symbol.max == Some(symbol.min) && !(0..OPEN).contains(&symbol.min);
        if !is_number && !matches!(constraints[index], Some(SymbolConstraint::Equals(_))) {
            let max = choose_upper_bound(symbol, &given.fallback_bounds, default, &mut resolved.open, notes);
            let name = symbol.name.clone();
            let is_named = |other: &String| *other == name || symbol.alias.as_ref() == Some(other);
            let asked = given.run_sizes.iter().find(|(other, _)| is_named(other)).map(|(_, size)| *size);
            resolved.open.recorded.extend(asked.or(symbol.recorded).map(|size| RecordedSize {
                symbol: name.clone(),
                size,
                is_set: asked.is_some(),
                is_constrained: constraints[index].is_some(),
            }));
            let alias = symbol.alias.clone();
            ids[index] = Some(resolved.table.push(Symbol { name, min: symbol.min, max, alias }));
        }
    }
    for (index, symbol) in narrowed.iter().enumerate().take(declared_in_file) {
        resolved.dims.push(match (ids[index], constraints[index]) {
            // A symbol with one value is replaced by that constant.
            (_, None | Some(SymbolConstraint::Range { .. })) if symbol.max == Some(symbol.min) => {
                Dim::from(symbol.min)
            }
            (Some(id), _) => Dim::from(id),
            (None, Some(SymbolConstraint::Equals(text))) => {
                resolve_expression(declared, symbol, text, &ids, &resolved.table)?
            }
            (None, _) => Dim::from(0),
        });
    }
    Ok(resolved)
}

/// The declared symbols and the new ones that constraints introduce: the number of steps of a symbol that
/// takes steps, and the remainder of a symbol that is never less than others. Fails if the name of a new
/// symbol is almost that of a symbol of the program, which is taken for a misspelling.
fn add_new_symbols(
    declared: &[DeclaredSymbol],
    given: &SymbolConstraints,
    notes: &mut Vec<String>,
) -> Result<Vec<DeclaredSymbol>, RangeError> {
    let mut symbols = add_step_counts(declared, given);
    for (name, extent) in &given.constraints {
        let (Ok(index), SymbolConstraint::Equals(text)) = (find_symbol(declared, name), extent) else {
            continue;
        };
        let Ok(parsed) = sympy::parse(text) else { continue };
        let (new, defined): (Vec<_>, Vec<_>) = sum_terms(&parsed).into_iter().partition(|term| {
            sympy::symbols_in(term).iter().any(|name| find_symbol(&symbols, name).is_err())
        });
        if let [sympy::SizeExpr::Symbol(rest)] = new.as_slice()
            && defined.into_iter().any(|e| !sympy::symbols_in(e).is_empty())
        {
            let total = &declared[index];
            let max = total.max;
            let recorded = total.recorded;
            notes.push(format!("symbol {rest} is added: the program does not have it ({name} = {text})"));
            symbols.push(DeclaredSymbol { name: rest.to_string(), alias: None, min: 0, max, recorded });
        }
    }
    for new in &symbols[declared.len()..] {
        let names = declared.iter().flat_map(|d| [Some(&d.name), d.alias.as_ref()]).flatten();
        if let Some(meant) = names.into_iter().find(|name| is_misspelling(&new.name, name)) {
            let names: Vec<String> = declared.iter().map(DeclaredSymbol::display_name).collect();
            let expected = format!(
                "a symbol of the program ({}), or a new name that is less similar to `{meant}`",
                names.join(", ")
            );
            return Err(range_error(&new.name, &expected, format!("`{}`", new.name)));
        }
    }
    Ok(symbols)
}

/// Whether `found` is `meant` with one letter missing, added or replaced, or with two neighbours swapped.
/// Names below four letters are never misspellings. Names that differ in a digit are different names.
fn is_misspelling(found: &str, meant: &str) -> bool {
    let found_letters: Vec<char> = found.chars().collect();
    let meant_letters: Vec<char> = meant.chars().collect();
    let common = found_letters.iter().zip(&meant_letters).take_while(|(a, b)| a == b).count();
    // The letters from the first difference on.
    let a = &found_letters[common..];
    let b = &meant_letters[common..];
    let is_replaced = a.get(1..).unwrap_or_default() == b.get(1..).unwrap_or_default();
    let is_added = a.get(1..).unwrap_or_default() == b;
    let is_missing = a == b.get(1..).unwrap_or_default();
    let is_swap = a.len() > 1 && b.len() > 1 && a[..2] == [b[1], b[0]] && a[2..] == b[2..];
    let has_digit = a.iter().chain(b).take(2).any(char::is_ascii_digit);
    let is_one_edit = is_replaced || is_added || is_missing || is_swap;
    meant_letters.len() >= 4 && found != meant && is_one_edit && !has_digit
}

/// The terms of a sum.
fn sum_terms<'a, 'e>(e: &'a sympy::SizeExpr<'e>) -> Vec<&'a sympy::SizeExpr<'e>> {
    match e {
        sympy::SizeExpr::Call("Add", args) => args.iter().flat_map(sum_terms).collect(),
        other => vec![other],
    }
}

/// The declared symbols and the numbers of steps of those that take steps.
fn add_step_counts(declared: &[DeclaredSymbol], given: &SymbolConstraints) -> Vec<DeclaredSymbol> {
    let mut symbols = declared.to_vec();
    for (name, extent) in &given.constraints {
        let (Ok(index), SymbolConstraint::Equals(text)) = (find_symbol(declared, name), extent) else {
            continue;
        };
        let Ok(parsed) = sympy::parse(text) else { continue };
        let used = sympy::symbols_in(&parsed);
        let only = used.first().filter(|_| used.len() == 1);
        let (Some(steps), Some((step @ 2.., rest))) = (only, as_linear(&parsed)) else { continue };
        if find_symbol(&symbols, steps).is_ok() {
            continue;
        }
        let size = &declared[index];
        let steps_within = |n: i64| n.saturating_sub(rest).div_euclid(step);
        // The least number of steps that reaches the least value.
        let min = steps_within(size.min.saturating_add(step - 1)).max(0);
        symbols.push(DeclaredSymbol {
            name: steps.to_string(),
            alias: None,
            min,
            max: size.max.map(|max| steps_within(max).max(min)),
            recorded: size.recorded.map(steps_within),
        });
    }
    symbols
}

/// The factor and the summand of an expression that is linear in one symbol.
fn as_linear(e: &sympy::SizeExpr<'_>) -> Option<(i64, i64)> {
    match e {
        sympy::SizeExpr::Int(i) => Some((0, *i)),
        sympy::SizeExpr::Symbol(_) => Some((1, 0)),
        sympy::SizeExpr::Call("Add", args) => args.iter().try_fold((0i64, 0i64), |(a, b), e| {
            let (c, d) = as_linear(e)?;
            Some((a.checked_add(c)?, b.checked_add(d)?))
        }),
        sympy::SizeExpr::Call("Mul", args) => {
            args.iter().try_fold((0i64, 1i64), |(a, b), e| match (as_linear(e)?, a) {
                ((0, d), _) => Some((a.checked_mul(d)?, b.checked_mul(d)?)),
                ((c, d), 0) => Some((b.checked_mul(c)?, b.checked_mul(d)?)),
                _ => None,
            })
        }
        sympy::SizeExpr::Float(_) | sympy::SizeExpr::Call(..) => None,
    }
}

/// Narrows the ranges of the symbols of a finished program. Symbols that are expressions of others no longer
/// exist there.
pub fn narrow_ranges(
    symbols: &mut SymbolTable,
    given: &SymbolConstraints,
    notes: &mut Vec<String>,
) -> Result<(), RangeError> {
    let declared: Vec<DeclaredSymbol> = symbols
        .values()
        .map(|s| {
            let name = s.name.clone();
            let alias = s.alias.clone();
            DeclaredSymbol { name, alias, min: s.min, max: Some(s.max), recorded: None }
        })
        .collect();
    if let Some((name, SymbolConstraint::Equals(text))) =
        given.constraints.iter().find(|(_, e)| matches!(e, SymbolConstraint::Equals(_)))
    {
        let expected = "a range (a program in text form has one symbol for equal sizes)";
        return Err(range_error(name, expected, text.clone()));
    }
    let resolved = resolve_symbols(&declared, given, 0, notes)?;
    for (symbol, narrow) in symbols.values_mut().zip(resolved.table.values()) {
        symbol.min = narrow.min;
        symbol.max = narrow.max;
    }
    Ok(())
}

pub(crate) fn range_error(symbol: &str, expected: &str, found: String) -> RangeError {
    RangeError { symbol: symbol.into(), expected: expected.into(), found }
}

fn find_symbol(declared: &[DeclaredSymbol], name: &str) -> Result<usize, RangeError> {
    let by_name = declared.iter().position(|d| d.name == name);
    let index = by_name.or_else(|| declared.iter().position(|d| d.alias.as_deref() == Some(name)));
    index.ok_or_else(|| {
        let names: Vec<String> = declared.iter().map(DeclaredSymbol::display_name).collect();
        let names = if names.is_empty() {
            "none, because the program has no symbols".into()
        } else {
            names.join(", ")
        };
        range_error(name, &format!("a symbol of the program: {names}"), format!("`{name}`"))
    })
}

fn narrow_range(
    symbol: &mut DeclaredSymbol,
    (min, max): (Option<i64>, Option<i64>),
    notes: &mut Vec<String>,
) -> Result<(), RangeError> {
    let declared_max = symbol.max.unwrap_or(i64::MAX);
    if max.is_some_and(|n| n < symbol.min || n > declared_max) || min.is_some_and(|n| n > declared_max) {
        let declared_max = symbol.max.map_or(String::new(), |m| m.to_string());
        let expected = format!("a range within {}..{declared_max}, the range in the program", symbol.min);
        return Err(range_error(&symbol.display_name(), &expected, display_range(min, max)));
    }
    if let Some(min) = min {
        if min < symbol.min {
            notes.push(format!(
                "symbol {} starts at {}: the program is not valid for less",
                symbol.display_name(),
                symbol.min
            ));
        }
        symbol.min = symbol.min.max(min);
    }
    symbol.max = max.or(symbol.max);
    Ok(())
}

fn display_range(min: Option<i64>, max: Option<i64>) -> String {
    match (min, max) {
        (Some(min), Some(max)) if min == max => format!("{min}"),
        (min, max) => {
            let min = min.map_or(String::new(), |n| n.to_string());
            let max = max.map_or(String::new(), |n| n.to_string());
            format!("{min}..{max}")
        }
    }
}

/// The symbols in the expression that defines a symbol.
fn symbols_of_expression(
    declared: &[DeclaredSymbol],
    symbol: &DeclaredSymbol,
    text: &str,
) -> Result<Vec<usize>, RangeError> {
    let parsed = sympy::parse(text).map_err(|m| range_error(&symbol.name, "an expression of symbols", m))?;
    sympy::symbols_in(&parsed).into_iter().map(|name| find_symbol(declared, name)).collect()
}

/// The largest value of a symbol, with a note if a request or recorded arguments bound it instead of the program.
fn choose_upper_bound(
    symbol: &DeclaredSymbol,
    bounds: &[(String, i64)],
    default: i64,
    open: &mut OpenSizes,
    notes: &mut Vec<String>,
) -> i64 {
    if let Some(max) = symbol.max {
        return max;
    }
    let requested = bounds
        .iter()
        .filter(|(name, _)| symbol.name == *name || symbol.alias.as_ref() == Some(name))
        .map(|(_, bound)| *bound)
        .max();
    open.unbounded.push(symbol.name.clone());
    let (max, why) = match (requested, symbol.recorded) {
        (None, None) => {
            open.with_default.push(symbol.name.clone());
            return default.max(symbol.min);
        }
        (None, Some(recorded)) => (recorded, "the value in the recorded tensors"),
        (Some(requested), recorded) => {
            (recorded.unwrap_or(requested).max(requested), "the largest requested value")
        }
    };
    let max = max.max(symbol.min);
    notes.push(format!(
        "symbol {} has no upper bound in the program; assuming {max}, {why}",
        symbol.display_name()
    ));
    max
}

/// The value of a symbol that is defined by an expression of others.
fn resolve_expression(
    declared: &[DeclaredSymbol],
    symbol: &DeclaredSymbol,
    text: &str,
    ids: &[Option<SymbolId>],
    table: &SymbolTable,
) -> Result<Dim, RangeError> {
    let parsed = sympy::parse(text);
    let dim = parsed.and_then(|e| {
        sympy::to_dim(&e, &|name| {
            let index = find_symbol(declared, name).map_err(|e| e.to_string())?;
            ids[index].map(Dim::from).ok_or_else(|| format!("`{name}` is itself an expression"))
        })
    });
    let dim = dim.map_err(|m| range_error(&symbol.name, "an expression of symbols", m))?;
    let (low, high) = dim.bounds(table);
    if high < symbol.min || symbol.max.is_some_and(|max| low > max) {
        let max = symbol.max.map_or(String::new(), |m| m.to_string());
        let expected = format!("a value within {}..{max}, the range in the program", symbol.min);
        let actual = format!("{text}, which is {low} to {high}");
        return Err(range_error(&symbol.display_name(), &expected, actual));
    }
    Ok(dim)
}

/// The symbols that an error message about extents mentions.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MentionedSymbols {
    pub named: Vec<String>,
    /// The names of the same symbols in the file.
    pub aliases: Vec<String>,
    /// The mentioned symbols that had no upper bound.
    pub unbounded: Vec<String>,
    /// The sizes of all symbols in the run or in the recorded arguments, mentioned or not.
    pub recorded: Vec<RecordedSize>,
    /// Constraints with which the import succeeds, in place of those that the caller states for these symbols.
    pub suggested: Vec<(String, SymbolConstraint)>,
}

impl MentionedSymbols {
    /// Finds the symbols that a message mentions; `None` if it mentions none.
    pub fn find_in_message(
        message: &str,
        symbols: &SymbolTable,
        open: &OpenSizes,
    ) -> Option<MentionedSymbols> {
        let words: Vec<&str> = message.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).collect();
        let named = symbols.values().filter(|s| {
            words.contains(&s.name.as_str()) || s.alias.as_deref().is_some_and(|alias| words.contains(&alias))
        });
        let (named, aliases): (Vec<String>, Vec<String>) =
            named.map(|s| (s.name.clone(), s.alias.clone().unwrap_or_else(|| s.name.clone()))).unzip();
        let unbounded = open.unbounded.iter().filter(|s| named.contains(s)).cloned().collect();
        let recorded = open.recorded.clone();
        (!named.is_empty()).then_some(MentionedSymbols {
            named,
            aliases,
            unbounded,
            recorded,
            suggested: Vec::new(),
        })
    }

    /// The recorded sizes as constraints, for symbols that have no other.
    pub fn recorded_constraints(&self) -> Vec<(String, SymbolConstraint)> {
        let sizes = self.recorded.iter().filter(|recorded| !recorded.is_constrained);
        let fixed = |size| SymbolConstraint::Range { min: Some(size), max: Some(size) };
        sizes.map(|recorded| (recorded.symbol.clone(), fixed(recorded.size))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declared(text: &str) -> Vec<DeclaredSymbol> {
        let declare = |word: &str| {
            let (name, range) = word.split_once(':').expect("a name and a range");
            let (min, max) = range.split_once("..").expect("a range");
            let alias = Some(format!("s_{name}"));
            DeclaredSymbol {
                name: name.into(),
                alias,
                min: min.parse().expect("min"),
                max: max.parse().ok(),
                recorded: None,
            }
        };
        text.split(' ').map(declare).collect()
    }

    /// The symbols as `name min..max`, the dims of all declared symbols, and the notes.
    fn settled(
        symbols: &str,
        constraints: &[(&str, &str)],
    ) -> Result<(Vec<String>, Vec<String>, Vec<String>), String> {
        let mut notes = Vec::new();
        let parse = |(name, text): &(&str, &str)| {
            SymbolConstraint::parse(text)
                .map(|extent| ((*name).to_string(), extent))
                .map_err(|m| format!("parse: {m}"))
        };
        let constraints = constraints.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
        let constraints = SymbolConstraints { constraints, ..SymbolConstraints::default() };
        let resolved =
            resolve_symbols(&declared(symbols), &constraints, 1000, &mut notes).map_err(|e| e.to_string())?;
        let table = resolved.table.values().map(|s| format!("{} {}..{}", s.name, s.min, s.max)).collect();
        let dims = resolved.dims.iter().map(|d| d.display(&resolved.table).to_string()).collect();
        Ok((table, dims, notes))
    }

    #[test]
    fn symbols_of_one_value_are_numbers() {
        for value in [-7, 0, 5, OPEN + 3] {
            assert_eq!(normalize_range("k", Some(value), Some(value)), Ok((value, Some(value))));
        }
        assert_eq!(normalize_range("k", Some(-7), Some(5)), Ok((0, Some(5))));
        assert!(
            normalize_range("k", Some(-7), Some(-5)).is_err()
                && normalize_range("k", Some(OPEN), None).is_err()
        );
        // Constants that cannot be extents get no symbol.
        let (symbols, dims, _) = settled("a:-7..-7 b:2..64 c:5..5", &[]).expect("symbols");
        assert_eq!((symbols, dims.join(" ")), (vec!["b 2..64".into(), "c 5..5".into()], "-7 b 5".into()));
    }

    #[test]
    fn what_goes_in_steps_is_an_expression_of_a_new_symbol() {
        let symbols_and_dims = |symbols, constraints: &[(&str, &str)]| {
            settled(symbols, constraints).map(|(table, dims, _)| (table, dims))
        };
        let words = |words: &[&str]| words.iter().map(|w| (*w).to_string()).collect::<Vec<_>>();
        assert_eq!(
            symbols_and_dims("a:2..65 b:0..9", &[("a", "2*pairs")]),
            Ok((words(&["b 0..9", "pairs 1..32"]), words(&["2*pairs", "b"])))
        );
        assert_eq!(
            symbols_and_dims("a:2..65", &[("s_a", "4*k + 1")]),
            Ok((words(&["k 1..16"]), words(&["4*k + 1"])))
        );
        assert_eq!(
            symbols_and_dims("a:0..", &[("a", "3 + 2*(k + k)")]),
            Ok((words(&["k 0..1000"]), words(&["4*k + 3"])))
        );
        assert_eq!(
            symbols_and_dims("a:2..65", &[("a", "2*k"), ("k", "..4")]),
            Ok((words(&["k 1..4"]), words(&["2*k"])))
        );
        // An unknown name that is not a number of steps is an error.
        for text in ["k", "k + 1", "2*k*k", "2*k + b", "floor(k/2)", "-2*k", "2*k + c"] {
            let outcome = symbols_and_dims("a:2..65 b:0..9", &[("a", text)]);
            let error = outcome.expect_err(text);
            assert!(
                error.contains("expected a symbol of the program: a (s_a), b (s_b)")
                    || error.contains("parse"),
                "{text}: {error}"
            );
        }
        // At least one step is within the range.
        let error = symbols_and_dims("a:2..3", &[("a", "5*k")]).expect_err("too far");
        assert!(error.contains("expected a value within 2..3"), "{error}");
    }

    #[test]
    fn what_is_never_less_than_others_is_them_and_the_rest() {
        let (symbols, dims, notes) = settled("a:1..8 b:2..64", &[("b", "a + rest")]).expect("symbols");
        assert_eq!(notes, ["symbol rest is added: the program does not have it (b = a + rest)"]);
        assert_eq!(symbols, ["a 1..8", "rest 0..64"]);
        assert_eq!(dims, ["a", "a + rest"]);
        let constraints = [("b", "6*n + rest + 1"), ("a", "2*n"), ("rest", "..9")];
        let (symbols, dims, _) = settled("a:2..8 b:2..64", &constraints).expect("symbols");
        assert_eq!(symbols, ["n 1..4", "rest 0..9"]);
        assert_eq!(dims, ["2*n", "6*n + rest + 1"]);
        // A name that is almost that of a symbol is an error.
        for typo in ["lenght", "lengh", "lengthh", "langth"] {
            for text in [format!("past + {typo}"), format!("2*{typo}")] {
                let error =
                    settled("past:1..8 length:1..8 total:2..64", &[("total", &text)]).expect_err(typo);
                assert!(error.contains("past (s_past), length (s_length)"), "{typo}: {error}");
                assert!(
                    error.contains(&format!("less similar to `length`, found `{typo}`")),
                    "{typo}: {error}"
                );
            }
        }
        for new in ["rest", "long", "length_2", "s_past2"] {
            let text = format!("past + {new}");
            assert!(settled("past:1..8 length:1..8 total:2..64", &[("total", &text)]).is_ok(), "{new}");
        }
        let error = settled("a:1..8 b:2..64", &[("b", "a + rest + other")]).expect_err("two new ones");
        assert!(error.contains("expected a symbol of the program"), "{error}");
    }

    #[test]
    fn ranges_narrow_what_the_program_says() {
        let table = |of, given: &[(&str, &str)]| settled(of, given).map(|(table, ..)| table);
        assert_eq!(table("a:2.. b:0..9", &[("a", "1..64")]), Ok(vec!["a 2..64".into(), "b 0..9".into()]));
        assert_eq!(table("a:2..", &[("s_a", "4..")]), Ok(vec!["a 4..1000".into()]));
        assert_eq!(table("a:2..9", &[("a", "..5")]), Ok(vec!["a 2..5".into()]));
        let (one, dims, _) = settled("a:2..9 b:1..9", &[("a", "7")]).expect("a number");
        assert_eq!((one, dims), (vec!["a 7..7".into(), "b 1..9".into()], vec!["7".into(), "b".into()]));
        let (_, _, notes) = settled("a:2.. b:0..", &[("a", "1..64")]).expect("ranges");
        assert_eq!(notes, ["symbol a (s_a) starts at 2: the program is not valid for less"]);
    }

    #[test]
    fn what_contradicts_the_program_is_refused() {
        let refused = |of, given: &[(&str, &str)], part: &str| {
            let message = settled(of, given).expect_err("a contradiction");
            assert!(message.contains(part), "{part:?} is missing in: {message}");
        };
        refused(
            "a:2..9",
            &[("a", "1..64")],
            "`a (s_a)`: expected a range within 2..9, the range in the program, found 1..64",
        );
        refused("a:2..", &[("a", "1")], "within 2.., the range in the program, found 1");
        refused(
            "a:2.. b:0..",
            &[("c", "1..2")],
            "`c`: expected a symbol of the program: a (s_a), b (s_b), found `c`",
        );
        refused("a:2..", &[("a", "2..3"), ("s_a", "2..4")], "expected one constraint, found two");
        refused("a:2.. b:2..", &[("a", "b"), ("b", "a")], "in which b is itself an expression");
        refused("a:2.. b:2..", &[("a", "a")], "in which a is itself an expression");
        refused("a:2.. b:2..", &[("a", "c + 1")], "`c`: expected a symbol of the program");
        refused(
            "a:2..4 b:5..9",
            &[("a", "b")],
            "`b`: expected a range that overlaps the range of a (s_a), found no common value",
        );
        refused("a:2..4 b:5..9", &[("a", "b + 1")], "found b + 1, which is 6 to 10");
        for text in ["", "..", "x y", "5..2", "-1..2", "1..b", "1...2"] {
            refused("a:2..", &[("a", text)], "parse: ");
        }
    }

    #[test]
    fn symbols_are_expressions_of_others() {
        let (table, dims, notes) =
            settled("a:2.. b:3..64 c:3..", &[("a", "b"), ("c", "s_b + 1")]).expect("ties");
        assert_eq!((table, dims), (vec!["b 3..64".into()], vec!["b".into(), "b".into(), "b + 1".into()]));
        assert!(notes.is_empty());
    }

    #[test]
    fn sizes_of_a_run_are_known_by_both_names_of_a_symbol() {
        let mut symbols = declared("a:2.. b:2.. c:2..");
        symbols[0].recorded = Some(4);
        symbols[2].recorded = Some(6);
        let given = SymbolConstraints {
            constraints: vec![("s_a".into(), SymbolConstraint::Range { min: Some(2), max: Some(9) })],
            run_sizes: vec![("s_b".into(), 5)],
            ..SymbolConstraints::default()
        };
        let resolved = resolve_symbols(&symbols, &given, 1000, &mut Vec::new()).expect("symbols");
        let set: Vec<bool> = resolved.open.recorded.iter().map(|r| r.is_set).collect();
        assert_eq!(set, [false, true, false]);
        let mentioned = MentionedSymbols { recorded: resolved.open.recorded, ..MentionedSymbols::default() };
        let fixed: Vec<String> = mentioned
            .recorded_constraints()
            .iter()
            .map(|(symbol, size)| format!("{symbol}={size}"))
            .collect();
        assert_eq!(fixed, ["b=5", "c=6"]);
    }

    #[test]
    fn recorded_extents_bound_what_is_open() {
        let mut symbols = declared("a:2.. b:2..");
        symbols[0].recorded = Some(5);
        let mut notes = Vec::new();
        let bounds = vec![("b".to_string(), 8), ("s_b".to_string(), 64), ("x".to_string(), 9)];
        let constraints = SymbolConstraints { fallback_bounds: bounds, ..SymbolConstraints::default() };
        let resolved = resolve_symbols(&symbols, &constraints, 1000, &mut notes).expect("symbols");
        assert_eq!(resolved.table.values().map(|s| s.max).collect::<Vec<_>>(), [5, 64]);
        assert!(notes[1].ends_with("assuming 64, the largest requested value"), "{}", notes[1]);
        assert_eq!(
            notes[0],
            "symbol a (s_a) has no upper bound in the program; assuming 5, the value in the recorded tensors"
        );
        let mentions = |message| {
            MentionedSymbols::find_in_message(message, &resolved.table, &resolved.open)
                .map(|q| (q.named, q.aliases, q.unbounded))
        };
        let expected = (vec!["b".into()], vec!["s_b".into()], vec!["b".into()]);
        assert_eq!(mentions("the extents b + 1 and ab"), Some(expected));
        assert_eq!(mentions("the extents 1 and ab"), None);
    }
}
