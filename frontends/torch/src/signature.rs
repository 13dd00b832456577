//! The inputs and outputs of a program.
//!
//! - User inputs become arguments. Parameters and persistent buffers become parameters: they belong to a
//!   model's state and may differ between ranks.
//! - Non-persistent buffers and tensor constants become constants if the archive contains their data, nothing
//!   writes them, and they are small enough for the program's text. Otherwise they become parameters.
//! - An integer argument is a symbol. Strings, numbers and tokens among the arguments are already part of the
//!   program and vanish, with a note that names the argument and its value.
//! - Complex tensors are floats with one more axis ([`crate::ops::complex`]).
//! - Outputs that are not tensors vanish. A mutation is an output that is written to an input.

use std::collections::HashMap;
use std::sync::Arc;

use indexmap::{IndexMap, IndexSet};
use symmc_ir::{DType, GraphOutput, InputId, InputKind, OutputKind, Tensor, TensorType, ValueId};

use crate::archive::Archive;
use crate::dtype;
use crate::error::{ImportError, Result};
use crate::lower::ImportLowering;
use crate::merge_ranks;
use crate::packed;
use crate::packed_rows::PackedRows;
use crate::per_rank::PerRankArgument;
use crate::schema::{Argument, ExportedProgram, InputSpec, OutputSpec};
use crate::scope::NameBinding;
use crate::stored_tensors::TensorStore;
use crate::symbols::ArgumentSizes;

/// The largest constant that becomes part of the program, in bytes.
const MAX_CONSTANT: u64 = 1 << 20;

fn signature_error(name: &str, message: impl Into<String>) -> ImportError {
    ImportError::Signature { name: name.into(), message: message.into() }
}

/// The sizes in the inputs, which determine the symbols.
pub(crate) fn argument_sizes<'p>(program: &'p ExportedProgram<'p>) -> Vec<ArgumentSizes<'p>> {
    let graph = &program.graph_module.graph;
    let mut out = Vec::new();
    let mut tensors = 0..;
    for spec in &program.graph_module.signature.input_specs {
        match &spec.user_input {
            Some(user) => match &user.arg {
                Argument::Tensor(name) => {
                    let argument = tensors.next();
                    if let Some(meta) = graph.tensor_values.get(&**name) {
                        let integer = dtype::from_schema(meta.dtype)
                            .is_ok_and(|d| matches!(d, DType::I32 | DType::I64 | DType::U8));
                        let sizes = meta.sizes.iter().collect();
                        out.push(ArgumentSizes { sizes, names_axes: integer, argument });
                    }
                }
                Argument::SymInt(s) => {
                    let value = s.as_name.as_ref().and_then(|n| graph.sym_int_values.get(&**n));
                    let sizes = value.into_iter().collect();
                    out.push(ArgumentSizes { sizes, names_axes: false, argument: None });
                }
                _ => {}
            },
            None => {
                let meta = stored_name(spec).and_then(|name| graph.tensor_values.get(name));
                if let Some(meta) = meta {
                    let sizes = meta.sizes.iter().collect();
                    out.push(ArgumentSizes { sizes, names_axes: false, argument: None });
                }
            }
        }
    }
    out
}

fn stored_name<'p>(spec: &'p InputSpec<'p>) -> Option<&'p str> {
    let parameter = spec.parameter.as_ref().map(|p| &*p.arg.name);
    let buffer = spec.buffer.as_ref().map(|b| &*b.arg.name);
    parameter.or(buffer).or(spec.tensor_constant.as_ref().map(|t| &*t.arg.name))
}

/// The inputs that outputs can write, by the names that output specs use.
pub(crate) struct ProgramInputs {
    by_source: HashMap<String, InputId>,
    by_argument: HashMap<String, InputId>,
    parameters: Vec<(String, TensorType)>,
}

pub(crate) struct ArchiveTensors<'s, 'a> {
    pub archive: &'s mut Archive<'a>,
    pub weights: TensorStore,
    pub constants: TensorStore,
}

