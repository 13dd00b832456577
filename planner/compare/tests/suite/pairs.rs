//! Pairs of small programs. The second program of a pair takes the role of the planned one.

use crate::common::{drawn_outcome, outcome};
use symmc_compare::{MAX_LISTED_ENTRIES, SourceStatus};

#[test]
fn pure_movement_is_equal_node_for_node() {
    for (source, planned) in [
        (
            "%y: f32[t, 16] = neg %x\nreturn %y\n",
            "%c: f32[t, 16] = copy %x\n%z: f32[t, 16] = neg %c\nreturn %z\n",
        ),
        (
            "%a: f32[t, 4, 4] = reshape %x\n%b: f32[t, 16] = reshape %a\n%y: f32[t, 16] = exp %b\nreturn %y\n",
            "%y: f32[t, 16] = exp %x\nreturn %y\n",
        ),
        (
            "%a: f32[16*t] = reshape %x\n%b: f32[16*t] = exp %a\n%y: f32[t, 16] = reshape %b\nreturn %y\n",
            "%y: f32[t, 16] = exp %x\nreturn %y\n",
        ),
        (
            "%s: f32[] = full value=0.5\n%y: f32[t, 16] = mul %x, %s\nreturn %y\n",
            "%y: f32[t, 16] = mul %x, 0.5\nreturn %y\n",
        ),
        (
            "%e: f32[t, 16] = expand %g\n%y: f32[t, 16] = add %x, %e\nreturn %y\n",
            "%y: f32[t, 16] = add %x, %g\nreturn %y\n",
        ),
        (
            "%r: f32[t, 16] = all_reduce %x op=sum group=@one\n%y: f32[t, 16] = neg %r\nreturn %y\n",
            "%y: f32[t, 16] = neg %x\nreturn %y\n",
        ),
        (
            "%a: f32[t, 2, 8] = reshape %x\n%b: f32[t, 8] = reduce %a op=sum axes=[1] keep=false\nreturn %b\n",
            "%a: f32[t, 2, 8] = reshape %x\n%b: f32[t, 1, 8] = reduce %a op=sum axes=[1] keep=true\n\
             %c: f32[t, 8] = reshape %b\nreturn %c\n",
        ),
        (
            "%a: f32[t, 1, 16] = reshape %x\n%b: f32[t, 1, 16] = matmul %a, %w\n%y: f32[t, 16] = reshape %b\nreturn %y\n",
            "%y: f32[t, 16] = matmul %x, %w\nreturn %y\n",
        ),
        (
            "%a: f32[2*t, 16] = concat %x, %x axis=0\n%y: f32[t, 16] = slice %a axis=0 start=t step=1\n\
             %z: f32[t, 16] = exp %y\nreturn %z\n",
            "%z: f32[t, 16] = exp %x\nreturn %z\n",
        ),
    ] {
        let (found, all) = outcome(source, planned);
        assert_eq!(found, SourceStatus::Equal, "{source}\nto\n{planned}\n{all:#?}");
    }
}

#[test]
fn collectives_of_several_values_are_those_of_each() {
    let source = "%m: f32[16, 16] = neg %w\n%r: f32[t, 16] = all_reduce %x op=sum group=@w\n\
        %s: f32[16, 16] = all_reduce %m op=sum group=@w\n%u: f32[t, 16] = exp %r\n%v: f32[16, 16] = exp %s\n\
        return %u\nreturn %v\n";
    let planned = "%m: f32[16, 16] = neg %w\n%a: f32[16*t] = reshape %x\n%b: f32[256] = reshape %m\n\
        %c: f32[16*t + 256] = concat %a, %b axis=0\n%d: f32[16*t + 256] = all_reduce %c op=sum group=@w\n\
        %e: f32[16*t] = slice %d axis=0 start=0 step=1\n%r: f32[t, 16] = reshape %e\n\
        %f: f32[256] = slice %d axis=0 start=16*t step=1\n%s: f32[16, 16] = reshape %f\n\
        %u: f32[t, 16] = exp %r\n%v: f32[16, 16] = exp %s\nreturn %u\nreturn %v\n";
    let (found, all) = outcome(source, planned);
    assert_eq!(found, SourceStatus::Equal, "{all:#?}");
    // Other positions, another reduction, and another value in the place of one value.
    for (from, to) in [
        ("start=16*t step", "start=16*t - 1 step"),
        ("%c op=sum", "%c op=max"),
        ("= reshape %m", "= reshape %w"),
    ] {
        let (found, all) = outcome(source, &planned.replace(from, to));
        assert_eq!(found, SourceStatus::Different, "{from}\nto\n{to}\n{all:#?}");
    }
}

