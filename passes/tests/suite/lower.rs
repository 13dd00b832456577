//! Lowering on small programs: `tests/lower/*.symm`.
//!
//! The words after a case's name are `machine=NAME`, `hidden=EIGHTHS` for the overlap of all collectives, `SYMBOL=MIN..MAX` for the bucket, `bind=INPUT`,
//! `only=VARIANT`, `numerics=CLASS`, `coalesce=MICROSECONDS` of computation between coalesced collectives,
//! and `together=MICROSECONDS` between those that run as one step. The other words are the rules that must
//! fire, and with `!` those that must not. The output is the lowered program and, as comments, the decision
//! for each collective.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Write as _;

use symmc_ir::machine::MachineProfile;
use symmc_ir::{CollectiveVariant, Graph, InputId, NumericsClass, Op, text};
use symmc_passes::lower::rules::{rewriting_rules, variant_rules};
use symmc_passes::lower::{COALESCE_RULE, JOINT_STEP_RULE};
use symmc_passes::{CoalesceConfig, CoalesceReach, JoinMode, LowerConfig, find_coalescible, lower};
use symmc_plan::{Decision, DecisionAlternative};

use crate::common::{ProgramCase, bindings, check, difference};

fn config(case: &ProgramCase) -> (LowerConfig, Vec<String>) {
    let mut config = LowerConfig::new(MachineProfile::builtin("h200x4").unwrap());
    let mut rules = Vec::new();
    let mut only = Vec::new();
    let mut windows = Vec::new();
    for word in &case.words {
        match word.split_once('=') {
            Some(("machine", name)) => config.profile = MachineProfile::builtin(name).unwrap(),
            Some(("hidden", eighths)) => config.conditions.default.hidden_eighths = eighths.parse().unwrap(),
            Some(("bind", name)) => {
                config.bound.insert(input(&case.program, name));
            }
            Some(("numerics", name)) => {
                config.numerics = config.numerics.with_class(NumericsClass::from_name(name).unwrap());
            }
            Some(("coalesce", us)) => windows.push((JoinMode::Packed, us.parse().unwrap())),
            Some(("together", us)) => windows.push((JoinMode::Together, us.parse().unwrap())),
            Some(("only", name)) => only.push(CollectiveVariant::from_name(name).unwrap()),
            Some((symbol, range)) => {
                let (min, max) = range.split_once("..").unwrap();
                let id = case.program.symbols.iter().find(|(_, s)| s.name == symbol).unwrap().0;
                config.symbols.insert(id, (min.parse().unwrap(), max.parse().unwrap()));
            }
            None => rules.push(word.clone()),
        }
    }
    config.variants = (!only.is_empty()).then_some(only);
    for (joining, window_us) in windows {
        let reach = CoalesceReach { window_us, least_startup: 0.0 };
        let coalesce = CoalesceConfig { joining, reach, kept: BTreeSet::new() };
        let sets = find_coalescible(&case.program, &config, &coalesce).unwrap();
        match joining {
            JoinMode::Packed => config.coalesced = sets,
            JoinMode::Together => config.together = sets,
        }
    }
    (config, rules)
}

fn input(graph: &Graph, name: &str) -> InputId {
    graph.inputs.iter().find(|(_, i)| graph.value_name(i.value) == name).unwrap().0
}

fn print(graph: &Graph, choices: &[Decision]) -> String {
    let mut out = text::print(graph);
    for c in choices {
        write!(
            out,
            "\n// %{}: {}, {} bytes, by {:?}, rules {:?}",
            c.collective,
            c.chosen,
            c.bytes,
            c.nodes,
            c.rules.iter().map(|r| &r.name).collect::<Vec<_>>()
        )
        .unwrap();
        let unchosen = c.alternatives.iter().filter(|a| a.name != c.chosen);
        let nearest: Vec<String> = unchosen.take(2).map(describe_alternative).collect();
        if !nearest.is_empty() {
            write!(out, "\n//   rather than {}", nearest.join(", ")).unwrap();
        }
    }
    out
}

fn describe_alternative(alternative: &DecisionAlternative) -> String {
    let copies = if alternative.copy_us > 0.0 { " with copies" } else { "" };
    let fused = if alternative.saved_us > 0.0 { " fused" } else { "" };
    format!("{}{copies}{fused}", alternative.name)
}

