//! Bad input: exit code 2 and one message that names the thing, what was found and what was expected.

use std::path::Path;

use crate::common::{failure, programs, stdout, symmc, write};

fn says(line: &str, parts: &[&str]) {
    let text = failure(&mut symmc(line), 2);
    for part in parts {
        assert!(text.contains(part), "symmc {line}: {part:?} is missing in\n{text}");
    }
}

#[test]
fn broken_files() {
    let dir = tempfile::tempdir().expect("a folder");
    let contents = std::fs::read(programs().join("hf_llama_tp2.pt2")).expect("a program");
    for cut in [0, 4, 100, contents.len() / 2, contents.len() - 10] {
        let file = write(dir.path(), &format!("cut{cut}.pt2"), &contents[..cut]);
        says(&format!("plan {file} --ranks 2"), &[&file]);
    }
    let file = write(dir.path(), "text.pt2", b"PK\x03\x04 this is no archive");
    says(&format!("plan {file} --ranks 2"), &[&file]);
    let file = write(dir.path(), "bad.symm", b"program \"x\" ranks 2\n%y: f32[4] = frobnicate %x\n");
    says(&format!("plan {file}"), &[&file, "2"]);
    let contents = std::fs::read(programs().join("gpt_tp2_rank0.onnx")).expect("a program");
    for cut in [0, 1, 4, 1000, contents.len() / 2, contents.len() - 1] {
        let file = write(dir.path(), &format!("cut{cut}.onnx"), &contents[..cut]);
        says(&format!("plan {file}"), &[&file, "expected an ONNX model, found"]);
    }
    says("plan gpt_tp2_rank0.onnx moe_ep4.pt2", &["moe_ep4.pt2", "expected an ONNX model"]);
    let three = "plan gpt_tp2_rank0.onnx gpt_tp2_rank1.onnx gpt_tp2_rank1.onnx";
    says(three, &["expected 2 files", "group_size", "found 3"]);
    says("plan gpt_tp2_rank0.onnx --ranks 4", &["the caller says 4", "is 2"]);
    says("plan gpt_tp2_rank0.onnx --group tp=0,1", &["names no groups", "tp"]);
    says("plan no_such_file.pt2", &["no_such_file.pt2"]);
    says("run no_such_file.pt2", &["no_such_file.pt2"]);
    says("check megatron_tp4_f32.pt2", &["expected a plan"]);
    says("run megatron_tp4_f32.pt2 --tensors moe_ep4.pt2", &["moe_ep4.pt2"]);
}

#[test]
fn a_message_says_everything_once() {
    for line in ["plan nowhere.symm", "run nowhere.symm", "check nowhere.json", "pack nowhere.csv"] {
        let text = failure(&mut symmc(line), 2);
        assert_eq!(text.matches("No such file").count(), 1, "symmc {line}\n{text}");
    }
}

#[test]
fn tables_that_do_not_pack() {
    let dir = tempfile::tempdir().expect("a folder");
    let head = "id,lower,upper,size,offset";
    let file = write(dir.path(), "cell.csv", format!("{head}\na,0,1,many,\n").as_bytes());
    says(&format!("pack {file}"), &[&file, "line 2", "many", "expected an integer"]);
    let file = write(dir.path(), "clash.csv", format!("{head}\na,0,2,8,0\nb,1,3,8,4\n").as_bytes());
    says(&format!("pack {file}"), &[&file, "a and b", "overlap"]);
    says("pack no_such_file.csv", &["no_such_file.csv"]);
}

#[test]
fn ranks_that_do_not_fit() {
    says("run megatron_tp4_f32.pt2 --ranks 3", &["4", "3"]);
    says("plan moe_ep4.pt2 --ranks 8", &["4", "8"]);
    says("plan hf_llama_tp2_core.pt2", &["--ranks"]);
    says("run hf_llama_tp2.pt2 --ranks 4 --tensors hf_llama_tp2.safetensors", &["4", "2"]);
}

