//! Random routings of tokens to experts on ranks, compared with the interpreter: both layouts, both variants,
//! experts without tokens, slots without experts, and all tokens on one rank.

use std::sync::Arc;

use symmc_ir::{DType, Tensor, interp};
use symmc_support::random::SplitMix;

use crate::support::{PlannedProgram, planned, run_with_inputs};

/// The sizes of a routing.
#[derive(Clone, Copy, Debug)]
struct RoutingSizes {
    ranks: usize,
    tokens: usize,
    slots: usize,
    experts: usize,
    align: usize,
    capacity: usize,
    width: usize,
}

impl RoutingSizes {
    /// Sizes whose capacity is enough for any routing.
    fn draw(r: &mut SplitMix, ranks: usize) -> RoutingSizes {
        let tokens = r.below(7);
        let slots = 1 + r.below(3);
        let local = 1 + r.below(4);
        let align = r.pick(&[1, 1, 3, 8]);
        let worst = ranks * tokens * slots;
        let capacity = worst + ranks.max(local) * (align - 1);
        RoutingSizes {
            ranks,
            tokens,
            slots,
            experts: local * ranks,
            align,
            capacity,
            width: r.pick(&[1, 3, 16, 70]),
        }
    }

    fn program(&self, layout: &str, dtype: &str, weighted: bool, via: &str) -> String {
        let RoutingSizes { ranks, tokens: t, slots: k, experts, align, capacity: c, width: d } = *self;
        let sections = if layout == "rank" { ranks } else { experts / ranks };
        let all_tokens = ranks * t;
        let cell: Vec<usize> = (0..ranks).collect();
        let weights = if weighted { ", %weights" } else { "" };
        let all_weights = if weighted { ", %all_weights" } else { "" };
        let other_tokens = all_tokens - t;
        let wide = if dtype == "f64" { "f64" } else { "f32" };
        let reduced_via = if via == "pull" { "push" } else { via };
        format!(
            "program \"experts\" ranks {ranks}\ngroup @ep [{cell:?}]\narg %x: {dtype}[{t}, {d}]\narg %ids: i64[{t}, {k}]\n\
             arg %weights: f32[{t}, {k}]\narg %payload: u8[{t}, {d}]\n\
             %all_ids: i64[{all_tokens}, {k}] = all_gather %ids group=@ep via=plain\n\
             %rows: i64[{t}, {k}], %all_rows: i64[{all_tokens}, {k}], %slots: i64[{c}], %counts: i64[{sections}], \
             %ends: i64[{sections}] = route %all_ids experts={experts} align={align} layout={layout} group=@ep\n\
             %sent: {dtype}[{c}, {d}] = dispatch_rows %x, %slots, %all_rows group=@ep via={via}\n\
             %bytes: u8[{c}, {d}] = dispatch_rows %payload, %slots, %all_rows group=@ep via={via}\n\
             %twice: {dtype}[{c}, {d}] = mul %sent, 2.0\n\
             %y: {dtype}[{t}, {d}] = combine_rows %twice, %rows{weights} group=@ep via={via}\n\
             %all_weights: f32[{all_tokens}, {k}] = all_gather %weights group=@ep via=plain\n\
             %z: {dtype}[{t}, {d}], %sums: {wide}[{other_tokens}, {d}] = reduce_rows %twice, %all_rows{all_weights} group=@ep \
             via={reduced_via}\n\
             return %y\nreturn %z\nreturn %sums\n\
             return %rows\nreturn %all_rows\nreturn %slots\nreturn %counts\nreturn %ends\n\
             return %sent\nreturn %bytes\n"
        )
    }

