//! Opens what the command line names.

use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use symmc::{Bind, BucketSpec, Config, OpenOptions, Plan, Profile, Program};

use crate::args::{CompileArgs, ProgramArgs};

/// A program; its number of ranks may be open.
pub fn program(args: &ProgramArgs) -> Result<Program> {
    if is_plan(&args.program) {
        bail!("{}: this is a plan; expected a program (.pt2 or .symm)", args.program.display());
    }
    let options = OpenOptions { ranks: args.ranks, groups: args.groups.iter().cloned().collect() };
    let program = Program::open(&args.program, &options)?;
    for note in &program.notes {
        eprintln!("note: {note}");
    }
    Ok(program)
}

/// Fixes the number of ranks of a program and says what decided it, if that was not the command line.
pub fn close_ranks(program: &mut Program) -> Result<()> {
    if let Some(file) = program.close_ranks()? {
        let ranks = program.graph.ranks.unwrap_or_default();
        eprintln!("note: {ranks} ranks, as {} has tensors for", file.display());
    }
    Ok(())
}

/// How to compile.
pub fn config(args: &CompileArgs) -> Result<Config> {
    let profile = match Profile::builtin(&args.machine) {
        Some(profile) => profile,
        None => profile_file(&args.machine)?,
    };
    let buckets = args
        .buckets
        .iter()
        .map(|(symbol, upper)| BucketSpec { symbol: symbol.clone(), upper: upper.clone() });
    let bind = match args.bind.as_slice() {
        [] => Bind::None,
        names if names.iter().any(|n| n == "all") => Bind::All,
        names => Bind::Named(names.to_vec()),
    };
    Ok(Config { profile, buckets: buckets.collect(), bind })
}

fn profile_file(name: &str) -> Result<Profile> {
    let path = Path::new(name);
    if !path.is_file() {
        bail!(
            "there is no machine {name}; expected one of {} or a profile file",
            Profile::builtin_names().join(", ")
        );
    }
    let text = std::fs::read_to_string(path).with_context(|| name.to_string())?;
    Profile::from_json(&text).map_err(|e| anyhow!("{name}: {e}"))
}

/// Whether a file is a plan: JSON, where programs are zip archives or text that starts otherwise.
pub fn is_plan(path: &Path) -> bool {
    use std::io::Read;
    let mut head = [0; 64];
    let read = std::fs::File::open(path).and_then(|mut f| f.read(&mut head)).unwrap_or(0);
    head[..read].iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'{')
}

/// A plan from its file.
pub fn plan(path: &Path) -> Result<Plan> {
    if path.is_file() && !is_plan(path) {
        bail!("{}: expected a plan (JSON); make one with symmc plan PROGRAM -o FILE", path.display());
    }
    Ok(symmc::read_plan(path)?)
}
