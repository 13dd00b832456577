//! What stays in memory so that steps can become one kernel.
//!
//! On GPUs a matrix product of few rows and the element-wise steps that read it are one kernel, if that may still read
//! the operands of the product while it writes what the last of those steps gives. So where a plan is for GPUs, such a
//! product releases its operands no sooner than those steps. They are small, as the rows are few.

use symmc_ir::{Form, Graph, Op, ValueId};
use symmc_plan::Lane;

use crate::bucket::Symbols;
use crate::steps::{StepInfo, Steps};

/// The most rows of a product that may become one kernel with other steps.
const FEW_ROWS: u64 = 64;

/// For each step the first behind it that may write what it reads, as far as kernels of several steps ask for that.
pub fn kept(graph: &Graph, steps: &Steps, symbols: &Symbols) -> Vec<u32> {
    let readers = steps.readers();
    let of = |(s, step): (usize, &StepInfo)| {
        let product = matches!(graph.nodes[step.node].op, Op::MatMul);
        let result = step.writes.first().filter(|&&r| product && has_few_rows(graph, r, symbols));
        let after = result.and_then(|&r| {
            let readers = readers.of(r);
            let all = readers.iter().all(|&s| is_element_wise(graph, steps, s as usize));
            readers.last().filter(|_| all).map(|last| last + 1)
        });
        after.unwrap_or(0).max(s as u32 + 1)
    };
    steps.list.iter().enumerate().map(of).collect()
}

fn has_few_rows(graph: &Graph, value: ValueId, symbols: &Symbols) -> bool {
    let shape = &graph.ty(value).shape;
    let rows = shape.iter().rev().skip(1).map(|d| u64::try_from(d.upper(symbols)).unwrap_or(u64::MAX));
    rows.fold(1, u64::saturating_mul) <= FEW_ROWS
}

fn is_element_wise(graph: &Graph, steps: &Steps, step: usize) -> bool {
    let step = &steps.list[step];
    let op = &graph.nodes[step.node].op;
    let map = step.dispatch.is_some_and(|d| d.form == Form::Map);
    step.lane == Lane::Compute && (map || op.is_element_wise())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use symmc_ir::text;

    use super::*;
    use crate::prepare::prepare;
    use crate::views::Views;

    fn kept_of(program: &str) -> Vec<u32> {
        let graph = text::parse(program).unwrap_or_else(|e| panic!("{e}"));
        let p = prepare(&graph, &Views::new(&graph), &BTreeSet::new()).expect("prepares");
        let steps = Steps::new(&p.graph, &p.base).expect("steps");
        kept(&p.graph, &steps, &p.graph.symbols)
    }

    #[test]
    fn operands_of_a_product_stay_for_those_who_read_its_result_element_by_element() {
        let program = |rows: usize, last: &str| {
            format!(
                "program \"k\" ranks 2\ngroup @g world\narg %x: f32[{rows}, 16]\nparam %w: f32[16, 16]\n\
                 %n: f32[{rows}, 16] = neg %x\n%h: f32[{rows}, 16] = matmul %n, %w\n\
                 %a: f32[{rows}, 8] = slice %h axis=1 start=0 step=1\n%b: f32[{rows}, 8] = slice %h axis=1 start=8 step=1\n\
                 %c: f32[{rows}, 8] = silu %a\n%d: f32[{rows}, 8] = mul %c, %b\n%e: f32[{rows}, 8] = {last}\nreturn %e\n"
            )
        };
        // neg, the product, silu, mul, and what is last.
        assert_eq!(kept_of(&program(4, "neg %d")), [1, 4, 3, 4, 5]);
        assert_eq!(kept_of(&program(65, "neg %d")), [1, 2, 3, 4, 5]);
        // A copy of a half for the collective reads the product as well.
        assert_eq!(kept_of(&program(4, "all_reduce %a op=sum group=@g via=plain")), [1, 2, 3, 4, 5, 6]);
    }
}
