//! Typing rules: for each op a node that it accepts and nodes that it refuses, in text form.

use symmc_ir::text::parse;

const HEADER: &str = "program \"t\" ranks 4
symbol n in 1..=8
symbol m in 1..=8
group @all world
group @pairs [[0, 1], [2, 3]]
custom \"c\" symmetric operands [] results []
arg %s: f32[]
arg %x: f32[n, 8]
arg %y: f32[8, m]
arg %v: f32[8]
arg %h: bf16[n, 8]
arg %i: i64[n, 8]
arg %r: i64[m]
arg %k: i32[n]
arg %b: bool[n, 8]
arg %q: f32[2, 4, n, 8]
arg %kv: f32[2, 2, m, 8]
arg %splits: i64[4]
arg %c: f32[8, 8]
arg %sinks: f32[4, 1, 1]
arg %experts: f32[3, 8, m]
arg %ends: i32[3]
";

fn read(node: &str) -> Result<(), String> {
    parse(&format!("{HEADER}{node}\n")).map(drop).map_err(|e| e.message)
}

#[test]
fn accepted() {
    for node in [
        "%o: f32[n, 8] = add %x, %v",
        "%o: f32[n, 8] = add %x, %s",
        "%o: bool[n, 8] = lt %i, %i",
        "%o: bool[n, 8] = is_nan %h",
        "%o: f32[n, 8] = select %b, %v, %s",
        "%o: f32[n, m] = matmul %x, %y",
        "%o: f32[2, 4, n, n] = matmul %q, %t",
        "%o: f32[n, m] = grouped_matmul %x, %experts, %ends",
        "%o: f32[3, n, m] = grouped_matmul %x, %y, %ends",
        "%o: f32[2, 4, n, 8] = attention %q, %kv, %kv causal=false scale=1.0",
        "%o: f32[2, 4, n, 8] = attention %q, %kv, %kv bounds=[below row + (1), from chunk 4 of row + (-n)] scale=1.0",
        "%o: f32[2, 4, n, 8] = attention %q, %kv, %kv, %k1, %s1 bounds=[from operand + (0), below row + operand + (m)] \
         scale=1.0 cap=50.0",
        "%o: f32[2, 4, n, 8] = attention %q, %kv, %kv, %k1, %sinks bounds=[below operand + (1)] scale=1.0 cap=2.0 sink=true",
        "%o: f32[2, n, 4, 8] = attention %q, %kv, %kv causal=true scale=1.0 perm=[0, 2, 1, 3]",
        "%o: f32[2, 4, n, 8] = rotary_embedding %q, %x, %x width=8 interleaved=false",
        "%o: bf16[n, 8] = rotary_embedding %h, %v, %v width=8 interleaved=true",
        "%o: f32[8, 8] = rotary_embedding %c, %v4, %v4 width=4 interleaved=true",
        "%o: f32[8, 8] = rotary_embedding %c, %v4, %v4 width=8 interleaved=true",
        "%o: f32[m, 8] = take %x, %r axis=0",
        "%o: f32[n, m] = take %x, %r axis=1",
        "%o: f32[n] = index %x, %k, %k axis=0",
        "%o: f32[8, 8] = index_put %c, %s, %r, %r axis=0 accumulate=false",
        "%o: f32[n, 8] = index_add %x, %r, %rows axis=0",
        "%o: f32[2*n, 8] = concat %x, %x axis=0",
        "%o: f32[n, 2] = shard %x axis=1 group=@all",
        "%o: f32[4, 8] = shard %c axis=0 group=@pairs",
        "%o: f32[n, 16] = concat %x, %x axis=1",
        "%o: f32[8*n] = reshape %x",
        "%o: f32[2*n, 4] = reshape %x",
        "%o: f32[3, n, 8] = expand %v",
        "%o: f32[n, 2] = slice %x axis=1 start=1 step=3",
        "%o: f32[n, 1], %p: i64[n, 1] = topk %x axis=1 largest=true",
        "%o: f32[n + 2, 8] = pad %x low=[1, 0] value=0.0",
        "%o: i64[n, 8] = cumsum %b axis=0",
        "%o: i64[] = reduce %b op=sum axes=[0, 1] keep=false",
        "%o: f32[4*n, 8] = all_gather %x group=@all",
        "%o: f32[2*n, 8] = all_gather %x group=@pairs",
        "%o: f32[2, m] = reduce_scatter %y op=sum group=@all",
        "%o: f32[8, m] = all_to_all %y splits=even group=@all",
        "%o: f32[8, m], %p: i64[4] = all_to_all %y, %splits splits=device group=@all",
        "%o: f32[n, 8] = permute_ranks %x pairs=[1->0] group=@pairs",
        "%o: f32[] = opaque \"x\" attributes=\"\"",
        "%o: f32[], %p: i64[n] = custom \"c\" %x, %i",
    ] {
        let extra = "arg %v4: f32[4]\narg %t: f32[8, n]\narg %t2: f32[m, n, 8]\narg %rows: f32[m, 8]\narg %k1: i32[n, 1]\narg %s1: i64[]\n";
        assert_eq!(read(&format!("{extra}{node}")), Ok(()), "{node}");
    }
}

