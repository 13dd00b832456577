//! The symbols of a program that is imported: what its file says of them, and what the caller says beyond that.
//!
//! A caller gives a symbol a narrower range, or says that it is an expression of others: exporters write a symbol for
//! each extent that varies, also where two must be equal in every run. Such a symbol vanishes from the program. One that
//! goes in steps is an expression of a symbol of its own, such as `2*pairs`, and so is one that is never less than others:
//! `tokens + rest`.
//!
//! A symbol to which nobody gives an upper bound takes that of the recorded arguments, if there are some, else a
//! default. It is told which those are.

use symmc_ir::{Dim, Symbol, SymbolId, SymbolTable};
use thiserror::Error;

use crate::sympy;

/// Upper bounds from here on mean "no bound": PyTorch writes such for open ends.
const OPEN: i64 = 1 << 40;

/// What a caller says of a symbol.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SymbolConstraint {
    /// Its range, both ends included; an end that is left out stays that of the program.
    Range { min: Option<i64>, max: Option<i64> },
    /// It is an expression of other symbols, such as `past` or `past + 1`, or of one that is new: in steps, `2*pairs`, or what it
    /// has beyond others, `past + rest`.
    Equals(String),
}

impl SymbolConstraint {
    /// `1..64`, `2..`, `..64`, `64`, or an expression of symbols.
    pub fn parse(text: &str) -> Result<SymbolConstraint, String> {
        let text = text.trim();
        let number = |end: &str| match end.trim() {
            "" => Ok(None),
            end => end.parse::<i64>().map(Some).map_err(|_| format!("expected an integer, found {end:?}")),
        };
        let range = match (text.split_once(".."), text.parse::<i64>()) {
            (Some((min, max)), _) => (number(min)?, number(max.trim_start_matches('='))?),
            (None, Ok(n)) => (Some(n), Some(n)),
            (None, Err(_)) => {
                let sound = !text.is_empty() && sympy::parse(text).is_ok();
                let refused = || format!("expected a range such as 1..64, or another symbol, found {text:?}");
                return sound.then(|| SymbolConstraint::Equals(text.to_string())).ok_or_else(refused);
            }
        };
        match range {
            (None, None) => Err(format!("expected a range such as 1..64, found {text:?}")),
            (Some(min), _) if min < 0 => Err(format!("expected an extent of 0 or more, found {min}")),
            (Some(min), Some(max)) if min > max => {
                Err(format!("expected a range that ascends, found {text}"))
            }
            (min, max) => Ok(SymbolConstraint::Range { min, max }),
        }
    }
}

/// What a caller says of the symbols of a program.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SymbolConstraints {
    /// By the name of the symbol: the program's, or that of the file.
    pub constraints: Vec<(String, SymbolConstraint)>,
    /// Upper bounds by name of what else is asked for, such as buckets, for symbols that have none.
    pub fallback_bounds: Vec<(String, i64)>,
    /// The shapes of the arguments that are recorded of a run, in their order; bounds of the same kind.
    pub recorded_shapes: Vec<Vec<usize>>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeclaredSymbol {
    pub name: String,
    /// Its name elsewhere, if that is another.
    pub alias: Option<String>,
    pub min: i64,
    /// The largest value, if the file says one.
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

/// The range of a symbol, from the ends that a file says; without an upper bound, that is `None`. One value may be any integer:
/// such a symbol is a number. Fails if it is empty, or begins where there is no bound any more.
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
        let expected = format!("a range that is not empty and starts below {OPEN}");
        return Err(range_error(symbol, &expected, format!("{min}..={}", max.unwrap_or(OPEN))));
    }
    Ok((min, max))
}

/// A symbol's name in a file as an identifier of the text form.
pub fn to_identifier(name: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut out: String = name.chars().map(|c| if fits(c) { c } else { '_' }).collect();
    if out.is_empty() || out.starts_with(|c: char| c.is_ascii_digit()) {
        out.insert(0, '_');
    }
    out
}

