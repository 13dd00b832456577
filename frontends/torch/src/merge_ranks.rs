//! Merges the programs that the ranks exported, one archive per rank, into one.
//!
//! The programs must be the same except for names and data. A number that differs, such as the first row of a
//! rank's slice of a vocabulary, becomes an argument with a value per rank ([`PerRankArgument`]). Rules that
//! accept a tensor there accept it, and other rules reject it by name. The split sizes of an exchange may
//! also differ. Process groups that ranks call by different names become the cells of one group. Every other
//! difference is an error.

use std::collections::HashMap;

use indexmap::IndexMap;

use crate::error::{ImportError, Result};
use crate::per_rank::{PerRankArgument, PerRankNumbers};
use crate::schema::{
    Argument, ExportedGraph, ExportedNode, ExportedProgram, InputSpec, NamedArgument, OutputSpec,
    RangeConstraint, SymArgument, SymInt, TensorMeta, WrittenOutput, written_output,
};
use crate::scope::tensor_names;
use crate::unify;

/// The correspondence of names between a rank's program and that of rank 0.
pub(crate) struct StoredNames {
    /// For each stored tensor of rank 0, the name under which the rank stores it.
    pub stored: HashMap<String, String>,
}

/// The result of merging programs, besides the first program, which was changed into that of all ranks.
pub(crate) struct MergedPrograms {
    /// The names of the programs after the first.
    pub names: Vec<StoredNames>,
    /// The cells of groups, by the names that rank 0 gives them.
    pub groups: IndexMap<String, Vec<Vec<u32>>>,
}

pub(crate) fn merge_programs<'p>(programs: &mut [ExportedProgram<'p>]) -> Result<MergedPrograms> {
    let mut names = Vec::new();
    if programs.len() > 1 {
        programs.iter_mut().for_each(unify::unify_program);
    }
    let Some((first, others)) = programs.split_first_mut() else {
        return Ok(MergedPrograms { names, groups: IndexMap::new() });
    };
    let mut numbers = vec![number_arguments(first)];
    let mut lists = vec![collect_arguments(first, row_counts)];
    let mut group_names = vec![collect_arguments(first, group_argument)];
    for (i, other) in others.iter().enumerate() {
        names.push(ProgramComparison::new(first, other).compare_programs().map_err(|e| e.with_rank(i + 1))?);
        numbers.push(number_arguments(other));
        lists.push(collect_arguments(other, row_counts));
        group_names.push(collect_arguments(other, group_argument));
    }
    let groups = group_cells(first, &group_names)?;
    let mut number_index = 0;
    let mut list_index = 0;
    visit_arguments_mut(&mut first.graph_module.graph, &mut |node, input| {
        let differing = if is_number(input) {
            number_index += 1;
            let by_rank: Vec<_> = numbers.iter().filter_map(|n| n.get(number_index - 1)).collect();
            differing_numbers(&by_rank)
        } else if row_counts(input).is_some() {
            list_index += 1;
            differing_row_counts(lists.iter().filter_map(|l| l.get(list_index - 1)).collect())
        } else {
            None
        };
        if let Some(numbers) = differing {
            let name = format!("by_rank.{node}.{}", &*input.name);
            input.arg = Argument::ByRank(PerRankArgument { name, numbers });
        }
    });
    Ok(MergedPrograms { names, groups })
}

#[derive(Clone, PartialEq)]
enum NumberArgument {
    Int(i64),
    Float(f64),
    /// A size, as the program writes it.
    Expression(String),
}

