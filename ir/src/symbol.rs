//! Symbols: sizes that are known only when a program runs.

use crate::entity::EntityMap;

crate::entity!(SymbolId, "sym");

/// The symbols of a program; for a bucket with the ranges of that.
pub type SymbolTable = EntityMap<SymbolId, Symbol>;

/// A symbol: an integer between `min` and `max`, both included, fixed for one run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Symbol {
    /// A unique name, an identifier.
    pub name: String,
    /// The smallest value, at least 0.
    pub min: i64,
    pub max: i64,
    /// The name in the file that the program came from, if it is another.
    pub alias: Option<String>,
}
