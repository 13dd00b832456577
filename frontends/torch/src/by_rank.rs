//! One program of the programs that the ranks exported, an archive for each.
//!
//! They must be one program but for names and data. A number that differs, such as the first row of a rank's part of a
//! vocabulary, becomes an argument that is known for each rank ([`ByRank`]); rules that take a tensor there take it, and
//! others refuse it by name. So do the lists of pieces that ranks exchange. Process groups that ranks call by different names are the cells of one group. Every other
//! difference is an error.

use std::collections::HashMap;

use indexmap::IndexMap;

use crate::error::{ImportError, Result};
use crate::numbers::{ByRank, Numbers};
use crate::parts;
use crate::schema::{
    Argument, Graph, InputSpec, NamedArgument, Node, OutputSpec, Program, Str, SymArgument, SymInt,
    ValueMeta, Written, written,
};
use crate::scope::tensor_names;

/// What the names of a rank's program are in that of rank 0.
pub(crate) struct Names {
    /// The names under which the rank stores what rank 0 stores under these.
    pub stored: HashMap<String, String>,
}

/// What comes of several programs besides the first, which was changed to be that of all ranks.
pub(crate) struct Merged {
    /// For the programs after the first.
    pub names: Vec<Names>,
    /// The cells of groups by the names that rank 0 gives them.
    pub groups: IndexMap<String, Vec<Vec<u32>>>,
}

pub(crate) fn merge<'p>(programs: &mut [Program<'p>]) -> Result<Merged> {
    let mut names = Vec::new();
    if programs.len() > 1 {
        programs.iter_mut().for_each(parts::unify);
    }
    let Some((first, others)) = programs.split_first_mut() else {
        return Ok(Merged { names, groups: IndexMap::new() });
    };
    let mut numbers = vec![numbers_of(first)];
    let mut lists = vec![collect(first, pieces)];
    let mut called = vec![collect(first, group)];
    for (i, other) in others.iter().enumerate() {
        names.push(Comparison::new(first, other).run().map_err(|e| e.of_rank(i + 1))?);
        numbers.push(numbers_of(other));
        lists.push(collect(other, pieces));
        called.push(collect(other, group));
    }
    let groups = cells(first, &called)?;
    let (mut at, mut list) = (0, 0);
    visit_mut(&mut first.graph_module.graph, &mut |node, input| {
        let differing = if is_number(input) {
            at += 1;
            differing(&numbers.iter().filter_map(|n| n.get(at - 1)).collect::<Vec<_>>())
        } else if pieces(input).is_some() {
            list += 1;
            differing_pieces(lists.iter().filter_map(|l| l.get(list - 1)).collect())
        } else {
            None
        };
        if let Some(numbers) = differing {
            let name = format!("by_rank.{node}.{}", &*input.name);
            input.arg = Argument::ByRank(ByRank { name, numbers });
        }
    });
    Ok(Merged { names, groups })
}

#[derive(Clone, PartialEq)]
enum Number {
    Int(i64),
    Float(f64),
    /// A size, as the program writes it.
    Expression(String),
}

fn number(graph: &Graph<'_>, input: &NamedArgument<'_>) -> Option<Number> {
    match &input.arg {
        Argument::Int(i) => Some(Number::Int(*i)),
        Argument::Float(x) => Some(Number::Float(*x)),
        Argument::SymInt(SymArgument { as_name: None, as_int: Some(i), .. }) => Some(Number::Int(*i)),
        Argument::SymInt(SymArgument { as_name: Some(name), .. }) => {
            let value = graph.sym_int_values.get(&**name)?;
            match (&value.as_expr, value.as_int) {
                (Some(e), _) => Some(Number::Expression(e.expr_str.to_string())),
                (None, Some(i)) => Some(Number::Int(i)),
                (None, None) => None,
            }
        }
        _ => None,
    }
}

fn is_number(input: &NamedArgument<'_>) -> bool {
    matches!(&input.arg, Argument::Int(_) | Argument::Float(_) | Argument::SymInt(_))
}

