//! Prints how the rewritten parts of planned programs were shown to be equal to their source: by proof, by comparison of drawn values,
//! or not at all.
//!
//! `report_proofs [FILE…]` plans each program for as many H200 as it has ranks. Without files it takes the programs of `tests/programs`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use symmc::{
    CompileConfig, EquationClass, MachineProfile, Numerics, OpenOptions, Program, SourceComparison,
    TensorFile,
};
use symmc_tests::root;

fn main() -> Result<()> {
    let mut files: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    if files.is_empty() {
        for folder in ["", "optimised", "families", "experts"] {
            for entry in std::fs::read_dir(root().join("tests/programs").join(folder))? {
                files.push(entry?.path());
            }
        }
    }
    let mut all = PartCounts::default();
    for (stem, files) in programs(files) {
        match report(&stem, &files) {
            Ok(counts) => all.add(&counts),
            Err(error) => println!("{stem:50} not planned: {error:#}"),
        }
    }
    println!("{:50} {all}", "all");
    Ok(())
}

/// The parts that differ in form, each with all of its places.
#[derive(Default)]
struct PartCounts {
    to_the_bit: usize,
    up_to_rounding: usize,
    compared: usize,
    not_compared: usize,
}

impl PartCounts {
    fn of(compared: &SourceComparison) -> PartCounts {
        let places = |proof: Option<EquationClass>| {
            compared.parts.iter().filter(|part| part.proof == proof).map(|part| part.places).sum()
        };
        let left_out: usize = compared.left_out.iter().map(|(_, count)| count).sum();
        PartCounts {
            to_the_bit: places(Some(EquationClass::Bits)),
            up_to_rounding: places(Some(EquationClass::Rounding)),
            compared: places(None),
            not_compared: left_out + compared.more_left_out + compared.undecided.len(),
        }
    }

    fn add(&mut self, other: &PartCounts) {
        self.to_the_bit += other.to_the_bit;
        self.up_to_rounding += other.up_to_rounding;
        self.compared += other.compared;
        self.not_compared += other.not_compared;
    }
}

impl fmt::Display for PartCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PartCounts { to_the_bit, up_to_rounding, compared, not_compared } = self;
        write!(
            f,
            "{to_the_bit} proven to the bit, {up_to_rounding} up to rounding, {compared} compared, {not_compared} not compared"
        )
    }
}

/// The files of each program, by its name.
fn programs(files: Vec<PathBuf>) -> BTreeMap<String, Vec<PathBuf>> {
    let mut out: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for file in files {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some((stem, extension)) = name.rsplit_once('.') else { continue };
        if !["symm", "pt2", "onnx"].contains(&extension) {
            continue;
        }
        let stem = stem.trim_end_matches(|c: char| c.is_ascii_digit());
        let stem = stem.strip_suffix(".rank").or(stem.strip_suffix("_rank"));
        let stem = stem.map_or_else(|| name.clone(), str::to_string);
        let folder =
            file.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy().into_owned();
        out.entry(format!("{folder}/{stem}")).or_default().push(file);
    }
    out.values_mut().for_each(|files| files.sort());
    out
}

/// The number of ranks that the name of an exported program states.
fn ranks_of_name(stem: &str) -> u32 {
    let digits = |marker: &str| {
        let (_, rest) = stem.split_once(marker)?;
        rest.chars().next()?.to_digit(10)
    };
    let markers =
        ["tp", "_ep", "fsdp", "shard_dim", "expert_gather", "mixture", "loop", "dispatched", "sum", "bound"];
    if stem.contains("mesh_2x2") { 4 } else { markers.into_iter().find_map(digits).unwrap_or(1) }
}

fn report(stem: &str, files: &[PathBuf]) -> Result<PartCounts> {
    let first = files.first().context("no file")?;
    let mut numerics = Numerics::EXACT;
    let program = if first.extension().is_some_and(|e| e == "symm") {
        let text = std::fs::read_to_string(first)?;
        if let Some(class) = text.lines().find_map(|line| line.strip_prefix("// numerics: ")) {
            numerics = class.parse().map_err(|e| anyhow::anyhow!("{e}"))?;
        }
        Program::from_text(&text)?
    } else {
        let ranks = if files.len() > 1 { files.len() as u32 } else { ranks_of_name(stem) };
        let mut options = OpenOptions::default().with_ranks(ranks);
        let tensors = first.to_string_lossy().replace(".rank0", "").replace("_rank0", "");
        let tensors = Path::new(&tensors).with_extension("safetensors");
        if tensors.is_file() {
            options = options.with_tensors(Arc::new(TensorFile::open(&tensors)?));
        }
        Program::open_files(files, &options)?
    };
    let ranks = program.graph.ranks.unwrap_or(1);
    let profile = MachineProfile::builtin(&format!(
        "h200x{}",
        if ranks <= 2 {
            2
        } else if ranks <= 4 {
            4
        } else {
            8
        }
    ));
    let profile = profile.context("no such machine")?;
    let config = CompileConfig::default().with_profile(profile).with_numerics(numerics);
    let plan = symmc::compile(&program, &config)?;
    let start = Instant::now();
    let compared = symmc::compare_with_source(&plan);
    let ms = start.elapsed().as_secs_f64() * 1e3;
    let counts = PartCounts::of(&compared);
    println!("{stem:50} {counts}, {:?}, {ms:.0} ms", compared.status());
    Ok(counts)
}
