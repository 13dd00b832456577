//! Replaces calls of custom ops by their definitions ([`crate::definition`]).
//!
//! The text gets the values of the call and is parsed. The symbols of the definition get the extents of the
//! tensors: an extent that is a symbol alone determines it. A symbol with the name of an integer argument is
//! that argument, and other symbols may be determined by the declared extents of results. The nodes are then
//! added to the program with dims, groups and custom ops of the program.

use std::collections::HashMap;

use indexmap::IndexMap;
use symmc_import::{Emit, RuleCall};
use symmc_ir::dim::check_shape_complexity;
use symmc_ir::entity::Entity;
use symmc_ir::text::{self, op_dims_mut};
use symmc_ir::{Dim, Graph, GroupId, GroupMembers, InputKind, Op, OutputKind, SymbolId, TensorType, ValueId};

use crate::aliasing::separate_custom_results;
use crate::call::OpCall;
use crate::custom_schema::{AcceptedValue, DeclaredArgument};
use crate::definition::{OpDefinition, Placeholder, TextPiece};
use crate::literal::Literal;
use crate::lower::{RuleFailure, RuleResult};
use crate::schema::Argument;

/// The value of an argument of a call.
#[derive(Clone, Debug)]
enum CallValue {
    Absent,
    Tensor(ValueId),
    Literal(Literal),
    /// An integer that is an expression of the program's symbols.
    Dim(Dim),
    /// Another value, with a description, of an argument that does not matter.
    Other(String),
}

type CallValues<'d> = IndexMap<&'d str, CallValue>;

/// Why a definition does not replace a call.
enum DefinitionRefusal {
    /// The definition does not accept the call. Another definition may.
    Mismatch(String),
    /// The call or the definition is invalid.
    Failure(RuleFailure),
}

impl From<RuleFailure> for DefinitionRefusal {
    fn from(failure: RuleFailure) -> Self {
        DefinitionRefusal::Failure(failure)
    }
}

fn mismatch<T>(why: String) -> Result<T, DefinitionRefusal> {
    Err(DefinitionRefusal::Mismatch(why))
}

fn invalid<T>(message: String) -> RuleResult<T> {
    Err(RuleFailure::Invalid(message))
}

/// Lowers a call by the first of the definitions that accepts it. Sets the results of the call: first the
/// `own_results` new tensors that the op returns, then the new contents of the arguments that it writes. An
/// argument without new contents keeps its place.
pub(crate) fn lower_by_definition(
    c: &mut OpCall<'_, '_>,
    definitions: &[OpDefinition],
    own_results: usize,
) -> RuleResult {
    let mut mismatches = Vec::new();
    for definition in definitions {
        let values = read_arguments(c, definition)?;
        match instantiate(c, definition, &values) {
            Ok(graph) => return expand(c, definition, &values, &graph, own_results),
            Err(DefinitionRefusal::Mismatch(why)) => mismatches.push(why),
            Err(DefinitionRefusal::Failure(failure)) => return Err(failure),
        }
    }
    match mismatches.as_slice() {
        [one] => invalid(format!("the definition does not accept the call: {one}")),
        refusals => invalid(format!("no definition accepts the call: {}", refusals.join("; "))),
    }
}

fn read_arguments<'d>(c: &OpCall<'_, '_>, definition: &'d OpDefinition) -> RuleResult<CallValues<'d>> {
    let mut values = CallValues::new();
    for argument in &definition.declared.arguments {
        values.insert(&argument.name, read_argument(c, argument)?);
    }
    Ok(values)
}

