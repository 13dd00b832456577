//! Which values have a number of rows that depends on data, and what their sizes are. [`crate::packed`] emits
//! nodes for such values.

use std::collections::HashMap;
use symmc_import::has_word;

use symmc_ir::{Dim, SymbolId, ValueId};

use crate::effects::bare_target;

/// The axis of a value of which only the first elements count, and their number over the symbols of
/// [`crate::data_sizes`].
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct PackedRows {
    pub axis: usize,
    pub length: Dim,
}

/// Operators whose result has the given extents and equal rows, or rows that follow from their number.
const CREATING: &str = "aten.arange aten.broadcast_to aten.empty aten.empty_like aten.empty_permuted aten.empty_strided \
     aten.expand aten.full aten.full_like aten.new_empty aten.new_empty_strided aten.new_full \
     aten.new_ones aten.new_zeros aten.ones aten.ones_like aten.zeros aten.zeros_like";

/// Operators that take extents of their result, or of parts of it, as integers.
const SHAPING: &[&str] =
    &["aten.view", "aten.reshape", "aten._unsafe_view", "aten.unflatten", "aten._assert_tensor_metadata"];

pub(crate) fn op_of(target: &str) -> &str {
    let target = bare_target(target);
    target.rsplit_once('.').map_or(target, |(op, _)| op)
}

pub(crate) fn creates_rows(target: &str) -> bool {
    has_word(CREATING, op_of(target))
}

/// Whether integers that depend on data are extents in the arguments of this op.
pub(crate) fn takes_extents(target: &str) -> bool {
    creates_rows(target) || SHAPING.contains(&op_of(target))
}

#[derive(Clone, Default)]
pub(crate) struct PackedValues {
    rows: HashMap<ValueId, PackedRows>,
    /// The values of symbols that depend on data: integers without axes.
    pub symbols: HashMap<SymbolId, ValueId>,
    pub counts: HashMap<Dim, ValueId>,
    pub masks: HashMap<(Dim, Dim), ValueId>,
}

impl PackedValues {
    pub fn rows(&self, value: ValueId) -> Option<&PackedRows> {
        self.rows.get(&value)
    }

    pub fn any(&self, values: &[ValueId]) -> bool {
        !self.rows.is_empty() && values.iter().any(|v| self.rows.contains_key(v))
    }

    pub fn set(&mut self, value: ValueId, rows: PackedRows) {
        self.rows.insert(value, rows);
    }

    pub fn bind_symbol(&mut self, symbol: SymbolId, value: ValueId) {
        self.symbols.insert(symbol, value);
    }

    /// Whether a value is a size that depends on data.
    pub fn is_count(&self, value: ValueId) -> bool {
        self.counts.values().any(|v| *v == value)
    }
}
