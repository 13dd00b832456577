//! Kernels on strided views: against values worked out by hand ([`expected`]), and against the interpreter
//! on random operands in random layouts ([`oracle`]).

mod expected;
mod oracle;
mod support;
