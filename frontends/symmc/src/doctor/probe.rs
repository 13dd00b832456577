//! Examines all parts concurrently, each with the same timeout.
//!
//! A part that does not answer is abandoned: its thread ends with this process, its prober process is killed. A process that the
//! kernel does not end is not waited for.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use crate::run::clamp_wait;

use super::check::{CheckStatus, DoctorCheck, DoctorPart};
use super::host;
#[cfg(feature = "cuda")]
use super::{gpus, libraries};

/// A command that examines one part, whose name is its last argument. It writes the part's checks ([`examine`]) to standard
/// output as one line of JSON.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prober {
    /// The program.
    pub program: PathBuf,
    /// Its arguments before the name of the part.
    pub args: Vec<String>,
}

/// The interval at which a process is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Threads are waited for this much longer than processes.
const GRACE: Duration = Duration::from_secs(1);
/// The most bytes that a process may write.
const MAX_OUTPUT_BYTES: u64 = 1 << 20;

/// The checks of a part, or the reason why there are none.
type ProbeResult = Result<Vec<DoctorCheck>, String>;

/// The checks of all parts, in their order.
pub(super) fn check_all_parts(limit: Duration, prober: Option<&Prober>) -> Vec<DoctorCheck> {
    // A process that hangs is killed before the wait for its thread ends.
    let until = Instant::now() + clamp_wait(limit) + GRACE;
    let probes = DoctorPart::ALL.map(|part| (part, start_probe(part, limit, prober.cloned())));
    let wait = |(part, probe): (DoctorPart, Option<Receiver<ProbeResult>>)| {
        let remaining = until.saturating_duration_since(Instant::now());
        let answered = match probe.map(|a| a.recv_timeout(remaining)) {
            Some(Ok(answer)) => answer,
            Some(Err(RecvTimeoutError::Timeout)) => {
                Err(format!("no answer within {} s", limit.as_secs_f32()))
            }
            Some(Err(RecvTimeoutError::Disconnected)) => Err("the examination failed".into()),
            // The system has no more threads.
            None => run_probe(part, limit, prober),
        };
        answered.unwrap_or_else(|why| part.uniform_checks(CheckStatus::Unknown, &why, part_remedy(part)))
    };
    probes.into_iter().flat_map(wait).collect()
}

/// Examines one part on this thread, without a timeout.
pub fn examine(part: DoctorPart) -> Vec<DoctorCheck> {
    match part {
        DoctorPart::Host => host::checks(),
        #[cfg(feature = "cuda")]
        DoctorPart::Gpus => gpus::checks(),
        #[cfg(feature = "cuda")]
        DoctorPart::Nvrtc | DoctorPart::Cublaslt | DoctorPart::Cudnn | DoctorPart::Nccl => {
            libraries::checks(part)
        }
        #[cfg(not(feature = "cuda"))]
        _ => part.uniform_checks(
            CheckStatus::Missing,
            "this build of symmc does not support GPUs",
            "build it with the feature cuda",
        ),
    }
}

/// The remedy for a part that does not answer.
fn part_remedy(part: DoctorPart) -> &'static str {
    match part {
        DoctorPart::Host => "look at the system's log",
        DoctorPart::Gpus => "look at nvidia-smi and dmesg: a GPU that has failed needs a reset or a reboot",
        _ => "install the library again, or name another one in its environment variable",
    }
}

/// Examines a part on a thread; `None` if the system has no more threads.
fn start_probe(part: DoctorPart, limit: Duration, prober: Option<Prober>) -> Option<Receiver<ProbeResult>> {
    let (sender, receiver) = channel();
    let probe = move || {
        // The receiver may have timed out.
        let _ = sender.send(run_probe(part, limit, prober.as_ref()));
    };
    let builder = Builder::new().name(format!("symmc {}", part.name()));
    spawn_thread(builder, probe).ok().map(|()| receiver)
}

/// The bytes that a thread needs at its start: its stack and one for signals. Without the latter it ends the process.
const THREAD_STACK_BYTES: usize = 8 << 20;

/// Starts a thread if there is memory for one. Returns when it runs and has its memory.
fn spawn_thread(builder: Builder, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    if Vec::<u8>::new().try_reserve_exact(THREAD_STACK_BYTES).is_err() {
        return Err(std::io::ErrorKind::OutOfMemory.into());
    }
    let (sender, started) = channel();
    builder.spawn(move || {
        let _ = sender.send(());
        work();
    })?;
    let _ = started.recv();
    Ok(())
}

/// Examines a part in a prober process, or in this process if there is no prober. The host needs no libraries that could crash.
fn run_probe(part: DoctorPart, limit: Duration, prober: Option<&Prober>) -> ProbeResult {
    match prober {
        Some(prober) if part != DoctorPart::Host => probe_in_process(prober, part, limit),
        _ => Ok(examine(part)),
    }
}

