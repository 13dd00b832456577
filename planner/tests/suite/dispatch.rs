//! Tests of dispatches: which nodes become one step, which of their values have memory, and that the check
//! handles them.

use std::collections::BTreeSet;

use symmc_check::check;
use symmc_ir::machine::{DispatchCapabilities, MachineProfile};
use symmc_ir::{Graph, text};
use symmc_plan::{ExitBarrier, PerRankOffset, Plan, Step};
use symmc_planner::{BucketInput, PlanConfig, plan};

pub(crate) fn profile() -> MachineProfile {
    MachineProfile {
        dispatches: DispatchCapabilities::GPU,
        ..MachineProfile::builtin("h200x2").expect("a profile")
    }
}

pub(crate) fn planned(program: &str) -> Plan {
    let graph = text::parse(program).unwrap_or_else(|e| panic!("{e}"));
    let bucket = BucketInput { graph: graph.clone(), decisions: vec![] };
    let config = PlanConfig { profile: Some(profile()), ..PlanConfig::default() };
    let plan = plan(&graph, &[bucket], &config).unwrap_or_else(|e| panic!("{e}"));
    check(&plan).unwrap_or_else(|e| panic!("{e:?}\n{}", plan.programs[0]));
    plan
}

/// The dispatches of the planned program, each as its form and the names of its nodes.
pub(crate) fn dispatches(plan: &Plan) -> Vec<String> {
    let graph: Graph = text::parse(&plan.programs[0]).expect("it reads");
    let texts = graph.dispatches.iter().map(|d| {
        let names: Vec<&str> = d.nodes().map(|n| graph.node_name(n)).collect();
        format!("{}: {}", d.form, names.join(" "))
    });
    texts.collect()
}

/// A layer of a transformer after its attention, for `tokens` tokens.
fn layer(tokens: &str, variant: &str) -> String {
    format!(
        "program \"layer\" ranks 2\nsymbol t in {tokens}\ngroup @tp world\n\
         arg %x: bf16[t, 4096]\narg %h: bf16[t, 2048]\nparam %o: bf16[4096, 2048]\nparam %gu: bf16[8192, 4096]\n\
         param %dn: bf16[4096, 4096]\nparam %n: bf16[4096]\n\
         %ot: bf16[2048, 4096] = permute %o perm=[1, 0]\n%gut: bf16[4096, 8192] = permute %gu perm=[1, 0]\n\
         %dnt: bf16[4096, 4096] = permute %dn perm=[1, 0]\n\
         %p: bf16[t, 4096] = matmul %h, %ot\n\
         %r: bf16[t, 4096] = all_reduce %p op=sum group=@tp via={variant}\n\
         %y: bf16[t, 4096] = add %x, %r\n\
         %ny: bf16[t, 4096] = rms_norm %y, %n axes=1 eps=1.0e-5 round_first=false\n\
         %g: bf16[t, 8192] = matmul %ny, %gut\n\
         %ga: bf16[t, 4096] = slice %g axis=1 start=0 step=1\n%up: bf16[t, 4096] = slice %g axis=1 start=4096 step=1\n\
         %s: bf16[t, 4096] = silu %ga\n%m: bf16[t, 4096] = mul %s, %up\n\
         %d: bf16[t, 4096] = matmul %m, %dnt\n\
         %rd: bf16[t, 4096] = all_reduce %d op=sum group=@tp via={variant}\n\
         %z: bf16[t, 4096] = add %y, %rd\n\
         %nz: bf16[t, 4096] = rms_norm %z, %n axes=1 eps=1.0e-5 round_first=false\n\
         return %nz\n"
    )
}

#[test]
fn a_layer_of_few_tokens_is_its_kernels() {
    let plan = planned(&layer("1..=64", "ll"));
    assert_eq!(dispatches(&plan), ["reduction: r y ny", "product: g ga up s m", "reduction: rd z nz"]);
    let steps: Vec<&str> = plan.buckets[0].steps.iter().map(|s| s.node.as_str()).collect();
    assert_eq!(steps, ["p", "r", "g", "d", "rd"]);
    for inner in ["r", "g", "s", "rd"] {
        assert!(!plan.buckets[0].places.contains_key(inner), "%{inner} has memory");
    }
}

#[test]
fn fused_norm_avoids_memory_its_row_blocks_send() {
    // A second layer follows, so that the norm of the second reduction is no output.
    let program =
        layer("1..=64", "ll").replace("return %nz", "%e: bf16[t, 4096] = matmul %nz, %dnt\nreturn %e");
    let plan = planned(&program);
    assert_eq!(dispatches(&plan)[2], "reduction: rd z nz");
    let why = |name: &str| plan.buckets[0].places[name].why.as_str();
    assert_eq!(why("z"), "over %y, which nothing needs any more");
    assert_eq!(why("nz"), "an intermediate value");
}

