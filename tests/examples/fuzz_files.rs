//! Changes real files within their structure and opens them: no file may make symmc panic, hang or take memory out of
//! proportion, or blame itself for it.
//!
//! ```sh
//! cargo run --release -p symmc-tests --example fuzz_files -- pt2|onnx|safetensors|plan SECONDS [SEED]
//! ```
//!
//! A change keeps the container intact (archive, JSON, protobuf's wire format, the header of safetensors) and alters
//! some of its values: numbers at their limits, other kinds, missing, doubled and exchanged parts. What opens is compiled, and
//! what compiles is checked. Prints how many files were opened and refused; a file that panics, takes longer than [`SLOW`] or
//! gives an error that is no refusal of a file is kept in the current folder and makes the exit code 1. The fuzz targets in `tests/fuzz` go on from here by
//! coverage, with raw bytes.

use std::io::{Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;
use symmc::{CompileConfig, DrawConfig, Error, ErrorKind, OpenOptions, Program, TensorFile, Workload};
use symmc_support::random::SplitMix;
use symmc_tests::root;

/// The longest that a changed file may take.
const SLOW: Duration = Duration::from_secs(10);

/// The most changes of one file.
const CHANGES: usize = 4;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [format, seconds, rest @ ..] = &args[..] else { bail!("expected FORMAT SECONDS [SEED]") };
    let limit = Duration::from_secs(seconds.parse().context("SECONDS")?);
    let seed = rest.first().map_or(Ok(1), |s| s.parse()).context("SEED")?;
    let folder = tempfile::tempdir()?;
    let files = FormatFiles::new(format, folder.path())?;
    let (mut random, start) = (SplitMix(seed), Instant::now());
    let (mut opened, mut refused, mut failed) = (0u64, 0u64, 0u64);
    std::panic::set_hook(Box::new(|_| {}));
    while start.elapsed() < limit {
        let bytes = files.changed(&mut random)?;
        let path = folder.path().join(format!("case.{}", files.ending));
        std::fs::write(&path, &bytes)?;
        let began = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| files.open(&path)));
        let failure = match outcome {
            _ if began.elapsed() > SLOW => "slow".to_string(),
            Ok(Ok(())) => {
                opened += 1;
                continue;
            }
            Ok(Err(error)) if refuses(&error) => {
                refused += 1;
                continue;
            }
            Ok(Err(error)) => format!("{error:?}"),
            Err(_) => "panic".to_string(),
        };
        failed += 1;
        let saved = PathBuf::from(format!("fuzz-{format}-{seed}-{failed}.{}", files.ending));
        std::fs::write(&saved, &bytes)?;
        println!("{}: {failure}", saved.display());
    }
    println!(
        "{format}: {} files: {opened} opened, {refused} refused, {failed} failed",
        opened + refused + failed
    );
    std::process::exit(i32::from(failed > 0))
}

/// Whether an error says, in words, what is wrong with a file.
fn refuses(error: &Error) -> bool {
    (error.is_bad_input() || error.kind() == ErrorKind::Check) && !error.to_string().is_empty()
}

/// The files of one format that are changed.
struct FormatFiles {
    kind: FileFormat,
    ending: &'static str,
    seeds: Vec<Vec<u8>>,
    /// The program that a tensor file is for.
    program: Option<Program>,
}

#[derive(Clone, Copy)]
enum FileFormat {
    Pt2,
    Onnx,
    Safetensors,
    Plan,
}

impl FormatFiles {
    fn new(format: &str, folder: &Path) -> Result<Self> {
        let programs = root().join("tests/programs");
        let read = |names: &[&str]| -> Result<Vec<Vec<u8>>> {
            names.iter().map(|n| std::fs::read(programs.join(n)).with_context(|| n.to_string())).collect()
        };
        let small = "moe_ep4.pt2";
        let (kind, ending, seeds, program) = match format {
            "pt2" => {
                let names = [small, "megatron_tp4_f32.pt2", "hf_llama_tp2_core.pt2", "fsdp4_bw_graph.pt2"];
                (FileFormat::Pt2, "pt2", read(&names)?, None)
            }
            "onnx" => (FileFormat::Onnx, "onnx", read(&["gpt_tp2_rank0.onnx"])?, None),
            "safetensors" => {
                let program =
                    Program::open(&programs.join("megatron_tp4_bf16.pt2"), &OpenOptions::default())?;
                (
                    FileFormat::Safetensors,
                    "safetensors",
                    read(&["megatron_tp4_bf16.safetensors"])?,
                    Some(program),
                )
            }
            "plan" => {
                let mut seeds = Vec::new();
                for (name, ranks) in [(small, 4), ("fsdp4_fw_graph.pt2", 4)] {
                    let mut program = Program::open(&programs.join(name), &OpenOptions::default())?;
                    if program.graph.ranks.is_none() {
                        program.set_ranks(ranks)?;
                    }
                    seeds.push(symmc::compile(&program, &CompileConfig::default())?.to_json().into_bytes());
                }
                (FileFormat::Plan, "json", seeds, None)
            }
            _ => bail!("expected pt2, onnx, safetensors or plan, found {format}"),
        };
        std::fs::create_dir_all(folder)?;
        Ok(FormatFiles { kind, ending, seeds, program })
    }