/// Ops with operands of the test's program, declared to give `f32[]`, and the rule that they break.
const REFUSED: &[(&str, &str)] = &[
    ("add %x", "it takes 2 operands, found 1"),
    ("add %x, %h", "the dtypes differ: f32 and bf16"),
    ("add %x, %y", "the extents 8 and m do not broadcast"),
    ("add %b, %b", "add is not defined on bool"),
    ("and %x, %x", "and is not defined on f32"),
    ("div %i, %i", "div is not defined on i64"),
    ("exp %i", "exp is not defined on i64"),
    ("relu %x", "the result must be f32[n, 8], found f32[]"),
    ("select %x, %x, %x", "the condition must be bool, found f32"),
    ("cast %x", "the shape must stay [n, 8], found []"),
    ("matmul %x, %x", "the inner extents differ: 8 and n"),
    ("matmul %x, %v", "both operands need two axes or more, found 2 and 1"),
    (
        "grouped_matmul %x, %v, %ends",
        "expected [rows, k] and [groups, k, n], or [m, k] and [k, n], found [n, 8] and [8]",
    ),
    ("grouped_matmul %x, %x, %ends", "the inner extents differ: 8 and n"),
    ("grouped_matmul %x, %y, %i", "the ends of the groups must be i32 or i64 [groups], found i64[n, 8]"),
    ("grouped_matmul %h, %experts, %ends", "the dtypes differ: bf16 and f32"),
    ("grouped_matmul %y, %experts, %ends", "the inner extents differ: m and 8"),
    ("grouped_matmul %x, %experts, %splits", "the ends of the groups must be i32 or i64 [3], found i64[4]"),
    ("grouped_matmul %x, %experts, %v", "the ends of the groups must be i32 or i64 [3], found f32[8]"),
    ("grouped_matmul %x, %experts", "it takes 3 operands, found 2"),
    ("reduce %x op=sum axes=[2] keep=false", "axis 2 is out of range: the operand has 2 axes"),
    ("reduce %x op=sum axes=[1, 0] keep=false", "the axes must ascend"),
    ("reduce %x op=sum axes=[0, 0] keep=false", "the axes must ascend"),
    ("reduce %i op=mean axes=[0] keep=false", "mean needs a floating-point operand, found i64"),
    ("softmax %i axis=0 log=false", "it needs a floating-point operand, found i64"),
    ("softmax %s axis=0 log=false", "axis 0 is out of range: the operand has 0 axes"),
    ("rms_norm %x axes=3 eps=0.0 round_first=false", "the number of normalised axes must be 1 to 2, found 3"),
    ("rms_norm %x axes=0 eps=0.0 round_first=false", "the number of normalised axes must be 1 to 2, found 0"),
    ("layer_norm %x, %r axes=1 eps=0.0", "weight and bias must be f32[8], found i64[m]"),
    ("attention %q, %q, %kv causal=true scale=1.0", "the heads of k and v differ: 4 and 2"),
    ("attention %kv, %q, %q causal=true scale=1.0", "the heads of k, 4, do not divide those of q, 2"),
    ("attention %q, %kv, %kv, %x causal=true scale=1.0", "the extents 8 and m do not broadcast"),
    (
        "attention %q, %kv, %kv bounds=[from row + operand + (1)] scale=1.0",
        "it takes 4 to 5 operands, found 3",
    ),
    (
        "attention %q, %kv, %kv, %x bounds=[from row + operand + (1)] scale=1.0",
        "the positions of a bound must be i32 or i64, found f32",
    ),
    (
        "attention %q, %kv, %kv, %i bounds=[from row + operand + (1)] scale=1.0",
        "the positions [n, 8] do not broadcast to [2, 4, n, 1]",
    ),
    (
        "attention %q, %kv, %kv bounds=[from chunk 1099511627777 of row + (1)] scale=1.0",
        "a chunk must have 1 to 1099511627776 positions, found 1099511627777",
    ),
    ("attention %q, %kv, %kv causal=true scale=1.0 sink=true", "it takes 4 to 5 operands, found 3"),
    (
        "attention %q, %kv, %kv, %r causal=true scale=1.0 sink=true",
        "the sink must be floating-point, found i64",
    ),
    (
        "attention %q, %kv, %kv, %x causal=true scale=1.0 sink=true",
        "the sink [n, 8] does not broadcast to [2, 4, n, 1]",
    ),
    ("attention %q, %kv, %kv causal=false scale=1.0 cap=0.0", "the cap must be a positive number, found 0.0"),
    (
        "rotary_embedding %x, %v, %i width=8 interleaved=false",
        "the cosines and sines differ: f32[8] and i64[n, 8]",
    ),
    (
        "rotary_embedding %h, %h, %h width=3 interleaved=true",
        "the width must be even and at least 2, found 3",
    ),
    (
        "rotary_embedding %x, %v, %v width=16 interleaved=true",
        "expected rows of at least 16 elements, found [n, 8]",
    ),
    ("rotary_embedding %x, %v, %v width=4 interleaved=true", "expected 4 or 2 cosines in a row, found [8]"),
    ("rotary_embedding %x, %q, %q width=8 interleaved=true", "the cosines have 4 axes, x has 2"),
    ("rotary_embedding %x, %h, %h width=8 interleaved=true", "the cosines must be f32 or wider, found bf16"),
    (
        "attention %q, %kv, %kv causal=true scale=1.0 perm=[0, 2, 1]",
        "[0, 2, 1] is not a permutation of 4 axes",
    ),
    ("take %x, %v axis=0", "an index must be an integer tensor, found f32"),
    ("index %x, %r, %r axis=1", "2 indices from axis 1 on exceed an operand with 2 axes"),
    ("gather_elements %x, %r axis=0", "expected 2 axes, found 1"),
    ("scatter_elements %x, %i, %v axis=0 combine=none", "src must be f32[n, 8], found f32[8]"),
    ("index_add %x, %i, %x axis=0", "the index must have one axis"),
    ("index_add %x, %r, %x axis=0", "src must be f32[m, 8], found f32[n, 8]"),
    ("index_put %c, %x, %r axis=0 accumulate=true", "the extents n and m do not broadcast"),
    ("concat %x, %x axis=2", "axis 2 is out of range: the operand has 2 axes"),
    ("concat %x, %y axis=0", "extents of axis 1 differ: 8 and m"),
    ("concat axis=0", "it takes at least 1 operands, found 0"),
    ("permute %x perm=[0, 0]", "[0, 0] is not a permutation of 2 axes"),
    ("permute %x perm=[0]", "[0] is not a permutation of 2 axes"),
    ("reshape %x", "8*n elements do not fit []"),
    ("expand %x", "[n, 8] does not expand to []"),
    ("slice %v axis=0 start=0 step=1", "expected 1 axes, found 0"),
    ("iota start=0 step=1", "the result must have one axis and a number type"),
    ("topk %x axis=0 largest=true", "it gives 2 results, found 1"),
    ("all_reduce %b op=sum group=@all", "it is not defined on bool"),
    ("all_gather %s group=@all", "all_gather needs an operand with an axis"),
    ("reduce_scatter %x op=sum group=@all", "the leading extent n is not a multiple of 4 ranks"),
    ("shard %x axis=0 group=@all", "the leading extent n is not a multiple of 4 ranks"),
    ("shard %y axis=1 group=@pairs", "the extent m of axis 1 is not a multiple of 2 ranks"),
    ("shard %s axis=0 group=@all", "axis 0 is out of range: the operand has 0 axes"),
    ("all_to_all %y splits=device group=@all", "it takes 2 operands, found 1"),
    ("all_to_all %y, %r splits=device group=@all", "the split sizes must be i64[4], found i64[m]"),
    ("broadcast %x root=2 group=@pairs", "the root 2 is not in a group of 2 ranks"),
    ("permute_ranks %x pairs=[0->1, 0->2] group=@all", "rank 0 sends twice"),
    ("permute_ranks %x pairs=[0->1, 2->1] group=@all", "rank 1 receives twice"),
    ("permute_ranks %x pairs=[0->4] group=@all", "the receiver 4 is not in a group of 4 ranks"),
];