impl ArchiveTensors<'_, '_> {
    /// Counts the data of all stored inputs of a program against the archive's limits, before any data is
    /// read.
    fn reserve_all(&mut self, program: &ExportedProgram<'_>) -> Result<()> {
        self.weights.reserve_tensors(self.archive, stored_sources(program))?;
        let constants = stored_sources(program).filter(|n| !self.weights.contains(n));
        self.constants.reserve_tensors(self.archive, constants)
    }

    fn tensor_size(&self, name: &str) -> Result<Option<u64>> {
        match self.weights.tensor_size(self.archive, name)? {
            Some(size) => Ok(Some(size)),
            None => self.constants.tensor_size(self.archive, name),
        }
    }

    pub fn tied_names(&self) -> Vec<Vec<String>> {
        self.weights.tied_names().into_iter().chain(self.constants.tied_names()).collect()
    }

    /// The data of a stored input. Fails if it does not have the declared type.
    fn load_tensor(&mut self, name: &str, ty: &TensorType) -> Result<Option<Arc<Tensor>>> {
        let tensor = match self.weights.load_tensor(self.archive, name)? {
            Some(t) => t,
            None => match self.constants.load_tensor(self.archive, name)? {
                Some(t) => t,
                None => return Ok(None),
            },
        };
        let declared: Vec<Option<i64>> = ty.shape.iter().map(|d| d.as_const()).collect();
        let shape: Vec<Option<i64>> = tensor.shape().iter().map(|&d| i64::try_from(d).ok()).collect();
        if tensor.dtype() != ty.dtype || declared != shape {
            return Err(ImportError::Stored {
                tensor: name.into(),
                expected: format!("{}{:?}", ty.dtype, ty.shape),
                found: format!("{}{:?}", tensor.dtype(), tensor.shape()),
            });
        }
        Ok(Some(tensor))
    }
}

/// The names under which a program stores its inputs.
fn stored_sources<'p>(program: &'p ExportedProgram<'_>) -> impl Iterator<Item = &'p str> {
    let specs = program.graph_module.signature.input_specs.iter();
    specs.filter_map(stored_input).map(|(_, source, _)| source)
}

pub(crate) fn lower_inputs<'p>(
    lowering: &mut ImportLowering<'p>,
    program: &'p ExportedProgram<'p>,
    stores: &mut [ArchiveTensors<'_, '_>],
) -> Result<ProgramInputs> {
    let signature = &program.graph_module.signature;
    let mutated: IndexSet<&str> = signature
        .output_specs
        .iter()
        .filter_map(|s| {
            let buffer = s.buffer_mutation.as_ref().map(|b| &*b.buffer_name);
            buffer.or(s.parameter_mutation.as_ref().map(|p| &*p.parameter_name))
        })
        .collect();
    for (rank, store) in stores.iter_mut().enumerate() {
        store.reserve_all(program).map_err(|e| e.with_rank(rank))?;
    }
    let mut inputs =
        ProgramInputs { by_source: HashMap::new(), by_argument: HashMap::new(), parameters: Vec::new() };
    let mut absent = 0;
    for spec in &signature.input_specs {
        if let Some(user) = &spec.user_input {
            lower_user_input(lowering, &mut inputs, &user.arg)?;
            continue;
        }
        if let Some(custom) = &spec.custom_obj {
            let why = "a custom object, which is not supported".to_string();
            bind_name(lowering, &custom.arg.name, NameBinding::Unavailable(why))?;
            continue;
        }
        let Some((name, source, may_be_constant)) = stored_input(spec) else {
            match &spec.constant_input {
                Some(constant) => note_fixed_argument(lowering, &constant.name, &constant.value),
                None if spec.token.is_some() => {}
                None => {
                    return Err(signature_error(
                        "input_specs",
                        "expected a supported kind of input, found another",
                    ));
                }
            }
            continue;
        };
        let ty = lowering.component_type(name)?;
        let size = stores.first().map_or(Ok(None), |s| s.tensor_size(source))?;
        let small = size.is_some_and(|n| n <= MAX_CONSTANT);
        let constant = if may_be_constant && small && !mutated.contains(source) {
            load_if_equal(stores, source, &ty)?
        } else {
            None
        };
        let (kind, data) = if constant.is_some() {
            (InputKind::Constant, constant)
        } else {
            match size {
                Some(_) if spec.parameter.is_none() => lowering.buffers.push(source.to_string()),
                Some(_) => {}
                None => absent += 1,
            }
            inputs.parameters.extend(size.map(|_| (source.to_string(), ty.clone())));
            (InputKind::Parameter, None)
        };
        let value = lowering.builder.input(kind, name, source, ty, data);
        inputs.by_source.insert(source.to_string(), last_input(lowering));
        bind_name(lowering, name, NameBinding::Value(value))?;
    }
    if absent > 0 {
        lowering.notes.push(format!("parameters without data in the archive: {absent}"));
    }
    Ok(inputs)
}

