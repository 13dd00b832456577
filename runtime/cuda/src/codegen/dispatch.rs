//! Lowers dispatches: one kernel each.
//!
//! The plan decides what becomes one kernel. The capabilities of the plan's machine profile promise that such
//! a kernel exists. A dispatch without a kernel here was made for another machine, or the capability table
//! promises more than this generator can do.

use smallvec::SmallVec;
use symmc_ir::DispatchForm;
use symmc_runtime::exec::{LocatedTensor, MemorySpace, ResolvedDispatch, StepWork};

use crate::codegen::collective::lower_several;
use crate::codegen::command::Commands;
use crate::codegen::compute::{
    BoundOperation, KernelLowering, batch, loops, products, rotary, scatter, selection,
};
use crate::codegen::lowering_context::LoweringContext;
use crate::codegen::{fused_tail, gathered_rows};
use crate::error::CudaError;

pub fn lower(
    index: usize,
    dispatch: &ResolvedDispatch,
    setting: &LoweringContext<'_>,
    l: &mut KernelLowering<'_>,
) -> Commands {
    let steps = dispatch.members.iter().filter_map(|member| match &member.work {
        StepWork::Kernel { op, operands, results } => Some(BoundOperation { index, op, operands, results }),
        _ => None,
    });
    let steps: SmallVec<[BoundOperation<'_>; 8]> = steps.collect();
    let work = match dispatch.form {
        DispatchForm::Loop => loops::lower(&steps, l)?,
        DispatchForm::Product => products::lower(&steps, l)?,
        DispatchForm::Batch => batch::lower(&steps, &|value| rank_invariant_memory(value, setting), l)?,
        DispatchForm::Selection => selection::lower(&steps, l)?,
        DispatchForm::Rotary => Some(rotary::lower_together(&steps, l)?),
        DispatchForm::Scatter => Some(scatter::lower_together(&steps, l)?),
        DispatchForm::Reduction => fused_tail::lower(index, &dispatch.members, setting, l)?,
        DispatchForm::Gather => gathered_rows::lower(index, &dispatch.members, setting, l)?,
        DispatchForm::Collectives => {
            lower_several(index, &dispatch.members, setting.addresses, setting.peers, &mut l.source)?
        }
    };
    work.ok_or_else(|| {
        let ops: Vec<&str> = dispatch.members.iter().map(|m| m.op_name.as_str()).collect();
        CudaError::Unsupported(format!(
            "expected a kernel for {} as a dispatch of the form {}, which the capabilities of the machine profile promise; \
             found none for these sizes and layouts",
            ops.join(", "),
            dispatch.form
        ))
    })
}

/// An identifier of a value's memory, if all ranks lay that memory out in the same way, so that distances
/// from other values in it are known: the ordinary arena, or a port.
fn rank_invariant_memory(value: &LocatedTensor, setting: &LoweringContext<'_>) -> Option<usize> {
    match value.space {
        _ if value.by_rank != 0 => None,
        MemorySpace::Symmetric | MemorySpace::Inner => None,
        MemorySpace::Ordinary => Some(0),
        MemorySpace::Input(_) | MemorySpace::Output(_) => {
            setting.addresses.address_of(value).port_number().map(|port| 1 + port as usize)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use indexmap::IndexMap;
    use symmc_ir::machine::{DispatchCapabilities, MachineProfile};
    use symmc_ir::text;
    use symmc_plan::{ParsedPlan, Plan};
    use symmc_planner::{BucketInput, PlanConfig, plan};
    use symmc_runtime::exec::{CustomKernelRegistry, PreparedBucket};
    use symmc_support::random::SplitMix;

    use super::*;
    use crate::codegen::unsupported;

    /// A gate of two products of `%ny`, `%m`, in one of several forms; `f` is its width.
    fn gate(r: &mut SplitMix, f: i64) -> String {
        let wide = "%g: D[t, F2] = matmul %ny, %gu\n";
        let halves = |lead: &str, axis: usize| {
            format!(
                "%ga: D[{lead}, F] = slice %g axis={axis} start=0 step=1\n\
                 %up: D[{lead}, F] = slice %g axis={axis} start={f} step=1\n"
            )
        };
        let product = "%ga: D[t, F] = matmul %ny, %g1\n";
        let gated = "%s: D[t, F] = silu %ga\n%m: D[t, F] = mul %s, %up\n";
        let gate = match r.below(6) {
            0 => format!("{wide}{}{gated}", halves("t", 1)),
            // With a leading axis.
            1 => format!(
                "%g: D[1, t, F2] = matmul %ny1, %gu\n{}%s: D[1, t, F] = silu %ga\n%m1: D[1, t, F] = mul %s, %up\n\
                 %m: D[t, F] = reshape %m1\n",
                halves("1, t", 2)
            ),
            // Read as another shape.
            2 => format!(
                "{wide}{}%gr: D[t, 8, {e}] = reshape %ga\n%ur: D[t, 8, {e}] = reshape %up\n\
                 %s: D[t, 8, {e}] = silu %gr\n%mr: D[t, 8, {e}] = mul %s, %ur\n%m: D[t, F] = reshape %mr\n",
                halves("t", 1),
                e = f / 8
            ),
            3 => format!("{product}%up: D[t, F] = matmul %ny, %g2\n{gated}"),
            // A weight that is part of a wider one.
            4 => format!("{product}%up: D[t, F] = matmul %ny, %g3\n{gated}"),
            // An op that can reject data.
            _ => format!("{product}%d: i64[t, F] = floor_div %i, %j\n%up: D[t, F] = cast %d\n{gated}"),
        };
        gate.replace("F]", &format!("{f}]")).replace("F2]", &format!("{}]", 2 * f))
    }

    /// The reduction of `%p`, its residual and their norm, in random forms and places, and the other returned
    /// values; `h` is the width of a row.
    fn reduction(r: &mut SplitMix, h: i64, variant: &str) -> (String, String) {
        // The operand begins in the middle of a word.
        let operand = match r.below(3) {
            0 => "%cut: D[H*t] = slice %wide.p axis=0 start=1 step=1\n%p: D[t, H] = reshape %cut\n",
            _ => "%p: D[t, H] = reshape %whole.p\n",
        };
        let (place, sum) = match r.below(3) {
            0 => (
                "%flat: D[H*t] = reshape %y\n%one: D[1] = neg %first\n%all: D[H*t + 1] = concat %one, %flat axis=0\n\
                 %y3: D[H*t + 1] = neg %all\n",
                "%y3",
            ),
            _ => ("", "%y"),
        };
        // The norm of the sum in another shape.
        let norm = match r.below(2) {
            0 => {
                "%ny1: D[1, t, H] = rms_norm %y, %n axes=1 eps=1.0e-5 round_first=false\n%ny: D[t, H] = reshape %ny1\n"
            }
            _ => {
                "%y2: D[t, H] = reshape %y\n%ny: D[t, H] = rms_norm %y2, %n axes=1 eps=1.0e-5 round_first=false\n\
                 %ny1: D[1, t, H] = reshape %ny\n"
            }
        };
        // A norm of a sum with another value.
        let (then, more) = match r.below(3) {
            0 => ("", ""),
            1 => (
                "%z: D[1, t, H] = add %x, %ny1\n%nz: D[1, t, H] = rms_norm %z, %n axes=1 eps=1.0e-5 round_first=true\n",
                ", %z, %nz",
            ),
            _ => (
                "%z: D[1, t, H] = add %x, %ny1\n%zc: f32[1, t, H] = cast %z\n%nz: f32[1, t, H] = layer_norm %zc axes=1 eps=1.0e-5\n",
                ", %z, %nz",
            ),
        };
        let text = format!(
            "{operand}%r: D[t, H] = all_reduce %p op=sum group=@tp via={variant}\n\
             %r1: D[1, t, H] = reshape %r\n%y: D[1, t, H] = add %r1, %x\n{norm}{place}{then}"
        );
        (text.replace("H]", &format!("{h}]")).replace("H*t", &format!("{h}*t")), format!("{sum}{more}"))
    }

    /// A gather of the rows of `%x` along a random axis, and its returned value; `h` is the width of a row.
    fn gathered(r: &mut SplitMix, h: i64, ranks: u32) -> (String, &'static str) {
        let variant = r.pick(&["ll", "pull"]);
        let n = i64::from(ranks);
        let operand = match r.below(3) {
            0 => "%zv: D[H*t] = slice %wide.p axis=0 start=1 step=1\n%zx: D[t, H] = reshape %zv\n",
            1 => "%zv: D[H*t] = slice %wide.p axis=0 start=8 step=1\n%zx: D[t, H] = reshape %zv\n",
            _ => "%zx: D[t, H] = reshape %x\n",
        };
        let gather = format!("%zg: D[N*t, H] = all_gather %zx group=@tp via={variant}\n");
        let (views, returned) = match r.below(3) {
            0 => (
                "%zr: D[N, t, H] = reshape %zg\n%zt: D[t, N, H] = permute %zr perm=[1, 0, 2]\n%zy: D[t, W] = reshape %zt\n",
                ", %zy",
            ),
            1 => (
                "%zr: D[N, t, 8, E] = reshape %zg\n%zt: D[t, 8, N, E] = permute %zr perm=[1, 2, 0, 3]\n%zy: D[t, 8, X] = reshape %zt\n",
                ", %zy",
            ),
            _ => ("%zr: D[N, t, H] = reshape %zg\n%zt: D[t, N, H] = permute %zr perm=[1, 0, 2]\n", ", %zt"),
        };
        let text = format!("{operand}{gather}{views}");
        let sizes = [("H]", h), ("[H*", h), ("W]", h * n), ("E]", h / 8), ("X]", h / 8 * n)];
        let text = sizes.iter().fold(text, |text, (name, size)| {
            let digits = name.replace(|c: char| c.is_ascii_uppercase(), &size.to_string());
            text.replace(name, &digits)
        });
        (text.replace("N,", &format!("{n},")).replace("[N*", &format!("[{n}*")), returned)
    }

    /// The product `%ps` as heads, with a rotary embedding or read otherwise, and the name of the returned
    /// value.
    fn heads(r: &mut SplitMix) -> (String, &'static str) {
        if r.below(4) == 0 {
            return (String::new(), "%ps");
        }
        let (width, tables) = r.pick(&[(128, "%cos, %sin"), (128, "%cos, %sin"), (64, "%cos32, %sin32")]);
        let interleaved = r.below(2) == 0;
        let text = format!(
            "%ph: D[t, 2, 128] = reshape %ps\n%pt: D[2, t, 128] = permute %ph perm=[1, 0, 2]\n\
             %ts: D[2, t, 128] = rotary_embedding %pt, {tables} width={width} interleaved={interleaved}\n"
        );
        (text, "%ts")
    }

    /// A layer with random extents, dtype, variant and form of products, and the range of its `t`.
    fn layer(r: &mut SplitMix) -> (String, [i64; 2]) {
        let [h, f] = [(); 2].map(|()| r.pick(&[64, 256, 1000, 1024, 2048, 4096, 5120, 8192, 16384]));
        let ranks = r.pick(&[2u32, 4, 8]);
        let dtype = r.pick(&["bf16", "bf16", "f16", "f32"]);
        let variant = r.pick(&["ll", "ll", "two_shot", "one_shot"]);
        let low = r.pick(&[0i64, 1, 1, 5, 17, 1024]);
        let high = low + r.pick(&[0i64, 3, 15, 47, 63, 500, 4095]);
        let gate = gate(r, f);
        let (reduction, reduced) = reduction(r, h, variant);
        let (heads, turned) = heads(r);
        let (rows, divided) = rows(r, h);
        let (gather, gathered) = gathered(r, h, ranks);
        let (several, communicated) = several(r, ranks);
        let (experts, summed) = experts(r, h);
        let (biased, added) = biased(r, dtype);
        let program = format!(
            "program \"layer\" ranks {ranks}\nsymbol t in {low}..={high}\ngroup @tp world\n\
             arg %x: D[1, t, {h}]\narg %wide.p: D[{h}*t + 8]\narg %whole.p: D[t, {h}]\narg %first: D[1]\n\
             param %gw: D[{f2}, {h}]\nparam %ga.w: D[{f}, {h}]\nparam %up.w: D[{f}, {h}]\nparam %n: D[{h}]\n\
             param %wide: D[{f}, {h2}]\nparam %k.w: D[128, {h}]\nparam %v.w: D[{v}, {h}]\n\
             arg %i: i64[t, {f}]\narg %j: i64[t, {f}]\n\
             arg %cos: f32[t, 64]\narg %sin: f32[t, 64]\narg %cos32: f32[t, 32]\narg %sin32: f32[t, 32]\n\
             param %s.w: D[256, {h}]\nparam %bias: D[256]\narg %q: D[8, t, 128]\narg %k: D[2, t, 128]\n\
             param %sa: D[{sent}, 24]\nparam %sb: f32[{sent}, 7]\nparam %sc: u8[{sent}]\n\
             arg %ck: D[2, 8192, 128]\narg %cv: D[2, 8192, 128]\narg %at: i64[t]\n\
             arg %logits: D[t, 64]\nparam %table: D[64, {h}]\n\
             %ws: D[{h}, 256] = permute %s.w perm=[1, 0]\n\
             %gu: D[{h}, {f2}] = permute %gw perm=[1, 0]\n%g1: D[{h}, {f}] = permute %ga.w perm=[1, 0]\n\
             %g2: D[{h}, {f}] = permute %up.w perm=[1, 0]\n\
             %wk: D[{h}, 128] = permute %k.w perm=[1, 0]\n%wv: D[{h}, {v}] = permute %v.w perm=[1, 0]\n\
             %part: D[{f}, {h}] = slice %wide axis=1 start=0 step=1\n%g3: D[{h}, {f}] = permute %part perm=[1, 0]\n\
             {reduction}\
             %pq: D[t, {f}] = matmul %ny, %g2\n%pk: D[t, 128] = matmul %ny, %wk\n\
             %pv: D[t, {v}] = matmul %ny, %wv\n%ps: D[t, 256] = matmul %ny, %ws\n\
             {several}{rows}{heads}{gather}{experts}{gate}{biased}\
             %qr: D[8, t, 128] = rotary_embedding %q, %cos, %sin width=128 interleaved=false\n\
             %kr: D[2, t, 128] = rotary_embedding %k, %cos, %sin width=128 interleaved=false\n\
             %nk: D[2, 8192, 128] = index_put %ck, %kr, %at axis=1 accumulate=false\n\
             %nv: D[2, 8192, 128] = index_put %cv, %k, %at axis=1 accumulate=false\n\
             return %m, %qr, %nk, %nv, %pq, %pk, %pv, {turned}, {reduced}{divided}{gathered}{communicated}{summed}{added}\n",
            sent = 3 * ranks,
            f2 = 2 * f,
            h2 = 2 * h,
            v = r.pick(&[40, 128, 136]),
        );
        (program.replace("D[", &format!("{dtype}[")), [low, high])
    }

    /// A product with a bias, and ops of it, and the returned values.
    fn biased(r: &mut SplitMix, dtype: &str) -> (String, &'static str) {
        if dtype == "f32" {
            return (String::new(), "");
        }
        let (text, returned) = r.pick(&[
            ("", ", %br"),
            ("%bg: D[t, 256] = gelu %br\n", ", %bg"),
            ("%bn: D[t, 256] = layer_norm %br axes=1 eps=1e-5\n", ", %bn"),
            ("%bn: D[t, 256] = layer_norm %br axes=1 eps=1e-5\n", ", %bs, %bn"),
        ]);
        let text = format!(
            "%bw: f32[256] = cast %bias\n%bm: f32[t, 256] = matmul_unrounded %ny, %ws\n\
             %bs: f32[t, 256] = add %bm, %bw\n%br: D[t, 256] = cast %bs\n{text}"
        );
        (text, returned)
    }

    /// The choice of experts by `%logits`, the weighted sum of rows of `%table`, and the returned values; `h` is
    /// the width of a row.
    fn experts(r: &mut SplitMix, h: i64) -> (String, &'static str) {
        let scores = r.pick(&["softmax %logits axis=1 log=false", "sigmoid %logits"]);
        let text = format!(
            "%es: D[t, 64] = {scores}\n%ev: D[t, 4], %ei: i64[t, 4] = topk %es axis=1 largest=true\n\
             %et: D[t, 1] = reduce %ev op=sum axes=[1] keep=true\n%ew: D[t, 4] = div %ev, %et\n\
             %ew3: D[t, 4, 1] = reshape %ew\n%ex: D[t, 4, H] = take %table, %ei axis=0\n\
             %em: D[t, 4, H] = mul %ex, %ew3\n%ef: D[t, H] = reduce %em op=sum axes=[1] keep=false\n"
        );
        (text.replace("H]", &format!("{h}]")), ", %ef, %ei")
    }

    /// Usually: collectives of `%sa`, `%sb` and `%sc` as one step, and their returned values.
    fn several(r: &mut SplitMix, ranks: u32) -> (String, &'static str) {
        let per_rank = 3 * ranks;
        let all_rows = 3 * ranks * ranks;
        let nodes = match r.below(4) {
            0 => return (String::new(), ""),
            1 => format!(
                "%c1: D[{all_rows}, 24] = all_gather %sa group=@tp via=pull\n\
                 %c2: f32[{per_rank}, 7] = all_to_all %sb splits=even group=@tp via=pull\n\
                 %c3: u8[3] = reduce_scatter %sc op=max group=@tp via=pull\n"
            ),
            2 => format!(
                "%c1: D[{per_rank}, 24] = all_to_all %sa splits=even group=@tp via=push\n\
                 %c2: f32[{all_rows}, 7] = all_gather %sb group=@tp via=push\n%c3: u8[{all_rows}] = all_gather %sc group=@tp via=push\n"
            ),
            _ => format!(
                "%c1: D[{per_rank}, 24] = all_reduce %sa op=sum group=@tp via=one_shot\n\
                 %c2: f32[{per_rank}, 7] = all_reduce %sb op=avg group=@tp via=one_shot\n\
                 %c3: u8[{per_rank}] = all_reduce %sc op=min group=@tp via=one_shot\n"
            ),
        };
        (format!("dispatch collectives {{\n{nodes}}}\n"), ", %c1, %c2, %c3")
    }

    /// Reductions of the rows of `%x` with pointwise ops before, between and after them, and the returned
    /// values.
    fn rows(r: &mut SplitMix, h: i64) -> (String, &'static str) {
        let (text, returned) = match r.below(3) {
            // The forward pass of a norm that saves its root.
            0 => (
                "%rc: f32[1, t, H] = cast %x\n%rs: f32[1, t, H] = mul %rc, %rc\n%rm: f32[1, t, 1] = reduce %rs op=mean axes=[2] keep=true\n\
                 %re: f32[1, t, 1] = add %rm, 1e-6\n%rr: f32[1, t, 1] = rsqrt %re\n%rn: f32[1, t, H] = mul %rc, %rr\n\
                 %rb: D[1, t, H] = cast %rn\n%ry: D[1, t, H] = mul %rb, %n\n",
                ", %ry, %rr",
            ),
            // Softmax, and its gradient.
            1 => (
                "%rm: D[1, t, 1] = reduce %x op=max axes=[2] keep=true\n%rd: D[1, t, H] = sub %x, %rm\n%re: D[1, t, H] = exp %rd\n\
                 %rs: D[1, t, 1] = reduce %re op=sum axes=[2] keep=true\n%rq: D[1, t, H] = div %re, %rs\n\
                 %rp: D[1, t, H] = mul %rq, %n\n%rt: D[1, t, 1] = reduce %rp op=sum axes=[2] keep=true\n\
                 %ru: D[1, t, H] = mul %rq, %rt\n%ry: D[1, t, H] = sub %rp, %ru\n",
                ", %ry",
            ),
            // Reductions of a view, and ops on one element per row.
            _ => (
                "%rx: D[t, 1, H] = reshape %whole.p\n%rm: D[t, 1, 1] = reduce %rx op=min axes=[2] keep=true\n\
                 %rn: D[t, 1, 1] = exp %rm\n%ra: D[t, 1, 1] = add %rn, %first\n",
                ", %ra",
            ),
        };
        (text.replace("H]", &format!("{h}]")), returned)
    }

    fn planned(program: &str) -> Plan {
        let graph = text::parse(program).unwrap_or_else(|e| panic!("{e}\n{program}"));
        let bucket = BucketInput { graph: graph.clone(), decisions: vec![] };
        let profile = MachineProfile::builtin("h200x2").expect("a profile");
        let profile = Some(MachineProfile { dispatches: DispatchCapabilities::GPU, ..profile });
        plan(&graph, &[bucket], &PlanConfig { profile, ..PlanConfig::default() }).expect("a plan")
    }

    #[test]
    fn what_the_capabilities_promise_is_generated_at_all_sizes() {
        let mut r = SplitMix(11);
        let mut forms: BTreeMap<DispatchForm, usize> = BTreeMap::new();
        for _ in 0..300 {
            let (program, [low, high]) = layer(&mut r);
            let plan = ParsedPlan::parse(Arc::new(planned(&program))).expect("programs");
            let graph = text::parse(&plan.programs[0]).expect("it reads");
            graph.dispatches.iter().for_each(|d| *forms.entry(d.form).or_default() += 1);
            let any = low + r.below((high - low + 1) as usize) as i64;
            for rank in [0, plan.ranks - 1] {
                let program =
                    PreparedBucket::new(&plan, 0, rank, &CustomKernelRegistry::new()).expect("a program");
                for t in [low, any, high] {
                    let sizes: IndexMap<String, i64> = [("t".to_string(), t)].into_iter().collect();
                    let bound = program.resolve_bindings(&sizes).expect("sizes");
                    let refused = unsupported::unsupported_steps(&bound, plan.ranks, &[]);
                    assert!(refused.is_empty(), "t={t}: {}\n{}", refused[0], plan.programs[0]);
                }
            }
        }
        assert!(forms.len() == DispatchForm::ALL.len() && forms.values().all(|&n| n > 20), "{forms:?}");
    }
}
