//! Programs that differ for few values only: NaN, zeros, ties, indices at the ends of an axis, the largest elements
//! of one rank. The second program of a pair takes the role of the planned one.

use crate::common::{compared, outcome};
use symmc_compare::{SourceComparison, SourceStatus};

const HEAD: &str = "program \"p\" ranks 2\nsymbol t in 1..=16\ngroup @w world\narg %x: f32[t, 8]\narg %z: f32[t, 8]\n\
    arg %e: f32[20, 8]\narg %m: f32[4, 8, 8]\narg %i: i64[t]\narg %lo: i64[]\narg %p: i64[4]\narg %q: i64[4]\narg %b: bool[t, 8]\n\
    arg %s: f32[t, 4]\narg %h: bf16[t, 8]\narg %g: bf16[8]\n\
    %f0: f32[] = full value=0.0\n%f1: f32[] = full value=1.0\n%i0: i64[] = full value=0\n";

fn pair(source: &str, planned: &str) -> SourceComparison {
    compared(&format!("{HEAD}{source}\nreturn %y\n"), &format!("{HEAD}{planned}\nreturn %y\n"))
}

#[test]
fn finds_differences_for_few_values() {
    let guarded = |op: &str, guard: &str| {
        format!("%r: f32[t, 8] = {op}\n%c: bool[t, 8] = {guard}\n%y: f32[t, 8] = select %c, %f0, %r")
    };
    let compared = |op: &str| format!("%c: bool[t, 8] = {op} %x, %z\n%y: f32[t, 8] = select %c, %f0, %f1");
    let bounded = |op: &str| format!("%k: i64[t] = {op}\n%y: f32[t, 8] = take %e, %k axis=0");
    let shard = |count: i64| {
        format!(
            "%hi: i64[] = add %lo, {count}\n%a: bool[t] = ge %i, %lo\n%c: bool[t] = lt %i, %hi\n%d: bool[t] = and %a, %c\n\
             %o: i64[t] = sub %i, %lo\n%k: i64[t] = select %d, %o, %i0\n%j: i64[t] = rem %k, 20\n%r: f32[t, 8] = take %e, %j axis=0\n\
             %n: bool[t, 1] = reshape %d\n%y: f32[t, 8] = select %n, %r, %f0"
        )
    };
    for (source, planned) in [
        (guarded("neg %x", "is_nan %x"), "%y: f32[t, 8] = neg %x".into()),
        (
            "%c: bool[t, 8] = gt %x, 0.0\n%y: f32[t, 8] = select %c, %x, %f0".into(),
            "%y: f32[t, 8] = relu %x".into(),
        ),
        (guarded("reciprocal %x", "eq %x, 0.0"), "%y: f32[t, 8] = reciprocal %x".into()),
        (guarded("neg %x", "is_nan %x"), guarded("neg %x", "is_nan %z")),
        (
            "%c: bool[t, 8] = is_finite %x\n%y: f32[t, 8] = select %c, %x, %f0".into(),
            "%c: bool[t, 8] = is_nan %x\n%y: f32[t, 8] = select %c, %f0, %x".into(),
        ),
        (compared("ge"), compared("gt")),
        (compared("le"), compared("lt")),
        ("%y: f32[t, 8] = add %x, 0.0".into(), "%y: f32[t, 8] = copy %x".into()),
        (bounded("rem %i, 20"), "%y: f32[t, 8] = take %e, %i axis=0".into()),
        (bounded("min %i, 19"), "%y: f32[t, 8] = take %e, %i axis=0".into()),
        (bounded("max %i, 0"), "%y: f32[t, 8] = take %e, %i axis=0".into()),
        ("%y: f32[t, 8] = take %e, %i axis=0".into(), bounded("rem %i, 20")),
        ("%y: f32[t, 8] = take %e, %i axis=0".into(), bounded("min %i, 19")),
        // Indices that are computed are outside of their axis, too.
        (
            bounded("add %i, 3"),
            "%a: i64[t] = sub %i, -3\n%k: i64[t] = min %a, 19\n%y: f32[t, 8] = take %e, %k axis=0".into(),
        ),
        (
            bounded("add %i, 3"),
            "%a: i64[t] = sub %i, -3\n%k: i64[t] = rem %a, 20\n%y: f32[t, 8] = take %e, %k axis=0".into(),
        ),
        (shard(40), shard(39)),
        (shard(40), shard(41)),
        (
            "%a: f32[t, 8] = grouped_matmul %x, %m, %p\n%y: f32[t, 8] = grouped_matmul %a, %m, %q".into(),
            "%a: f32[t, 8] = grouped_matmul %x, %m, %p\n%y: f32[t, 8] = grouped_matmul %a, %m, %p".into(),
        ),
        (
            "%y: f32[t, 8] = grouped_matmul %x, %m, %p".into(),
            "%y: f32[t, 8] = grouped_matmul %x, %m, %q".into(),
        ),
        (
            "%y: bf16[t, 8] = rms_norm %h, %g axes=1 eps=1e-5 round_first=false".into(),
            "%y: bf16[t, 8] = rms_norm %h, %g axes=1 eps=1e-5 round_first=true".into(),
        ),
        (
            "%a: bool[t] = reduce %b op=any axes=[1] keep=false\n%y: i64[t] = cast %a".into(),
            "%y: i64[t] = full value=1".into(),
        ),
    ] {
        let comparison = pair(&source, &planned);
        assert_eq!(comparison.status(), SourceStatus::Different, "{source}\nto\n{planned}\n{comparison:#?}");
    }
}

