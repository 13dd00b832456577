//! Traces of runs in the format that Chrome's tracing page and Perfetto read.
//!
//! There is one file for a run: a process for each rank, a thread for each lane, a complete event for each
//! step, with times of the device. Ranks have no common clock; each rank's times begin with its own run.

use std::path::Path;

use serde_json::{Value, json};
use symmc_control::RankCommunicator;
use symmc_plan::Lane;

use crate::error::{Result, RunError};
use crate::output_file;
use crate::session::TracedStep;

/// Gathers the traces of all ranks; rank 0 writes them to `path`. Fails if a peer failed, or the file cannot
/// be written.
pub fn write_trace(path: &Path, steps: &[TracedStep], comm: &RankCommunicator) -> Result<()> {
    let mine = serde_json::to_vec(steps).map_err(encoding_error)?;
    // All ranks must pass the same number of bytes: first the length, then as many bytes as the longest
    // trace.
    let lengths = comm.exchange_bytes(&(mine.len() as u64).to_le_bytes())?;
    let lengths = lengths.iter().map(|bytes| {
        <[u8; 8]>::try_from(&bytes[..]).map_or(0, |b| usize::try_from(u64::from_le_bytes(b)).unwrap_or(0))
    });
    let longest = lengths.max().unwrap_or(0);
    let mut padded = mine;
    padded.resize(longest, b' ');
    let encoded = comm.exchange_bytes(&padded)?;
    if comm.rank() != 0 {
        return Ok(());
    }
    let steps_by_rank: Vec<Vec<TracedStep>> = encoded
        .iter()
        .map(|bytes| serde_json::from_slice(bytes))
        .collect::<Result<_, _>>()
        .map_err(encoding_error)?;
    write_trace_file(path, &steps_by_rank)
}

fn encoding_error(error: serde_json::Error) -> RunError {
    RunError::system("gathering traces", error)
}

fn write_trace_file(path: &Path, ranks: &[Vec<TracedStep>]) -> Result<()> {
    let text = serde_json::to_vec(&chrome_trace(ranks)).map_err(encoding_error)?;
    output_file::write_output(path, &text)
        .map_err(|e| RunError::system(format!("writing {}", path.display()), e))
}

fn chrome_trace(ranks: &[Vec<TracedStep>]) -> Value {
    let mut events = Vec::new();
    for (rank, steps) in ranks.iter().enumerate() {
        events.push(
            json!({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": format!("rank {rank}")}}),
        );
        for (lane, name) in [(Lane::Compute, "compute"), (Lane::Comm, "communication")] {
            events.push(json!({"ph": "M", "name": "thread_name", "pid": rank, "tid": lane as u32, "args": {"name": name}}));
        }
        for step in steps {
            events.push(json!({
                "ph": "X", "name": format!("{} %{}", step.op, step.node), "cat": step.op,
                "pid": rank, "tid": step.lane as u32, "ts": step.start_us, "dur": step.us,
            }));
        }
    }
    json!({"traceEvents": events, "displayTimeUnit": "ns"})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_has_every_step_of_every_rank() {
        let step = |node: &str, lane, start_us| TracedStep {
            node: node.into(),
            op: "matmul".into(),
            lane,
            start_us,
            us: 2.5,
        };
        let steps = [step("a", Lane::Compute, 0.5), step("b", Lane::Comm, 3.0)];
        let path = std::env::temp_dir().join(format!("symmc-trace-{}.json", std::process::id()));
        write_trace_file(&path, &[steps.to_vec(), steps.to_vec()]).unwrap();
        let trace: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        std::fs::remove_file(&path).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let ran: Vec<_> = events.iter().filter(|e| e["ph"] == "X").collect();
        assert_eq!(ran.len(), 4);
        assert_eq!(
            (&ran[3]["name"], &ran[3]["pid"], &ran[3]["tid"]),
            (&json!("matmul %b"), &json!(1), &json!(1))
        );
        assert_eq!((&ran[0]["ts"], &ran[0]["dur"]), (&json!(0.5), &json!(2.5)));
    }
}
