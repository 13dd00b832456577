//! Lists the public items of a crate, one on each line, and the items that its signatures name without exporting them.

use std::collections::{BTreeMap, BTreeSet};

use quote::ToTokens;
use syn::punctuated::Punctuated;
use syn::{
    Attribute, Fields, FnArg, GenericParam, Generics, ImplItem, Item, ItemImpl, Signature, Token, TraitItem,
    Type,
};

use crate::tree::{ModuleTree, Path, PathTarget, is_public, name_of, needed};

/// The items that every program can name.
const PRELUDE: [&str; 21] = [
    "AsRef",
    "Box",
    "Clone",
    "Default",
    "Err",
    "Fn",
    "FnMut",
    "FnOnce",
    "From",
    "Into",
    "IntoIterator",
    "Iterator",
    "None",
    "Ok",
    "Option",
    "Result",
    "Self",
    "Send",
    "String",
    "Sync",
    "Vec",
];

/// The public items of a crate.
pub struct ItemList {
    /// Sorted.
    pub lines: Vec<String>,
    /// The items that are named in a signature and not exported: `Hidden in pub fn …`.
    pub leaks: Vec<String>,
}

impl ItemList {
    /// The list of a crate of this name.
    pub fn of(tree: &ModuleTree, name: &str) -> ItemList {
        let mut lister = ItemLister {
            tree,
            name,
            places: BTreeMap::new(),
            foreign: BTreeSet::new(),
            lines: vec![],
            leaks: vec![],
        };
        let exports = lister.exports();
        for ExportedName { path, target, features } in &exports {
            lister.export(path, target, features);
        }
        let ItemLister { mut lines, leaks, .. } = lister;
        lines.sort();
        ItemList { lines, leaks }
    }
}

/// A name that users of the crate have for something.
struct ExportedName {
    path: Path,
    target: PathTarget,
    features: Vec<String>,
}

struct ItemLister<'t> {
    tree: &'t ModuleTree,
    name: &'t str,
    /// The path that users know an own item by, by where it is defined.
    places: BTreeMap<Path, Path>,
    /// Exported types of other crates: the crate and the name.
    foreign: BTreeSet<(String, String)>,
    lines: Vec<String>,
    leaks: Vec<String>,
}

/// A signature: what is shown, what in it is a type, the module that it stands in and the parameters it may name.
struct SignatureText<'s> {
    line: String,
    types: &'s str,
    module: &'s [String],
    generics: &'s [String],
}