/// What each argument that may be a number is.
fn numbers_of(program: &Program<'_>) -> Vec<Option<Number>> {
    fn visit(graph: &Graph<'_>, out: &mut Vec<Option<Number>>) {
        for input in graph.nodes.iter().flat_map(|n| &n.inputs) {
            match &input.arg {
                Argument::Graph(inner) => visit(inner, out),
                _ if is_number(input) => out.push(number(graph, input)),
                _ => {}
            }
        }
    }
    let mut out = Vec::new();
    visit(&program.graph_module.graph, &mut out);
    out
}

/// How many rows a rank exchanges with each.
#[derive(Clone, PartialEq)]
enum Piece {
    Known(i64),
    Named(String),
}

/// The pieces of an exchange, where an argument says which: other ones on each rank, as a rule.
fn pieces(input: &NamedArgument<'_>) -> Option<Vec<Piece>> {
    if !matches!(&*input.name, "input_split_sizes" | "output_split_sizes") {
        return None;
    }
    let piece = |s: &SymArgument<'_>| match (&s.as_name, s.as_int) {
        (Some(name), _) => Some(Piece::Named(name.to_string())),
        (None, known) => known.map(Piece::Known),
    };
    match &input.arg {
        Argument::Ints(v) => Some(v.iter().copied().map(Piece::Known).collect()),
        Argument::SymInts(v) => v.iter().map(piece).collect(),
        _ => None,
    }
}

/// The lists, if they are not all the same.
fn differing_pieces(of_ranks: Vec<&Vec<Piece>>) -> Option<Numbers> {
    if of_ranks.windows(2).all(|w| w[0] == w[1]) {
        return None;
    }
    let known = |piece: &Piece| match piece {
        Piece::Known(rows) => Some(*rows),
        Piece::Named(_) => None,
    };
    Some(Numbers::Lists(of_ranks.into_iter().map(|list| list.iter().map(known).collect()).collect()))
}

/// The numbers, if they are not all the same.
fn differing(of_ranks: &[&Option<Number>]) -> Option<Numbers> {
    let of_ranks: Vec<&Number> = of_ranks.iter().map(|n| n.as_ref()).collect::<Option<_>>()?;
    let same = |a: &Number, b: &Number| match (a, b) {
        (Number::Float(a), Number::Float(b)) => a.to_bits() == b.to_bits(),
        _ => a == b,
    };
    if of_ranks.windows(2).all(|w| same(w[0], w[1])) {
        return None;
    }
    let int = |n: &&Number| if let Number::Int(i) = n { Some(*i) } else { None };
    if let Some(ints) = of_ranks.iter().map(int).collect() {
        return Some(Numbers::Ints(ints));
    }
    let float = |n: &&Number| match n {
        Number::Int(i) => Some(*i as f64),
        Number::Float(x) => Some(*x),
        Number::Expression(_) => None,
    };
    if let Some(floats) = of_ranks.iter().map(float).collect() {
        return Some(Numbers::Floats(floats));
    }
    let text = |n: &&Number| match n {
        Number::Int(i) => format!("Integer({i})"),
        Number::Float(x) => format!("Float({x:?})"),
        Number::Expression(text) => text.clone(),
    };
    Some(Numbers::Expressions(of_ranks.iter().map(text).collect()))
}

fn group(input: &NamedArgument<'_>) -> Option<String> {
    match &input.arg {
        Argument::String(s) if matches!(&*input.name, "group" | "group_name") => Some(s.to_string()),
        _ => None,
    }
}

pub(crate) fn found<'p>(program: &'p Program<'p>) -> Vec<&'p ByRank> {
    fn visit<'p>(graph: &'p Graph<'p>, out: &mut Vec<&'p ByRank>) {
        for input in graph.nodes.iter().flat_map(|n| &n.inputs) {
            match &input.arg {
                Argument::Graph(inner) => visit(inner, out),
                Argument::ByRank(number) => out.push(number),
                _ => {}
            }
        }
    }
    let mut out = Vec::new();
    visit(&program.graph_module.graph, &mut out);
    out
}

