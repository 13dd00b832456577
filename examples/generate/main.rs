//! Greedy text generation on two ranks: prefill and decode are two programs over one set of weights and one cache.
//!
//! `cargo run --release --example generate -- [--backend host|cuda] [--prompt TEXT] [--tokens N] [FOLDER]`
//!
//! FOLDER contains the files that `export.py` writes. Each rank opens a session of each program, on the host or on its own GPU.
//! Both sessions read the same weights and change the same caches in place. The caches belong to this program: from the prompt
//! to the last token only tokens and positions are copied. The ranks are threads of this process, or the processes of a
//! launcher: `torchrun --nproc-per-node 2 --no-python target/release/examples/generate`. Tokens are written to stdout as they
//! are generated, and their number to stderr.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use symmc::{
    CheckedPlan, CompileConfig, DType, Error, ErrorKind, Group, MachineProfile, Membership, OpenOptions,
    Program, Session, SessionBuffer, SessionConfig, SessionValue, TensorFile,
};

/// Tokens are the bytes of ASCII text.
const TOKENS: usize = 128;

fn main() -> ExitCode {
    match Options::parse(std::env::args().skip(1)).and_then(|options| generate(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(if error.is_bad_input() { 2 } else { 1 })
        }
    }
}

fn refused(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Input, message)
}

/// The device of the ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Device {
    Host,
    /// Each rank runs on the GPU with its number.
    Gpus,
}

impl Device {
    fn parse(text: &str) -> Result<Device, Error> {
        match text {
            "host" => Ok(Device::Host),
            "cuda" if cfg!(feature = "cuda") => Ok(Device::Gpus),
            "cuda" => Err(refused("--backend cuda: this build does not have the feature `cuda`")),
            other => Err(refused(format!("--backend: expected host or cuda, found {other}"))),
        }
    }

    fn planning(self, program: &Program) -> CompileConfig {
        let machine = match self {
            Device::Host => "host",
            Device::Gpus => MachineProfile::nearest_builtin(program.graph.ranks.unwrap_or(1)),
        };
        MachineProfile::builtin(machine)
            .map_or_else(CompileConfig::default, |profile| CompileConfig::default().with_profile(profile))
    }

    fn session(self) -> SessionConfig {
        let config = SessionConfig::default().with_timeout(Duration::from_secs(60));
        match self {
            #[cfg(feature = "cuda")]
            Device::Gpus => config.with_gpu(symmc::GpuConfig::default()),
            _ => config,
        }
    }
}

struct Options {
    folder: PathBuf,
    device: Device,
    prompt: Option<String>,
    tokens: usize,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, Error> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/generate");
        let mut options = Options { folder, device: Device::Host, prompt: None, tokens: 64 };
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| refused(format!("{argument} lacks a value")));
            match argument.as_str() {
                "--backend" => options.device = Device::parse(&value()?)?,
                "--prompt" => options.prompt = Some(value()?),
                "--tokens" => {
                    let text = value()?;
                    let expected = || refused(format!("--tokens: expected a number from 1 on, found {text}"));
                    options.tokens = text.parse().ok().filter(|&n| n > 0).ok_or_else(expected)?;
                }
                option if option.starts_with('-') => {
                    return Err(refused(format!(
                        "unknown option {option}; usage: generate [--backend host|cuda] [--prompt TEXT] [--tokens N] [FOLDER]"
                    )));
                }
                folder => options.folder = folder.into(),
            }
        }
        Ok(options)
    }
}

/// A program and its plan.
struct PlannedProgram {
    program: Program,
    plan: CheckedPlan,
}

impl PlannedProgram {
    fn open(
        path: &Path,
        symbols: &[&str],
        tensors: &Arc<TensorFile>,
        device: Device,
    ) -> Result<PlannedProgram, Error> {
        let program = Program::open(path, &OpenOptions::default().with_tensors(tensors.clone()))?;
        let names: Vec<&str> = program.graph.symbols.values().map(|symbol| symbol.name.as_str()).collect();
        if names != symbols {
            return Err(refused(format!(
                "{}: expected a program of export.py, whose symbols are {symbols:?}; found {names:?}",
                path.display()
            )));
        }
        let plan = symmc::compile(&program, &device.planning(&program))?;
        Ok(PlannedProgram { program, plan })
    }
}

