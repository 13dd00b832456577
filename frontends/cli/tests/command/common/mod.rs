//! Runs the built `symmc` command.

// Each test binary uses only a part of this module.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A command line of symmc that runs in the folder of the real programs.
pub fn symmc(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_symmc"));
    command.args(line.split_whitespace()).current_dir(programs()).stdin(Stdio::null());
    command
}

/// The folder of the real programs.
pub fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs")
}

/// Runs a command to its end.
pub fn output(command: &mut Command) -> Output {
    command.output().expect("symmc starts")
}

/// Runs a command that must succeed; returns its standard output.
pub fn stdout(line: &str) -> String {
    let out = output(&mut symmc(line));
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "symmc {line}\n{text}{}", String::from_utf8_lossy(&out.stderr));
    text
}

/// Runs a command that must end with this exit code, with one error and no panic; returns its standard error.
pub fn failure(command: &mut Command, code: i32) -> String {
    let out = output(command);
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(code), "{command:?}\n{text}");
    assert!(!text.contains("panicked"), "{command:?}\n{text}");
    assert_eq!(text.matches("error:").count(), 1, "{command:?}\n{text}");
    text
}

/// A tensor of a file: its name, its dtype by safetensors' name, its shape and its bytes.
pub type Named<'a> = (&'a str, &'a str, &'a [usize], Vec<u8>);

/// Writes a safetensors file; returns its path.
pub fn tensors(dir: &Path, name: &str, tensors: &[Named<'_>]) -> String {
    let mut header = serde_json::Map::new();
    let mut data: Vec<u8> = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        let entry = serde_json::json!({ "dtype": dtype, "shape": shape, "data_offsets": offsets });
        header.insert(name.to_string(), entry);
        data.extend_from_slice(bytes);
    }
    let mut header = serde_json::to_vec(&header).expect("a header");
    header.resize(header.len().next_multiple_of(8), b' ');
    let contents = [&(header.len() as u64).to_le_bytes(), header.as_slice(), &data].concat();
    write(dir, name, &contents)
}

/// Writes a file; returns its path.
pub fn write(dir: &Path, name: &str, bytes: &[u8]) -> String {
    let path = dir.join(name);
    std::fs::write(&path, bytes).expect("written");
    path.display().to_string()
}

pub fn f32s(elements: &[f32]) -> Vec<u8> {
    elements.iter().flat_map(|x| x.to_le_bytes()).collect()
}

pub fn i64s(elements: &[i64]) -> Vec<u8> {
    elements.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// Writes a program that all-reduces `rows` rows of 4 KiB on these ranks; returns its path. `rows` is a number, or a symbol
/// that `symbols` declares.
pub fn sum_program(dir: &Path, name: &str, ranks: u32, symbols: &str, rows: &str) -> String {
    let text = format!(
        "program \"{name}\" ranks {ranks}\n{symbols}group @all world\narg %x: f32[{rows}, 1024]\n\
         %y: f32[{rows}, 1024] = all_reduce %x op=sum group=@all\nreturn %y\n"
    );
    write(dir, &format!("{name}.symm"), text.as_bytes())
}