fn number_argument(graph: &ExportedGraph<'_>, input: &NamedArgument<'_>) -> Option<NumberArgument> {
    match &input.arg {
        Argument::Int(i) => Some(NumberArgument::Int(*i)),
        Argument::Float(x) => Some(NumberArgument::Float(*x)),
        Argument::SymInt(SymArgument { as_name: None, as_int: Some(i), .. }) => Some(NumberArgument::Int(*i)),
        Argument::SymInt(SymArgument { as_name: Some(name), .. }) => {
            let value = graph.sym_int_values.get(&**name)?;
            match (&value.as_expr, value.as_int) {
                (Some(e), _) => Some(NumberArgument::Expression(e.expr_str.to_string())),
                (None, Some(i)) => Some(NumberArgument::Int(i)),
                (None, None) => None,
            }
        }
        _ => None,
    }
}

fn is_number(input: &NamedArgument<'_>) -> bool {
    matches!(&input.arg, Argument::Int(_) | Argument::Float(_) | Argument::SymInt(_))
}

/// The number in each argument that may be a number.
fn number_arguments(program: &ExportedProgram<'_>) -> Vec<Option<NumberArgument>> {
    let mut out = Vec::new();
    visit_arguments(&program.graph_module.graph, &mut |graph, input| {
        if is_number(input) {
            out.push(number_argument(graph, input));
        }
    });
    out
}

/// The number of rows that a rank exchanges with another.
#[derive(Clone, PartialEq)]
enum RowCount {
    Known(i64),
    Named(String),
}

/// The split sizes of an exchange, or the ranks of sends and receives, if the argument is a list of them. They
/// usually differ between ranks.
fn row_counts(input: &NamedArgument<'_>) -> Option<Vec<RowCount>> {
    if !matches!(&*input.name, "input_split_sizes" | "output_split_sizes" | "peer_list") {
        return None;
    }
    match &input.arg {
        Argument::Ints(v) => Some(v.iter().copied().map(RowCount::Known).collect()),
        Argument::SymInts(v) => {
            let counts = v.iter().map(|s| match (&s.as_name, s.as_int) {
                (Some(name), _) => Some(RowCount::Named(name.to_string())),
                (None, known) => known.map(RowCount::Known),
            });
            counts.collect()
        }
        _ => None,
    }
}

/// The lists, unless they are all the same.
fn differing_row_counts(lists: Vec<&Vec<RowCount>>) -> Option<PerRankNumbers> {
    if lists.windows(2).all(|w| w[0] == w[1]) {
        return None;
    }
    let mut row_lists = Vec::with_capacity(lists.len());
    for list in lists {
        let rows = list.iter().map(|count| match count {
            RowCount::Known(rows) => Some(*rows),
            RowCount::Named(_) => None,
        });
        row_lists.push(rows.collect());
    }
    Some(PerRankNumbers::Lists(row_lists))
}

/// The numbers, unless they are all the same.
fn differing_numbers(numbers: &[&Option<NumberArgument>]) -> Option<PerRankNumbers> {
    let numbers: Vec<&NumberArgument> = numbers.iter().map(|n| n.as_ref()).collect::<Option<_>>()?;
    if numbers.windows(2).all(|w| is_same_number(w[0], w[1])) {
        return None;
    }
    let ints = numbers.iter().map(|n| match n {
        NumberArgument::Int(i) => Some(*i),
        _ => None,
    });
    if let Some(ints) = ints.collect() {
        return Some(PerRankNumbers::Ints(ints));
    }
    let floats = numbers.iter().map(|n| match n {
        NumberArgument::Int(i) => Some(*i as f64),
        NumberArgument::Float(x) => Some(*x),
        NumberArgument::Expression(_) => None,
    });
    if let Some(floats) = floats.collect() {
        return Some(PerRankNumbers::Floats(floats));
    }
    let expressions = numbers.iter().map(|n| match n {
        NumberArgument::Int(i) => format!("Integer({i})"),
        NumberArgument::Float(x) => format!("Float({x:?})"),
        NumberArgument::Expression(text) => text.clone(),
    });
    Some(PerRankNumbers::Expressions(expressions.collect()))
}

