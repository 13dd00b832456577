//! The values that hold known expressions.

use symmc_import::{Emit, Lowered};
use symmc_ir::{Builder, Type, ValueId};

use crate::error::Reason;
use crate::known::Ints;

/// Emits nodes that no node of the program stands for.
struct Aside<'a> {
    builder: &'a mut Builder,
    label: &'a str,
}

impl Emit for Aside<'_> {
    type Error = Reason;

    fn builder(&self) -> &Builder {
        self.builder
    }

    fn builder_mut(&mut self) -> &mut Builder {
        self.builder
    }

    fn label(&self) -> &str {
        self.label
    }
}

/// A value that holds these expressions.
pub(crate) fn ints(builder: &mut Builder, label: &str, ints: &Ints) -> Lowered<ValueId, Reason> {
    let mut e = Aside { builder, label };
    let mut parts = Vec::with_capacity(ints.dims.len());
    for dim in &ints.dims {
        let one = e.dim_tensor(dim, ints.dtype)?;
        parts.push(e.reshape(one, vec![1.into()])?);
    }
    let shape: Vec<symmc_ir::Dim> = ints.shape.iter().map(|&d| (d as i64).into()).collect();
    if parts.is_empty() {
        return e.emit_as(
            "none",
            symmc_ir::Op::Full(symmc_ir::Scalar::Int(0)),
            &[],
            Type::new(ints.dtype, shape),
        );
    }
    let row = e.concat(&parts, 0)?;
    e.reshape(row, shape)
}