fn read_argument(c: &OpCall<'_, '_>, argument: &DeclaredArgument) -> RuleResult<CallValue> {
    let name = &argument.name;
    if argument.is_tensor() {
        return match c.opt_tensor(name)? {
            Some(value) => Ok(CallValue::Tensor(value)),
            None if argument.ty.ends_with('?') => Ok(CallValue::Absent),
            None => invalid(format!("expected a tensor as `{name}`, found none")),
        };
    }
    let Some(argument_value) = c.stated_argument(name) else {
        return match &argument.default {
            Some(default) => Ok(CallValue::Literal(default.clone())),
            None => invalid(format!(
                "expected an argument `{name}`, found none, and the schema of the definition states no default"
            )),
        };
    };
    let value = match argument_value {
        Argument::SymInt(_) => {
            let dim = c.dim_from_argument(name, argument_value)?;
            dim.as_const().map_or(CallValue::Dim(dim), |i| CallValue::Literal(Literal::Int(i)))
        }
        Argument::ByRank(by_rank) => {
            let numbers = by_rank.numbers.describe();
            return invalid(format!("expected the same `{name}` on all ranks, found {numbers}"));
        }
        // The archive has one form for all empty lists.
        Argument::Tensors(items) if items.is_empty() => CallValue::Literal(Literal::List(Vec::new())),
        other => match Literal::from_argument(other) {
            Some(literal) => CallValue::Literal(literal),
            None => CallValue::Other(other.describe()),
        },
    };
    let fits = match &value {
        CallValue::Literal(literal) => literal.fits(&argument.ty),
        CallValue::Dim(_) => Literal::Int(0).fits(&argument.ty),
        CallValue::Other(_) => argument.accepted == Some(AcceptedValue::Any),
        _ => true,
    };
    if fits {
        return Ok(value);
    }
    invalid(format!("expected `{name}` of the type {}, found {}", argument.ty, argument_value.describe()))
}

/// The program of a definition with the values of a call.
fn instantiate(
    c: &OpCall<'_, '_>,
    definition: &OpDefinition,
    values: &CallValues<'_>,
) -> Result<Graph, DefinitionRefusal> {
    if let Some(why) = find_refused_value(definition, values) {
        return mismatch(why);
    }
    let mut program_text = String::new();
    for piece in &definition.pieces {
        match piece {
            TextPiece::Text(text) => program_text.push_str(text),
            TextPiece::Placeholder(placeholder) => {
                let name = placeholder.argument();
                match values.get(name) {
                    Some(CallValue::Absent) => {
                        return mismatch(format!("expected a tensor as `{name}`, found none"));
                    }
                    Some(CallValue::Literal(Literal::None)) => {
                        return mismatch(format!("expected a value of `{name}`, found none"));
                    }
                    Some(value) => program_text.push_str(&placeholder_text(c, placeholder, value)?),
                    None => {}
                }
            }
        }
    }
    let graph =
        text::parse(&program_text).map_err(|e| RuleFailure::Invalid(format!("the definition, {e}")))?;
    for (name, value) in values {
        let matters = accepted(definition, name).is_none();
        match value {
            CallValue::Tensor(_) if matters && find_argument(&graph, name).is_none() => {
                return mismatch(format!("the call gives `{name}`, which the definition does not take"));
            }
            CallValue::Absent if find_argument(&graph, name).is_some() => {
                return mismatch(format!("expected a tensor as `{name}`, found none"));
            }
            CallValue::Literal(Literal::None) if matters && has_symbol(&graph, name) => {
                return mismatch(format!("expected an integer as `{name}`, found none"));
            }
            _ => {}
        }
    }
    Ok(graph)
}

fn has_symbol(graph: &Graph, name: &str) -> bool {
    graph.symbols.values().any(|symbol| symbol.name == name)
}

fn accepted<'d>(definition: &'d OpDefinition, name: &str) -> Option<&'d AcceptedValue> {
    let argument = definition.declared.arguments.iter().find(|a| a.name == name);
    argument.and_then(|a| a.accepted.as_ref())
}

