//! Reductions of rows with the element-wise nodes around them as one step: which nodes join, where the results
//! lie, and when the nodes run separately.

use crate::dispatch::{broken, dispatches, planned};

/// A program over `t` rows of `n` elements. `D` in the body stands for these extents.
fn program(rows: &str, n: i64, body: &str) -> String {
    let body = body.replace("[D]", &format!("[t, {n}]"));
    format!("program \"rows\" ranks 1\nsymbol t in {rows}\n{}", body.replace("[N]", &format!("[{n}]")))
}

const FORWARD: &str = "arg %h: bf16[D]\narg %o: bf16[D]\nparam %w: bf16[N]\n\
    %x: bf16[D] = add %h, %o\n%c: f32[D] = cast %x\n%s: f32[D] = mul %c, %c\n\
    %m: f32[t, 1] = reduce %s op=mean axes=[1] keep=true\n%e: f32[t, 1] = add %m, 1e-6\n%r: f32[t, 1] = rsqrt %e\n\
    %n: f32[D] = mul %c, %r\n%b: bf16[D] = cast %n\n%y: bf16[D] = mul %b, %w\n\
    return %x\nreturn %r\nreturn %y\n";

const BACKWARD: &str = "arg %g: bf16[D]\narg %x: f32[D]\narg %r: f32[t, 1]\narg %res: bf16[D]\n\
    %c: f32[D] = cast %g\n%a: f32[D] = mul %c, %x\n%b: f32[D] = mul %c, %r\n\
    %s: f32[t, 1] = reduce %a op=sum axes=[1] keep=true\n%p: f32[t, 1] = pow %r, 3.0\n%u: f32[t, 1] = mul %s, -0.5\n\
    %v: f32[t, 1] = mul %u, %p\n%x2: f32[D] = mul %x, 2.0\n%z: f32[D] = mul %v, %x2\n%q: f32[D] = add %b, %z\n\
    %k: bf16[D] = cast %q\n%y: bf16[D] = add %res, %k\nreturn %y\n";

#[test]
fn a_norm_that_saves_its_root_is_one_step() {
    let plan = planned(&program("1024..=8192", 4096, FORWARD));
    assert_eq!(dispatches(&plan), ["loop: x c s m e r n b y"]);
    for inner in ["c", "s", "m", "e", "n", "b"] {
        assert!(!plan.buckets[0].places.contains_key(inner), "%{inner} has memory");
    }
}

#[test]
fn the_gradient_of_a_norm_is_one_step() {
    let plan = planned(&program("1024..=8192", 4096, BACKWARD));
    assert_eq!(dispatches(&plan), ["loop: c a b s p u v x2 z q k y"]);
    assert_eq!(plan.buckets[0].steps.len(), 1);
}

#[test]
fn softmax_layer_norm_and_their_gradients_are_single_steps() {
    let layer_norm = "arg %x: f32[D]\nparam %w: f32[N]\n%m: f32[t, 1] = reduce %x op=mean axes=[1] keep=true\n\
        %d: f32[D] = sub %x, %m\n%s: f32[D] = mul %d, %d\n%v: f32[t, 1] = reduce %s op=mean axes=[1] keep=true\n\
        %e: f32[t, 1] = add %v, 1e-5\n%r: f32[t, 1] = rsqrt %e\n%n: f32[D] = mul %d, %r\n%y: f32[D] = mul %n, %w\n\
        return %m\nreturn %r\nreturn %y\n";
    let forms = |body: &str| dispatches(&planned(&program("256..=8192", 2048, body)));
    assert_eq!(forms(layer_norm), ["loop: m d s v e r n y"]);
    let softmax = "arg %x: bf16[D]\n%c: f32[D] = cast %x\n%m: f32[t, 1] = reduce %c op=max axes=[1] keep=true\n\
        %d: f32[D] = sub %c, %m\n%e: f32[D] = exp %d\n%s: f32[t, 1] = reduce %e op=sum axes=[1] keep=true\n\
        %q: f32[D] = div %e, %s\n%y: bf16[D] = cast %q\nreturn %y\n";
    assert_eq!(forms(softmax), ["loop: c m d e s q y"]);
    // Two reductions of one level, and one of an operand that other nodes read as well.
    let gradient = "arg %g: f32[D]\narg %o: f32[D]\n%e: f32[D] = exp %o\n%s: f32[t, 1] = reduce %g op=sum axes=[1] keep=true\n\
        %q: f32[D] = mul %e, %s\n%z: f32[D] = sub %g, %q\nreturn %z\n";
    assert_eq!(forms(gradient), ["loop: e s q z"]);
}

