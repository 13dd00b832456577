//! Typical parts of training graphs: gradients of weights next to gradients of activations, optimizer steps,
//! sums of gradients, and casts of sharded parameters.

use symmc_plan::{MemoryRef, Plan};

use crate::dispatch::{dispatches, planned};

/// The gradient of a norm with a weight. The weight's gradient is a reduction over the rows, and stands in the
/// middle.
const BACKWARD: &str = "program \"backward\" ranks 1\narg %g: bf16[2048, 1024]\narg %x: f32[2048, 1024]\n\
    arg %n: f32[2048, 1024]\narg %r: f32[2048, 1]\narg %res: bf16[2048, 1024]\nparam %w: bf16[1024]\n\
    %c: f32[2048, 1024] = cast %g\n%wc: f32[1024] = cast %w\n%gn: f32[2048, 1024] = mul %c, %n\n%gw: f32[2048, 1024] = mul %c, %wc\n\
    %dw: f32[1, 1024] = reduce %gn op=sum axes=[0] keep=true\n%db: bf16[1, 1024] = cast %dw\n\
    %a: f32[2048, 1024] = mul %gw, %x\n%b: f32[2048, 1024] = mul %gw, %r\n\
    %s: f32[2048, 1] = reduce %a op=sum axes=[1] keep=true\n%v: f32[2048, 1] = mul %s, -0.5\n\
    %z: f32[2048, 1024] = mul %v, %x\n%q: f32[2048, 1024] = add %b, %z\n%k: bf16[2048, 1024] = cast %q\n\
    %y: bf16[2048, 1024] = add %res, %k\nreturn %y\nreturn %db\n";

#[test]
fn the_gradient_of_a_weight_divides_no_rows() {
    let plan = planned(BACKWARD);
    assert_eq!(dispatches(&plan), ["loop: c wc gn gw a b s v z q k y"]);
    let steps: Vec<&str> = plan.buckets[0].steps.iter().map(|s| s.node.as_str()).collect();
    assert_eq!(steps.len(), 3, "{steps:?}");
    // A reduction over rows divides the dispatch if the rest of the row needs it.
    let needed = BACKWARD
        .replace("mul %v, %x", "mul %v, %shift")
        .replace("%a: f32", "%shift: f32[1, 1024] = abs %dw\n%a: f32");
    assert_eq!(dispatches(&planned(&needed)), ["loop: c wc gn gw a b s v", "loop: shift z q k y"]);
}

/// A step of AdamW in PyTorch's `foreach` form: one statement for all tensors, then the next.
fn adamw(shapes: &[&str]) -> String {
    let mut text = String::from("program \"adamw\" ranks 1\narg %c1: f32[]\narg %c2: f32[]\n");
    let each = |text: &mut String, line: &str| {
        for (k, shape) in shapes.iter().enumerate() {
            text.push_str(&line.replace('#', &k.to_string()).replace("[S]", &format!("[{shape}]")));
            text.push('\n');
        }
    };
    for line in [
        "arg %p#: f32[S]",
        "arg %g#: f32[S]",
        "arg %m#: f32[S]",
        "arg %v#: f32[S]",
        "%d#: f32[S] = mul %p#, 0.999",
        "%s#: f32[S] = sub %g#, %m#",
        "%l#: f32[S] = mul %s#, 0.1",
        "%nm#: f32[S] = add %m#, %l#",
        "%e#: f32[S] = mul %v#, 0.999",
        "%q#: f32[S] = mul %g#, %g#",
        "%t#: f32[S] = mul %q#, 0.001",
        "%nv#: f32[S] = add %e#, %t#",
        "%r#: f32[S] = sqrt %nv#",
        "%u#: f32[S] = div %r#, %c2",
        "%w#: f32[S] = add %u#, 1.0e-8",
        "%x#: f32[S] = div %w#, %c1",
        "%y#: f32[S] = div %nm#, %x#",
        "%np#: f32[S] = add %d#, %y#",
        "mutate %p# = %np#",
        "mutate %m# = %nm#",
        "mutate %v# = %nv#",
    ] {
        each(&mut text, line);
    }
    text
}

