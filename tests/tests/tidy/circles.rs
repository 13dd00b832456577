//! Files of a crate stand in layers, and so do its folders: none needs another that needs it.
//!
//! What a file needs is read from its text: the names that it imports, and the paths in its code, each followed through
//! re-exports to the file that defines it. A file that only declares modules and re-exports what they have needs none of
//! them by that, as nobody finds a definition there. Calls of methods name no file and are not seen; tests are left out.
//!
//! Folders are compared with the files and folders next to them: one needs another if a file in it, however deep, does.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use petgraph::algo::tarjan_scc;
use petgraph::graph::DiGraph;

use super::{ARROWS, root, rust_files};

type Path = Vec<String>;

/// What is imported, and the name that it has here; `*` for all that a module has.
struct ImportedName {
    path: Path,
    name: String,
}

struct SourceModule {
    file: String,
    defined: BTreeSet<String>,
    uses: Vec<ImportedName>,
    /// Paths in the code.
    paths: Vec<Path>,
}

/// The code of a file without comments and tests.
pub(super) fn code(text: &str) -> String {
    let text = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    text.lines().map(|line| line.split("//").next().unwrap_or_default().to_string() + "\n").collect()
}

pub(super) fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty())
}

/// The name that a line defines, if it defines one.
fn defined(line: &str) -> Option<&str> {
    const ITEM_MODIFIERS: [&str; 9] =
        ["pub", "crate", "super", "in", "self", "unsafe", "async", "extern", "C"];
    const ITEM_KINDS: [&str; 9] =
        ["fn", "struct", "enum", "trait", "type", "const", "static", "union", "macro_rules"];
    let mut words = words(line).skip_while(|word| ITEM_MODIFIERS.contains(word));
    let kind = words.next().filter(|kind| ITEM_KINDS.contains(kind))?;
    let name = words.next()?;
    if (kind, name) == ("const", "fn") { words.next() } else { Some(name) }
}

/// What a tree of imports names.
fn expand(before: &[String], tree: &str, out: &mut Vec<ImportedName>) {
    let tree = tree.trim();
    let Some((path, list)) = tree.split_once('{') else {
        let (path, alias) = tree.split_once(" as ").map_or((tree, None), |(path, alias)| (path, Some(alias)));
        let mut path: Path = before.iter().cloned().chain(path.split("::").map(str::to_string)).collect();
        path.retain(|part| !part.is_empty());
        if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
            path.pop();
        }
        let Some(last) = path.last().cloned() else { return };
        return out.push(ImportedName { path, name: alias.map_or(last, str::to_string) });
    };
    let own = path.split("::").filter(|part| !part.is_empty()).map(str::to_string);
    let before: Path = before.iter().cloned().chain(own).collect();
    let (mut depth, mut start) = (0, 0);
    let list = list.strip_suffix('}').unwrap_or(list);
    for (i, c) in list.char_indices().chain([(list.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                if !list[start..i].trim().is_empty() {
                    expand(&before, &list[start..i], out);
                }
                start = i + 1;
            }
            _ => {}
        }
    }
}

fn module(file: &str, text: &str) -> SourceModule {
    let code = code(text);
    let (mut uses, mut rest, mut open) = (Vec::new(), String::new(), None::<String>);
    for line in code.lines() {
        let start = line.trim_start();
        let import = start.strip_prefix("use ").or_else(|| {
            let (before, tree) = start.split_once(" use ")?;
            before.starts_with("pub").then_some(tree)
        });
        match (&mut open, import) {
            (Some(tree), _) => tree.push_str(start),
            (None, Some(tree)) => open = Some(tree.to_string()),
            (None, None) => rest.extend([line, "\n"]),
        }
        if let Some(tree) = open.take_if(|tree| tree.ends_with(';')) {
            expand(&[], tree.trim_end_matches(';'), &mut uses);
        }
    }
    let joined = rest.split(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | ':')));
    let path = |text: &str| text.split("::").map(str::to_string).collect::<Path>();
    let paths = joined.filter(|text| text.contains("::")).map(path).collect();
    let defined = code.lines().filter_map(defined).map(str::to_string).collect();
    SourceModule { file: file.to_string(), defined, uses, paths }
}

/// The modules of a crate by their paths.
struct CrateModules(BTreeMap<Path, SourceModule>);

impl CrateModules {
    /// Of the texts of its files, by where they lie below its sources.
    fn new(files: &BTreeMap<String, String>) -> CrateModules {
        let mut modules = BTreeMap::new();
        for (file, text) in files {
            let components = file.trim_end_matches(".rs").split('/').map(str::to_string);
            let path: Path =
                components.filter(|part| !["lib", "main", "mod"].contains(&part.as_str())).collect();
            if !path.iter().any(|part| part == "tests") {
                modules.insert(path, module(file, text));
            }
        }
        CrateModules(modules)
    }