#[test]
fn rewritten_programs_are_equal_by_comparison() {
    let norm = "%s: f32[t, 16] = mul %x, %x\n%m: f32[t, 1] = reduce %s op=mean axes=[1] keep=true\n\
        %e: f32[t, 1] = add %m, 1e-5\n%i: f32[t, 1] = rsqrt %e\n%y: f32[t, 16] = mul %x, %i\n";
    let fused = "%y: f32[t, 16] = rms_norm %x axes=1 eps=1e-5 round_first=true\n";
    let attention = "%k: f32[2, 8, t] = permute %q perm=[0, 2, 1]\n%s: f32[2, t, t] = matmul %q, %k\n\
        %c: f32[2, t, t] = mul %s, 0.25\n%i: i64[t] = iota start=0 step=1\n%r: i64[t, 1] = reshape %i\n\
        %m: bool[t, t] = le %i, %r\n%f: f32[] = full value=-inf\n%d: f32[2, t, t] = select %m, %c, %f\n\
        %p: f32[2, t, t] = softmax %d axis=2 log=false\n%y: f32[2, t, 8] = matmul %p, %q\nreturn %y\n";
    let causal = "%y: f32[2, t, 8] = attention %q, %q, %q causal=true scale=0.25\nreturn %y\n";
    for (source, planned) in [
        (format!("{norm}return %y\n"), format!("{fused}return %y\n")),
        // The planned program keeps a value that the fused op does not need.
        (
            format!("{norm}return %y\nreturn %i\n"),
            format!(
                "{fused}%s: f32[t, 16] = mul %x, %x\n%m: f32[t, 1] = reduce %s op=mean axes=[1] keep=true\n\
                     %e: f32[t, 1] = add %m, 1e-5\n%i: f32[t, 1] = rsqrt %e\nreturn %y\nreturn %i\n"
            ),
        ),
        (attention.into(), causal.into()),
        (
            "%s: f32[t, 16] = sigmoid %x\n%y: f32[t, 16] = mul %x, %s\nreturn %y\n".into(),
            "%y: f32[t, 16] = silu %x\nreturn %y\n".into(),
        ),
        (
            "%y: f32[t, 16] = pow %x, 2.0\n%z: f32[t, 16] = neg %y\nreturn %z\n".into(),
            "%y: f32[t, 16] = mul %x, %x\n%z: f32[t, 16] = neg %y\nreturn %z\n".into(),
        ),
        (
            "%a: f32[2*t, 16] = concat %x, %x axis=0\n%y: f32[1, 16] = slice %a axis=0 start=t step=1\n\
             %z: f32[1, 16] = exp %y\nreturn %z\n"
                .into(),
            "%y: f32[1, 16] = slice %x axis=0 start=0 step=1\n%z: f32[1, 16] = exp %y\nreturn %z\n".into(),
        ),
    ] {
        let (found, all) = drawn_outcome(&source, &planned);
        assert_eq!(found, SourceStatus::EqualByParts, "{source}\nto\n{planned}\n{all:#?}");
        assert!(!all.parts.is_empty() && all.elements > 0 && all.left_out.is_empty(), "{all:#?}");
    }
}

/// Many nodes lie between the op that gives ranks a common value and the compared node. Each of them is a node
/// of both programs.
fn layers(from: &str) -> String {
    let layer = |i: usize| {
        format!(
            "%p{i}: f32[t, 16] = matmul %h{i}, %v\n%r{i}: f32[t, 16] = rms_norm %p{i}, %g axes=1 eps=1e-5 round_first=false\n\
             %h{}: f32[t, 16] = add %r{i}, %h{i}\n",
            i + 1
        )
    };
    let common = "%v: f32[16, 16] = broadcast %w root=0 group=@w\n";
    let layers: String = (0..20).map(layer).collect();
    // The weight of the norms is the same on all ranks as well.
    format!("{common}{from}%u: f32[16] = broadcast %g root=1 group=@w\n{}", layers.replace(", %g ", ", %u "))
}

#[test]
fn ranks_draw_what_they_have_in_common() {
    let shared = layers("%h0: f32[t, 16] = all_reduce %x op=sum group=@w\n");
    let source = format!(
        "{shared}%b: f32[t, 16] = broadcast %h20 root=1 group=@w\n%y: f32[t, 16] = exp %b\nreturn %y\n"
    );
    let planned = format!("{shared}%y: f32[t, 16] = exp %h20\nreturn %y\n");
    let (status, comparison) = drawn_outcome(&source, &planned);
    assert_eq!(status, SourceStatus::EqualByParts, "{comparison:#?}");
    // Without the all-reduce each rank has another value.
    let negated = layers("%h0: f32[t, 16] = neg %x\n");
    let (status, _) = outcome(&source.replace(&shared, &negated), &planned.replace(&shared, &negated));
    assert_eq!(status, SourceStatus::Different);
    // Parts with equal texts are different parts if ranks have another value in common.
    let operands = "%a: f32[t, 16] = all_reduce %x op=sum group=@w\n%b: f32[t, 16] = neg %x\n";
    let sent = |of: &str| {
        format!("%{of}s: f32[t, 16] = broadcast %{of} root=1 group=@w\n%{of}y: f32[t, 16] = exp %{of}s\n")
    };
    let kept_value = |of: &str| format!("%{of}y: f32[t, 16] = exp %{of}\n");
    let program =
        |body: &dyn Fn(&str) -> String| format!("{operands}{}{}return %ay, %by\n", body("a"), body("b"));
    let (status, comparison) = outcome(&program(&sent), &program(&kept_value));
    assert_eq!(status, SourceStatus::Different, "{comparison:#?}");
}