#[test]
fn sizes_that_do_not_fit() {
    says("run megatron_tp4_f32.pt2 --set tokens=1", &["tokens=1", "2 to 4096"]);
    says("run megatron_tp4_f32.pt2 --set tokens=5000", &["tokens=5000", "2 to 4096"]);
    says("run megatron_tp4_f32.pt2 --set batch=2", &["no symbol batch", "tokens"]);
    says("plan megatron_tp4_f32.pt2 --bucket tokens=9000", &["9000", "4096"]);
    says("plan megatron_tp4_f32.pt2 --bucket tokens=64,8", &["ascend"]);
    says(
        "run megatron_tp4_f32.pt2 --bucket tokens=8,64 --set tokens=65 --compare interpreter",
        &["no bucket", "tokens=65", "tokens=2..=8; tokens=9..=64"],
    );
    says("plan hf_llama_tp2_core.pt2 --ranks 1025", &["1025", "1024"]);
}

/// A constant index or slice outside a dynamic axis. Reading there would give an element of another row, or none.
#[test]
fn positions_outside_of_a_dynamic_axis() {
    let dir = tempfile::tempdir().expect("a folder");
    let run = |nodes: &str, options: &str, parts: &[&str]| {
        let program = format!(
            "program \"p\" ranks 2\nsymbol t in 1..=16\nsymbol k in 0..=8\ngroup @all world\narg %x: i64[4, t]\n\
             param %tab: i64[8, 2]\nconst %i: i64[1] = hex\"0500000000000000\"\n{nodes}\n\
             %z: i64[2, 1] = all_reduce %h op=sum group=@all\nreturn %z\n"
        );
        let file = write(dir.path(), "p.symm", program.as_bytes());
        says(&format!("run {file} --seed 1 --compare none {options}"), parts);
        let plan = dir.path().join("p.json").display().to_string();
        stdout(&format!("plan {file} -o {plan} --bucket t=4,16"));
        says(&format!("run {plan} --seed 1 --compare none {options}"), parts);
    };
    let take = "%y: i64[4, 1] = take %x, %i axis=1\n%h: i64[2, 1] = slice %y axis=0 start=0 step=1";
    run(take, "--set t=3", &["%y (take)", "index 5", "axis 1 of %x", "extent is t = 3"]);
    let sliced =
        "%y: i64[4, 1] = slice %x axis=1 start=k step=1\n%h: i64[2, 1] = slice %y axis=0 start=0 step=1";
    run(sliced, "--set t=3 --set k=5", &["%y (slice)", "index k = 5", "axis 1 of %x", "extent is t = 3"]);
    let slice =
        "%y: i64[4, 1] = slice %x axis=1 start=t - 5 step=1\n%h: i64[2, 1] = slice %y axis=0 start=0 step=1";
    run(slice, "--set t=4", &["%y (slice)", "index t - 5 = -1", "axis 1 of %x", "extent is t = 4"]);
    let positions = "%p: i64[t] = iota start=0 step=1\n%e: i64[t, 2] = take %tab, %p axis=0\n\
                     %c: i64[t, 1] = slice %e axis=1 start=0 step=1\n%h: i64[2, 1] = slice %c axis=0 start=0 step=1";
    run(positions, "--set t=9", &["%e (take)", "index t - 1 = 8", "axis 0 of %tab", "extent is 8"]);
}

#[test]
fn names_that_do_not_exist() {
    let messages =
        ["there is no machine a100x2", "host, h100x2, h100x4, h100x8, h200x2, h200x4, h200x8", "symmc tune"];
    says("plan megatron_tp4_f32.pt2 --machine a100x2", &messages);
    says("run megatron_tp4_f32.pt2 --machine a100x2", &messages);
    says("tune --ranks 2 --curves a100x2 -o x.json", &messages);
    says("plan megatron_tp4_f32.pt2 --bind foo", &["foo", "ids"]);
    says("plan megatron_tp4_f32.pt2 --bind p_e_weight", &["p_e_weight is not an argument", "ids"]);
    says("plan megatron_tp4_f32.pt2 --group tp=0,1,2,3", &["`tp`", "no such group", "it has: 0"]);
    says("plan mesh_2x2.pt2", &["group `3` (node `all_reduce`)", "group `1`", "--group '3=0,1;2,3'"]);
    let text = failure(&mut symmc("ops nosuch"), 2);
    assert!(text.contains("no operator has a name that contains nosuch; `symmc ops` lists all"), "{text}");
    assert!(text.len() < 200, "{text}");
    says("plan megatron_tp4_f32.pt2 --explain %nothing", &["nothing"]);
}

