//! The symbols of a program and the dims of its extents.
//!
//! The symbols of a program are those in the extents of its arguments: a caller fixes them for a run. ONNX
//! names extents by free text (`dim_param`). Text that parses as an integer expression (`2*tokens`, `past +
//! 1`) is an expression; any other text is one symbol. An extent without value and name gets a symbol of its
//! own.
//!
//! Results have further names of extents. Such a name stands for the first extent that is computed where the file
//! declares it. If none is computed, because the op is opaque, the extent becomes a symbol of the program.
//!
//! `torch.export` names symbols `s23`. If such a symbol is the only one of a program, it is called `tokens`.
//! A symbol with a different name in PyTorch keeps that name as its alias.

use std::collections::{HashMap, HashSet};

use indexmap::IndexMap;
use symmc_import::ranges::{self, DeclaredSymbol, OpenSizes, ResolvedSymbols, SymbolConstraints};
use symmc_import::sympy::{self, SizeExpr};
use symmc_ir::{Dim, EntityMap, Symbol, SymbolId};

use crate::error::FailureReason;
use crate::proto;

/// The metadata key under which `torch.onnx` stores the ranges of symbols.
const RANGES: &str = "pkg.torch.export.ExportedProgram.range_constraints";

/// The most elements of a result with extents that are not known, if its other extents allow it.
const MAX_RESULT_ELEMENTS: i64 = 1 << 30;

/// The symbols of a program, by the names of the file.
#[derive(Clone)]
pub(crate) struct ProgramSymbols {
    pub table: EntityMap<SymbolId, Symbol>,
    ids: HashMap<String, Dim>,
    pub open: OpenSizes,
    /// The extents of results, by the names and expressions in the file.
    computed: HashMap<String, Dim>,
    /// The caller's constraints on symbols that are not extents of arguments.
    of_results: SymbolConstraints,
    max_extent: i64,
    /// Whether an extent of a result of an opaque op became a symbol.
    pub has_symbols_of_results: bool,
}

/// An interval. An end without a bound is `None`.
#[derive(Clone, Copy, PartialEq, Debug)]
struct SymbolRange {
    min: Option<i64>,
    max: Option<i64>,
}

impl ProgramSymbols {
    /// Collects, bounds and names the symbols of the arguments, and applies the caller's constraints.
    /// `max_extent` bounds symbols without an upper bound, with a note. `results` are the declared results.
    pub fn new(
        arguments: &[&proto::ValueInfoProto],
        results: &[&proto::ValueInfoProto],
        metadata: &[proto::StringStringEntryProto],
        given: &SymbolConstraints,
        max_extent: i64,
        notes: &mut Vec<String>,
    ) -> Result<Self, FailureReason> {
        let mut order: Vec<String> = Vec::new();
        for argument in arguments {
            let shape = argument.r#type.as_ref().and_then(|t| t.tensor_type.as_ref()?.shape.as_ref());
            for (axis, dim) in shape.iter().flat_map(|s| s.dim.iter().enumerate()) {
                collect_symbols(&argument.name, axis, dim, &mut order);
            }
        }
        let stated = metadata
            .iter()
            .find(|e| e.key == RANGES)
            .map(|e| parse_range_metadata(&e.value))
            .unwrap_or_default();
        let mut declared: Vec<DeclaredSymbol> = Vec::with_capacity(order.len());
        for (name, assigned) in order.iter().zip(assign_ranges(&order, &stated)) {
            let generated = order.len() == 1 && is_generated(name);
            let shown = unique_name(
                declared.iter().map(|s| s.name.as_str()),
                if generated { "tokens".into() } else { ranges::to_identifier(name) },
            );
            let (min, max) = ranges::normalize_range(
                name,
                assigned.range.and_then(|r| r.min),
                assigned.range.and_then(|r| r.max),
            )?;
            let is_constrained =
                given.constraints.iter().any(|(symbol, _)| *symbol == shown || symbol == name);
            if !assigned.certain && !is_constrained {
                let max = max.map_or("any size".into(), |max| max.to_string());
                notes.push(format!(
                    "symbol {shown} is assumed to be {min} to {max}: its range is not certain"
                ));
            }
            let alias = assigned.torch.or(Some(name)).filter(|alias| **alias != shown).cloned();
            let recorded = recorded_extent(name, arguments, &given.recorded_shapes);
            declared.push(DeclaredSymbol { name: shown, alias, min, max, recorded });
        }
        let result_names = names_of_results(results);
        let (of_results, of_arguments) = given.constraints.iter().cloned().partition(|(name, _)| {
            result_names.contains(name)
                && !declared.iter().any(|d| d.name == *name || d.alias.as_ref() == Some(name))
        });
        let of_results = SymbolConstraints { constraints: of_results, ..given.clone() };
        let given = SymbolConstraints { constraints: of_arguments, ..given.clone() };
        let ResolvedSymbols { table, dims, open } =
            ranges::resolve_symbols(&declared, &given, max_extent, notes)?;
        let ids = order.into_iter().zip(dims).collect();
        let computed = HashMap::new();
        Ok(ProgramSymbols {
            table,
            ids,
            computed,
            of_results,
            max_extent,
            has_symbols_of_results: false,
            open,
        })
    }

