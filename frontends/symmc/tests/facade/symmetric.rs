//! Symmetric buffers of callers: inputs that peers read lie there, take turns, and are the same on all ranks, or are refused.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use symmc::unstable::ir::InputKind;
use symmc::{
    ArgumentBinding, CheckedPlan, CollectiveVariant, CompileConfig, DrawConfig, Error, ErrorKind, Group,
    MachineProfile, OpenOptions, PortStorage, Program, Session, SessionBuffer, SessionConfig, Tensor,
    TensorFile, Workload,
};

use crate::threads::{bytes, on_ranks};

const LIMIT: Duration = Duration::from_secs(20);

/// Peers read an argument and a weight.
const SUMS: &str = r#"program "sums" ranks 2
symbol n in 1..=64
group @all world
arg %x: f32[n, 4]
param %w: f32[8]
%y: f32[n, 4] = all_reduce %x op=sum group=@all via=one_shot
%v: f32[16] = all_gather %w group=@all via=pull
return %y, %v
"#;

fn sums() -> CheckedPlan {
    planned(&Program::from_text(SUMS).expect("a program"))
}

/// A plan whose collectives read the memory of peers.
fn planned(program: &Program) -> CheckedPlan {
    let profile = MachineProfile::builtin("h200x4").expect("built in");
    let variants = vec![CollectiveVariant::OneShot, CollectiveVariant::Pull];
    let config = CompileConfig::default()
        .with_profile(profile)
        .with_bind(ArgumentBinding::All)
        .with_variants(Some(variants));
    symmc::compile(program, &config).expect("a plan")
}

fn config() -> SessionConfig {
    SessionConfig::default().with_timeout(LIMIT).with_symmetric_bytes(1 << 14)
}

fn bind(session: &mut Session, name: &str, buffer: &SessionBuffer) -> Result<(), Error> {
    // SAFETY: these tests write a buffer only while no run has it bound, and no other session runs.
    unsafe { session.bind_buffer(name, buffer) }
}

#[test]
fn two_buffers_take_turns_where_peers_read_them() {
    let plan = sums();
    for seed in [None, Some(1), Some(2)] {
        on_ranks(2, |group| {
            let config = seed.map_or_else(config, |seed| config().with_chaos(seed));
            let mut session = Session::open(&plan, &group, &config).expect("a session");
            session.set("n", 64).expect("a size");
            for name in ["x", "w"] {
                assert!(matches!(
                    session.address(name).expect("an address").storage,
                    PortStorage::Symmetric(_)
                ));
            }
            let turns = [0, 1].map(|_| session.allocate_symmetric(1024).expect("memory"));
            let weight = session.allocate_symmetric(32).expect("memory");
            weight.write(0, &bytes(&[group.rank() as f32; 8])).expect("it fits");
            bind(&mut session, "w", &weight).expect("it fits");
            let mut sizes = [64i64, 64, 5, 64, 1, 64, 5, 64].into_iter().enumerate();
            let fill = |run: usize, n: i64| {
                let value = run as f32 * 2.0 + group.rank() as f32;
                turns[run % 2].write(0, &bytes(&vec![value; n as usize * 4])).expect("it fits");
            };
            let mut next = sizes.next();
            next.iter().for_each(|(run, n)| fill(*run, *n));
            while let Some((run, n)) = next {
                session.set("n", n).expect("a size");
                bind(&mut session, "x", &turns[run % 2]).expect("it fits");
                session.enqueue().expect("a run");
                // While it runs.
                next = sizes.next();
                next.iter().for_each(|(run, n)| fill(*run, *n));
                session.wait(LIMIT).expect("it ends");
                let y = session.read("y").expect("an output").to_f64();
                assert_eq!(y, vec![run as f64 * 4.0 + 1.0; n as usize * 4], "run {run}");
                let v = session.read("v").expect("an output").to_f64();
                assert_eq!(v, [[0.0; 8], [1.0; 8]].concat());
            }
            // Nothing was copied to where the plan has it.
            session.unbind("x").expect("it was bound");
            session.set("n", 64).expect("a size");
            assert_eq!(session.read("x").expect("an input").to_f64(), vec![0.0; 256]);
            let error = session.unbind("w").expect_err("it was read").to_string();
            assert!(error.contains("before the first run"), "{error}");
            session.close().expect("it ends");
            assert_eq!(weight.read(0, 4).expect("it is there"), bytes(&[group.rank() as f32]));
        });
    }
}

