//! Which ranks hold the same bits of a value: for each kind of op the parts that it leaves.

use symmc_ir::{Replication, text};

const HEADER: &str = "program \"t\" ranks 4
group @w world
group @turned [[3, 2, 1, 0]]
group @rows [[0, 1], [2, 3]]
group @columns [[0, 2], [3, 1]]
custom \"c\" symmetric operands [] results []
arg %x: f32[8]
arg %i: i64[8]
arg %n: i64[4]
const %k: f32[8] = hex\"0000003f0000803f0000c03f0000004000002040000040400000604000008040\"
%all: f32[32] = all_gather %x group=@w
%row: f32[16] = all_gather %x group=@rows
%column: f32[16] = all_gather %x group=@columns
%ints: i64[16] = all_gather %i group=@rows
";

/// Nodes, and the ranks that hold the same bits of the last result.
const CASES: &[(&str, &[&[u32]])] = &[
    ("%y: f32[8] = neg %x", &[&[0], &[1], &[2], &[3]]),
    ("%y: f32[8] = neg %k", &[&[0, 1, 2, 3]]),
    ("%y: f32[8] = full value=1.0", &[&[0, 1, 2, 3]]),
    ("%y: f32[32] = exp %all", &[&[0, 1, 2, 3]]),
    ("%y: f32[16] = add %row, %row", &[&[0, 1], &[2, 3]]),
    ("%y: f32[16] = add %row, %column", &[&[0], &[1], &[2], &[3]]),
    ("%s: f32[16] = slice %all axis=0 start=0 step=1\n%y: f32[16] = mul %s, %column", &[&[0, 2], &[1, 3]]),
    ("%y: f32[8] = all_reduce %x op=sum group=@turned", &[&[0, 1, 2, 3]]),
    ("%y: f32[8] = broadcast %x root=1 group=@columns", &[&[0, 2], &[1, 3]]),
    // Both columns have the same, in the order of their cells.
    ("%y: i64[16] = all_reduce %ints op=sum group=@columns", &[&[0, 2], &[1, 3]]),
    ("%y: f32[32] = all_gather %row group=@columns", &[&[0, 2], &[1, 3]]),
    ("%y: f32[32] = all_gather %column group=@rows", &[&[0, 1, 2, 3]]),
    ("%y: f32[16] = broadcast %row root=0 group=@turned", &[&[0, 1, 2, 3]]),
    // Another cell may sum floats in another order.
    ("%y: f32[16] = all_reduce %column op=sum group=@rows", &[&[0, 1], &[2, 3]]),
    ("%y: f32[16] = all_reduce %column op=max group=@rows", &[&[0, 1, 2, 3]]),
    ("%y: f32[8] = reduce_scatter %column op=max group=@rows", &[&[0, 2], &[1, 3]]),
    ("%y: f32[8] = reduce_scatter %column op=sum group=@rows", &[&[0], &[1], &[2], &[3]]),
    ("%y: f32[16] = all_to_all %column splits=even group=@rows", &[&[0, 2], &[1, 3]]),
    ("%y: f32[8] = shard %all axis=0 group=@w", &[&[0], &[1], &[2], &[3]]),
    ("%y: f32[16] = shard %all axis=0 group=@columns", &[&[0, 3], &[1, 2]]),
    ("%y: f32[16] = permute_ranks %row pairs=[0->1, 1->2] group=@w", &[&[0, 3], &[1, 2]]),
    ("%y: f32[32], %r: i64[4] = all_to_all %all, %n splits=device group=@w", &[&[0], &[1], &[2], &[3]]),
    ("%y: f32[32] = custom \"c\" %all", &[&[0], &[1], &[2], &[3]]),
    ("%y: f32[32] = opaque \"o\" %all attributes=\"\"", &[&[0], &[1], &[2], &[3]]),
];

#[test]
fn ops_leave_these_ranks_with_the_same_bits() {
    for (nodes, parts) in CASES {
        let graph =
            text::parse(&format!("{HEADER}{nodes}\nreturn %y\n")).unwrap_or_else(|e| panic!("{e}\n{nodes}"));
        let replication = &Replication::of_graph(&graph)[graph.outputs[0].value];
        let part_of = |rank: u32| parts.iter().position(|part| part.contains(&rank));
        for (a, b) in (0..4).flat_map(|a| (0..4).map(move |b| (a, b))) {
            assert_eq!(
                replication.are_replicas(a, b),
                part_of(a) == part_of(b),
                "{nodes}: ranks {a} and {b}"
            );
        }
    }
}

#[test]
fn open_rank_count_proves_no_replication() {
    let graph = text::parse("program \"t\" ranks ?\n%y: f32[8] = full value=1.0\nreturn %y\n").unwrap();
    let replication = &Replication::of_graph(&graph)[graph.outputs[0].value];
    assert!(!replication.are_replicas(0, 1) && !replication.is_uniform_within_cells(&[vec![0, 1]]));
}
