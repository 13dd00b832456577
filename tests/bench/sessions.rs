//! What runs of a session cost the caller's processor: `cargo run --release -p symmc-tests --example bench_sessions`.
//!
//! A program of 250 steps on two ranks of the host, each step small. For each thing that a caller does between runs the
//! median of the time that its thread takes, and how long a session takes to open.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use symmc::{CheckedPlan, CompileConfig, Group, Program, Session, SessionConfig};

const RANK_COUNT: u32 = 2;
const STEP_COUNT: usize = 250;
const RUN_COUNT: usize = 1001;
const WAIT_TIMEOUT: Duration = Duration::from_secs(30);

fn main() -> Result<()> {
    let plan = symmc::compile(&Program::from_text(&program())?, &CompileConfig::default())?;
    let steps = plan.buckets[0].steps.len();
    let ranks: Vec<Result<Vec<(&str, f64)>>> = thread::scope(|scope| {
        let rank = |group: Group| {
            scope.spawn({
                let plan = &plan;
                move || one_rank(plan, &group)
            })
        };
        let threads: Vec<_> = Group::threads(RANK_COUNT).into_iter().map(rank).collect();
        threads.into_iter().map(|t| t.join().unwrap_or_else(|_| anyhow::bail!("a rank panicked"))).collect()
    });
    println!("{steps} steps, {RANK_COUNT} ranks of the host, medians of {RUN_COUNT} in µs");
    for (what, time) in ranks.into_iter().next().context("a rank")?? {
        println!("{what:<44} {time:>9.2}");
    }
    Ok(())
}

/// A chain in which every twenty-fifth step is an all-reduce, beside a weight that some steps read.
fn program() -> String {
    let mut text = "program \"chain\" ranks 2\nsymbol n in 1..=64\ngroup @all world\narg %v0: f32[n, 16]\n\
                    param %w: f32[16]\n"
        .to_string();
    for i in 0..STEP_COUNT {
        text += &match i % 25 {
            24 => format!("%v{}: f32[n, 16] = all_reduce %v{i} op=max group=@all\n", i + 1),
            0 => format!("%v{}: f32[n, 16] = mul %v{i}, %w\n", i + 1),
            _ => format!("%v{}: f32[n, 16] = tanh %v{i}\n", i + 1),
        };
    }
    text + &format!("return %v{STEP_COUNT}\n")
}

/// The median of what a thing takes, without what is done before each time.
fn median(
    session: &mut Session,
    mut before: impl FnMut(&mut Session, usize) -> Result<()>,
    timed: impl Fn(&mut Session) -> Result<()>,
) -> Result<f64> {
    let mut times = Vec::with_capacity(RUN_COUNT);
    for run in 0..RUN_COUNT {
        before(session, run)?;
        let start = Instant::now();
        timed(session)?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
        session.wait(WAIT_TIMEOUT)?;
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn one_rank(plan: &CheckedPlan, group: &Group) -> Result<Vec<(&'static str, f64)>> {
    let mut blocks = [0u8, 1].map(|_| vec![0u64; 64 * 16 / 2]);
    let pointers = blocks.each_mut().map(|block| block.as_mut_ptr().cast::<u8>());
    let mut opening = Vec::new();
    for _ in 0..21 {
        let start = Instant::now();
        let session = Session::open(plan, group, &SessionConfig::default().with_timeout(WAIT_TIMEOUT))?;
        opening.push(start.elapsed().as_secs_f64() * 1e6);
        session.close()?;
    }
    opening.sort_by(f64::total_cmp);
    let mut session = Session::open(plan, group, &SessionConfig::default().with_timeout(WAIT_TIMEOUT))?;
    session.set("n", 1)?;
    session.write("w", &1f32.to_ne_bytes().repeat(16))?;
    // SAFETY: the blocks live as long as the session and hold 64 rows.
    let bind =
        |session: &mut Session, run: usize| unsafe { Ok(session.bind("v0", pointers[run % 2], 4096)?) };
    bind(&mut session, 0)?;
    let nothing = |_: &mut Session, _| Ok(());
    let waited = median(&mut session, nothing, |s| Ok(s.run()?))?;
    let unchanged = median(&mut session, nothing, |s| Ok(s.enqueue()?))?;
    let rebound = median(&mut session, bind, |s| Ok(s.enqueue()?))?;
    let sizes = |s: &mut Session, run: usize| Ok(s.set("n", 1 + (run % 2) as i64)?);
    let sized = median(&mut session, sizes, |s| Ok(s.enqueue()?))?;
    session.close()?;
    Ok(vec![
        ("a run, waited for", waited),
        ("enqueue, nothing changed", unchanged),
        ("enqueue after another pointer was bound", rebound),
        ("enqueue after another size was set", sized),
        ("opening a session", opening[opening.len() / 2]),
    ])
}
