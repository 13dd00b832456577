//! Results of experts that return as sums, in programs whose ranks may have different tables of rows.

use std::sync::Arc;

use symmc::unstable::ir::text;
use symmc::{
    Backend, CompileConfig, DType, MachineProfile, Program, RunConfig, SymbolBindings, Tensor, Workload,
};

const RANKS: usize = 2;
const TOKENS: usize = 1024;
const SLOTS: usize = 8;
const WIDTH: usize = 256;
/// As many rows on each rank as its tokens have slots, and as many experts.
const CAPACITY: usize = TOKENS * SLOTS;

fn source(rows: &str) -> String {
    format!(
        "program \"p\" ranks {RANKS}\ngroup @ep world\narg %x: f32[{CAPACITY}, {WIDTH}]\n\
         arg %table: i64[{all}, {SLOTS}]\narg %w: f32[{TOKENS}, {SLOTS}]\n{rows}\
         %h: f32[{CAPACITY}, {WIDTH}] = neg %x\n\
         %y: f32[{TOKENS}, {WIDTH}] = combine_rows %h, %rows, %w group=@ep\nreturn %y\n",
        all = RANKS * TOKENS,
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
    let entries = RANKS * CAPACITY;
    let table: Vec<i64> = (0..entries).map(|i| ((i * 61 + rank * 17) % (entries + 1)) as i64 - 1).collect();
    let table = Tensor::from_i64(DType::I64, [RANKS * TOKENS, SLOTS], &table).expect("a table");
    vec![floats([CAPACITY, WIDTH]), Arc::new(table), floats([TOKENS, SLOTS])]
}

#[test]
fn sums_of_ranks_with_different_tables_are_those_of_their_own_rows() {
    let given = format!("%rows: i64[{TOKENS}, {SLOTS}] = shard %table axis=0 group=@ep\n");
    let routed = format!(
        "%rows: i64[{TOKENS}, {SLOTS}], %all: i64[{all}, {SLOTS}], %slots: i64[{CAPACITY}], %counts: i64[{CAPACITY}], \
         %ends: i64[{CAPACITY}] = route %table experts={experts} align=1 layout=expert group=@ep\n",
        all = RANKS * TOKENS,
        experts = RANKS * CAPACITY,
    );
    let profile = MachineProfile::builtin("h200x2").expect("built in");
    for rows in [given, routed] {
        let source = source(&rows);
        let program = Program::from_graph(text::parse(&source).expect("a graph")).expect("a program");
        let config = CompileConfig::default().with_profile(profile.clone());
        let plan = symmc::compile(&program, &config).unwrap_or_else(|e| panic!("{e}"));
        let planned = &plan.programs[plan.buckets[0].program];
        assert!(planned.contains("reduce_rows"), "{planned}");
        let work = Workload::new(SymbolBindings::new(), (0..RANKS).map(inputs_of_rank).collect());
        let run = |backend| {
            symmc::run(&plan, &work, &backend, &RunConfig::default()).unwrap_or_else(|e| panic!("{e}"))
        };
        assert!(run(Backend::Threads) == run(Backend::Interpreter), "{planned}");
    }
}