    /// The dim of an extent of this value. `None` if it is not known: it has neither value nor name, or uses
    /// a symbol that is not an extent of an argument.
    pub fn resolve_extent(
        &self,
        value: &str,
        axis: usize,
        dim: &proto::DimensionProto,
    ) -> Result<Option<Dim>, String> {
        match declared_extent(dim) {
            DeclaredExtent::Known(i) => Ok(Some(Dim::from(i))),
            DeclaredExtent::Open => Ok(self.ids.get(&anonymous_symbol(value, axis)).cloned()),
            DeclaredExtent::Named(name) => {
                if let Some(dim) = self.ids.get(name) {
                    return Ok(Some(dim.clone()));
                }
                let Ok(parsed) = sympy::parse(name) else { return Ok(None) };
                if sympy::symbols_in(&parsed).iter().any(|s| !self.ids.contains_key(*s)) {
                    return Ok(None);
                }
                let dim = sympy::to_dim(&parsed, &|s| self.ids.get(s).cloned().ok_or_else(String::new));
                Ok(dim.ok().map(|dim| dim.simplify_within(&self.table)))
            }
        }
    }

    /// Records the extents that were computed for a result, under the names that the file declares for them.
    pub fn record_extents(&mut self, declared: &proto::TensorShapeProto, computed: &[Dim]) {
        for (dim, extent) in declared.dim.iter().zip(computed) {
            if let DeclaredExtent::Named(name) = declared_extent(dim)
                && !self.ids.contains_key(name)
                && !self.computed.contains_key(name)
            {
                self.computed.insert(name.to_string(), extent.clone());
            }
        }
    }

    /// The extents of a result that no rule computes: the declared ones, or else those that are `expected`, or else
    /// new symbols. The bounds of new symbols are such that the result fits into memory.
    pub fn resolve_result_extents(
        &mut self,
        value: &str,
        declared: Option<&proto::TensorShapeProto>,
        expected: Vec<Option<Dim>>,
    ) -> Result<Vec<Dim>, FailureReason> {
        let mut shape = Vec::with_capacity(expected.len());
        for (axis, expected) in expected.into_iter().enumerate() {
            let declared = declared.and_then(|s| s.dim.get(axis));
            shape.push(self.known_result_extent(value, axis, declared, expected));
        }
        let new: HashSet<&String> = shape.iter().filter_map(|extent| extent.as_ref().err()).collect();
        let mut elements = 1i64;
        for extent in shape.iter().flatten() {
            elements = elements.saturating_mul(extent.bounds(&self.table).1.max(1));
        }
        let fits = |bound: i64| {
            let total = new.iter().fold(elements, |total, _| total.saturating_mul(bound));
            total <= MAX_RESULT_ELEMENTS
        };
        let mut bound = self.max_extent.max(1);
        while bound > 1 && !fits(bound) {
            bound = bound.div_euclid(2);
        }
        let mut extents = Vec::with_capacity(shape.len());
        for extent in shape {
            extents.push(match extent {
                Ok(extent) => extent,
                Err(name) => self.add_symbol_of_result(name, bound)?,
            });
        }
        Ok(extents)
    }

    /// An extent of a result, or the name of the symbol that it becomes.
    fn known_result_extent(
        &self,
        value: &str,
        axis: usize,
        declared: Option<&proto::DimensionProto>,
        expected: Option<Dim>,
    ) -> Result<Dim, String> {
        let name = match declared.map(declared_extent) {
            Some(DeclaredExtent::Known(extent)) => return Ok(Dim::from(extent)),
            Some(DeclaredExtent::Named(name)) => name.to_string(),
            Some(DeclaredExtent::Open) | None => anonymous_symbol(value, axis),
        };
        let of_name = |s: &str| self.ids.get(s).or_else(|| self.computed.get(s)).cloned();
        if let Some(dim) = of_name(&name) {
            return Ok(dim);
        }
        let parsed =
            sympy::parse(&name).and_then(|e| sympy::to_dim(&e, &|s| of_name(s).ok_or_else(String::new)));
        parsed.ok().or(expected).map(|dim| dim.simplify_within(&self.table)).ok_or(name)
    }