/// What `pick` takes of all arguments, in their order.
fn collect<T>(program: &Program<'_>, pick: impl Fn(&NamedArgument<'_>) -> Option<T>) -> Vec<T> {
    fn visit<T>(graph: &Graph<'_>, pick: &impl Fn(&NamedArgument<'_>) -> Option<T>, out: &mut Vec<T>) {
        for input in graph.nodes.iter().flat_map(|n| &n.inputs) {
            match &input.arg {
                Argument::Graph(inner) => visit(inner, pick, out),
                _ => out.extend(pick(input)),
            }
        }
    }
    let mut out = Vec::new();
    visit(&program.graph_module.graph, &pick, &mut out);
    out
}

/// Visits all arguments in the order of [`collect`].
fn visit_mut<'p>(graph: &mut Graph<'p>, change: &mut impl FnMut(&str, &mut NamedArgument<'p>)) {
    for node in &mut graph.nodes {
        let name = node.name().to_string();
        for input in &mut node.inputs {
            match &mut input.arg {
                Argument::Graph(inner) => visit_mut(inner, change),
                _ => change(&name, input),
            }
        }
    }
}

/// The cells of groups that ranks call by different names: a cell has the ranks that use one name.
fn cells(first: &Program<'_>, called: &[Vec<String>]) -> Result<IndexMap<String, Vec<Vec<u32>>>> {
    let mut groups: IndexMap<String, Vec<Vec<u32>>> = IndexMap::new();
    for (at, name) in collect(first, group).into_iter().enumerate() {
        let mut cells: IndexMap<&str, Vec<u32>> = IndexMap::new();
        for (rank, of_rank) in called.iter().enumerate() {
            if let Some(name) = of_rank.get(at) {
                cells.entry(name).or_default().push(rank as u32);
            }
        }
        let cells: Vec<Vec<u32>> = cells.into_values().collect();
        match groups.get(&name) {
            Some(known) if *known != cells => {
                return Err(ImportError::Group {
                    group: name,
                    message: format!("the names that ranks give it mean {known:?} and {cells:?}"),
                });
            }
            Some(_) => {}
            None => drop(groups.insert(name, cells)),
        }
    }
    groups.retain(|_, cells| cells.len() > 1);
    Ok(groups)
}

struct Comparison<'a, 'p> {
    first: &'a Program<'p>,
    other: &'a Program<'p>,
    /// The names of values: the other's, and what the first calls them.
    values: HashMap<&'a str, &'a str>,
    /// The names of stored tensors: the first's, and what the other calls them.
    stored: HashMap<String, String>,
}

type Compared = Result<()>;

fn differs<T>(place: impl Into<String>, first: impl Into<String>, other: impl Into<String>) -> Result<T> {
    Err(ImportError::Difference { place: place.into(), first: first.into(), found: other.into() })
}

impl<'a, 'p> Comparison<'a, 'p> {
    fn new(first: &'a Program<'p>, other: &'a Program<'p>) -> Self {
        Comparison { first, other, values: HashMap::new(), stored: HashMap::new() }
    }

    fn run(mut self) -> Result<Names> {
        let (first, other) = (self.first, self.other);
        for (symbol, range) in &first.range_constraints {
            let found = other.range_constraints.get(symbol);
            let end = |n: Option<i64>| n.map_or("none".to_string(), |n| n.to_string());
            let bounds = |r: &crate::schema::Range| format!("{} to {}", end(r.min_val), end(r.max_val));
            if found.map(|r| (r.min_val, r.max_val)) != Some((range.min_val, range.max_val)) {
                let found = found.map_or("none".into(), bounds);
                return differs(format!("the range of symbol `{}`", &**symbol), bounds(range), found);
            }
        }
        let (a, b) = (&first.graph_module, &other.graph_module);
        count("inputs", a.signature.input_specs.len(), b.signature.input_specs.len())?;
        for (a, b) in a.signature.input_specs.iter().zip(&b.signature.input_specs) {
            self.input(a, b)?;
        }
        self.nodes(&a.graph, &b.graph)?;
        count("outputs", a.signature.output_specs.len(), b.signature.output_specs.len())?;
        for (i, (a, b)) in a.signature.output_specs.iter().zip(&b.signature.output_specs).enumerate() {
            self.output(i, a, b)?;
        }
        Ok(Names { stored: self.stored })
    }