    /// One of the files with some changes.
    fn changed(&self, random: &mut SplitMix) -> Result<Vec<u8>> {
        let seed = &self.seeds[random.below(self.seeds.len())];
        Ok(match self.kind {
            FileFormat::Pt2 => archive(seed, random)?,
            FileFormat::Onnx => {
                let mut bytes = seed.clone();
                for _ in 0..=random.below(CHANGES) {
                    change_message(&mut bytes, random, 0);
                }
                bytes
            }
            FileFormat::Safetensors => header(seed, random)?,
            FileFormat::Plan => json(seed, random)?,
        })
    }

    /// Opens a file as far as it goes.
    fn open(&self, path: &Path) -> Result<(), Error> {
        match self.kind {
            FileFormat::Pt2 | FileFormat::Onnx => {
                let mut program = Program::open(path, &OpenOptions::default())?;
                if program.graph.ranks.is_none() {
                    program.set_ranks(4)?;
                }
                symmc::compile(&program, &CompileConfig::default()).map(drop)
            }
            FileFormat::Safetensors => {
                let none = || Error::new(ErrorKind::Defect, "no program");
                let program = self.program.as_ref().ok_or_else(none)?;
                let file = TensorFile::open(path)?;
                let draw = DrawConfig::default().with_seed(1);
                Workload::gather(&program.graph, &program.weights, Some(&file), &draw).map(drop)
            }
            FileFormat::Plan => symmc::read_plan(path).and_then(symmc::into_checked_plan).map(drop),
        }
    }
}

/// JSON with some values changed.
fn json(bytes: &[u8], random: &mut SplitMix) -> Result<Vec<u8>> {
    let mut value: Value = serde_json::from_slice(bytes)?;
    for _ in 0..=random.below(CHANGES) {
        let with = part(&value, random).clone();
        change(part_mut(&mut value, random), with, random);
    }
    Ok(serde_json::to_vec(&value)?)
}

/// Somewhere in a value, deep places as likely as shallow ones.
fn part<'a>(value: &'a Value, random: &mut SplitMix) -> &'a Value {
    match value {
        Value::Array(items) if !items.is_empty() && !random.one_in(8) => {
            part(&items[random.below(items.len())], random)
        }
        Value::Object(fields) if !fields.is_empty() && !random.one_in(8) => {
            fields.values().nth(random.below(fields.len())).map_or(value, |v| part(v, random))
        }
        _ => value,
    }
}

fn part_mut<'a>(value: &'a mut Value, random: &mut SplitMix) -> &'a mut Value {
    let deeper = !random.one_in(8);
    if !deeper || !matches!(value, Value::Array(_) | Value::Object(_)) {
        return value;
    }
    let count = match value {
        Value::Array(items) => items.len(),
        Value::Object(fields) => fields.len(),
        _ => 0,
    };
    if count == 0 {
        return value;
    }
    let index = random.below(count);
    match value {
        Value::Array(items) => part_mut(&mut items[index], random),
        Value::Object(fields) => match fields.values_mut().nth(index) {
            Some(field) => part_mut(field, random),
            None => unreachable!("the position is below the count"),
        },
        _ => unreachable!("only containers have a count"),
    }
}

/// Changes a value in one of many ways.
fn change(value: &mut Value, with: Value, random: &mut SplitMix) {
    let numbers = [0, 1, -1, 2, 64, 255, 1 << 31, 1 << 40, i64::MAX, i64::MIN];
    *value = match (random.below(8), value.take()) {
        (0, Value::Array(mut items)) if !items.is_empty() => {
            items.remove(random.below(items.len()));
            Value::Array(items)
        }
        (1, Value::Array(mut items)) if !items.is_empty() => {
            let double = items[random.below(items.len())].clone();
            items.insert(random.below(items.len()), double);
            Value::Array(items)
        }
        (0, Value::Object(mut fields)) if !fields.is_empty() => {
            if let Some(name) = fields.keys().nth(random.below(fields.len())).cloned() {
                fields.shift_remove(&name);
            }
            Value::Object(fields)
        }
        (1, Value::Object(mut fields)) => {
            fields.insert("as_unknown".into(), with);
            Value::Object(fields)
        }
        (2 | 3, Value::Number(n)) => match n.as_i64() {
            Some(n) => n.wrapping_add(random.pick(&[1, -1, n, 16])).into(),
            None => Value::from(random.pick(&[0.0, -1.5, 1e300])),
        },
        (4, _) => random.pick(&numbers).into(),
        (5, _) => random.pick(&[Value::Null, true.into(), "".into(), "s0".into(), Value::Array(vec![])]),
        (6, Value::String(s)) => format!("{s}{s}").into(),
        (_, _) => with,
    };
}

