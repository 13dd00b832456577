//! Ranks that join by the environment, as torchrun starts them; some stop at a point of the joining protocol.

use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::time::{Duration, Instant};

use std::sync::Arc;

use nix::sys::signal::{Signal, raise};
use symmc_control::{JoinTerm, Membership, TermContent};
use symmc_runtime::job::{RankJob, SessionRequest, run_rank};

use crate::programs::{OwnedJob, open};
use crate::{Test, custom};

pub const TESTS: &[Test] = &[
    ("joined_ranks_give_the_numbers", joined_ranks_give_the_numbers),
    ("joined_ranks_run_custom_ops", joined_ranks_run_custom_ops),
    ("another_plan_is_refused_on_every_rank", another_plan_is_refused_on_every_rank),
    ("a_joined_rank_that_dies_ends_the_run", a_joined_rank_that_dies_ends_the_run),
    ("the_same_rank_twice_is_refused", the_same_rank_twice_is_refused),
    ("a_rank_that_stops_while_the_run_opens_is_named", a_rank_that_stops_while_the_run_opens_is_named),
];

/// Started as a separate process: joins, runs, compares with the interpreter.
pub fn member() -> ExitCode {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let mut owned = match variable("WORLD_SIZE").as_str() {
        "4" => OwnedJob::mixed(4),
        _ => custom::joined(),
    };
    owned.repeats = variable("TEST_REPEATS").parse().unwrap_or(1);
    owned.edit(|plan| plan.machine = variable("TEST_MACHINE"));
    let is_victim = variable("TEST_VICTIM") == variable("RANK");
    let stops = if is_victim { variable("TEST_STOP") } else { String::new() };
    let mut settings = Vec::new();
    if !variable("TEST_STOP").is_empty() {
        owned.config.limit = Duration::from_secs(2);
        // Enough runs to be stopped during one.
        owned.repeats = u32::MAX;
        // Ranks with different identities of their contents read them.
        settings.push(JoinTerm::content(
            "contents",
            Arc::new(StoppingContents { at: stops.clone(), name: variable("RANK") }),
        ));
    }
    let result = Membership::from_env().and_then(|place| {
        let membership = place.expect("the environment names a rank");
        let inputs = &owned.inputs[membership.rank as usize];
        let job = RankJob {
            plan: &owned.plan,
            bindings: owned.bindings.clone(),
            inputs,
            repeats: owned.repeats,
            trace: None,
            settings: &settings,
            config: owned.config.clone(),
        };
        let kernels = custom::kernels();
        let open = open(&kernels);
        let open_or_stop = |asked: &SessionRequest<'_>| {
            match stops.as_str() {
                "load" => stop(),
                "runs" => stop_in(Duration::from_millis(300)),
                _ => {}
            }
            open(asked)
        };
        run_rank(&membership, &job, &open_or_stop).map(|(outputs, _)| (membership.rank, outputs))
    });
    match result {
        Ok((rank, outputs)) if outputs == owned.expected()[rank as usize] => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(3),
        Err(error) => {
            eprint!("{error}");
            if !variable("TEST_STOP").is_empty() {
                eprint!(" (culprit {:?})", error.culprit());
            }
            ExitCode::from(1)
        }
    }
}

/// Stops this process, as a debugger does.
fn stop() {
    raise(Signal::SIGSTOP).expect("a signal");
}

/// Contents whose reading stops the process.
struct StoppingContents {
    at: String,
    name: String,
}

impl TermContent for StoppingContents {
    fn identity(&self) -> std::io::Result<String> {
        Ok(self.name.clone())
    }

    fn digest(&self) -> std::io::Result<String> {
        if self.at == "digest" {
            stop();
        }
        Ok("equal".into())
    }
}

/// Stops this process after a while.
fn stop_in(time: Duration) {
    std::thread::spawn(move || {
        std::thread::sleep(time);
        stop();
    });
}

/// Starts the ranks in this order; each with a machine name and a number of repeats.
fn start(ranks: &[u32], port: u16, machine: impl Fn(u32) -> String, repeats: u32) -> Vec<Child> {
    start_with(ranks, port, machine, repeats, &[])
}