#[test]
fn norms_of_few_long_rows_get_a_separate_kernel() {
    let wide = |tokens: &str| layer(tokens, "ll").replace("4096", "8192");
    let normed = |tokens: &str| dispatches(&planned(&wide(tokens))).iter().any(|d| d == "reduction: r y ny");
    assert!(!normed("32..=32") && !normed("1..=8"));
    assert!(normed("128..=128"));
}

#[test]
fn many_tokens_keep_what_pays() {
    let plan = planned(&layer("1..=4096", "ll"));
    assert_eq!(dispatches(&plan), ["reduction: r y ny", "loop: s m", "reduction: rd z nz"]);
    // From 32 MiB on, stores alone are used, which compute no norm.
    let plan = planned(&layer("4096..=8192", "two_shot"));
    assert_eq!(dispatches(&plan), ["reduction: r y", "loop: s m", "reduction: rd z"]);
    assert!(plan.buckets[0].places.contains_key("r"), "peers write the reduction");
    // Smaller sizes of the bucket use a separate kernel for the addition.
    let plan = planned(&layer("1..=8192", "two_shot"));
    assert_eq!(dispatches(&plan), ["reduction: r y", "loop: s m", "reduction: rd z"]);
    let plan = planned(&layer("1..=2048", "two_shot"));
    assert_eq!(dispatches(&plan), ["loop: y ny", "loop: s m", "loop: z nz"]);
    assert!(plan.buckets[0].places.contains_key("y") && !plan.buckets[0].places.contains_key("z"));
}

/// A residual and the norm of its rows, whose weight is computed.
fn residual(norm: &str, row: u32) -> String {
    format!(
        "program \"residual\" ranks 1\nsymbol t in 1..=8192\narg %x: bf16[t, R]\narg %h: bf16[t, R]\nparam %n: bf16[R]\n\
         %w: bf16[R] = neg %n\n%s: bf16[t, R] = silu %h\n%y: bf16[t, R] = add %x, %s\n\
         %ny: bf16[t, R] = {norm}\n%e: bf16[t, R] = neg %ny\nreturn %e\nreturn %y\n"
    )
    .replace("R]", &format!("{row}]"))
}

#[test]
fn norm_is_fused_with_the_rows_it_reads() {
    let norm = "layer_norm %y, %w, %n axes=1 eps=1.0e-5";
    assert_eq!(dispatches(&planned(&residual(norm, 4096))), ["loop: s y ny"]);
    // An RMS norm takes the computation of its weight and the steps after it as well.
    let rms = "rms_norm %y, %w axes=1 eps=1.0e-5 round_first=false";
    assert_eq!(dispatches(&planned(&residual(rms, 4096))), ["loop: w s y ny e"]);
    // An RMS norm without such steps.
    let norm_only = residual(&rms.replace("%w", "%n"), 4096)
        .replace("%e: bf16[t, 4096] = neg %ny\n", "")
        .replace("return %e", "return %ny");
    assert_eq!(dispatches(&planned(&norm_only)), ["loop: s y ny"]);
    // Rows that are not kept in registers, a norm of an operand, and a norm of a result.
    let maps = |program: String| assert_eq!(dispatches(&planned(&program)), ["loop: s y"]);
    maps(residual(norm, 32768));
    maps(residual(&norm.replace("%y", "%x"), 4096));
    maps(
        residual(norm, 4096)
            .replace(
                "%y: bf16[t, 4096] = add %x, %s",
                "%y: bf16[t, 4096] = add %x, %s\n%v: bf16[1, t, 4096] = reshape %y",
            )
            .replace("%ny: bf16[t, 4096] = layer_norm %y", "%nv: bf16[1, t, 4096] = layer_norm %v")
            .replace("neg %ny", "reshape %nv"),
    );
}

#[test]
fn edited_norm_dispatches_are_rejected() {
    let layer = || planned(&residual("layer_norm %y, %w, %n axes=1 eps=1.0e-5", 4096));
    let mut over = layer();
    let weight = over.buckets[0].places["w"].clone();
    over.buckets[0].places["ny"] = weight;
    assert!(!broken(&over).is_empty());
    let norm = "%ny: bf16[t, 4096] = layer_norm %y, %w, %n axes=1 eps=1e-5\n";
    let edit = |from: &str, to: &str| {
        let mut plan = layer();
        assert!(plan.programs[0].contains(from), "{from}\n{}", plan.programs[0]);
        plan.programs[0] = plan.programs[0].replacen(from, to, 1);
        broken(&plan)
    };
    // Narrower, wider, and of another form.
    let after = "%e: bf16[t, 4096] = neg %ny\n";
    let invalid = BTreeSet::from(["Invalid".to_string()]);
    let missing = edit(&format!("{norm}}}\n"), &format!("}}\n{norm}"));
    assert_eq!(missing, BTreeSet::from(["StepMissing".to_string()]));
    let wider = edit(&format!("{norm}}}\n{after}"), &format!("{norm}{after}}}\n"));
    assert_eq!(wider, ["PlaceUnknown", "StepUnknown"].map(String::from).into());
    assert_eq!(edit("dispatch loop {", "dispatch product {"), invalid);
}