/// What is said of a symbol contradicts itself or the program.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("symbol `{symbol}`: expected {expected}, found {found}")]
pub struct RangeError {
    pub symbol: String,
    pub expected: String,
    pub found: String,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct ResolvedSymbols {
    /// Those that are left.
    pub table: SymbolTable,
    /// What each declared symbol is.
    pub dims: Vec<Dim>,
    /// The names of those that took the default bound.
    pub unbounded: Vec<String>,
}

/// Settles the symbols of a program; `default` bounds those to which nobody gives an upper bound. Fails if a caller
/// names a symbol that there is not, or says of one what contradicts the program.
pub fn resolve_symbols(
    declared: &[DeclaredSymbol],
    given: &SymbolConstraints,
    default: i64,
    notes: &mut Vec<String>,
) -> Result<ResolvedSymbols, RangeError> {
    let of_file = declared.len();
    let with_parts = add_new_symbols(declared, given, notes)?;
    let declared = with_parts.as_slice();
    let mut own: Vec<DeclaredSymbol> = declared.to_vec();
    let mut told: Vec<Option<&SymbolConstraint>> = vec![None; own.len()];
    for (name, extent) in &given.constraints {
        let at = find_symbol(declared, name)?;
        if told[at].replace(extent).is_some() {
            return Err(range_error(name, "one range", "two".into()));
        }
        if let SymbolConstraint::Range { min, max } = extent {
            narrow_range(&mut own[at], (*min, *max), notes)?;
        }
    }
    // A symbol that is another one has a range, which is the other's as well.
    let mut same: Vec<(usize, usize)> = Vec::new();
    for (at, extent) in told.iter().enumerate() {
        let Some(SymbolConstraint::Equals(text)) = extent else { continue };
        let of = symbols_of_expression(declared, &own[at], text)?;
        if let Some(tied) = of.iter().find(|&&i| matches!(told[i], Some(SymbolConstraint::Equals(_)))) {
            let found = format!("{text}, in which {} is one of another as well", declared[*tied].name);
            return Err(range_error(&own[at].name, "an expression of symbols that have a range", found));
        }
        if let ([other], Ok(sympy::SizeExpr::Symbol(_))) = (of.as_slice(), sympy::parse(text)) {
            same.push((at, *other));
        }
    }
    for (at, other) in same {
        let (min, max) = (own[at].min, own[at].max);
        let own = &mut own[other];
        (own.min, own.max) = (own.min.max(min), own.max.into_iter().chain(max).min());
        if own.max.is_some_and(|max| max < own.min) {
            let found = format!("none that {} has, too", declared[at].display_name());
            return Err(range_error(&own.name, "a range", found));
        }
    }
    let mut settled = ResolvedSymbols::default();
    let mut ids = vec![None; own.len()];
    for (at, symbol) in own.iter().enumerate() {
        // A number that no extent can be is no symbol.
        let is_number = symbol.max == Some(symbol.min) && !(0..OPEN).contains(&symbol.min);
        if !is_number && !matches!(told[at], Some(SymbolConstraint::Equals(_))) {
            let max =
                choose_upper_bound(symbol, &given.fallback_bounds, default, &mut settled.unbounded, notes);
            let (name, alias) = (symbol.name.clone(), symbol.alias.clone());
            ids[at] = Some(settled.table.push(Symbol { name, min: symbol.min, max, alias }));
        }
    }
    for (at, symbol) in own.iter().enumerate().take(of_file) {
        settled.dims.push(match (ids[at], told[at]) {
            // Nothing has to be shown of a symbol that is a number.
            (_, None | Some(SymbolConstraint::Range { .. })) if symbol.max == Some(symbol.min) => {
                Dim::from(symbol.min)
            }
            (Some(id), _) => Dim::from(id),
            (None, Some(SymbolConstraint::Equals(text))) => {
                resolve_expression(declared, symbol, text, &ids, &settled.table)?
            }
            (None, _) => Dim::from(0),
        });
    }
    Ok(settled)
}

/// The symbols with those that are new in what is said of them: of a symbol that goes in steps, the number of these, and of one
/// that is never less than others, the rest. Fails if a new one is called nearly as one of the program: that is meant,
/// and misspelt.
fn add_new_symbols(
    declared: &[DeclaredSymbol],
    given: &SymbolConstraints,
    notes: &mut Vec<String>,
) -> Result<Vec<DeclaredSymbol>, RangeError> {
    let mut all = add_step_counts(declared, given);
    for (name, extent) in &given.constraints {
        let (Ok(at), SymbolConstraint::Equals(text)) = (find_symbol(declared, name), extent) else {
            continue;
        };
        let Ok(parsed) = sympy::parse(text) else { continue };
        let is_new = |e: &&sympy::SizeExpr<'_>| {
            sympy::symbols_in(e).iter().any(|name| find_symbol(&all, name).is_err())
        };
        let (new, known): (Vec<_>, Vec<_>) = sum_terms(&parsed).into_iter().partition(is_new);
        if let [sympy::SizeExpr::Symbol(rest)] = new.as_slice()
            && known.into_iter().any(|e| !sympy::symbols_in(e).is_empty())
        {
            let whole = &declared[at];
            let (max, recorded) = (whole.max, whole.recorded);
            notes.push(format!("symbol {rest} is new, the rest in {name} = {text}"));
            all.push(DeclaredSymbol { name: rest.to_string(), alias: None, min: 0, max, recorded });
        }
    }
    for new in &all[declared.len()..] {
        let names = declared.iter().flat_map(|d| [Some(&d.name), d.alias.as_ref()]).flatten();
        if let Some(meant) = names.into_iter().find(|name| is_misspelling(&new.name, name)) {
            let known: Vec<String> = declared.iter().map(DeclaredSymbol::display_name).collect();
            let expected = format!(
                "a symbol of the program: {}, or a new one whose name is not nearly `{meant}`",
                known.join(", ")
            );
            return Err(range_error(&new.name, &expected, format!("`{}`", new.name)));
        }
    }
    Ok(all)
}