fn is_same_number(a: &NumberArgument, b: &NumberArgument) -> bool {
    match (a, b) {
        (NumberArgument::Float(a), NumberArgument::Float(b)) => a.to_bits() == b.to_bits(),
        _ => a == b,
    }
}

fn group_argument(input: &NamedArgument<'_>) -> Option<String> {
    match &input.arg {
        Argument::String(s) if matches!(&*input.name, "group" | "group_name") => Some(s.to_string()),
        _ => None,
    }
}

pub(crate) fn find_per_rank_arguments<'p>(program: &'p ExportedProgram<'p>) -> Vec<&'p PerRankArgument> {
    collect_arguments(program, |input| match &input.arg {
        Argument::ByRank(number) => Some(number),
        _ => None,
    })
}

/// The results of `pick` for all arguments, in order.
fn collect_arguments<'g, 'p, T>(
    program: &'g ExportedProgram<'p>,
    pick: impl Fn(&'g NamedArgument<'p>) -> Option<T>,
) -> Vec<T> {
    let mut out = Vec::new();
    visit_arguments(&program.graph_module.graph, &mut |_, input| out.extend(pick(input)));
    out
}

/// Visits all arguments, with the graphs that have them.
fn visit_arguments<'g, 'p>(
    graph: &'g ExportedGraph<'p>,
    visit: &mut impl FnMut(&'g ExportedGraph<'p>, &'g NamedArgument<'p>),
) {
    for input in graph.nodes.iter().flat_map(|n| &n.inputs) {
        match &input.arg {
            Argument::Graph(inner) => visit_arguments(inner, visit),
            _ => visit(graph, input),
        }
    }
}

/// Visits all arguments in the order of [`visit_arguments`].
fn visit_arguments_mut<'p>(
    graph: &mut ExportedGraph<'p>,
    change: &mut impl FnMut(&str, &mut NamedArgument<'p>),
) {
    for node in &mut graph.nodes {
        let name = node.name().to_string();
        for input in &mut node.inputs {
            match &mut input.arg {
                Argument::Graph(inner) => visit_arguments_mut(inner, change),
                _ => change(&name, input),
            }
        }
    }
}

/// The cells of groups that ranks call by different names. The ranks that use one name form a cell.
fn group_cells(
    first: &ExportedProgram<'_>,
    group_names: &[Vec<String>],
) -> Result<IndexMap<String, Vec<Vec<u32>>>> {
    let mut groups: IndexMap<String, Vec<Vec<u32>>> = IndexMap::new();
    for (index, name) in collect_arguments(first, group_argument).into_iter().enumerate() {
        let mut cells: IndexMap<&str, Vec<u32>> = IndexMap::new();
        for (rank, names) in group_names.iter().enumerate() {
            if let Some(name) = names.get(index) {
                cells.entry(name).or_default().push(rank as u32);
            }
        }
        let cells: Vec<Vec<u32>> = cells.into_values().collect();
        match groups.get(&name) {
            Some(existing) if *existing != cells => {
                return Err(ImportError::Group {
                    group: name,
                    message: format!("the names that the ranks use imply both {existing:?} and {cells:?}"),
                });
            }
            Some(_) => {}
            None => drop(groups.insert(name, cells)),
        }
    }
    groups.retain(|_, cells| cells.len() > 1);
    Ok(groups)
}

struct ProgramComparison<'a, 'p> {
    first: &'a ExportedProgram<'p>,
    other: &'a ExportedProgram<'p>,
    /// The names of values in the first program, by the names in the other.
    values: HashMap<&'a str, &'a str>,
    /// The names of stored tensors in the other program, by the names in the first.
    stored: HashMap<String, String>,
}

type CompareResult = Result<()>;

fn difference_error<T>(
    place: impl Into<String>,
    first: impl Into<String>,
    other: impl Into<String>,
) -> Result<T> {
    Err(ImportError::Difference { place: place.into(), first: first.into(), found: other.into() })
}