/// The first argument whose value is not the one that the definition accepts.
fn find_refused_value(definition: &OpDefinition, values: &CallValues<'_>) -> Option<String> {
    definition.declared.arguments.iter().find_map(|argument| {
        let Some(AcceptedValue::Only(expected)) = &argument.accepted else { return None };
        let name = &argument.name;
        let actual = match values.get(name.as_str())? {
            CallValue::Literal(actual) if actual.agrees_with(expected) => return None,
            CallValue::Absent if *expected == Literal::None => return None,
            CallValue::Absent => "none".into(),
            CallValue::Literal(actual) => actual.to_string(),
            CallValue::Tensor(_) => "a tensor".into(),
            CallValue::Dim(_) => "a symbolic integer".into(),
            CallValue::Other(actual) => actual.clone(),
        };
        Some(format!("expected {expected} as `{name}`, found {actual}"))
    })
}

fn placeholder_text(c: &OpCall<'_, '_>, placeholder: &Placeholder, value: &CallValue) -> RuleResult<String> {
    let graph = c.lowering.builder.graph();
    match (placeholder, value) {
        (Placeholder::Dtype(_), CallValue::Tensor(value)) => Ok(c.dtype(*value).to_string()),
        (Placeholder::Extent(name, axis), CallValue::Tensor(value)) => {
            let shape = &graph.ty(*value).shape;
            match shape.get(*axis).map(|dim| (dim, dim.as_const())) {
                Some((_, Some(extent))) => Ok(extent.to_string()),
                Some((dim, None)) => {
                    let extent = dim.display(&graph.symbols);
                    invalid(format!(
                        "expected a number as extent {axis} of `{name}`, as the definition uses `${name}.{axis}`, \
                         found `{extent}`; a symbol of the definition can be any extent"
                    ))
                }
                None => invalid(format!("expected an axis {axis} of `{name}`, found {} axes", shape.len())),
            }
        }
        (
            Placeholder::Cells(name) | Placeholder::GroupSize(name),
            CallValue::Literal(Literal::Text(group)),
        ) => {
            let Some(&id) = c.lowering.groups.get(group.as_str()) else {
                return invalid(format!("expected a group as `{name}`, found {group:?}"));
            };
            let Some(cells) = graph.cells(id) else {
                return invalid(format!(
                    "group `{group}` needs the number of ranks, which the program does not fix"
                ));
            };
            Ok(match placeholder {
                Placeholder::GroupSize(_) => cells.first().map_or(0, Vec::len).to_string(),
                _ => format!("{cells:?}"),
            })
        }
        (Placeholder::Value(name), CallValue::Literal(literal)) => {
            literal.program_text().or_else(|why| invalid(format!("`{name}` in the definition: {why}")))
        }
        (Placeholder::Value(name), CallValue::Dim(dim)) => {
            let extent = dim.display(&graph.symbols);
            invalid(format!(
                "expected a number as `{name}`, as the definition uses `${name}`, found `{extent}`; a symbol \
                 `{name}` of the definition can be any integer"
            ))
        }
        (placeholder, value) => {
            let name = placeholder.argument();
            let actual = match value {
                CallValue::Other(actual) => actual.clone(),
                CallValue::Literal(literal) => literal.to_string(),
                _ => "none".into(),
            };
            invalid(format!("the definition cannot use `{name}`: found {actual}"))
        }
    }
}

/// The type of the argument of a definition.
fn find_argument<'g>(graph: &'g Graph, name: &str) -> Option<&'g TensorType> {
    let mut arguments = graph.inputs.values().filter(|input| input.kind == InputKind::Argument);
    arguments.find(|input| graph.value_name(input.value) == name).map(|input| graph.ty(input.value))
}

/// The dims, groups and custom ops of the program for those of a definition.
struct Expansion<'g> {
    definition: &'g Graph,
    symbols: HashMap<SymbolId, Dim>,
}

impl Expansion<'_> {
    fn dim(&self, dim: &Dim) -> Dim {
        dim.substitute(&|symbol| self.symbols.get(&symbol).cloned().unwrap_or_else(|| symbol.into()))
    }

    fn ty(&self, ty: &TensorType) -> TensorType {
        TensorType::new(ty.dtype, ty.shape.iter().map(|dim| self.dim(dim)).collect::<Vec<_>>())
    }

    /// Determines symbols that are extents alone.
    fn bind_extents(&mut self, ty: &TensorType, shape: &[Dim]) {
        for (dim, extent) in ty.shape.iter().zip(shape) {
            if let &[symbol] = dim.symbols().as_slice()
                && *dim == Dim::from(symbol)
            {
                self.symbols.entry(symbol).or_insert_with(|| extent.clone());
            }
        }
    }
}