    /// Inputs of each rank. Some slots have no expert; with `to` all others go to one rank.
    fn inputs(&self, planned: &PlannedProgram, r: &mut SplitMix, to: Option<usize>) -> Vec<Vec<Arc<Tensor>>> {
        let mut inputs = crate::support::inputs(&planned.graph, &Default::default(), r.below(1 << 20) as u64);
        let local = self.experts / self.ranks;
        for rank in &mut inputs {
            let ids: Vec<i64> = (0..self.tokens * self.slots)
                .map(|_| match (r.one_in(5), to) {
                    (true, _) => -1,
                    (false, None) => r.below(self.experts) as i64,
                    (false, Some(to)) => (to * local + r.below(local)) as i64,
                })
                .collect();
            rank[1] = Arc::new(Tensor::from_i64(DType::I64, [self.tokens, self.slots], &ids).expect("ids"));
        }
        inputs
    }
}

/// Compares all outputs on all ranks with the interpreter. Sums are in the same order, so bits are equal.
fn check(planned: &PlannedProgram, inputs: &[Vec<Arc<Tensor>>], what: &str) {
    let expected = interp::run(&planned.graph, &Default::default(), inputs).expect("the interpreter runs it");
    let results = run_with_inputs(planned, inputs, 1);
    for (rank, (found, expected)) in results.into_iter().zip(&expected).enumerate() {
        let outputs = found.unwrap_or_else(|error| panic!("{what}, rank {rank}: {error}"));
        for (output, (actual, expected)) in outputs.iter().zip(expected).enumerate() {
            assert_eq!(actual.data(), expected.data(), "{what}, rank {rank}, output {output}");
        }
        assert_eq!(
            outputs[0].data(),
            outputs[1].data(),
            "{what}, rank {rank}: reduced rows are combined rows"
        );
    }
}

#[test]
fn random_routings_agree_with_the_interpreter() {
    let mut r = SplitMix(38);
    for ranks in [1, 2, 3, 4, 8] {
        for layout in ["expert", "rank", "batched"] {
            for via in ["pull", "plain"] {
                let mut sizes = RoutingSizes::draw(&mut r, ranks);
                if layout == "batched" {
                    sizes.capacity = sizes.ranks * sizes.tokens * sizes.slots * sizes.experts / sizes.ranks;
                }
                let dtype = r.pick(&["f32", "bf16", "f64", "f16"]);
                let program = sizes.program(layout, dtype, r.one_in(2), via);
                let planned = planned(&program);
                for to in [None, Some(r.below(ranks))] {
                    let inputs = sizes.inputs(&planned, &mut r, to);
                    check(&planned, &inputs, &format!("{sizes:?} {layout} {via} {dtype} to {to:?}"));
                }
            }
        }
    }
}

#[test]
fn large_rows_pass_through_staging_in_parts() {
    let mut r = SplitMix(8);
    let sizes =
        RoutingSizes { ranks: 2, tokens: 40, slots: 2, experts: 4, align: 1, capacity: 160, width: 20_000 };
    for via in ["pull", "plain"] {
        let planned = planned(&sizes.program("expert", "f32", true, via));
        let inputs = sizes.inputs(&planned, &mut r, None);
        check(&planned, &inputs, via);
    }
}

#[test]
fn exceeded_capacity_is_reported_with_node_and_count() {
    let mut r = SplitMix(3);
    for (layout, message) in [
        ("expert", "rank 1 of the group receives 12 rows: expected at most 5, the capacity of the program"),
        ("batched", "expert 2 receives 6 rows: expected at most 2, its share of the capacity"),
        ("rank", "rank 1 of the group receives 6 rows: expected at most 5, the capacity of the program"),
    ] {
        let sizes =
            RoutingSizes { ranks: 2, tokens: 3, slots: 2, experts: 4, align: 1, capacity: 5, width: 2 };
        let planned = planned(&sizes.program(layout, "f32", false, "pull"));
        let mut inputs = sizes.inputs(&planned, &mut r, None);
        for rank in &mut inputs {
            rank[1] = Arc::new(Tensor::from_i64(DType::I64, [3, 2], &[2, 3, 2, 3, 2, 3]).expect("ids"));
        }
        for outcome in run_with_inputs(&planned, &inputs, 5) {
            let error = outcome.expect_err("too many rows").to_string();
            assert!(error.contains("route %rows") && error.contains(message), "{error}");
        }
    }
}