#[test]
fn changes_at_some_sizes_alone_are_found() {
    let slice = |start: &str| format!("%a: f32[1, 16] = slice %x axis=0 start={start} step=1\nreturn %a\n");
    let masked = |from: &str| {
        format!(
            "%i: i64[t] = iota start=0 step=1\n%m: bool[t] = {from}\n%c: bool[t, 1] = reshape %m\n%z: f32[] = full value=0.0\n\
             %y: f32[t, 16] = select %c, %x, %z\nreturn %y\n"
        )
    };
    let attention =
        |bounds: &str| format!("%y: f32[2, t, 8] = attention %q, %q, %q {bounds} scale=0.5\nreturn %y\n");
    let mut tried = 0;
    for (source, planned) in [
        (slice("t - 1"), slice("min(t - 1, 1)")),
        (slice("t - 1"), slice("min(t - 1, 3999)")),
        (slice("0"), slice("max(0, t - 4990)")),
        (slice("div(t, 2)"), slice("div(t, 3)")),
        (slice("div(t, 1000)"), slice("div(t, 1001)")),
        (slice("0"), slice("div(t, 5000)")),
        (masked("lt %i, 1000"), masked("lt %i, 1001")),
        (masked("lt %i, 4000"), masked("le %i, 4000")),
        (masked("lt %i, 10000"), masked("lt %i, 4999")),
        (attention("bounds=[below row + (1), from row + (-255)]"), attention("causal=true")),
        (
            attention("bounds=[below row + (1), from row + (-255)]"),
            attention("bounds=[below row + (1), from row + (-256)]"),
        ),
        (attention("bounds=[below row + (1), from chunk 256 of row + (0)]"), attention("causal=true")),
        (attention("causal=true"), attention("causal=false")),
    ] {
        let (status, comparison) = outcome(&source, &planned);
        assert_eq!(status, SourceStatus::Different, "{source}\nto\n{planned}\n{comparison:#?}");
        tried += 1;
    }
    assert_eq!(tried, 13);
}

#[test]
fn changes_of_structure_are_found() {
    let mut tried = 0;
    for (source, planned) in [
        ("%y: f32[t, 16] = sub %x, %g\nreturn %y\n", "%y: f32[t, 16] = sub %g, %x\nreturn %y\n"),
        (
            "%y: f32[16, 16] = permute %w perm=[1, 0]\n%z: f32[16, 16] = exp %y\nreturn %z\n",
            "%z: f32[16, 16] = exp %w\nreturn %z\n",
        ),
        (
            "%y: f32[t] = reduce %x op=sum axes=[1] keep=false\nreturn %y\n",
            "%y: f32[t] = reduce %x op=max axes=[1] keep=false\nreturn %y\n",
        ),
        (
            "%y: f32[t, 16] = matmul %x, %w\nreturn %y\n",
            "%v: f32[16, 16] = permute %w perm=[1, 0]\n%y: f32[t, 16] = matmul %x, %v\nreturn %y\n",
        ),
        (
            "%c: f32[t, 16] = cast %h\n%y: f32[t, 16] = exp %c\nreturn %y\n",
            "%e: bf16[t, 16] = exp %h\n%y: f32[t, 16] = cast %e\nreturn %y\n",
        ),
        (
            "%c: bf16[t, 16] = cast %x\n%y: f32[t, 16] = cast %c\nreturn %y\n",
            "%y: f32[t, 16] = copy %x\nreturn %y\n",
        ),
        (
            "%y: bf16[t, 16] = rms_norm %h, %gh axes=1 eps=1e-2 round_first=false\nreturn %y\n",
            "%y: bf16[t, 16] = rms_norm %h, %gh axes=1 eps=1.1e-2 round_first=false\nreturn %y\n",
        ),
        (
            "%y: f32[t, 16] = all_reduce %x op=sum group=@w\nreturn %y\n",
            "%y: f32[t, 16] = all_reduce %x op=sum group=@one\nreturn %y\n",
        ),
        (
            "%y: i64[t] = floor_div %n, 1000000\nreturn %y\n",
            "%y: i64[t] = floor_div %n, 1000001\nreturn %y\n",
        ),
        ("%y: i64[t] = min %n, 1000\nreturn %y\n", "%y: i64[t] = min %n, 1001\nreturn %y\n"),
        (
            "%c: bf16[t, 16] = cast %x\n%y: f32[t, 16] = cast %c\nreturn %y\n",
            "%c: f16[t, 16] = cast %x\n%y: f32[t, 16] = cast %c\nreturn %y\n",
        ),
        ("%y: i64[t] = cumsum %n axis=0\nreturn %y\n", "%y: i64[t] = copy %n\nreturn %y\n"),
        (
            "%y: f32[t, 16] = pad %x low=[1000, 0] value=0.0\nreturn %y\n",
            "%y: f32[t, 16] = pad %x low=[1001, 0] value=0.0\nreturn %y\n",
        ),
        (
            "%a: f32[t, 16] = neg %x\n%b: f32[t, 16] = exp %x\nreturn %a\nreturn %b\n",
            "%a: f32[t, 16] = neg %x\n%b: f32[t, 16] = exp %x\nreturn %b\nreturn %a\n",
        ),
        (
            "%y: f32[t, 16] = rotary_embedding %x, %x, %x width=16 interleaved=false\nreturn %y\n",
            "%y: f32[t, 16] = rotary_embedding %x, %x, %x width=16 interleaved=true\nreturn %y\n",
        ),
    ] {
        let (found, all) = outcome(source, planned);
        assert_eq!(found, SourceStatus::Different, "{source}\nto\n{planned}\n{all:#?}");
        tried += 1;
    }
    assert_eq!(tried, 15);
}

