//! Times of a program: opening, the host's part of a run, a run with another pointer, and the run.

use std::time::Instant;

use anyhow::{Context, Result};
use symmc::{Bind, OpenOptions, Program, Session};

use crate::common::{Block, LIMIT, RANKS, config, on_ranks, planned};

/// Times of a program: opening, the host's part of a run, a run with another pointer, and the run.
pub fn times(file: &str, symbols: &[(String, i64)]) -> Result<()> {
    let program = Program::open(file.as_ref(), &OpenOptions::default().with_ranks(RANKS))?;
    let plan = planned(&program, Bind::None)?;
    let steps = plan.buckets.first().map_or(0, |bucket| bucket.steps.len());
    println!("{file}: {steps} steps");
    on_ranks(|group, device| {
        let start = Instant::now();
        let mut session = Session::open(&plan, group, &config(group))?;
        let open = start.elapsed();
        for (symbol, value) in symbols {
            session.set(symbol, *value)?;
        }
        for value in session.inputs()?.into_iter().chain(session.parameters()?) {
            session.address(&value.name)?;
        }
        let start = Instant::now();
        session.run()?;
        let first = start.elapsed();
        let mut host = Vec::new();
        for _ in 0..300 {
            let start = Instant::now();
            session.enqueue()?;
            host.push(start.elapsed());
            session.wait(LIMIT)?;
        }
        let start = Instant::now();
        for _ in 0..300 {
            session.enqueue()?;
        }
        session.wait(LIMIT)?;
        let each = start.elapsed() / 300;
        let argument = session.inputs()?.into_iter().next().context("no argument")?;
        let blocks = [Block::of(device, argument.bytes)?, Block::of(device, argument.bytes)?];
        let mut other = Vec::new();
        for run in 0..6 {
            // SAFETY: the blocks live until the session has ended.
            unsafe { session.bind(&argument.name, blocks[run % 2].ptr(), argument.bytes)? };
            let start = Instant::now();
            session.enqueue()?;
            other.push(start.elapsed());
            session.wait(LIMIT)?;
        }
        host.sort();
        println!(
            "rank {}: open {open:?}, first run {first:?}, enqueue {:?} (median), run {each:?}, with another pointer {other:?}",
            group.rank(),
            host[host.len() / 2]
        );
        session.close()?;
        Ok(())
    })?;
    Ok(())
}