/// Whether results that replace inputs share their memory, and nothing is copied.
fn is_in_place(plan: &Plan, pairs: &[(&str, &str)]) -> bool {
    let bucket = &plan.buckets[0];
    let is_shared = |(input, result): &(&str, &str)| {
        let memory = |name: &str| bucket.places.get(name).map(|place| &place.memory);
        matches!(memory(result), Some(MemoryRef::Output(_))) && memory(input) == memory(result)
    };
    bucket.copies.is_empty() && pairs.iter().all(is_shared)
}

#[test]
fn optimizer_step_is_one_in_place_map_per_parameter() {
    let plan = planned(&adamw(&["4096, 512"]));
    assert_eq!(dispatches(&plan), ["loop: d0 s0 l0 nm0 e0 q0 t0 nv0 r0 u0 w0 x0 y0 np0"]);
    assert!(is_in_place(&plan, &[("p0", "np0"), ("m0", "nm0"), ("v0", "nv0")]));
    // Parameters of other shapes between them, and two of one shape.
    let plan = planned(&adamw(&["4096, 512", "512", "64, 64", "4096, 512"]));
    let steps = plan.buckets[0].steps.len();
    assert!(steps <= 4, "{steps}: {:?}", dispatches(&plan));
    for k in 0..4 {
        let names = ["p", "m", "v"].map(|n| (format!("{n}{k}"), format!("n{n}{k}")));
        let pairs: Vec<(&str, &str)> = names.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
        assert!(is_in_place(&plan, &pairs), "{k}: {:?}", plan.buckets[0].places);
    }
}

#[test]
fn momentum_and_sums_of_gradients_are_in_place() {
    let sgd = "program \"sgd\" ranks 1\narg %p: f32[64, 512]\narg %g: bf16[64, 512]\narg %m: f32[64, 512]\n\
        %c: f32[64, 512] = cast %g\n%d: f32[64, 512] = mul %p, 0.01\n%e: f32[64, 512] = add %c, %d\n\
        %f: f32[64, 512] = mul %m, 0.9\n%nm: f32[64, 512] = add %f, %e\n%u: f32[64, 512] = mul %nm, -0.1\n\
        %np: f32[64, 512] = add %p, %u\nmutate %p = %np\nmutate %m = %nm\n";
    let plan = planned(sgd);
    assert_eq!(dispatches(&plan), ["loop: c d e f nm u np"]);
    assert!(is_in_place(&plan, &[("p", "np"), ("m", "nm")]));
    let sum = "program \"sum\" ranks 1\narg %x: bf16[512, 64]\narg %y: bf16[512, 128]\narg %a: f32[64, 128]\n\
        %t: bf16[64, 512] = permute %x perm=[1, 0]\n%g: bf16[64, 128] = matmul %t, %y\n%c: f32[64, 128] = cast %g\n\
        %s: f32[64, 128] = add %a, %c\nmutate %a = %s\n";
    let plan = planned(sum);
    assert!(is_in_place(&plan, &[("a", "s")]), "{:?}", plan.buckets[0].places);
}

#[test]
fn casts_of_shards_are_written_into_gather_operands() {
    for (variant, dtype) in
        [("copies", "bf16"), ("pull", "bf16"), ("ll", "bf16"), ("push", "f16"), ("plain", "bf16")]
    {
        let program = format!(
            "program \"fsdp\" ranks 2\ngroup @g world\narg %x: bf16[512, 256]\nparam %w: f32[256, 256]\nparam %v: f32[256, 256]\n\
             %c: D[256, 256] = cast %w\n%a: D[512, 256] = all_gather %c group=@g via={variant}\n\
             %d: D[256, 256] = cast %v\n%b: D[512, 256] = all_gather %d group=@g via={variant}\n\
             %t: D[256, 512] = permute %a perm=[1, 0]\n%u: D[256, 512] = permute %b perm=[1, 0]\n\
             %xd: D[512, 256] = cast %x\n\
             %p: D[512, 512] = matmul %xd, %t\n%q: D[512, 512] = matmul %xd, %u\n%y: D[512, 512] = mul %p, %q\nreturn %y\n"
        );
        let plan = planned(&program.replace("D[", &format!("{dtype}[")));
        assert!(plan.buckets[0].copies.is_empty(), "{variant}: {:?}", plan.buckets[0].copies);
        assert!(!plan.programs[0].contains("= copy"), "{variant}: {}", plan.programs[0]);
    }
}