/// A copy of a file of tensors with its header changed.
fn edited(dir: &Path, name: &str, edit: impl Fn(&mut serde_json::Map<String, serde_json::Value>)) -> String {
    let bytes = std::fs::read(programs().join(name)).expect("tensors");
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let mut header = serde_json::from_slice(&bytes[8..8 + length]).expect("a header");
    edit(&mut header);
    let header = serde_json::to_vec(&header).expect("a header");
    let contents = [&(header.len() as u64).to_le_bytes(), header.as_slice(), &bytes[8 + length..]].concat();
    write(dir, name, &contents)
}

#[test]
fn tensors_that_do_not_fit() {
    let dir = tempfile::tempdir().expect("a folder");
    let name = "megatron_tp4_f32.safetensors";
    let renamed = |from: &'static str, to: &'static str| {
        edited(dir.path(), name, move |h| {
            let tensor = h.remove(from).expect("the tensor");
            h.insert(to.into(), tensor);
        })
    };
    let file = renamed("rank2.w.l.0.o.weight", "rank2.w.other");
    says(&format!("run megatron_tp4_f32.pt2 --tensors {file}"), &["rank2.w.l.0.o.weight", "missing"]);
    let file = edited(dir.path(), name, |h| h["rank1.w.l.0.o.weight"]["shape"] = serde_json::json!([16, 64]));
    says(
        &format!("run megatron_tp4_f32.pt2 --tensors {file}"),
        &["rank1.w.l.0.o.weight", "[64, 16]", "[16, 64]"],
    );
    let file = edited(dir.path(), name, |h| h["rank1.in.0"]["dtype"] = serde_json::json!("F64"));
    says(&format!("run megatron_tp4_f32.pt2 --tensors {file}"), &["rank1.in.0", "i64", "f64"]);
}

#[test]
fn plans_that_do_not_fit() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("p.json").display().to_string();
    stdout(&format!("plan megatron_tp4_f32.pt2 -o {file}"));
    says(&format!("run hf_llama_tp2.pt2 --ranks 2 --plan {file}"), &["another program"]);
    says(
        &format!("run {file} --tensors moe_ep4.safetensors"),
        &["moe_ep4.safetensors", "rank0.in.0", "i64", "f32"],
    );
    says(&format!("run {file} --ranks 2"), &["4", "2"]);
    let text = std::fs::read_to_string(&file).expect("the plan");
    let mut newer: serde_json::Value = serde_json::from_str(&text).expect("the plan is JSON");
    newer["version"] = 99.into();
    let newer = write(dir.path(), "newer.json", newer.to_string().as_bytes());
    says(&format!("check {newer}"), &["99"]);
    let cut = write(dir.path(), "cut.json", &text.as_bytes()[..text.len() / 2]);
    says(&format!("check {cut}"), &["cut.json"]);
    let foreign = write(dir.path(), "other.json", b"{\"hello\": 1}");
    says(&format!("run {foreign}"), &["other.json"]);
}

#[test]
fn an_unsafe_plan_fails_with_1() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("p.json");
    stdout(&format!("plan megatron_tp4_f32.pt2 -o {}", file.display()));
    let mut plan: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&file).expect("the plan")).expect("JSON");
    let buffers = plan["buckets"][0]["buffers"].as_array_mut().expect("buffers");
    for buffer in buffers.iter_mut().filter(|b| b["arena"] == "ordinary") {
        buffer["offset"] = 0.into();
    }
    std::fs::write(&file, plan.to_string()).expect("written");
    for line in [format!("check {}", file.display()), format!("run {} --seed 1", file.display())] {
        let text = failure(&mut symmc(&line), 1);
        assert!(text.contains("does not check"), "{text}");
    }
}