/// The data that all ranks of this process share.
struct Model {
    prefill: PlannedProgram,
    decode: PlannedProgram,
    tensors: Arc<TensorFile>,
    device: Device,
}

fn generate(options: &Options) -> Result<(), Error> {
    let prompt = prompt(options)?;
    let tensors = Arc::new(TensorFile::open(&options.folder.join("model.safetensors"))?);
    let device = options.device;
    let open = |name, symbols| PlannedProgram::open(&options.folder.join(name), symbols, &tensors, device);
    let (prefill, decode) = (open("prefill.pt2", &["tokens"])?, open("decode.pt2", &[])?);
    let model = Model { prefill, decode, tensors: tensors.clone(), device };
    let ranks = model.prefill.plan.ranks;
    let groups = match Membership::from_env()? {
        Some(membership) => vec![Group::from_membership(membership)],
        None => Group::threads(ranks),
    };
    eprintln!("{ranks} ranks, a prompt of {} tokens, {} tokens to write", prompt.len(), options.tokens);
    let ended: Vec<Result<(), Error>> = thread::scope(|scope| {
        let rank = |group| {
            let (model, prompt) = (&model, &prompt);
            scope.spawn(move || of_rank(model, &group, prompt, options.tokens))
        };
        let threads: Vec<_> = groups.into_iter().map(rank).collect();
        let panicked = |_| Err(Error::new(ErrorKind::Defect, "a rank panicked"));
        threads.into_iter().map(|t| t.join().unwrap_or_else(panicked)).collect()
    });
    // The error of the failed rank explains more than the errors of the ranks that noticed the failure.
    let mut errors: Vec<Error> = ended.into_iter().filter_map(Result::err).collect();
    errors.sort_by_key(|error| error.kind() == ErrorKind::Peer);
    errors.into_iter().next().map_or(Ok(()), Err)
}

fn prompt(options: &Options) -> Result<Vec<i64>, Error> {
    let path = options.folder.join("prompt.txt");
    let text = match &options.prompt {
        Some(text) => text.clone(),
        None => std::fs::read_to_string(&path).map_err(|e| refused(format!("{}: {e}", path.display())))?,
    };
    match text.bytes().find(|&byte| usize::from(byte) >= TOKENS) {
        Some(byte) => Err(refused(format!("the prompt: expected ASCII text, found the byte {byte:#x}"))),
        None => Ok(text.bytes().map(i64::from).collect()),
    }
}

/// A cache, in memory of this program that both sessions change.
struct Cache {
    name: String,
    buffer: SessionBuffer,
}

impl Cache {
    /// The cache that an output of a session replaces.
    fn of(session: &Session, output: &SessionValue) -> Result<Cache, Error> {
        let inputs = session.inputs()?;
        let input = inputs.into_iter().find(|input| output.replaces.as_ref() == Some(&input.name));
        let input = input.ok_or_else(|| refused(format!("%{} replaces no argument", output.name)))?;
        let buffer = session.allocate(input.bytes)?;
        Ok(Cache { name: input.source.unwrap_or(input.name), buffer })
    }
}

/// One rank of the model.
struct Rank {
    prefill: Session,
    decode: Session,
    caches: Vec<Cache>,
    /// The number of tokens for which the caches have room.
    positions: usize,
}

impl Rank {
    fn open(model: &Model, group: &Group, prompt: usize) -> Result<Rank, Error> {
        let config = model.device.session();
        let mut prefill = Session::open(&model.prefill.plan, group, &config)?;
        let decode = Session::open(&model.decode.plan, group, &config)?;
        prefill.set("tokens", prompt as i64)?;
        expect_token(&prefill)?;
        expect_token(&decode)?;
        let replacing = prefill.outputs()?.into_iter().filter(|output| output.replaces.is_some());
        let replacing: Vec<SessionValue> = replacing.collect();
        // Batch, heads, positions, elements.
        let positions = replacing.first().and_then(|cache| cache.extents.get(2)).copied().unwrap_or(0);
        let caches = replacing.iter().map(|value| Cache::of(&prefill, value)).collect::<Result<_, _>>()?;
        let mut rank = Rank { prefill, decode, caches, positions };
        rank.share_memory(model, group.rank())?;
        Ok(rank)
    }

