//! The inputs and outputs of a program.
//!
//! - User inputs become arguments, parameters and persistent buffers become parameters: those are in a
//!   model's state and may differ between ranks.
//! - Non-persistent buffers and tensor constants whose data the archive holds become constants, if nothing
//!   writes them and they are small enough to be part of the program's text; else parameters.
//! - An integer argument is a symbol; strings, numbers and tokens among the arguments are already part of
//!   the program and vanish, with a note that names the argument and its value.
//! - Complex tensors are floats with one more axis ([`crate::ops::complex`]).
//! - Outputs that are no tensors vanish. A mutation is an output that goes into an input.

use std::collections::HashMap;
use std::sync::Arc;

use indexmap::{IndexMap, IndexSet};
use symmc_ir::{DType, InputId, InputKind, Output, OutputKind, Tensor, Type, ValueId};

use crate::archive::Archive;
use crate::by_rank;
use crate::dtype;
use crate::error::{ImportError, Result};
use crate::lower::Lowering;
use crate::numbers::ByRank;
use crate::schema::{Argument, InputSpec, OutputSpec, Program};
use crate::scope::Binding;
use crate::stored::Store;
use crate::symbols::ArgumentSizes;

/// The largest constant that becomes part of the program, in bytes.
const MAX_CONSTANT: u64 = 1 << 20;

fn error(name: &str, message: impl Into<String>) -> ImportError {
    ImportError::Signature { name: name.into(), message: message.into() }
}

/// What the inputs tell about symbols.
pub(crate) fn sizes<'p>(program: &'p Program<'p>) -> Vec<ArgumentSizes<'p>> {
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

/// The inputs that outputs write, by the names that output specs use.
pub(crate) struct Inputs {
    by_source: HashMap<String, InputId>,
    by_argument: HashMap<String, InputId>,
    parameters: Vec<(String, Type)>,
}

pub(crate) struct Stores<'s, 'a> {
    pub archive: &'s mut Archive<'a>,
    pub weights: Store,
    pub constants: Store,
}

impl Stores<'_, '_> {
    /// Counts the data of all stored inputs of a program against the archive's limits, before any are read.
    fn reserve(&mut self, program: &Program<'_>) -> Result<()> {
        let names = || {
            program.graph_module.signature.input_specs.iter().filter_map(stored).map(|(_, source, _)| source)
        };
        self.weights.reserve(self.archive, names())?;
        self.constants.reserve(self.archive, names().filter(|n| !self.weights.holds(n)))
    }

    fn size(&self, name: &str) -> Result<Option<u64>> {
        match self.weights.size(self.archive, name)? {
            Some(size) => Ok(Some(size)),
            None => self.constants.size(self.archive, name),
        }
    }

    pub fn ties(&self) -> Vec<Vec<String>> {
        self.weights.ties().into_iter().chain(self.constants.ties()).collect()
    }

    /// The data of a stored input; it must have the declared type.
    fn load(&mut self, name: &str, ty: &Type) -> Result<Option<Arc<Tensor>>> {
        let tensor = match self.weights.load(self.archive, name)? {
            Some(t) => t,
            None => match self.constants.load(self.archive, name)? {
                Some(t) => t,
                None => return Ok(None),
            },
        };
        let declared: Vec<Option<i64>> = ty.shape.iter().map(|d| d.as_const()).collect();
        let found: Vec<Option<i64>> = tensor.shape().iter().map(|&d| i64::try_from(d).ok()).collect();
        if tensor.dtype() != ty.dtype || declared != found {
            return Err(ImportError::Stored {
                tensor: name.into(),
                expected: format!("{}{:?}", ty.dtype, ty.shape),
                found: format!("{}{:?}", tensor.dtype(), tensor.shape()),
            });
        }
        Ok(Some(tensor))
    }
}

pub(crate) fn inputs<'p>(
    lowering: &mut Lowering<'p>,
    program: &'p Program<'p>,
    stores: &mut [Stores<'_, '_>],
) -> Result<Inputs> {
    let signature = &program.graph_module.signature;
    let mutated: IndexSet<&str> = signature
        .output_specs
        .iter()
        .filter_map(|s| {
            let buffer = s.buffer_mutation.as_ref().map(|b| &*b.buffer_name);
            buffer.or(s.parameter_mutation.as_ref().map(|p| &*p.parameter_name))
        })
        .collect();
    for (rank, of_rank) in stores.iter_mut().enumerate() {
        of_rank.reserve(program).map_err(|e| e.of_rank(rank))?;
    }
    let mut inputs =
        Inputs { by_source: HashMap::new(), by_argument: HashMap::new(), parameters: Vec::new() };
    let mut absent = 0;
    for spec in &signature.input_specs {
        if let Some(user) = &spec.user_input {
            user_input(lowering, &mut inputs, &user.arg)?;
            continue;
        }
        if let Some(custom) = &spec.custom_obj {
            let why = "a custom object, which has no counterpart".to_string();
            bind(lowering, &custom.arg.name, Binding::Nothing(why))?;
            continue;
        }
        let Some((name, source, may_be_constant)) = stored(spec) else {
            match &spec.constant_input {
                Some(constant) => fixed(lowering, &constant.name, &constant.value),
                None if spec.token.is_some() => {}
                None => return Err(error("input_specs", "expected a known kind of input, found another")),
            }
            continue;
        };
        let ty = lowering.held(name)?;
        let size = stores.first().map_or(Ok(None), |s| s.size(source))?;
        let small = size.is_some_and(|n| n <= MAX_CONSTANT);
        let constant = match may_be_constant && small && !mutated.contains(source) {
            true => agreed(stores, source, &ty)?,
            false => None,
        };
        let (kind, held) = if constant.is_some() {
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
        let value = lowering.builder.input(kind, name, source, ty, held);
        inputs.by_source.insert(source.to_string(), last_input(lowering));
        bind(lowering, name, Binding::Value(value))?;
    }
    if absent > 0 {
        lowering.notes.push(format!("parameters without data in the archive: {absent}"));
    }
    Ok(inputs)
}

/// The data of a stored tensor, if all ranks have the same.
fn agreed(stores: &mut [Stores<'_, '_>], source: &str, ty: &Type) -> Result<Option<Arc<Tensor>>> {
    let mut first: Option<Arc<Tensor>> = None;
    for (rank, of_rank) in stores.iter_mut().enumerate() {
        let data = of_rank.load(source, ty).map_err(|e| e.of_rank(rank))?;
        match (&first, data) {
            (_, None) => return Ok(None),
            (None, data) => first = data,
            (Some(first), Some(data)) if **first == *data => {}
            (Some(_), Some(_)) => return Ok(None),
        }
    }
    Ok(first)
}

pub(crate) fn numbers_by_rank<'p>(lowering: &mut Lowering<'p>, program: &'p Program<'p>) -> Vec<&'p ByRank> {
    let mut inputs: Vec<(&'p ByRank, ValueId)> = Vec::new();
    for number in by_rank::found(program).into_iter().filter(|n| n.numbers.is_input()) {
        let known = inputs.iter().find(|(n, _)| n.numbers == number.numbers).map(|(_, value)| *value);
        let value = known.unwrap_or_else(|| {
            let ty = number.numbers.ty();
            lowering.builder.input(InputKind::Parameter, &number.name, &number.name, ty, None)
        });
        if known.is_none() {
            inputs.push((number, value));
        }
        lowering.by_rank.insert(number.name.clone(), value);
    }
    inputs.into_iter().map(|(number, _)| number).collect()
}