    /// Takes two names for one value, which must have one type.
    fn bind(&mut self, graphs: [&'a Graph<'p>; 2], place: &str, a: &'a str, b: &'a str) -> Compared {
        self.values.insert(b, a);
        let (x, y) = (graphs[0].tensor_values.get(a), graphs[1].tensor_values.get(b));
        let (x, y) = (x.map_or("none".into(), ty), y.map_or("none".into(), ty));
        if x == y { Ok(()) } else { differs(format!("{place}, the type of `{a}`"), x, y) }
    }

    fn input(&mut self, a: &'a InputSpec<'p>, b: &'a InputSpec<'p>) -> Compared {
        let graphs = [&self.first.graph_module.graph, &self.other.graph_module.graph];
        if let (Some(a), Some(b)) = (&a.user_input, &b.user_input) {
            return match (&a.arg, &b.arg) {
                (Argument::Tensor(a), Argument::Tensor(b)) => self.bind(graphs, "the arguments", a, b),
                (Argument::Int(a), Argument::Int(b)) if a != b => {
                    differs("an argument of the program", a.to_string(), b.to_string())
                }
                (a, b) => self.argument(graphs, "the arguments", a, b),
            };
        }
        match (stored(a), stored(b)) {
            (Some((kind, value, name)), Some((other_kind, other_value, other_name)))
                if kind == other_kind =>
            {
                self.stored.insert(name.to_string(), other_name.to_string());
                self.bind(graphs, &format!("`{name}`"), value, other_value)
            }
            (Some((kind, _, name)), _) => {
                differs(format!("the input `{name}`"), kind, "another kind of input")
            }
            (None, Some((kind, _, name))) => differs(format!("the input `{name}`"), "another kind", kind),
            (None, None) if a.user_input.is_some() == b.user_input.is_some() => Ok(()),
            (None, None) => differs("the inputs", "an argument", "another kind of input"),
        }
    }

