//! Sizes that depend on data as values: integers without axes.

use symmc_import::{Emit, invalid};
use symmc_ir::{BinaryOp, DType, Dim, GraphBuilder};

use crate::error::ImportError;
use crate::lower::{EmitResult, ImportLowering, RuleFailure};

/// Emits nodes that belong to no node of the program.
struct SizeEmitter<'a, 'p> {
    lowering: &'a mut ImportLowering<'p>,
    label: &'a str,
}

impl Emit for SizeEmitter<'_, '_> {
    type Error = ImportError;

    fn builder(&self) -> &GraphBuilder {
        &self.lowering.builder
    }

    fn builder_mut(&mut self) -> &mut GraphBuilder {
        &mut self.lowering.builder
    }

    fn label(&self) -> &str {
        self.label
    }
}

/// The number of rows of an output.
pub(crate) fn emit_output_length(lowering: &mut ImportLowering<'_>, length: &Dim) -> EmitResult {
    emit_terms(lowering, "length", length)
}

/// A size over the symbols of [`crate::data_sizes`], whatever it is known to equal.
pub(super) fn emit_terms(lowering: &mut ImportLowering<'_>, label: &str, length: &Dim) -> EmitResult {
    if let Some(known) = lowering.packed.counts.get(length) {
        return Ok(*known);
    }
    let split = lowering.symbols.data.split_linear(length);
    let (terms, rest) = split.map_err(RuleFailure::Invalid)?;
    let mut emitter = SizeEmitter { lowering, label };
    let mut sum = None;
    for (id, factor) in terms {
        let Some(&value) = emitter.lowering.packed.symbols.get(&id) else {
            let name = emitter.lowering.symbols.data.display(&id.into());
            return invalid!("`{name}` is used before it is read from a tensor");
        };
        let term = match factor.as_const() {
            Some(1) => value,
            _ => emitter.binary_dim(BinaryOp::Mul, value, &factor)?,
        };
        sum = Some(match sum {
            None => term,
            Some(sum) => emitter.binary(BinaryOp::Add, sum, term)?,
        });
    }
    let value = match (sum, rest.as_const()) {
        (None, _) => emitter.emit_dim(&rest, DType::I64)?,
        (Some(sum), Some(0)) => sum,
        (Some(sum), _) => emitter.binary_dim(BinaryOp::Add, sum, &rest)?,
    };
    lowering.packed.counts.insert(length.clone(), value);
    Ok(value)
}