#[test]
fn unneeded_reads_may_be_omitted() {
    for (source, planned) in [
        ("%k: i64[t] = copy %i", "%k: i64[1] = copy %j"),
        ("%k: i64[t] = sub %i, 3", "%k: i64[1] = add %j, -3"),
    ] {
        let comparison = pair(
            &format!(
                "{source}\n%a: f32[t, 8] = take %e, %k axis=0\n%y: f32[1, 8] = slice %a axis=0 start=0 step=1"
            ),
            &format!(
                "%j: i64[1] = slice %i axis=0 start=0 step=1\n{planned}\n%y: f32[1, 8] = take %e, %k axis=0"
            ),
        );
        assert!(comparison.is_complete(), "{source}\nto\n{planned}\n{comparison:#?}");
    }
}

#[test]
fn a_leaf_without_influence_is_not_compared() {
    let (status, all) = outcome(
        "%a: i64[t] = mul %n, 0\n%y: i64[t] = add %a, 7\nreturn %y\n",
        "%y: i64[t] = full value=7\nreturn %y\n",
    );
    assert_eq!(status, SourceStatus::NotCompared, "{all:#?}");
    assert!(all.to_string().contains("no drawn value of %n changes a result"), "{all}");
}

#[test]
fn a_difference_of_equal_operands_shows_no_influence() {
    let comparison = pair(
        "%j: i64[t] = neg %i\n%a: i64[t] = add %i, %j\n%zero: i64[t] = sub %j, %j\n%sum: i64[t] = sub %a, %zero\n%y: i64[t] = add %sum, 7",
        "%y: i64[t] = full value=7",
    );
    assert_eq!(comparison.status(), SourceStatus::NotCompared, "{comparison:#?}");
    assert!(comparison.to_string().contains("no drawn value of %i changes a result"), "{comparison}");
}

#[test]
fn finds_a_difference_after_a_leaf_without_influence() {
    let program = |y: &str, constant: i64| {
        format!(
            "{HEAD}%a: i64[t] = mul %i, 0\n%y: i64[t] = {y}\n%last: i64[t] = add %y, {constant}\nreturn %last\n"
        )
    };
    let comparison = compared(&program("add %a, 7", 1), &program("full value=7", 2));
    assert_eq!(comparison.status(), SourceStatus::Different, "{comparison:#?}");
}

#[test]
fn each_place_names_its_own_leaf_without_influence() {
    let program = |k: &str, y: &str| format!("%a: i64[4] = mul %{k}, 0\n%y{k}: i64[4] = {y}\n");
    let source = program("p", "add %a, 7") + &program("q", "add %a, 7").replace("%a", "%other");
    let planned = program("p", "full value=7") + &program("q", "full value=7").replace("%a", "%other");
    let [source, planned] = [source, planned].map(|text| format!("{HEAD}{text}return %yp\nreturn %yq\n"));
    let text = compared(&source, &planned).to_string();
    assert!(text.contains("no drawn value of %p ") && text.contains("no drawn value of %q "), "{text}");
}

