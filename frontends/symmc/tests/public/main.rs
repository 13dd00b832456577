//! The public items of the crate are those of `public.txt`, and what they name is public too.
//!
//! The list is read from the sources, not from a compiled crate: what the crate defines itself with fields, variants,
//! methods and signatures, what it takes from inner crates as names. `UPDATE_EXPECT=1 cargo test -p symmc --test public`
//! writes it again after a change that is meant; what stands there before a release is a promise.

mod list;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use list::ItemList;
use tree::ModuleTree;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf()
}

/// The sources below a folder, by their path from there.
fn sources(folder: &Path, from: &Path, out: &mut BTreeMap<String, String>) {
    for entry in std::fs::read_dir(folder).expect("the folder is readable").flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, from, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let name = path.strip_prefix(from).expect("below it").display().to_string();
            out.insert(name, std::fs::read_to_string(&path).expect("UTF-8 source"));
        }
    }
}

fn facade() -> ItemList {
    let mut files = BTreeMap::new();
    sources(&folder().join("src"), &folder().join("src"), &mut files);
    ItemList::of(&ModuleTree::of(&files), "symmc")
}

#[test]
fn the_public_items_are_those_of_the_list() {
    let path = folder().join("tests/public/public.txt");
    let actual: String = facade().lines.iter().map(|line| format!("{line}\n")).collect();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        return std::fs::write(&path, actual).expect("written");
    }
    let listed = std::fs::read_to_string(&path).expect("the list");
    let [old, new] = [&listed, &actual].map(|text| text.lines().collect::<BTreeSet<_>>());
    let gone = old.difference(&new).map(|line| format!("- {line}\n"));
    let come = new.difference(&old).map(|line| format!("+ {line}\n"));
    let changed: String = gone.chain(come).collect();
    assert!(
        listed == actual,
        "the public items are not those of {}:\n{changed}UPDATE_EXPECT=1 writes what is found; the CHANGELOG tells users",
        path.display()
    );
}

#[test]
fn signatures_name_nothing_that_is_not_exported() {
    let list = facade();
    // Callers of inner crates get the errors of these crates.
    let meant = ["RunError in impl From<RunError> for symmc::Error"];
    assert_eq!(list.leaks, meant, "what is not exported is no part of a signature");
    assert!(list.lines.len() > 150, "only {} items were found", list.lines.len());
}

/// The list of a crate of these files.
fn list(files: &[(&str, &str)]) -> ItemList {
    let files = files.iter().map(|(name, text)| (name.to_string(), text.to_string())).collect();
    ItemList::of(&ModuleTree::of(&files), "own")
}

const ROOT_SOURCE: &str = r#"
    mod inner;
    mod secret { pub struct Hidden; }
    pub mod open;
    pub use inner::{Thing, Kind as Sort, make};
    pub use foreign::deep::Name;
    #[cfg(feature = "gpu")]
    pub use foreign::Device;
    #[cfg(not(feature = "gpu"))]
    mod stand_in { pub fn absent() {} }
    #[cfg(test)]
    mod tests { pub fn none() {} }
"#;

const INNER_SOURCE: &str = r#"
    use std::path::Path;
    use foreign::deep::Name;
    use crate::secret::Hidden;
    /// A page.
    #[derive(Clone, Debug)]
    #[non_exhaustive]
    pub struct Thing { pub name: Option<Name>, pub(crate) other: u8, last: Hidden }
    impl Thing {
        pub fn new<T: Into<String>>(path: &Path, all: impl IntoIterator<Item = (T, [u8; 2])>) -> Self { loop {} }
        pub(crate) fn own(&self) {}
        fn private(&self) {}
        pub unsafe fn lend(&mut self, from: *const u8, to: *mut u8) {}
    }
    impl From<u8> for Thing { fn from(x: u8) -> Self { loop {} } }
    pub enum Kind { One, Two { why: String }, Three(Thing, u8) }
    pub fn make(kind: Kind) -> Result<Thing, String> { loop {} }
    pub fn unlisted() {}
