//! Shards: each rank takes its piece, along every axis, of values in every layout, on groups of every shape.

use symmc_ir::interp;
use symmc_runtime::exec::{CustomKernelRegistry, ExecConfig};

use crate::support::{check_against_interpreter, planned};

/// Groups of four ranks, with the ranks of a cell.
const GROUPS: [(&str, usize); 6] = [
    ("world", 4),
    ("[[0, 1], [2, 3]]", 2),
    ("[[0, 2], [1, 3]]", 2),
    ("[[3, 2, 1, 0]]", 4),
    ("[[2, 0], [1, 3]]", 2),
    ("[[0], [1], [2], [3]]", 1),
];

/// Values of the shape `[rows, columns]` made of `%x`, so that operands are contiguous, permuted, strided and broadcast.
const OPERANDS: [&str; 4] = [
    "%y: i64[8, 12] = neg %x",
    "%t: i64[12, 8] = reshape %x\n%y: i64[8, 12] = permute %t perm=[1, 0]",
    "%w: i64[16, 12] = concat %x, %x axis=0\n%n: i64[16, 12] = neg %w\n%y: i64[8, 12] = slice %n axis=0 start=1 step=2",
    "%r: i64[1, 12] = slice %x axis=0 start=3 step=1\n%y: i64[8, 12] = expand %r",
];

#[test]
fn ranks_take_their_pieces() {
    for ((group, n), operand) in GROUPS.iter().flat_map(|g| OPERANDS.iter().map(move |o| (g, o))) {
        let program = format!(
            "program \"shards\" ranks 4\ngroup @g {group}\narg %x: i64[8, 12]\n{operand}\n\
             %a: i64[{rows}, 12] = shard %y axis=0 group=@g\n%b: i64[8, {columns}] = shard %y axis=1 group=@g\n\
             %all: i64[8, 12] = all_gather %a group=@g via=push\nreturn %a, %b, %all\n",
            rows = 8 / n,
            columns = 12 / n,
        );
        let none = (&CustomKernelRegistry::new(), &interp::ReferenceKernelRegistry::new());
        check_against_interpreter(&planned(&program), none, ExecConfig::default(), &[], 2);
    }
}

#[test]
fn pieces_of_values_without_elements_are_empty() {
    let program = "program \"none\" ranks 2\ngroup @g world\nsymbol t in 0..=3\narg %x: i64[2*t, 0]\narg %y: i64[2*t, 2]\n\
                   %a: i64[t, 0] = shard %x axis=0 group=@g\n%b: i64[t, 2] = shard %y axis=0 group=@g\nreturn %a, %b\n";
    let none = (&CustomKernelRegistry::new(), &interp::ReferenceKernelRegistry::new());
    for t in [0, 3] {
        check_against_interpreter(&planned(program), none, ExecConfig::default(), &[("t", t)], 1);
    }
}
