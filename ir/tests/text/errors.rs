//! Texts that do not read, with the error in full.

use symmc_ir::text::{parse, parse_dim};
use symmc_ir::{EntityMap, SymbolId};

const HEADER: &str = "program \"t\" ranks 2
symbol n in 1..=8
group @all world
arg %x: f32[n, 8]
";

fn error(text: &str) -> String {
    parse(text).expect_err("the text is wrong").to_string()
}

/// The message for a line after the header, with its column.
fn line(text: &str) -> String {
    let error = parse(&format!("{HEADER}{text}\n")).expect_err(text);
    assert!(error.line == 5, "{error}");
    format!("{}: {}", error.column, error.message)
}

#[test]
fn errors_show_the_line_and_the_place() {
    assert_eq!(
        error("program \"t\" ranks 2\n\narg %x: f32[8]\n  %y: f32[8] = relu %z // why\n"),
        "line 4, column 21: no earlier line defines `%z`\n  |   %y: f32[8] = relu %z // why\n  |                     ^"
    );
    assert_eq!(
        error("program \"größe\" ranks x"),
        "line 1, column 23: expected an integer, found `x`\n  | program \"größe\" ranks x\n  |                       ^"
    );
    assert_eq!(
        error("program \"t\" ranks 2\r\n\targ %x f32[]\r\n"),
        "line 2, column 9: expected `:`, found `f32`\n  | \targ %x f32[]\n  | \t       ^"
    );
    assert_eq!(error(""), "line 1, column 1: expected `program`, found the end of the text\n  | \n  | ^");
}

#[test]
fn long_lines_are_cut() {
    let zeros = "0".repeat(10_000);
    let message = error(&format!("program \"t\" ranks 2\nconst %x: u8[5000] = hex\"{zeros}\" ? {zeros}\n"));
    let lines: Vec<&str> = message.lines().collect();
    assert_eq!(lines[0], "line 2, column 10028: expected the end of the line, found `?`");
    assert!(lines[1].chars().count() < 140 && lines[1].starts_with("  | …000") && lines[1].ends_with("000…"));
    let caret = lines[2].chars().position(|c| c == '^').unwrap();
    assert_eq!(lines[1].chars().nth(caret), Some('?'));
}