/// Norms of rows in f32 with weights that are computed, and a residual between them.
const TWO_NORMS: &str = "arg %x: bf16[D]\narg %h: bf16[D]\nparam %w: bf16[N]\nparam %v: bf16[N]\n\
    %wc: f32[N] = cast %w\n%w1: f32[N] = add %wc, 1.0\n%c: f32[D] = cast %x\n\
    %n: f32[D] = rms_norm %c, %w1 axes=1 eps=1e-6 round_first=true\n%b: bf16[D] = cast %n\n\
    %s: bf16[D] = add %h, %b\n%vc: f32[N] = cast %v\n%v1: f32[N] = add %vc, 1.0\n%sc: f32[D] = cast %s\n\
    %m: f32[D] = rms_norm %sc, %v1 axes=1 eps=1e-6 round_first=true\n%y: bf16[D] = cast %m\nreturn %s\nreturn %y\n";

#[test]
fn norms_between_element_wise_nodes_are_one_step() {
    for rows in ["1..=4", "1024..=8192"] {
        let plan = planned(&program(rows, 2048, TWO_NORMS));
        assert_eq!(dispatches(&plan), ["loop: wc w1 c n b s vc v1 sc m y"]);
        assert_eq!(plan.buckets[0].steps.len(), 1);
    }
    // A norm at the end, whose weight is stored, ends the map before it.
    let residual = "arg %x: bf16[D]\narg %h: bf16[D]\nparam %w: bf16[N]\n%s: bf16[D] = add %h, %x\n\
        %n: bf16[D] = rms_norm %s, %w axes=1 eps=1e-6 round_first=true\nreturn %s\nreturn %n\n";
    assert_eq!(dispatches(&planned(&program("1024..=8192", 2048, residual))), ["loop: s n"]);
}

#[test]
fn nodes_over_other_rows_or_axes_are_not_fused() {
    // Over the first axis, without the axis, and of columns that are not adjacent in memory.
    let forms = |reduce: &str| {
        let body = format!("arg %x: f32[2048, 2048]\n%a: f32[2048, 2048] = exp %x\n{reduce}\nreturn %r\n");
        dispatches(&planned(&program("1..=1", 8, &body)))
    };
    assert_eq!(forms("%r: f32[2048, 1] = reduce %a op=sum axes=[1] keep=true"), ["loop: a r"]);
    assert_eq!(forms("%r: f32[1, 2048] = reduce %a op=sum axes=[0] keep=true"), [""; 0]);
    assert_eq!(forms("%r: f32[2048] = reduce %a op=sum axes=[1] keep=false"), [""; 0]);
    let columns = "%t: f32[2048, 2048] = permute %x perm=[1, 0]\n%b: f32[2048, 2048] = neg %t\n\
        %r: f32[2048, 1] = reduce %b op=sum axes=[1] keep=true";
    assert_eq!(forms(columns), ["loop: a b"]);
    // Numbers of the rows that another node computes first.
    let shared = "arg %x: f32[D]\narg %i: f32[t, 1]\n%j: f32[t, 1] = exp %i\n%k: f32[t, 1] = neg %j\n\
        %a: f32[D] = mul %x, %k\n%s: f32[t, 1] = reduce %a op=sum axes=[1] keep=true\n%b: f32[D] = mul %a, %s\nreturn %b\n";
    assert_eq!(dispatches(&planned(&program("256..=512", 1024, shared))), ["loop: j k a s b"]);
    let returned = format!("{shared}return %k\n");
    assert_eq!(dispatches(&planned(&program("256..=512", 1024, &returned))), ["loop: j k", "loop: a s b"]);
}

