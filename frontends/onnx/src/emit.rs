//! How rules emit nodes, by [`symmc_ir::emit`], and the values that hold known expressions.

use symmc_ir::{Builder, Emit, Type, ValueId};

use crate::call::Call;
use crate::known::Ints;
use crate::lower::{Lowered, Lowering, Stop};

impl Emit for Call<'_, '_> {
    type Error = Stop;

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

/// Emits nodes that no node of the program stands for.
struct Aside<'a> {
    builder: &'a mut Builder,
    label: &'a str,
}

impl Emit for Aside<'_> {
    type Error = Stop;

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
pub(crate) fn ints(lowering: &mut Lowering<'_>, label: &str, ints: &Ints) -> Lowered<ValueId> {
    let mut e = Aside { builder: &mut lowering.builder, label };
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
