//! Kernels on strided views: against values computed by hand ([`expected`]), and against the interpreter on
//! random operands in random layouts ([`oracle`]) and on the values at the edges of the dtypes ([`edges`]).

mod edges;
mod expected;
mod oracle;
mod support;
