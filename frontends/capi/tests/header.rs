//! Generates `include/symmc.h` from the sources: their functions, types, constants and comments, and compares it with the file.
//! Also checks that every function is exported and lets no panic out.
//!
//! `UPDATE_EXPECT=1 cargo test -p symmc-capi --test header` writes the file. The interface has few kinds of types, so these lines
//! replace a general generator, which would bring a second parser of Rust along.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use quote::ToTokens;
use syn::{Attribute, Expr, ExprLit, FnArg, Item, ItemFn, Lit, Meta, PointerMutability, ReturnType, Type};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_path_buf()
}

/// The source files, in the order of the header.
const SOURCE_FILES: [&str; 9] =
    ["lib", "error", "program", "plan", "group", "values", "options", "session", "buffer"];

const HEADER_OPENING: &str = "\
/* symmc: compiles tensor programs with communication into plans, proves the plans safe, and runs them.
 *
 * The rules of this comment hold for all functions; a function documents only requirements beyond them.
 *
 * Ownership. A handle is a pointer to a type that only the library knows. The caller that received a handle frees it exactly
 * once, by the function of its type whose name ends with _free, in any order and from any thread. No other function frees a
 * handle: a session that was closed or aborted is freed as well. Handles keep what they need of each other: a session continues
 * when its plan, group, options, weights and buffers are freed. A function has read its other arguments when it returns, unless
 * it says otherwise.
 *
 * Arguments. Texts are UTF-8 and end with a NUL. Pointers to arrays and to results are aligned for their elements: other ones
 * give SYMMC_ERROR_INPUT, and nothing is read or written. Bytes that are copied (void *) need no alignment.
 *
 * Errors. Functions that can fail return SYMMC_OK or the kind of the error. symmc_last_error returns the message of the last
 * error of the calling thread. After an error, a handle that the call was to create is NULL, and other results are unchanged. A
 * defect of the library itself gives the status SYMMC_ERROR_DEFECT: no exception is thrown through the caller.
 *
 * Threads. Any thread may call any function at any time, also in destructors of static objects and of a thread's keys, and in
 * atexit handlers; only signal handlers may not. While a call that takes a handle without const is in progress, no other call
 * takes this handle. Calls that take it as const may overlap. Sessions open and run together with the other ranks of their
 * group, so ranks of one process need a thread each.
 *
 * Cancellation. No function is a cancellation point: a thread that pthread_cancel cancels during a call ends after the call. A
 * function of the caller that the library calls returns normally. It does not throw, jump or call pthread_exit.
 *
 * Forks. A process that used the library has threads, which a fork does not copy: fork before, or call exec in the child. In the
 * child, calls on a session of the parent return SYMMC_ERROR_INPUT if they need its memory, its runs or other ranks. Closing,
 * aborting and freeing it do not affect the parent. A group in which the parent opened sessions opens none in the child.
 *
 * Generated from the sources of the library; do not edit.
 */
#ifndef SYMMC_H
#define SYMMC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern \"C\" {
#endif
";

const HEADER_CLOSING: &str = "
#ifdef __cplusplus
}
#endif

#endif
";

fn items() -> Vec<(String, Vec<Item>)> {
    let read = |name: &&str| {
        let path = folder().join(format!("src/{name}.rs"));
        let text = std::fs::read_to_string(&path).expect("a source");
        let title =
            text.lines().next().and_then(|line| line.strip_prefix("//! ")).expect("a page").to_string();
        (title, syn::parse_file(&text).expect("Rust").items)
    };
    SOURCE_FILES.iter().map(read).collect()
}

/// The comment of an item in C, without its section on safety, which is for callers in Rust.
fn comment(attributes: &[Attribute], indent: &str) -> String {
    let line = |attribute: &Attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("doc") => match &pair.value {
            Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text.value().trim().to_string()),
            _ => None,
        },
        _ => None,
    };
    let lines: Vec<String> =
        attributes.iter().filter_map(line).take_while(|text| text != "# Safety").collect();
    let text = lines.join(&format!("\n{indent} * "));
    let text = text.trim_end_matches([' ', '*', '\n']);
    assert!(!text.is_empty(), "a public item has no comment");
    format!("{indent}/* {text} */\n").replace(" * \n", " *\n")
}