/// Queries, keys and values of `tokens` tokens, with `views` between the queries and their rotary embedding.
fn heads(tokens: &str, views: &str) -> String {
    format!(
        "program \"heads\" ranks 1\nsymbol t in {tokens}\narg %x: bf16[1, t, 4096]\nparam %q: bf16[1024, 4096]\n\
         param %k: bf16[128, 4096]\nparam %v: bf16[128, 4096]\narg %c: bf16[t, 128]\narg %s: bf16[t, 128]\n\
         %wq: bf16[4096, 1024] = permute %q perm=[1, 0]\n%wk: bf16[4096, 128] = permute %k perm=[1, 0]\n\
         %wv: bf16[4096, 128] = permute %v perm=[1, 0]\n%pq: bf16[1, t, 1024] = matmul %x, %wq\n\
         %pk: bf16[1, t, 128] = matmul %x, %wk\n%pv: bf16[1, t, 128] = matmul %x, %wv\n{views}\
         %rq: bf16[1, 8, t, 128] = rotary_embedding %hq, %c, %s width=128 interleaved=false\n\
         %hk: bf16[1, 1, t, 128] = reshape %pk\n\
         %rk: bf16[1, 1, t, 128] = rotary_embedding %hk, %c, %s width=128 interleaved=false\n\
         %hv: bf16[1, 1, t, 128] = reshape %pv\n\
         %a: bf16[1, 8, t, 128] = attention %rq, %rk, %hv causal=true scale=0.08838834764831845\nreturn %a\n"
    )
}

const BY_HEADS: &str =
    "%gq: bf16[1, t, 8, 128] = reshape %pq\n%hq: bf16[1, 8, t, 128] = permute %gq perm=[0, 2, 1, 3]\n";

#[test]
fn products_of_few_rows_also_transpose_heads() {
    let plan = planned(&heads("1..=64", BY_HEADS));
    assert_eq!(dispatches(&plan), ["batch: pq pk pv gq hq rq hk rk"]);
    for inner in ["pq", "pk"] {
        assert!(!plan.buckets[0].places.contains_key(inner), "%{inner} has memory");
    }
    assert!(plan.buckets[0].places.contains_key("pv"), "attention reads it");
    let separate = ["batch: pq pk pv", "rotary: rq rk"];
    assert_eq!(dispatches(&planned(&heads("1..=65", BY_HEADS))), separate);
    // Queries with other readers, and rows of columns.
    let program = heads("1..=64", BY_HEADS);
    assert_eq!(dispatches(&planned(&program.replace("return %a", "return %a, %pq"))), separate);
    assert_eq!(dispatches(&planned(&program.replace("return %a", "return %a, %hq"))), separate);
    let crossed =
        "%tq: bf16[1, 1024, t] = permute %pq perm=[0, 2, 1]\n%hq: bf16[1, 8, t, 128] = reshape %tq\n";
    assert_eq!(dispatches(&planned(&heads("1..=64", crossed))), separate);
    // Reading wide weights takes longer than the dispatch saves.
    let wide = program.replace("1024", "8192").replace("%gq: bf16[1, t, 8,", "%gq: bf16[1, t, 64,");
    let wide = wide.replace("bf16[1, 8, t, 128]", "bf16[1, 64, t, 128]");
    assert_eq!(dispatches(&planned(&wide)), separate);
    // Weights whose lines lie along the columns.
    let rows = program.replace("param %k: bf16[128, 4096]", "param %k: bf16[4096, 128]");
    let rows = rows.replace("permute %k perm=[1, 0]", "neg %k");
    assert_eq!(dispatches(&planned(&rows)), separate);
}