    /// Both sessions read the same weights and change the same caches.
    fn share_memory(&mut self, model: &Model, rank: u32) -> Result<(), Error> {
        for (name, tensor) in model.prefill.program.parameters(rank, Some(&model.tensors))? {
            for session in [&mut self.prefill, &mut self.decode] {
                session.share(&format!("w.{name}"), tensor.clone())?;
            }
        }
        for cache in &self.caches {
            for session in [&mut self.prefill, &mut self.decode] {
                // SAFETY: the runs of both sessions follow each other, and nothing else uses the buffer.
                unsafe { session.bind_buffer(&cache.name, &cache.buffer)? };
            }
        }
        Ok(())
    }

    fn close(self) -> Result<(), Error> {
        self.prefill.close()?;
        self.decode.close()
    }
}

/// Checks that a session returns one token.
fn expect_token(session: &Session) -> Result<(), Error> {
    let outputs = session.outputs()?;
    match outputs.iter().find(|output| output.replaces.is_none()) {
        Some(token) if token.dtype == DType::I64 && token.extents.iter().all(|&extent| extent == 1) => Ok(()),
        Some(other) => Err(refused(format!(
            "{}: expected one output, a token i64[1, 1]; found %{}: {}{:?}",
            session.plan().source.name,
            other.name,
            other.dtype,
            other.extents
        ))),
        None => Err(refused(format!(
            "{}: expected one output, a token i64[1, 1]; found none",
            session.plan().source.name
        ))),
    }
}

/// The token that follows the given ones, which are in the caches from a position on.
fn next(session: &mut Session, tokens: &[i64], position: usize) -> Result<i64, Error> {
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_ne_bytes()).collect();
    session.write("input_ids", &bytes)?;
    session.write("cache_position", &(position as i64).to_ne_bytes())?;
    session.run()?;
    Ok(session.read("out.0")?.get_i64(0))
}

fn of_rank(model: &Model, group: &Group, prompt: &[i64], tokens: usize) -> Result<(), Error> {
    let mut rank = Rank::open(model, group, prompt.len())?;
    // The last token is not read again, so it needs no room.
    let needed = prompt.len() + tokens - 1;
    if needed > rank.positions {
        let room = rank.positions;
        return Err(refused(format!("the caches have room for {room} tokens, {needed} are needed")));
    }
    let mut progress = (group.rank() == 0).then(|| ProgressWriter::new(tokens));
    let mut token = next(&mut rank.prefill, prompt, 0)?;
    progress.iter_mut().try_for_each(|p| p.written(token))?;
    for position in prompt.len()..needed {
        token = next(&mut rank.decode, &[token], position)?;
        progress.iter_mut().try_for_each(|p| p.written(token))?;
    }
    if let Some(progress) = progress {
        progress.end();
    }
    rank.close()
}

/// Writes tokens as they are generated, and their number.
struct ProgressWriter {
    tokens: usize,
    written: usize,
    start: Instant,
    first: Duration,
    /// Whether the progress is shown on a line that tokens do not interrupt.
    shown: bool,
}

impl ProgressWriter {
    fn new(tokens: usize) -> ProgressWriter {
        let shown = std::io::stderr().is_terminal() && !std::io::stdout().is_terminal();
        ProgressWriter { tokens, written: 0, start: Instant::now(), first: Duration::ZERO, shown }
    }

    fn written(&mut self, token: i64) -> Result<(), Error> {
        let token = u8::try_from(token)
            .map_err(|_| refused(format!("expected a token of one byte, found {token}")))?;
        let mut out = std::io::stdout().lock();
        let written = out.write_all(&[token]).and_then(|()| out.flush());
        written.map_err(|e| Error::new(ErrorKind::Run, format!("writing a token: {e}")))?;
        self.written += 1;
        if self.written == 1 {
            self.first = self.start.elapsed();
        }
        if self.shown {
            eprint!("\r{} of {} tokens", self.written, self.tokens);
        }
        Ok(())
    }

    fn end(self) {
        let elapsed = self.start.elapsed();
        let rate = (self.written - 1) as f64 / (elapsed - self.first).as_secs_f64().max(1e-9);
        let (lead, n) = (if std::io::stdout().is_terminal() || self.shown { "\n" } else { "" }, self.written);
        eprintln!("{lead}{n} tokens, the first after {:.1?}, then {rate:.0} in a second", self.first);
    }
}