/// Whether a name is another of four letters or more but for one letter that is missing, added or replaced, or two that changed
/// places. Numbers tell names apart.
fn is_misspelling(found: &str, meant: &str) -> bool {
    let (a, b): (Vec<char>, Vec<char>) = (found.chars().collect(), meant.chars().collect());
    let same = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
    let (a, b) = (&a[same..], &b[same..]);
    let behind = |a: &[char], n: usize| a.get(n..).unwrap_or_default().to_vec();
    let is_one = behind(a, 1) == behind(b, 1) || behind(a, 1) == b || a == behind(b, 1);
    let is_swap = a.len() > 1 && b.len() > 1 && a[..2] == [b[1], b[0]] && a[2..] == b[2..];
    let has_digit = a.iter().chain(b).take(2).any(char::is_ascii_digit);
    meant.chars().count() >= 4 && found != meant && (is_one || is_swap) && !has_digit
}

/// What a sum is of.
fn sum_terms<'a, 'e>(e: &'a sympy::SizeExpr<'e>) -> Vec<&'a sympy::SizeExpr<'e>> {
    match e {
        sympy::SizeExpr::Call("Add", args) => args.iter().flat_map(sum_terms).collect(),
        other => vec![other],
    }
}

/// The symbols with the numbers of steps of those that go in steps.
fn add_step_counts(declared: &[DeclaredSymbol], given: &SymbolConstraints) -> Vec<DeclaredSymbol> {
    let mut all = declared.to_vec();
    for (name, extent) in &given.constraints {
        let (Ok(at), SymbolConstraint::Equals(text)) = (find_symbol(declared, name), extent) else {
            continue;
        };
        let Ok(parsed) = sympy::parse(text) else { continue };
        let used = sympy::symbols_in(&parsed);
        let one = used.first().filter(|_| used.len() == 1);
        let (Some(part), Some((step @ 2.., rest))) = (one, as_linear(&parsed)) else { continue };
        if find_symbol(&all, part).is_ok() {
            continue;
        }
        let (whole, within) = (&declared[at], |n: i64| n.saturating_sub(rest).div_euclid(step));
        // The least number of steps that reaches the least value.
        let min = within(whole.min.saturating_add(step - 1)).max(0);
        all.push(DeclaredSymbol {
            name: part.to_string(),
            alias: None,
            min,
            max: whole.max.map(|max| within(max).max(min)),
            recorded: whole.recorded.map(within),
        });
    }
    all
}

/// The factor and the summand of an expression of one symbol, if it is a line.
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