/// Queries, keys and values. The first two have a norm before the next product, and `between` follows.
fn normed_heads(between: &str) -> String {
    let head = |name: &str, n: i64| {
        format!(
            "%p{name}: bf16[1, t, {0}] = matmul %x, %w{name}\n%g{name}: bf16[1, t, {n}, 128] = reshape %p{name}\n\
             %n{name}: bf16[1, t, {n}, 128] = rms_norm %g{name}, %w axes=1 eps=1e-6 round_first=true\n\
             %h{name}: bf16[1, {n}, t, 128] = permute %n{name} perm=[0, 2, 1, 3]\n",
            n * 128
        )
    };
    format!(
        "program \"heads\" ranks 1\nsymbol t in 1..=64\narg %x: bf16[1, t, 4096]\nparam %q: bf16[1024, 4096]\n\
         param %k: bf16[128, 4096]\nparam %v: bf16[128, 4096]\nparam %w: bf16[128]\n\
         %wq: bf16[4096, 1024] = permute %q perm=[1, 0]\n%wk: bf16[4096, 128] = permute %k perm=[1, 0]\n\
         %wv: bf16[4096, 128] = permute %v perm=[1, 0]\n{}{between}{}%pv: bf16[1, t, 128] = matmul %x, %wv\n\
         %hv: bf16[1, 1, t, 128] = reshape %pv\n\
         %a: bf16[1, 8, t, 128] = attention %hq, %hk, %hv causal=true scale=0.08838834764831845\nreturn %a\n",
        head("q", 8),
        head("k", 1),
    )
}

#[test]
fn products_sharing_an_operand_are_batched_across_norms() {
    let program = normed_heads("");
    assert_eq!(dispatches(&planned(&program)), ["batch: pq pk pv"]);
    // Far from the others.
    let far: String = (0..9)
        .fold(String::from("%e0: bf16[1, t, 8, 128] = softmax %nq axis=3 log=false\n"), |all, i| {
            format!("{all}%e{}: bf16[1, t, 8, 128] = softmax %e{i} axis=3 log=false\n", i + 1)
        });
    assert_eq!(
        dispatches(&planned(&normed_heads(&far).replace("return %a", "return %a, %e9"))),
        ["batch: pk pv"]
    );
    // A weight that is computed between them.
    let computed_weight = program.replace(
        "%pk: bf16[1, t, 128] = matmul %x, %wk",
        "%ek: bf16[4096, 128] = exp %wk\n%pk: bf16[1, t, 128] = matmul %x, %ek",
    );
    assert_eq!(dispatches(&planned(&computed_weight)), ["batch: pk pv"]);
}

#[test]
fn edited_batches_with_heads_are_rejected() {
    let edit = |changes: &[(&str, &str)]| {
        let mut plan = planned(&heads("1..=64", BY_HEADS));
        for (from, to) in changes {
            assert!(plan.programs[0].contains(from), "{from}\n{}", plan.programs[0]);
            plan.programs[0] = plan.programs[0].replacen(from, to, 1);
        }
        broken(&plan)
    };
    let invalid = BTreeSet::from(["Invalid".to_string()]);
    let keys = "%rk: bf16[1, 1, t, 128] = rotary_embedding %hk, %c, %s width=128 interleaved=false\n";
    // Without the embedding of the keys, their product has no memory. The view before it reorders nothing.
    assert_eq!(edit(&[(&format!("{keys}}}\n"), &format!("}}\n{keys}"))]), invalid);
    let view = "%hk: bf16[1, 1, t, 128] = reshape %pk\n";
    let narrow = edit(&[(&format!("{view}{keys}}}\n"), &format!("}}\n{view}{keys}"))]);
    assert!(narrow.contains("StepMissing") && narrow.contains("PlaceMissing"), "{narrow:?}");
    // Another form, and an embedding with a value that the dispatch itself computes.
    assert_eq!(edit(&[("dispatch batch {", "dispatch rotary {")]), invalid);
    assert_eq!(edit(&[("rotary_embedding %hk, %c, %s", "rotary_embedding %hk, %hk, %hk")]), invalid);
    // Embedded keys over the operand of the products, and over the cosines.
    for over in ["x", "c"] {
        let mut plan = planned(
            &heads("1..=64", BY_HEADS).replace("arg %x", "arg %y").replace("arg %c", "arg %d").replacen(
                "%wq:",
                "%x: bf16[1, t, 4096] = neg %y\n%c: bf16[t, 128] = neg %d\n%wq:",
                1,
            ),
        );
        let placement = plan.buckets[0].places[over].clone();
        plan.buckets[0].places["rk"] = placement;
        assert!(broken(&plan).contains("InPlace"), "{over}: {:?}", broken(&plan));
    }
}

