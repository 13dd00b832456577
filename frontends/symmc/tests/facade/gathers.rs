//! Gathers along other axes than the first: one step with the copy that stores them, and what it gives.

use symmc::unstable::ir::{DispatchForm, text};
use symmc::{
    CollectiveVariant, CompileConfig, DrawConfig, Execution, MachineProfile, Program, RunConfig, Weights,
    Workload,
};

/// A gather of `%l` along the last axis in each of the ways to write it, and what is returned.
const SPELLINGS: [&str; 3] = [
    "%r: f32[4, 6, 8] = reshape %g\n%t: f32[6, 4, 8] = permute %r perm=[1, 0, 2]\n%f: f32[6, 32] = reshape %t\n",
    "%r: f32[4, 6, 8] = reshape %g\n%t: f32[6, 4, 8] = permute %r perm=[1, 0, 2]\n%u: f32[1, 6, 4, 8] = reshape %t\n\
     %f: f32[6, 32] = reshape %u\n",
    "%a: f32[6, 8] = slice %g axis=0 start=0 step=1\n%b: f32[6, 8] = slice %g axis=0 start=6 step=1\n\
     %c: f32[6, 8] = slice %g axis=0 start=12 step=1\n%d: f32[6, 8] = slice %g axis=0 start=18 step=1\n\
     %f: f32[6, 32] = concat %a, %b, %c, %d axis=1\n",
];

#[test]
fn last_axis_gather_is_one_step_with_equal_bits() {
    let profile = MachineProfile::builtin("h200x4").expect("built in");
    for (spelling, variant) in
        SPELLINGS.iter().flat_map(|s| [CollectiveVariant::Ll, CollectiveVariant::Pull].map(|v| (s, v)))
    {
        let source = format!(
            "program \"p\" ranks 4\ngroup @w world\narg %x: f32[6, 8]\n%l: f32[6, 8] = neg %x\n\
             %g: f32[24, 8] = all_gather %l group=@w\n{spelling}%y: f32[6, 32] = neg %f\nreturn %f, %y\n"
        );
        let program = Program::from_graph(text::parse(&source).expect("a graph")).expect("a program");
        let allowed = vec![variant];
        let config = CompileConfig::default().with_profile(profile.clone()).with_variants(allowed);
        let plan = symmc::compile(&program, &config).unwrap_or_else(|e| panic!("{e}"));
        let planned = text::parse(&plan.programs[0]).expect("a graph");
        let gathers = planned.dispatches.iter().filter(|d| d.form == DispatchForm::Gather);
        assert_eq!(gathers.count(), 1, "{}", plan.programs[0]);
        let compared = symmc::compare_with_source(&plan);
        assert!(compared.differences.is_empty(), "{compared:?}");
        let draw = DrawConfig::default().with_seed(3).with_arguments(true);
        let work = Workload::gather(&program.graph, &Weights::default(), None, &draw);
        let work = work.unwrap_or_else(|e| panic!("{e}"));
        let run = |execution| {
            symmc::run(&plan, &work, &execution, &RunConfig::default()).unwrap_or_else(|e| panic!("{e}"))
        };
        assert_eq!(run(Execution::Threads), run(Execution::Interpreter), "{source}");
    }
}