impl ItemLister<'_> {
    fn exports(&mut self) -> Vec<ExportedName> {
        let mut out = Vec::new();
        for (path, module) in self.tree.0.iter().filter(|(_, m)| m.public) {
            if !path.is_empty() {
                self.lines.push(format!("pub mod {}{}", self.shown(path), features(&module.features)));
            }
            let with = |name: &str| [&path[..], &[name.to_string()]].concat();
            for item in &module.items {
                let (Some(name), Some(needs)) = (name_of(item), attributes(item).and_then(needed)) else {
                    continue;
                };
                if visible(item) {
                    let (own, features) = (with(&name), [&module.features[..], &needs].concat());
                    out.push(ExportedName { path: own.clone(), target: PathTarget::Own(own), features });
                }
            }
            for u in module.uses.iter().filter(|u| u.public) {
                assert!(
                    u.name != "*",
                    "{}: names are exported one by one, found {}::*",
                    self.shown(path),
                    u.path.join("::")
                );
                let target = self.tree.resolve(path, &u.path);
                out.push(ExportedName {
                    path: with(&u.name),
                    target,
                    features: [&module.features[..], &u.features].concat(),
                });
            }
        }
        for ExportedName { path, target, .. } in &out {
            match target {
                PathTarget::Own(own) if own == path => drop(self.places.insert(own.clone(), path.clone())),
                PathTarget::Foreign(of) => drop(self.foreign.insert((first(of), last(of)))),
                PathTarget::Own(_) => {}
            }
        }
        for ExportedName { path, target, .. } in &out {
            if let PathTarget::Own(own) = target {
                self.places.entry(own.clone()).or_insert_with(|| path.clone());
            }
        }
        out
    }

    fn export(&mut self, path: &Path, target: &PathTarget, needs: &[String]) {
        let shown = self.shown(path);
        let end = features(needs);
        let own = match target {
            PathTarget::Foreign(of) => {
                return self.lines.push(format!("pub use {shown} = {}{end}", of.join("::")));
            }
            PathTarget::Own(own) => own,
        };
        let location = self.places[own].clone();
        if location != *path {
            return self.lines.push(format!("pub use {shown} = {}{end}", self.shown(&location)));
        }
        let (module, name) = (&own[..own.len() - 1], last(own));
        let items = self.tree.0.get(module).map_or(&[][..], |m| &m.items);
        let item = items.iter().find(|item| name_of(item).is_some_and(|n| n == name));
        let item = item.unwrap_or_else(|| panic!("{shown}: no item {} was found", own.join("::")));
        self.item(item, (own, module), &shown, &end);
    }

    fn item(&mut self, item: &Item, (own, module): (&Path, &[String]), shown: &str, end: &str) {
        match item {
            Item::Fn(f) => self.function(&f.sig, module, shown, &[], end),
            Item::Const(c) => self.typed(&format!("pub const {shown}: "), &c.ty, module, end),
            Item::Static(s) => self.typed(&format!("pub static {shown}: "), &s.ty, module, end),
            Item::Type(t) => {
                let named = named(&t.generics);
                let types = tidy(&t.ty);
                let line = format!("pub type {shown}{} = {types}{end}", tidy(&t.generics));
                self.say(SignatureText { line, types: &types, module, generics: &named });
            }
            Item::Struct(s) => {
                let open = s.fields.iter().all(|f| is_public(&f.vis));
                self.head("struct", (&s.attrs, &s.generics), (own, shown), open, end);
                for (index, field) in s.fields.iter().enumerate().filter(|(_, f)| is_public(&f.vis)) {
                    let name = field.ident.as_ref().map_or_else(|| index.to_string(), ToString::to_string);
                    self.typed(&format!("pub {shown}::{name}: "), &field.ty, module, end);
                }
                self.methods(own, shown, end);
            }
            Item::Enum(e) => {
                self.head("enum", (&e.attrs, &e.generics), (own, shown), true, end);
                for variant in &e.variants {
                    let types = fields(&variant.fields);
                    let line = format!("pub {shown}::{}{types}{end}", variant.ident);
                    self.say(SignatureText { line, types: &types, module, generics: &named(&e.generics) });
                }
                self.methods(own, shown, end);
            }
            Item::Trait(t) => {
                self.lines.push(format!(
                    "pub trait {shown}{}: {}{end}",
                    tidy(&t.generics),
                    tidy(&t.supertraits)
                ));
                for item in &t.items {
                    if let TraitItem::Fn(f) = item {
                        let path = format!("{shown}::{}", f.sig.ident);
                        self.function(&f.sig, module, &path, &named(&t.generics), end);
                    }
                }
            }
            _ => self.lines.push(format!("pub {shown}{end}")),
        }
    }

    /// The line of a type, with the traits that it has.
    fn head(
        &mut self,
        what: &str,
        (attrs, generics): (&[Attribute], &Generics),
        (own, shown): (&Path, &str),
        open: bool,
        end: &str,
    ) {
        let mut traits: BTreeSet<String> = BTreeSet::new();
        for derive in attrs.iter().filter(|a| a.path().is_ident("derive")) {
            let derived = derive.parse_args_with(Punctuated::<syn::Path, Token![,]>::parse_terminated);
            traits.extend(derived.iter().flatten().map(tidy));
        }
        for (module, block) in blocks(self.tree, own) {
            let Some((of, _)) = &block.trait_ else { continue };
            let trait_name = tidy(of);
            self.look(
                &trait_name,
                module,
                &named(&block.generics),
                &format!("impl {trait_name} for {shown}"),
            );
            traits.insert(trait_name);
        }
        let grows =
            if attrs.iter().any(|a| a.path().is_ident("non_exhaustive")) { " #[non_exhaustive]" } else { "" };
        let hidden = if open { "" } else { " { .. }" };
        let traits: Vec<String> = traits.into_iter().collect();
        let traits = if traits.is_empty() { String::new() } else { format!(": {}", traits.join(", ")) };
        self.lines.push(format!("pub {what} {shown}{}{grows}{hidden}{traits}{end}", tidy(generics)));
    }

    fn methods(&mut self, own: &Path, shown: &str, end: &str) {
        for (module, block) in blocks(self.tree, own).into_iter().filter(|(_, i)| i.trait_.is_none()) {
            let outer = named(&block.generics);
            for item in &block.items {
                match item {
                    ImplItem::Fn(f) if is_public(&f.vis) => {
                        let Some(needs) = needed(&f.attrs) else { continue };
                        let end = if needs.is_empty() { end.to_string() } else { features(&needs) };
                        self.function(&f.sig, module, &format!("{shown}::{}", f.sig.ident), &outer, &end);
                    }
                    ImplItem::Const(c) if is_public(&c.vis) => {
                        self.typed(&format!("pub const {shown}::{}: ", c.ident), &c.ty, module, end);
                    }
                    _ => {}
                }
            }
        }
    }

    fn function(&mut self, sig: &Signature, module: &[String], shown: &str, outer: &[String], end: &str) {
        let generics = [outer, &named(&sig.generics)].concat();
        let argument = |arg: &FnArg| tidy(arg).trim_start_matches("mut ").to_string();
        let arguments: Vec<String> = sig.inputs.iter().map(argument).collect();
        let clause = sig.generics.where_clause.as_ref().map_or_else(String::new, |w| format!(" {}", tidy(w)));
        let before = tidy(sig);
        let before = before.split("fn ").next().unwrap_or_default();
        let mut result = tidy(&sig.output);
        if !result.is_empty() {
            result.insert(0, ' ');
        }
        let types = format!("{}({}){result}{clause}", tidy(&sig.generics), arguments.join(", "));
        let line = format!("pub {before}fn {shown}{types}{end}");
        self.say(SignatureText { line, types: &types, module, generics: &generics });
    }

    fn typed(&mut self, before: &str, ty: &Type, module: &[String], end: &str) {
        let types = tidy(ty);
        self.say(SignatureText {
            line: format!("{before}{types}{end}"),
            types: &types,
            module,
            generics: &[],
        });
    }

    /// Adds a line, and what it names that is not exported.
    fn say(&mut self, said: SignatureText<'_>) {
        self.look(said.types, said.module, said.generics, &said.line);
        self.lines.push(said.line);
    }

    /// Adds what `types` names, in a module, that is not exported.
    fn look(&mut self, types: &str, module: &[String], generics: &[String], line: &str) {
        for path in paths(types) {
            let is_named = path.len() == 1 && (PRELUDE.contains(&&*path[0]) || generics.contains(&path[0]));
            if !is_named && !self.is_exported(module, &path) {
                self.leaks.push(format!("{} in {line}", path.join("::")));
            }
        }
    }

    fn is_exported(&self, module: &[String], path: &[String]) -> bool {
        match self.tree.resolve(module, path) {
            PathTarget::Own(own) => self.places.contains_key(&own),
            PathTarget::Foreign(of) => {
                ["std", "core", "alloc"].contains(&&*of[0]) || self.foreign.contains(&(first(&of), last(&of)))
            }
        }
    }

    fn shown(&self, path: &[String]) -> String {
        [&[self.name.to_string()], path].concat().join("::")
    }
}