    /// The symbol of an extent of this name. The first extent of the name adds it.
    fn add_symbol_of_result(&mut self, name: String, bound: i64) -> Result<Dim, FailureReason> {
        if let Some(dim) = self.computed.get(&name) {
            return Ok(dim.clone());
        }
        let shown = unique_name(self.table.values().map(|s| s.name.as_str()), ranges::to_identifier(&name));
        let constraints = self.of_results.constraints.iter();
        let own = constraints.filter(|(given, _)| *given == shown || *given == name).cloned().collect();
        let given = SymbolConstraints { constraints: own, ..self.of_results.clone() };
        let alias = Some(name.clone()).filter(|alias| *alias != shown);
        let declared = DeclaredSymbol { name: shown, alias, min: 0, max: None, recorded: None };
        let ResolvedSymbols { table, dims, open } =
            ranges::resolve_symbols(&[declared], &given, bound, &mut Vec::new())?;
        self.open.extend(open);
        self.has_symbols_of_results = true;
        // A symbol with one value is replaced by that constant.
        let dim = match (dims.first().and_then(Dim::as_const), table.values().next()) {
            (None, Some(symbol)) => Dim::from(self.table.push(symbol.clone())),
            (constant, _) => Dim::from(constant.unwrap_or(0)),
        };
        self.computed.insert(name, dim.clone());
        Ok(dim)
    }
}

/// The names that extents of results may have as symbols.
fn names_of_results(results: &[&proto::ValueInfoProto]) -> HashSet<String> {
    let mut names = HashSet::new();
    for result in results {
        let shape = result.r#type.as_ref().and_then(|t| t.tensor_type.as_ref()?.shape.as_ref());
        for (axis, dim) in shape.iter().flat_map(|s| s.dim.iter().enumerate()) {
            let name = match declared_extent(dim) {
                DeclaredExtent::Known(_) => continue,
                DeclaredExtent::Named(name) => name.to_string(),
                DeclaredExtent::Open => anonymous_symbol(&result.name, axis),
            };
            names.insert(ranges::to_identifier(&name));
            names.insert(name);
        }
    }
    names
}

/// The extent in the recorded arguments on an axis that consists of just this symbol. The largest one, if
/// they differ.
fn recorded_extent(symbol: &str, arguments: &[&proto::ValueInfoProto], shapes: &[Vec<usize>]) -> Option<i64> {
    let extents = arguments.iter().zip(shapes).filter_map(|(argument, shape)| {
        let declared = argument.r#type.as_ref()?.tensor_type.as_ref()?.shape.as_ref()?;
        let axes = declared.dim.iter().enumerate().filter(|(axis, dim)| match declared_extent(dim) {
            DeclaredExtent::Named(name) => name == symbol,
            DeclaredExtent::Open => anonymous_symbol(&argument.name, *axis) == symbol,
            DeclaredExtent::Known(_) => false,
        });
        axes.filter_map(|(axis, _)| i64::try_from(*shape.get(axis)?).ok()).max()
    });
    extents.max()
}

/// The extent as the file declares it. A name without letters and digits, such as `?`, is none: exporters write it for
/// extents that differ.
enum DeclaredExtent<'a> {
    Known(i64),
    Named(&'a str),
    Open,
}

fn declared_extent(dim: &proto::DimensionProto) -> DeclaredExtent<'_> {
    match (dim.dim_value, dim.dim_param.as_deref().map(str::trim)) {
        (_, Some(name)) if name.contains(char::is_alphanumeric) => DeclaredExtent::Named(name),
        (Some(value), _) if value >= 0 => DeclaredExtent::Known(value),
        _ => DeclaredExtent::Open,
    }
}

fn anonymous_symbol(value: &str, axis: usize) -> String {
    format!("{value}.{axis}")
}

