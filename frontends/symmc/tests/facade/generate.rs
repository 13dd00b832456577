//! The example that generates text writes what PyTorch's `generate` wrote, its ranks threads or processes, and says what is
//! wrong with what it is asked for.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/generate")
}

/// The example, which `cargo test` builds before it runs this.
fn example() -> Command {
    let test = std::env::current_exe().expect("a path");
    let built = test.ancestors().nth(2).expect("the folder of the profile").join("examples/generate");
    assert!(
        built.is_file(),
        "{}: `cargo build -p symmc --example generate` builds it, as `cargo test` does",
        built.display()
    );
    let mut command = Command::new(built);
    for name in ["RANK", "WORLD_SIZE", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"] {
        command.env_remove(name);
    }
    command
}

fn expected_text() -> String {
    std::fs::read_to_string(folder().join("generated.txt")).expect("a text")
}

fn output_texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn threads_write_the_tokens_of_pytorch() {
    let output = example().output().expect("it starts");
    let (out, log) = output_texts(&output);
    assert!(output.status.success(), "{log}");
    assert_eq!(out, expected_text(), "{log}");
    assert_eq!(out.len(), 64);
    assert!(log.contains("64 tokens, the first after"), "{log}");
}

#[test]
fn processes_of_a_launcher_write_them_once() {
    let port = std::process::id().to_string();
    let start = |rank: &str| {
        let places = [("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2")];
        let mut command = example();
        command
            .envs(places)
            .env("MASTER_ADDR", "localhost")
            .env("MASTER_PORT", &port)
            .arg("--tokens")
            .arg("20");
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
    };
    let ranks = ["0", "1"].map(start);
    let [first, second] = ranks.map(|rank| rank.wait_with_output().expect("it ends"));
    assert!(
        first.status.success() && second.status.success(),
        "{:?} {:?}",
        output_texts(&first),
        output_texts(&second)
    );
    assert_eq!(output_texts(&first).0, expected_text()[..20]);
    assert_eq!(output_texts(&second).0, "");
}

/// A folder with programs that are none of a generator, for as many ranks.
fn other_model() -> tempfile::TempDir {
    let out = tempfile::tempdir().expect("a folder");
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/families");
    let copies = [
        ("llama_past.pt2", "prefill.pt2"),
        ("llama_past.pt2", "decode.pt2"),
        ("llama_past.safetensors", "model.safetensors"),
    ];
    for (from, to) in copies {
        std::fs::copy(programs.join(from), out.path().join(to)).expect("a copy");
    }
    std::fs::write(out.path().join("prompt.txt"), "A").expect("a prompt");
    out
}

#[test]
fn invalid_generate_options_are_rejected_by_name() {
    let long = "x".repeat(129);
    let other_file = other_model();
    let other_path = other_file.path().to_str().expect("a path");
    let cases: [(&[&str], &str); 11] = [
        (&["--tokens", "0"], "--tokens: expected a number from 1 on, found 0"),
        (&["--tokens"], "--tokens lacks a value"),
        (&["--ranks", "4"], "unknown option --ranks; usage: generate [--backend host|cuda]"),
        (&["--backend", "gpu"], "--backend: expected host or cuda, found gpu"),
        (&["--backend"], "--backend lacks a value"),
        (&["--prompt", &long, "--tokens", "1"], "no bucket of the plan serves tokens=129"),
        (
            &[other_path],
            "prefill.pt2: expected a program of export.py, whose symbols are [\"tokens\"]; found",
        ),
        (&["--tokens", "1000"], "the caches have room for 128 tokens, 1012 are needed"),
        (&["--prompt", "naïve"], "expected ASCII text, found the byte 0xc3"),
        (&["--prompt", "x"], "tokens"),
        (&["/nowhere"], "/nowhere/prompt.txt: No such file"),
    ];
    for (arguments, says) in cases {
        let output = example().args(arguments).output().expect("it starts");
        let (out, log) = output_texts(&output);
        assert_eq!((output.status.code(), out.as_str()), (Some(2), ""), "{arguments:?}: {log}");
        assert!(log.contains(says), "{arguments:?}: {log}");
    }
}
