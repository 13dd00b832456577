//! Plans of small programs are packed as well as `symmc pack` packs their buffers: at the bound.

use std::path::Path;

use symmc::{CompileConfig, MachineProfile, OpenOptions, Program};

#[test]
fn small_programs_are_packed_at_the_bound() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/packing");
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("a file").path();
        let program = Program::open(&path, &OpenOptions::default()).expect("a program");
        for machine in ["host", "h200x4"] {
            let config =
                CompileConfig::default().with_profile(MachineProfile::builtin(machine).expect("built in"));
            let plan = symmc::compile(&program, &config).expect("a plan");
            let totals = &plan.buckets[0].totals;
            let label = format!("{} on {machine}", path.display());
            assert_eq!(totals.ordinary_peak, totals.ordinary_bound, "{label}");
            assert_eq!(totals.symmetric_peak, totals.symmetric_bound, "{label}");
        }
    }
}