/// Keys and values that are stored into caches, and attention to both.
const CACHES: &str = "program \"caches\" ranks 1\nsymbol t in 1..=64\narg %q: bf16[1, 8, t, 128]\n\
    arg %k: bf16[1, 2, t, 128]\narg %v: bf16[1, 2, t, 128]\narg %at: i64[t]\n\
    arg %ck: bf16[1, 2, 512, 128]\narg %cv: bf16[1, 2, 512, 128]\n\
    %nk: bf16[1, 2, 512, 128] = index_put %ck, %k, %at axis=2 accumulate=false\n\
    %nv: bf16[1, 2, 512, 128] = index_put %cv, %v, %at axis=2 accumulate=false\n\
    %a: bf16[1, 8, t, 128] = attention %q, %nk, %nv causal=false scale=0.08838834764831845\nreturn %a\n\
    mutate %ck = %nk\nmutate %cv = %nv\n";

#[test]
fn caches_are_updated_in_place_by_one_kernel() {
    let plan = planned(CACHES);
    assert_eq!(dispatches(&plan), ["scatter: nk nv"]);
    let places = &plan.buckets[0].places;
    for (cache, stored) in [("ck", "nk"), ("cv", "nv")] {
        assert_eq!(places[cache].memory, places[stored].memory, "%{cache}");
    }
    assert!(plan.buckets[0].copies.is_empty(), "{:?}", plan.buckets[0].copies);
    // The second stored value depends on the first store.
    let chained = CACHES.replace("index_put %cv, %v", "index_put %nk, %v").replace("mutate %ck = %nk\n", "");
    assert_eq!(dispatches(&planned(&chained)), [""; 0]);
}

#[test]
fn edited_scatter_dispatches_are_rejected() {
    let plan_of_caches = || planned(CACHES);
    let edit = |from: &str, to: &str| {
        let mut plan = plan_of_caches();
        assert!(plan.programs[0].contains(from), "{from}\n{}", plan.programs[0]);
        plan.programs[0] = plan.programs[0].replacen(from, to, 1);
        broken(&plan)
    };
    let invalid = BTreeSet::from(["Invalid".to_string()]);
    let values = "%nv: bf16[1, 2, 512, 128] = index_put %cv, %v, %at axis=2 accumulate=false\n";
    // Narrower, wider, of another form, and a store of a value that the dispatch itself computes.
    assert!(edit(&format!("{values}}}\n"), &format!("}}\n{values}")).contains("StepMissing"));
    let attention =
        "%a: bf16[1, 8, t, 128] = attention %q, %nk, %nv causal=false scale=0.08838834764831845\n";
    assert_eq!(edit(&format!("}}\n{attention}"), &format!("{attention}}}\n")), invalid);
    assert_eq!(edit("dispatch scatter {", "dispatch rotary {"), invalid);
    assert_eq!(edit("index_put %cv, %v", "index_put %nk, %v"), invalid);
    // The stored keys over the values that the other store reads.
    let program = CACHES.replace("512", "64").replace("t in 1..=64", "t in 64..=64");
    let program = program.replace("mutate %ck = %nk\n", "").replace("arg %v", "arg %u");
    let mut plan = planned(&program.replacen("%nk:", "%v: bf16[1, 2, t, 128] = neg %u\n%nk:", 1));
    assert_eq!(dispatches(&plan), ["scatter: nk nv"]);
    let placement = plan.buckets[0].places["v"].clone();
    plan.buckets[0].places["nk"] = placement;
    assert!(broken(&plan).contains("InPlace"), "{:?}", broken(&plan));
}

#[test]
fn two_fused_products_pay_off_where_one_does_not() {
    let program = |second: &str| {
        format!(
            "program \"gated\" ranks 1\nsymbol t in 1..=64\narg %x: bf16[t, 8192]\nparam %g: bf16[3584, 8192]\n\
             param %u: bf16[3584, 8192]\narg %z: bf16[t, 3584]\n%gt: bf16[8192, 3584] = permute %g perm=[1, 0]\n\
             %ut: bf16[8192, 3584] = permute %u perm=[1, 0]\n%a: bf16[t, 3584] = matmul %x, %gt\n\
             %s: bf16[t, 3584] = silu %a\n{second}%m: bf16[t, 3584] = mul %s, %b\nreturn %m\n"
        )
    };
    let two_products = planned(&program("%b: bf16[t, 3584] = matmul %x, %ut\n"));
    assert_eq!(dispatches(&two_products), ["product: a s b m"]);
    let one_product = planned(&program("%b: bf16[t, 3584] = neg %z\n"));
    assert_eq!(dispatches(&one_product), ["loop: s b m"]);
}

/// An all-gather along the last axis, and its reader.
fn last_axis_gather(tokens: &str, variant: &str) -> String {
    format!(
        "program \"gathered\" ranks 4\nsymbol t in {tokens}\ngroup @tp world\narg %x: bf16[t, 64]\nparam %w: bf16[256, 32]\n\
         %l: bf16[t, 64] = neg %x\n%g: bf16[4*t, 64] = all_gather %l group=@tp via={variant}\n\
         %r: bf16[4, t, 64] = reshape %g\n%p: bf16[t, 4, 64] = permute %r perm=[1, 0, 2]\n%f: bf16[t, 256] = reshape %p\n\
         %y: bf16[t, 32] = matmul %f, %w\nreturn %y\n"
    )
}