fn collect_symbols(argument: &str, axis: usize, dim: &proto::DimensionProto, order: &mut Vec<String>) {
    match declared_extent(dim) {
        DeclaredExtent::Known(_) => {}
        DeclaredExtent::Open => add_symbol(order, anonymous_symbol(argument, axis)),
        DeclaredExtent::Named(name) => {
            let parsed = sympy::parse(name);
            // Text that is not an integer expression names one symbol.
            match parsed.as_ref().map(|e| (e, sympy::to_dim(e, &|_| Ok(Dim::from(0))))) {
                Ok((SizeExpr::Symbol(s), _)) => add_symbol(order, (*s).to_string()),
                Ok((e, Ok(_))) => {
                    sympy::symbols_in(e).into_iter().for_each(|s| add_symbol(order, s.to_string()));
                }
                _ => add_symbol(order, name.to_string()),
            }
        }
    }
}

fn add_symbol(order: &mut Vec<String>, name: String) {
    if !order.contains(&name) {
        order.push(name);
    }
}

/// Whether PyTorch generated the name.
fn is_generated(name: &str) -> bool {
    name.strip_prefix('s').is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// The range of a symbol, and its name in PyTorch.
#[derive(Clone, Copy)]
struct AssignedRange<'r> {
    /// The name in PyTorch, if it differs and is certain.
    torch: Option<&'r String>,
    range: Option<SymbolRange>,
    /// Whether the range is that of the symbol, rather than a range that covers all candidates.
    certain: bool,
}

/// Assigns a range to each symbol. A range with the symbol's own name is preferred. Otherwise, if one symbol
/// and one range are left, they belong together. Otherwise the symbol gets a range that covers all remaining
/// ones, provided that there is one for each symbol.
fn assign_ranges<'r>(order: &[String], ranges: &'r IndexMap<String, SymbolRange>) -> Vec<AssignedRange<'r>> {
    let unmatched: Vec<_> = ranges.iter().filter(|(name, _)| !order.contains(name)).collect();
    let unnamed = order.iter().filter(|name| !ranges.contains_key(*name)).count();
    let all_equal = unmatched.windows(2).all(|w| w[0].1 == w[1].1);
    let combined = unmatched.iter().map(|(_, range)| **range).reduce(|a, b| SymbolRange {
        min: a.min.zip(b.min).map(|(a, b)| a.min(b)),
        max: a.max.zip(b.max).map(|(a, b)| a.max(b)),
    });
    order
        .iter()
        .map(|name| match (ranges.get(name), unmatched.as_slice()) {
            (Some(range), _) => AssignedRange { torch: None, range: Some(*range), certain: true },
            (None, [(torch, range)]) if unnamed == 1 => {
                AssignedRange { torch: Some(torch), range: Some(**range), certain: true }
            }
            (None, _) if unmatched.len() >= unnamed => {
                AssignedRange { torch: None, range: combined, certain: all_equal }
            }
            _ => AssignedRange { torch: None, range: None, certain: true },
        })
        .collect()
}

/// Parses `{s23: VR[2, 1024], s5: VR[0, int_oo]}`. Entries that do not parse are left out.
fn parse_range_metadata(text: &str) -> IndexMap<String, SymbolRange> {
    let mut out = IndexMap::new();
    for texts in text.trim().trim_start_matches('{').split("VR[").collect::<Vec<_>>().windows(2) {
        let name = texts[0].rsplit([',', '{', ']']).next().unwrap_or("").trim().trim_end_matches(':').trim();
        let Some((interval, _)) = texts[1].split_once(']') else { continue };
        let Some((min, max)) = interval.split_once(',') else { continue };
        let min = min.trim().parse().ok();
        let max = max.trim().parse().ok();
        out.insert(name.to_string(), SymbolRange { min, max });
    }
    out
}

