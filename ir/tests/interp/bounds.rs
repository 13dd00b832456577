//! The bounds checks of a program hold exactly at the sizes at which the interpreter runs it.

use symmc_ir::interp::{self, SeedConfig, seeded_inputs};
use symmc_ir::text::parse;
use symmc_ir::verify::verify;
use symmc_ir::{BoundsChecks, SymbolBindings};

const HEADER: &str = r#"program "bounds" ranks 1
symbol t in 1..=7
symbol k in 0..=5
arg %x: f32[4, t]
arg %y: f32[t, 4]
param %table: f32[5, 2]
const %five: i64[1] = hex"0500000000000000"
const %minus: i64[1] = hex"ffffffffffffffff"
const %some: i32[3] = hex"000000000400000002000000"
"#;

/// Nodes after the header. Each program is run at all sizes.
const PROGRAMS: &[&str] = &[
    "%r: f32[4, 1] = take %x, %five axis=1",
    "%r: f32[4, 1] = take %x, %minus axis=1",
    "%r: f32[4, 3] = take %x, %some axis=1",
    "%m: i32[1, 3] = reshape %some\n%e: i32[k, 3] = expand %m\n%r: f32[4, k, 3] = take %x, %e axis=1",
    "%i: i64[k] = iota start=2 step=1\n%r: f32[4, k] = take %x, %i axis=1",
    "%i: i64[k] = iota start=4 step=-1\n%r: f32[4, k] = take %x, %i axis=1",
    "%i: i64[k] = iota start=0 step=2\n%j: i64[k] = add %i, 1\n%r: f32[4, k] = take %x, %j axis=1",
    "%i: i64[t] = iota start=0 step=1\n%r: f32[t, 2] = take %table, %i axis=0",
    "%i: i64[t] = iota start=0 step=1\n%j: i64[t, 1] = reshape %i\n%e: i64[t, k] = expand %j\n\
     %r: f32[t, k, 2] = take %table, %e axis=0",
    "%f: i64[k] = full value=3\n%r: f32[4, k] = take %x, %f axis=1",
    "%f: u8[] = full value=6\n%r: f32[4] = take %x, %f axis=1",
    "%i: i64[2] = iota start=2 step=1\n%r: f32[2] = index %x, %i, %some_rows axis=0",
    "%f: i64[1, 4] = full value=5\n%r: f32[1, 4] = gather_elements %y, %f axis=0",
    "%f: i64[6, 4] = full value=0\n%r: f32[6, 4] = gather_elements %y, %f axis=1",
    "%f: i64[k] = full value=2\n%s: f32[k, 4] = full value=1.0\n%r: f32[t, 4] = index_add %y, %f, %s axis=0",
    "%f: i64[1] = full value=4\n%s: f32[1, 4] = full value=1.0\n\
     %r: f32[t, 4] = index_put %y, %s, %f axis=0 accumulate=false",
    "%f: i64[3, 4] = full value=4\n%s: f32[3, 4] = full value=1.0\n\
     %r: f32[t, 4] = scatter_elements %y, %f, %s axis=0 combine=none",
    "%r: f32[3, 4], %at: i64[3, 4] = topk %y axis=0 largest=true",
    "%r: f32[4, 1] = slice %x axis=1 start=k step=1",
    "%r: f32[4, 1] = slice %x axis=1 start=t - 3 step=1",
    "%r: f32[4, k] = slice %x axis=1 start=1 step=1",
    "%r: f32[4, k] = slice %x axis=1 start=0 step=2",
    "%s: f32[4, 3] = slice %x axis=1 start=0 step=1\n%r: f32[4, 1] = slice %s axis=1 start=2 step=1",
    "%c: f32[4, 2*t] = concat %x, %x axis=1\n%r: f32[4, 1] = slice %c axis=1 start=7 step=1",
    "%p: f32[4, t + 2] = pad %x low=[0, 1] value=0.0\n%r: f32[4, 2] = slice %p axis=1 start=k step=1",
    "%p: f32[t, 4] = permute %x perm=[1, 0]\n%f: f32[4*t] = reshape %p\n%r: f32[1] = slice %f axis=0 start=15 step=1",
    "%c: f32[4, t] = full value=1.0\n%r: f32[4, 1] = take %c, %five axis=1",
    "%c: i32[3] = mul %some, 2\n%d: i32[3] = sub %c, 1\n%n: bool[3] = lt %d, 0\n%w: i32[3] = add %d, 2\n\
     %s: i32[3] = select %n, %w, %d\n%i: i64[3] = cast %s\n%r: f32[4, 3] = take %x, %i axis=1",
    "%i: i64[k + 2] = iota start=0 step=1\n%dead: i64[t] = slice %i axis=0 start=0 step=1\n%r: f32[4, t] = relu %x",
    "%dead: f32[4, 1] = take %x, %five axis=1\n%r: f32[4, t] = relu %x",
];

