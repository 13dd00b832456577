//! What is left of the collectives of realistic programs (`tests/programs/optimised`).
//!
//! Each file is a program, and as comments behind it the collectives of its plan for as many H200 as it has ranks: kind, ranks of the group
//! and bytes, and how many of them run as one step with others. A line `// numerics: CLASS` in front of the program allows a class. `UPDATE_EXPECT=1 cargo test` writes what was found.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use symmc::{CompileConfig, MachineProfile, Numerics, Program};
use symmc_ir::{DispatchForm, Graph, Op, text};
use symmc_tests::root;

/// How a line of what is expected begins.
const EXPECTED: &str = "//=>";

/// The collectives of a program: the number and the bytes of all, how many run as one step with others, then equal ones in a line, in order
/// of their first.
fn collectives(graph: &Graph) -> String {
    let mut lines: Vec<(String, usize)> = Vec::new();
    let (mut count, mut all_bytes) = (0, 0);
    for node in graph.nodes.values() {
        let Op::Collective(c) = &node.op else { continue };
        let values = node.inputs.iter().chain(&node.outputs);
        let bytes =
            values.map(|&v| graph.ty(v).bytes().upper_bound(&graph.symbols)).max().unwrap_or_default();
        let ranks = graph.group_size(c.group).unwrap_or_default();
        let line = format!("{} of {ranks} ranks, {bytes} bytes", c.kind.name());
        (count, all_bytes) = (count + 1, all_bytes + bytes);
        match lines.iter_mut().find(|(other, _)| *other == line) {
            Some((_, times)) => *times += 1,
            None => lines.push((line, 1)),
        }
    }
    let mut out = format!("{count} collectives, {all_bytes} bytes");
    let sets = graph.dispatches.iter().filter(|d| d.form == DispatchForm::Collectives);
    let sets: Vec<usize> = sets.map(|d| d.nodes().count()).collect();
    if !sets.is_empty() {
        let steps = if sets.len() == 1 { "step" } else { "steps" };
        write!(out, ", {} of them in {} {steps}", sets.iter().sum::<usize>(), sets.len()).expect("a string");
    }
    for (line, times) in lines {
        write!(out, "\n{EXPECTED}   {times} × {line}").expect("a string");
    }
    out
}

/// Every collective of the planned programs is part of a decision, and for every collective of the source a decision or a replacement
/// says what became of it, with names that are explained in turn.
fn expect_explained(file: &Path, source: &Graph, plan: &symmc::CheckedPlan) {
    let path = file.display();
    let names = |graph: &Graph| -> Vec<String> {
        let collectives = graph.nodes.iter().filter(|(_, node)| node.op.as_collective().is_some());
        collectives.map(|(id, _)| graph.node_name(id).to_string()).collect()
    };
    let decided: BTreeSet<&str> =
        plan.buckets.iter().flat_map(|b| &b.decisions).map(|d| d.collective.as_str()).collect();
    for bucket in &plan.buckets {
        let planned = text::parse(&plan.programs[bucket.program]).expect("a planned program");
        let run: BTreeSet<&String> = bucket.decisions.iter().flat_map(|d| &d.nodes).collect();
        for name in names(&planned) {
            assert!(run.contains(&name), "{path}: no decision is about %{name} of the planned program");
        }
    }
    let replaced: BTreeSet<&str> = plan.replacements.iter().map(|r| r.collective.as_str()).collect();
    for name in names(source).iter().chain(plan.replacements.iter().flat_map(|r| &r.by)) {
        let is_explained = decided.contains(&name[..]) || replaced.contains(&name[..]);
        assert!(is_explained, "{path}: nothing says what became of %{name}");
    }
}

fn found(file: &Path, text: &str) -> String {
    let path = file.display();
    let graph = text::parse(text).unwrap_or_else(|e| panic!("{path}: {e}"));
    let machine = format!("h200x{}", graph.ranks.expect("a number of ranks"));
    let profile = MachineProfile::builtin(&machine).unwrap_or_else(|| panic!("{path}: no machine {machine}"));
    let numerics = text.lines().find_map(|line| line.strip_prefix("// numerics: "));
    let numerics: Numerics =
        numerics.map_or(Ok(Numerics::EXACT), str::parse).unwrap_or_else(|e| panic!("{path}: {e}"));
    let program = Program::from_graph(graph.clone()).unwrap_or_else(|e| panic!("{path}: {e}"));
    let config = CompileConfig::default().with_profile(profile).with_numerics(numerics);
    let plan = symmc::compile(&program, &config).unwrap_or_else(|e| panic!("{path}: {e}"));
    expect_explained(file, &graph, &plan);
    let before = collectives(&graph);
    let before = before.lines().next().unwrap_or_default();
    let mut out = format!("{EXPECTED} before: {before}\n");
    for planned in &plan.programs {
        let planned = text::parse(planned).unwrap_or_else(|e| panic!("{path}: {e}"));
        writeln!(out, "{EXPECTED} planned: {}", collectives(&planned)).expect("a string");
    }
    out
}

#[test]
fn programs_keep_their_better_forms() {
    let folder = root().join("tests/programs/optimised");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).expect("the folder is there").map(|e| e.expect("a file").path()).collect();
    files.sort();
    assert!(files.len() > 30);
    let mut failures = String::new();
    for file in files {
        let old = std::fs::read_to_string(&file).expect("a text");
        let (program, expected) = old.split_at(old.find(EXPECTED).unwrap_or(old.len()));
        let actual = found(&file, program);
        if actual != expected {
            write!(failures, "\n{}\n{actual}", file.display()).expect("a string");
            if std::env::var_os("UPDATE_EXPECT").is_some() {
                std::fs::write(&file, format!("{}\n\n{actual}", program.trim_end()))
                    .expect("a writable file");
            }
        }
    }
    assert!(failures.is_empty() || std::env::var_os("UPDATE_EXPECT").is_some(), "{failures}");
}