/// Blocks of an own type, with the modules that they stand in.
fn blocks<'t>(tree: &'t ModuleTree, own: &Path) -> Vec<(&'t Path, &'t ItemImpl)> {
    let items = tree.0.iter().flat_map(|(path, m)| m.items.iter().map(move |item| (path, item)));
    items
        .filter_map(|(path, item)| {
            let Item::Impl(i) = item else { return None };
            let Type::Path(of) = &*i.self_ty else { return None };
            let self_path: Path = of.path.segments.iter().map(|s| s.ident.to_string()).collect();
            let is_own =
                needed(&i.attrs).is_some() && tree.resolve(path, &self_path) == PathTarget::Own(own.clone());
            is_own.then_some((path, i))
        })
        .collect()
}

fn first(path: &[String]) -> String {
    path.first().cloned().unwrap_or_default()
}

fn last(path: &[String]) -> String {
    path.last().cloned().unwrap_or_default()
}

fn features(needed: &[String]) -> String {
    let needed: BTreeSet<&str> = needed.iter().map(String::as_str).collect();
    let list: Vec<&str> = needed.into_iter().collect();
    if list.is_empty() { String::new() } else { format!(" [{}]", list.join(", ")) }
}

fn attributes(item: &Item) -> Option<&[Attribute]> {
    Some(match item {
        Item::Const(i) => &i.attrs,
        Item::Enum(i) => &i.attrs,
        Item::Fn(i) => &i.attrs,
        Item::Static(i) => &i.attrs,
        Item::Struct(i) => &i.attrs,
        Item::Trait(i) => &i.attrs,
        Item::Type(i) => &i.attrs,
        Item::Union(i) => &i.attrs,
        _ => return None,
    })
}