    /// A path in a module from the root of the crate; `None` if it leads to another crate.
    fn absolute(&self, of: &[String], path: &[String]) -> Option<Path> {
        let (first, rest) = path.split_first()?;
        let child = || [of, std::slice::from_ref(first)].concat();
        match first.as_str() {
            "crate" => Some(rest.to_vec()),
            "self" => Some([of, rest].concat()),
            "super" => {
                let up = path.iter().take_while(|part| *part == "super").count();
                Some([of.get(..of.len().checked_sub(up)?)?, &path[up..]].concat())
            }
            _ => self.0.contains_key(&child()).then(|| [of, path].concat()),
        }
    }

    /// The module that defines what a path names.
    fn definition(&self, path: &[String], seen: &mut BTreeSet<Path>) -> Option<(Path, String)> {
        if !seen.insert(path.to_vec()) {
            return None;
        }
        let within = (0..=path.len()).rev().find(|&n| self.0.contains_key(&path[..n]))?;
        let (at, name) = (path[..within].to_vec(), path.get(within)?);
        let module = self.0.get(&at)?;
        if module.defined.contains(name) {
            return Some((at, name.clone()));
        }
        module.uses.iter().find_map(|import| {
            let mut target = self.absolute(&at, &import.path)?;
            if import.name == "*" {
                target.pop();
                target.push(name.clone());
            }
            (import.name == *name || import.name == "*").then(|| self.definition(&target, seen)).flatten()
        })
    }

    /// The names that each module takes from others, by these.
    fn needs(&self) -> BTreeMap<[&str; 2], BTreeSet<String>> {
        let mut out: BTreeMap<[&str; 2], BTreeSet<String>> = BTreeMap::new();
        for (at, module) in &self.0 {
            let imported = module.uses.iter().map(|import| import.path.clone());
            let named = module.paths.iter().map(|path| {
                let by = module.uses.iter().find(|import| Some(&import.name) == path.first());
                by.map_or_else(|| path.clone(), |import| [&import.path[..], &path[1..]].concat())
            });
            for path in imported.chain(named).filter_map(|path| self.absolute(at, &path)) {
                if let Some((to, name)) = self.definition(&path, &mut BTreeSet::new())
                    && to != *at
                    && let Some(to) = self.0.get(&to)
                {
                    out.entry([&module.file, &to.file]).or_default().insert(name);
                }
            }
        }
        out
    }

    /// Who needs what of whom among files that need each other.
    fn circles(&self) -> Vec<String> {
        let needs = self.needs();
        let circles = circles_of(needs.keys().map(|[from, to]| (*from, *to)));
        let within = |circle: BTreeSet<&str>| {
            let inside = needs.iter().filter(|(ends, _)| ends.iter().all(|end| circle.contains(end)));
            inside.map(|([from, to], names)| format!("{from} -> {to}: {names:?}")).collect::<Vec<_>>()
        };
        circles.into_iter().flat_map(within).collect()
    }

    /// The folders and files of one folder that need each other: their names, and the needs between them.
    fn folder_circles(&self) -> Vec<(String, Vec<String>)> {
        let path_of_file: BTreeMap<&str, &Path> = self.0.iter().map(|(path, m)| (&*m.file, path)).collect();
        // The needs in each folder by the modules of the folder; the folder's own module is `mod`.
        let mut folders: BTreeMap<Path, BTreeMap<[String; 2], Vec<String>>> = BTreeMap::new();
        for ([from, to], names) in self.needs() {
            let ends = [path_of_file[from], path_of_file[to]];
            let common = ends[0].iter().zip(ends[1]).take_while(|(a, b)| a == b).count();
            let modules = ends.map(|path| path.get(common).map_or("mod", String::as_str).to_string());
            let needs = folders.entry(ends[0][..common].to_vec()).or_default();
            needs.entry(modules).or_default().push(format!("{from} -> {to}: {names:?}"));
        }
        let mut found = Vec::new();
        for (folder, needs) in folders {
            for circle in circles_of(needs.keys().map(|[from, to]| (&**from, &**to))) {
                let names = circle.iter().map(|name| [&folder[..], &[name.to_string()]].concat().join("/"));
                let inside = needs.iter().filter(|(ends, _)| ends.iter().all(|end| circle.contains(&**end)));
                found.push((
                    names.collect::<Vec<_>>().join(" "),
                    inside.flat_map(|(_, needs)| needs.clone()).collect(),
                ));
            }
        }
        found
    }
}