#[test]
fn environments_that_do_not_fit() {
    for (rank, size, parts) in [
        ("0", "0", ["WORLD_SIZE", "at least 1 rank"]),
        ("x", "4", ["RANK", "\"x\""]),
        ("4", "4", ["RANK", "below 4"]),
        ("0", "3", ["4 ranks", "3 ranks"]),
    ] {
        let mut command = symmc("run megatron_tp4_f32.pt2");
        command.envs([("RANK", rank), ("WORLD_SIZE", size), ("MASTER_ADDR", "x"), ("MASTER_PORT", "1")]);
        let text = failure(&mut command, 2);
        assert!(parts.iter().all(|p| text.contains(p)), "{text}");
        // The error comes before inputs are generated.
        assert!(!text.contains("note:"), "{text}");
    }
}

#[test]
fn help_has_examples() {
    for command in ["plan", "check", "run", "print"] {
        let text = stdout(&format!("{command} --help"));
        assert!(
            text.contains("Examples:\n  symmc ") && text.contains(&format!("symmc {command} model.p")),
            "{text}"
        );
    }
}

#[test]
fn recordings_that_miss_a_part() {
    let dir = tempfile::tempdir().expect("a folder");
    let name = "megatron_tp4_f32.safetensors";
    for (from, to) in [("rank0.in.0", "rank0.in.7"), ("rank2.out.0", "rank2.out.7")] {
        let file = edited(dir.path(), name, |h| {
            let tensor = h.remove(from).expect("the tensor");
            h.insert(to.into(), tensor);
        });
        says(&format!("run megatron_tp4_f32.pt2 --tensors {file}"), &[from, "missing"]);
    }
    let file = write(dir.path(), "junk.safetensors", b"junk junk junk junk");
    says(
        &format!("run megatron_tp4_f32.pt2 --tensors {file}"),
        &["junk.safetensors", "not a safetensors file"],
    );
}

#[test]
fn options_that_contradict_or_have_no_effect() {
    says("run megatron_tp4_f32.pt2 --set tokens=2 --set tokens=7", &["tokens", "2", "7"]);
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("p.json").display().to_string();
    stdout(&format!("plan megatron_tp4_f32.pt2 -o {file}"));
    for option in ["--bucket tokens=8", "--machine host", "--bind all", "--group 0=0,1,2,3"] {
        let name = option.split(' ').next().unwrap_or_default();
        says(&format!("run {file} {option}"), &[name]);
    }
    says(&format!("run megatron_tp4_f32.pt2 --plan {file} --machine host"), &["--machine", "--plan"]);
    says(&format!("bench program {file} --machine host"), &["--machine"]);
    says("run megatron_tp4_f32.pt2 --gpus 0,1,2,3", &["--gpus", "--backend cuda"]);
    says("run megatron_tp4_f32.pt2 --products heuristic", &["--products", "--backend cuda"]);
    says("run megatron_tp4_f32.pt2 --profile-trace t.json", &["--profile-trace", "--backend cuda"]);
    let two = "run megatron_tp4_f32.pt2 --backend cuda --output one --profile-trace ./one";
    says(two, &["one", "two outputs"]);
    says("tune --ranks 2 -o no/such/folder/x.json", &["x.json", "no folder"]);
    says("tune --ranks 2 -o .", &["directory"]);
    says("bench collectives --ranks 2 --dtype q4", &["q4", "bf16"]);
    says("run megatron_tp4_f32.pt2 --atol nan", &["nan"]);
    says("run megatron_tp4_f32.pt2 --rtol -1", &["-1"]);
    says("run megatron_tp4_f32.pt2 --timeout 1e-6", &["0.001", "1e-6"]);
    says("run megatron_tp4_f32.pt2 --compare recorded", &["--compare recorded needs --tensors"]);
    let recorded = "run megatron_tp4_f32.pt2 --tensors megatron_tp4_f32.safetensors --compare recorded";
    says(&format!("{recorded} --seed 1"), &["contradicts --seed"]);
    says("plan megatron_tp4_f32.pt2 --format json --explain %linear", &["--format", "--explain"]);
    says("plan megatron_tp4_f32.pt2 --orders --timing", &["--orders", "--timing"]);
    says("plan megatron_tp4_f32.pt2 --bind all --bind ids", &["--bind all"]);
    let text = failure(symmc("plan megatron_tp4_f32.pt2").args(["--bind", ""]), 2);
    assert!(text.contains("--bind") && text.contains("expected a name"), "{text}");
    let group = "plan megatron_tp4_f32.pt2 --group 0=0,1,2,3 --group 0=3,2,1,0";
    says(group, &["group 0", "twice"]);
    says("print megatron_tp4_f32.pt2 --machine h200x4", &["--machine", "--stage lowered"]);
    says("print megatron_tp4_f32.pt2 --stage canonical --bucket tokens=2", &["--bucket", "--stage lowered"]);
}

