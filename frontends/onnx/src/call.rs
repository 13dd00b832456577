//! One node while its rule runs: its operands by position and its attributes by name.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::Arc;

use symmc_import::{Emit, RuleCall};
use symmc_ir::{Builder, DType, Def, Dim, InputKind, Scalar, Tensor, Type, ValueId};

use crate::data;
use crate::error::Reason;
use crate::known::{Ints, Known, type_of, uniform};
use crate::lower::{Emitted, Lowered, Lowering, Stop};
use crate::node::{describe, label};
use crate::ops::schemas::Schema;
use crate::proto::{self, attribute_type as kind};
use crate::scope::Binding;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Operand {
    Tensor(ValueId),
    Scalar(Scalar),
}

/// Emits the nodes of one call.
type Emitter<T> = for<'a, 'c, 'p> fn(&'a mut Call<'c, 'p>) -> Lowered<T>;

pub(crate) type Rule = symmc_import::Rule<Emitter<ValueId>, Emitter<()>>;

/// A rule, and the newest version of the op that it was written for. A later one that
/// [`schemas`](crate::ops::schemas) knows is refused.
pub(crate) struct Versioned {
    pub up_to: i64,
    pub rule: Rule,
}

/// A row of a table: the name, behind its domain and two colons if that is not ONNX's own, what it becomes, and its rule.
pub(crate) type Row = symmc_import::Row<Versioned>;

pub(crate) const fn row(
    name: &'static str,
    up_to: i64,
    becomes: &'static str,
    value: Emitter<ValueId>,
) -> Row {
    Row { name, becomes, rule: Versioned { up_to, rule: Rule::Value(value) } }
}

pub(crate) const fn row_of_results(
    name: &'static str,
    up_to: i64,
    becomes: &'static str,
    results: Emitter<()>,
) -> Row {
    Row { name, becomes, rule: Versioned { up_to, rule: Rule::Results(results) } }
}

/// A node while its rule runs.
pub(crate) struct Call<'c, 'p> {
    pub lowering: &'c mut Lowering<'p>,
    pub node: &'p proto::Node,
    /// The version of the operator set of the node's domain.
    pub version: i64,
    /// What the names of emitted values start with.
    pub label: String,
    schema: &'static Schema,
    results: Vec<Option<Binding<'p>>>,
    read: RefCell<Read>,
    /// Values from here on were emitted by this call.
    first_new: usize,
}

fn broken<T>(message: String) -> Lowered<T> {
    Err(Stop::Broken(message))
}

fn operand<T>(i: usize, found: Option<T>) -> Lowered<T> {
    found.ok_or_else(|| Stop::Broken(format!("expected an operand {i}, found none")))
}

impl RuleCall for Call<'_, '_> {
    type Error = Reason;

    fn finish(&mut self, value: ValueId) -> Lowered {
        self.done(value)
    }
}

impl Emit for Call<'_, '_> {
    type Error = Reason;

    fn builder(&self) -> &Builder {
        &self.lowering.builder
    }

    fn builder_mut(&mut self) -> &mut Builder {
        &mut self.lowering.builder
    }

    fn label(&self) -> &str {
        &self.label
    }
}

/// What of a node was looked at, by position.
#[derive(Default)]
struct Read {
    operands: HashSet<usize>,
    attributes: HashSet<usize>,
}

impl<'c, 'p> Call<'c, 'p> {
    /// A node that its definition allows.
    pub fn new(
        lowering: &'c mut Lowering<'p>,
        node: &'p proto::Node,
        version: i64,
        schema: &'static Schema,
    ) -> Self {
        let first_new = lowering.builder.graph().values.len();
        let label = format!("{}{}", lowering.scope.prefix, label(node));
        let (results, read) = (vec![None; node.output.len()], RefCell::default());
        Call { results, read, schema, version, label, first_new, lowering, node }
    }

    /// What was looked at so far does not count: what is done with it begins now.
    pub fn start(&self) {
        self.read.take();
    }

    /// Fails where the node states what nothing looked at: an operand, or an attribute that says other than what
    /// holds without it.
    fn all_read(&self) -> Lowered {
        let (node, read) = (self.node, self.read.take());
        for (i, name) in node.input.iter().enumerate() {
            if !read.operands.contains(&i) && self.name(i).is_some() {
                return Err(Stop::Opaque(format!("operand {i}, `{name}`, is not covered")));
            }
        }
        for (_, a) in node.attribute.iter().enumerate().filter(|(i, _)| !read.attributes.contains(i)) {
            let Some(given) = self.resolved(a) else { continue };
            if !self.schema.attribute(&a.name).is_some_and(|s| s.is_default(given)) {
                return Err(Stop::Opaque(format!("the attribute {} is not covered", describe(given))));
            }
        }
        Ok(())
    }

