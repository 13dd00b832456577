//! Memory of the caller on GPUs: buffers that sessions share, weights that are there once, and symmetric buffers.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use symmc::{
    ArgumentBinding, CheckedPlan, CollectiveVariant, CompileConfig, DType, MachineProfile, PortStorage,
    Program, Session, Tensor,
};

use crate::common::{WAIT_TIMEOUT, config, floats, on_ranks, opened, planned, values};

/// The columns and rows of the weight.
const WIDE: usize = 4096;

fn wide() -> Result<CheckedPlan> {
    let text = format!(
        "program \"wide\" ranks 2\ngroup @all world\narg %x: f32[4, {WIDE}]\nparam %w: f32[{WIDE}, {WIDE}]\n\
         %m: f32[4, {WIDE}] = matmul %x, %w\n%y: f32[4, {WIDE}] = all_reduce %m op=sum group=@all\nreturn %y\n"
    );
    planned(&Program::from_text(&text)?, ArgumentBinding::None)
}

/// Two sessions of a process read one copy of a weight, which goes with the last of them.
pub fn weights() -> Result<()> {
    let plan = wide()?;
    on_ranks(|group, device| {
        let bytes = WIDE * WIDE * 4;
        let ones =
            Tensor::new(DType::F32, [WIDE, WIDE], floats(&[1.0]).repeat(WIDE * WIDE)).context("a weight")?;
        let weight = Arc::new(ones);
        let open = || Session::open(&plan, group, &config(group));
        let mut sessions = [open()?, open()?];
        for session in &mut sessions {
            session.write("x", &floats(&[1.0; 4 * WIDE]))?;
        }
        let before = device.free()?;
        sessions[0].share("w", weight.clone())?;
        let once = device.free()?;
        sessions[1].share("w", weight.clone())?;
        let twice = device.free()?;
        let allocated = (before.saturating_sub(once), before.saturating_sub(twice));
        ensure!(
            allocated.0 >= bytes && allocated.0 < 2 * bytes && allocated.1 == allocated.0,
            "{allocated:?} bytes of {bytes}"
        );
        let [first, second] = &mut sessions;
        let addresses = [first.address("w")?, second.address("w")?];
        ensure!(
            addresses[0] == addresses[1] && matches!(addresses[0].storage, PortStorage::Caller(_)),
            "{addresses:?}"
        );
        ensure!(Arc::strong_count(&weight) == 1, "the copy of the host is the caller's alone");
        drop(weight);
        let right = |session: &mut Session| -> Result<()> {
            session.run()?;
            ensure!(values(session.read("y")?.data()) == vec![2.0 * WIDE as f32; 4 * WIDE], "the product");
            Ok(())
        };
        right(first)?;
        right(second)?;
        let [first, mut second] = sessions;
        first.close()?;
        right(&mut second)?;
        second.close()?;
        // Its own memory goes with it, too.
        let after = device.free()?;
        ensure!(after >= before, "{} bytes are left behind", before - after);
        Ok(())
    })?;
    println!("two sessions read one copy of a weight of {} MiB", (WIDE * WIDE * 4) >> 20);
    Ok(())
}

/// A state that two sessions change in turn, in a buffer that outlives them.
pub fn buffers(plan: &CheckedPlan) -> Result<()> {
    on_ranks(|group, _| {
        let mut sessions = [opened(plan, group)?, opened(plan, group)?];
        let state = sessions[0].allocate(4096)?;
        ensure!(state.read(0, 4096)? == [0; 4096], "zeros");
        state.write(0, &floats(&[1.0; 4]))?;
        for session in &mut sessions {
            // SAFETY: the runs of both sessions follow each other, and copies come between them.
            unsafe { session.bind_buffer("state", &state)? };
        }
        for run in 0..10 {
            sessions[run % 2].run()?;
        }
        ensure!(values(&state.read(0, 16)?) == [11.0; 4], "the state after 10 runs");
        let error = state.read(4090, 7).err().context("it is too far")?;
        ensure!(error.is_bad_input(), "{error}");
        // The session keeps what its runs use.
        let [mut first, second] = sessions;
        let x = first.allocate(1 << 20)?;
        x.write(0, &floats(&[2.0; 16]))?;
        // SAFETY: as above.
        unsafe { first.bind_buffer("x", &x)? };
        drop(x);
        first.enqueue()?;
        first.unbind("x")?;
        first.wait(WAIT_TIMEOUT)?;
        ensure!(values(first.read("y")?.data())[..4] == [4.0, 8.0, 12.0, 16.0], "the sum");
        first.close()?;
        drop(second);
        ensure!(values(&state.read(0, 16)?) == [12.0; 4], "the state outlives its sessions");
        Ok(())
    })?;
    println!("buffers of the caller are changed by two sessions and outlive them");
    Ok(())
}

