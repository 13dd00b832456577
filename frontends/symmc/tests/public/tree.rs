//! The modules of a crate from its sources, and what a path means in each of them.

use std::collections::BTreeMap;

use quote::ToTokens;
use syn::{Attribute, Item, UseTree, Visibility};

/// The path of a module or an item from the root of the crate.
pub type Path = Vec<String>;

/// A module.
#[derive(Default)]
pub struct SourceModule {
    pub public: bool,
    /// The features that it needs.
    pub features: Vec<String>,
    pub items: Vec<Item>,
    /// The names that its `use` declarations import.
    pub uses: Vec<ImportedName>,
}

/// A name that a `use` declaration brings in.
#[derive(Clone)]
pub struct ImportedName {
    pub name: String,
    pub path: Path,
    pub public: bool,
    pub features: Vec<String>,
}

/// The item that a path names.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum PathTarget {
    /// An item or a module of the crate.
    Own(Path),
    /// Something of another crate.
    Foreign(Path),
}

/// The modules of a crate by their paths.
pub struct ModuleTree(pub BTreeMap<Path, SourceModule>);

impl ModuleTree {
    /// The tree of these files, by their paths from the folder of `lib.rs`. Tests and what stands in for a feature that is
    /// off are left out.
    pub fn of(files: &BTreeMap<String, String>) -> ModuleTree {
        let mut tree = ModuleTree(BTreeMap::new());
        let root = parsed(files, &["lib.rs".to_string()]);
        tree.add(files, Path::new(), (true, Vec::new()), root);
        tree
    }

    fn add(
        &mut self,
        files: &BTreeMap<String, String>,
        path: Path,
        (public, features): (bool, Vec<String>),
        items: Vec<Item>,
    ) {
        let mut module = SourceModule { public, features: features.clone(), ..SourceModule::default() };
        for item in items {
            match item {
                Item::Mod(m) => {
                    let Some(needs) = needed(&m.attrs) else { continue };
                    let mut child = path.clone();
                    child.push(m.ident.to_string());
                    let items = m.content.map(|(_, items)| items);
                    let file = child.join("/");
                    let items = items
                        .unwrap_or_else(|| parsed(files, &[format!("{file}.rs"), format!("{file}/mod.rs")]));
                    let features = [features.clone(), needs].concat();
                    self.add(files, child, (public && is_public(&m.vis), features), items);
                }
                Item::Use(u) => {
                    let Some(features) = needed(&u.attrs) else { continue };
                    let mut names = Vec::new();
                    flatten(&u.tree, &mut Vec::new(), &mut names);
                    let public = is_public(&u.vis);
                    let brought =
                        |(name, path)| ImportedName { name, path, public, features: features.clone() };
                    module.uses.extend(names.into_iter().map(brought));
                }
                item => module.items.push(item),
            }
        }
        self.0.insert(path, module);
    }

    /// The item that a path names in a module.
    pub fn resolve(&self, module: &[String], path: &[String]) -> PathTarget {
        self.resolve_within(module, path, 16)
    }

    fn resolve_within(&self, module: &[String], path: &[String], depth: usize) -> PathTarget {
        let Some((head, rest)) = path.split_first() else { return PathTarget::Own(module.to_vec()) };
        let below = |from: &[String]| self.member(from, rest, depth);
        match head.as_str() {
            _ if depth == 0 => PathTarget::Foreign(path.to_vec()),
            "crate" => below(&[]),
            "self" => below(module),
            "super" => below(&module[..module.len().saturating_sub(1)]),
            _ if self.has(module, head) => self.member(module, path, depth),
            _ => PathTarget::Foreign(path.to_vec()),
        }
    }

    /// Whether a module has something of this name: an item, a module, or what a `use` brings in.
    fn has(&self, module: &[String], name: &str) -> bool {
        let Some(found) = self.0.get(module) else { return false };
        let child = [module, &[name.to_string()]].concat();
        self.0.contains_key(&child)
            || found.uses.iter().any(|u| u.name == name)
            || found.items.iter().any(|item| name_of(item).is_some_and(|n| n == name))
    }

    /// The item that a path names, from a module on.
    fn member(&self, module: &[String], path: &[String], depth: usize) -> PathTarget {
        let Some((head, rest)) = path.split_first() else { return PathTarget::Own(module.to_vec()) };
        let child = [module, std::slice::from_ref(head)].concat();
        if self.0.contains_key(&child) {
            return self.member(&child, rest, depth);
        }
        let uses = self.0.get(module).map_or(&[][..], |m| &m.uses);
        match uses.iter().find(|u| u.name == *head) {
            Some(u) if depth > 0 && u.path.first() != Some(head) => {
                self.resolve_within(module, &[&u.path[..], rest].concat(), depth - 1)
            }
            Some(u) => PathTarget::Foreign([&u.path[..], rest].concat()),
            None => PathTarget::Own([&child[..], rest].concat()),
        }
    }
}

fn parsed(files: &BTreeMap<String, String>, names: &[String]) -> Vec<Item> {
    let text = names.iter().find_map(|name| files.get(name));
    let text = text.unwrap_or_else(|| panic!("there is none of {names:?}"));
    syn::parse_file(text).unwrap_or_else(|e| panic!("{names:?}: {e}")).items
}

/// The names that a `use` brings in with the path of each.
fn flatten(tree: &UseTree, path: &mut Path, out: &mut Vec<(String, Path)>) {
    let with = |path: &Path, name: String| [&path[..], &[name]].concat();
    match tree {
        UseTree::Path(p) => {
            path.push(p.ident.to_string());
            flatten(&p.tree, path, out);
            path.pop();
        }
        UseTree::Name(n) if n.ident == "self" => {
            out.push((path.last().cloned().unwrap_or_default(), path.clone()));
        }
        UseTree::Name(n) => out.push((n.ident.to_string(), with(path, n.ident.to_string()))),
        UseTree::Rename(r) if r.ident == "self" => out.push((r.rename.to_string(), path.clone())),
        UseTree::Rename(r) => out.push((r.rename.to_string(), with(path, r.ident.to_string()))),
        UseTree::Group(g) => g.items.iter().for_each(|tree| flatten(tree, path, out)),
        // In tests alone; what is exported is named.
        _ => out.push(("*".into(), path.clone())),
    }
}

pub fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

/// The features that an item needs; none where it is for tests, or for builds without a feature.
pub fn needed(attributes: &[Attribute]) -> Option<Vec<String>> {
    let mut features = Vec::new();
    for attribute in attributes.iter().filter(|a| a.path().is_ident("cfg")) {
        let text: String = attribute.meta.to_token_stream().to_string().split_whitespace().collect();
        if text.contains("test") || text.contains("not(") {
            return None;
        }
        features
            .extend(text.split("feature=\"").skip(1).filter_map(|t| t.split('"').next()).map(String::from));
    }
    Some(features)
}

/// The name of what an item defines.
pub fn name_of(item: &Item) -> Option<String> {
    Some(match item {
        Item::Const(i) => i.ident.to_string(),
        Item::Enum(i) => i.ident.to_string(),
        Item::Fn(i) => i.sig.ident.to_string(),
        Item::Static(i) => i.ident.to_string(),
        Item::Struct(i) => i.ident.to_string(),
        Item::Trait(i) => i.ident.to_string(),
        Item::Type(i) => i.ident.to_string(),
        Item::Union(i) => i.ident.to_string(),
        _ => return None,
    })
}