/// Lines after the header, with the column and the message of their failure.
const STATEMENTS: &[(&str, &str)] = &[
    (
        "relu %x",
        "1: expected one of the statements symbol, group, custom, arg, param, const, return, mutate, dispatch or a node (`%name: …`), found `relu`",
    ),
    ("= %x", "1: expected a statement, found `=`"),
    ("arg %x: f32[]", "5: the value `%x` is already defined"),
    ("%x: f32[n, 8] = relu %x", "1: the value `%x` is already defined"),
    (
        "%a: f32[8], %a: i64[8] = sort %x axis=0 descending=true",
        "26: %a: sort: the result must be f32[n, 8], found f32[8]",
    ),
    (
        "%a: f32[n, 8], %a: i64[n, 8] = sort %x axis=0 descending=true",
        "16: the value `%a` is already defined",
    ),
    ("symbol n in 1..=2", "8: the symbol `n` is already defined"),
    ("group @all world", "7: the group `@all` is already defined"),
    ("group @new", "11: expected `world` or the lists of ranks, found the end of the line"),
    ("group @new [[0, -1]]", "17: expected an integer from 0 to 2^32 - 1, found -1"),
    ("symbol m in 1..8", "14: unexpected character '.'"),
    ("symbol m in 1..=99999999999999999999", "17: the integer `99999999999999999999` does not fit 64 bits"),
    (
        "custom \"c\" symmetric operands [4294967296] results []",
        "32: expected an integer from 0 to 2^32 - 1, found 4294967296",
    ),
    (
        "arg %y: f33[]",
        "9: expected a dtype (bool, u8, u16, u32, i8, i16, i32, i64, f8e4m3, f8e5m2, f8e8m0, f16, bf16, f32, f64), found `f33`",
    ),
    ("arg %y: f32", "12: expected `[`, found the end of the line"),
    ("arg %y: f32[8 8]", "15: expected `,` or `]`, found `8`"),
    ("arg %y: f32[8,]", "15: expected a dim, found `]`"),
    ("arg %y: f32[k]", "13: no symbol has the name `k`"),
    ("arg %: f32[]", "5: expected a name after `%`"),
    ("arg %y: f32[] source x", "22: expected the name in the weights as a string, found `x`"),
    ("arg %y: f32[] = hex\"00\"", "15: expected the end of the line, found `=`"),
    ("const %y: f32[]", "16: expected `=`, found the end of the line"),
    ("const %y: f32[1] = hex\"0000\"", "23: expected 4 bytes of data, found 2"),
    ("const %y: f32[1] = hex\"0000 000\"", "23: expected two hexadecimal digits for each byte"),
    ("const %y: u8[1] = hex\"0\"", "22: expected two hexadecimal digits for each byte"),
    ("const %y: u8[n] = hex\"00\"", "17: a constant needs extents that are numbers"),
    ("const %y: u8[-1] = hex\"00\"", "18: a constant needs extents that are numbers"),
    (
        "const %y: u8[9223372036854775807, 9223372036854775807] = hex\"\"",
        "61: expected 9223372036854775807 bytes of data, found 0",
    ),
    ("return %y", "8: no earlier line defines `%y`"),
    ("return", "7: expected a value (`%name`), found the end of the line"),
    ("mutate %y = %x", "8: no earlier line defines `%y`"),
    ("return %x %x", "11: expected the end of the line, found `%x`"),
    (
        "arg %y: f32[] source \"a\\q\"",
        "24: expected one of the escapes \\\", \\\\, \\n, \\r, \\t and \\u{hex}",
    ),
    ("arg %y: f32[] source \"a", "22: the string does not end on its line"),
    (
        "arg %y: f32[] source \"a\\u{d800}\"",
        "24: expected one of the escapes \\\", \\\\, \\n, \\r, \\t and \\u{hex}",
    ),
    ("é", "1: unexpected character 'é'"),
];