    fn output(&mut self, i: usize, a: &'a OutputSpec<'p>, b: &'a OutputSpec<'p>) -> Compared {
        let (x, y) = (written(a), written(b));
        let place = format!("output {i}");
        let same = match (&x, &y) {
            (Some((kind, value, target)), Some((other_kind, other_value, other_target))) => {
                let target_of = |t: &str| self.stored.get(t).map_or(t.to_string(), String::clone);
                let argument = |t: &str| self.values.get(t).map_or(t.to_string(), |n| n.to_string());
                let targets = match (target, other_target) {
                    (Some(a), Some(b)) => target_of(a) == *b || argument(b) == *a,
                    (a, b) => a.is_none() && b.is_none(),
                };
                kind == other_kind && self.values.get(other_value) == Some(value) && targets
            }
            (x, y) => x.is_none() && y.is_none(),
        };
        let show = |w: &Option<Written<'_>>| {
            w.as_ref().map_or("no tensor".to_string(), |(kind, value, _)| format!("{kind} of `{value}`"))
        };
        if same { Ok(()) } else { differs(place, show(&x), show(&y)) }
    }

    fn nodes(&mut self, a: &'a Graph<'p>, b: &'a Graph<'p>) -> Compared {
        for (x, y) in a.nodes.iter().zip(&b.nodes) {
            self.node([a, b], x, y)?;
        }
        let both = a.nodes.len().min(b.nodes.len());
        let (one, other) = (a.nodes.get(both), b.nodes.get(both));
        if one.is_none() && other.is_none() {
            return Ok(());
        }
        let text = |node: Option<&Node>| {
            node.map_or("the end of the graph".to_string(), |n| {
                format!("node `{}` ({})", n.name(), &*n.target)
            })
        };
        let last = both.checked_sub(1).and_then(|at| a.nodes.get(at));
        let place = last.map_or("the first node".to_string(), |n| format!("after node `{}`", n.name()));
        differs(place, text(one), text(other))
    }

    fn node(&mut self, graphs: [&'a Graph<'p>; 2], a: &'a Node<'p>, b: &'a Node<'p>) -> Compared {
        let place = format!("node `{}` ({})", a.name(), &*a.target);
        if a.target != b.target {
            let place = match (graphs[0].nodes.len(), graphs[1].nodes.len()) {
                (x, y) if x == y => format!("node `{}`", a.name()),
                (x, y) => format!("node `{}`, the first that differs of {x} and {y} nodes", a.name()),
            };
            return differs(place, called(a), called(b));
        }
        for i in 0..a.inputs.len().max(b.inputs.len()) {
            let (x, y) = (a.inputs.get(i), b.inputs.get(i));
            let (Some(x), Some(y)) = (x, y) else {
                let show = |i: Option<&NamedArgument<'_>>| {
                    i.map_or("none".into(), |i| format!("`{}` = {}", &*i.name, i.arg.describe()))
                };
                return differs(format!("{place}, argument {i}"), show(x), show(y));
            };
            if x.name != y.name {
                return differs(format!("{place}, argument {i}"), &*x.name, &*y.name);
            }
            let lists = pieces(x).zip(pieces(y)).is_some_and(|(x, y)| x.len() == y.len());
            let same_kind = number(graphs[0], x).is_some() && number(graphs[1], y).is_some()
                || group(x).is_some() && group(y).is_some()
                || lists;
            if !same_kind {
                self.argument(graphs, &format!("{place}, `{}`", &*x.name), &x.arg, &y.arg)?;
            }
        }
        count(&format!("results of {place}"), a.results().len(), b.results().len())?;
        for (x, y) in a.results().into_iter().zip(b.results()) {
            match (x, y) {
                (Some(x), Some(y)) => {
                    self.bind(graphs, &place, x, y)?;
                    let value = |g: &Graph<'_>, n: &str| g.sym_int_values.get(n).map(extent);
                    if value(graphs[0], x) != value(graphs[1], y) {
                        let show = |v: Option<String>| v.unwrap_or("none".into());
                        return differs(place, show(value(graphs[0], x)), show(value(graphs[1], y)));
                    }
                }
                (None, None) => {}
                (x, y) => return differs(place, x.unwrap_or("no result"), y.unwrap_or("no result")),
            }
        }
        Ok(())
    }

    fn argument(
        &mut self,
        graphs: [&'a Graph<'p>; 2],
        place: &str,
        a: &'a Argument<'p>,
        b: &'a Argument<'p>,
    ) -> Compared {
        let named = |n: &Str<'p>| self.values.get(&**n).copied();
        let all = |x: &[Str<'p>], y: &[Str<'p>]| {
            x.len() == y.len() && x.iter().zip(y).all(|(x, y)| named(y) == Some(x))
        };
        let same = match (a, b) {
            (Argument::Tensor(x), Argument::Tensor(y)) => named(y) == Some(x),
            (Argument::Tensors(x), Argument::Tensors(y)) => all(x, y),
            (Argument::OptionalTensors(x), Argument::OptionalTensors(y)) => {
                let one = |(x, y): (&Option<Str<'p>>, &Option<Str<'p>>)| match (x, y) {
                    (Some(x), Some(y)) => named(y) == Some(x),
                    (x, y) => x.is_none() && y.is_none(),
                };
                x.len() == y.len() && x.iter().zip(y).all(one)
            }
            (Argument::SymInt(x), Argument::SymInt(y)) => sym(graphs, x, y),
            (Argument::SymBool(x), Argument::SymBool(y)) | (Argument::SymFloat(x), Argument::SymFloat(y)) => {
                x.as_name == y.as_name && x.as_bool == y.as_bool && x.as_float == y.as_float
            }
            (Argument::SymInts(x), Argument::SymInts(y)) => {
                x.len() == y.len() && x.iter().zip(y).all(|(x, y)| sym(graphs, x, y))
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
            (Argument::ScalarType(x), Argument::ScalarType(y)) => x == y,
            (Argument::Operator(x), Argument::Operator(y)) => x == y,
            (Argument::SymFloats(x), Argument::SymFloats(y)) => {
                let one = |(x, y): (&SymArgument<'p>, &SymArgument<'p>)| {
                    x.as_name == y.as_name && x.as_float == y.as_float && x.as_int == y.as_int
                };
                x.len() == y.len() && x.iter().zip(y).all(one)
            }
            (Argument::None, Argument::None) | (Argument::CustomObj(_), Argument::CustomObj(_)) => true,
            (Argument::Graph(x), Argument::Graph(y)) => return self.wrapped(place, x, y),
            _ => false,
        };
        if same { Ok(()) } else { differs(place, shown(graphs[0], a), shown(graphs[1], b)) }
    }

    fn wrapped(&mut self, place: &str, a: &'a Graph<'p>, b: &'a Graph<'p>) -> Compared {
        count(&format!("inputs of {place}"), a.inputs.len(), b.inputs.len())?;
        for (x, y) in a.inputs.iter().zip(&b.inputs) {
            if let (Argument::Tensor(x), Argument::Tensor(y)) = (x, y) {
                self.bind([a, b], place, x, y)?;
            }
        }
        self.nodes(a, b)?;
        count(&format!("outputs of {place}"), a.outputs.len(), b.outputs.len())?;
        for (x, y) in a.outputs.iter().zip(&b.outputs) {
            self.argument([a, b], place, x, y)?;
        }
        Ok(())
    }
}