/// The name, with a number appended if another symbol has it.
fn unique_name<'a>(others: impl Iterator<Item = &'a str>, name: String) -> String {
    let others: HashSet<&str> = others.collect();
    let numbered = (2..).map(|n| format!("{name}_{n}"));
    let mut names = std::iter::once(name.clone()).chain(numbered);
    names.find(|name| !others.contains(name.as_str())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argument(dims: &[&str]) -> proto::ValueInfoProto {
        let dim = |text: &&str| match text.parse() {
            Ok(value) => proto::DimensionProto { dim_value: Some(value), dim_param: None },
            Err(_) => proto::DimensionProto { dim_value: None, dim_param: Some((*text).to_string()) },
        };
        let shape = proto::TensorShapeProto { dim: dims.iter().map(dim).collect() };
        let tensor = proto::TensorTypeProto { elem_type: 1, shape: Some(shape) };
        proto::ValueInfoProto {
            name: "x".into(),
            r#type: Some(proto::TypeProto { tensor_type: Some(tensor), ..proto::TypeProto::default() }),
        }
    }

    /// The symbols as `name (alias) min..max`, and the notes.
    fn symbols(dims: &[&str], ranges: &str) -> (Vec<String>, Vec<String>) {
        let metadata = [proto::StringStringEntryProto { key: RANGES.into(), value: ranges.into() }];
        let mut notes = Vec::new();
        let symbols = ProgramSymbols::new(
            &[&argument(dims)],
            &[],
            &metadata,
            &SymbolConstraints::default(),
            1 << 20,
            &mut notes,
        )
        .expect("sound ranges");
        let show = |s: &Symbol| {
            let alias = s.alias.as_ref().map_or(String::new(), |a| format!(" ({a})"));
            format!("{}{alias} {}..{}", s.name, s.min, s.max)
        };
        (symbols.table.values().map(show).collect(), notes)
    }

    #[test]
    fn ranges_belong_to_symbols_where_that_is_certain() {
        let resolved = |dims: &[&str], ranges| symbols(dims, ranges).0;
        assert_eq!(resolved(&["tokens", "4"], "{s23: VR[2, 1024]}"), ["tokens (s23) 2..1024"]);
        assert_eq!(resolved(&["s23"], "{s23: VR[2, 1024]}"), ["tokens (s23) 2..1024"]);
        assert_eq!(resolved(&["a", "s1"], "{s0: VR[2, 8], s1: VR[3, 9]}"), ["a (s0) 2..8", "s1 3..9"]);
        assert_eq!(resolved(&["a", "b"], "{s0: VR[2, 8], s1: VR[2, 8]}"), ["a 2..8", "b 2..8"]);
        // The assignment is unknown, so each symbol gets a range that covers both.
        let (shown, notes) = symbols(&["a", "b"], "{s0: VR[2, 8], s1: VR[3, 9]}");
        assert_eq!(shown, ["a 2..9", "b 2..9"]);
        assert_eq!(notes[1], "symbol b is assumed to be 2 to 9: its range is not certain");
        // Symbols without a bound get the default one.
        let (shown, _) = symbols(&["a", "b"], "{s0: VR[2, 8]}");
        assert_eq!(shown, ["a 0..1048576", "b 0..1048576"]);
        assert_eq!(
            resolved(&["a b", "a_b", "c d"], ""),
            ["a_b (a b) 0..1048576", "a_b_2 (a_b) 0..1048576", "c_d (c d) 0..1048576"]
        );
        assert_eq!(resolved(&["n"], "{s0: VR[1, int_oo]}"), ["n (s0) 1..1048576"]);
        assert!(
            ProgramSymbols::new(
                &[&argument(&["n"])],
                &[],
                &[proto::StringStringEntryProto { key: RANGES.into(), value: "{s0: VR[9, 2]}".into() }],
                &SymbolConstraints::default(),
                1 << 20,
                &mut Vec::new()
            )
            .is_err()
        );
    }

    #[test]
    fn extents_are_expressions_or_names() {
        let x = argument(&["past + 1", "2*tokens", "a name, with text", "7"]);
        let symbols =
            ProgramSymbols::new(&[&x], &[], &[], &SymbolConstraints::default(), 64, &mut Vec::new())
                .expect("symbols");
        let names: Vec<&str> = symbols.table.values().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["past", "tokens", "a_name__with_text"]);
        let shape = x.r#type.as_ref().and_then(|t| t.tensor_type.as_ref()?.shape.as_ref()).expect("a shape");
        let dim = |i: usize| {
            symbols.resolve_extent("x", i, &shape.dim[i]).expect("a dim").map(|d| format!("{d:?}"))
        };
        assert_eq!(dim(0).as_deref(), Some("sym0 + 1"));
        assert_eq!(dim(1).as_deref(), Some("2*sym1"));
        assert_eq!(dim(2).as_deref(), Some("sym2"));
        let unknown = proto::DimensionProto { dim_value: None, dim_param: Some("u0".into()) };
        assert_eq!(symbols.resolve_extent("y", 0, &unknown), Ok(None));
        let x = argument(&["?", "?"]);
        let symbols =
            ProgramSymbols::new(&[&x], &[], &[], &SymbolConstraints::default(), 64, &mut Vec::new())
                .expect("symbols");
        let names: Vec<&str> = symbols.table.values().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["x_0", "x_1"]);
    }
}