/// A type in C. A pointer type ends with its star.
fn spell_type(ty: &Type) -> String {
    match ty {
        Type::Ptr(pointer) => {
            let pointee = spell_type(&pointer.elem);
            let constant = matches!(pointer.mutability, PointerMutability::Const(_));
            match (matches!(*pointer.elem, Type::Ptr(_)), constant) {
                (true, true) => format!("{pointee}const *"),
                (true, false) => format!("{pointee}*"),
                (false, true) => format!("const {pointee} *"),
                (false, false) => format!("{pointee} *"),
            }
        }
        Type::Path(path) => match path.path.segments.last().expect("a name").ident.to_string().as_str() {
            "c_char" => "char".into(),
            "c_int" => "int".into(),
            "c_void" => "void".into(),
            "usize" => "size_t".into(),
            number @ ("i32" | "u32" | "i64" | "u64") => {
                format!("{}int{}_t", if number.starts_with('u') { "u" } else { "" }, &number[1..])
            }
            own if own.starts_with("symmc_") => own.into(),
            other => panic!("the header has no type {other}"),
        },
        other => panic!("the header has no type {}", other.to_token_stream()),
    }
}

/// A declaration of a name with a type.
fn declare_in_c(ty: &Type, name: &str) -> String {
    let ty = spell_type(ty);
    if ty.ends_with('*') { format!("{ty}{name}") } else { format!("{ty} {name}") }
}

fn declare_function(output: &ReturnType, name: &str) -> String {
    match output {
        ReturnType::Default => format!("void {name}"),
        ReturnType::Type(_, ty) => declare_in_c(ty, name),
    }
}

/// A function with its parameters, in lines of at most 120 characters.
fn signature(head: &str, parameters: &[String]) -> String {
    let list = if parameters.is_empty() { "void".into() } else { parameters.join(", ") };
    let line = format!("{head}({list});");
    if line.len() <= 120 { line } else { format!("{head}(\n    {});", parameters.join(",\n    ")) }
}

fn is_exported(function: &ItemFn) -> bool {
    function.attrs.iter().any(|a| a.to_token_stream().to_string().contains("no_mangle"))
}

fn of_function(function: &ItemFn, out: &mut String) {
    let parameter = |argument: &FnArg| match argument {
        FnArg::Typed(typed) => declare_in_c(&typed.ty, &typed.pat.to_token_stream().to_string()),
        FnArg::Receiver(_) => panic!("functions of C have no receiver"),
    };
    let parameters: Vec<String> = function.sig.inputs.iter().map(parameter).collect();
    let head = declare_function(&function.sig.output, &function.sig.ident.to_string());
    out.push_str(&comment(&function.attrs, ""));
    let _ = writeln!(out, "{}\n", signature(&head, &parameters));
}

/// The function of a type `Option<fn>`, if the type is one.
fn optional_function(ty: &Type) -> Option<&syn::TypeFnPtr> {
    let Type::Path(path) = ty else { return None };
    let syn::PathArguments::AngleBracketed(of) = &path.path.segments.last()?.arguments else { return None };
    match of.args.first()? {
        syn::GenericArgument::Type(Type::FnPtr(pointer)) => Some(pointer),
        _ => None,
    }
}

/// `pub type`: another name of a type, or the type of a function of the caller.
fn of_alias(alias: &syn::ItemType, out: &mut String) {
    out.push_str(&comment(&alias.attrs, ""));
    let name = alias.ident.to_string();
    let Some(pointer) = optional_function(&alias.ty) else {
        let _ = writeln!(out, "typedef {};\n", declare_in_c(&alias.ty, &name));
        return;
    };
    let parameter = |p: &syn::NamedArg| declare_in_c(&p.ty, &p.name.as_ref().expect("a name").0.to_string());
    let parameters: Vec<String> = pointer.inputs.iter().map(parameter).collect();
    let head = format!("typedef {}", declare_function(&pointer.output, &format!("(*{name})")));
    let _ = writeln!(out, "{}\n", signature(&head, &parameters));
}

fn of_struct(item: &syn::ItemStruct, out: &mut String) {
    let name = &item.ident;
    if !item.attrs.iter().any(|a| a.to_token_stream().to_string().contains("repr (C)")) {
        return;
    }
    out.push_str(&comment(&item.attrs, ""));
    let _ = writeln!(out, "typedef struct {name} {{");
    for field in &item.fields {
        out.push_str(&comment(&field.attrs, "    "));
        let _ = writeln!(
            out,
            "    {};",
            declare_in_c(&field.ty, &field.ident.as_ref().expect("a name").to_string())
        );
    }
    let _ = writeln!(out, "}} {name};\n");
}

