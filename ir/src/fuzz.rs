//! The properties of reading arbitrary bytes, shared by the fuzz target and the tests.

use crate::layout;
use crate::symbol::Symbol;
use crate::text::{parse, parse_dim, print};
use crate::verify::verify;

/// Panics if reading these bytes violates a guarantee of the text form. A text that can be read prints as a
/// text that reads as the same graph and prints identically. Nothing panics: neither reading nor verifying nor,
/// for a verified graph, deriving the layouts.
pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let symbols = [("n", 0, 9), ("tokens", 2, 4096)];
    let symbols = symbols.map(|(name, min, max)| Symbol { name: name.into(), min, max, alias: None });
    let symbols = symbols.into_iter().collect();
    if let Ok(dim) = parse_dim(text, &symbols) {
        let reparsed = parse_dim(&dim.display(&symbols).to_string(), &symbols);
        assert_eq!(Ok(&dim), reparsed.as_ref());
        let (low, high) = dim.bounds(&symbols);
        assert!(low <= high, "{dim:?} has no value between {low} and {high}");
    }
    match parse(text) {
        Ok(graph) => {
            let printed = print(&graph);
            let reparsed = parse(&printed).unwrap_or_else(|e| panic!("printed text does not read: {e}"));
            assert_eq!(graph, reparsed, "the printed text reads as another graph");
            assert_eq!(printed, print(&reparsed));
            if verify(&graph).is_ok() {
                layout::compute_layouts(&graph);
            }
        }
        Err(error) => {
            assert!(error.line >= 1 && error.column >= 1 && !error.to_string().is_empty());
        }
    }
}
