//! Ops that state facts about shapes and dtypes, and integer arithmetic on extents.
//!
//! The program has expressions for integers, so the ops that compute them vanish. Assertions vanish as well.
//! An assertion that contradicts known facts is an error.

use symmc_import::requirement::is_within_limits;
use symmc_import::{Emit, invalid, invalid_if, unsupported};
use symmc_ir::{BinaryOp, DType, Dim, Scalar};

use super::{RuleRow, row_of_results};
use crate::call::OpCall;
use crate::dtype;
use crate::lower::RuleResult;
use crate::schema::Argument;

pub(super) const RULE_ROWS: &[RuleRow] = &[
    row_of_results("aten.sym_size", "(an extent)", sym_size),
    row_of_results("aten.item aten._local_scalar_dense", "(an integer)", read_integer),
    row_of_results("aten.sym_numel", "(an extent)", nothing),
    row_of_results(
        "aten.sym_stride aten.sym_storage_offset _operator.add _operator.sub _operator.mul \
         _operator.floordiv _operator.mod _operator.neg _operator.pos _operator.lshift _operator.rshift \
         _operator.pow torch.sym_max torch.sym_min torch.sym_int torch.sym_sum builtins.round math.ceil \
         math.floor math.trunc",
        "(an integer)",
        nothing,
    ),
    row_of_results("aten._assert_tensor_metadata", "(checked)", assert_metadata),
    row_of_results("aten._assert_scalar aten._functional_assert_scalar", "(checked)", assert_scalar),
    row_of_results(
        "aten._assert_async aten._functional_assert_async aten._functional_sym_constrain_range \
         aten._make_dep_token torch._C._set_grad_enabled",
        "(nothing)",
        nothing,
    ),
    row_of_results("aten.sym_constrain_range aten.sym_constrain_range_for_size", "(checked)", constrain),
    row_of_results("_operator.truediv torch.sym_float torch.sym_ite torch.sym_sqrt", "(a number)", nothing),
    row_of_results(
        "_operator.eq _operator.ne _operator.lt _operator.le _operator.gt _operator.ge _operator.and_ \
         _operator.or_ _operator.not_ torch.sym_not",
        "(a fact)",
        nothing,
    ),
];

fn nothing(c: &mut OpCall<'_, '_>) -> RuleResult {
    c.ignore_all();
    Ok(())
}

/// Reads an integer from a tensor: a size that depends on data ([`crate::data_sizes`]). A value beyond the range
/// that the program declares is an error of the run.
fn read_integer(c: &mut OpCall<'_, '_>) -> RuleResult {
    let x = c.first_tensor()?;
    let name = crate::data_sizes::read_symbol(c.lowering.scope.graph, c.node);
    let Some(id) = name.and_then(|name| c.lowering.symbols.data.symbol(name)) else {
        return unsupported!("it reads a number that depends on data, and is no integer");
    };
    invalid_if!(c.dtype(x).is_float(), "expected an integer tensor, found {dtype}", dtype = c.dtype(x));
    let x = c.reshape(x, vec![])?;
    let mut value = c.cast(x, DType::I64)?;
    if let Some(limit) = c.lowering.symbols.data.declared_limit(id) {
        let beyond = c.binary_scalar(BinaryOp::Gt, value, Scalar::Int(limit))?;
        let zero = c.emit_check(beyond)?;
        let zero = c.reshape(zero, vec![])?;
        value = c.binary(BinaryOp::Add, value, zero)?;
    }
    c.lowering.packed.bind_symbol(id, value);
    Ok(())
}

/// The declared extent of the result must be that of the operand.
fn sym_size(c: &mut OpCall<'_, '_>) -> RuleResult {
    c.ignore(&["dim"]);
    let x = c.first_tensor()?;
    let Some(Argument::SymInt(result)) = c.node.outputs.first() else { return Ok(()) };
    let (Some(name), Some(_)) = (&result.as_name, c.get("dim")) else { return Ok(()) };
    let axis = c.axis("dim", c.rank(x))?;
    let extent = c.ty(x).shape.get(axis).cloned().unwrap_or(1.into());
    let Some(value) = c.lowering.scope.graph.sym_int_values.get(&**name) else {
        return invalid!("expected an entry in sym_int_values for `{}`, found none", &**name);
    };
    if c.packed_length(x, axis).is_some() {
        return Ok(());
    }
    let declared = c.lowering.symbols.resolve_size(value)?;
    let declared = c.lowering.symbols.data.normalize(&declared);
    invalid_if!(
        c.lowering.symbols.data.depends_on_data(&declared),
        "expected an extent of `{expected}`, which depends on data, found {extent:?}",
        expected = c.lowering.symbols.data.display(&declared)
    );
    let (low, high) = c.dim_bounds(&(extent.clone() - declared.clone()));
    invalid_if!(low > 0 || high < 0, "expected an extent of {declared:?}, found {extent:?}");
    c.require_equal("extent", &extent, &declared)
}

