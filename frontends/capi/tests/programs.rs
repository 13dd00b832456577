//! Compiles and runs the programs of `examples/c` and others, as C and as C++, with all warnings as errors, with the shared and the
//! static library, and under AddressSanitizer.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// The compiler and the flags of a program.
#[derive(Clone, Copy, Debug)]
struct CompilerConfig {
    compiler: &'static str,
    flags: &'static [&'static str],
    is_static: bool,
}

const C: CompilerConfig = CompilerConfig { compiler: "gcc", flags: &["-std=c11"], is_static: false };
const CPP: CompilerConfig =
    CompilerConfig { compiler: "g++", flags: &["-std=c++17", "-x", "c++"], is_static: false };
const STATIC: CompilerConfig = CompilerConfig { is_static: true, ..C };
const SANITIZED: CompilerConfig = CompilerConfig {
    flags: &["-std=c11", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    ..C
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The path of a library in the profile of this test. Cargo builds it here, since tests cannot depend on a crate that Rust cannot
/// link.
fn library(extension: &str) -> PathBuf {
    static BUILT_LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    let folder = BUILT_LIBRARY.get_or_init(|| {
        let test = std::env::current_exe().expect("a path");
        let folder = test.ancestors().nth(2).expect("the folder of the profile").to_path_buf();
        let mut command = Command::new(env!("CARGO"));
        // All libraries and an example are built, so that dependencies have the same features as in the tests of the workspace,
        // and are not built again.
        command.args(["build", "--quiet", "--locked", "--workspace", "--lib", "--example", "custom_op"]);
        command.current_dir(root());
        command.arg("--target-dir").arg(folder.parent().expect("the folder of all profiles"));
        if folder.ends_with("release") {
            command.arg("--release");
        }
        let output = command.output().expect("cargo starts");
        assert!(output.status.success(), "{}", text(&output));
        folder
    });
    folder.join("libsymmc").with_extension(extension)
}

/// Whether a compiler is installed. Without one the test is skipped.
fn has_compiler(compiler: &str) -> bool {
    let is_installed =
        Command::new(compiler).arg("--version").output().is_ok_and(|output| output.status.success());
    if !is_installed {
        symmc_cases::skip_test_outside_ci(compiler);
    }
    is_installed
}

fn text(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{:?}\n{}{}", output.status, text(&output.stdout), text(&output.stderr))
}

/// Compiles and links a program.
fn compile_program(source: &Path, way: CompilerConfig, into: &Path) -> PathBuf {
    let name = source.file_stem().expect("a name").to_string_lossy();
    let program =
        into.join(format!("{name}-{}-{}", way.compiler, way.flags.len() + usize::from(way.is_static)));
    let mut command = Command::new(way.compiler);
    command.args(way.flags).args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-O1"]);
    command.arg("-I").arg(root().join("frontends/capi/include")).arg("-I").arg(root().join("examples/c"));
    command.arg(source).args(["-x", "none"]);
    if way.is_static {
        command.arg(library("a")).args(["-lm", "-ldl", "-lrt"]);
    } else {
        command.arg("-ldl");
        let library = library("so");
        let folder = library.parent().expect("a folder").display();
        command.arg(&library).arg(format!("-Wl,-rpath,{folder}"));
    }
    command.args(["-pthread", "-o"]).arg(&program);
    let output = command.output().expect("the compiler starts");
    assert!(output.status.success(), "{command:?}: {}", text(&output));
    program
}

/// Runs a program without the environment of a launcher. Returns its output.
fn run_program(program: &Path, arguments: &[&Path]) -> String {
    let mut command = Command::new(program);
    for name in ["RANK", "WORLD_SIZE", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"] {
        command.env_remove(name);
    }
    let output = command.args(arguments).output().expect("it starts");
    assert!(output.status.success(), "{}: {}", program.display(), text(&output));
    String::from_utf8(output.stdout).expect("text")
}

fn example(name: &str) -> PathBuf {
    root().join("examples/c").join(name)
}

/// Threads and processes, compiled in one way.
fn check_threads_and_processes(way: CompilerConfig) {
    if !has_compiler(way.compiler) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let out = run_program(&compile_program(&example("threads.c"), way, folder.path()), &[]);
    for said in ["layer: 2 ranks, machine host", "%y of", "proved safe", "parameter w: 128 bytes, 2 axes"] {
        assert!(out.contains(said), "{said}: {out}");
    }
    assert!(out.ends_with("2 threads agree\n"), "{out}");
    let plan = folder.path().join("plan.json");
    let out = run_program(&compile_program(&example("processes.c"), way, folder.path()), &[&plan]);
    assert!(out.ends_with("2 processes agree\n") && plan.is_file(), "{out}");
}

#[test]
fn the_examples_run_as_c() {
    check_threads_and_processes(C);
}

#[test]
fn the_environment_filters_the_log() {
    if !has_compiler(C.compiler) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = compile_program(&example("threads.c"), C, folder.path());
    let run = |filter: &str| Command::new(&program).env("SYMMC_LOG", filter).output().expect("it starts");
    let quiet = run("off");
    assert!(quiet.status.success() && !text(&quiet).contains("symmc::"), "{}", text(&quiet));
    let logged = run("symmc::session=info");
    let line = "INFO rank{rank=1}: symmc::session: opened a session on the host";
    assert!(logged.status.success() && text(&logged).contains(line), "{}", text(&logged));
    let wrong = run("loud");
    assert!(!wrong.status.success() && text(&wrong).contains("SYMMC_LOG: unknown level"), "{}", text(&wrong));
}

#[test]
fn the_examples_run_as_cpp() {
    check_threads_and_processes(CPP);
}

#[test]
fn the_examples_run_with_the_static_library() {
    check_threads_and_processes(STATIC);
}

#[test]
fn the_examples_are_clean_under_address_sanitizer() {
    check_threads_and_processes(SANITIZED);
}

/// With two GPUs the results equal those of the host. Otherwise the program names what is missing.
#[test]
fn gpu_example_agrees_with_host_or_names_requirement() {
    let folder = tempfile::tempdir().expect("a folder");
    for way in [C, CPP, STATIC, SANITIZED].into_iter().filter(|way| has_compiler(way.compiler)) {
        let program = compile_program(&example("gpus.c"), way, folder.path());
        let output = Command::new(&program).output().expect("it starts");
        let (said, error) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        match output.status.code() {
            Some(0) => assert!(said.ends_with("2 GPUs agree with the host\n"), "{}", text(&output)),
            code => {
                assert_eq!(code, Some(77), "{}", text(&output));
                assert!(error.starts_with("this example needs two GPUs: "), "{}", text(&output));
            }
        }
    }
}

#[test]
fn peers_end_without_leftovers_after_a_rank_fails() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/dying.c");
    let folder = tempfile::tempdir().expect("a folder");
    for way in [C, CPP, SANITIZED].into_iter().filter(|way| has_compiler(way.compiler)) {
        let program = compile_program(&source, way, folder.path());
        for (victim, how) in [("0", "kill"), ("1", "kill"), ("2", "kill"), ("0", "stop"), ("2", "stop")] {
            let out = run_program(&program, &[Path::new(victim), Path::new(how)]);
            assert_eq!(out, "the others went on\n", "rank {victim}, {how}");
        }
    }
}

#[test]
fn freeing_a_session_ends_its_peer_unlike_a_fork() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/leaving.c");
    let folder = tempfile::tempdir().expect("a folder");
    for way in [C, CPP].into_iter().filter(|way| has_compiler(way.compiler)) {
        assert_eq!(run_program(&compile_program(&source, way, folder.path()), &[]), "all left\n");
    }
}