impl<'a, 'p> ProgramComparison<'a, 'p> {
    fn new(first: &'a ExportedProgram<'p>, other: &'a ExportedProgram<'p>) -> Self {
        ProgramComparison { first, other, values: HashMap::new(), stored: HashMap::new() }
    }

    fn compare_programs(mut self) -> Result<StoredNames> {
        let first = self.first;
        let other_program = self.other;
        for (symbol, range) in &first.range_constraints {
            let other_range = other_program.range_constraints.get(symbol);
            if other_range.map(|r| (r.min_val, r.max_val)) != Some((range.min_val, range.max_val)) {
                return difference_error(
                    format!("the range of symbol `{}`", &**symbol),
                    describe_range(range),
                    other_range.map_or("none".into(), describe_range),
                );
            }
        }
        let a = &first.graph_module;
        let b = &other_program.graph_module;
        compare_counts("inputs", a.signature.input_specs.len(), b.signature.input_specs.len())?;
        for (a, b) in a.signature.input_specs.iter().zip(&b.signature.input_specs) {
            self.compare_input(a, b)?;
        }
        self.compare_nodes(&a.graph, &b.graph)?;
        compare_counts("outputs", a.signature.output_specs.len(), b.signature.output_specs.len())?;
        for (i, (a, b)) in a.signature.output_specs.iter().zip(&b.signature.output_specs).enumerate() {
            self.compare_output(i, a, b)?;
        }
        Ok(StoredNames { stored: self.stored })
    }

    /// Records that two names mean the same value. The types must be equal.
    fn match_names(
        &mut self,
        graphs: [&'a ExportedGraph<'p>; 2],
        place: &str,
        a: &'a str,
        b: &'a str,
    ) -> CompareResult {
        self.values.insert(b, a);
        let x = graphs[0].tensor_values.get(a).map_or("none".into(), describe_type);
        let y = graphs[1].tensor_values.get(b).map_or("none".into(), describe_type);
        if x == y { Ok(()) } else { difference_error(format!("{place}, the type of `{a}`"), x, y) }
    }

    fn compare_input(&mut self, a: &'a InputSpec<'p>, b: &'a InputSpec<'p>) -> CompareResult {
        let graphs = [&self.first.graph_module.graph, &self.other.graph_module.graph];
        if let (Some(a), Some(b)) = (&a.user_input, &b.user_input) {
            return match (&a.arg, &b.arg) {
                (Argument::Tensor(a), Argument::Tensor(b)) => self.match_names(graphs, "the arguments", a, b),
                (Argument::Int(a), Argument::Int(b)) if a != b => {
                    difference_error("an argument of the program", a.to_string(), b.to_string())
                }
                (a, b) => self.compare_argument(graphs, "the arguments", a, b),
            };
        }
        match (stored_input(a), stored_input(b)) {
            (Some((kind, value, name)), Some((other_kind, other_value, other_name)))
                if kind == other_kind =>
            {
                self.stored.insert(name.to_string(), other_name.to_string());
                self.match_names(graphs, &format!("`{name}`"), value, other_value)
            }
            (Some((kind, _, name)), _) => {
                difference_error(format!("the input `{name}`"), kind, "another kind of input")
            }
            (None, Some((kind, _, name))) => {
                difference_error(format!("the input `{name}`"), "another kind", kind)
            }
            (None, None) if a.user_input.is_some() == b.user_input.is_some() => Ok(()),
            (None, None) => difference_error("the inputs", "an argument", "another kind of input"),
        }
    }