/// The data of a stored tensor, if it is the same on all ranks.
fn load_if_equal(
    stores: &mut [ArchiveTensors<'_, '_>],
    source: &str,
    ty: &TensorType,
) -> Result<Option<Arc<Tensor>>> {
    let mut first: Option<Arc<Tensor>> = None;
    for (rank, store) in stores.iter_mut().enumerate() {
        let data = store.load_tensor(source, ty).map_err(|e| e.with_rank(rank))?;
        match (&first, data) {
            (_, None) => return Ok(None),
            (None, data) => first = data,
            (Some(first), Some(data)) if **first == *data => {}
            (Some(_), Some(_)) => return Ok(None),
        }
    }
    Ok(first)
}

pub(crate) fn add_per_rank_inputs<'p>(
    lowering: &mut ImportLowering<'p>,
    program: &'p ExportedProgram<'p>,
) -> Vec<&'p PerRankArgument> {
    let mut inputs: Vec<(&'p PerRankArgument, ValueId)> = Vec::new();
    for number in merge_ranks::find_per_rank_arguments(program).into_iter().filter(|n| n.numbers.is_input()) {
        let existing = inputs.iter().find(|(n, _)| n.numbers == number.numbers).map(|(_, value)| *value);
        let value = existing.unwrap_or_else(|| {
            let ty = number.numbers.input_type();
            lowering.builder.input(InputKind::Parameter, &number.name, &number.name, ty, None)
        });
        if existing.is_none() {
            inputs.push((number, value));
        }
        lowering.per_rank_inputs.insert(number.name.clone(), value);
    }
    inputs.into_iter().map(|(number, _)| number).collect()
}

/// The data of the parameters in the archive of a rank, by their source names. It is read last, so that a
/// rejected program takes no memory for it.
pub(crate) fn load_weights(
    inputs: &ProgramInputs,
    stores: &mut ArchiveTensors<'_, '_>,
) -> Result<IndexMap<String, Arc<Tensor>>> {
    let mut weights = IndexMap::with_capacity(inputs.parameters.len());
    for (source, ty) in &inputs.parameters {
        if let Some(data) = stores.load_tensor(source, ty)? {
            weights.insert(source.clone(), data);
        }
    }
    Ok(weights)
}

/// Notes an argument of the exported model that is not an input: the program is valid for one value of it.
fn note_fixed_argument(lowering: &mut ImportLowering<'_>, name: &str, value: &Argument<'_>) {
    if !matches!(value, Argument::None) {
        lowering.notes.push(format!(
            "the argument {name} is fixed to {value} in this program: export it again for another value"
        ));
    }
}

fn last_input(lowering: &ImportLowering<'_>) -> InputId {
    <InputId as symmc_ir::entity::Entity>::new(lowering.builder.graph().inputs.len() - 1)
}