#[test]
fn last_axis_gather_is_fused_with_its_copy() {
    for variant in ["ll", "pull"] {
        let plan = planned(&last_axis_gather("1..=64", variant));
        assert_eq!(dispatches(&plan), ["gather: g r p f"], "{variant}");
        let steps: Vec<&str> = plan.buckets[0].steps.iter().map(|s| s.node.as_str()).collect();
        assert_eq!(steps, ["l", "g", "y"]);
        assert!(!plan.buckets[0].places.contains_key("g"), "%g has memory");
    }
    // Other variants, whose results are written by peers or by the library.
    for variant in ["push", "plain", "copies", "pull_copies", "nccl_window"] {
        assert_eq!(dispatches(&planned(&last_axis_gather("1..=64", variant))), [""; 0], "{variant}");
    }
    let program = last_axis_gather("1..=64", "pull");
    let assert_not_fused = |from: &str, to: &str| {
        assert!(program.contains(from), "{from}");
        assert_eq!(dispatches(&planned(&program.replace(from, to))), [""; 0], "{to}");
    };
    // The gathered value has other readers, or is returned.
    assert_not_fused("return %y", "return %y, %g");
    assert_not_fused("return %y", "%e: bf16[4*t, 64] = neg %g\nreturn %y, %e");
    assert_not_fused("return %y", "%e: bf16[t, 4, 64] = neg %p\nreturn %y, %e");
    // Rows that are no multiples of 16 bytes.
    let narrow = program.replace("64]", "60]").replace("256", "240");
    assert_eq!(dispatches(&planned(&narrow)), [""; 0]);
    // The columns of all ranks in turn.
    let columns = "%r: bf16[4, t, 64] = reshape %g\n%p: bf16[t, 64, 4] = permute %r perm=[1, 2, 0]\n";
    let (start, end) = (program.find("%r:").expect("views"), program.find("%f:").expect("a copy"));
    assert_eq!(dispatches(&planned(&(program[..start].to_string() + columns + &program[end..]))), [""; 0]);
    // A gather along a middle axis, and a returned view, which the plan copies.
    let middle =
        program.replace("%r: bf16[4, t, 64] = reshape %g", "%r: bf16[4, t, 2, 32] = reshape %g").replace(
            "%p: bf16[t, 4, 64] = permute %r perm=[1, 0, 2]",
            "%p: bf16[t, 4, 2, 32] = permute %r perm=[1, 0, 2, 3]",
        );
    assert_eq!(dispatches(&planned(&middle)), ["gather: g r p f"]);
    let returned = program[..end].to_string() + "return %p\n";
    assert_eq!(dispatches(&planned(&returned)), ["gather: g r p p.out"]);
}

#[test]
fn edited_gather_dispatches_are_rejected() {
    let edit = |changes: &[(&str, &str)]| {
        let mut plan = planned(&last_axis_gather("1..=64", "pull"));
        for (from, to) in changes {
            assert!(plan.programs[0].contains(from), "{from}\n{}", plan.programs[0]);
            plan.programs[0] = plan.programs[0].replacen(from, to, 1);
        }
        broken(&plan)
    };
    let invalid = BTreeSet::from(["Invalid".to_string()]);
    let copy = "%f: bf16[t, 256] = reshape %p\n";
    let product = "%y: bf16[t, 32] = matmul %f, %w\n";
    // Without the copy, with the next node, in another form, and by variants that write results of peers or
    // write from arrival on.
    assert_eq!(edit(&[(&format!("{copy}}}\n"), &format!("}}\n{copy}"))]), invalid);
    assert_eq!(edit(&[(&format!("}}\n{product}"), &format!("{product}}}\n"))]), invalid);
    assert_eq!(edit(&[("dispatch gather {", "dispatch reduction {")]), invalid);
    for variant in ["push", "plain", "nccl_window"] {
        assert_eq!(edit(&[("via=pull", &format!("via={variant}"))]), invalid, "{variant}");
    }
    // A copy of another value, or of a part.
    assert!(!edit(&[("permute %r perm=[1, 0, 2]", "permute %l perm=[1, 0, 2]")]).is_empty());
    // The copy over the operand, and without memory.
    let mut plan = planned(&last_axis_gather("1..=64", "ll"));
    let result = plan.buckets[0].places["f"].clone();
    plan.buckets[0].places["l"] = result;
    assert!(broken(&plan).contains("InPlace"), "{:?}", broken(&plan));
    let mut plan = planned(&last_axis_gather("1..=64", "pull"));
    plan.buckets[0].places.shift_remove("f");
    assert!(broken(&plan).contains("PlaceMissing"), "{:?}", broken(&plan));
}

