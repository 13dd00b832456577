//! The choice of experts and the weighted sum of their results as one step each: which nodes join, and which
//! stay by themselves.

use symmc_ir::{text, verify};

use crate::dispatch::{dispatches, planned};

/// A program over `t` rows.
fn program(body: &str) -> String {
    format!("program \"experts\" ranks 1\nsymbol t in 1..=4096\n{body}")
}

fn forms(body: &str) -> Vec<String> {
    dispatches(&planned(&program(body)))
}

const CHOICE: &str = "arg %x: bf16[t, 64]\n%c: f32[t, 64] = cast %x\n%s: f32[t, 64] = softmax %c axis=1 log=false\n\
    %v: f32[t, 4], %i: i64[t, 4] = topk %s axis=1 largest=true\n%z: f32[t, 1] = reduce %v op=sum axes=[1] keep=true\n\
    %w: f32[t, 4] = div %v, %z\n%y: bf16[t, 4] = cast %w\nreturn %y\nreturn %i\n";

const SUM: &str = "arg %x: bf16[4096, 512]\narg %i: i64[t, 8]\narg %w: f32[t, 8, 1]\n%r: bf16[t, 8, 512] = take %x, %i axis=0\n\
    %c: f32[t, 8, 512] = cast %r\n%m: f32[t, 8, 512] = mul %c, %w\n%s: f32[t, 512] = reduce %m op=sum axes=[1] keep=false\n\
    %y: bf16[t, 512] = cast %s\nreturn %y\n";

#[test]
fn a_choice_of_experts_is_one_step() {
    let plan = planned(&program(CHOICE));
    assert_eq!(dispatches(&plan), ["selection: c s v z w y"]);
    for inner in ["c", "s", "v", "z", "w"] {
        assert!(!plan.buckets[0].places.contains_key(inner), "%{inner} has memory");
    }
}

#[test]
fn groups_of_experts_are_chosen_in_the_same_step() {
    let body = "arg %x: f32[t, 32]\nparam %b: f32[32]\n%s: f32[t, 32] = sigmoid %x\n%a: f32[t, 32] = add %s, %b\n\
        %g: f32[t, 8, 4] = reshape %a\n%v: f32[t, 8, 2], %p: i64[t, 8, 2] = topk %g axis=2 largest=true\n\
        %q: f32[t, 8] = reduce %v op=sum axes=[2] keep=false\n%u: f32[t, 4], %k: i64[t, 4] = topk %q axis=1 largest=true\n\
        %o: f32[t, 8] = full value=0.0\n%e: f32[t, 4] = full value=1.0\n\
        %h: f32[t, 8] = scatter_elements %o, %k, %e axis=1 combine=none\n%h1: f32[t, 8, 1] = reshape %h\n\
        %h4: f32[t, 8, 4] = expand %h1\n%hm: f32[t, 32] = reshape %h4\n%hb: bool[t, 32] = cast %hm\n\
        %n: f32[t, 32] = full value=-1.0\n%c: f32[t, 32] = select %hb, %a, %n\n\
        %d: f32[t, 4], %i: i64[t, 4] = topk %c axis=1 largest=true\n%w: f32[t, 4] = gather_elements %s, %i axis=1\nreturn %w\nreturn %i\n";
    let plan = planned(&program(body));
    assert_eq!(plan.buckets[0].steps.len(), 1, "{:?}", dispatches(&plan));
}

#[test]
fn selections_outside_the_limits_are_not_fused() {
    // Rows that are too long, selections over other axes, and integers that may be divided by zero.
    assert_eq!(forms(&CHOICE.replace("64]", "4096]")), ["loop: z w y"]);
    let over_rows = "arg %x: f32[8, 64]\n%s: f32[8, 64] = exp %x\n%v: f32[2, 64], %i: i64[2, 64] = topk %s axis=0 largest=true\n\
        return %v\nreturn %i\n";
    assert_eq!(forms(over_rows), [""; 0]);
    let divided = "arg %x: f32[t, 64]\narg %n: i64[t, 4]\n%v: f32[t, 4], %i: i64[t, 4] = topk %x axis=1 largest=true\n\
        %y: i64[t, 4] = floor_div %i, %n\nreturn %v\nreturn %y\n";
    assert_eq!(forms(divided), [""; 0]);
}

#[test]
fn intermediate_steps_split_a_selection() {
    // The sort needs the selected elements, and the sum needs the sort.
    let body = "arg %x: f32[t, 64]\n%v: f32[t, 4], %i: i64[t, 4] = topk %x axis=1 largest=true\n\
        %f: f32[4*t] = reshape %v\n%o: f32[4*t], %p: i64[4*t] = sort %f axis=0 descending=false\n%r: f32[t, 4] = reshape %o\n\
        %y: f32[t, 4] = add %v, %r\n%z: f32[t, 4] = exp %v\nreturn %y\nreturn %z\nreturn %i\n";
    let plan = planned(&program(body));
    assert!(plan.buckets[0].steps.len() >= 3, "{:?}", dispatches(&plan));
}