/// The data of the parameters that the archive of a rank holds, by their source names. Reading them comes last, so that
/// a program that is refused takes no memory for them.
pub(crate) fn weights(inputs: &Inputs, stores: &mut Stores<'_, '_>) -> Result<IndexMap<String, Arc<Tensor>>> {
    let mut weights = IndexMap::with_capacity(inputs.parameters.len());
    for (source, ty) in &inputs.parameters {
        if let Some(data) = stores.load(source, ty)? {
            weights.insert(source.clone(), data);
        }
    }
    Ok(weights)
}

/// Notes an argument of the exported model that is no input of the program, which holds for one value of it.
fn fixed(lowering: &mut Lowering<'_>, name: &str, value: &Argument<'_>) {
    if !matches!(value, Argument::None) {
        lowering.notes.push(format!(
            "the argument {name} is {value} in this program, and no input: export it again for another"
        ));
    }
}

fn last_input(lowering: &Lowering<'_>) -> InputId {
    <InputId as symmc_ir::entity::Entity>::new(lowering.builder.graph().inputs.len() - 1)
}

fn bind<'p>(lowering: &mut Lowering<'p>, name: &'p str, binding: Binding) -> Result<()> {
    lowering.scope.bind(name, binding).map_err(|message| error(name, message))
}

/// The value, the stored name, and whether the input may become a constant.
fn stored<'p>(spec: &'p InputSpec<'p>) -> Option<(&'p str, &'p str, bool)> {
    if let Some(p) = &spec.parameter {
        return Some((&p.arg.name, &p.parameter_name, false));
    }
    if let Some(b) = &spec.buffer {
        return Some((&b.arg.name, &b.buffer_name, !b.persistent));
    }
    spec.tensor_constant.as_ref().map(|t| (&*t.arg.name, &*t.tensor_constant_name, true))
}