#[test]
fn misuse_returns_a_status_with_a_message() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, said) in [("wrong.c", "all refused\n"), ("strange.c", "nothing broke\n")] {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name);
        for way in [C, CPP, SANITIZED].into_iter().filter(|way| has_compiler(way.compiler)) {
            let out = run_program(&compile_program(&source, way, folder.path()), &[folder.path()]);
            assert!(out.ends_with(said), "{out}");
        }
    }
}

#[test]
fn rules_of_the_header_hold() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rules.c");
    let folder = tempfile::tempdir().expect("a folder");
    for way in [C, CPP, STATIC, SANITIZED].into_iter().filter(|way| has_compiler(way.compiler)) {
        let program = compile_program(&source, way, folder.path());
        // The log needs storage of the thread, too.
        for filter in ["off", "trace"] {
            let output = Command::new(&program).env("SYMMC_LOG", filter).output().expect("it starts");
            assert!(output.status.success(), "{way:?}: {}", text(&output));
            assert_eq!(String::from_utf8_lossy(&output.stdout), "key\natexit\ndestructor\n", "{way:?}");
        }
        let output = Command::new(&program).arg("log").env("SYMMC_LOG", "loud").output().expect("it starts");
        assert!(output.status.success() && output.stdout == b"all NULL\n", "{}", text(&output));
    }
}

