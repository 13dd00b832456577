//! The `.symm` text form of a graph.
//!
//! [`print()`] writes a graph, and [`parse()`] reads one. Parsing printed text gives the same graph, ids
//! included, and printing it again gives the same text. Parsing checks syntax, names and the typing of every
//! node. [`crate::verify`] checks all other invariants of a graph.
//!
//! # The form
//! Each line is one statement; a line may break after a comma and within brackets. `//` starts a comment. The
//! first statement is `program`. Every other statement follows the statements that it refers to:
//!
//! ```text
//! program "name" ranks 4                        // `ranks ?` while the number is open
//! symbol tokens in 2..=4096 alias "s23"         // the alias is optional
//! group @tp [[0, 1], [2, 3]]                    // or: group @all world
//! custom "ns::op" symmetric operands [0] results [] group @tp    // the group is optional
//! param %w: f32[128, 64] source "e.weight"      // `param`, `arg`; the source is optional
//! const %b: f32[2] = hex"0000803f00000040"      // little-endian bytes
//! %y: f32[tokens, 64] = take %w, %ids axis=0    // results = op operands attributes
//! %v: f32[8, 8], %i: i64[8, 8] = topk %t axis=1 largest=true
//! return %y                                     // an output to the caller
//! mutate %buf = %new                            // an output into an input
//! ```
//!
//! - Values are `%name`, groups `@name`. A name with characters other than letters, digits, `_` and `.` is
//!   quoted: `%"a b"`. Strings have the escapes `\"`, `\\`, `\n`, `\r`, `\t` and `\u{hex}`.
//! - A dim is a sum of products: `4*tokens*(n + 1) - div(tokens, 2)`, with the functions `div` (floor), `mod`
//!   (sign of the divisor), `max` and `min` of two dims.
//! - A scalar is `true`, `false`, an integer, or a float, which has a point or an exponent or is `inf`, `-inf`
//!   or `nan`.
//! - An element-wise op of two operands takes a scalar instead of either: `sub 1.0, %x`.
//! - Attributes follow the operands in a fixed order. All are required, except `via`, the variant of a
//!   collective, which is absent if none is chosen.
//!
//! Files, and any other rendering of a graph, belong to other crates.

mod attributes;
mod cursor;
mod error;
pub mod forms;
mod lexer;
mod names;
mod ops;
mod parse;
mod print;
mod reference;
mod table;
mod writer;

pub use error::ParseError;
pub use forms::{op_dims, op_dims_mut, op_name, op_names};
pub use names::with_symbol_names;
pub use parse::{parse, parse_dim, program_name};
pub use print::{collective_attributes, print};
pub use reference::reference;
