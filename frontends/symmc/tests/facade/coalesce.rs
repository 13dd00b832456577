//! Coalesced collectives: the programs that have them once they are planned, and their results.

use symmc::{
    CheckedPlan, CompileConfig, DrawConfig, Execution, MachineProfile, Program, RunConfig, Weights, Workload,
};

/// Two computed values; the body of a program reduces both.
const HEAD: &str = "program \"p\" ranks 4\ngroup @w world\ngroup @v [[0, 1], [2, 3]]\ngroup @u [[0, 1, 2, 3]]\n\
    arg %x: i32[4, 96]\narg %y: i32[3]\n%a: i32[4, 96] = neg %x\n%b: i32[3] = abs %y\n";

fn program(text: &str) -> Program {
    let graph = symmc::unstable::ir::text::parse(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    Program::from_graph(graph).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn planned(program: &Program) -> CheckedPlan {
    let profile = MachineProfile::builtin("h200x4").unwrap_or_else(|| panic!("h200x4"));
    symmc::compile(program, &CompileConfig::default().with_profile(profile)).unwrap_or_else(|e| panic!("{e}"))
}

/// The collectives that a plan has for its first bucket.
fn collectives(plan: &CheckedPlan) -> usize {
    let graph = symmc::unstable::ir::text::parse(&plan.programs[plan.buckets[0].program]);
    let graph = graph.unwrap_or_else(|e| panic!("{e}"));
    graph.nodes.values().filter(|node| node.op.as_collective().is_some()).count()
}

/// Host ranks and the interpreter give equal bits, and the plan equals its source node for node.
fn check(program: &Program, plan: &CheckedPlan) {
    let compared = symmc::compare_with_source(plan);
    assert!(compared.differences.is_empty() && compared.parts.is_empty(), "{compared:?}");
    let draw = DrawConfig::default().with_seed(7).with_arguments(true);
    let work = Workload::gather(&program.graph, &Weights::default(), None, &draw);
    let work = work.unwrap_or_else(|e| panic!("{e}"));
    let run = |execution| {
        symmc::run(plan, &work, &execution, &RunConfig::default()).unwrap_or_else(|e| panic!("{e}"))
    };
    assert_eq!(run(Execution::Threads), run(Execution::Interpreter), "{}", plan.source.text);
}

#[test]
fn independent_small_collectives_are_coalesced() {
    let bodies = |r: &str, s: &str| {
        format!(
            "%r: i32[4, 96] = {r}\n%s: i32[3] = {s}\n%t: i32[4, 96] = neg %r\n%u: i32[3] = neg %s\nreturn %t\nreturn %u\n"
        )
    };
    let reduce = |x: &str, op: &str, group: &str| format!("all_reduce %{x} op={op} group=@{group}");
    let sums = bodies(&reduce("a", "sum", "w"), &reduce("b", "sum", "w"));
    let cases = [
        (1, sums.clone()),
        (1, bodies(&reduce("a", "max", "v"), &reduce("b", "max", "v"))),
        (1, bodies(&reduce("a", "sum", "w"), &reduce("b", "sum", "u"))),
        (1, bodies("broadcast %a root=2 group=@w", "broadcast %b root=2 group=@w")),
        (
            1,
            bodies(
                "permute_ranks %a pairs=[0->3, 1->0] group=@w",
                "permute_ranks %b pairs=[0->3, 1->0] group=@w",
            ),
        ),
        (2, bodies(&reduce("a", "sum", "w"), &reduce("b", "max", "w"))),
        (2, bodies(&reduce("a", "sum", "w"), &reduce("b", "sum", "v"))),
        (2, bodies("broadcast %a root=2 group=@w", "broadcast %b root=1 group=@w")),
        // Results of the collectives are returned, or operands are inputs.
        (2, sums.replace("return %t\nreturn %u", "return %r\nreturn %s")),
        (2, bodies(&reduce("x", "sum", "w"), &reduce("y", "sum", "w"))),
        // One is read by the other.
        (
            2,
            format!(
                "%r: i32[4, 96] = {}\n%c: i32[3] = reduce %r op=max axes=[0, 1] keep=false\n",
                reduce("a", "sum", "w")
            )
            .replace("%c: i32[3]", "%m: i32[]")
                + &format!(
                    "%c: i32[3] = add %b, %m\n%s: i32[3] = {}\n%u: i32[3] = neg %s\nreturn %u\n",
                    reduce("c", "sum", "w")
                ),
        ),
        // An input that the program replaces.
        (1, sums.replace("return %t", "mutate %x = %t")),
    ];
    for (expected, body) in cases {
        let program = program(&(HEAD.to_string() + &body));
        let plan = planned(&program);
        assert_eq!(collectives(&plan), expected, "{body}\n{}", plan.programs[0]);
        check(&program, &plan);
    }
}

#[test]
fn with_coalesce_false_prevents_coalescing() {
    let body = "%r: i32[4, 96] = all_reduce %a op=sum group=@w\n%s: i32[3] = all_reduce %b op=sum group=@w\n\
        %t: i32[4, 96] = neg %r\n%u: i32[3] = neg %s\nreturn %t\nreturn %u\n";
    let program = program(&(HEAD.to_string() + body));
    let profile = MachineProfile::builtin("h200x4").unwrap_or_else(|| panic!("h200x4"));
    for (coalesce, expected) in [(true, 1), (false, 2)] {
        let config = CompileConfig::default().with_profile(profile.clone()).with_coalesce(coalesce);
        let plan = symmc::compile(&program, &config).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(collectives(&plan), expected);
        let named = plan.buckets[0].decisions.iter().flat_map(|d| &d.rules);
        assert_eq!(named.filter(|rule| rule.name == "coalesce_collectives").count() > 0, coalesce);
        check(&program, &plan);
    }
}

/// Every collective of the source, and every one that is planned, is part of a decision.
#[test]
fn decisions_name_what_was_coalesced() {
    let body = "%r: i32[4, 96] = all_reduce %a op=sum group=@w\n%s: i32[3] = all_reduce %b op=sum group=@w\n\
        %t: i32[4, 96] = neg %r\n%u: i32[3] = neg %s\nreturn %t\nreturn %u\n";
    let plan = planned(&program(&(HEAD.to_string() + body)));
    let [first, second] = &plan.buckets[0].decisions[..] else { panic!("{:?}", plan.buckets[0].decisions) };
    assert_eq!((first.collective.as_str(), second.collective.as_str()), ("r", "s"));
    assert_eq!((&first.nodes[..], &second.nodes[..]), (&["r.coalesced".to_string()][..], &[][..]));
    assert_eq!((first.bytes, second.bytes, second.chosen.as_str()), (4 * 96 * 4 + 12, 12, "absorbed"));
    for decision in [first, second] {
        assert_eq!(decision.rules[0].name, "coalesce_collectives");
    }
}

/// The gradients of a data-parallel step: those of biases are coalesced, and matrices do not wait for all others.
#[test]
fn gradients_are_coalesced_while_that_saves_time() {
    let mut text = "program \"p\" ranks 4\ngroup @w world\narg %x: bf16[2048, 2048]\n".to_string();
    let (mut last, mut returned) = ("x".to_string(), String::new());
    for i in 0..12 {
        text += &format!(
            "%m{i}: bf16[2048, 2048] = matmul %{last}, %x\n%g{i}: bf16[2048, 2048] = matmul %m{i}, %m{i}\n\
             %b{i}: bf16[2048] = reduce %m{i} op=sum axes=[0] keep=false\n\
             %r{i}: bf16[2048, 2048] = all_reduce %g{i} op=avg group=@w\n%s{i}: bf16[2048] = all_reduce %b{i} op=avg group=@w\n\
             %u{i}: bf16[2048, 2048] = neg %r{i}\n%v{i}: bf16[2048] = neg %s{i}\n"
        );
        returned += &format!("return %u{i}\nreturn %v{i}\n");
        last = format!("m{i}");
    }
    let program = program(&(text + &returned));
    let plan = planned(&program);
    let compared = symmc::compare_with_source(&plan);
    assert!(compared.differences.is_empty() && compared.parts.is_empty(), "{compared:?}");
    let count = collectives(&plan);
    assert!((2..16).contains(&count), "{count}");
}

/// The collectives of each step of a plan that has several.
fn together(plan: &CheckedPlan) -> Vec<Vec<String>> {
    let graph = symmc::unstable::ir::text::parse(&plan.programs[plan.buckets[0].program]);
    let graph = graph.unwrap_or_else(|e| panic!("{e}"));
    let sets = graph.dispatches.iter().filter(|d| d.form == symmc::unstable::ir::DispatchForm::Collectives);
    sets.map(|d| d.nodes().map(|n| graph.node_name(n).to_string()).collect()).collect()
}

#[test]
fn collectives_of_one_group_run_as_one_step() {
    let (head, sums) = (
        "program \"p\" ranks 4\ngroup @w world\ngroup @v [[0, 1], [2, 3]]\ngroup @u [[0, 1, 2, 3]]\narg %x: i32[4, 96]\n\
         arg %y: u8[8, 3]\n\
         param %p: i32[5, 7]\nparam %q: u8[3]\n%a: i32[4, 96] = neg %x\n%b: u8[8, 3] = add %y, %y\n",
        "%r: i32[4, 96] = all_reduce %a op=sum group=@w\n%s: u8[8, 3] = all_reduce %b op=max group=@w\n\
         %v: i32[4, 96] = all_reduce %x op=min group=@w\n%t: i32[4, 96] = add %r, %v\n%u: u8[8, 3] = add %s, %s\n\
         return %t\nreturn %u\n",
    );
    let gathers = "%r: i32[20, 7] = all_gather %p group=@w\n%s: u8[12] = all_gather %q group=@w\n\
         %t: i32[20, 7] = neg %r\n%u: u8[12] = add %s, %s\nreturn %t\nreturn %u\n";
    let mixed = "%r: i32[4, 96] = all_to_all %a splits=even group=@w\n%s: u8[2, 3] = reduce_scatter %b op=max group=@w\n\
         %g: u8[12] = all_gather %q group=@w\n%t: i32[4, 96] = neg %r\n%u: u8[2, 3] = add %s, %s\n\
         return %t\nreturn %u\nreturn %g\n";
    let cases: [(&str, &[&[&str]]); 6] = [
        (gathers, &[&["r", "s"]]),
        (mixed, &[&["r", "s", "g"]]),
        // The third one, of an argument, is where peers have left the operands of these.
        (sums, &[&["r", "s"]]),
        // A group of another name with the same cells.
        (&gathers.replace("all_gather %q group=@w", "all_gather %q group=@u"), &[&["r", "s"]]),
        // Another group, and one that reads the other.
        (
            &gathers
                .replace("u8[12] = all_gather %q group=@w", "u8[6] = all_gather %q group=@v")
                .replace("u8[12]", "u8[6]"),
            &[],
        ),
        (
            "%r: i32[4, 96] = all_to_all %a splits=even group=@w\n%n: i64[4, 96] = cumsum %r axis=1\n\
             %s: i64[4, 96] = all_to_all %n splits=even group=@w\nreturn %s\n",
            &[],
        ),
    ];
    for (body, expected) in cases {
        let program = program(&(head.to_string() + body));
        let plan = planned(&program);
        assert_eq!(together(&plan), expected, "{body}\n{}", plan.programs[0]);
        check(&program, &plan);
        let decided = plan.buckets[0]
            .decisions
            .iter()
            .filter(|d| d.rules.iter().any(|r| r.name == "run_collectives_together"));
        assert_eq!(decided.count(), expected.iter().map(|set| set.len()).sum::<usize>());
    }
}

/// A run that does nothing but communicate: the bound by which choices are dropped counts a set as the one step that it is.
#[test]
fn programs_of_collectives_alone_run_as_one_step() {
    let sizes = 256..261;
    let mut text = "program \"p\" ranks 4\ngroup @w world\n".to_string();
    for size in sizes.clone() {
        text += &format!("param %x{size}: i32[4, {size}]\n");
    }
    for size in sizes.clone() {
        text += &format!("%g{size}: i32[16, {size}] = all_gather %x{size} group=@w\n");
    }
    for size in sizes {
        text += &format!("return %g{size}\n");
    }
    let program = program(&text);
    let plan = planned(&program);
    assert_eq!(together(&plan).iter().map(Vec::len).collect::<Vec<_>>(), [5], "{:?}", together(&plan));
    check(&program, &plan);
}
