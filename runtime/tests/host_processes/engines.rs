//! Jobs that choose an engine other than the host's.

use symmc_runtime::RunError;
use symmc_runtime::exec::RankMemory;
use symmc_runtime::host::{Engine, EngineChoice, RankRun, launch};

use crate::Test;
use crate::programs::{Owned, command};

pub const TESTS: &[Test] = &[
    ("an_engine_meets_its_peers", an_engine_meets_its_peers),
    ("an_unknown_engine_is_refused", an_unknown_engine_is_refused),
];

/// Writes what the ranks tell each other into the first output.
pub struct Roll;

impl Engine for Roll {
    fn name(&self) -> &'static str {
        "roll"
    }

    unsafe fn run(
        &self,
        options: &str,
        run: &RankRun<'_>,
        memory: &RankMemory,
        ready: &mut dyn FnMut() -> Result<(), RunError>,
    ) -> Result<(), RunError> {
        let names = run.exchange(format!("{options}{}", run.comm.rank()).as_bytes())?;
        ready()?;
        let text: Vec<u8> = names.concat();
        let bytes: Vec<u8> = text.iter().flat_map(|&b| f32::from(b).to_le_bytes()).collect();
        // SAFETY: the caller's promise: the output has 128 elements or more.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory.outputs[0].ptr, bytes.len()) };
        Ok(())
    }
}

fn chosen(name: &str) -> Owned {
    let mut owned = Owned::mixed(4);
    owned.config.engine = EngineChoice::Named { name: name.into(), options: "r".into() };
    owned
}

fn an_engine_meets_its_peers() {
    let outputs = launch(&chosen("roll").job(), &command()).expect("the run ends well");
    for rank in outputs {
        let text: String = rank[0].to_f64().iter().take(8).map(|&x| char::from(x as u8)).collect();
        assert_eq!(text, "r0r1r2r3");
    }
}

fn an_unknown_engine_is_refused() {
    let error = launch(&chosen("abacus").job(), &command()).expect_err("there is none");
    assert!(error.to_string().contains("no engine called abacus"), "{error}");
}