#[test]
fn indices_outside_their_axis() {
    let dir = tempfile::tempdir().expect("a folder");
    for (index, hex) in [(8, "0800000000000000"), (-1, "ffffffffffffffff")] {
        let text = format!(
            "program \"t\" ranks 2\ngroup @g world\narg %t: f32[8, 4]\nconst %i: i64[1] = hex\"{hex}\"\n\
             %y: f32[1, 4] = take %t, %i axis=0\n%z: f32[1, 4] = all_reduce %y op=sum group=@g\nreturn %z\n"
        );
        let file = write(dir.path(), "t.symm", text.as_bytes());
        for backend in ["host", "threads", "interpreter"] {
            let messages = ["take", "%y", &format!("index {index} "), "outside axis 0", "extent"];
            says(&format!("run {file} --backend {backend}"), &messages);
        }
    }
}

#[test]
fn plans_that_no_machine_can_hold() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("p.json").display().to_string();
    stdout(&format!("plan hf_llama_tp2.pt2 -o {file}"));
    let text = std::fs::read_to_string(&file).expect("the plan");
    let plan: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let edited = |edit: &dyn Fn(&mut serde_json::Value)| {
        let mut plan = plan.clone();
        edit(&mut plan);
        write(dir.path(), "edited.json", plan.to_string().as_bytes())
    };
    let unsafe_plan = |file: &str, part: &str| {
        for command in ["check", "run"] {
            let text = failure(&mut symmc(&format!("{command} {file}")), 1);
            assert!(text.contains("does not check") && text.contains(part), "{text}");
        }
    };
    unsafe_plan(&edited(&|p| p["buckets"] = serde_json::json!([])), "0 buckets");
    unsafe_plan(&edited(&|p| p["arenas"]["ordinary"] = u64::MAX.into()), "18446744073709551615 bytes");
    for arena in ["ordinary", "symmetric"] {
        let file = edited(&|p| p["arenas"][arena] = (1u64 << 50).into());
        says(&format!("run {file}"), &[&format!("the {arena} arena of 1125899906842624 bytes"), "allocated"]);
    }
}

#[test]
fn folders_and_text_with_a_byte_order_mark() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = dir.path().display();
    says(&format!("plan {folder}"), &["this is a folder", ".pt2"]);
    says(&format!("check {folder}"), &["this is a folder", "plan"]);
    says(&format!("run megatron_tp4_f32.pt2 --tensors {folder}"), &["this is a folder", "safetensors"]);
    says(&format!("plan megatron_tp4_f32.pt2 --machine {folder}"), &["this is a folder", "profile"]);
    let marked = |name: &str, text: &str| write(dir.path(), name, format!("\u{feff}{text}").as_bytes());
    let file = marked("p.symm", &stdout("print megatron_tp4_f32.pt2"));
    stdout(&format!("plan {file} -o {folder}/p.json"));
    let plan = std::fs::read_to_string(dir.path().join("p.json")).expect("the plan");
    stdout(&format!("check {}", marked("marked.json", &plan)));
}

