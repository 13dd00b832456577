//! Arguments that select branches, such as a sampling rate ([`crate::argument_values`]).
//!
//! A condition or a number of iterations may depend on an argument of one integer and on constants only. If the caller
//! states the value of such an argument, or it is recorded, the import takes it for a constant. A run with another value
//! is an error: an output of the program is then read at a position that it does not have.

use std::sync::Arc;

use symmc_import::Emit;
use symmc_ir::{BinaryOp, DType, Dim, Op, Scalar, Tensor, TensorType, ValueId};

use crate::argument_values::FixedArgument;
use crate::emit::DetachedEmitter;
use crate::known_values::KnownValue;
use crate::lower::{EmitResult, ImportLowering, RuleFailure};
use crate::scope::NameBinding;

impl<'p> ImportLowering<'p> {
    /// Binds an argument to the value that it is taken for, if there is one.
    pub fn fix_argument(&mut self, name: &'p str, value: ValueId) -> Result<NameBinding<'p>, String> {
        let Some((number, is_stated)) = self.argument_values.value(name) else {
            return Ok(NameBinding::Value(value));
        };
        if !is_stated {
            self.notes
                .push(format!("assuming `{name}` is {number}, the recorded value: branches depend on it"));
        }
        let ty = self.builder.graph().ty(value);
        let shape = vec![1; ty.rank()];
        let data = Tensor::from_i64(ty.dtype, shape, &[number])
            .ok_or_else(|| format!("expected a value that {} has, found {number}", ty.dtype))?;
        self.fixed_arguments.push(FixedArgument { value, number });
        Ok(NameBinding::Known(KnownValue::Data(Arc::new(data)), Some(value)))
    }

    /// The output, read at a position that it has only if all arguments have the values that they were taken for.
    pub fn check_fixed_arguments(&mut self, output: ValueId) -> EmitResult {
        let mut differs: Option<ValueId> = None;
        let mut emitter = DetachedEmitter { builder: &mut self.builder, label: "fixed_arguments" };
        for FixedArgument { value, number } in &self.fixed_arguments {
            let argument = emitter.cast(*value, DType::I64)?;
            let argument = emitter.reshape(argument, vec![])?;
            let own = emitter.binary_scalar(BinaryOp::Ne, argument, Scalar::Int(*number))?;
            differs = Some(match differs {
                Some(others) => emitter.binary(BinaryOp::Or, others, own)?,
                None => own,
            });
        }
        let Some(differs) = differs else { return Ok(output) };
        let position = emitter.cast(differs, DType::I64)?;
        let ty = emitter.ty(output).clone();
        let stacked = [&[Dim::from(1)], ty.shape.as_slice()].concat();
        symmc_ir::dim::check_shape_complexity(&stacked).map_err(RuleFailure::Invalid)?;
        let output = emitter.reshape(output, stacked)?;
        emitter.emit_as(
            "take",
            Op::Take { axis: 0 },
            &[output, position],
            TensorType::new(ty.dtype, ty.shape),
        )
    }
}