#[test]
fn differing_symmetric_bindings_are_rejected_before_the_run() {
    let plan = sums();
    let errors = on_ranks(2, |group| {
        let mut session = Session::open(&plan, &group, &config()).expect("a session");
        session.set("n", 1).expect("a size");
        session.write("w", &[0; 32]).expect("it fits");
        let buffers = [0, 1].map(|_| session.allocate_symmetric(64).expect("memory"));
        bind(&mut session, "x", &buffers[0]).expect("it fits");
        session.run().expect("both are alike");
        bind(&mut session, "x", &buffers[group.rank() as usize]).expect("it fits");
        session.run().expect_err("they differ")
    });
    for error in &errors {
        assert_eq!(error.kind(), ErrorKind::Disagreement, "{error}");
        assert!(error.to_string().contains("n=1, input %x in symmetric memory at"), "{error}");
    }
    let errors = on_ranks(2, |group| {
        let mut session = Session::open(&plan, &group, &config()).expect("a session");
        session.set("n", 1).expect("a size");
        session.write("w", &[0; 32]).expect("it fits");
        session.write("x", &[0; 16]).expect("it fits");
        let buffer = session.allocate_symmetric(64).expect("memory");
        if group.rank() == 0 {
            bind(&mut session, "x", &buffer).expect("it fits");
        }
        session.run().expect_err("they differ").to_string()
    });
    assert!(errors.iter().all(|e| e.contains("all ranks must agree")), "{errors:?}");
}

#[test]
fn invalid_symmetric_allocations_and_bindings_are_rejected_by_name() {
    let plan = sums();
    on_ranks(2, |group| {
        let mut session = Session::open(&plan, &group, &config()).expect("a session");
        session.set("n", 1).expect("a size");
        let error = session.allocate_symmetric(64 + group.rank() as usize).expect_err("they differ");
        assert!(error.to_string().contains("found [64, 65] bytes by rank"), "{error}");
        let error = session.allocate_symmetric(1 << 20).expect_err("it is too much");
        assert!(error.to_string().contains("expected at most 16384 bytes, found 1048576"), "{error}");
        let buffer = session.allocate_symmetric(1 << 14).expect("all of it");
        session.allocate_symmetric(1).expect_err("nothing is left");
        let start = buffer.as_ptr();
        let refusals = [
            ("x", start.wrapping_add(16), 64, "expected a multiple of 64 there"),
            ("x", start.wrapping_sub(16), 64, "overlaps the symmetric arena of the session"),
            ("out.0", start.wrapping_sub(64), 64, "overlaps the symmetric arena of the session"),
        ];
        for (name, at, bytes, says) in refusals {
            // SAFETY: it is refused.
            let error = unsafe { session.bind(name, at, bytes) }.expect_err("it may not be");
            assert!(error.to_string().contains(says) && error.is_bad_input(), "{error}");
        }
        let error = session.release().expect_err("the buffer is there").to_string();
        assert!(error.contains("memory in the symmetric arena"), "{error}");
        // Other inputs and outputs lie there as in any memory.
        session.write("w", &[0; 32]).expect("it fits");
        buffer.write(64, &bytes(&[3.0; 4])).expect("it fits");
        // SAFETY: the buffer stays, and nobody touches it while a run is in progress.
        unsafe {
            session.bind("x", start.wrapping_add(64), 16).expect("it fits");
            session.bind("out.0", start.wrapping_add(16), 16).expect("it fits");
        }
        session.run().expect("a run");
        assert_eq!(buffer.read(16, 16).expect("it is there"), bytes(&[6.0; 4]));
        session.close().expect("it ends");
    });
    let errors = on_ranks(2, |group| {
        let config = config().with_symmetric_bytes(group.rank() as usize * 5000);
        Session::open(&plan, &group, &config).expect_err("they differ").to_string()
    });
    assert!(errors.iter().all(|e| e.contains("bytes of symmetric memory for the caller")), "{errors:?}");
    let error = on_ranks(2, |group| {
        Session::open(&plan, &group, &config().with_symmetric_bytes(usize::MAX)).expect_err("it is too much")
    });
    assert!(error.iter().all(|e| e.kind() == ErrorKind::Resources), "{error:?}");
}