#[test]
fn buckets_and_files_of_the_wrong_kind() {
    says("plan megatron_tp4_f32.pt2 --bucket tokens=2,8 --bucket tokens=16,32", &["tokens", "twice"]);
    says("run megatron_tp4_f32.pt2 --plan megatron_tp4_f32.pt2", &["expected a plan"]);
    let dir = tempfile::tempdir().expect("a folder");
    let file = write(dir.path(), "machine.json", b"{}");
    let text = failure(&mut symmc(&format!("plan megatron_tp4_f32.pt2 --machine {file}")), 2);
    assert_eq!(text.matches("missing field").count(), 1, "{text}");
    assert!(stdout("plan hf_llama_tp2.pt2 --explain %pow_1").contains("simplified away"));
}

#[test]
fn output_that_cannot_be_written() {
    for line in ["print megatron_tp4_f32.pt2", "ops", "plan megatron_tp4_f32.pt2", "run hf_llama_tp2.pt2"] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("the full device");
        let text = failure(symmc(line).stdout(full), 2);
        assert!(text.contains("standard output"), "{text}");
    }
}

#[test]
fn ops_without_a_kernel_do_not_run() {
    let dir = tempfile::tempdir().expect("a folder");
    let custom = "program \"p\" ranks 2\ngroup @g world\ncustom \"my::op\" symmetric operands [0] results [] group @g\n\
                  arg %x: f32[8, 4]\n%y: f32[8, 4] = custom \"my::op\" %x\nreturn %y\n";
    let opaque = "program \"p\" ranks 2\narg %x: f32[4]\n%y: f32[4] = opaque \"my::foo\" %x attributes=\"\"\nreturn %y\n";
    for (name, text, op) in
        [("custom", custom, "custom \"my::op\""), ("opaque", opaque, "opaque \"my::foo\"")]
    {
        let file = write(dir.path(), &format!("{name}.symm"), text.as_bytes());
        let plan = dir.path().join(format!("{name}.json")).display().to_string();
        stdout(&format!("plan {file} -o {plan}"));
        stdout(&format!("check {plan}"));
        for line in [format!("run {file} --seed 1"), format!("run {plan} --backend threads")] {
            says(&line, &[&format!("%y ({op})"), "docs/custom-ops.md"]);
        }
        says(&format!("run {file} --backend interpreter"), &[op]);
    }
    let standard = write(dir.path(), "aten.symm", opaque.replace("my::foo", "aten.foo").as_bytes());
    says(&format!("run {standard} --seed 1"), &["opaque \"aten.foo\"", "symmc does not support this op"]);
}

/// GPUs that do not exist, on a machine with or without a driver.
#[test]
fn gpus_that_are_missing() {
    let absent = [&["the CUDA driver"][..], &["GPU", "900"][..]];
    let text = failure(
        &mut symmc("run hf_llama_tp2.pt2 --tensors hf_llama_tp2.safetensors --backend cuda --gpus 900,901"),
        2,
    );
    assert!(absent.iter().any(|parts| parts.iter().all(|p| text.contains(p))), "{text}");
    says("bench program megatron_tp4_f32.pt2 --ranks 4 --set x=2", &["x", "tokens"]);
}

/// A program with two symbols, one of which has an alias.
const OPEN: &[u8] =
    b"program \"open\" ranks 1\nsymbol batch in 1..=64\nsymbol tokens in 2..=4096 alias \"s27\"\n\
    arg %x: f32[batch, tokens]\n%y: f32[batch, tokens] = relu %x\nreturn %y\n";