/// Narrows the range of a symbol of a program that is finished; what it is by an expression stands in its text.
pub fn narrow_ranges(
    symbols: &mut SymbolTable,
    given: &SymbolConstraints,
    notes: &mut Vec<String>,
) -> Result<(), RangeError> {
    let declared: Vec<DeclaredSymbol> = symbols
        .values()
        .map(|s| {
            let (name, alias) = (s.name.clone(), s.alias.clone());
            DeclaredSymbol { name, alias, min: s.min, max: Some(s.max), recorded: None }
        })
        .collect();
    if let Some((name, SymbolConstraint::Equals(text))) =
        given.constraints.iter().find(|(_, e)| matches!(e, SymbolConstraint::Equals(_)))
    {
        let expected = "a range, as the text of a program has one symbol for what is equal";
        return Err(range_error(name, expected, text.clone()));
    }
    let settled = resolve_symbols(&declared, given, 0, notes)?;
    for (symbol, narrow) in symbols.values_mut().zip(settled.table.values()) {
        (symbol.min, symbol.max) = (narrow.min, narrow.max);
    }
    Ok(())
}

pub(crate) fn range_error(symbol: &str, expected: &str, found: String) -> RangeError {
    RangeError { symbol: symbol.into(), expected: expected.into(), found }
}

fn find_symbol(declared: &[DeclaredSymbol], name: &str) -> Result<usize, RangeError> {
    let by = |is: &dyn Fn(&DeclaredSymbol) -> bool| declared.iter().position(is);
    let found = by(&|d| d.name == name).or_else(|| by(&|d| d.alias.as_deref() == Some(name)));
    found.ok_or_else(|| {
        let known: Vec<String> = declared.iter().map(DeclaredSymbol::display_name).collect();
        let known =
            if known.is_empty() { "none, as the program has no symbols".into() } else { known.join(", ") };
        range_error(name, &format!("a symbol of the program: {known}"), format!("`{name}`"))
    })
}

fn narrow_range(
    own: &mut DeclaredSymbol,
    (min, max): (Option<i64>, Option<i64>),
    notes: &mut Vec<String>,
) -> Result<(), RangeError> {
    let found = || match (min, max) {
        (Some(min), Some(max)) if min == max => format!("{min}"),
        (min, max) => {
            let end = |n: Option<i64>| n.map_or(String::new(), |n| n.to_string());
            format!("{}..{}", end(min), end(max))
        }
    };
    let beyond = |n: i64| own.max.is_some_and(|most| n > most);
    if max.is_some_and(|n| n < own.min || beyond(n)) || min.is_some_and(beyond) {
        let most = own.max.map_or(String::new(), |m| m.to_string());
        let expected = format!("a range within {}..{most}, which the program has", own.min);
        return Err(range_error(&own.display_name(), &expected, found()));
    }
    if let Some(min) = min {
        if min < own.min {
            notes.push(format!(
                "symbol {} starts at {}: the program holds for no less",
                own.display_name(),
                own.min
            ));
        }
        own.min = own.min.max(min);
    }
    own.max = max.or(own.max);
    Ok(())
}

/// The symbols of an expression that a symbol is.
fn symbols_of_expression(
    declared: &[DeclaredSymbol],
    own: &DeclaredSymbol,
    text: &str,
) -> Result<Vec<usize>, RangeError> {
    let parsed = sympy::parse(text).map_err(|m| range_error(&own.name, "an expression of symbols", m))?;
    sympy::symbols_in(&parsed).into_iter().map(|name| find_symbol(declared, name)).collect()
}

/// The largest value of a symbol.
fn choose_upper_bound(
    own: &DeclaredSymbol,
    bounds: &[(String, i64)],
    default: i64,
    open: &mut Vec<String>,
    notes: &mut Vec<String>,
) -> i64 {
    if let Some(max) = own.max {
        return max;
    }
    let is_it = |name: &str| own.name == name || own.alias.as_deref() == Some(name);
    let asked = bounds.iter().filter(|(name, _)| is_it(name)).map(|(_, bound)| *bound).max();
    let (max, why) = match (asked, own.recorded) {
        (None, None) => (default, ""),
        (None, Some(recorded)) => (recorded, ", as the recorded tensors have it"),
        (Some(asked), recorded) => (recorded.unwrap_or(asked).max(asked), ", the largest that is asked for"),
    };
    let max = max.max(own.min);
    notes.push(format!(
        "symbol {} has no upper bound in the program; {max} is taken{why}",
        own.display_name()
    ));
    open.push(own.name.clone());
    max
}