fn user_input<'p>(lowering: &mut Lowering<'p>, inputs: &mut Inputs, arg: &'p Argument<'p>) -> Result<()> {
    match arg {
        Argument::Tensor(name) => {
            let ty = lowering.held(name)?;
            note_complex(lowering, "argument", name);
            let value = lowering.builder.input(InputKind::Argument, name, name, ty, None);
            inputs.by_argument.insert(name.to_string(), last_input(lowering));
            bind(lowering, name, Binding::Value(value))
        }
        Argument::SymInt(s) => {
            if let Some(name) = &s.as_name {
                let dim = lowering.scope.graph.sym_int_values.get(&**name).map(|v| lowering.symbols.dim(v));
                let dim =
                    dim.ok_or_else(|| error(name, "expected an entry in sym_int_values, found none"))??;
                let shown = dim.display(&lowering.symbols.table).to_string();
                lowering.notes.push(format!("the integer argument {} is the symbol {shown}", &**name));
            }
            Ok(())
        }
        Argument::CustomObj(name) => {
            bind(lowering, name, Binding::Nothing("a custom object, which has no counterpart".into()))
        }
        Argument::Tensors(_) | Argument::OptionalTensors(_) => {
            Err(error("user_input", format!("expected a tensor or a number, found {}", arg.describe())))
        }
        _ => Ok(()),
    }
}

/// Notes what is held of complex numbers that a caller gives or takes.
fn note_complex(lowering: &mut Lowering<'_>, what: &str, name: &str) {
    if lowering.is_complex(name) {
        lowering
            .notes
            .push(format!("the {what} {name} is complex: its last axis has the real and the imaginary part"));
    }
}

/// Marks what the outputs read, so that rules know which results are wanted.
pub(crate) fn mark_outputs<'p>(lowering: &mut Lowering<'p>, program: &'p Program<'p>) {
    for spec in &program.graph_module.signature.output_specs {
        if let Some((name, _)) = output(spec) {
            lowering.scope.read_at_end(name);
        }
    }
}

fn output<'p>(spec: &'p OutputSpec<'p>) -> Option<(&'p str, Target<'p>)> {
    if let Some(user) = &spec.user_output {
        return match &user.arg {
            Argument::Tensor(name) => Some((name, Target::Caller)),
            _ => None,
        };
    }
    if let Some(b) = &spec.buffer_mutation {
        return Some((&b.arg.name, Target::Stored(&b.buffer_name)));
    }
    if let Some(p) = &spec.parameter_mutation {
        return Some((&p.arg.name, Target::Stored(&p.parameter_name)));
    }
    if let Some(u) = &spec.user_input_mutation {
        return Some((&u.arg.name, Target::Argument(&u.user_input_name)));
    }
    let plain = [&spec.loss_output, &spec.gradient_to_parameter, &spec.gradient_to_user_input];
    plain.into_iter().flatten().next().map(|n| (&*n.arg.name, Target::Caller))
}

enum Target<'p> {
    Caller,
    Stored(&'p str),
    Argument(&'p str),
}

pub(crate) fn outputs<'p>(
    lowering: &mut Lowering<'p>,
    program: &'p Program<'p>,
    inputs: &Inputs,
) -> Result<()> {
    for (i, spec) in program.graph_module.signature.output_specs.iter().enumerate() {
        let Some((name, target)) = output(spec) else {
            match &spec.user_output {
                Some(user) => {
                    lowering.notes.push(format!("output {i} is {} and is left out", user.arg.describe()));
                }
                None if spec.token.is_some() => {}
                None => return Err(error("output_specs", "expected a known kind of output, found another")),
            }
            continue;
        };
        let value = lowering.scope.value(name).map_err(|message| error(name, message))?;
        note_complex(lowering, "output", name);
        let kind = match target {
            Target::Caller => OutputKind::Returned,
            Target::Stored(source) => {
                OutputKind::Mutates(written(lowering, &inputs.by_source, source, value)?)
            }
            Target::Argument(name) => {
                OutputKind::Mutates(written(lowering, &inputs.by_argument, name, value)?)
            }
        };
        lowering.builder.graph_mut().outputs.push(Output { value, kind });
    }
    for (input, value) in std::mem::take(&mut lowering.written) {
        let outputs = &mut lowering.builder.graph_mut().outputs;
        if !outputs.iter().any(|o| o.kind == OutputKind::Mutates(input)) {
            outputs.push(Output { value, kind: OutputKind::Mutates(input) });
        }
    }
    Ok(())
}

/// The input that a mutation writes; it must have the type of what is written.
fn written(
    lowering: &Lowering<'_>,
    by_name: &HashMap<String, InputId>,
    name: &str,
    value: ValueId,
) -> Result<InputId> {
    let graph = lowering.builder.graph();
    let input = by_name.get(name).copied();
    let input =
        input.ok_or_else(|| error(name, "expected an input of this name to be written, found none"))?;
    let (expected, found) = (graph.ty(graph.inputs[input].value), graph.ty(value));
    if expected != found {
        let (expected, found) = (lowering.show(expected), lowering.show(found));
        return Err(error(name, format!("expected {expected} to be written, found {found}")));
    }
    Ok(input)
}