fn expand(
    c: &mut OpCall<'_, '_>,
    definition: &OpDefinition,
    values: &CallValues<'_>,
    graph: &Graph,
    own_results: usize,
) -> RuleResult {
    check_supported(c, definition, values, graph)?;
    let results = read_results(definition, graph, own_results)?;
    let mut expansion = Expansion { definition: graph, symbols: HashMap::new() };
    bind_symbols(c, &mut expansion, values, &results.returned)?;
    check_arguments(c, &expansion, values)?;
    let groups = map_groups(c, graph)?;
    map_customs(c, graph, &groups)?;
    let new = add_nodes(c, &expansion, values, &groups)?;
    let slots = results.returned.into_iter().map(Some).chain(results.written);
    for (i, output) in slots.enumerate() {
        if let Some(&value) = output.and_then(|output| new.get(&output)) {
            c.set_result(i, value);
        }
    }
    separate_custom_results(c)
}

/// Rejects definitions that ignore an argument, and programs that are no definitions.
fn check_supported(
    c: &OpCall<'_, '_>,
    definition: &OpDefinition,
    values: &CallValues<'_>,
    graph: &Graph,
) -> RuleResult {
    for argument in &definition.declared.arguments {
        let name = argument.name.as_str();
        let matters = argument.accepted.is_none() && !argument.is_tensor();
        if matters && !has_symbol(graph, name) && !definition.has_placeholder_of(name) {
            let ty = &argument.ty;
            return invalid(format!(
                "the definition does not use `{name}`: state in its schema the value for which it holds \
                 (`{ty} {name} == …`), or `== any`"
            ));
        }
    }
    for input in graph.inputs.values() {
        let name = graph.value_name(input.value);
        match input.kind {
            InputKind::Constant => {}
            InputKind::Parameter => return invalid(format!("the definition has a parameter `{name}`")),
            InputKind::Argument if matches!(values.get(name), Some(CallValue::Tensor(_))) => {}
            InputKind::Argument => {
                return invalid(format!(
                    "the argument `{name}` of the definition is no tensor of its schema"
                ));
            }
        }
    }
    if !graph.dispatches.is_empty() {
        return invalid("the definition has dispatches, which are not supported".into());
    }
    let program = c.lowering.builder.graph().ranks;
    match (graph.ranks, program) {
        (Some(expected), Some(ranks)) if expected != ranks => {
            invalid(format!("the definition is for {expected} ranks, the program has {ranks}"))
        }
        (Some(expected), None) => invalid(format!(
            "the definition is for {expected} ranks, and the program does not fix the number of ranks"
        )),
        _ => Ok(()),
    }
}

/// The values of a definition that are the results of a call.
struct DefinitionResults {
    returned: Vec<ValueId>,
    /// The new contents of the written arguments, in the order of the schema. `None` if the definition does not
    /// take the argument.
    written: Vec<Option<ValueId>>,
}

