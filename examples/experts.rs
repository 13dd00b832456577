//! A mixture of experts whose experts are divided between two ranks, which are threads of this program. Each rank has a session.
//!
//! The program chooses two experts for each token, sends the tokens to the ranks of their experts (`dispatch_rows`), computes the
//! products of the experts, and sums their results (`combine_rows`). The products read and write the exchanged rows in place.
//!
//! `cargo run --release -p symmc --example experts`

use std::process::ExitCode;

use symmc::{CheckedPlan, CompileConfig, Error, Group, Program, Session, SessionConfig};

const EXPERT_COUNT: usize = 4;
const SLOTS_PER_TOKEN: usize = 2;
const TOKEN_COUNT: usize = 6;
const HIDDEN_SIZE: usize = 8;
const EXPERT_WIDTH: usize = 16;

/// Each rank has `t` tokens and two of the experts.
const EXPERTS_PROGRAM: &str = r#"program "experts" ranks 2
symbol t in 1..=64
group @ep world
arg %x: f32[t, 8]
arg %router: f32[8, 4]
arg %up: f32[2, 8, 16]
arg %down: f32[2, 16, 8]
%scores: f32[t, 4] = matmul %x, %router
%shares: f32[t, 4] = softmax %scores axis=1 log=false
%weights: f32[t, 2], %ids: i64[t, 2] = topk %shares axis=1 largest=true
%all_ids: i64[2*t, 2] = all_gather %ids group=@ep
%rows: i64[t, 2], %all_rows: i64[2*t, 2], %slots: i64[4*t], %counts: i64[2], %ends: i64[2] = route %all_ids experts=4 align=1 layout=expert group=@ep
%sent: f32[4*t, 8] = dispatch_rows %x, %slots, %all_rows group=@ep
%hidden: f32[4*t, 16] = grouped_matmul %sent, %up, %ends
%act: f32[4*t, 16] = silu %hidden
%out: f32[4*t, 8] = grouped_matmul %act, %down, %ends
%y: f32[t, 8] = combine_rows %out, %rows, %weights group=@ep
return %y
return %counts
"#;

/// Numbers between -1 and 1, the same on all ranks.
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 37 + seed * 101) % 83) as f32 / 41.0 - 1.0).collect()
}

/// `x` times the matrix `w` of this many columns.
fn product(x: &[f32], w: &[f32], columns: usize) -> Vec<f32> {
    let column = |j: usize| x.iter().enumerate().map(|(i, x)| x * w[i * columns + j]).sum();
    (0..columns).map(column).collect()
}

/// The result of a token, without other ranks.
fn expected(x: &[f32], router: &[f32], up: &[f32], down: &[f32]) -> Vec<f32> {
    let shares: Vec<f32> = product(x, router, EXPERT_COUNT).into_iter().map(f32::exp).collect();
    let total: f32 = shares.iter().sum();
    let mut chosen: Vec<usize> = (0..EXPERT_COUNT).collect();
    chosen.sort_by(|a, b| shares[*b].total_cmp(&shares[*a]));
    let mut y = vec![0.0; HIDDEN_SIZE];
    for &expert in &chosen[..SLOTS_PER_TOKEN] {
        let range = expert * HIDDEN_SIZE * EXPERT_WIDTH..(expert + 1) * HIDDEN_SIZE * EXPERT_WIDTH;
        let hidden = product(x, &up[range.clone()], EXPERT_WIDTH);
        let act: Vec<f32> = hidden.into_iter().map(|h| h / (1.0 + (-h).exp())).collect();
        for (y, out) in y.iter_mut().zip(product(&act, &down[range], HIDDEN_SIZE)) {
            *y += shares[expert] / total * out;
        }
    }
    y
}

/// Runs one rank; returns the rows that its experts received, and the largest difference from a result without other ranks.
fn run_rank(plan: &CheckedPlan, group: &Group, rank: usize) -> Result<(i64, f32), Error> {
    let mut x = numbers(TOKEN_COUNT * HIDDEN_SIZE, rank + 1);
    let mut router = numbers(HIDDEN_SIZE * EXPERT_COUNT, 3);
    let up = numbers(EXPERT_COUNT * HIDDEN_SIZE * EXPERT_WIDTH, 4);
    let down = numbers(EXPERT_COUNT * EXPERT_WIDTH * HIDDEN_SIZE, 5);
    let half = up.len() / 2;
    let mut own_up = up[rank * half..(rank + 1) * half].to_vec();
    let mut own_down = down[rank * half..(rank + 1) * half].to_vec();
    let mut y = vec![0f32; TOKEN_COUNT * HIDDEN_SIZE];
    let mut counts = [0i64; EXPERT_COUNT / 2];
    let mut session = Session::open(plan, group, &SessionConfig::default())?;
    session.set("t", TOKEN_COUNT as i64)?;
    let memories = [
        ("x", &mut x),
        ("router", &mut router),
        ("up", &mut own_up),
        ("down", &mut own_down),
        ("out.0", &mut y),
    ];
    for (name, memory) in memories {
        // SAFETY: the memory exists until the session is closed, and no other code accesses it during a run.
        unsafe { session.bind(name, memory.as_mut_ptr().cast(), size_of_val(&memory[..]))? };
    }
    // SAFETY: as above.
    unsafe { session.bind("out.1", counts.as_mut_ptr().cast(), size_of_val(&counts))? };
    session.run()?;
    session.close()?;
    let mut difference = 0f32;
    for (x, y) in x.chunks(HIDDEN_SIZE).zip(y.chunks(HIDDEN_SIZE)) {
        let result = expected(x, &router, &up, &down);
        difference = y.iter().zip(result).fold(difference, |most, (y, e)| most.max((y - e).abs()));
    }
    Ok((counts.iter().sum(), difference))
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs all ranks; returns whether their results are right.
fn run() -> Result<bool, Error> {
    let plan = symmc::compile(&Program::from_text(EXPERTS_PROGRAM)?, &CompileConfig::default())?;
    let groups = Group::threads(plan.ranks);
    let plan = &plan;
    std::thread::scope(|scope| {
        let start = |(rank, group)| scope.spawn(move || run_rank(plan, group, rank));
        let ranks: Vec<_> = groups.iter().enumerate().map(start).collect();
        let mut is_right = true;
        for (rank, thread) in ranks.into_iter().enumerate() {
            let (rows, difference) = thread.join().expect("no rank panics")?;
            println!("rank {rank}: {rows} rows, differs from one rank by at most {difference:.1e}");
            is_right &= difference < 1e-4;
        }
        Ok(is_right)
    })
}
