//! Symbols: sizes that are known only when a program runs.

use crate::entity::EntityMap;

crate::entity!(SymbolId, "sym");

/// The symbols of a program, or of one bucket, whose ranges are then those of the bucket.
pub type SymbolTable = EntityMap<SymbolId, Symbol>;

/// A symbol: an integer between `min` and `max`, both included, fixed for one run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Symbol {
    /// A unique name, an identifier.
    pub name: String,
    /// The smallest value, at least 0.
    pub min: i64,
    pub max: i64,
    /// The name in the imported file, if it differs from `name`.
    pub alias: Option<String>,
}