fn is_public(visibility: &syn::Visibility) -> bool {
    matches!(visibility, syn::Visibility::Public(_))
}

/// The handles, which are declared before their uses.
fn handles(files: &[(String, Vec<Item>)]) -> String {
    let mut out = String::new();
    for item in files.iter().flat_map(|(_, items)| items) {
        if let Item::Struct(item) = item
            && is_public(&item.vis)
            && !item.attrs.iter().any(|a| a.to_token_stream().to_string().contains("repr (C)"))
        {
            out.push_str(&comment(&item.attrs, ""));
            let _ = writeln!(out, "typedef struct {0} {0};\n", item.ident);
        }
    }
    out
}

fn header() -> String {
    let files = items();
    let mut out = format!("{HEADER_OPENING}\n{}", handles(&files));
    for (title, items) in &files {
        let mut declarations = String::new();
        let mut constants = String::new();
        for item in items {
            match item {
                Item::Const(constant) if is_public(&constant.vis) => {
                    constants.push_str(&comment(&constant.attrs, ""));
                    let value = constant.expr.to_token_stream();
                    let _ = writeln!(constants, "#define {} {value}", constant.ident);
                }
                Item::Type(alias) if is_public(&alias.vis) => of_alias(alias, &mut declarations),
                Item::Struct(item) if is_public(&item.vis) => of_struct(item, &mut declarations),
                Item::Fn(function) if is_exported(function) => of_function(function, &mut declarations),
                _ => {}
            }
        }
        if !constants.is_empty() {
            constants.push('\n');
        }
        let _ = write!(out, "/* ---- {title} ---- */\n\n{constants}{declarations}");
    }
    out.trim_end().to_string() + "\n" + HEADER_CLOSING
}

#[test]
fn the_header_is_that_of_the_sources() {
    let path = folder().join("include/symmc.h");
    let generated = header();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        return std::fs::write(&path, generated).expect("written");
    }
    let actual = std::fs::read_to_string(&path).expect("the header");
    assert!(actual == generated, "{} does not fit the sources: UPDATE_EXPECT=1 writes it", path.display());
}

#[test]
fn every_function_is_exported_and_keeps_panics_in() {
    let mut count = 0;
    for function in items().into_iter().flat_map(|(_, items)| items) {
        let Item::Fn(function) = function else { continue };
        let name = function.sig.ident.to_string();
        if function.sig.abi.is_none() {
            assert!(!name.starts_with("symmc_"), "{name} is not a C function");
            continue;
        }
        count += 1;
        assert!(is_exported(&function) && is_public(&function.vis), "{name} is not exported");
        assert!(name.starts_with("symmc_"), "{name} has no prefix");
        let body = function.block.to_token_stream().to_string();
        let guarded = [
            "guard (",
            "create_handle (",
            "create_handles (",
            "with_session (",
            "with_options (",
            "free_handle (",
        ]
        .iter()
        .any(|call| body.contains(call));
        // Functions that only read a field or the last error of the thread.
        let reads = ["as_ref ()", "NUMBERS . get ()", "read_text_pointer (", "SYMMC_ABI_VERSION", "concat !"]
            .iter()
            .any(|call| body.contains(call));
        let calls = body.matches('(').count();
        assert!(guarded || (reads && calls <= 8), "{name} may let a panic out: {body}");
    }
    assert!(count > 40, "{count}");
}

/// Every name of the C interface in the documentation exists in the header.
#[test]
fn pages_name_what_the_header_has() {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let names = |text: &str| -> BTreeSet<String> {
        let words = text.split(|c| !is_name(c)).filter(|word| word.to_lowercase().starts_with("symmc_"));
        words.map(str::to_string).collect()
    };
    let has = names(&header());
    for page in ["docs/embedding.md", "README.md", "CHANGELOG.md"] {
        let text = std::fs::read_to_string(folder().join("../..").join(page)).expect("a page");
        // Crates and environment variables have similar names.
        let is_of_c = |name: &String| has.iter().any(|other| other.starts_with(&name[..name.len().min(12)]));
        let unknown: Vec<String> =
            names(&text).into_iter().filter(|n| !has.contains(n) && is_of_c(n)).collect();
        assert!(unknown.is_empty(), "{page} names {unknown:?}, which the header does not have");
    }
}