/// Runs a prober process and reads its checks.
fn probe_in_process(prober: &Prober, part: DoctorPart, limit: Duration) -> ProbeResult {
    let mut command = Command::new(&prober.program);
    command.args(&prober.args).arg(part.name());
    let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = piped.spawn().map_err(|e| format!("{} does not start: {e}", prober.program.display()))?;
    let (sender, receiver) = channel();
    if let Some(out) = child.stdout.take() {
        let read = move || {
            let mut text = Vec::new();
            // The bytes before a read error may be a whole answer.
            let _ = out.take(MAX_OUTPUT_BYTES).read_to_end(&mut text);
            let _ = sender.send(text);
        };
        if let Err(error) = spawn_thread(Builder::new(), read) {
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("no thread to read the output of the process: {error}"));
        }
    }
    let until = Instant::now() + clamp_wait(limit);
    let status = wait_for_exit(child, until)?;
    let remaining = until.saturating_duration_since(Instant::now()).max(POLL_INTERVAL);
    let text = receiver.recv_timeout(remaining).unwrap_or_default();
    // Libraries may have written other lines.
    let text = String::from_utf8_lossy(&text);
    let checks = text.lines().rev().find_map(|line| serde_json::from_str::<Vec<DoctorCheck>>(line).ok());
    match (status.success(), checks) {
        (true, Some(checks)) => Ok(checks),
        (true, None) => Err("the process that examined it gave no answer".into()),
        (false, _) => Err(format!("the process that examined it ended with {status}")),
    }
}

/// Waits until a process ends, and kills it at the deadline.
fn wait_for_exit(mut child: Child, until: Instant) -> Result<ExitStatus, String> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if Instant::now() < until => std::thread::sleep(POLL_INTERVAL),
            Ok(None) => {
                let _ = child.kill();
                // The kernel may delay its end, so a separate thread waits for it.
                let _ = Builder::new().spawn(move || child.wait());
                return Err("no answer within the timeout".into());
            }
            Err(error) => return Err(format!("waiting for the process that examined it failed: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shell that runs `text`, with the part's name as `$0`.
    fn shell(text: &str) -> Prober {
        Prober { program: "/bin/sh".into(), args: vec!["-c".into(), text.into()] }
    }

    fn asked(text: &str, limit: Duration) -> Vec<DoctorCheck> {
        check_all_parts(limit, Some(&shell(text)))
    }

    #[test]
    fn what_a_process_answers_is_taken() {
        let checks = r#"[{"part":"cudnn","name":"cudnn","status":"ok","found":"9","version":null,"path":null,"remedy":null}]"#;
        let text = format!("echo noise; echo '{checks}'; echo more noise");
        let answered = probe_in_process(&shell(&text), DoctorPart::Cudnn, Duration::from_secs(20)).unwrap();
        assert_eq!(answered, [DoctorPart::Cudnn.ok("cudnn", "9")]);
    }

    #[test]
    fn a_process_that_crashes_is_a_line_and_the_others_are_asked() {
        let checks = asked("kill -SEGV $$", Duration::from_secs(20));
        for part in DoctorPart::ALL {
            let of_part: Vec<&DoctorCheck> = checks.iter().filter(|c| c.part == part).collect();
            assert_eq!(of_part.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), part.check_names());
            let broken = |c: &&&DoctorCheck| {
                c.status == CheckStatus::Unknown && c.found.contains("signal: 11") && c.remedy.is_some()
            };
            let count = of_part.iter().filter(broken).count();
            assert_eq!(count, if part == DoctorPart::Host { 0 } else { of_part.len() }, "{of_part:?}");
        }
    }

    #[test]
    fn a_process_that_hangs_is_ended_and_said() {
        let begun = Instant::now();
        let checks = asked("sleep 600", Duration::from_millis(200));
        assert!(begun.elapsed() < Duration::from_secs(60));
        let silent = checks.iter().filter(|c| c.found.contains("no answer within")).count();
        let of_others: usize = DoctorPart::ALL[1..].iter().map(|p| p.check_names().len()).sum();
        assert_eq!(silent, of_others, "{checks:?}");
    }

    #[test]
    fn what_is_no_answer_is_said() {
        for (text, said) in
            [("exit 3", "exit status: 3"), ("echo '[1]'", "no answer"), ("exec /no/such", "exit status: 127")]
        {
            let reason =
                probe_in_process(&shell(text), DoctorPart::Nccl, Duration::from_secs(20)).unwrap_err();
            assert!(reason.contains(said), "{text}: {reason}");
        }
        let none = Prober { program: "/no/such".into(), args: vec![] };
        assert!(
            probe_in_process(&none, DoctorPart::Nccl, Duration::from_secs(20))
                .unwrap_err()
                .contains("does not start")
        );
    }
}