#[test]
fn invalid_nodes_are_rejected() {
    for (node, message) in REFUSED {
        let op = node.split(' ').next().unwrap();
        assert_eq!(read(&format!("%o: f32[] = {node}")), Err(format!("%o: {op}: {message}")), "{node}");
    }
    for (node, message) in [
        ("%o: f32[n, 4] = slice %x axis=1 start=0 step=0", "slice: the step must be at least 1, found 0"),
        (
            "%o: f32[m, 4] = slice %x axis=1 start=0 step=1",
            "slice: the extent of axis 0 must stay n, found m",
        ),
        (
            "%o: f32[n] = pad %v low=[] value=0.0",
            "pad: `low` must have one entry per axis: expected 1, found 0",
        ),
        ("%o: bool[n] = iota start=0 step=1", "iota: the result must have one axis and a number type"),
        ("%o: i64[n, 8] = reshape %x", "reshape: the result must be f32, found i64"),
        (
            "%o: f32[n, 1], %p: i32[n, 1] = topk %x axis=1 largest=true",
            "topk: the positions must be i64[n, 1], found i32[n, 1]",
        ),
    ] {
        assert_eq!(read(node), Err(format!("%o: {message}")), "{node}");
    }
}

#[test]
fn open_ranks_leave_collectives_untyped() {
    let text = "program \"t\" ranks ?\ngroup @g world\narg %x: f32[8]\n";
    let node = "%o: f32[16] = all_gather %x group=@g\n";
    let error = parse(&format!("{text}{node}")).unwrap_err();
    assert_eq!(error.message, "%o: all_gather: the number of ranks is open");
    assert!(parse(&format!("{text}%o: f32[8] = all_reduce %x op=sum group=@g\n")).is_ok());
}