#[test]
fn ranges_that_do_not_fit() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = write(dir.path(), "open.symm", OPEN);
    let refuses = |options: &str, parts: &[&str]| says(&format!("plan {file} {options}"), parts);
    refuses("--dim rows=1..4", &[&file, "`rows`", "a symbol of the program: batch, tokens (s27)"]);
    refuses("--dim s27=1..9999", &["tokens (s27)", "a range within 2..4096", "found 1..9999"]);
    refuses("--dim tokens=1", &["a range within 2..4096", "found 1"]);
    refuses("--dim tokens=9..2", &["--dim", "expected a minimum that is at most the maximum, found 9..2"]);
    refuses("--dim tokens=a+", &["--dim", "a range such as 1..64"]);
    refuses("--dim tokens=2..8 --dim s27=3..9", &["expected one constraint, found two"]);
    refuses("--dim tokens=batch", &["a program in text form has one symbol for equal sizes"]);
    refuses(
        "--dim tokens=2..8 --bucket tokens=8,16",
        &["bucket bound 16 of symbol tokens is out of range: expected 2 to 8"],
    );
    let many = (2..=100).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
    let batches = (1..=60).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
    let messages = ["at most 4096 buckets, found 5940", "99 of tokens and 60 of batch", "fewer upper bounds"];
    refuses(&format!("--bucket tokens={many} --bucket batch={batches}"), &messages);
    let plan = dir.path().join("plan.json").display().to_string();
    stdout(&format!("plan {file} -o {plan}"));
    says(&format!("run {plan} --dim tokens=4"), &["this is a plan", "--dim"]);
}

#[test]
fn sizes_that_a_program_leaves_open_are_assumed() {
    let assumes = |command: &str, options: &str| {
        let ran = crate::common::output(&mut symmc(command));
        let text = String::from_utf8_lossy(&ran.stderr).to_string();
        assert!(ran.status.success(), "{command}: {text}");
        let note = text.lines().find(|line| line.contains("leaves sizes open")).unwrap_or_default();
        let stated = note.split(" --dim ").skip(1).map(|option| format!("--dim {option}"));
        assert_eq!(stated.collect::<Vec<_>>().join(" "), options, "{command}: {text}");
    };
    let llama = "causal_llama_open.pt2 --ranks 1";
    assumes(&format!("plan {llama}"), "--dim batch=2..2048 --dim tokens=2..2048");
    assumes(&format!("plan {llama} --dim batch=2..4"), "--dim tokens=2..65536");
    assumes(&format!("plan {llama} --dim batch=2..4 --dim tokens=2..64"), "");
    assumes(&format!("run {llama} --set batch=2 --set tokens=5 --compare interpreter"), "");
    // Its layers were traced with one chunk of 256 tokens.
    let mamba = "causal_mamba2_open.pt2 --ranks 1";
    assumes(&format!("plan {mamba}"), "--dim batch=2..4096 --dim tokens=256");
    // It has one chunk for any size of at most 256, so the size of a run is taken.
    assumes(&format!("run {mamba} --set batch=2 --set tokens=100"), "--dim tokens=100");
    // Options that state what was assumed leave nothing to assume.
    assumes(&format!("plan {mamba} --dim batch=2..4096 --dim tokens=256"), "");
}

#[test]
fn ranges_narrow_a_program_of_any_format() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = write(dir.path(), "open.symm", OPEN);
    let text = stdout(&format!("print {file} --dim s27=..64 --dim batch=4"));
    assert!(text.contains("symbol batch in 4..=4") && text.contains("symbol tokens in 2..=64"), "{text}");
    let text = stdout("print megatron_tp4_f32.pt2 --dim tokens=2..64");
    assert!(text.contains("symbol tokens in 2..=64"), "{text}");
    for buckets in ["--bucket batch=4,64 --bucket tokens=8,64", "--bucket batch=4,64;tokens=8,64"] {
        let mut line = symmc(&format!("print {file} --stage lowered {buckets}"));
        assert_eq!(
            String::from_utf8_lossy(&crate::common::output(&mut line).stdout)
                .matches("program \"open\"")
                .count(),
            4
        );
    }
    let plan = dir.path().join("plan.json").display().to_string();
    stdout(&format!("plan {file} --dim tokens=2..8 -o {plan}"));
    let ran =
        stdout(&format!("run {file} --dim tokens=2..8 --plan {plan} --set tokens=3 --compare interpreter"));
    assert!(ran.contains("compared with the interpreter"), "{ran}");
}
