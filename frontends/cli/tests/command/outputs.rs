//! Output files. Commands never write through a link or over a file that they read, and never leave part of a file.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::common::{failure, output, programs, symmc, write};

const PROGRAM: &str = "program \"p\" ranks 2\ngroup @g world\narg %x: f32[4]\n\
                       %y: f32[4] = all_reduce %x op=sum group=@g\nreturn %y\n";
const TABLE: &str = "id,lower,upper,size\na,0,2,10\nb,1,3,10\n";

/// The commands that write a file, each with its input and its option.
fn commands(folder: &Path) -> Vec<(String, String, &'static str)> {
    let program = write(folder, "a.symm", PROGRAM.as_bytes());
    let table = write(folder, "a.csv", TABLE.as_bytes());
    let run = format!("run {program} --seed 1 --backend threads");
    vec![
        (format!("plan {program}"), program.clone(), "-o"),
        (run, program, "--output"),
        (format!("pack {table}"), table, "-o"),
    ]
}

#[test]
fn no_command_overwrites_what_it_reads() {
    let dir = tempfile::tempdir().expect("a folder");
    let path_of = |name: &str| dir.path().join(name).display().to_string();
    for (command, input, option) in commands(dir.path()) {
        let before = fs::read(&input).expect("the input");
        for name in [path_of("hard"), path_of("soft"), path_of("folder")] {
            let _ = fs::remove_file(name);
        }
        fs::hard_link(&input, path_of("hard")).expect("a link");
        symlink(&input, path_of("soft")).expect("a link");
        symlink(dir.path(), path_of("folder")).expect("a link");
        let name = Path::new(&input).file_name().expect("a name").to_string_lossy().into_owned();
        for path in [input.clone(), path_of("hard"), path_of("soft"), path_of(&format!("folder/{name}"))] {
            let text = failure(&mut symmc(&format!("{command} {option} {path}")), 2);
            assert!(text.contains("read by the same command"), "{command}: {text}");
            assert_eq!(fs::read(&input).expect("the input"), before, "{command} {option} {path}");
        }
    }
}

#[test]
fn files_that_options_name_are_not_overwritten_either() {
    let dir = tempfile::tempdir().expect("a folder");
    let path_of = |name: &str| dir.path().join(name).display().to_string();
    let program = write(dir.path(), "a.symm", PROGRAM.as_bytes());
    let profile = write(dir.path(), "machine.json", b"{}");
    let plan = path_of("plan.json");
    assert!(output(&mut symmc(&format!("plan {program} -o {plan}"))).status.success());
    let tensors = programs().join("hf_llama_tp2.safetensors");
    fs::copy(&tensors, path_of("t.safetensors")).expect("copied");
    let tensors = path_of("t.safetensors");
    for line in [
        format!("plan {program} --machine {profile} -o {profile}"),
        format!("plan {program} --tensors {tensors} -o {tensors}"),
        format!("run {program} --plan {plan} --output {plan}"),
        format!("run {plan} --output {plan}"),
        format!("run {program} --tensors {tensors} --output {tensors}"),
    ] {
        let text = failure(&mut symmc(&line), 2);
        assert!(text.contains("read by the same command"), "{line}: {text}");
    }
}

/// No option names the tensors next to an archive, or the data file of an ONNX model.
#[test]
#[cfg(all(feature = "torch", feature = "onnx"))]
fn files_that_a_program_names_are_not_overwritten_either() {
    let dir = tempfile::tempdir().expect("a folder");
    let path_of = |name: &str| dir.path().join(name).display().to_string();
    for name in ["moe_ep4.pt2", "moe_ep4.safetensors"] {
        fs::copy(programs().join(name), path_of(name)).expect("copied");
    }
    let line = format!("plan {} -o {}", path_of("moe_ep4.pt2"), path_of("moe_ep4.safetensors"));
    assert!(failure(&mut symmc(&line), 2).contains("read by the same command"));
}

#[test]
fn a_link_at_the_output_is_replaced() {
    let dir = tempfile::tempdir().expect("a folder");
    let path_of = |name: &str| dir.path().join(name).display().to_string();
    let target = write(dir.path(), "target", b"keep");
    for (command, _, option) in commands(dir.path()) {
        let link = path_of("link.safetensors");
        let _ = fs::remove_file(&link);
        symlink(&target, &link).expect("a link");
        let out = output(&mut symmc(&format!("{command} {option} {link}")));
        assert!(out.status.success(), "{command}: {}", String::from_utf8_lossy(&out.stderr));
        assert!(fs::symlink_metadata(&link).expect("written").is_file(), "{command}");
        assert_eq!(fs::read(&target).expect("it stays"), b"keep", "{command}");
    }
    let remaining = fs::read_dir(dir.path()).expect("a folder").flatten();
    assert_eq!(remaining.filter(|e| e.file_name().to_string_lossy().ends_with(".part")).count(), 0);
}

#[test]
fn standard_output_and_devices_take_what_is_written() {
    let dir = tempfile::tempdir().expect("a folder");
    let program = write(dir.path(), "a.symm", PROGRAM.as_bytes());
    for name in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
        let line = format!("plan {program} -o {name} --format json");
        let piped = String::from_utf8(output(&mut symmc(&line)).stdout).expect("UTF-8");
        let plans = serde_json::Deserializer::from_str(&piped).into_iter::<serde_json::Value>();
        assert_eq!(plans.filter(Result::is_ok).count(), 2, "{name}: the file and what is printed\n{piped}");
        // Standard output may be a file. Writing continues at its position.
        let file = dir.path().join("out.json");
        let out = fs::File::create(&file).expect("a file");
        assert!(symmc(&line).stdout(out).status().expect("symmc starts").success());
        if name == "/dev/stdout" {
            assert_eq!(fs::read_to_string(&file).expect("UTF-8"), piped);
        }
    }
    let out = output(&mut symmc(&format!("plan {program} -o /dev/null")));
    assert!(out.status.success());
    let text = failure(&mut symmc(&format!("plan {program} -o /dev/full")), 2);
    assert!(text.contains("/dev/full"), "{text}");
}
