//! Ranks that run no job, and send answers over the control channel.

use std::time::Duration;
use symmc_control::{LaunchConfig, LaunchedRank, LocateStep, PlanSubject, RankCommand, launch_ranks};
use symmc_runtime::RunError;

use crate::Test;
use crate::programs::{RankTask, command};

pub const TESTS: &[Test] = &[
    ("answers_of_any_length_arrive", answers_of_any_length_arrive),
    ("a_task_that_a_rank_does_not_know_is_refused", a_task_that_a_rank_does_not_know_is_refused),
];

const LIMIT: Duration = Duration::from_secs(20);

/// Sends an answer of this many characters, after all ranks have met.
pub fn answer(rank: &mut LaunchedRank, characters: usize) -> Result<(), RunError> {
    let subject = PlanSubject { hash: "answers".into(), about: Vec::new() };
    let joined = rank.join(subject, &[], LocateStep::default())?;
    let sent = joined.start().and_then(|()| {
        let bytes = joined.comm().exchange_bytes(&[joined.comm().rank() as u8])?;
        joined.send_answer(&(text(characters), bytes.concat()))
    });
    joined.conclude_job(sent)
}

/// Characters of one to four bytes, and those that JSON escapes.
fn text(characters: usize) -> String {
    "a\"\\é\u{1F600}\n".chars().cycle().take(characters).collect()
}

fn launch(command: &RankCommand, task: &impl serde::Serialize) -> Result<Vec<String>, RunError> {
    let config = LaunchConfig {
        ranks: 3,
        groups: 1,
        arena: 64,
        limit: LIMIT,
        locate_step: LocateStep::default(),
        segments: &|_| Vec::new(),
        files: Vec::new(),
    };
    launch_ranks(config, command, task)
}

fn answers_of_any_length_arrive() {
    for characters in [0, 1, 5, 30_000, 400_000] {
        let answers = launch(&command(), &RankTask::Answer { characters }).expect("it ends well");
        assert_eq!(answers.len(), 3);
        for answer in answers {
            let received: (String, Vec<u8>) = serde_json::from_str(&answer).expect("it is what was sent");
            assert_eq!(received, (text(characters), vec![0, 1, 2]));
        }
    }
}

fn a_task_that_a_rank_does_not_know_is_refused() {
    let error = launch(&command(), &"Abacus").expect_err("there is none");
    assert!(error.to_string().contains("unknown variant `Abacus`"), "{error}");
}
