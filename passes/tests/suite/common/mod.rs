//! The runner of data-driven tests.
//!
//! A `.symm` file in a folder of cases holds cases one after another:
//!
//! ```text
//! //# name: words that the suite understands
//! program …
//! //=>
//! the output of the pass
//! ```
//!
//! `UPDATE_EXPECT=1 cargo test` replaces the expected outputs by the actual ones.

// Each suite uses only a part.
#![allow(dead_code)]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use symmc_ir::dim::SymbolBindings;
use symmc_ir::interp::{self, SeedConfig, seeded_inputs};
use symmc_ir::{Graph, Tensor, text};

pub struct ProgramCase {
    /// The location of the case, for messages.
    pub at: String,
    /// The words after its name.
    pub words: Vec<String>,
    pub program: Graph,
}

/// Runs `pass` on every case of the files of `tests/<folder>` and compares the output.
pub fn check(folder: &str, pass: impl Fn(&ProgramCase) -> String) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder);
    let mut files: Vec<PathBuf> = std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    let mut failures = String::new();
    for file in files {
        let old = std::fs::read_to_string(&file).unwrap();
        let mut new = String::new();
        for part in old.split("//# ").skip(1) {
            let (head, body) = part.split_once('\n').unwrap();
            let (name, words) = head.split_once(':').unwrap_or((head, ""));
            let (program, expected) = body.split_once("//=>\n").unwrap_or((body, ""));
            let location = format!("{}: {name}", file.file_name().unwrap().to_string_lossy());
            let words = words.split([' ', ',']).filter(|w| !w.is_empty()).map(String::from).collect();
            let graph = text::parse(program).unwrap_or_else(|e| panic!("{location}: {e}"));
            symmc_ir::verify::verify(&graph).unwrap_or_else(|e| panic!("{location}: {}", e[0]));
            let output = pass(&ProgramCase { at: location.clone(), words, program: graph });
            if output.trim() != expected.trim() {
                write!(failures, "\n== {location}\n-- expected\n{}\n-- found\n{output}", expected.trim())
                    .unwrap();
            }
            write!(new, "//# {head}\n{}\n//=>\n{}\n\n", program.trim(), output.trim()).unwrap();
        }
        if std::env::var_os("UPDATE_EXPECT").is_some() && old != new {
            std::fs::write(&file, new).unwrap();
        }
    }
    assert!(failures.is_empty() || std::env::var_os("UPDATE_EXPECT").is_some(), "{failures}");
}

/// Runs two programs with the same inputs on the same seeded inputs and returns the largest difference of
/// their outputs relative to the largest magnitude, or panics if the outputs have other types.
pub fn difference(a: &Graph, b: &Graph, bindings: &SymbolBindings, seed: u64) -> f64 {
    let ranks = 0..a.ranks.unwrap();
    let inputs: Vec<Vec<Arc<Tensor>>> =
        ranks.map(|rank| seeded_inputs(a, bindings, &SeedConfig::new(seed), rank).unwrap()).collect();
    // A pass may append constants.
    let with_constants = |graph: &Graph| -> Vec<Vec<Arc<Tensor>>> {
        let data = |i: usize| graph.inputs.values().nth(i).and_then(|input| input.data.clone()).unwrap();
        inputs
            .iter()
            .map(|own| own.iter().cloned().chain((own.len()..graph.inputs.len()).map(data)).collect())
            .collect()
    };
    let actual = interp::run(b, bindings, &with_constants(b)).unwrap();
    let expected = interp::run(a, bindings, &inputs).unwrap();
    let mut worst = 0.0_f64;
    for (x, y) in actual.iter().flatten().zip(expected.iter().flatten()) {
        assert_eq!((x.dtype(), x.shape()), (y.dtype(), y.shape()));
        let scale = y.to_f64().iter().fold(0.0_f64, |m, v| if v.is_finite() { m.max(v.abs()) } else { m });
        for (p, q) in x.to_f64().into_iter().zip(y.to_f64()) {
            let is_same = p == q || (p.is_nan() && q.is_nan());
            worst = worst.max(if is_same { 0.0 } else { (p - q).abs() / scale.max(1e-30) });
        }
    }
    worst
}

/// Values for all symbols: the `which`-th of a few within their bounds.
pub fn bindings(graph: &Graph, which: i64) -> SymbolBindings {
    let mut out = SymbolBindings::new();
    for (id, s) in graph.symbols.iter() {
        out.set(id, (s.min + which).min(s.max));
    }
    out
}