fn bind_name<'p>(lowering: &mut ImportLowering<'p>, name: &'p str, binding: NameBinding) -> Result<()> {
    lowering.scope.bind(name, binding).map_err(|message| signature_error(name, message))
}

/// The value, the stored name, and whether the input may become a constant.
fn stored_input<'p>(spec: &'p InputSpec<'p>) -> Option<(&'p str, &'p str, bool)> {
    if let Some(p) = &spec.parameter {
        return Some((&p.arg.name, &p.parameter_name, false));
    }
    if let Some(b) = &spec.buffer {
        return Some((&b.arg.name, &b.buffer_name, !b.persistent));
    }
    spec.tensor_constant.as_ref().map(|t| (&*t.arg.name, &*t.tensor_constant_name, true))
}

fn lower_user_input<'p>(
    lowering: &mut ImportLowering<'p>,
    inputs: &mut ProgramInputs,
    arg: &'p Argument<'p>,
) -> Result<()> {
    match arg {
        Argument::Tensor(name) => {
            let ty = lowering.component_type(name)?;
            note_complex(lowering, "argument", name);
            let value = lowering.builder.input(InputKind::Argument, name, name, ty, None);
            inputs.by_argument.insert(name.to_string(), last_input(lowering));
            bind_name(lowering, name, NameBinding::Value(value))
        }
        Argument::SymInt(s) => {
            if let Some(name) = &s.as_name {
                let dim = lowering
                    .scope
                    .graph
                    .sym_int_values
                    .get(&**name)
                    .map(|v| lowering.symbols.resolve_extent(v));
                let dim = dim.ok_or_else(|| {
                    signature_error(name, "expected an entry in sym_int_values, found none")
                })??;
                let shown = dim.display(&lowering.symbols.table).to_string();
                lowering.notes.push(format!("the integer argument {} is the symbol {shown}", &**name));
            }
            Ok(())
        }
        Argument::CustomObj(name) => bind_name(
            lowering,
            name,
            NameBinding::Unavailable("a custom object, which is not supported".into()),
        ),
        Argument::Tensors(_) | Argument::OptionalTensors(_) => Err(signature_error(
            "user_input",
            format!("expected a tensor or a number, found {}", arg.describe()),
        )),
        _ => Ok(()),
    }
}

/// Notes the representation of complex inputs and outputs.
fn note_complex(lowering: &mut ImportLowering<'_>, what: &str, name: &str) {
    if lowering.is_complex(name) {
        lowering
            .notes
            .push(format!("the {what} {name} is complex: its last axis has the real and the imaginary part"));
    }
}

/// Marks the results that outputs read, so that rules know which results are wanted.
pub(crate) fn mark_outputs<'p>(lowering: &mut ImportLowering<'p>, program: &'p ExportedProgram<'p>) {
    for spec in &program.graph_module.signature.output_specs {
        if let Some((name, _)) = output_target(spec) {
            lowering.scope.mark_read_at_end(name);
        }
    }
}

fn output_target<'p>(spec: &'p OutputSpec<'p>) -> Option<(&'p str, OutputTarget<'p>)> {
    if let Some(user) = &spec.user_output {
        return match &user.arg {
            Argument::Tensor(name) => Some((name, OutputTarget::Caller)),
            _ => None,
        };
    }
    if let Some(b) = &spec.buffer_mutation {
        return Some((&b.arg.name, OutputTarget::Stored(&b.buffer_name)));
    }
    if let Some(p) = &spec.parameter_mutation {
        return Some((&p.arg.name, OutputTarget::Stored(&p.parameter_name)));
    }
    if let Some(u) = &spec.user_input_mutation {
        return Some((&u.arg.name, OutputTarget::Argument(&u.user_input_name)));
    }
    let plain = [&spec.loss_output, &spec.gradient_to_parameter, &spec.gradient_to_user_input];
    plain.into_iter().flatten().next().map(|n| (&*n.arg.name, OutputTarget::Caller))
}