/// The number of random trials and their first seed: `PROPTEST_CASES` asks for more than `least`, and `PROPTEST_RNG_SEED` for others.
fn random_trials(least: u64) -> (u64, u64) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    (number("PROPTEST_CASES").unwrap_or(0).max(least), number("PROPTEST_RNG_SEED").unwrap_or(1))
}

/// Runs a random program of this folder with its trials for each number of ranks.
fn run_random(name: &str, trials: &[(u64, u64)], seed: u64, way: CompilerConfig) {
    if !has_compiler(way.compiler) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name);
    let program = compile_program(&source, way, folder.path());
    for (ranks, count) in trials {
        let numbers = [seed, *count, *ranks].map(|number| PathBuf::from(number.to_string()));
        let arguments: Vec<&Path> = numbers.iter().map(PathBuf::as_path).chain([folder.path()]).collect();
        print!("{}", run_program(&program, &arguments));
    }
}

#[test]
fn random_calls_return_what_a_model_expects() {
    let (count, seed) = random_trials(150);
    for way in [C, SANITIZED] {
        run_random("random_calls.c", &[(1, count), (2, count / 5), (3, count / 15)], seed, way);
    }
}

#[test]
fn random_faults_reach_the_other_ranks() {
    let (count, seed) = random_trials(12);
    run_random("random_faults.c", &[(2, count / 2), (3, count / 2)], seed, C);
}

#[test]
fn processes_of_a_launcher_find_each_other() {
    if !has_compiler(C.compiler) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = compile_program(&example("processes.c"), C, folder.path());
    let port = std::process::id().to_string();
    let start = |rank: &str| {
        let places = [("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2")];
        let mut command = Command::new(&program);
        command.envs(places).env("MASTER_ADDR", "localhost").env("MASTER_PORT", &port).arg("plan.json");
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
    };
    let ranks = ["0", "1"].map(start).map(|rank| rank.wait_with_output().expect("it ends"));
    assert!(ranks.iter().all(|rank| rank.status.success()), "{:?}", ranks.each_ref().map(text));
    let agreed = ranks.map(|rank| rank.stdout.ends_with(b"2 processes agree\n"));
    assert_eq!(agreed, [true, false]);
}

#[test]
fn sessions_share_the_weights_of_a_file() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/weights.c");
    let model = root().join("examples/generate");
    let expected = std::fs::read_to_string(model.join("generated.txt")).expect("a text");
    let folder = tempfile::tempdir().expect("a folder");
    for way in [C, CPP, SANITIZED].into_iter().filter(|way| has_compiler(way.compiler)) {
        let program = compile_program(&source, way, folder.path());
        let files = [&*model.join("prefill.pt2"), &*model.join("model.safetensors")];
        assert_eq!(run_program(&program, &files), expected[..1]);
    }
}

/// The programs of the guide for embedders: a whole one, and the part of a rank on a GPU.
#[test]
fn the_programs_of_the_page_compile_and_run() {
    let page = std::fs::read_to_string(root().join("docs/embedding.md")).expect("the page");
    let programs = page.split("```c\n").skip(1).map(|rest| rest.split("```").next().expect("an end"));
    let [whole, part] = programs.collect::<Vec<_>>()[..] else { panic!("expected two programs in C") };
    let folder = tempfile::tempdir().expect("a folder");
    let source = folder.path().join("page.c");
    for way in [C, CPP].into_iter().filter(|way| has_compiler(way.compiler)) {
        std::fs::write(&source, whole).expect("written");
        assert_eq!(run_program(&compile_program(&source, way, folder.path()), &[]), "");
        std::fs::write(&source, format!("{part}\nint main(void) {{ return 0; }}\n")).expect("written");
        assert_eq!(run_program(&compile_program(&source, way, folder.path()), &[]), "");
    }
}

/// Every function of the header is in both libraries: a program that takes all their addresses links.
#[test]
fn the_libraries_have_every_function_of_the_header() {
    let header = std::fs::read_to_string(root().join("frontends/capi/include/symmc.h")).expect("the header");
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let names: Vec<&str> = header
        .lines()
        .filter(|line| !line.starts_with([' ', '/', '#', '}']) && !line.starts_with("typedef"))
        .filter_map(|line| line.split_once('(')?.0.rsplit(|c| !is_name(c)).next())
        .collect();
    assert!(names.len() > 40, "{names:?}");
    let entries: String = names.iter().map(|name| format!("    (function){name},\n")).collect();
    let program = format!(
        "#include <stdio.h>\n#include \"symmc.h\"\ntypedef void (*function)(void);\nstatic function const all[] = {{\n{entries}}};\n\
         int main(void) {{\n    for (size_t i = 0; i < sizeof all / sizeof *all; i++)\n        if (!all[i]) return 1;\n    \
         printf(\"%s\\n\", symmc_version());\n    return symmc_abi_version() != SYMMC_ABI_VERSION;\n}}\n"
    );
    let folder = tempfile::tempdir().expect("a folder");
    let source = folder.path().join("all.c");
    std::fs::write(&source, program).expect("written");
    for config in [C, STATIC].into_iter().filter(|config| has_compiler(config.compiler)) {
        let config = CompilerConfig { flags: &["-std=c11", "-Wno-cast-function-type"], ..config };
        assert_eq!(
            run_program(&compile_program(&source, config, folder.path()), &[]),
            format!("{}\n", env!("CARGO_PKG_VERSION"))
        );
    }
}