/// What a symbol is that is an expression of others.
fn resolve_expression(
    declared: &[DeclaredSymbol],
    own: &DeclaredSymbol,
    text: &str,
    ids: &[Option<SymbolId>],
    table: &SymbolTable,
) -> Result<Dim, RangeError> {
    let of = |name: &str| {
        let at = find_symbol(declared, name).map_err(|e| e.to_string())?;
        ids[at].map(Dim::from).ok_or_else(|| format!("`{name}` is an expression itself"))
    };
    let dim = sympy::parse(text).and_then(|e| sympy::to_dim(&e, &of));
    let dim = dim.map_err(|m| range_error(&own.name, "an expression of symbols", m))?;
    let (low, high) = dim.bounds(table);
    if high < own.min || own.max.is_some_and(|max| low > max) {
        let most = own.max.map_or(String::new(), |m| m.to_string());
        let expected = format!("a value within {}..{most}, which the program has", own.min);
        return Err(range_error(&own.display_name(), &expected, format!("{text}, which is {low} to {high}")));
    }
    Ok(dim)
}

/// The symbols that a message about extents is of.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MentionedSymbols {
    pub named: Vec<String>,
    /// The same by their names in the file.
    pub aliases: Vec<String>,
    /// Those of these that took the default bound.
    pub unbounded: Vec<String>,
}

