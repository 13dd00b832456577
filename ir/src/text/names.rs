//! Names of symbols in messages.

use std::fmt::Write as _;

use crate::entity::Entity;
use crate::symbol::{SymbolId, SymbolTable};

/// A message of [`crate::infer`] with the names of symbols (`tokens`) instead of their ids (`sym0`).
pub fn with_symbol_names(message: &str, symbols: &SymbolTable) -> String {
    let mut out = String::with_capacity(message.len());
    let mut rest = message;
    while let Some(at) = rest.find("sym") {
        let digits = rest[at + 3..].bytes().take_while(u8::is_ascii_digit).count();
        let end = at + 3 + digits;
        let starts_word = !rest[..at].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        let index = rest[at + 3..end].parse::<u32>().ok().filter(|_| starts_word);
        match index.and_then(|i| symbols.get(SymbolId::new(i as usize))) {
            Some(symbol) => {
                let _ = write!(out, "{}{}", &rest[..at], symbol.name);
            }
            None => out.push_str(&rest[..end]),
        }
        rest = &rest[end..];
    }
    out + rest
}