/// All files and links in a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let mut paths: Vec<PathBuf> =
        entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect();
    paths.sort();
    paths
}

/// The output of `install.sh` with these arguments.
fn install(arguments: &[&Path], destination: &str) -> Output {
    let script = root().join("frontends/capi/install.sh");
    Command::new("sh").arg(script).args(arguments).env("DESTDIR", destination).output().expect("sh starts")
}

#[test]
fn installed_library_builds_and_runs_through_pkg_config() {
    if !has_compiler(C.compiler) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (prefix, archive) = (folder.path().join("prefix"), library("a"));
    let libraries = archive.parent().expect("a folder");
    let output = install(&[&prefix, libraries], "");
    assert!(output.status.success(), "{}", text(&output));
    let mut installed: Vec<PathBuf> =
        String::from_utf8_lossy(&output.stdout).lines().map(PathBuf::from).collect();
    installed.sort();
    assert_eq!(installed, files(&prefix), "what is said is what is there");
    let pkg_config =
        std::fs::read_to_string(prefix.join("lib/pkgconfig/symmc.pc")).expect("the file of pkg-config");
    for line in [format!("prefix={}", prefix.display()), format!("Version: {}", env!("CARGO_PKG_VERSION"))] {
        assert!(pkg_config.lines().any(|other| other == line), "{line}: {pkg_config}");
    }

    let flags = |more: &str| {
        let mut command = Command::new("pkg-config");
        command
            .args(["--cflags", "--libs", more, "symmc"])
            .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
        let output = command.output().expect("pkg-config starts");
        assert!(output.status.success(), "{}", text(&output));
        String::from_utf8(output.stdout).expect("text")
    };
    if !has_compiler("pkg-config") {
        return;
    }
    for (more, is_static) in [("--print-errors", false), ("--static", true)] {
        let flags = flags(more);
        let flags = if is_static { flags.replace("-lsymmc", "-l:libsymmc.a") } else { flags };
        let program = folder.path().join("threads");
        let mut command = Command::new(C.compiler);
        command
            .arg(example("threads.c"))
            .args(flags.split_whitespace())
            .args(["-pthread", "-o"])
            .arg(&program);
        let output = command.output().expect("the compiler starts");
        assert!(output.status.success(), "{command:?}: {}", text(&output));
        let mut command = Command::new(&program);
        if !is_static {
            // The loader uses only the name with the version of the interface.
            std::fs::remove_file(prefix.join("lib/libsymmc.so")).expect("it is there");
            command.env("LD_LIBRARY_PATH", prefix.join("lib"));
        }
        let output = command.output().expect("it starts");
        assert!(
            output.status.success() && output.stdout.ends_with(b"2 threads agree\n"),
            "{}",
            text(&output)
        );
    }
}

#[test]
fn install_honours_destdir_and_rejects_invalid_folders() {
    if !has_compiler(C.compiler) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let archive = library("a");
    let libraries = archive.parent().expect("a folder");
    let destination = folder.path().to_str().expect("text");
    let output = install(&[Path::new("/opt/an & engine"), libraries], destination);
    assert!(output.status.success(), "{}", text(&output));
    let file = folder.path().join("opt/an & engine/lib/pkgconfig/symmc.pc");
    let pkg_config = std::fs::read_to_string(file).expect("the file of pkg-config");
    assert!(pkg_config.starts_with("prefix=/opt/an\\ &\\ engine\n"), "{pkg_config}");
    for (prefix, libraries, error) in
        [("prefix", libraries, "an absolute folder"), ("/nowhere", Path::new("/no"), "no libsymmc.a")]
    {
        let output = install(&[Path::new(prefix), libraries], destination);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output).contains(error), "{}", text(&output));
    }
    assert!(!folder.path().join("nowhere").exists());
}