/// Steps are not merged if one of them is needed before the end of a collective for which the other waits.
#[test]
fn merged_maps_delay_nothing_that_waits_for_no_collective() {
    let program = |also: &str| {
        format!(
            "program \"merge\" ranks 2\ngroup @g world\narg %x: bf16[512, 256]\narg %y: bf16[256, 256]\nparam %w: bf16[256, 256]\n\
             %a: bf16[512, 256] = exp %x\n%g: bf16[512, 256] = all_gather %y group=@g via=pull\n\
             %b: bf16[512, 256] = neg %g\n%c: bf16[512, 256] = mul %a, %b\n{also}return %c\n"
        )
    };
    assert_eq!(dispatches(&planned(&program(""))), ["loop: a b c"]);
    let product = "%m: bf16[512, 256] = matmul %a, %w\nreturn %m\n";
    assert_eq!(dispatches(&planned(&program(product))), ["loop: b c"]);
}

/// The gradient of a gated product: three maps of one shape with products between them.
const GATED: &str = "program \"gated\" ranks 2\ngroup @g world\narg %g: bf16[2048, 512]\narg %u: bf16[2048, 512]\n\
    arg %x: bf16[2048, 256]\narg %dy: bf16[2048, 256]\nparam %wd: bf16[256, 512]\nparam %wu: bf16[512, 256]\n\
    %s: bf16[2048, 512] = silu %g\n%h: bf16[2048, 512] = mul %s, %u\n%dyt: bf16[256, 2048] = permute %dy perm=[1, 0]\n\
    %dwd: bf16[256, 512] = matmul %dyt, %h\n%dh: bf16[2048, 512] = matmul %dy, %wd\n\
    %du: bf16[2048, 512] = mul %dh, %s\n%dut: bf16[512, 2048] = permute %du perm=[1, 0]\n\
    %dwu: bf16[512, 256] = matmul %dut, %x\n%dx: bf16[2048, 256] = matmul %du, %wu\n\
    %ds: bf16[2048, 512] = mul %dh, %u\n%e: bf16[2048, 512] = sigmoid %g\n%dg: bf16[2048, 512] = mul %ds, %e\n\
    return %dwd\nreturn %dwu\nreturn %dx\nreturn %dg\n";

#[test]
fn the_gradient_of_a_gated_product_is_one_map() {
    assert_eq!(dispatches(&planned(GATED)), ["loop: s h du ds e dg"]);
    // A product that reads the first map and is read by the last map keeps the two separate.
    let chained = GATED.replace(
        "%ds: bf16[2048, 512] = mul %dh, %u",
        "%dx2: bf16[2048, 512] = matmul %dx, %wd\n%ds: bf16[2048, 512] = mul %dx2, %u",
    );
    assert_eq!(dispatches(&planned(&chained)), ["loop: s h du", "loop: ds e dg"]);
    // The operand of a collective waits for nothing else.
    let communicated = GATED.replace(
        "return %dg\n",
        "%r: bf16[2048, 512] = all_reduce %dg op=sum group=@g via=one_shot\nreturn %r\n",
    );
    assert_eq!(dispatches(&planned(&communicated)), ["loop: ds e dg", "loop: s h du"]);
}

/// A map that waits for a gather of a parameter is merged with one that does not, if a product before both runs
/// concurrently with the gather.
#[test]
fn maps_merge_across_gathers_that_overlap_a_product() {
    let gathered = GATED
        .replace("param %wd: bf16[256, 512]", "param %shard: bf16[128, 512]")
        .replace("%dh: bf16", "%wd: bf16[256, 512] = all_gather %shard group=@g via=pull\n%dh: bf16");
    assert_eq!(dispatches(&planned(&gathered)), ["loop: s h", "loop: du ds e dg"]);
    let behind = gathered
        .replace("arg %dy: bf16[2048, 256]", "arg %dz: bf16[2048, 256]\nparam %wz: bf16[256, 256]")
        .replace(
            "%s: bf16[2048, 512] = silu",
            "%dy: bf16[2048, 256] = matmul %dz, %wz\n%s: bf16[2048, 512] = silu",
        );
    assert_eq!(dispatches(&planned(&behind)), ["loop: s h du ds e dg"]);
}
