//! The text form over the corpus: written text reads back as the same graph.

#[path = "text/errors.rs"]
mod errors;
#[path = "text/random.rs"]
mod random;
#[path = "text/reference.rs"]
mod reference;

use std::fs;
use std::path::PathBuf;

use symmc_ir::text::{op_name, op_names, parse, print};
use symmc_ir::verify::verify;

fn corpus() -> Vec<(PathBuf, String)> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let mut files: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|f| f.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

#[test]
fn corpus_prints_as_it_is_written() {
    for (path, text) in corpus() {
        let graph = parse(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let printed = print(&graph);
        for (printed, written) in printed.lines().zip(text.lines()) {
            assert_eq!(printed, written, "{}", path.display());
        }
        assert_eq!(printed, text, "{}", path.display());
        assert_eq!(parse(&print(&graph)).unwrap(), graph, "{}", path.display());
    }
}

#[test]
fn corpus_has_every_op() {
    let graphs: Vec<_> = corpus().iter().map(|(_, text)| parse(text).unwrap()).collect();
    let used: Vec<&str> = graphs.iter().flat_map(|g| g.nodes.values()).map(|n| op_name(&n.op)).collect();
    for name in op_names() {
        assert!(used.contains(&name), "no corpus file has {name}");
    }
}

#[test]
fn corpus_verifies() {
    for (path, text) in corpus() {
        // names.symm has names that only the text form allows.
        if path.ends_with("names.symm") {
            continue;
        }
        let graph = parse(&text).unwrap();
        verify(&graph).unwrap_or_else(|v| panic!("{}: {v:?}", path.display()));
    }
}
