//! The records of a plan about collectives that passes replaced.

use symmc::{CompileConfig, MachineProfile, Program};

/// Texts about collectives show types, whose symbols have names of any length; the check bounds texts.
#[test]
fn long_symbol_names_keep_plans_valid() {
    for length in [1, 100, 250, 2500, 10_000] {
        let rows = "r".repeat(length);
        let text = format!(
            "program \"p\" ranks 4\nsymbol {rows} in 1..=16\ngroup @w world\narg %x: f32[{rows}, 64]\n\
             %h: f32[{rows}, 64] = neg %x\n%a: f32[{rows}, 64] = all_reduce %h op=sum group=@w\n\
             %s: f32[{rows}, 8] = slice %a axis=1 start=0 step=1\n%z: f32[{rows}, 8] = neg %s\nreturn %z\n"
        );
        let graph = symmc::unstable::ir::text::parse(&text).expect("a graph");
        let program = Program::from_graph(graph).expect("a program");
        let config =
            CompileConfig::default().with_profile(MachineProfile::builtin("h200x4").expect("built in"));
        let plan = symmc::compile(&program, &config).unwrap_or_else(|e| panic!("{length}: {e}"));
        let [replaced] = &plan.replacements[..] else { panic!("{:?}", plan.replacements) };
        assert!(replaced.what.starts_with("only the used part is communicated"), "{}", replaced.what);
        assert_eq!(replaced.what.contains("f32["), length <= 100, "{}", replaced.what);
    }
}
