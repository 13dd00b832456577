//! Names of symbols in messages.

use std::fmt::Write as _;

use crate::entity::Entity;
use crate::symbol::{SymbolId, SymbolTable};

/// A message of [`crate::infer`] with the names of symbols (`tokens`) instead of their ids (`sym0`).
pub fn with_symbol_names(message: &str, symbols: &SymbolTable) -> String {
    let mut out = String::with_capacity(message.len());
    let mut remaining = message;
    while let Some(start) = remaining.find("sym") {
        let digits = remaining[start + 3..].bytes().take_while(u8::is_ascii_digit).count();
        let end = start + 3 + digits;
        let starts_word = !remaining[..start].ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        let index = remaining[start + 3..end].parse::<u32>().ok().filter(|_| starts_word);
        match index.and_then(|i| symbols.get(SymbolId::new(i as usize))) {
            Some(symbol) => {
                let _ = write!(out, "{}{}", &remaining[..start], symbol.name);
            }
            None => out.push_str(&remaining[..end]),
        }
        remaining = &remaining[end..];
    }
    out + remaining
}