/// Peers read the argument and the weight.
const SUMS: &str = "program \"sums\" ranks 2\nsymbol n in 1..=64\ngroup @all world\narg %x: f32[n, 1024]\n\
    param %w: f32[8]\n%y: f32[n, 1024] = all_reduce %x op=sum group=@all\n%v: f32[16] = all_gather %w group=@all\n\
    return %y, %v\n";

/// Symmetric buffers take turns where peers read them.
pub fn symmetric() -> Result<()> {
    let profile = MachineProfile::builtin("h200x2").context("no profile h200x2")?;
    let variants = vec![CollectiveVariant::OneShot, CollectiveVariant::Pull];
    let config_of = CompileConfig::default()
        .with_profile(profile)
        .with_bind(ArgumentBinding::All)
        .with_variants(variants);
    let plan = symmc::compile(&Program::from_text(SUMS)?, &config_of)?;
    on_ranks(|group, _| {
        let mut session = Session::open(&plan, group, &config(group).with_symmetric_bytes(1 << 20))?;
        session.set("n", 64)?;
        ensure!(
            matches!(session.address("x")?.storage, PortStorage::Symmetric(_)),
            "the plan holds %x in symmetric memory"
        );
        let row = 4096;
        let turns = [session.allocate_symmetric(64 * row)?, session.allocate_symmetric(64 * row)?];
        let weight = session.allocate_symmetric(32)?;
        weight.write(0, &floats(&[group.rank() as f32; 8]))?;
        // SAFETY: a buffer is written while no run has it bound, and no other session runs.
        unsafe { session.bind_buffer("w", &weight)? };
        let fill = |run: usize, n: usize| {
            turns[run % 2].write(0, &floats(&vec![run as f32 * 2.0 + group.rank() as f32; n * 1024]))
        };
        let sizes = [64usize, 64, 5, 64, 1, 64, 5, 64, 64, 64, 64];
        fill(0, sizes[0])?;
        for (run, n) in sizes.into_iter().enumerate() {
            session.set("n", n as i64)?;
            // SAFETY: as above.
            unsafe { session.bind_buffer("x", &turns[run % 2])? };
            session.enqueue()?;
            if let Some(&next) = sizes.get(run + 1) {
                fill(run + 1, next)?;
            }
            session.wait(WAIT_TIMEOUT)?;
            let y = values(session.read("y")?.data());
            ensure!(y == vec![run as f32 * 4.0 + 1.0; n * 1024], "run {run} of n={n}: {:?}", &y[..4]);
            let v = values(session.read("v")?.data());
            ensure!(v == [[0.0; 8], [1.0; 8]].concat(), "run {run}: {v:?}");
        }
        session.unbind("x")?;
        session.set("n", 64)?;
        let contents = values(session.read("x")?.data());
        ensure!(contents == vec![0.0; 64 * 1024], "nothing was copied to where the plan has %x");
        let error = session.release().err().context("buffers are there")?;
        ensure!(error.to_string().contains("symmetric arena"), "{error}");
        // SAFETY: as above; the ranks have different ones.
        unsafe { session.bind_buffer("x", &turns[group.rank() as usize])? };
        let error = session.run().err().context("the ranks differ")?;
        ensure!(error.to_string().contains("in symmetric memory at"), "{error}");
        drop(session);
        ensure!(weight.read(0, 4)? == floats(&[group.rank() as f32]), "a buffer outlives its session");
        Ok(())
    })?;
    println!("symmetric buffers take turns where peers read them, and outlive their session");
    Ok(())
}