fn assert_metadata(c: &mut OpCall<'_, '_>) -> RuleResult {
    c.ignore(&["stride"]);
    let x = c.first_tensor()?;
    let ty = c.ty(x).clone();
    if let Some(Argument::ScalarType(code)) = c.get("dtype") {
        let fits = dtype::from_schema(*code).is_ok_and(|d: DType| d == ty.dtype);
        invalid_if!(
            !fits,
            "it asserts a dtype of {expected}, found {}",
            ty.dtype,
            expected = dtype::from_schema(*code).map_or_else(|name| name, |d| d.to_string())
        );
    }
    let Some(size) = c.opt_dims("size")? else { return Ok(()) };
    let agree = size.len() == ty.rank()
        && size.iter().zip(&ty.shape).all(|(a, b)| {
            let (low, high) = c.dim_bounds(&(a.clone() - b.clone()));
            low <= 0 && high >= 0
        });
    if agree {
        let mut pairs = size.iter().zip(&ty.shape);
        return pairs.try_for_each(|(expected, found)| c.require_equal("size", found, expected));
    }
    invalid!("it asserts a size of {size:?}, found {:?}", ty.shape)
}

fn assert_scalar(c: &mut OpCall<'_, '_>) -> RuleResult {
    c.ignore(&["assert_msg", "dep_token"]);
    let mut relation = None;
    let mut truth = match c.argument_at(0) {
        Some(Argument::Bool(b)) => Some(*b),
        Some(Argument::SymBool(s)) => match &s.as_name {
            Some(name) => {
                let value = c.lowering.scope.graph.sym_bool_values.get(&**name);
                relation = value.and_then(|v| v.as_expr.as_ref()).map(|e| &*e.expr_str);
                value.and_then(|v| v.as_bool)
            }
            None => s.as_bool,
        },
        _ => None,
    };
    if let (None, Some(text)) = (truth, relation) {
        truth = c.lowering.symbols.decide_relation(text);
    }
    match (truth, relation) {
        (Some(false), _) => {
            let message = c.opt_string("assert_msg").ok().flatten().unwrap_or("the condition");
            invalid!("the assertion never holds: {message}")
        }
        (None, Some(text)) => {
            // Three kinds of assertions are not checked: about numbers that depend on data, about products of
            // sizes beyond the limits, and those that are not conjunctions.
            let conditions = c.lowering.symbols.relation_conditions(text).unwrap_or_default();
            let table = &c.lowering.symbols.table;
            let checked: Vec<_> = conditions
                .into_iter()
                .filter(|(low, high)| is_within_limits(low, table) && is_within_limits(high, table))
                .collect();
            checked.iter().try_for_each(|(low, high)| c.require_at_most("assertion", low, high))
        }
        _ => Ok(()),
    }
}

fn constrain(c: &mut OpCall<'_, '_>) -> RuleResult {
    c.ignore(&["min", "max"]);
    let Some(arg) = c.argument_at(0) else { return Ok(()) };
    // A size that depends on data has no dim. It is rejected where it is used.
    let Ok(size) = c.dim_from_argument("size", arg) else { return Ok(()) };
    let (low, high) = c.dim_bounds(&size);
    let min = c.opt_int("min")?;
    let max = c.opt_int("max")?;
    invalid_if!(
        min.is_some_and(|m| high < m) || max.is_some_and(|m| low > m),
        "it asserts a size from {} to {}, found one from {low} to {high}",
        min.map_or("any".into(), |m| m.to_string()),
        max.map_or("any".into(), |m| m.to_string())
    );
    let ends = [min.map(|min| (Dim::from(min), size.clone())), max.map(|max| (size, Dim::from(max)))];
    ends.iter().flatten().try_for_each(|(low, high)| c.require_at_most("size", low, high))
}