    fn compare_output(&mut self, i: usize, a: &'a OutputSpec<'p>, b: &'a OutputSpec<'p>) -> CompareResult {
        let x = written_output(a);
        let y = written_output(b);
        let location = format!("output {i}");
        let is_same = match (&x, &y) {
            (Some((kind, value, target)), Some((other_kind, other_value, other_target))) => {
                let targets = match (target, other_target) {
                    (Some(a), Some(b)) => {
                        self.stored.get(*a).map_or(*a, String::as_str) == *b
                            || self.values.get(*b).copied().unwrap_or(*b) == *a
                    }
                    (a, b) => a.is_none() && b.is_none(),
                };
                kind == other_kind && self.values.get(other_value) == Some(value) && targets
            }
            (x, y) => x.is_none() && y.is_none(),
        };
        if is_same { Ok(()) } else { difference_error(location, describe_output(&x), describe_output(&y)) }
    }

    fn compare_nodes(&mut self, a: &'a ExportedGraph<'p>, b: &'a ExportedGraph<'p>) -> CompareResult {
        for (x, y) in a.nodes.iter().zip(&b.nodes) {
            self.compare_node([a, b], x, y)?;
        }
        let common_count = a.nodes.len().min(b.nodes.len());
        let next_node = a.nodes.get(common_count);
        let other_next_node = b.nodes.get(common_count);
        if next_node.is_none() && other_next_node.is_none() {
            return Ok(());
        }
        let last_common = common_count.checked_sub(1).and_then(|i| a.nodes.get(i));
        let location =
            last_common.map_or("the first node".to_string(), |n| format!("after node `{}`", n.name()));
        difference_error(location, describe_node(next_node), describe_node(other_next_node))
    }

    fn compare_node(
        &mut self,
        graphs: [&'a ExportedGraph<'p>; 2],
        a: &'a ExportedNode<'p>,
        b: &'a ExportedNode<'p>,
    ) -> CompareResult {
        let location = format!("node `{}` ({})", a.name(), &*a.target);
        if a.target != b.target {
            let location = match (graphs[0].nodes.len(), graphs[1].nodes.len()) {
                (x, y) if x == y => format!("node `{}`", a.name()),
                (x, y) => format!("node `{}`, the first that differs of {x} and {y} nodes", a.name()),
            };
            return difference_error(location, describe_call(a), describe_call(b));
        }
        for i in 0..a.inputs.len().max(b.inputs.len()) {
            let x = a.inputs.get(i);
            let y = b.inputs.get(i);
            let (Some(x), Some(y)) = (x, y) else {
                let location = format!("{location}, argument {i}");
                return difference_error(location, describe_input(x), describe_input(y));
            };
            if x.name != y.name {
                return difference_error(format!("{location}, argument {i}"), &*x.name, &*y.name);
            }
            let lists = row_counts(x).zip(row_counts(y)).is_some_and(|(x, y)| x.len() == y.len());
            let same_kind = number_argument(graphs[0], x).is_some()
                && number_argument(graphs[1], y).is_some()
                || group_argument(x).is_some() && group_argument(y).is_some()
                || lists;
            if !same_kind {
                self.compare_argument(graphs, &format!("{location}, `{}`", &*x.name), &x.arg, &y.arg)?;
            }
        }
        compare_counts(&format!("results of {location}"), a.results().len(), b.results().len())?;
        for (x, y) in a.results().into_iter().zip(b.results()) {
            match (x, y) {
                (Some(x), Some(y)) => {
                    self.match_names(graphs, &location, x, y)?;
                    let x_extent = graphs[0].sym_int_values.get(x).map(describe_extent);
                    let y_extent = graphs[1].sym_int_values.get(y).map(describe_extent);
                    if x_extent != y_extent {
                        let x_extent = x_extent.unwrap_or("none".into());
                        let y_extent = y_extent.unwrap_or("none".into());
                        return difference_error(location, x_extent, y_extent);
                    }
                }
                (None, None) => {}
                (x, y) => {
                    return difference_error(location, x.unwrap_or("no result"), y.unwrap_or("no result"));
                }
            }
        }
        Ok(())
    }