#[test]
fn a_weighted_sum_of_rows_is_one_step() {
    let plan = planned(&program(SUM));
    assert_eq!(dispatches(&plan), ["loop: r c m s y"]);
    for inner in ["r", "c", "m", "s"] {
        assert!(!plan.buckets[0].places.contains_key(inner), "%{inner} has memory");
    }
}

#[test]
fn shared_rows_and_long_sums_are_not_fused() {
    let returned = SUM.replace("return %y", "return %y\nreturn %r");
    assert_eq!(forms(&returned), ["loop: c m s y"]);
    let long = SUM.replace("t, 8", "t, 100");
    assert_eq!(forms(&long), ["loop: r c m"]);
    let over_last_axis =
        SUM.replace("f32[t, 512] = reduce %m op=sum axes=[1]", "f32[t, 8] = reduce %m op=sum axes=[2]");
    assert_eq!(forms(&over_last_axis.replace("bf16[t, 512] = cast", "bf16[t, 8] = cast")), ["loop: r c m"]);
}

#[test]
fn gathered_rows_join_the_map_that_reads_them() {
    let body = "arg %x: f32[t, 64]\nparam %b: f32[32, 64]\narg %i: i64[t]\n%r: f32[t, 64] = take %b, %i axis=0\n\
        %a: f32[t, 64] = add %x, %r\n%y: f32[t, 64] = exp %a\nreturn %y\n";
    assert_eq!(forms(body), ["loop: r a y"]);
    let columns = body.replace("param %b: f32[32, 64]", "param %b: f32[t, 32]").replace("axis=0", "axis=1");
    assert_eq!(forms(&columns.replace("arg %i: i64[t]", "arg %i: i64[64]")), ["loop: a y"]);
}

#[test]
fn other_nodes_are_no_part_of_these_forms() {
    let inside = |form: &str, body: &str| {
        let first = body
            .find('%')
            .and_then(|arg| body[arg..].find("\n%"))
            .map(|at| at + 1 + body.find('%').unwrap_or(0));
        let (inputs, nodes) = body.split_at(first.unwrap_or(0));
        program(&format!("{inputs}dispatch {form} {{\n{}", nodes.replacen("return", "}\nreturn", 1)))
    };
    let is_valid = |program: &str| {
        let graph = text::parse(program).unwrap_or_else(|e| panic!("{e}\n{program}"));
        verify::verify(&graph).is_ok()
    };
    let fold = inside("loop", SUM);
    let selection = inside("selection", CHOICE);
    assert!(is_valid(&fold) && is_valid(&selection));
    // A sum over another axis, a row that is returned, and two sums over different axes.
    assert!(!is_valid(
        &fold
            .replace("f32[t, 512] = reduce %m op=sum axes=[1]", "f32[8, 512] = reduce %m op=sum axes=[0]")
            .replace("bf16[t, 512] = cast", "bf16[8, 512] = cast")
    ));
    assert!(!is_valid(&format!("{fold}return %r\n")));
    // A sum that may have no terms, and a division of integers.
    let reduced = "arg %x: f32[4, t]\n%a: f32[4, t] = neg %x\n%y: f32[4, 1] = reduce %a op=sum axes=[1] keep=true\nreturn %y\n";
    let rows = inside("loop", reduced);
    assert!(is_valid(&rows) && !is_valid(&rows.replace("symbol t in 1..", "symbol t in 0..")), "{rows}");
    let divided = "arg %x: i64[4, 8]\n%a: i64[4, 8] = rem %x, %x\n%y: i64[4, 1] = reduce %a op=sum axes=[1] keep=true\nreturn %y\n";
    assert!(!is_valid(&inside("loop", divided)));
    let two_sums = |second: &str| fold.replace("}\n", &format!("{second}\n}}\nreturn %s2\n"));
    assert!(is_valid(&two_sums("%s2: f32[t, 512] = reduce %m op=max axes=[1] keep=false")));
    assert!(!is_valid(&two_sums("%s2: f32[t, 8, 1] = reduce %m op=max axes=[2] keep=true")));
    // No selection, and a row whose extent is no constant.
    assert!(!is_valid(&inside("selection", "arg %x: f32[t, 8]\n%y: f32[t, 8] = exp %x\nreturn %y\n")));
    assert!(!is_valid(&selection.replace("}\n", "%n: f32[t, t] = full value=0.0\n}\nreturn %n\n")));
}