    // Operands.

    /// The name of an operand; `None` if it is left out.
    pub fn name(&self, i: usize) -> Option<&'p str> {
        let node = self.node;
        self.read.borrow_mut().operands.insert(i);
        let given = node.input.get(i).map(String::as_str).filter(|n| !n.is_empty());
        given.filter(|n| !matches!(self.lowering.scope.get(n), Some((_, Binding::Absent))))
    }

    pub fn opt_tensor(&mut self, i: usize) -> Lowered<Option<ValueId>> {
        self.name(i).map(|name| self.lowering.value(name)).transpose()
    }

    pub fn tensor(&mut self, i: usize) -> Emitted {
        operand(i, self.opt_tensor(i)?)
    }

    pub fn tensors(&mut self) -> Lowered<Vec<ValueId>> {
        let count = self.node.input.len();
        if count == 0 {
            return broken("expected at least one operand, found none".into());
        }
        (0..count).map(|i| self.tensor(i)).collect()
    }

    pub fn known(&mut self, i: usize) -> Lowered<Option<Known>> {
        let Some(name) = self.name(i) else { return Ok(None) };
        Ok(match self.lowering.resolve(name)? {
            Binding::Known(known, _) => Some(known),
            _ => None,
        })
    }

    pub fn type_of(&mut self, i: usize) -> Lowered<Type> {
        let name = operand(i, self.name(i))?;
        Ok(match self.lowering.resolve(name)? {
            Binding::Known(Known::Data(data), None) => type_of(&data),
            Binding::Known(Known::Ints(ints), None) => {
                let shape: Vec<Dim> = ints.shape.iter().map(|&d| Dim::from(d as i64)).collect();
                Type::new(ints.dtype, shape)
            }
            _ => {
                let v = self.lowering.value(name)?;
                self.ty(v).clone()
            }
        })
    }

    pub fn data(&mut self, i: usize) -> Lowered<Option<Arc<Tensor>>> {
        Ok(match self.known(i)? {
            Some(Known::Data(data)) => Some(data),
            _ => None,
        })
    }

    /// A tensor, or the number that it holds if that is known and the operand has no more than `rank` axes.
    pub fn operand(&mut self, i: usize, rank: usize) -> Lowered<Operand> {
        if let Some(data) = self.data(i)?
            && data.numel() == 1
            && data.shape().len() <= rank
            && let Some(scalar) = uniform(&data)
        {
            return Ok(Operand::Scalar(scalar));
        }
        self.tensor(i).map(Operand::Tensor)
    }

    /// The number that an operand is known to hold.
    pub fn scalar(&mut self, i: usize) -> Lowered<Option<Scalar>> {
        let data = self.data(i)?.filter(|d| d.numel() == 1);
        Ok(data.and_then(|d| uniform(&d)))
    }

    /// The elements of an integer operand that must be known.
    pub fn ints(&mut self, i: usize, what: &str) -> Lowered<Ints> {
        match self.opt_ints(i, what)? {
            Some(ints) => Ok(ints),
            None => broken(format!("expected {what} as operand {i}, found none")),
        }
    }

    /// The elements of an integer operand that must be known if it is there.
    pub fn opt_ints(&mut self, i: usize, what: &str) -> Lowered<Option<Ints>> {
        let Some(name) = self.name(i) else { return Ok(None) };
        if let Some(ints) = self.known(i)?.and_then(|k| k.ints()) {
            return Ok(Some(ints));
        }
        let parameter = match self.lowering.resolve(name)? {
            Binding::Value(v) => {
                let graph = self.lowering.builder.graph();
                matches!(graph.values[v].def, Def::Input(i) if graph.inputs[i].kind == InputKind::Parameter)
            }
            _ => false,
        };
        Err(Stop::Opaque(match parameter {
            true => format!("{what}, `{name}`, is a parameter or differs between the ranks"),
            false => format!("{what}, `{name}`, depends on data"),
        }))
    }

    /// The elements of an integer operand that must be constants.
    pub fn opt_consts(&mut self, i: usize, what: &str) -> Lowered<Option<Vec<i64>>> {
        let Some(ints) = self.opt_ints(i, what)? else { return Ok(None) };
        let consts = ints.dims.iter().map(Dim::as_const).collect::<Option<Vec<_>>>();
        consts.map(Some).ok_or_else(|| Stop::Opaque(format!("{what} are symbolic")))
    }

    /// An extent for messages.
    pub fn shown(&self, dim: &Dim) -> String {
        dim.display(&self.lowering.symbols.table).to_string()
    }

    // Attributes.

    /// The attribute of this name. One that refers to an attribute of the function around it is that one.
    pub fn attribute(&self, name: &str) -> Option<&'p proto::Attribute> {
        let node = self.node;
        let (at, found) = node.attribute.iter().enumerate().find(|(_, a)| a.name == name)?;
        self.read.borrow_mut().attributes.insert(at);
        self.resolved(found)
    }

    /// An attribute of the node, or the one that it refers to.
    fn resolved(&self, a: &'p proto::Attribute) -> Option<&'p proto::Attribute> {
        self.lowering.scope.attribute(a)
    }

    /// Attributes that change nothing of what the rule emits.
    pub fn ignore(&self, names: &[&str]) {
        for name in names {
            self.attribute(name);
        }
    }

    fn typed(&self, name: &str, expected: i32, what: &str) -> Lowered<Option<&'p proto::Attribute>> {
        match self.attribute(name) {
            Some(a) if a.r#type != expected => {
                broken(format!("expected {what} as `{name}`, found {}", describe(a)))
            }
            found => Ok(found),
        }
    }

    pub fn opt_int(&self, name: &str) -> Lowered<Option<i64>> {
        Ok(self.typed(name, kind::INT, "an integer")?.map(|a| a.i))
    }

    pub fn int_or(&self, name: &str, default: i64) -> Lowered<i64> {
        Ok(self.opt_int(name)?.unwrap_or(default))
    }

    pub fn int(&self, name: &str) -> Lowered<i64> {
        let found = self.opt_int(name)?;
        found.ok_or_else(|| Stop::Broken(format!("expected an attribute `{name}`, found none")))
    }

    pub fn flag(&self, name: &str) -> Lowered<bool> {
        Ok(self.int_or(name, 0)? != 0)
    }

    pub fn opt_float(&self, name: &str) -> Lowered<Option<f64>> {
        // The shortest decimal that reads as the stored number: 1e-5 is meant, not its neighbour.
        let exact = |x: f32| x.to_string().parse().unwrap_or(f64::from(x));
        Ok(self.typed(name, kind::FLOAT, "a number")?.map(|a| exact(a.f)))
    }

    pub fn float_or(&self, name: &str, default: f64) -> Lowered<f64> {
        Ok(self.opt_float(name)?.unwrap_or(default))
    }

    pub fn opt_attribute_ints(&self, name: &str) -> Lowered<Option<&'p [i64]>> {
        Ok(self.typed(name, kind::INTS, "integers")?.map(|a| a.ints.as_slice()))
    }

    pub fn opt_string(&self, name: &str) -> Lowered<Option<&'p str>> {
        let Some(a) = self.typed(name, kind::STRING, "a string")? else { return Ok(None) };
        let text = std::str::from_utf8(&a.s);
        text.map(Some).map_err(|_| Stop::Broken(format!("expected UTF-8 as `{name}`")))
    }

    pub fn attribute_data(&self, name: &str) -> Lowered<Option<Arc<Tensor>>> {
        let Some(a) = self.typed(name, kind::TENSOR, "a tensor")? else { return Ok(None) };
        let Some(t) = a.t.as_deref() else {
            return broken(format!("expected a tensor as `{name}`, found none"));
        };
        let data = self.lowering.beside.read(t);
        data.map(Some).map_err(|m| Stop::Broken(format!("`{name}`: {m}")))
    }

    pub fn opt_dtype(&self, name: &str) -> Lowered<Option<DType>> {
        let Some(code) = self.opt_int(name)? else { return Ok(None) };
        match data::dtype(i32::try_from(code).unwrap_or(-1)) {
            Ok(d) => Ok(Some(d)),
            Err(found) => Err(Stop::Opaque(format!("it needs {found}"))),
        }
    }

    /// An axis counted from 0, given that negative ones count from the end of `rank` axes.
    pub fn axis_of(&self, axis: i64, rank: usize) -> Lowered<usize> {
        self.axis_within(axis, rank)
    }

    pub fn axis_or(&self, name: &str, default: i64, rank: usize) -> Lowered<usize> {
        self.axis_of(self.int_or(name, default)?, rank)
    }

    /// The axes that operand `i` or, in older versions, an attribute names, ascending; `None` if neither is there.
    pub fn axes(&mut self, i: usize, rank: usize) -> Lowered<Option<Vec<usize>>> {
        let given = match self.opt_consts(i, "axes")? {
            Some(axes) => Some(axes),
            None => self.opt_attribute_ints("axes")?.map(<[i64]>::to_vec),
        };
        given.map(|axes| self.axes_within(&axes, rank)).transpose()
    }

    // Results.

    pub fn result_count(&self) -> usize {
        self.results.len()
    }

    /// Whether anything reads a result.
    pub fn wants(&self, result: usize) -> bool {
        let name = self.node.output.get(result).filter(|n| !n.is_empty());
        name.is_some_and(|n| self.lowering.scope.is_read(n))
    }

    /// The declared type of a result, if all of it is known.
    pub fn declared(&self, result: usize) -> Lowered<Option<Type>> {
        match self.node.output.get(result) {
            Some(name) => Ok(self.lowering.declared_type(name)?),
            None => Ok(None),
        }
    }

    fn bind(&mut self, result: usize, binding: Binding<'p>) {
        if let Some(slot) = self.results.get_mut(result) {
            *slot = Some(binding);
        }
    }

    pub fn set(&mut self, result: usize, value: ValueId) {
        self.bind(result, Binding::Value(value));
    }

    pub fn set_known(&mut self, result: usize, known: Known) {
        self.bind(result, Binding::Known(known, None));
    }

    /// States the value of the only result.
    pub fn done(&mut self, value: ValueId) -> Lowered {
        self.set(0, value);
        Ok(())
    }

    pub fn sequence(&mut self, i: usize) -> Lowered<Vec<ValueId>> {
        let name = operand(i, self.name(i))?;
        match self.lowering.resolve(name)? {
            Binding::Sequence(parts) => Ok(parts),
            _ => broken(format!("expected a sequence, found the tensor `{name}`")),
        }
    }

    /// States that the only result is a sequence.
    pub fn set_sequence(&mut self, parts: Vec<ValueId>) {
        self.bind(0, Binding::Sequence(parts));
    }

    /// States what the only result is, by an operand.
    pub fn same_as(&mut self, i: usize) -> Lowered {
        let name = operand(i, self.name(i))?;
        let binding = self.lowering.resolve(name)?;
        self.bind(0, binding);
        Ok(())
    }

    pub fn values(&self) -> Vec<Option<ValueId>> {
        let value = |b: &Option<Binding<'_>>| match b {
            Some(Binding::Value(v)) => Some(*v),
            _ => None,
        };
        self.results.iter().map(value).collect()
    }

    pub fn forget_values(&mut self) {
        for result in &mut self.results {
            result.take_if(|b| matches!(b, Binding::Value(_) | Binding::Sequence(_)));
        }
    }

    pub fn finish(self) -> Lowered {
        self.all_read()?;
        let Call { lowering, node, results, first_new, .. } = self;
        for (name, binding) in node.output.iter().zip(results) {
            if name.is_empty() {
                continue;
            }
            let Some(binding) = binding else {
                let why = format!("a result of {} that has no counterpart", node.op_type);
                lowering.scope.bind(name, Binding::Nothing(why)).map_err(Stop::Broken)?;
                continue;
            };
            let ty = match &binding {
                Binding::Value(v) => Some(lowering.builder.graph().ty(*v).clone()),
                Binding::Known(Known::Data(data), _) => Some(type_of(data)),
                _ => None,
            };
            if let Some(ty) = ty {
                lowering.check_declared(node, name, &ty)?;
            }
            if let Binding::Value(v) = binding
                && symmc_ir::entity::Entity::index(v) >= first_new
                && lowering.builder.graph().name_of(v) != name
            {
                let shown = format!("{}{name}", lowering.scope.prefix);
                lowering.builder.rename(v, &shown)?;
            }
            lowering.scope.bind(name, binding).map_err(Stop::Broken)?;
        }
        Ok(())
    }
}
