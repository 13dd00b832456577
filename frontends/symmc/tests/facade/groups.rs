//! Programs with many groups of ranks, in use or not.

use std::fmt::Write as _;

use symmc::{CompileConfig, Program};

/// Sixty-four ranks as `8 × 8`, in cells of neighbours that begin at another rank for each group.
fn cells(group: u32) -> Vec<Vec<u32>> {
    (0..8).map(|cell| (0..8).map(|rank| (8 * cell + rank + group) % 64).collect()).collect()
}

/// Planning looks at pairs of groups in use that differ, and at no others.
#[test]
fn thousands_of_groups_are_planned() {
    for (groups, in_use) in [(4000, 0), (1000, 1000)] {
        let mut text = "program \"p\" ranks 64\n".to_string();
        for group in 0..groups {
            writeln!(text, "group @g{group} {:?}", cells(group)).expect("a string");
        }
        text += "group @w world\narg %x: f32[4]\n%y0: f32[4] = all_reduce %x op=sum group=@w\n";
        for group in 0..in_use {
            writeln!(text, "%n{group}: f32[4] = neg %y{group}").expect("a string");
            let next = group + 1;
            writeln!(text, "%y{next}: f32[4] = all_reduce %n{group} op=sum group=@g{group}")
                .expect("a string");
        }
        writeln!(text, "return %y{in_use}").expect("a string");
        let program = Program::from_text(&text).expect("a program");
        let plan = symmc::compile(&program, &CompileConfig::default()).expect("a plan");
        assert_eq!(plan.ranks, 64);
    }
}
