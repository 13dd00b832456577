//! Sessions take what was told before they were opened: over recorded programs, at the ends of their sizes, by what they
//! say themselves and by what the system has mapped. A process of its own: others would map meanwhile.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use symmc::{
    ArgumentBinding, CheckedPlan, CompileConfig, DrawConfig, Group, MemoryUsage, OpenOptions, Program,
    Session, SessionConfig, TensorFile, Workload,
};
use symmc_ir::Symbol;
use symmc_tests::{RECORDED_PROGRAMS, program};

/// The segments of shared memory of sessions that this process maps, with their bytes, however often each is mapped.
fn shared() -> BTreeMap<u64, usize> {
    let maps = fs::read_to_string("/proc/self/maps").expect("mappings");
    let mut segments: BTreeMap<u64, usize> = BTreeMap::new();
    for line in maps.lines().filter(|line| line.contains("memfd:symmc")) {
        let mut words = line.split_whitespace();
        let (start, end) = words.next().and_then(|range| range.split_once('-')).expect("a range");
        let address = |text| usize::from_str_radix(text, 16).expect("an address");
        let node = words.nth(3).and_then(|node| node.parse().ok()).expect("an inode");
        let bytes = segments.entry(node).or_default();
        *bytes = (*bytes).max(address(end) - address(start));
    }
    segments
}

/// What was told for every rank, and what the sessions took: when opened, and when all memory was made and one run done.
fn told_and_taken(
    plan: &CheckedPlan,
    sizes: &[(String, i64)],
    work: Option<&Workload>,
) -> Vec<(MemoryUsage, MemoryUsage, MemoryUsage)> {
    let together = Barrier::new(plan.ranks as usize);
    let before = shared();
    let config = SessionConfig::default().with_timeout(Duration::from_secs(20)).with_symmetric_bytes(5000);
    let of_rank = |group: Group| {
        let budget = Session::budget(plan, group.rank(), &config).expect("it is told");
        let mut session = Session::open(plan, &group, &config).expect("a session");
        let opened = session.memory_usage();
        together.wait();
        // What coordinated the sessions before lets go of their memory in its own time.
        let mapped =
            shared().iter().filter(|(node, _)| !before.contains_key(node)).map(|(_, bytes)| bytes).sum();
        together.wait();
        for (symbol, value) in sizes {
            session.set(symbol, *value).expect("a size that the plan serves");
        }
        let source = plan.source_program();
        for (k, input) in source.inputs.values().enumerate().filter(|(_, input)| input.data.is_none()) {
            let name = source.value_name(input.value);
            match work {
                Some(work) => {
                    let tensor = &work.inputs[group.rank() as usize][k];
                    session.write(name, tensor.load_to_memory().expect("data").data()).expect("it fits");
                }
                None => _ = session.address(name).expect("memory"),
            }
        }
        let returned = source.outputs.iter().filter(|o| o.kind == symmc_ir::OutputKind::Returned).count();
        for output in 0..returned {
            session.address(&format!("out.{output}")).expect("memory");
        }
        if work.is_some() {
            session.run().expect("a run");
        }
        let used = session.memory_usage();
        session.close().expect("all went well");
        (budget, opened, used, mapped)
    };
    let usages: Vec<_> = thread::scope(|scope| {
        let ranks = Group::threads(plan.ranks).into_iter().map(|group| scope.spawn(|| of_rank(group)));
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().expect("a rank")).collect()
    });
    // Every segment is rounded up to whole pages: the arenas, and two that the ranks have together.
    let budgeted: usize = usages.iter().map(|(told, ..)| told.symmetric + told.flags).sum();
    let mapped: usize = usages[0].3;
    let rounding = 4096 * (usages.len() + 2) + usages.len();
    assert!(
        mapped <= budgeted + rounding && budgeted <= mapped + rounding,
        "told {budgeted}, mapped {mapped}"
    );
    usages.into_iter().map(|(told, opened, taken, _)| (told, opened, taken)).collect()
}

fn expect_within(context: &str, found: Vec<(MemoryUsage, MemoryUsage, MemoryUsage)>, at_most: bool) {
    for (told, opened, taken) in found {
        let always = |t: MemoryUsage| [t.ordinary, t.symmetric, t.flags];
        assert_eq!(always(told), always(opened), "{context}");
        assert_eq!((opened.scratch, opened.ports), (0, 0), "{context}: nothing was asked for yet");
        assert_eq!(always(told), always(taken), "{context}");
        assert!(taken.scratch <= told.scratch && taken.ports <= told.ports, "{context}: {told:?}, {taken:?}");
        assert!(!at_most || taken.ports == told.ports, "{context}: {told:?}, {taken:?}");
        let purposes = [taken.ordinary, taken.symmetric, taken.flags, taken.scratch, taken.ports];
        assert_eq!(taken.total_bytes(), purposes.iter().sum::<usize>());
    }
}

fn range_ends(plan: &CheckedPlan, end: impl Fn(&Symbol) -> i64) -> Vec<(String, i64)> {
    plan.source_program().symbols.values().map(|s| (s.name.clone(), end(s))).collect()
}

#[test]
fn sessions_take_what_was_told_before() {
    let mut used = 0;
    for stem in RECORDED_PROGRAMS {
        let tensors = TensorFile::open(&program(&format!("{stem}.safetensors"))).expect("recorded tensors");
        let tensors = Arc::new(tensors);
        let options = OpenOptions::default().with_tensors(tensors.clone());
        let program = Program::open(&program(&format!("{stem}.pt2")), &options).expect("a program");
        let draw = DrawConfig::default();
        let work =
            Workload::gather(&program.graph, &program.weights, Some(&tensors), &draw).expect("a workload");
        for bind in [ArgumentBinding::None, ArgumentBinding::All] {
            let plan =
                symmc::compile(&program, &CompileConfig::default().with_bind(bind.clone())).expect("a plan");
            let symbols = plan.source_program().symbols.iter();
            let recorded = symbols.map(|(id, s)| (s.name.clone(), work.bindings.get(id).expect("a value")));
            let usages = told_and_taken(&plan, &recorded.collect::<Vec<_>>(), Some(&work));
            used += usages.iter().map(|(_, _, taken)| taken.scratch).sum::<usize>();
            expect_within(&format!("{stem}, {bind:?}, as recorded"), usages, false);
            let usages = told_and_taken(&plan, &range_ends(&plan, |s| s.min), None);
            expect_within(&format!("{stem}, {bind:?}, smallest"), usages, false);
            let usages = told_and_taken(&plan, &range_ends(&plan, |s| s.max), None);
            expect_within(&format!("{stem}, {bind:?}, largest"), usages, true);
        }
    }
    assert!(used > 0, "kernels of some program need memory");

    // An extent that falls as a symbol grows takes the most at the least size; a rank that there is not is named.
    let text = "program \"falling\" ranks 1\nsymbol n in 1..=8\narg %x: f32[64 - 8 * n, 4]\n%y: f32[64 - 8 * n, 4] = neg %x\nreturn %y\n";
    let falling = Program::from_text(text).expect("a program");
    let plan = symmc::compile(&falling, &CompileConfig::default()).expect("a plan");
    expect_within("falling", told_and_taken(&plan, &[("n".into(), 1)], None), true);
    let error = Session::budget(&plan, 7, &SessionConfig::default()).expect_err("there is one rank");
    assert!(error.is_bad_input() && error.to_string().contains("rank 7"), "{error}");
}