/// Programs of PyTorch, with every input in symmetric buffers, which are elsewhere in each run.
#[test]
fn symmetric_buffers_do_not_change_results() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs");
    let programs = [
        ("fsdp4_fw_graph", 4),
        ("fsdp4_bw_graph", 0),
        ("expert_gather2", 1),
        ("megatron_tp4_f32", 0),
        ("moe_ep4", 0),
    ];
    for (stem, held) in programs {
        let path = folder.join(format!("{stem}.safetensors"));
        let tensors = path.is_file().then(|| Arc::new(TensorFile::open(&path).expect("tensors")));
        let options = tensors.iter().fold(OpenOptions::default(), |all, file| all.with_tensors(file.clone()));
        let program = Program::open(&folder.join(format!("{stem}.pt2")), &options).expect("a program");
        let draw = DrawConfig::default().with_seed(1);
        let work = Workload::gather(&program.graph, &program.weights, tensors.as_deref(), &draw);
        let (work, plan) = (work.expect("a workload"), planned(&program));
        let [there, placed] = [false, true].map(|placed| {
            let run = |group| runs(&plan, &work, &group, placed).unwrap_or_else(|e| panic!("{stem}: {e}"));
            on_ranks(plan.ranks, run)
        });
        for (rank, (there, placed)) in there.iter().zip(&placed).enumerate() {
            assert!(there.0 >= held, "{stem}: {} inputs in symmetric memory", there.0);
            assert!(there.1 == placed.1, "{stem}: the outputs of rank {rank} differ");
        }
    }
}

/// Runs a rank three times, with inputs in other symmetric buffers each time or where the session has them. The number of
/// inputs that the plan holds in symmetric memory, and the outputs of all runs.
fn runs(
    plan: &CheckedPlan,
    work: &Workload,
    group: &Group,
    placed: bool,
) -> Result<(usize, Vec<Tensor>), Error> {
    let (source, rank) = (plan.source_program(), group.rank() as usize);
    let mut arguments = 0;
    let mut inputs: Vec<(String, &[u8])> = Vec::new();
    for (input, tensor) in source.inputs.values().zip(&work.inputs[rank]).filter(|(i, _)| i.data.is_none()) {
        let number = arguments;
        arguments += usize::from(input.kind == InputKind::Argument);
        let name = match input.kind {
            InputKind::Argument => format!("in.{number}"),
            _ => format!("w.{}", input.source),
        };
        inputs.push((name, tensor.data()));
    }
    let room: usize = inputs.iter().map(|(_, data)| data.len() + 256).sum();
    let config = SessionConfig::default().with_timeout(LIMIT).with_symmetric_bytes(3 * room);
    let mut session = Session::open(plan, group, &config)?;
    for (id, symbol) in source.symbols.iter() {
        session.set(&symbol.name, work.bindings.get(id).expect("a value"))?;
    }
    let (mut held, mut outputs) = (0, Vec::new());
    for run in 0..3 {
        for (name, data) in &inputs {
            held +=
                usize::from(run == 0 && matches!(session.address(name)?.storage, PortStorage::Symmetric(_)));
            if !placed {
                session.write(name, data)?;
                continue;
            }
            let buffer = session.allocate_symmetric(data.len())?;
            buffer.write(0, data)?;
            // A weight that peers read stays where it was first.
            if let Err(error) = bind(&mut session, name, &buffer) {
                assert!(run > 0 && error.to_string().contains("before the first run"), "{name}: {error}");
            }
        }
        session.run()?;
        let values = session.outputs()?;
        let returned = values.iter().filter(|value| value.replaces.is_none()).count();
        for k in 0..returned {
            outputs.push(session.read(&format!("out.{k}"))?);
        }
        for input in values.into_iter().filter_map(|value| value.replaces) {
            outputs.push(session.read(&input)?);
        }
    }
    session.close()?;
    Ok((held, outputs))
}