/// An archive whose program has some values changed.
fn archive(bytes: &[u8], random: &mut SplitMix) -> Result<Vec<u8>> {
    let mut from = zip::ZipArchive::new(std::io::Cursor::new(bytes))?;
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let stored = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for i in 0..from.len() {
        let mut entry = from.by_index(i)?;
        let mut data = Vec::new();
        entry.read_to_end(&mut data)?;
        let name = entry.name()?.to_string();
        if name.ends_with("models/model.json") || (name.ends_with(".json") && random.one_in(8)) {
            data = json(&data, random)?;
        }
        writer.start_file(name, stored)?;
        writer.write_all(&data)?;
    }
    Ok(writer.finish()?.into_inner())
}

/// A tensor file with a changed header, length or data.
fn header(bytes: &[u8], random: &mut SplitMix) -> Result<Vec<u8>> {
    let (length, rest) = bytes.split_first_chunk::<8>().context("a length")?;
    let length = usize::try_from(u64::from_le_bytes(*length))?;
    let (header, data) = rest.split_at(length);
    let header = if random.one_in(4) { header.to_vec() } else { json(header, random)? };
    let declared = if random.one_in(8) {
        random.pick(&[0, 1, u64::MAX, 1 << 40, length as u64 * 2])
    } else {
        header.len() as u64
    };
    let data_length = if random.one_in(8) { random.below(data.len()) } else { data.len() };
    Ok([&declared.to_le_bytes()[..], &header, &data[..data_length]].concat())
}

/// One field of protobuf's wire format: where it begins, where its value begins and ends, and its kind.
struct ProtobufField {
    start: usize,
    value: std::ops::Range<usize>,
    kind: u8,
}

fn varint(bytes: &[u8], mut at: usize) -> Option<(u64, usize)> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(at)?;
        value |= u64::from(byte & 127) << shift;
        at += 1;
        if byte < 128 {
            return Some((value, at));
        }
    }
    None
}

fn write_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 128 {
        out.push(value as u8 | 128);
        value >>= 7;
    }
    out.push(value as u8);
}

/// The fields of a message; `None` if the bytes are none.
fn fields(bytes: &[u8]) -> Option<Vec<ProtobufField>> {
    let (mut at, mut out) = (0, Vec::new());
    while at < bytes.len() {
        let start = at;
        let (key, next) = varint(bytes, at)?;
        let kind = (key & 7) as u8;
        let (from, end) = match kind {
            0 => (next, varint(bytes, next)?.1),
            1 => (next, next + 8),
            5 => (next, next + 4),
            2 => {
                let (length, from) = varint(bytes, next)?;
                (from, from.checked_add(usize::try_from(length).ok()?)?)
            }
            _ => return None,
        };
        if end > bytes.len() || key < 8 {
            return None;
        }
        out.push(ProtobufField { start, value: from..end, kind });
        at = end;
    }
    Some(out)
}

/// Changes a message somewhere.
fn change_message(bytes: &mut Vec<u8>, random: &mut SplitMix, depth: usize) {
    let Some(all) = fields(bytes).filter(|f| !f.is_empty()) else {
        if let Some(byte) = bytes.len().checked_sub(1).map(|_| random.below(bytes.len())) {
            bytes[byte] = random.next() as u8;
        }
        return;
    };
    let field = &all[random.below(all.len())];
    let range = field.start..field.value.end;
    let inner = bytes[field.value.clone()].to_vec();
    let deeper = field.kind == 2 && depth < 8 && !random.one_in(6);
    let new = match random.below(5) {
        _ if deeper => {
            let mut inner = inner;
            change_message(&mut inner, random, depth + 1);
            rewritten(bytes, field, &inner)
        }
        0 => Vec::new(),
        1 => bytes[range.clone()].repeat(2),
        2 => {
            let source = &all[random.below(all.len())];
            bytes[source.start..source.value.end].to_vec()
        }
        _ if field.kind == 0 => {
            let mut value = Vec::new();
            write_varint(random.pick(&[0, 1, 2, 7, 25, 99, 1 << 31, 1 << 40, u64::MAX, 1 << 63]), &mut value);
            rewritten(bytes, field, &value)
        }
        _ => {
            rewritten(bytes, field, &inner.iter().map(|b| b ^ (random.next() as u8 & 3)).collect::<Vec<_>>())
        }
    };
    bytes.splice(range, new);
}

/// A field with another value.
fn rewritten(bytes: &[u8], field: &ProtobufField, value: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    if let Some((key, _)) = varint(bytes, field.start) {
        write_varint(key, &mut out);
    }
    if field.kind == 2 {
        write_varint(value.len() as u64, &mut out);
    }
    out.extend_from_slice(value);
    out
}
