//! The programs whose plans are edited: the seed names the program.

use symmc_cases::idioms;
use symmc_cases::programs::{VariantMode, program as random_program};
use symmc_ir::{Graph, text};
use symmc_support::random::SplitMix;

/// The number of kinds of programs.
const KINDS: u64 = 8;

/// The program of a seed.
pub fn program(seed: u64) -> Result<Graph, String> {
    let mut r = SplitMix(seed ^ 0x9209_4a3d);
    let source = match seed % KINDS {
        0 => return Ok(random_program(seed, 4 + r.below(12), VariantMode::Open)),
        1 => return Ok(idioms::program(seed).graph),
        2 => vocabulary(&mut r, seed / KINDS, false),
        3 => experts(&mut r),
        4 => guards(&mut r),
        5 => integers(&mut r),
        6 => axes(&mut r),
        _ => vocabulary(&mut r, seed / KINDS, true),
    };
    text::parse(&source).map_err(|e| format!("{e}\n{source}"))
}

/// The largest element, or the four largest, of rows that ranks hold in parts.
fn vocabulary(r: &mut SplitMix, number: u64, several: bool) -> String {
    let shapes = [
        (8, 2000, 4, "f32"),
        (4, 8000, 8, "bf16"),
        (2, 8, 4, "f32"),
        (4, 64, 8, "bf16"),
        (4, 500, 16, "f32"),
        (8, 1000, 16, "bf16"),
        (2, 4000, 2, "f16"),
    ];
    let (ranks, shard, tokens, dtype) = shapes[(number % shapes.len() as u64) as usize];
    let (all, rows) = (ranks * shard, ranks * tokens);
    let head = format!(
        "program \"greedy\" ranks {ranks}\ngroup @w world\narg %x: {dtype}[{tokens}, 16]\nparam %head: {dtype}[16, {shard}] source \"h\"\n\
         %l: {dtype}[{tokens}, {shard}] = matmul %x, %head\n%g: {dtype}[{rows}, {shard}] = all_gather %l group=@w\n\
         %r: {dtype}[{ranks}, {tokens}, {shard}] = reshape %g\n%p: {dtype}[{tokens}, {ranks}, {shard}] = permute %r perm=[1, 0, 2]\n\
         %f: {dtype}[{tokens}, {all}] = reshape %p\n"
    );
    if several {
        let largest = !r.one_in(4);
        format!(
            "{head}%y: {dtype}[{tokens}, 4], %i: i64[{tokens}, 4] = topk %f axis=1 largest={largest}\nreturn %y, %i\n"
        )
    } else {
        let op = if r.one_in(4) { "argmin" } else { "argmax" };
        format!("{head}%y: i64[{tokens}] = {op} %f axis=1 keep=false\nreturn %y\n")
    }
}

/// Two layers of experts.
fn experts(r: &mut SplitMix) -> String {
    let (ranks, chosen) = r.pick(&[(2, 1), (2, 2), (4, 2)]);
    let (tokens, experts) = (8, 8);
    let (all, own) = (ranks * tokens, experts / ranks);
    let capacity = all * chosen;
    let layer = |k: usize, x: &str| {
        format!(
            "%all{k}: i64[{all}, {chosen}] = all_gather %ids{k} group=@w\n\
             %mine{k}: i64[{tokens}, {chosen}], %ev{k}: i64[{all}, {chosen}], %sl{k}: i64[{capacity}], %cnt{k}: i64[{own}], %ends{k}: i64[{own}] = \
             route %all{k} experts={experts} align=1 layout=expert group=@w\n\
             %s{k}: f32[{capacity}, 16] = dispatch_rows %{x}, %sl{k}, %ev{k} group=@w\n\
             %o{k}: f32[{capacity}, 16] = grouped_matmul %s{k}, %w{k}, %ends{k}\n\
             %y{k}: f32[{tokens}, 16] = combine_rows %o{k}, %mine{k} group=@w\n"
        )
    };
    format!(
        "program \"experts\" ranks {ranks}\ngroup @w world\narg %x: f32[{tokens}, 16]\narg %ids1: i64[{tokens}, {chosen}]\n\
         arg %ids2: i64[{tokens}, {chosen}]\nparam %w1: f32[{own}, 16, 16] source \"w1\"\nparam %w2: f32[{own}, 16, 16] source \"w2\"\n{}{}return %y2\n",
        layer(1, "x"),
        layer(2, "y1")
    )
}