#[test]
fn statements() {
    let mut wrong = String::new();
    for &(text, expected) in STATEMENTS {
        let message = line(text);
        if message != expected {
            wrong += &format!("{text}\n  found {message}\n  not   {expected}\n");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    let unclosed = parse(&format!("{HEADER}arg %y: f32[8\nreturn %x\n")).unwrap_err();
    assert_eq!((unclosed.line, unclosed.message.as_str()), (6, "expected `,` or `]`, found `return`"));
    let node = format!("{HEADER}%y: f32[n, 8] = relu %x\nmutate %y = %x\n");
    assert_eq!(parse(&node).unwrap_err().message, "only an input can be mutated, and `%y` is not an input");
}

#[test]
fn nodes() {
    let mut wrong = String::new();
    for (text, expected) in [
        ("relux %x", "no op has the name `relux`; close names are `relu`, `gelu`"),
        ("all_redcue %x", "no op has the name `all_redcue`; close names are `all_reduce`"),
        ("subb %x, %x", "no op has the name `subb`; close names are `sub`"),
        ("convolution %x", "no op has the name `convolution`"),
        ("ab %x, 1", "no op has the name `ab`; close names are `abs`"),
        ("relu", "%y: relu: it takes 1 operands, found 0"),
        ("relu %x, %x", "%y: relu: it takes 1 operands, found 2"),
        ("relu %x,", "expected an operand, found the end of the text"),
        ("relu 1.0", "`relu` takes no scalar operand"),
        ("add 1.0, 2.0", "a node takes one scalar operand at most"),
        ("add %x, %x, 2.0", "`add` takes one value next to a scalar, found 2"),
        ("add %x, 1e999", "the float `1e999` is too large"),
        ("add %x, -9223372036854775809", "the integer `9223372036854775809` does not fit 64 bits"),
        ("full value=x", "expected a scalar, found `x`"),
        ("full value=-true", "expected a scalar, found `true`"),
        (
            "reduce %x op=sun axes=[0] keep=true",
            "expected one of sum, mean, prod, max, min, any, all, found `sun`",
        ),
        ("reduce %x axes=[0] op=sum keep=true", "expected the attribute `op=` of `reduce`, found `axes`"),
        (
            "reduce %x op=sum axes=[0]",
            "expected the attribute `keep=` of `reduce`, found the end of the line",
        ),
        ("reduce %x op=sum axes=[0] keep=1", "expected `true` or `false`, found `1`"),
        ("reduce %x op=sum axes=[-1] keep=true", "expected an integer from 0 to 2^32 - 1, found -1"),
        ("relu %x axis=1", "expected the end of the line, found `axis`"),
        ("scatter_elements %x, %x, %x axis=0 combine=sub", "expected `none` or a reduction, found `sub`"),
        ("all_to_all %x splits=odd group=@all", "expected `even` or `device`, found `odd`"),
        (
            "all_reduce %x op=sum",
            "expected the attribute `group=` of `all_reduce`, found the end of the line",
        ),
        ("all_reduce %x op=sum group=@none", "no earlier line defines `@none`"),
        ("all_reduce %x op=sum group=all", "expected a group (`@name`), found `all`"),
        (
            "all_reduce %x op=sum group=@all via=fast",
            "expected one of plain, one_shot, ll, two_shot, pull, push, copies, pull_copies, put, nccl_window, copy_engine, found `fast`",
        ),
        ("permute_ranks %x pairs=[0-1] group=@all", "expected `->`, found `-`"),
        ("custom \"c\" %x", "no custom op has the name `c`"),
        ("opaque %x", "expected the name of the op as a string, found `%x`"),
        ("%x", "expected an op, found `%x`"),
    ] {
        let message = parse(&format!("{HEADER}%y: f32[n, 8] = {text}\n")).expect_err(text).message;
        if message != expected {
            wrong += &format!("{text}\n  found {message}\n  not   {expected}\n");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn dims() {
    let deep = |n: usize| format!("{}n{}", "(".repeat(n), ")".repeat(n));
    let symbols: EntityMap<SymbolId, _> = parse(HEADER).unwrap().symbols;
    let read = |text: &str| {
        parse_dim(text, &symbols).map(|d| d.display(&symbols).to_string()).map_err(|e| e.message)
    };
    for (text, expected) in [
        ("2*(n + 1)*(n - 1)", "2*n*n - 2"),
        ("-n - -3", "expected a dim, found `-`"),
        ("-(n)", "-n"),
        ("n\n", "expected the end of the dim, found the end of the line"),
        ("9223372036854775808", "the integer `9223372036854775808` does not fit 64 bits"),
        ("-9223372036854775808", "-9223372036854775808"),
        ("div(n*4, 2)", "2*n"),
        ("div(n)", "expected `,`, found `)`"),
        ("sqrt(n)", "a dim has the functions div, mod, max and min, found `sqrt`"),
        ("n n", "expected the end of the dim, found `n`"),
        ("n**n", "expected a dim, found `*`"),
        ("\"n\"", "n"),
        (&deep(32), "n"),
        (&deep(33), "a dim nests deeper than 32"),
        (&deep(100_000), "a dim nests deeper than 32"),
        (&format!("n{}", "*n".repeat(256)), "the dim has more than 256 factors"),
        (&format!("mod(n, 9){}", "*(mod(n, 9) + 1)".repeat(100)), "the dim has more than 256 factors"),
    ] {
        let actual = read(text).unwrap_or_else(|message| message);
        assert_eq!(actual, expected, "{}", &text[..text.len().min(40)]);
    }
}
