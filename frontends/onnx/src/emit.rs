//! Emits graph nodes that no rule emits, such as the values that hold known integer expressions.

use symmc_import::{Emit, RuleResult};
use symmc_ir::{GraphBuilder, TensorType, ValueId};

use crate::error::FailureReason;
use crate::known_values::SymbolicInts;

/// Emits graph nodes that belong to no node of the program.
pub(crate) struct DetachedEmitter<'a> {
    pub builder: &'a mut GraphBuilder,
    pub label: &'a str,
}

impl Emit for DetachedEmitter<'_> {
    type Error = FailureReason;

    fn builder(&self) -> &GraphBuilder {
        self.builder
    }

    fn builder_mut(&mut self) -> &mut GraphBuilder {
        self.builder
    }

    fn label(&self) -> &str {
        self.label
    }
}

/// Emits a tensor of these expressions.
pub(crate) fn emit_ints(
    builder: &mut GraphBuilder,
    label: &str,
    ints: &SymbolicInts,
) -> RuleResult<ValueId, FailureReason> {
    let mut e = DetachedEmitter { builder, label };
    let mut elements = Vec::with_capacity(ints.dims.len());
    for dim in &ints.dims {
        let element = e.emit_dim(dim, ints.dtype)?;
        elements.push(e.reshape(element, vec![1.into()])?);
    }
    let shape: Vec<symmc_ir::Dim> = ints.shape.iter().map(|&d| (d as i64).into()).collect();
    if elements.is_empty() {
        return e.emit_as(
            "none",
            symmc_ir::Op::Full(symmc_ir::Scalar::Int(0)),
            &[],
            TensorType::new(ints.dtype, shape),
        );
    }
    let row = e.concat(&elements, 0)?;
    e.reshape(row, shape)
}