#[test]
fn a_leaf_that_reaches_no_result_needs_no_influence() {
    for (source, planned) in [
        // The rank that receives nothing has zeros.
        (
            "%c: f32[2*t, 8] = concat %x, %z axis=0\n%k: f32[2*t, 8] = permute_ranks %c pairs=[0->1] group=@w\n\
             %r: f32[2*t, 8] = relu %k\n%y: f32[t, 8] = slice %r axis=0 start=t step=1",
            "%k: f32[t, 8] = permute_ranks %z pairs=[0->1] group=@w\n%y: f32[t, 8] = relu %k",
        ),
        (
            "%c: f32[t, 16] = concat %x, %z axis=1\n%r: f32[t, 16] = relu %c\n%y: f32[t, 8] = slice %r axis=1 start=0 step=1",
            "%y: f32[t, 8] = relu %x",
        ),
        (
            "%k: i64[20] = iota start=0 step=1\n%d: f32[20, 8] = exp %e\n%r: f32[20, 8] = relu %d\n\
             %q0: f32[20, 8] = index_put %e, %r, %k axis=0 accumulate=false\n%y: f32[20, 8] = abs %q0",
            "%d: f32[20, 8] = exp %e\n%r: f32[20, 8] = relu %d\n%y: f32[20, 8] = abs %r",
        ),
        (
            "%k: i64[8] = iota start=0 step=1\n%c: bool[8] = ge %k, 0\n%r: f32[t, 8] = select %c, %x, %z\n%y: f32[t, 8] = relu %r",
            "%y: f32[t, 8] = relu %x",
        ),
        (
            "%u: f32[t, 1] = slice %x axis=1 start=0 step=1\n%a: i64[t, 1] = argmax %u axis=1 keep=true\n\
             %k: i64[t, 1] = add %a, %a\n%y: i64[t, 1] = neg %k",
            "%y: i64[t, 1] = full value=0",
        ),
        (
            "%v: f32[t, 2], %vi: i64[t, 2] = topk %s axis=1 largest=true\n%u: i64[t, 1] = slice %vi axis=1 start=0 step=1\n\
             %c: bool[t, 1] = ge %u, 4\n%r: f32[t, 8] = select %c, %z, %x\n%y: f32[t, 8] = relu %r",
            "%y: f32[t, 8] = relu %x",
        ),
        (
            "%j: f32[2*t, 8] = all_gather %x group=@w\n%r: f32[2*t, 8] = relu %j\n%y: f32[t, 8] = slice %r axis=0 start=t step=1",
            "%k: f32[t, 8] = broadcast %x root=1 group=@w\n%y: f32[t, 8] = relu %k",
        ),
    ] {
        let comparison = pair(source, planned);
        assert!(
            comparison.is_complete() && comparison.differences.is_empty(),
            "{source}\nto\n{planned}\n{comparison:#?}"
        );
    }
}

#[test]
fn a_wider_part_that_agrees_refutes_a_difference() {
    // The planned program replaces a value that both programs compute, so the narrow part differs.
    let source = "%a: i64[t] = mul %i, 0\n%y: i64[t] = add %a, 7\n%v: i64[t] = neg %a";
    let planned = "%a: i64[t] = mul %i, 0\n%y: i64[t] = full value=7\n%v: i64[t] = neg %a";
    let [source, planned] = [source, planned].map(|text| format!("{HEAD}{text}\nreturn %v\nreturn %y\n"));
    let comparison = compared(&source, &planned);
    assert_eq!(comparison.status(), SourceStatus::NotCompared, "{comparison:#?}");
    assert!(comparison.to_string().contains("no drawn value of %i changes a result"), "{comparison}");
}

#[test]
fn copies_of_one_value_equal_other_equal_values() {
    let source = "%c: f32[t, 8] = all_reduce %x op=sum group=@w\n%d: f32[t, 8] = all_reduce %z op=sum group=@w\n\
        %v: f32[t, 8] = add %c, %d\n%k: f32[t, 8] = permute_ranks %v pairs=[0->0, 1->1] group=@w\n\
        %o1: f32[t, 8] = copy %v\n%o2: f32[t, 8] = copy %k\n%o3: f32[t, 8] = copy %k\nreturn %o1\nreturn %o2\nreturn %o3\n";
    let planned = "%a: f32[t, 8] = add %x, %z\n%v: f32[t, 8] = all_reduce %a op=sum group=@w\n\
        %u: f32[t, 8] = copy %v\n%w: f32[t, 8] = copy %v\nreturn %v\nreturn %u\nreturn %w\n";
    let comparison = compared(&format!("{HEAD}{source}"), &format!("{HEAD}{planned}"));
    assert!(comparison.is_complete() && comparison.differences.is_empty(), "{comparison:#?}");
}