/// The same with more variables.
fn start_with(
    ranks: &[u32],
    port: u16,
    machine: impl Fn(u32) -> String,
    repeats: u32,
    variables: &[(&str, String)],
) -> Vec<Child> {
    let this = std::env::current_exe().expect("this binary has a path");
    let size = || ranks.len().to_string();
    let spawn = |&rank: &u32| {
        Command::new(&this)
            .arg("join")
            .envs([("RANK", rank.to_string()), ("WORLD_SIZE", size()), ("LOCAL_WORLD_SIZE", size())])
            .envs([("MASTER_ADDR", "localhost".to_string()), ("MASTER_PORT", port.to_string())])
            .envs([("TORCHELASTIC_RUN_ID", std::process::id().to_string())])
            .envs([("TEST_MACHINE", machine(rank)), ("TEST_REPEATS", repeats.to_string())])
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stderr(Stdio::piped())
            .spawn()
            .expect("a rank starts")
    };
    ranks.iter().map(spawn).collect()
}

fn wait_for_all(ranks: Vec<Child>) -> Vec<Output> {
    ranks.into_iter().map(|r| r.wait_with_output().expect("a rank ends")).collect()
}

fn stderr_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn joined_ranks_give_the_numbers() {
    for order in [[0, 1, 2, 3], [3, 2, 1, 0]] {
        for output in wait_for_all(start(&order, 1, |_| "host".into(), 3)) {
            assert_eq!(output.status.code(), Some(0), "{}", stderr_text(&output));
        }
    }
}

fn joined_ranks_run_custom_ops() {
    for output in wait_for_all(start(&[2, 0, 1], 8, |_| "host".into(), 3)) {
        assert_eq!(output.status.code(), Some(0), "{}", stderr_text(&output));
    }
}

fn another_plan_is_refused_on_every_rank() {
    let machine = |rank| if rank == 2 { "another".to_string() } else { "host".to_string() };
    let mut texts: Vec<String> = Vec::new();
    for output in wait_for_all(start(&[0, 1, 2, 3], 2, machine, 1)) {
        assert_eq!(output.status.code(), Some(1));
        texts.push(stderr_text(&output));
    }
    let [hash, other] = ["host", "another"].map(|machine| {
        let mut owned = OwnedJob::mixed(4);
        owned.edit(|plan| plan.machine = machine.into());
        owned.plan.hash()
    });
    for text in &texts {
        assert!(
            text.starts_with("rank 2 has the plan") && text.contains(&hash) && text.contains(&other),
            "{text}"
        );
    }
}

fn a_joined_rank_that_dies_ends_the_run() {
    for victim in [2, 0] {
        let mut ranks = start(&[0, 1, 2, 3], 3 + victim as u16, |_| "host".into(), u32::MAX);
        std::thread::sleep(Duration::from_millis(400));
        assert!(ranks.iter_mut().all(|r| matches!(r.try_wait(), Ok(None))), "the run is under way");
        ranks[victim].kill().expect("the rank is killed");
        let start = Instant::now();
        let outputs = wait_for_all(ranks);
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        for (rank, output) in outputs.iter().enumerate().filter(|(rank, _)| *rank != victim) {
            assert_eq!(output.status.code(), Some(1));
            let text = stderr_text(output);
            assert!(text.contains(&format!("rank {victim} died")), "rank {rank}: {text}");
        }
    }
}

fn the_same_rank_twice_is_refused() {
    let outputs = wait_for_all(start(&[0, 1, 1, 2], 7, |_| "host".into(), 1));
    for output in &outputs {
        assert_eq!(output.status.code(), Some(1));
    }
    assert!(
        stderr_text(&outputs[0]).contains("two processes say that they are rank 1"),
        "{}",
        stderr_text(&outputs[0])
    );
}

fn a_rank_that_stops_while_the_run_opens_is_named() {
    let points = ["digest", "load", "runs"];
    let cases: Vec<(&'static str, u32)> =
        points.iter().flat_map(|point| [(*point, 0), (*point, 2)]).collect();
    let run = |(number, &(point, victim)): (u16, &(&'static str, u32))| {
        let variables = [("TEST_STOP", point.to_string()), ("TEST_VICTIM", victim.to_string())];
        (start_with(&[0, 1, 2, 3], 20 + number, |_| "host".into(), 1, &variables), point, victim)
    };
    let started: Vec<_> = (0..).zip(&cases).map(run).collect();
    for (mut ranks, point, victim) in started {
        let mut stopped = ranks.remove(victim as usize);
        for output in wait_for_all(ranks) {
            let text = stderr_text(&output);
            assert_eq!(output.status.code(), Some(1), "{point}: {text}");
            let (name, culprit) = (format!("rank {victim}"), format!("(culprit Some({victim}))"));
            assert!(text.contains(&name) && text.contains(&culprit), "{point}, rank {victim}: {text}");
        }
        stopped.kill().expect("it is there");
        stopped.wait().expect("it is reaped");
    }
}