#[test]
fn checks_hold_exactly_where_the_interpreter_runs() {
    let (mut inside, mut outside) = (0, 0);
    for nodes in PROGRAMS {
        let nodes = nodes.replace("%some_rows", "%i");
        let program = format!("{HEADER}{nodes}\nreturn %r\n");
        let graph = parse(&program).unwrap_or_else(|e| panic!("{program}{e}"));
        verify(&graph).unwrap_or_else(|e| panic!("{program}{}", e[0]));
        let checks = BoundsChecks::derive(&graph);
        let mut outcomes = [false; 2];
        for (t, k) in (1..=7).flat_map(|t| (0..=5).map(move |k| (t, k))) {
            let mut bindings = SymbolBindings::new();
            for (id, symbol) in graph.symbols.iter() {
                bindings.set(id, if symbol.name == "t" { t } else { k });
            }
            let inputs = seeded_inputs(&graph, &bindings, &SeedConfig::new(1), 0).unwrap();
            let run = interp::run(&graph, &bindings, &[inputs]);
            let check = checks.evaluate(&graph, &bindings);
            assert_eq!(
                check.is_ok(),
                run.is_ok(),
                "{program}t={t} k={k}: {check:?}, the interpreter: {run:?}"
            );
            outcomes[usize::from(check.is_ok())] = true;
        }
        inside += usize::from(outcomes[1]);
        outside += usize::from(outcomes[0]);
    }
    assert!(
        inside >= PROGRAMS.len() - 2 && outside == PROGRAMS.len(),
        "{inside} run, {outside} fail somewhere"
    );
}

#[test]
fn the_error_names_node_index_axis_and_extent() {
    let message = |nodes: &str, t: i64| {
        let graph = parse(&format!("{HEADER}{nodes}\nreturn %r\n")).unwrap();
        let mut bindings = SymbolBindings::new();
        graph.symbols.keys().for_each(|id| bindings.set(id, t));
        BoundsChecks::derive(&graph).evaluate(&graph, &bindings).unwrap_err().to_string()
    };
    assert_eq!(message(PROGRAMS[0], 3), "%r (take): index 5 is outside axis 1 of %x, whose extent is t = 3");
    assert_eq!(
        message("%r: f32[4, 1] = slice %x axis=1 start=t - 3 step=1", 2),
        "%r (slice): index t - 3 = -1 is outside axis 1 of %x, whose extent is t = 2"
    );
    assert_eq!(
        message("%i: i64[t] = iota start=0 step=1\n%r: f32[t, 2] = take %table, %i axis=0", 6),
        "%r (take): index t - 1 = 5 is outside axis 0 of %table, whose extent is 5"
    );
    assert_eq!(
        message(
            "%i: i64[5] = iota start=0 step=1\n%n: i64[t] = slice %i axis=0 start=0 step=1\n%r: f32[4, t] = relu %x",
            6
        ),
        "%n (slice): expected at most 5 elements along axis 0 of %i, found t = 6"
    );
    assert_eq!(
        message("%r: f32[3, 4], %at: i64[3, 4] = topk %y axis=0 largest=true", 2),
        "%r (topk): expected at most t = 2 elements along axis 0 of %y, found 3"
    );
}
