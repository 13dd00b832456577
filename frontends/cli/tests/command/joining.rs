//! Ranks that another launcher started: the variables of each launcher, and ranks that are missing, come twice, die, cannot
//! begin or run another program. Every rank ends within the limit, with the same exit code and an error that names the cause.

use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::{failure, symmc};

/// A program in a folder of its own.
struct JoinCase {
    dir: tempfile::TempDir,
}

impl JoinCase {
    fn new() -> JoinCase {
        let case = JoinCase { dir: tempfile::tempdir().expect("a folder") };
        case.write("p.symm", "p", 3, "relu");
        case
    }

    fn write(&self, file: &str, name: &str, ranks: u32, op: &str) {
        let text = format!(
            "program \"{name}\" ranks {ranks}\nsymbol tokens in 1..=64\ngroup @g world\narg %x: f32[tokens, 16]\n\
             %y: f32[tokens, 16] = all_reduce %x op=sum group=@g\n%z: f32[tokens, 16] = {op} %y\nreturn %z\n"
        );
        std::fs::write(self.dir.path().join(file), text).expect("written");
    }

    /// Starts symmc in the folder with these environment variables.
    fn start(&self, line: &str, environment: &[(&str, String)]) -> Child {
        let mut command = symmc(line);
        for name in ["RANK", "WORLD_SIZE", "MASTER_PORT", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"]
        {
            command.env_remove(name);
        }
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        command.current_dir(self.dir.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("symmc starts")
    }

    /// Starts one rank with the variables of torchrun.
    fn rank(&self, line: &str, rank: u32, ranks: u32, port: &str) -> Child {
        self.start(line, &torch(rank, ranks, port))
    }
}

fn torch(rank: u32, ranks: u32, port: &str) -> Vec<(&'static str, String)> {
    vec![
        ("RANK", rank.to_string()),
        ("WORLD_SIZE", ranks.to_string()),
        ("MASTER_ADDR", "here".into()),
        ("MASTER_PORT", format!("{}{port}", std::process::id())),
    ]
}

const RUN: &str = "run p.symm --seed 1 --set tokens=5 --compare interpreter";
/// How much later than its limit a process may end on a busy machine.
const SLACK: Duration = Duration::from_secs(15);

fn wait_for_all(ranks: Vec<Child>) -> Vec<Output> {
    ranks.into_iter().map(|rank| rank.wait_with_output().expect("it ends")).collect()
}

fn stderr_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Checks that all ranks end with this exit code, and that their messages have all of these parts.
fn all_say(outputs: &[Output], code: i32, parts: &[&str]) {
    for (i, output) in outputs.iter().enumerate() {
        let text = stderr_text(output);
        assert_eq!(output.status.code(), Some(code), "process {i}: {text}");
        assert!(parts.iter().all(|part| text.contains(part)), "process {i}: {text}; expected {parts:?}");
        assert!(!text.contains("panicked") && text.matches("error:").count() == 1, "process {i}: {text}");
    }
}

#[test]
fn the_variables_of_each_launcher_make_one_run() {
    let case = JoinCase::new();
    let pid = std::process::id();
    let families: [&dyn Fn(u32) -> Vec<(&'static str, String)>; 4] = [
        &|rank| torch(rank, 3, "1"),
        &|rank| {
            vec![
                ("OMPI_COMM_WORLD_RANK", rank.to_string()),
                ("OMPI_COMM_WORLD_SIZE", "3".into()),
                ("OMPI_COMM_WORLD_LOCAL_SIZE", "3".into()),
                ("PMIX_NAMESPACE", format!("t{pid}")),
            ]
        },
        // Hydra, the launcher of MPICH and Intel MPI, has no name for the run.
        &|rank| {
            vec![
                ("PMI_RANK", rank.to_string()),
                ("PMI_SIZE", "3".into()),
                ("PMI_FD", "9".into()),
                ("MPI_LOCALRANKID", rank.to_string()),
                ("MPI_LOCALNRANKS", "3".into()),
            ]
        },
        &|rank| {
            vec![
                ("SLURM_PROCID", rank.to_string()),
                ("SLURM_NTASKS", "3".into()),
                ("SLURM_STEP_NUM_TASKS", "3".into()),
                ("SLURM_JOB_ID", pid.to_string()),
                ("SLURM_STEP_ID", "2".into()),
                ("SLURM_STEP_NUM_NODES", "1".into()),
            ]
        },
    ];
    for family in families {
        for (rank, output) in
            wait_for_all((0..3).rev().map(|r| case.start(RUN, &family(r))).collect()).iter().rev().enumerate()
        {
            let (text, error) = (String::from_utf8_lossy(&output.stdout), stderr_text(output));
            assert!(output.status.success(), "{:?}: {error}", family(0));
            // Each process ran only its own rank.
            let shown: Vec<&str> =
                text.lines().filter(|line| line.trim_start().starts_with("rank ")).collect();
            assert_eq!(shown.len(), 1, "{:?}: {text}", family(0));
            assert!(shown[0].contains(&format!("rank {rank} ")), "{:?}: {text}", family(0));
        }
    }
}

#[test]
fn leftover_launcher_variables_do_not_prevent_a_run() {
    let case = JoinCase::new();
    let run_alone = |environment: &[(&str, &str)], line: &str| {
        let environment: Vec<_> =
            environment.iter().map(|&(name, value)| (name, value.to_string())).collect();
        let output = case.start(line, &environment).wait_with_output().expect("it ends");
        assert!(output.status.success(), "{environment:?}: {}", stderr_text(&output));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!((0..3).all(|rank| text.contains(&format!("rank {rank} output"))), "{environment:?}: {text}");
        stderr_text(&output)
    };
    let note = run_alone(&[("RANK", "1")], RUN);
    assert!(note.contains("note: RANK") && note.contains("WORLD_SIZE"), "{note}");
    let batch = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "3"), ("SLURM_JOB_ID", "1"), ("SLURM_NNODES", "1")];
    assert!(!run_alone(&batch, RUN).contains("SLURM"));
    let local = format!("{RUN} --launch local");
    run_alone(&[("RANK", "1"), ("WORLD_SIZE", "3"), ("MASTER_PORT", "1")], &local);
    run_alone(&[("PMI_RANK", "x"), ("PMI_SIZE", "3")], &local);
}

#[test]
fn contradictions_name_both_launchers() {
    let environment =
        [("RANK", "1"), ("WORLD_SIZE", "3"), ("MASTER_PORT", "1"), ("PMI_RANK", "0"), ("PMI_SIZE", "2")];
    let mut command = symmc("run megatron_tp4_f32.pt2");
    let text = failure(command.envs(environment), 2);
    for part in ["torchrun", "PMI", "rank 1 of 3", "rank 0 of 2", "--launch"] {
        assert!(text.contains(part), "{text}");
    }
    let text = failure(symmc("run megatron_tp4_f32.pt2 --launch mpi").env_remove("PMI_RANK"), 2);
    assert!(text.contains("PMI_RANK"), "{text}");
    let text = failure(&mut symmc("run megatron_tp4_f32.pt2 --launch mpi --backend threads"), 2);
    assert!(text.contains("--launch"), "{text}");
}

#[test]
fn joining_times_out_and_names_missing_ranks() {
    let case = JoinCase::new();
    let line = format!("{RUN} --timeout 2");
    for (present, missing, port) in [
        (&[0, 2][..], "rank 1 did not join", "2"),
        (&[2, 1], "rank 0 did not join", "3"),
        (&[0], "ranks 1, 2 did not join", "4"),
    ] {
        let start = Instant::now();
        let ranks = present.iter().map(|&rank| case.rank(&line, rank, 3, port)).collect();
        all_say(&wait_for_all(ranks), 1, &[missing, "2000 ms"]);
        assert!(start.elapsed() < Duration::from_secs(2) + SLACK, "{:?}", start.elapsed());
    }
}

#[test]
fn the_earliest_limit_ends_the_wait_of_all() {
    let case = JoinCase::new();
    let start = Instant::now();
    let patient = case.rank(&format!("{RUN} --timeout 100"), 0, 3, "5");
    let impatient = case.rank(&format!("{RUN} --timeout 2"), 2, 3, "5");
    all_say(&wait_for_all(vec![patient, impatient]), 1, &["rank 1 did not join"]);
    assert!(start.elapsed() < Duration::from_secs(2) + SLACK, "{:?}", start.elapsed());
}

#[test]
fn a_late_rank_is_awaited() {
    let case = JoinCase::new();
    for late in 0..3 {
        let port = format!("6{late}");
        let mut ranks: Vec<Child> =
            (0..3).filter(|&rank| rank != late).map(|rank| case.rank(RUN, rank, 3, &port)).collect();
        std::thread::sleep(Duration::from_millis(1500));
        ranks.push(case.rank(RUN, late, 3, &port));
        assert!(wait_for_all(ranks).iter().all(|output| output.status.success()));
    }
}

#[test]
fn duplicate_rank_is_named_on_all_ranks() {
    let case = JoinCase::new();
    for twice in [1, 0] {
        let port = format!("7{twice}");
        // The second process with the rank starts when the first has joined.
        let mut ranks = vec![case.rank(RUN, 0, 3, &port), case.rank(RUN, 1, 3, &port)];
        std::thread::sleep(Duration::from_millis(700));
        ranks.push(case.rank(RUN, twice, 3, &port));
        std::thread::sleep(Duration::from_millis(700));
        ranks.push(case.rank(RUN, 2, 3, &port));
        all_say(&wait_for_all(ranks), 2, &[&format!("two processes say that they are rank {twice}")]);
    }
}

#[test]
fn all_ranks_name_a_rank_that_fails_before_joining() {
    let case = JoinCase::new();
    let mut victim = case.rank(RUN, 2, 3, "8");
    let first = case.rank(RUN, 0, 3, "8");
    std::thread::sleep(Duration::from_millis(1500));
    victim.kill().expect("killed");
    victim.wait().expect("reaped");
    let start = Instant::now();
    all_say(
        &wait_for_all(vec![first, case.rank(RUN, 1, 3, "8")]),
        1,
        &["rank 2 died", "while the ranks joined"],
    );
    assert!(start.elapsed() < SLACK, "{:?}", start.elapsed());
    for missing in [1, 0] {
        let port = format!("9{missing}");
        let line = |rank| if rank == missing { RUN.replace("p.symm", "none.symm") } else { RUN.to_string() };
        let ranks = (0..3).map(|rank| case.rank(&line(rank), rank, 3, &port)).collect();
        all_say(&wait_for_all(ranks), 2, &["none.symm"]);
    }
}

/// A number of ranks that no program has is refused before memory is taken for each rank.
#[test]
fn impossible_numbers_of_ranks_take_no_memory() {
    let case = JoinCase::new();
    for rank in [0, 7] {
        let limited = format!("ulimit -v 2000000 && exec {} {RUN} --timeout 2", env!("CARGO_BIN_EXE_symmc"));
        let mut command = std::process::Command::new("sh");
        command.args(["-c", &limited]).envs(torch(rank, u32::MAX, "30")).current_dir(case.dir.path());
        let error = failure(&mut command, 2);
        assert!(error.contains("expected 3 ranks, found 4294967295 ranks"), "{error}");
    }
}

#[test]
fn descriptor_shortage_fails_all_ranks_with_one_code() {
    let case = JoinCase::new();
    let mut codes = Vec::new();
    for rank in [0, 2] {
        for (i, limit) in [7, 8, 9, 10, 11, 12, 13, 14, 16, 18].into_iter().enumerate() {
            let port = format!("2{rank}{i}");
            let limited = format!("ulimit -n {limit} && exec {} {RUN}", env!("CARGO_BIN_EXE_symmc"));
            let mut command = std::process::Command::new("sh");
            command.args(["-c", &limited]).envs(torch(rank, 3, &port)).current_dir(case.dir.path());
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut ranks = vec![command.spawn().expect("a shell starts")];
            ranks.extend((0..3).filter(|&other| other != rank).map(|other| case.rank(RUN, other, 3, &port)));
            let outputs = wait_for_all(ranks);
            let text = stderr_text(&outputs[0]);
            let code = outputs[0].status.code();
            assert!(matches!(code, Some(0 | 2)), "rank {rank}, {limit} files: {code:?} {text}");
            // A process that cannot start as a rank is unknown to the others.
            let is_rank = text.contains(&format!("rank {rank}"));
            for output in outputs.iter().filter(|_| is_rank) {
                assert_eq!(output.status.code(), code, "rank {rank}, {limit} files: {}", stderr_text(output));
                assert!(
                    stderr_text(output).contains("open files"),
                    "rank {rank}, {limit} files: {}",
                    stderr_text(output)
                );
            }
            codes.push((code, is_rank));
        }
    }
    // Some limits let the run succeed and others make it fail.
    assert!(codes.contains(&(Some(2), true)) && codes.contains(&(Some(0), false)), "{codes:?}");
}

#[test]
fn the_step_is_named_when_rank_0_dies() {
    let case = JoinCase::new();
    let line = format!("{RUN} --repeat 100000000");
    // Rank 0 may die before its first step or between two steps; after a few attempts it dies within one.
    let is_named = |attempt: u32| {
        let port = format!("30{attempt}");
        let mut ranks: Vec<Child> = (0..3).map(|rank| case.rank(&line, rank, 3, &port)).collect();
        std::thread::sleep(Duration::from_millis(600) * (attempt + 1));
        let mut first = ranks.remove(0);
        first.kill().expect("killed");
        first.wait().expect("reaped");
        let outputs = wait_for_all(ranks);
        for output in &outputs {
            assert_eq!(output.status.code(), Some(1), "{}", stderr_text(output));
            assert!(stderr_text(output).contains("rank 0 di"), "{}", stderr_text(output));
        }
        outputs.iter().all(|output| {
            stderr_text(output).contains("rank 0 died") && stderr_text(output).contains("at step")
        })
    };
    assert!((0..8).any(is_named), "no step was named");
}

#[test]
fn differences_are_named_on_all_ranks_with_one_code() {
    let case = JoinCase::new();
    case.write("q.symm", "q", 3, "relu");
    case.write("neg.symm", "p", 3, "neg");
    case.write("four.symm", "p", 4, "relu");
    let differ: [(&str, &[&str]); 5] = [
        ("run q.symm --seed 1 --set tokens=5", &["rank 2", "program q", "program p"]),
        ("run neg.symm --seed 1 --set tokens=5", &["rank 2", "program text"]),
        ("run four.symm --seed 1 --set tokens=5", &["4 ranks", "3 ranks"]),
        ("run p.symm --seed 1 --set tokens=6", &["rank 2", "tokens=6", "tokens=5"]),
        (
            "run p.symm --seed 1 --set tokens=5 --machine h200x4",
            &["rank 2", "machine h200x4", "machine host"],
        ),
    ];
    for (i, (other, parts)) in differ.into_iter().enumerate() {
        let port = format!("1{i}");
        let line = "run p.symm --seed 1 --set tokens=5";
        let ranks =
            [line, line, other].into_iter().zip(0..).map(|(line, rank)| case.rank(line, rank, 3, &port));
        all_say(&wait_for_all(ranks.collect()), 2, parts);
    }
}