fn read_results(
    definition: &OpDefinition,
    graph: &Graph,
    own_results: usize,
) -> RuleResult<DefinitionResults> {
    let writes = &definition.declared.writes;
    let mut returned: Vec<ValueId> = Vec::new();
    let mut contents: Vec<(&str, ValueId)> = Vec::new();
    for output in &graph.outputs {
        match output.kind {
            OutputKind::Returned => returned.push(output.value),
            OutputKind::Length { .. } => {
                return invalid(
                    "the definition states the length of an output, which is not supported".into(),
                );
            }
            OutputKind::Mutates(input) => {
                let input = &graph.inputs[input];
                let name = graph.value_name(input.value);
                if input.kind != InputKind::Argument {
                    return invalid(format!(
                        "the definition writes `{name}`, which is a constant: expected an argument"
                    ));
                }
                contents.push((name, output.value));
            }
        }
    }
    if returned.len() != own_results {
        return invalid(format!(
            "expected {own_results} results of the definition, found {}",
            returned.len()
        ));
    }
    if let Some((name, _)) = contents.iter().find(|(name, _)| !writes.arguments.iter().any(|a| a == name)) {
        return invalid(format!("the definition writes `{name}`, which the schema does not mark as written"));
    }
    let mut written = Vec::with_capacity(writes.arguments.len());
    for name in &writes.arguments {
        let new = contents.iter().find(|(argument, _)| argument == name).map(|(_, value)| *value);
        if new.is_none() && find_argument(graph, name).is_some() {
            return invalid(format!(
                "the schema marks `{name}` as written, and the definition has no `mutate %{name} = …`"
            ));
        }
        written.push(new);
    }
    Ok(DefinitionResults { returned, written })
}

fn bind_symbols(
    c: &OpCall<'_, '_>,
    expansion: &mut Expansion<'_>,
    values: &CallValues<'_>,
    own_results: &[ValueId],
) -> RuleResult {
    let graph = expansion.definition;
    for (id, symbol) in graph.symbols.iter() {
        match values.get(symbol.name.as_str()) {
            Some(CallValue::Literal(Literal::Int(i))) => drop(expansion.symbols.insert(id, Dim::from(*i))),
            Some(CallValue::Dim(dim)) => drop(expansion.symbols.insert(id, dim.clone())),
            _ => {}
        }
    }
    for (name, value) in values {
        if let (CallValue::Tensor(value), Some(ty)) = (value, find_argument(graph, name)) {
            expansion.bind_extents(ty, &c.shape(*value));
        }
    }
    for (i, output) in own_results.iter().enumerate() {
        if c.result_names().get(i).copied().flatten().is_some() {
            expansion.bind_extents(graph.ty(*output), &c.declared_result_type(i)?.shape);
        }
    }
    let table = &c.lowering.builder.graph().symbols;
    for (id, symbol) in graph.symbols.iter() {
        let name = &symbol.name;
        let Some(dim) = expansion.symbols.get(&id) else {
            return invalid(format!(
                "the symbol `{name}` of the definition is no extent of an argument or a result, and no integer \
                 argument"
            ));
        };
        let (low, high) = dim.bounds(table);
        if low < symbol.min || high > symbol.max {
            let extent = match dim.as_const() {
                Some(extent) => extent.to_string(),
                None => format!("`{}` from {low} to {high}", dim.display(table)),
            };
            return invalid(format!(
                "expected `{name}` of the definition from {} to {}, found {extent}",
                symbol.min, symbol.max
            ));
        }
    }
    Ok(())
}

/// Compares the tensors of a call with the arguments of a definition.
fn check_arguments(c: &OpCall<'_, '_>, expansion: &Expansion<'_>, values: &CallValues<'_>) -> RuleResult {
    for (name, value) in values {
        let CallValue::Tensor(value) = value else { continue };
        if let Some(rows) = c.lowering.packed.rows(*value) {
            let rows = c.lowering.symbols.data.display(&rows.length);
            return invalid(format!("`{name}` has `{rows}` rows, which depend on data"));
        }
        let Some(ty) = find_argument(expansion.definition, name) else { continue };
        let expected = expansion.ty(ty);
        let actual = c.ty(*value);
        if expected != *actual {
            let expected = c.lowering.display_type(&expected);
            let actual = c.lowering.display_type(actual);
            return invalid(format!(
                "expected {expected} as `{name}`, as its definition states, found {actual}"
            ));
        }
    }
    Ok(())
}

