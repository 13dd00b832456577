//! Programs with recorded tensors, with memory of the session and of the caller.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use symmc::unstable::cuda::driver::Device;
use symmc::unstable::ir::interp::{Tolerance, compare};
use symmc::{Bind, Draw, OpenOptions, Program, Session, Tensor, TensorFile, Workload};

use crate::common::{Block, LIMIT, config, on_ranks, planned};

/// Recorded programs, with memory of the session and of the caller.
pub fn recorded(stem: &str) -> Result<()> {
    let folder = std::path::Path::new("tests/programs");
    let tensors = Arc::new(TensorFile::open(&folder.join(format!("{stem}.safetensors")))?);
    let options = OpenOptions::default().with_tensors(tensors.clone());
    let program = Program::open(&folder.join(format!("{stem}.pt2")), &options)?;
    let work = Workload::gather(&program.graph, &program.weights, Some(&tensors), &Draw::default())?;
    let expected = work.expected.clone().context("no recorded outputs")?;
    for bind in [Bind::None, Bind::All] {
        let plan = planned(&program, bind.clone())?;
        for lent in [false, true] {
            let found = on_ranks(|group, device| {
                let mut session = Session::open(&plan, group, &config(group))?;
                let outputs = one_run(&mut session, &work, device, group.rank() as usize, lent)?;
                session.close()?;
                Ok(outputs)
            });
            let found = found.with_context(|| format!("{stem}, {bind:?}, lent {lent}"))?;
            for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
                let Some(expected) = expected else { continue };
                let comparison = compare(found, expected, Tolerance::of(expected));
                ensure!(comparison.agrees(), "{stem}, {bind:?}, lent {lent}: {comparison}");
            }
        }
    }
    println!("{stem}: as recorded, with memory of the session and of the caller");
    Ok(())
}

fn one_run(
    session: &mut Session,
    work: &Workload,
    device: &Arc<Device>,
    rank: usize,
    lent: bool,
) -> Result<Vec<Tensor>> {
    let source = session.plan().source_program().clone();
    for (id, symbol) in source.symbols.iter() {
        session.set(&symbol.name, work.bindings.get(id).context("no value")?)?;
    }
    let mut blocks = Vec::new();
    for (input, tensor) in source.inputs.values().zip(&work.inputs[rank]) {
        if input.data.is_some() {
            continue;
        }
        let (name, tensor) = (source.name_of(input.value), tensor.loaded()?);
        if !lent {
            session.write(name, tensor.data())?;
            continue;
        }
        let block = Block::holding(device, tensor.data())?;
        // SAFETY: the block lives until the session has ended.
        unsafe { session.bind(name, block.ptr(), tensor.data().len())? };
        blocks.push(block);
    }
    session.enqueue()?;
    session.wait(LIMIT)?;
    let outputs = session.outputs()?;
    let mut returned = 0;
    let mut out = Vec::new();
    for output in &outputs {
        out.push(match &output.replaces {
            Some(input) => session.read(input)?,
            None => {
                returned += 1;
                session.read(&format!("out.{}", returned - 1))?
            }
        });
    }
    // Before the blocks go.
    for input in source.inputs.values().filter(|input| input.data.is_none()) {
        let _ = session.unbind(source.name_of(input.value));
    }
    Ok(out)
}