"#;

const OPEN_SOURCE: &str =
    "pub const MOST: usize = 4;\npub use crate::make;\npub type All = Vec<super::Thing>;\n";

#[test]
fn list_contains_exactly_the_public_items() {
    let public_list = list(&[("lib.rs", ROOT_SOURCE), ("inner.rs", INNER_SOURCE), ("open.rs", OPEN_SOURCE)]);
    let expected = [
        "pub enum own::Sort",
        "pub fn own::Thing::new<T: Into<String>>(path: &Path, all: impl IntoIterator<Item = (T, [u8; 2])>) -> Self",
        "pub fn own::make(kind: Kind) -> Result<Thing, String>",
        "pub mod own::open",
        "pub own::Sort::One",
        "pub own::Sort::Three(Thing, u8)",
        "pub own::Sort::Two { why: String }",
        "pub own::Thing::name: Option<Name>",
        "pub unsafe fn own::Thing::lend(&mut self, from: *const u8, to: *mut u8)",
        "pub struct own::Thing #[non_exhaustive] { .. }: Clone, Debug, From<u8>",
        "pub const own::open::MOST: usize",
        "pub type own::open::All = Vec<super::Thing>",
        "pub use own::Device = foreign::Device [gpu]",
        "pub use own::Name = foreign::deep::Name",
        "pub use own::open::make = own::make",
    ];
    let expected: BTreeSet<&str> = expected.into();
    let lines: BTreeSet<&str> = public_list.lines.iter().map(String::as_str).collect();
    assert_eq!(lines, expected);
    assert_eq!(public_list.leaks, [""; 0]);
}

#[test]
fn list_changes_only_with_public_items() {
    let before = list(&[("lib.rs", ROOT_SOURCE), ("inner.rs", INNER_SOURCE), ("open.rs", OPEN_SOURCE)]).lines;
    let with = |from: &str, to: &str| {
        assert!(INNER_SOURCE.contains(from), "{from}");
        list(&[
            ("lib.rs", ROOT_SOURCE),
            ("inner.rs", &INNER_SOURCE.replace(from, to)),
            ("open.rs", OPEN_SOURCE),
        ])
        .lines
    };
    for (from, to) in [
        ("pub name:", "pub more: u8, pub name:"),
        ("#[non_exhaustive]", ""),
        ("Clone, Debug", "Debug"),
        ("fn private", "pub fn private"),
        ("&Path", "&mut Path"),
        ("One,", ""),
        ("why: String", "why: u8"),
        ("From<u8>", "From<u16>"),
        ("kind: Kind)", "kind: &Kind)"),
    ] {
        assert_ne!(with(from, to), before, "{to}");
    }
    for (from, to) in [
        ("fn private", "fn another"),
        ("A page.", "A leaf."),
        ("other: u8", "else_: u16"),
        ("loop {}", "panic!()"),
    ] {
        assert_eq!(with(from, to), before, "{to}");
    }
}

#[test]
fn a_signature_that_names_what_is_not_exported_leaks() {
    for (from, to, leak) in [
        ("kind: Kind)", "kind: Hidden)", "Hidden"),
        ("pub name: Option<Name>", "pub name: Option<foreign::Other>", "foreign::Other"),
        ("&Path,", "&Path, map: &mut Map<String, u8>,", "Map"),
        ("Two { why: String }", "Two { why: Vec<Hidden> }", "Hidden"),
        ("From<u8>", "From<Hidden>", "Hidden"),
    ] {
        let changed = INNER_SOURCE.replace(from, to);
        let leaks = list(&[("lib.rs", ROOT_SOURCE), ("inner.rs", &changed), ("open.rs", OPEN_SOURCE)]).leaks;
        assert!(leaks.len() == 1 && leaks[0].starts_with(&format!("{leak} in ")), "{to}: {leaks:?}");
    }
}