/// Greedy sampling over a vocabulary that ranks divide: the source gathers all logits.
fn greedy_sampling(ranks: usize, shard: usize, tokens: usize, dtype: &str) -> (String, String) {
    let head =
        format!("program \"greedy\" ranks {ranks}\ngroup @w world\narg %l: {dtype}[{tokens}, {shard}]\n");
    let source = format!(
        "{head}%g: {dtype}[{}, {shard}] = all_gather %l group=@w\n%r: {dtype}[{ranks}, {tokens}, {shard}] = reshape %g\n\
         %p: {dtype}[{tokens}, {ranks}, {shard}] = permute %r perm=[1, 0, 2]\n%f: {dtype}[{tokens}, {}] = reshape %p\n\
         %y: i64[{tokens}] = argmax %f axis=1 keep=false\nreturn %y\n",
        ranks * tokens,
        ranks * shard
    );
    (head, source)
}

/// The same with the largest element of each rank, and a merge of these.
fn merged(ranks: usize, shard: usize, tokens: usize, dtype: &str) -> String {
    let (head, _) = greedy_sampling(ranks, shard, tokens, dtype);
    let mut out = format!(
        "{head}%i: i64[{tokens}, 1] = argmax %l axis=1 keep=true\n%ir: i64[1, {tokens}, 1] = reshape %i\n\
         %gi: i64[{ranks}, {tokens}, 1] = all_gather %ir group=@w\n%e: {dtype}[{tokens}, 1] = gather_elements %l, %i axis=1\n\
         %er: {dtype}[1, {tokens}, 1] = reshape %e\n%ge: {dtype}[{ranks}, {tokens}, 1] = all_gather %er group=@w\n"
    );
    for k in 0..ranks {
        out += &format!(
            "%a{k}: i64[1, {tokens}, 1] = slice %gi axis=0 start={k} step=1\n%b{k}: i64[{tokens}] = reshape %a{k}\n\
             %o{k}: i64[{tokens}] = add %b{k}, {}\n%c{k}: {dtype}[1, {tokens}, 1] = slice %ge axis=0 start={k} step=1\n\
             %d{k}: {dtype}[{tokens}] = reshape %c{k}\n",
            k * shard
        );
    }
    let last_rank = ranks - 1;
    let (mut index, mut largest) = (format!("%o{last_rank}"), format!("%d{last_rank}"));
    for k in (0..last_rank).rev() {
        out += &format!(
            "%q{k}: bool[{tokens}] = ge %d{k}, {largest}\n%n{k}: bool[{tokens}] = is_nan %d{k}\n%r{k}: bool[{tokens}] = or %q{k}, %n{k}\n\
             %s{k}: i64[{tokens}] = select %r{k}, %o{k}, {index}\n%m{k}: {dtype}[{tokens}] = max %d{k}, {largest}\n"
        );
        (index, largest) = (format!("%s{k}"), format!("%m{k}"));
    }
    out + "return %s0\n"
}

#[test]
fn finds_wrong_merges_of_large_vocabularies() {
    for (ranks, shard, tokens, dtype) in [(8, 2000, 4, "f32"), (4, 8000, 8, "bf16"), (2, 8, 3, "f32")] {
        let (_, source) = greedy_sampling(ranks, shard, tokens, dtype);
        let planned = merged(ranks, shard, tokens, dtype);
        let comparison = compared(&source, &planned);
        assert!(comparison.is_complete(), "{ranks} x {shard}: {comparison:#?}\n{planned}");
        let last_rank = ranks - 1;
        for (from, to) in [
            (format!("%b1, {shard}\n"), format!("%b1, {}\n", shard + 1)),
            (
                format!("%b{last_rank}, {}\n", last_rank * shard),
                format!("%b{last_rank}, {}\n", (last_rank - 1) * shard),
            ),
            (
                format!("slice %gi axis=0 start={last_rank}"),
                format!("slice %gi axis=0 start={}", last_rank - 1),
            ),
            ("%q0: bool[T] = ge".into(), "%q0: bool[T] = gt".into()),
            ("%r0: bool[T] = or %q0, %n0".into(), "%r0: bool[T] = or %q0, %q0".into()),
        ] {
            let [from, to] = [from, to].map(|text| text.replace("[T]", &format!("[{tokens}]")));
            assert!(planned.contains(&from), "{from} in {planned}");
            let comparison = compared(&source, &planned.replace(&from, &to));
            assert_eq!(
                comparison.status(),
                SourceStatus::Different,
                "{ranks} x {shard}, {to}: {comparison:#?}"
            );
        }
    }
}
