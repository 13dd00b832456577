//! Kernels on strided views: against values computed by hand ([`expected`]), and against the interpreter on
//! random operands in random layouts ([`oracle`]), at extents around those of blocks ([`blocks`]) and on the values at
//! the edges of the dtypes ([`edges`]).

mod blocks;
mod edges;
mod expected;
mod oracle;
mod support;