enum OutputTarget<'p> {
    Caller,
    Stored(&'p str),
    Argument(&'p str),
}

pub(crate) fn lower_outputs<'p>(
    lowering: &mut ImportLowering<'p>,
    program: &'p ExportedProgram<'p>,
    inputs: &ProgramInputs,
) -> Result<()> {
    let mut lengths = Vec::new();
    for (i, spec) in program.graph_module.signature.output_specs.iter().enumerate() {
        let Some((name, target)) = output_target(spec) else {
            match &spec.user_output {
                Some(user) => {
                    lowering.notes.push(format!(
                        "output {i} is {}, not a tensor, and is left out",
                        user.arg.describe()
                    ));
                }
                None if spec.token.is_some() => {}
                None => {
                    return Err(signature_error(
                        "output_specs",
                        "expected a supported kind of output, found another",
                    ));
                }
            }
            continue;
        };
        let value = lowering.scope.value(name).map_err(|message| signature_error(name, message))?;
        if let Some(rows) = lowering.packed.rows(value).cloned() {
            if !matches!(target, OutputTarget::Caller) {
                return Err(unfixed_output(lowering, name, &rows));
            }
            lengths.push((lowering.builder.graph().outputs.len(), rows));
        }
        note_complex(lowering, "output", name);
        let kind = match target {
            OutputTarget::Caller => OutputKind::Returned,
            OutputTarget::Stored(source) => {
                OutputKind::Mutates(mutated_input(lowering, &inputs.by_source, source, value)?)
            }
            OutputTarget::Argument(name) => {
                OutputKind::Mutates(mutated_input(lowering, &inputs.by_argument, name, value)?)
            }
        };
        lowering.builder.graph_mut().outputs.push(GraphOutput { value, kind });
    }
    for (input, value) in std::mem::take(&mut lowering.written_inputs) {
        let outputs = &mut lowering.builder.graph_mut().outputs;
        if !outputs.iter().any(|o| o.kind == OutputKind::Mutates(input)) {
            outputs.push(GraphOutput { value, kind: OutputKind::Mutates(input) });
        }
    }
    push_lengths(lowering, lengths)
}

/// The error for a stored output whose number of rows depends on data.
fn unfixed_output(lowering: &ImportLowering<'_>, name: &str, rows: &PackedRows) -> ImportError {
    let rows = lowering.symbols.data.display(&rows.length);
    signature_error(
        name,
        format!("expected an output of fixed extents, found `{rows}` rows, which depend on data"),
    )
}

/// Adds the lengths of outputs, which come after all outputs.
fn push_lengths(lowering: &mut ImportLowering<'_>, lengths: Vec<(usize, PackedRows)>) -> Result<()> {
    for (output, rows) in lengths {
        let value = packed::emit_output_length(lowering, &rows.length)
            .map_err(|stop| stop.into_error(|message| signature_error("output_specs", message)))?;
        let kind = OutputKind::Length { output, axis: rows.axis };
        lowering.builder.graph_mut().outputs.push(GraphOutput { value, kind });
    }
    Ok(())
}

/// The input that a mutation writes. Its type must be that of the written value.
fn mutated_input(
    lowering: &ImportLowering<'_>,
    by_name: &HashMap<String, InputId>,
    name: &str,
    value: ValueId,
) -> Result<InputId> {
    let graph = lowering.builder.graph();
    let input = by_name.get(name).copied();
    let input = input
        .ok_or_else(|| signature_error(name, "expected an input of this name to be written, found none"))?;
    let expected = graph.ty(graph.inputs[input].value);
    let actual = graph.ty(value);
    if expected != actual {
        let expected = lowering.display_type(expected);
        let actual = lowering.display_type(actual);
        return Err(signature_error(name, format!("expected {expected} to be written, found {actual}")));
    }
    Ok(input)
}