    fn compare_argument(
        &mut self,
        graphs: [&'a ExportedGraph<'p>; 2],
        location: &str,
        a: &'a Argument<'p>,
        b: &'a Argument<'p>,
    ) -> CompareResult {
        let is_same = match (a, b) {
            (Argument::Tensor(x), Argument::Tensor(y)) => self.are_matched(x, y),
            (Argument::Tensors(x), Argument::Tensors(y)) => {
                x.len() == y.len() && x.iter().zip(y).all(|(x, y)| self.are_matched(x, y))
            }
            (Argument::OptionalTensors(x), Argument::OptionalTensors(y)) => {
                x.len() == y.len()
                    && x.iter().zip(y).all(|pair| match pair {
                        (Some(x), Some(y)) => self.are_matched(x, y),
                        (x, y) => x.is_none() && y.is_none(),
                    })
            }
            (Argument::SymInt(x), Argument::SymInt(y)) => is_same_sym_int(graphs, x, y),
            (Argument::SymBool(x), Argument::SymBool(y)) | (Argument::SymFloat(x), Argument::SymFloat(y)) => {
                x.as_name == y.as_name && x.as_bool == y.as_bool && x.as_float == y.as_float
            }
            (Argument::SymInts(x), Argument::SymInts(y)) => {
                x.len() == y.len() && x.iter().zip(y).all(|(x, y)| is_same_sym_int(graphs, x, y))
            }
            (Argument::Ints(x), Argument::Ints(y)) => x == y,
            (Argument::Floats(x), Argument::Floats(y)) => x == y,
            (Argument::Bools(x), Argument::Bools(y)) => x == y,
            (Argument::Int(x), Argument::Int(y)) => x == y,
            (Argument::Float(x), Argument::Float(y)) => x.to_bits() == y.to_bits(),
            (Argument::Bool(x), Argument::Bool(y)) => x == y,
            (Argument::Complex(a, b), Argument::Complex(x, y)) => {
                [a.to_bits(), b.to_bits()] == [x.to_bits(), y.to_bits()]
            }
            (Argument::String(x), Argument::String(y)) | (Argument::Other(x), Argument::Other(y)) => x == y,
            (Argument::Strings(x), Argument::Strings(y)) => x == y,
            (Argument::ScalarType(x), Argument::ScalarType(y)) => x == y,
            (Argument::Operator(x), Argument::Operator(y)) => x == y,
            (Argument::SymFloats(x), Argument::SymFloats(y)) => {
                x.len() == y.len()
                    && x.iter().zip(y).all(|(x, y)| {
                        x.as_name == y.as_name && x.as_float == y.as_float && x.as_int == y.as_int
                    })
            }
            (Argument::None, Argument::None) | (Argument::CustomObj(_), Argument::CustomObj(_)) => true,
            (Argument::Graph(x), Argument::Graph(y)) => return self.compare_wrapped_graphs(location, x, y),
            _ => false,
        };
        if is_same {
            Ok(())
        } else {
            difference_error(location, describe_argument(graphs[0], a), describe_argument(graphs[1], b))
        }
    }

    /// Whether a name in the first program and a name in the other mean the same value.
    fn are_matched(&self, first: &str, other: &str) -> bool {
        self.values.get(other).is_some_and(|matched| *matched == first)
    }

    fn compare_wrapped_graphs(
        &mut self,
        place: &str,
        a: &'a ExportedGraph<'p>,
        b: &'a ExportedGraph<'p>,
    ) -> CompareResult {
        compare_counts(&format!("inputs of {place}"), a.inputs.len(), b.inputs.len())?;
        for (x, y) in a.inputs.iter().zip(&b.inputs) {
            if let (Argument::Tensor(x), Argument::Tensor(y)) = (x, y) {
                self.match_names([a, b], place, x, y)?;
            }
        }
        self.compare_nodes(a, b)?;
        compare_counts(&format!("outputs of {place}"), a.outputs.len(), b.outputs.len())?;
        for (x, y) in a.outputs.iter().zip(&b.outputs) {
            self.compare_argument([a, b], place, x, y)?;
        }
        Ok(())
    }
}