fn visible(item: &Item) -> bool {
    match item {
        Item::Const(i) => is_public(&i.vis),
        Item::Enum(i) => is_public(&i.vis),
        Item::Fn(i) => is_public(&i.vis),
        Item::Static(i) => is_public(&i.vis),
        Item::Struct(i) => is_public(&i.vis),
        Item::Trait(i) => is_public(&i.vis),
        Item::Type(i) => is_public(&i.vis),
        Item::Union(i) => is_public(&i.vis),
        _ => false,
    }
}

/// The names of type parameters and constants.
fn named(generics: &Generics) -> Vec<String> {
    let name = |p: &GenericParam| match p {
        GenericParam::Type(t) => Some(t.ident.to_string()),
        GenericParam::Const(c) => Some(c.ident.to_string()),
        _ => None,
    };
    generics.params.iter().filter_map(name).collect()
}

/// The fields of a variant.
fn fields(fields: &Fields) -> String {
    let named = |f: &syn::Field| match &f.ident {
        Some(name) => format!("{name}: {}", tidy(&f.ty)),
        None => tidy(&f.ty),
    };
    let list: Vec<String> = fields.iter().map(named).collect();
    match fields {
        Fields::Named(_) => format!(" {{ {} }}", list.join(", ")),
        Fields::Unnamed(_) => format!("({})", list.join(", ")),
        Fields::Unit => String::new(),
    }
}

/// The paths of types that a text names, each up to the type. What is given by name (`Item = …`) is none.
fn paths(text: &str) -> Vec<Path> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':' || c == '\'';
    let mut out = Vec::new();
    for (at, _) in text.char_indices() {
        let begins = text[..at].chars().next_back().is_none_or(|c| !is_part(c));
        let word: &str = text[at..].split(|c| !is_part(c)).next().unwrap_or_default();
        let is_given = text[at + word.len()..].trim_start().starts_with('=');
        if !begins || word.starts_with('\'') || is_given || word.ends_with(':') {
            continue;
        }
        let segments: Path = word.split("::").map(String::from).collect();
        let is_type = |part: &String| part.starts_with(char::is_uppercase);
        if let Some(end) = segments.iter().position(is_type) {
            out.push(segments[..=end].to_vec());
        }
    }
    out
}

/// Tokens as people write them.
fn tidy(tokens: impl ToTokens) -> String {
    const CLOSER: [(&str, &str); 18] = [
        (" ::", "::"),
        (":: ", "::"),
        (" <", "<"),
        ("< ", "<"),
        (" >", ">"),
        (" ,", ","),
        (" ;", ";"),
        (" :", ":"),
        ("& ", "&"),
        ("( ", "("),
        (" )", ")"),
        ("[ ", "["),
        (" ]", "]"),
        ("' ", "'"),
        ("# [", "#["),
        (" ?", "?"),
        ("Fn (", "Fn("),
        ("FnMut (", "FnMut("),
    ];
    let text = tokens.to_token_stream().to_string();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = CLOSER.iter().fold(text, |text, (from, to)| text.replace(from, to));
    text.replace("* mut ", "*mut ")
        .replace("* const ", "*const ")
        .replace("FnOnce (", "FnOnce(")
        .replace(",)", ")")
        .replace(",>", ">")
}