#[test]
fn opaque_ops_are_equal_only_on_equal_operands() {
    let f = |attributes: &str, of: &str, n: usize| {
        format!("%o{n}: f32[t, 16] = opaque \"ns.f\" %{of} attributes=\"{attributes}\"\n")
    };
    let two = [f("", "x", 0), f("", "x", 1)].concat();
    let sum = "%y: f32[t, 16] = add %o0, %o1\nreturn %y\n";
    let (status, comparison) = outcome(&format!("{two}{sum}"), &format!("{two}{sum}"));
    assert_eq!(status, SourceStatus::Equal, "{comparison:#?}");
    // It is unknown whether two uses give the same result.
    let merged = format!("{}%y: f32[t, 16] = add %o0, %o0\nreturn %y\n", f("", "x", 0));
    let (status, comparison) = outcome(&format!("{two}{sum}"), &merged);
    assert_ne!(status, SourceStatus::Equal, "{comparison:#?}");
    let (status, comparison) =
        outcome(&format!("{two}{sum}"), &format!("{}{}{sum}", f("", "x", 0), f("a", "x", 1)));
    assert_eq!(status, SourceStatus::NotCompared, "{comparison:#?}");
    assert_eq!(comparison.left_out.len(), 1, "{comparison:#?}");
    // The operands of such an op are compared.
    let program = |of: &str| format!("%z: f32[t, 16] = {of} %x\n{}return %o0\n", f("", "z", 0));
    let (status, comparison) = outcome(&program("exp"), &program("tanh"));
    assert_eq!(status, SourceStatus::Different, "{comparison:#?}");
}

#[test]
fn differences_are_bounded_and_work_grows_with_the_programs() {
    let chain = |n: usize, op: &str| {
        let nodes = (0..n).map(|i| format!("%y{i}: f32[t, 16] = {op}\n"));
        let outputs = (0..n).map(|i| format!("return %y{i}\n"));
        nodes.chain(outputs).collect::<String>()
    };
    let (status, comparison) = outcome(&chain(300, "mul %x, 0.5"), &chain(300, "mul %x, 0.75"));
    assert_eq!(
        (status, comparison.differences.len(), comparison.more_differences),
        (SourceStatus::Different, MAX_LISTED_ENTRIES, 300 - MAX_LISTED_ENTRIES)
    );
    // Equal parts count as one, however many there are.
    let layers = |n: usize, square: &str| {
        let source_of = |i: usize| if i == 0 { "x".to_string() } else { format!("z{}", i - 1) };
        let layer = |i: usize| {
            format!(
                "%s{i}: f32[t, 16] = {}\n%z{i}: f32[t, 16] = tanh %s{i}\n",
                square.replace("@", &source_of(i))
            )
        };
        (0..n).map(layer).chain([format!("return %z{}\n", n - 1)]).collect::<String>()
    };
    let (status, comparison) = drawn_outcome(&layers(2000, "pow %@, 2.0"), &layers(2000, "mul %@, %@"));
    assert_eq!(
        (status, comparison.parts.len(), comparison.parts[0].places),
        (SourceStatus::EqualByParts, 1, 2000),
        "{:?}",
        comparison.parts
    );
}