/// The groups of the program for those of a definition.
fn map_groups(c: &mut OpCall<'_, '_>, graph: &Graph) -> RuleResult<Vec<GroupId>> {
    let mut groups = Vec::new();
    for group in graph.groups.values() {
        let program = c.lowering.builder.graph();
        let existing = match &group.members {
            GroupMembers::World => {
                let mut program_groups = program.groups.iter();
                program_groups.find(|(_, g)| g.members == GroupMembers::World).map(|(id, _)| id)
            }
            GroupMembers::Cells(cells) => program.group_with_cells(cells),
        };
        let id = match existing {
            Some(id) => id,
            None => {
                let mut name = group.name.clone();
                while program.groups.values().any(|g| g.name == name) {
                    name.push('_');
                }
                c.lowering.builder.group(&name, group.members.clone())
            }
        };
        groups.push(id);
    }
    Ok(groups)
}

/// Declares the custom ops of a definition in the program.
fn map_customs(c: &mut OpCall<'_, '_>, graph: &Graph, groups: &[GroupId]) -> RuleResult {
    for custom in graph.customs.values() {
        let mut custom = custom.clone();
        custom.group = custom.group.and_then(|g| groups.get(Entity::index(g)).copied());
        let program = c.lowering.builder.graph_mut();
        match program.customs.values().find(|existing| existing.name == custom.name) {
            None => drop(program.customs.push(custom)),
            Some(existing) if *existing == custom => {}
            Some(_) => {
                return invalid(format!(
                    "two definitions declare the custom op {:?} in different ways",
                    custom.name
                ));
            }
        }
    }
    Ok(())
}

/// Adds the nodes of a definition. Returns the values of the program for its values.
fn add_nodes(
    c: &mut OpCall<'_, '_>,
    expansion: &Expansion<'_>,
    values: &CallValues<'_>,
    groups: &[GroupId],
) -> RuleResult<HashMap<ValueId, ValueId>> {
    let graph = expansion.definition;
    let mut new: HashMap<ValueId, ValueId> = HashMap::with_capacity(graph.values.len());
    for input in graph.inputs.values() {
        let name = graph.value_name(input.value);
        let value = match (input.kind, values.get(name)) {
            (InputKind::Argument, Some(CallValue::Tensor(value))) => *value,
            _ => {
                let label = format!("{}.{name}", c.label);
                let ty = expansion.ty(graph.ty(input.value));
                c.lowering.builder.input(input.kind, &label, "", ty, input.data.clone())
            }
        };
        new.insert(input.value, value);
    }
    for node in graph.nodes.values() {
        let mut op = node.op.clone();
        for dim in op_dims_mut(&mut op) {
            *dim = expansion.dim(dim);
        }
        if let Some(group) = op.group_mut()
            && let Some(id) = groups.get(Entity::index(*group))
        {
            *group = *id;
        }
        if let Op::Custom(id) = &mut op {
            let name = graph.customs.get(*id).map_or("", |custom| custom.name.as_str());
            let mut customs = c.lowering.builder.graph().customs.iter();
            if let Some((existing, _)) = customs.find(|(_, custom)| custom.name == name) {
                *id = existing;
            }
        }
        let operands: Vec<ValueId> = node.inputs.iter().filter_map(|v| new.get(v).copied()).collect();
        let types: Vec<TensorType> = node.outputs.iter().map(|v| expansion.ty(graph.ty(*v))).collect();
        for ty in &types {
            check_shape_complexity(&ty.shape).map_err(RuleFailure::Invalid)?;
        }
        let name = node.outputs.first().map_or("", |v| graph.value_name(*v));
        let label = format!("{}.{name}", c.label);
        let results = c
            .lowering
            .builder
            .node_as(&label, op, &operands, types)
            .or_else(|e| invalid(format!("the definition, %{name}: {}", e.message)))?;
        for (&output, result) in node.outputs.iter().zip(results) {
            if Some(&output) != node.outputs.first() {
                let label = format!("{}.{}", c.label, graph.value_name(output));
                c.lowering.builder.rename(result, &label)?;
            }
            new.insert(output, result);
        }
    }
    Ok(new)
}