fn called(node: &Node<'_>) -> String {
    let operands: Vec<&str> = node.inputs.iter().flat_map(|i| tensor_names(&i.arg)).collect();
    format!(
        "{} of {}",
        &*node.target,
        if operands.is_empty() { "no tensor".into() } else { operands.join(", ") }
    )
}

fn count(what: &str, a: usize, b: usize) -> Compared {
    if a == b { Ok(()) } else { differs(format!("the number of {what}"), a.to_string(), b.to_string()) }
}

fn extent(size: &SymInt<'_>) -> String {
    match (&size.as_expr, size.as_int) {
        (Some(e), _) => e.expr_str.to_string(),
        (None, Some(i)) => i.to_string(),
        (None, None) => "?".into(),
    }
}

fn ty(meta: &ValueMeta<'_>) -> String {
    let dtype = crate::dtype::from_schema(meta.dtype).map_or_else(|name| name, |d| d.to_string());
    let sizes: Vec<String> = meta.sizes.iter().map(extent).collect();
    let layout = if meta.layout == crate::schema::STRIDED { "" } else { " in another layout" };
    format!("{dtype}[{}]{layout}", sizes.join(", "))
}

fn value(graph: &Graph<'_>, s: &SymArgument<'_>) -> String {
    let named = s.as_name.as_ref().and_then(|n| graph.sym_int_values.get(&**n));
    named.map_or_else(|| s.to_string(), extent)
}

fn sym(graphs: [&Graph<'_>; 2], a: &SymArgument<'_>, b: &SymArgument<'_>) -> bool {
    value(graphs[0], a) == value(graphs[1], b)
}

fn shown(graph: &Graph<'_>, a: &Argument<'_>) -> String {
    match a {
        Argument::SymInt(s) => value(graph, s),
        Argument::SymInts(list) => {
            format!("[{}]", list.iter().map(|s| value(graph, s)).collect::<Vec<_>>().join(", "))
        }
        other => other.describe(),
    }
}

/// The kind, value and stored name of an input that is stored with the program.
fn stored<'a>(spec: &'a InputSpec<'_>) -> Option<(&'static str, &'a str, &'a str)> {
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