/// The nodes of each circle of a graph.
fn circles_of<'a>(edges: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<BTreeSet<&'a str>> {
    let mut graph: DiGraph<&str, ()> = DiGraph::new();
    let mut nodes = BTreeMap::new();
    for (from, to) in edges {
        let [from, to] = [from, to].map(|name| *nodes.entry(name).or_insert_with(|| graph.add_node(name)));
        graph.add_edge(from, to, ());
    }
    let components = tarjan_scc(&graph).into_iter().filter(|component| component.len() > 1);
    components.map(|component| component.into_iter().map(|node| graph[node]).collect()).collect()
}

/// The folders of all crates below a folder, by the root.
fn crates(dir: PathBuf, out: &mut Vec<String>) {
    if dir.join("Cargo.toml").exists() && dir.join("src").exists() {
        out.push(dir.strip_prefix(root()).expect("below the root").display().to_string());
    }
    for entry in std::fs::read_dir(dir).expect("the folder is readable").flatten() {
        let name = entry.file_name();
        if entry.path().is_dir() && name != "target" && !name.to_string_lossy().starts_with('.') {
            crates(entry.path(), out);
        }
    }
}

fn crate_modules(dir: &str) -> CrateModules {
    let sources = root().join(dir).join("src");
    let mut files = Vec::new();
    rust_files(&sources, &mut files);
    let name = |p: &std::path::Path| p.strip_prefix(&sources).expect("below it").display().to_string();
    CrateModules::new(
        &files.iter().map(|p| (name(p), std::fs::read_to_string(p).expect("UTF-8 source"))).collect(),
    )
}

#[test]
fn no_file_or_folder_needs_one_that_needs_it() {
    let mut dirs = Vec::new();
    crates(root(), &mut dirs);
    let listed: BTreeSet<&str> = ARROWS.iter().map(|(dir, _)| *dir).collect();
    assert_eq!(dirs.iter().map(String::as_str).collect::<BTreeSet<_>>(), listed, "crates with arrows");
    for dir in dirs {
        let modules = crate_modules(&dir);
        let circles = modules.circles();
        assert!(circles.is_empty(), "{dir}: what both need belongs below both: {circles:#?}");
        let circles = modules.folder_circles();
        assert!(circles.is_empty(), "{dir}: circles of folders: {circles:#?}");
    }
}

#[test]
fn names_are_followed_to_where_they_are_defined() {
    let circles = |files: &[(&str, &str)]| {
        let files = files.iter().map(|(name, text)| (name.to_string(), text.to_string()));
        CrateModules::new(&files.collect()).circles()
    };
    let lib = ("lib.rs", "mod a;\nmod b;\npub use a::A;\npub use b::*;\n");
    // By a re-export, by a path in the code, through a glob.
    let a = |text| ("a.rs", text);
    let b = ("b.rs", "use crate::A;\npub struct B(A);\n");
    let expected = ["a.rs -> b.rs: {\"B\"}", "b.rs -> a.rs: {\"A\"}"];
    assert_eq!(circles(&[lib, a("use super::{b::{self, B as Other}, c};\npub struct A;\n"), b]), expected);
    assert_eq!(circles(&[lib, a("pub struct A;\nfn f(_: crate::B) {}\n"), b]), expected);
    assert_eq!(circles(&[lib, a("use crate::b;\npub struct A;\nfn f(_: b::B) {}\n"), b]), expected);
    // Tests and comments need nothing, nor does who only re-exports.
    let tested = "pub struct A;\n// crate::B\n\n#[cfg(test)]\nmod tests {\n    use crate::B;\n}\n";
    assert_eq!(circles(&[lib, a(tested), b]), [""; 0]);
    assert_eq!(
        circles(&[("lib.rs", "mod a;\npub use a::A;\n"), a("use std::fmt;\npub struct A;\n")]),
        [""; 0]
    );
}

#[test]
fn finds_circles_of_folders_without_circles_of_files() {
    let files = [
        ("lib.rs", "mod a;\nmod b;\n"),
        ("a/mod.rs", "pub mod low;\nmod high;\n"),
        ("a/low.rs", "pub struct Low;\n"),
        ("a/high.rs", "use crate::b::Middle;\npub struct High(Middle);\n"),
        ("b.rs", "use crate::a::low::Low;\npub struct Middle(Low);\n"),
    ];
    let modules = CrateModules::new(&files.map(|(name, text)| (name.to_string(), text.to_string())).into());
    assert_eq!(modules.circles(), [""; 0]);
    let needs = ["a/high.rs -> b.rs: {\"Middle\"}", "b.rs -> a/low.rs: {\"Low\"}"].map(str::to_string);
    assert_eq!(modules.folder_circles(), [("a b".to_string(), needs.to_vec())]);
}