impl MentionedSymbols {
    /// Those of a message about a program; `None` if it names none. `open` are those that took the default bound.
    pub fn find_in_message(
        message: &str,
        symbols: &SymbolTable,
        open: &[String],
    ) -> Option<MentionedSymbols> {
        let part = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
        let words: Vec<&str> = message.split(part).collect();
        let is_named = |s: &Symbol| {
            words.contains(&s.name.as_str()) || s.alias.as_deref().is_some_and(|alias| words.contains(&alias))
        };
        let named = symbols.values().filter(|s| is_named(s));
        let (named, aliases): (Vec<String>, Vec<String>) =
            named.map(|s| (s.name.clone(), s.alias.clone().unwrap_or_else(|| s.name.clone()))).unzip();
        let open = open.iter().filter(|s| named.contains(s)).cloned().collect();
        (!named.is_empty()).then_some(MentionedSymbols { named, aliases, unbounded: open })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declared(text: &str) -> Vec<DeclaredSymbol> {
        let one = |word: &str| {
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
        text.split(' ').map(one).collect()
    }

    /// The symbols as `name min..max`, the dims of all declared ones, and the notes.
    fn settled(of: &str, given: &[(&str, &str)]) -> Result<(Vec<String>, Vec<String>, Vec<String>), String> {
        let mut notes = Vec::new();
        let parse = |(name, text): &(&str, &str)| {
            SymbolConstraint::parse(text)
                .map(|extent| ((*name).to_string(), extent))
                .map_err(|m| format!("parse: {m}"))
        };
        let given = given.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
        let given = SymbolConstraints { constraints: given, ..SymbolConstraints::default() };
        let all = resolve_symbols(&declared(of), &given, 1000, &mut notes).map_err(|e| e.to_string())?;
        let table = all.table.values().map(|s| format!("{} {}..{}", s.name, s.min, s.max)).collect();
        let dims = all.dims.iter().map(|d| d.display(&all.table).to_string()).collect();
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
        // Those that no extent can be are no symbols at all.
        let (symbols, dims, _) = settled("a:-7..-7 b:2..64 c:5..5", &[]).expect("symbols");
        assert_eq!((symbols, dims.join(" ")), (vec!["b 2..64".into(), "c 5..5".into()], "-7 b 5".into()));
    }

    #[test]
    fn what_goes_in_steps_is_an_expression_of_a_new_symbol() {
        let of = |of, given: &[(&str, &str)]| settled(of, given).map(|(table, dims, _)| (table, dims));
        let words = |words: &[&str]| words.iter().map(|w| (*w).to_string()).collect::<Vec<_>>();
        assert_eq!(
            of("a:2..65 b:0..9", &[("a", "2*pairs")]),
            Ok((words(&["b 0..9", "pairs 1..32"]), words(&["2*pairs", "b"])))
        );
        assert_eq!(of("a:2..65", &[("s_a", "4*k + 1")]), Ok((words(&["k 1..16"]), words(&["4*k + 1"]))));
        assert_eq!(of("a:0..", &[("a", "3 + 2*(k + k)")]), Ok((words(&["k 0..1000"]), words(&["4*k + 3"]))));
        assert_eq!(of("a:2..65", &[("a", "2*k"), ("k", "..4")]), Ok((words(&["k 1..4"]), words(&["2*k"]))));
        // A name that nothing has, and that is no number of steps, is a mistake.
        for text in ["k", "k + 1", "2*k*k", "2*k + b", "floor(k/2)", "-2*k", "2*k + c"] {
            let found = of("a:2..65 b:0..9", &[("a", text)]);
            let error = found.expect_err(text);
            assert!(
                error.contains("expected a symbol of the program: a (s_a), b (s_b)")
                    || error.contains("parse"),
                "{text}: {error}"
            );
        }
        // One step at least is within the range.
        let error = of("a:2..3", &[("a", "5*k")]).expect_err("too far");
        assert!(error.contains("expected a value within 2..3"), "{error}");
    }

    #[test]
    fn what_is_never_less_than_others_is_them_and_the_rest() {
        let (symbols, dims, notes) = settled("a:1..8 b:2..64", &[("b", "a + rest")]).expect("symbols");
        assert_eq!(notes, ["symbol rest is new, the rest in b = a + rest"]);
        assert_eq!(symbols, ["a 1..8", "rest 0..64"]);
        assert_eq!(dims, ["a", "a + rest"]);
        let said = [("b", "6*n + rest + 1"), ("a", "2*n"), ("rest", "..9")];
        let (symbols, dims, _) = settled("a:2..8 b:2..64", &said).expect("symbols");
        assert_eq!(symbols, ["n 1..4", "rest 0..9"]);
        assert_eq!(dims, ["2*n", "6*n + rest + 1"]);
        // What is nearly the name of another is that one, misspelt.
        for typo in ["lenght", "lengh", "lengthh", "langth"] {
            for text in [format!("past + {typo}"), format!("2*{typo}")] {
                let error =
                    settled("past:1..8 length:1..8 total:2..64", &[("total", &text)]).expect_err(typo);
                assert!(error.contains("past (s_past), length (s_length)"), "{typo}: {error}");
                assert!(error.contains(&format!("not nearly `length`, found `{typo}`")), "{typo}: {error}");
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
        assert_eq!(
            notes,
            [
                "symbol a (s_a) starts at 2: the program holds for no less",
                "symbol b (s_b) has no upper bound in the program; 1000 is taken"
            ]
        );
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
            "`a (s_a)`: expected a range within 2..9, which the program has, found 1..64",
        );
        refused("a:2..", &[("a", "1")], "within 2.., which the program has, found 1");
        refused(
            "a:2.. b:0..",
            &[("c", "1..2")],
            "`c`: expected a symbol of the program: a (s_a), b (s_b), found `c`",
        );
        refused("a:2..", &[("a", "2..3"), ("s_a", "2..4")], "expected one range, found two");
        refused("a:2.. b:2..", &[("a", "b"), ("b", "a")], "in which b is one of another as well");
        refused("a:2.. b:2..", &[("a", "a")], "in which a is one of another as well");
        refused("a:2.. b:2..", &[("a", "c + 1")], "`c`: expected a symbol of the program");
        refused("a:2..4 b:5..9", &[("a", "b")], "`b`: expected a range, found none that a (s_a) has, too");
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
    fn recorded_extents_bound_what_is_open() {
        let mut all = declared("a:2.. b:2..");
        all[0].recorded = Some(5);
        let mut notes = Vec::new();
        let bounds = vec![("b".to_string(), 8), ("s_b".to_string(), 64), ("x".to_string(), 9)];
        let given = SymbolConstraints { fallback_bounds: bounds, ..SymbolConstraints::default() };
        let settled = resolve_symbols(&all, &given, 1000, &mut notes).expect("symbols");
        assert_eq!(settled.table.values().map(|s| s.max).collect::<Vec<_>>(), [5, 64]);
        assert!(notes[1].ends_with("64 is taken, the largest that is asked for"), "{}", notes[1]);
        assert_eq!(
            notes[0],
            "symbol a (s_a) has no upper bound in the program; 5 is taken, as the recorded tensors have it"
        );
        let of = |message| {
            MentionedSymbols::find_in_message(message, &settled.table, &settled.unbounded)
                .map(|q| (q.named, q.aliases, q.unbounded))
        };
        let found = (vec!["b".into()], vec!["s_b".into()], vec!["b".into()]);
        assert_eq!(of("the extents b + 1 and ab"), Some(found));
        assert_eq!(of("the extents 1 and ab"), None);
    }
}