/// The rules that a plan violates.
pub(crate) fn broken(plan: &Plan) -> BTreeSet<String> {
    check(plan).err().unwrap_or_default().iter().map(|e| e.kind()).collect()
}

/// The plan of a layer with its program changed.
fn edit_layer(from: &str, to: &str) -> Plan {
    let mut plan = planned(&layer("1..=64", "ll"));
    assert!(plan.programs[0].contains(from), "{from}\n{}", plan.programs[0]);
    plan.programs[0] = plan.programs[0].replacen(from, to, 1);
    plan
}

#[test]
fn edited_product_dispatches_are_rejected() {
    let last_node = "%m: bf16[t, 4096] = mul %s, %up\n}\n";
    // Without the last node, the node before it has a result that needs memory, and the last node has no step.
    let mut narrow = planned(&layer("1..=4096", "ll"));
    narrow.programs[0] = narrow.programs[0].replacen(last_node, "}\n%m: bf16[t, 4096] = mul %s, %up\n", 1);
    let errors = broken(&narrow);
    assert!(errors.contains("StepMissing") && errors.contains("PlaceMissing"), "{errors:?}");
    // With the following product, which is a step of its own.
    let down = "%d: bf16[t, 4096] = matmul %m, %dnt\n";
    let mut wide = edit_layer(last_node, &last_node[..last_node.len() - 2]);
    wide.programs[0] = wide.programs[0].replacen(down, &format!("{down}}}\n"), 1);
    assert_eq!(broken(&wide), BTreeSet::from(["Invalid".to_string()]));
    // Another form.
    let map_form = edit_layer("dispatch product {", "dispatch loop {");
    assert_eq!(broken(&map_form), BTreeSet::from(["Invalid".to_string()]));
}

#[test]
fn result_over_a_product_operand_is_rejected() {
    // The gated product over the left matrix.
    let mut plan = planned(&layer("1..=64", "ll"));
    let placement = plan.buckets[0].places["ny"].clone();
    plan.buckets[0].places["m"] = placement;
    assert!(broken(&plan).contains("InPlace"), "{:?}", broken(&plan));
}

#[test]
fn reductions_lie_at_one_place_on_all_ranks() {
    let mut plan = planned(&layer("1..=64", "ll"));
    plan.buckets[0].places["y"].by_rank = Some(PerRankOffset { group: "tp".into(), stride: "0".into() });
    assert!(broken(&plan).contains("ReductionUneven"), "{:?}", broken(&plan));
}

/// A program with collectives that run as one step by this variant.
fn together(variant: &str, between: &str, nodes: &str) -> String {
    let text = format!(
        "program \"c\" ranks 4\nsymbol t in 1..=8\ngroup @w world\n\
         param %p: bf16[16, 64]\narg %x: f32[4*t, 12]\narg %y: u8[4*t, 16]\n\
         %h: f32[4*t, 12] = neg %x\n{between}dispatch collectives {{\n{nodes}}}\n\
         %d: f32[4*t, 12] = exp %b\nreturn %a\nreturn %d\nreturn %c\n"
    );
    text.replace("via=V", &format!("via={variant}"))
}

#[test]
fn coalesced_collectives_share_one_step_and_barriers() {
    let moved = "%a: bf16[64, 64] = all_gather %p group=@w via=V\n\
         %b: f32[4*t, 12] = all_to_all %h splits=even group=@w via=V\n\
         %c: u8[16*t, 16] = all_gather %y group=@w via=V\n";
    let reduced = "%a: bf16[4, 64] = reduce_scatter %p op=sum group=@w via=V\n\
         %b: f32[4*t, 12] = all_to_all %h splits=even group=@w via=V\n\
         %c: u8[4*t, 16] = all_to_all %y splits=even group=@w via=V\n";
    let summed = "%a: bf16[16, 64] = all_reduce %p op=sum group=@w via=V\n\
         %b: f32[4*t, 12] = all_reduce %h op=avg group=@w via=V\n\
         %c: u8[4*t, 16] = all_reduce %y op=max group=@w via=V\n";
    let by = [
        ("pull", moved),
        ("push", moved),
        ("copies", moved),
        ("pull_copies", moved),
        ("pull", reduced),
        ("one_shot", summed),
        ("two_shot", summed),
    ];
    for (variant, nodes) in by {
        let program = together(variant, "", nodes);
        let graph = text::parse(&program).unwrap_or_else(|e| panic!("{e}"));
        for profile in [Some(profile()), None] {
            let bucket = BucketInput { graph: graph.clone(), decisions: vec![] };
            let config = PlanConfig { profile, ..PlanConfig::default() };
            let plan = plan(&graph, &[bucket], &config).unwrap_or_else(|e| panic!("{variant}: {e}"));
            check(&plan).unwrap_or_else(|e| panic!("{variant}: {e:?}\n{}", plan.programs[0]));
            let sets: Vec<String> = dispatches(&plan);
            assert!(sets.contains(&"collectives: a b c".to_string()), "{variant}: {sets:?}");
            let program = text::parse(&plan.programs[0]).expect("a planned program parses");
            let names = program.values_by_name();
            let of_collectives = |s: &&Step| {
                let node = program.defining_node(names[s.node.as_str()]).expect("a node");
                program.nodes[node].op.as_collective().is_some()
            };
            let steps = plan.buckets[0].steps.iter().filter(of_collectives);
            assert_eq!(steps.map(|s| s.node.as_str()).collect::<Vec<_>>(), ["a"], "{variant}");
        }
    }
}

