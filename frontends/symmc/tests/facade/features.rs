//! Code that names a crate of a feature is behind that feature, so that builds without it compile.
//!
//! Told from the sources, because a build with all features does not show it and one without takes its time.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The crates that each feature takes in.
const GATED: [(&str, &str); 3] = [("symmc_cuda", "cuda"), ("symmc_onnx", "onnx"), ("symmc_torch", "torch")];

/// The findings in a module: code outside of its feature, and the modules in files with the features of each.
#[derive(Default)]
struct ModuleFindings {
    bare: Vec<String>,
    files: Vec<(String, Vec<String>)>,
}

/// The features of a `cfg`, if all of what it asks for are features or this is a test; none of one that asks for less.
fn features(attribute: &TokenStream) -> Vec<String> {
    let text: String = attribute.to_string().split_whitespace().collect();
    let inner = text.strip_prefix("cfg(").and_then(|t| t.strip_suffix(')')).unwrap_or_default();
    if inner.starts_with("any(") || inner.starts_with("not(") {
        return Vec::new();
    }
    let after = inner.split("feature=\"").skip(1);
    after.filter_map(|t| t.split('"').next()).map(String::from).collect()
}

/// Walks tokens that stand behind these features.
fn walk(tokens: TokenStream, behind: &[String], found: &mut ModuleFindings) {
    let mut own: Vec<String> = Vec::new();
    let mut before = String::new();
    // A comma ends what an attribute is for, but not within an item's signature.
    let mut item = false;
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        let enabled = [behind, &own].concat();
        match &token {
            TokenTree::Punct(p) if p.as_char() == '#' => {
                // An attribute is for all up to the end of the item or the statement that follows.
                if let Some(TokenTree::Group(g)) = tokens.next_if(|t| matches!(t, TokenTree::Group(_))) {
                    own.extend(features(&g.stream()));
                }
            }
            TokenTree::Group(g) => {
                walk(g.stream(), &enabled, found);
                if g.delimiter() == Delimiter::Brace {
                    (own, item) = (Vec::new(), false);
                }
            }
            TokenTree::Punct(p) if p.as_char() == ';' || p.as_char() == ',' && !item => {
                (own, item) = (Vec::new(), false);
            }
            TokenTree::Ident(ident) => {
                let name = ident.to_string();
                let file = matches!(tokens.peek(), Some(TokenTree::Punct(p)) if p.as_char() == ';');
                if before == "mod" && file {
                    found.files.push((name.clone(), enabled));
                } else if let Some((of, feature)) = GATED.iter().find(|(of, _)| *of == name)
                    && !enabled.iter().any(|f| f == feature)
                {
                    found.bare.push(format!("{of} stands without the feature {feature}"));
                }
                item |= ["const", "enum", "fn", "impl", "static", "struct", "trait", "type", "use"]
                    .contains(&&*name);
                before = name;
            }
            _ => {}
        }
    }
}

/// The code of a crate with these files that is outside of its feature.
fn bare(files: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let mut out = Vec::new();
    let mut open = vec![(PathBuf::from("lib.rs"), PathBuf::new(), Vec::new())];
    while let Some((file, folder, behind)) = open.pop() {
        let text = files.get(&file).unwrap_or_else(|| panic!("there is no {}", file.display()));
        let tokens: TokenStream = text.parse().unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let mut findings = ModuleFindings::default();
        walk(tokens, &behind, &mut findings);
        out.extend(findings.bare.iter().map(|what| format!("{}: {what}", file.display())));
        for (name, behind) in findings.files {
            let inner = folder.join(&name);
            let beside = inner.with_extension("rs");
            let file = if files.contains_key(&beside) { beside } else { inner.join("mod.rs") };
            open.push((file, inner, behind));
        }
    }
    out
}

fn sources(folder: &Path, from: &Path, out: &mut BTreeMap<PathBuf, String>) {
    for entry in std::fs::read_dir(folder).expect("the folder is readable").flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, from, out);
        } else {
            let name = path.strip_prefix(from).expect("below it").to_path_buf();
            out.insert(name, std::fs::read_to_string(&path).expect("UTF-8 source"));
        }
    }
}

#[test]
fn crates_of_features_stand_behind_them() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = BTreeMap::new();
    sources(&folder, &folder, &mut files);
    assert_eq!(bare(&files), [""; 0]);
}

#[test]
fn finds_code_that_lacks_its_feature_gate() {
    let count_bare = |root: &str, inner: &str| {
        let files = [("lib.rs", root), ("inner.rs", inner)];
        bare(&files.map(|(name, text)| (PathBuf::from(name), text.to_string())).into()).len()
    };
    let gate = "#[cfg(feature = \"cuda\")]";
    assert_eq!(count_bare("mod inner;", "use symmc_cuda::x;"), 1);
    assert_eq!(count_bare(&format!("{gate} mod inner;"), "use symmc_cuda::x; fn f() { symmc_cuda::g() }"), 0);
    assert_eq!(count_bare(&format!("{gate} pub mod inner;"), "use symmc_torch::x;"), 1);
    // A gate is for one item or statement.
    assert_eq!(count_bare("mod inner;", &format!("{gate} use symmc_cuda::x; use symmc_cuda::y;")), 1);
    let items = format!(
        "{gate} fn f() -> Result<u8, u8> {{ symmc_cuda::g() }} struct S {{ {gate} a: u8, b: symmc_cuda::T }}"
    );
    assert_eq!(count_bare("mod inner;", &items), 1);
    let body = format!("fn f() {{ {gate} if a {{ symmc_cuda::g(); }} if b {{ symmc_cuda::g(); }} }}");
    assert_eq!(count_bare("mod inner;", &body), 1);
    assert_eq!(count_bare("mod inner;", &format!("{gate} fn f() {{ symmc_cuda::g() }} fn h() {{}}")), 0);
    for (cfg, bare) in [
        ("all(test, feature = \"cuda\")", 0),
        ("any(test, feature = \"cuda\")", 1),
        ("not(feature = \"cuda\")", 1),
    ] {
        assert_eq!(
            count_bare("mod inner;", &format!("#[cfg({cfg})] mod t {{ use symmc_cuda::x; }}")),
            bare,
            "{cfg}"
        );
    }
}