fn describe_range(range: &RangeConstraint) -> String {
    let min = range.min_val.map_or("none".to_string(), |n| n.to_string());
    let max = range.max_val.map_or("none".to_string(), |n| n.to_string());
    format!("{min} to {max}")
}

fn describe_output(output: &Option<WrittenOutput<'_>>) -> String {
    match output {
        Some((kind, value, _)) => format!("{kind} of `{value}`"),
        None => "no tensor".to_string(),
    }
}

fn describe_node(node: Option<&ExportedNode<'_>>) -> String {
    match node {
        Some(node) => format!("node `{}` ({})", node.name(), &*node.target),
        None => "the end of the graph".to_string(),
    }
}

fn describe_input(input: Option<&NamedArgument<'_>>) -> String {
    match input {
        Some(input) => format!("`{}` = {}", &*input.name, input.arg.describe()),
        None => "none".into(),
    }
}

fn describe_call(node: &ExportedNode<'_>) -> String {
    let operands: Vec<&str> = node.inputs.iter().flat_map(|i| tensor_names(&i.arg)).collect();
    format!(
        "{} of {}",
        &*node.target,
        if operands.is_empty() { "no tensor".into() } else { operands.join(", ") }
    )
}

fn compare_counts(what: &str, a: usize, b: usize) -> CompareResult {
    if a == b {
        Ok(())
    } else {
        difference_error(format!("the number of {what}"), a.to_string(), b.to_string())
    }
}

fn describe_extent(size: &SymInt<'_>) -> String {
    match (&size.as_expr, size.as_int) {
        (Some(e), _) => e.expr_str.to_string(),
        (None, Some(i)) => i.to_string(),
        (None, None) => "?".into(),
    }
}

fn describe_type(meta: &TensorMeta<'_>) -> String {
    let dtype = crate::dtype::from_schema(meta.dtype).map_or_else(|name| name, |d| d.to_string());
    let sizes: Vec<String> = meta.sizes.iter().map(describe_extent).collect();
    let layout = if meta.layout == crate::schema::STRIDED { "" } else { " in another layout" };
    format!("{dtype}[{}]{layout}", sizes.join(", "))
}

fn describe_sym_int(graph: &ExportedGraph<'_>, s: &SymArgument<'_>) -> String {
    let named = s.as_name.as_ref().and_then(|n| graph.sym_int_values.get(&**n));
    named.map_or_else(|| s.to_string(), describe_extent)
}

fn is_same_sym_int(graphs: [&ExportedGraph<'_>; 2], a: &SymArgument<'_>, b: &SymArgument<'_>) -> bool {
    describe_sym_int(graphs[0], a) == describe_sym_int(graphs[1], b)
}

fn describe_argument(graph: &ExportedGraph<'_>, a: &Argument<'_>) -> String {
    match a {
        Argument::SymInt(s) => describe_sym_int(graph, s),
        Argument::SymInts(list) => {
            format!("[{}]", list.iter().map(|s| describe_sym_int(graph, s)).collect::<Vec<_>>().join(", "))
        }
        other => other.describe(),
    }
}

/// The kind, value and stored name of an input that is stored with the program.
fn stored_input<'a>(spec: &'a InputSpec<'_>) -> Option<(&'static str, &'a str, &'a str)> {
    if let Some(p) = &spec.parameter {
        return Some(("a parameter", &p.arg.name, &p.parameter_name));
    }
    if let Some(b) = &spec.buffer {
        return Some((
            if b.persistent { "a buffer" } else { "a buffer that is not persistent" },
            &b.arg.name,
            &b.buffer_name,
        ));
    }
    spec.tensor_constant.as_ref().map(|t| ("a constant", &*t.arg.name, &*t.tensor_constant_name))
}