#[test]
fn coalesced_collectives_need_not_be_adjacent() {
    // The nodes between: a norm of rows, whose units the walk closes, and a reduction over rows, which it
    // defers.
    let between = "%n: f32[4*t, 12] = softmax %h axis=1 log=false\n%m: f32[12] = reduce %n op=sum axes=[0] keep=false\n\
         %q: bf16[12] = cast %m\n%f: bf16[12] = neg %q\n";
    let nodes = "%a: bf16[64, 64] = all_gather %p group=@w via=V\n\
         %b: f32[4*t, 12] = all_to_all %n splits=even group=@w via=V\n\
         %c: bf16[12] = reduce_scatter %e op=sum group=@w via=V\n";
    let spread = format!("{between}%e: bf16[48] = concat %f, %f, %f, %f axis=0\n");
    let plan = planned(&together("pull", &spread, nodes));
    assert!(dispatches(&plan).contains(&"collectives: a b c".to_string()), "{:?}", dispatches(&plan));
}

#[test]
fn an_exit_barrier_of_a_set_protects_all_operands() {
    // One operand is written once, and one is computed in each run.
    let nodes = "%a: bf16[64, 64] = all_gather %p group=@w via=V\n\
         %b: f32[4*t, 12] = all_to_all %h splits=even group=@w via=V\n";
    let program = together("pull", "", nodes).replace("return %c\n", "");
    let mut plan = planned(&program);
    let step = plan.buckets[0].steps.iter().position(|s| s.node == "a").expect("the set");
    assert_eq!(plan.buckets[0].steps[step].exit, Some(ExitBarrier::Kept));
    plan.buckets[0].steps[step].exit = Some(ExitBarrier::Dropped);
    let totals = &mut plan.buckets[0].totals;
    (totals.barriers_kept, totals.barriers_dropped) = (0, 1);
    let errors = check(&plan).expect_err("the next run writes what peers may still read");
    let races = errors.iter().map(ToString::to_string).filter(|e| e.contains("%h")).count();
    assert!(races > 0, "{errors:?}");
    // Both are written once, so nothing is overwritten.
    let constant = program
        .replace("arg %x: f32[4*t, 12]", "arg %x: f32[4*t, 12]\nparam %k: f32[8, 12]")
        .replace("%b: f32[4*t, 12] = all_to_all %h", "%b: f32[8, 12] = all_to_all %k")
        .replace("%d: f32[4*t, 12] = exp %b", "%d: f32[8, 12] = exp %b\n%o: f32[4*t, 12] = exp %h")
        .replace("return %d", "return %d\nreturn %o");
    let plan = planned(&constant);
    let step = plan.buckets[0].steps.iter().find(|s| s.node == "a").expect("the set");
    assert_eq!(step.exit, Some(ExitBarrier::Dropped));
}

#[test]
fn result_over_an_operand_of_the_set_is_rejected() {
    let nodes = "%a: bf16[16, 64] = all_to_all %p splits=even group=@w via=V\n\
         %b: f32[4*t, 12] = all_to_all %h splits=even group=@w via=V\n\
         %c: u8[4*t, 16] = all_to_all %y splits=even group=@w via=V\n";
    let mut plan = planned(&together("pull", "", nodes));
    let placement = plan.buckets[0].places["h"].clone();
    plan.buckets[0].places.insert("b".into(), placement);
    let errors = check(&plan).expect_err("it lies on what peers read");
    assert!(errors.iter().any(|e| matches!(e, symmc_check::CheckError::InPlace { .. })), "{errors:?}");
}