#[test]
fn weight_preparation_is_fused_with_rows_that_read_it() {
    let body = "arg %x: f32[D]\nparam %w: bf16[N]\n%wc: f32[N] = cast %w\n%w1: f32[N] = add %wc, 1.0\n\
        %s: f32[t, 1] = reduce %x op=max axes=[1] keep=true\n%d: f32[D] = div %x, %s\n%y: f32[D] = mul %d, %w1\nreturn %y\n";
    let plan = planned(&program("256..=512", 1024, body));
    assert_eq!(dispatches(&plan), ["loop: wc w1 s d y"]);
    assert!(!plan.buckets[0].places.contains_key("w1"));
    // Other nodes read it as well.
    let returned = format!("{body}return %w1\n");
    assert_eq!(dispatches(&planned(&program("256..=512", 1024, &returned))), ["loop: wc w1", "loop: s d y"]);
    let mut stored = plan.clone();
    stored.programs[0] = stored.programs[0].replacen("return %y", "return %w1", 1);
    assert!(broken(&stored).contains("Invalid"), "{:?}", broken(&stored));
}

#[test]
fn few_long_rows_run_as_separate_faster_steps() {
    // One row is the work of one multiprocessor.
    let long = dispatches(&planned(&program("1..=1", 1 << 18, FORWARD)));
    assert!(long.iter().all(|d| d.starts_with("loop")), "{long:?}");
    let short = dispatches(&planned(&program("1..=1", 2048, FORWARD)));
    assert_eq!(short, ["loop: x c s m e r n b y"]);
    let many = dispatches(&planned(&program("512..=1024", 1 << 18, FORWARD)));
    assert_eq!(many, ["loop: x c s m e r n b y"]);
}

#[test]
fn row_results_overwrite_operands_without_later_readers() {
    // The operands are intermediate values, so that they may be overwritten.
    let before = BACKWARD
        .replace("arg %g", "arg %g0")
        .replace("arg %res", "arg %res0")
        .replace(
            "%c: f32",
            "%g: bf16[t, W] = cumsum %g0 axis=0\n%res: bf16[t, W] = cumsum %res0 axis=0\n%c: f32",
        )
        .replace("return %y", "%end: bf16[t, W] = cumsum %y axis=0\nreturn %end")
        .replace("W]", "1024]");
    let before = before.replace("return %end", "%also: bf16[t, 1024] = cumsum %k axis=0\nreturn %end, %also");
    let plan = planned(&program("256..=512", 1024, &before));
    assert_eq!(dispatches(&plan), ["loop: c a b s p u v x2 z q k y"]);
    let places = &plan.buckets[0].places;
    assert!(["g", "res"].iter().any(|x| places[*x].offset == places["y"].offset), "{places:?}");
    // A later node would read the residual that is overwritten.
    let mut over = plan.clone();
    over.buckets[0].places["k"] = places["res"].clone();
    assert!(broken(&over).contains("InPlace"), "{:?}", broken(&over));
}

#[test]
fn dispatches_that_are_no_rows_are_refused() {
    let edit = |from: &str, to: &str| {
        let mut plan = planned(&program("256..=512", 1024, FORWARD));
        assert!(plan.programs[0].contains(from), "{from}\n{}", plan.programs[0]);
        plan.programs[0] = plan.programs[0].replacen(from, to, 1);
        broken(&plan)
    };
    for (from, to) in [
        ("dispatch loop {", "dispatch product {"),
        (
            "%m: f32[t, 1] = reduce %s op=mean axes=[1] keep=true",
            "%m: f32[t, 1] = reduce %s op=mean axes=[1] keep=true\n%v: f32[1, 1024] = reduce %s op=mean axes=[0] keep=true",
        ),
        ("%b: bf16[t, 1024] = cast %n", "%b: bf16[t, 1024] = cast %n\n%v: bf16[1, t, 1024] = reshape %b"),
        (
            "%b: bf16[t, 1024] = cast %n",
            "%b: bf16[t, 1024] = cast %n\n%v: bf16[1] = reduce %w op=sum axes=[0] keep=true",
        ),
    ] {
        let errors = edit(from, to);
        assert!(errors.contains("Invalid"), "{to}: {errors:?}");
    }
}