/// Checks the properties of every lowering.
fn sound(case: &ProgramCase, out: &Graph, choices: &[Decision]) {
    for node in out.nodes.values() {
        let Op::Collective(c) = &node.op else { continue };
        assert!(c.variant.is_some_and(|v| v.contract(&c.kind).is_some()), "{}: {c:?}", case.at);
        let name = out.value_name(node.outputs[0]);
        let by = choices.iter().flat_map(|c| &c.nodes).filter(|n| *n == name).count();
        assert_eq!(by, 1, "{}: %{name} belongs to {by} choices", case.at);
    }
    let collectives = case.program.nodes.values().filter(|n| n.op.as_collective().is_some());
    assert_eq!(choices.len(), collectives.count(), "{}", case.at);
    for choice in choices {
        let us = |name: &str| choice.alternatives.iter().find(|a| a.name == name).map(|a| a.us);
        assert!(us("plain").is_some() && us(&choice.chosen).is_some(), "{}: {choice:?}", case.at);
        assert!(choice.alternatives.is_sorted_by(|a, b| a.us <= b.us), "{}: {choice:?}", case.at);
        assert!(us(&choice.chosen) <= us("plain"), "{}: {choice:?}", case.at);
        for rule in &choice.rules {
            // Only rules that run a collective have a time.
            let runs = variant_rules().iter().any(|way| way.name == rule.name);
            assert!(
                runs || [COALESCE_RULE, JOINT_STEP_RULE].contains(&rule.name.as_str())
                    || rewriting_rules().any(|(name, _)| name == rule.name),
                "{}: {choice:?}",
                case.at
            );
            assert_eq!(rule.us.is_some(), runs || rule.name == JOINT_STEP_RULE, "{}: {choice:?}", case.at);
        }
        if let [rule] = &choice.rules[..]
            && rule.name != COALESCE_RULE
        {
            assert_eq!(rule.us, us(&choice.chosen), "{}: {choice:?}", case.at);
        }
        for name in &choice.nodes {
            assert!(out.values.values().any(|v| v.name == *name), "{}: no %{name}", case.at);
        }
    }
}

#[test]
fn cases() {
    let covered: RefCell<BTreeSet<String>> = RefCell::default();
    let rule_names: BTreeSet<String> = rewriting_rules()
        .map(|(name, _)| name.into())
        .chain(variant_rules().into_iter().map(|w| w.name))
        .collect();
    let rule_names: BTreeSet<String> =
        rule_names.into_iter().chain([COALESCE_RULE.into(), JOINT_STEP_RULE.into()]).collect();
    check("lower", |case: &ProgramCase| {
        let (config, rules) = config(case);
        let (out, choices, report) = lower(&case.program, &config).unwrap();
        sound(case, &out, &choices);
        for word in rules {
            let (rule, wanted) = word.strip_prefix('!').map_or((word.as_str(), true), |w| (w, false));
            assert!(rule_names.contains(rule), "{}: there is no rule {rule}", case.at);
            assert_eq!(
                report.fired.contains_key(rule),
                wanted,
                "{}: {rule}\n{}",
                case.at,
                print(&out, &choices)
            );
            covered.borrow_mut().insert(word);
        }
        // Without symbols, all bindings are equal.
        for which in 0..=i64::from(!out.symbols.is_empty()) {
            let bindings = bindings(&out, which);
            let worst = difference(&case.program, &out, &bindings, 3);
            assert!(
                worst <= if config.numerics.is_exact() { 0.0 } else { 1e-2 },
                "{}: differs by {worst}",
                case.at
            );
        }
        let (again, same_choices, _) = lower(&case.program, &config).unwrap();
        assert!(again == out && same_choices == choices, "{}: another result the second time", case.at);
        print(&out, &choices)
    });
    let covered = covered.into_inner();
    for name in &rule_names {
        assert!(covered.contains(name), "no case fires {name}");
        assert!(covered.contains(&format!("!{name}")), "no case for !{name}");
    }
}

#[test]
fn residual_savings_need_a_machine_that_fuses_them() {
    let program = "program \"p\" ranks 4\ngroup @all world\narg %x: bf16[16, 4096]\n%h: bf16[16, 4096] = neg %x\n\
        %y: bf16[16, 4096] = all_reduce %h op=sum group=@all\n%z: bf16[16, 4096] = add %x, %y\nreturn %z\n";
    let program = text::parse(program).unwrap();
    let saved = |profile: &MachineProfile| {
        let (_, choices, _) = lower(&program, &LowerConfig::new(profile.clone())).unwrap();
        choices[0].alternatives.iter().any(|a| a.saved_us > 0.0)
    };
    let mut profile = MachineProfile::builtin("h200x4").unwrap();
    assert!(saved(&profile));
    profile.dispatches.reduction = None;
    assert!(!saved(&profile));
}

/// A chain of `n` collectives that feed one another, with two results.
fn chain(n: usize) -> Graph {
    let mut out = String::from(
        "program \"chain\" ranks 2\ngroup @all world\narg %x: f32[8, 4]\n%v0: f32[8, 4] = neg %x\n",
    );
    for i in 0..n {
        let op = ["all_reduce %v op=avg", "permute_ranks %v pairs=[0->1, 1->0]", "all_to_all %v splits=even"]
            [i % 3];
        let op = op.replace("%v", &format!("%v{i}"));
        writeln!(out, "%v{}: f32[8, 4] = {op} group=@all", i + 1).unwrap();
    }
    writeln!(out, "return %v{n}\nreturn %v{}", n / 2).unwrap();
    text::parse(&out).unwrap()
}

#[test]
fn long_chains_are_chosen_in_pieces() {
    let graph = chain(500);
    let config = LowerConfig::new(MachineProfile::builtin("h200x4").unwrap());
    let (out, choices, report) = lower(&graph, &config).unwrap();
    assert_eq!(choices.len(), 500);
    assert_eq!(report.regions, 500_usize.div_ceil(symmc_passes::lower::MAX_REGION_NODES));
    // The pieces differ in whether they hold the start, the end or a returned value of the chain.
    assert!(report.distinct <= 8, "{report:?}");
    for node in out.nodes.values() {
        assert!(node.op.as_collective().is_none_or(|c| c.variant.is_some()), "{node:?}");
    }
    assert!(difference(&graph, &out, &bindings(&graph, 0), 1) < 1e-6);
}