/// Guards of special values, clamps before indices, the part of a vocabulary that a rank has, and a norm.
fn guards(r: &mut SplitMix) -> String {
    let dtype = r.pick(&["f32", "bf16", "f16"]);
    let rows = r.pick(&[20, 40]);
    let bound = if r.one_in(2) { format!("rem %i, {rows}") } else { format!("min %m0, {}", rows - 1) };
    format!(
        "program \"guards\" ranks 2\nsymbol t in 1..=16\ngroup @w world\narg %x: {dtype}[t, 8]\narg %z: {dtype}[t, 8]\narg %i: i64[t]\n\
         arg %lo: i64[]\nparam %e: {dtype}[{rows}, 8] source \"e\"\nparam %g: {dtype}[8] source \"g\"\n\
         %f0: {dtype}[] = full value=0.0\n%i0: i64[] = full value=0\n%n: bool[t, 8] = is_nan %x\n%a: {dtype}[t, 8] = select %n, %f0, %x\n\
         %m0: i64[t] = max %i, 0\n%k: i64[t] = {bound}\n%b: {dtype}[t, 8] = take %e, %k axis=0\n\
         %hi: i64[] = add %lo, {rows}\n%c0: bool[t] = ge %i, %lo\n%c1: bool[t] = lt %i, %hi\n%c: bool[t] = and %c0, %c1\n\
         %d0: i64[t] = sub %i, %lo\n%d1: i64[t] = select %c, %d0, %i0\n%d2: {dtype}[t, 8] = take %e, %d1 axis=0\n%c2: bool[t, 1] = reshape %c\n\
         %d: {dtype}[t, 8] = select %c2, %d2, %f0\n%q0: bool[t, 8] = ge %x, %z\n%q: {dtype}[t, 8] = select %q0, %b, %d\n\
         %s: {dtype}[t, 8] = add %a, %q\n%s1: {dtype}[t, 8] = all_reduce %s op=sum group=@w\n\
         %y: {dtype}[t, 8] = rms_norm %s1, %g axes=1 eps=1e-5 round_first=false\n%v: {dtype}[t, 8] = add %b, %d\nreturn %y, %v\n"
    )
}

/// Integer arithmetic on positions of pages, with shifts, masks, divisions and conditions, and a table that it indexes.
fn integers(r: &mut SplitMix) -> String {
    let ranks = r.pick(&[2, 4]);
    let integer = r.pick(&["i64", "i32"]);
    let bits = r.pick(&[2, 3]);
    let page = 1 << bits;
    let condition = r.pick(&["ge %i, %s", "lt %i, 5", "ne %i, %s", "gt %p, 1"]);
    let float = r.pick(&["f32", "bf16"]);
    format!(
        "program \"pages\" ranks {ranks}\nsymbol t in 1..=24\ngroup @w world\narg %i: {integer}[t]\narg %s: {integer}[t]\narg %n: {integer}[4]\n\
         arg %x: {float}[t, 8]\nparam %e: {float}[64, 8] source \"e\"\n%z: {integer}[] = full value=0\n\
         %p: {integer}[t] = shr %i, {bits}\n%o: {integer}[t] = and %i, {}\n%q: {integer}[t] = rem %p, 4\n%b: {integer}[t] = take %n, %q axis=0\n\
         %c: {integer}[t] = shl %b, {bits}\n%a: {integer}[t] = add %c, %o\n%u: {integer}[t] = floor_div %s, 3\n%v: {integer}[t] = sub %a, %u\n\
         %k: {integer}[t] = rem %v, 64\n%w: bool[t] = {condition}\n%j: {integer}[t] = select %w, %k, %z\n%d: {float}[t, 8] = take %e, %j axis=0\n\
         %m: {float}[t, 8] = all_reduce %d op=sum group=@w\n%h: {float}[t, 8] = add %m, %x\n%g: {integer}[t] = all_reduce %k op=max group=@w\n\
         %l: {integer}[t] = cumsum %g axis=0\n%y: {integer}[t] = min %l, 1000\nreturn %h, %y, %v\n",
        page - 1
    )
    .replace("%l: i32[t] = cumsum %g axis=0\n%y: i32[t] = min %l, 1000", "%y: i32[t] = min %g, 1000")
}

/// Ops along axes of equal extents, before and after sums over ranks.
fn axes(r: &mut SplitMix) -> String {
    let ranks = r.pick(&[2, 4]);
    let dtype = r.pick(&["f32", "bf16", "f64"]);
    let own = 8 / ranks;
    let axis = r.below(2);
    let normalise =
        r.pick(&["softmax %a axis=AXIS log=false", "cumsum %a axis=AXIS", "softmax %a axis=AXIS log=true"]);
    let normalise = normalise.replace("AXIS", &axis.to_string());
    format!(
        "program \"axes\" ranks {ranks}\ngroup @w world\narg %x: {dtype}[8, 8]\narg %z: {dtype}[8, 8]\narg %i: i64[8]\n\
         %a: {dtype}[8, 8] = all_reduce %x op=sum group=@w\n%s: {dtype}[8, 8] = {normalise}\n%t: {dtype}[8, 8] = permute %z perm=[1, 0]\n\
         %m: {dtype}[8, 8] = matmul %s, %t\n%c: {dtype}[16, 8] = concat %m, %t axis=0\n%d: {dtype}[8, 8] = slice %c axis=0 start=4 step=1\n\
         %p: {dtype}[{own}, 8] = shard %d axis=0 group=@w\n%g: {dtype}[8, 8] = all_gather %p group=@w\n%j: i64[8] = rem %i, 8\n\
         %e: {dtype}[8, 8] = take %g, %j axis={axis}\n%o: {dtype}[8, 8], %oi: i64[8, 8] = sort %e axis={axis} descending=false\n\
         %u: {dtype}[8] = reduce %e op=max axes=[1] keep=false\n%v: i64[8] = argmax %e axis=0 keep=false\n\
         %w: {dtype}[8] = clamped\nreturn %o, %oi, %u, %v, %w\n"
    )
    .replace("clamped", "min %u, 0.75")
}
