//! Results of experts that return as sums, in programs whose ranks may have different tables of rows.

use std::sync::Arc;

use symmc::unstable::ir::text;
use symmc::{
    CompileConfig, DType, Execution, MachineProfile, Program, RunConfig, SymbolBindings, Tensor, Workload,
};

const RANK_COUNT: usize = 2;
const TOKEN_COUNT: usize = 1024;
const SLOTS_PER_TOKEN: usize = 8;
const ROW_WIDTH: usize = 256;
/// As many rows on each rank as its tokens have slots, and as many experts.
const ROW_CAPACITY: usize = TOKEN_COUNT * SLOTS_PER_TOKEN;

fn source(rows: &str) -> String {
    format!(
        "program \"p\" ranks {RANK_COUNT}\ngroup @ep world\narg %x: f32[{ROW_CAPACITY}, {ROW_WIDTH}]\n\
         arg %table: i64[{all}, {SLOTS_PER_TOKEN}]\narg %w: f32[{TOKEN_COUNT}, {SLOTS_PER_TOKEN}]\n{rows}\
         %h: f32[{ROW_CAPACITY}, {ROW_WIDTH}] = neg %x\n\
         %y: f32[{TOKEN_COUNT}, {ROW_WIDTH}] = combine_rows %h, %rows, %w group=@ep\nreturn %y\n",
        all = RANK_COUNT * TOKEN_COUNT,
    )
}

/// The inputs of a rank. Each entry of its table is -1 or the number of a row (or expert) of any rank. No number is there twice, and
/// each rank has another order.
fn inputs_of_rank(rank: usize) -> Vec<Arc<Tensor>> {
    let floats = |shape: [usize; 2]| {
        let element = |i: usize| ((i * 37 + rank * 101) % 83) as f64 / 41.0 - 1.0;
        let elements: Vec<f64> = (0..shape[0] * shape[1]).map(element).collect();
        Arc::new(Tensor::from_f64(DType::F32, shape, &elements).expect("floats"))
    };
    let entries = RANK_COUNT * ROW_CAPACITY;
    let table: Vec<i64> = (0..entries).map(|i| ((i * 61 + rank * 17) % (entries + 1)) as i64 - 1).collect();
    let table =
        Tensor::from_i64(DType::I64, [RANK_COUNT * TOKEN_COUNT, SLOTS_PER_TOKEN], &table).expect("a table");
    vec![floats([ROW_CAPACITY, ROW_WIDTH]), Arc::new(table), floats([TOKEN_COUNT, SLOTS_PER_TOKEN])]
}

#[test]
fn row_sums_use_each_ranks_own_table() {
    let stated = format!("%rows: i64[{TOKEN_COUNT}, {SLOTS_PER_TOKEN}] = shard %table axis=0 group=@ep\n");
    let routed = format!(
        "%rows: i64[{TOKEN_COUNT}, {SLOTS_PER_TOKEN}], %all: i64[{all}, {SLOTS_PER_TOKEN}], %slots: i64[{ROW_CAPACITY}], %counts: i64[{ROW_CAPACITY}], \
         %ends: i64[{ROW_CAPACITY}] = route %table experts={experts} align=1 layout=expert group=@ep\n",
        all = RANK_COUNT * TOKEN_COUNT,
        experts = RANK_COUNT * ROW_CAPACITY,
    );
    let profile = MachineProfile::builtin("h200x2").expect("built in");
    for rows in [stated, routed] {
        let source = source(&rows);
        let program = Program::from_graph(text::parse(&source).expect("a graph")).expect("a program");
        let config = CompileConfig::default().with_profile(profile.clone());
        let plan = symmc::compile(&program, &config).unwrap_or_else(|e| panic!("{e}"));
        let planned = &plan.programs[plan.buckets[0].program];
        assert!(planned.contains("reduce_rows"), "{planned}");
        let work = Workload::new(SymbolBindings::new(), (0..RANK_COUNT).map(inputs_of_rank).collect());
        let run = |execution| {
            symmc::run(&plan, &work, &execution, &RunConfig::default()).unwrap_or_else(|e| panic!("{e}"))
        };
        assert!(run(Execution::Threads) == run(Execution::Interpreter), "{planned}");
    }
}
