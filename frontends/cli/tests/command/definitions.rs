//! Custom ops of an archive that programs define: `--op FILE`.

use crate::common::{failure, output, programs, stdout, symmc, write};

const DEFINITIONS: [&str; 3] = ["dispatch.symm", "combine.symm", "combine_unweighted.symm"];

const SCHEMA: &str = "minimal_ep::dispatch(Tensor x, Tensor ids, Tensor counts, int receive_capacity, int ep_size) \
    -> (Tensor, Tensor, Tensor, Tensor)";

fn options(files: &[&str]) -> String {
    files.iter().map(|file| format!(" --op experts/{file}")).collect()
}

#[test]
fn defined_ops_run_and_give_what_pytorch_gave() {
    for (program, ranks) in [("dispatched2", 2), ("dispatched4", 4)] {
        let defined = options(&DEFINITIONS);
        let recorded = format!("experts/{program}.pt2{defined} --tensors experts/{program}.safetensors");
        for backend in ["host", "threads", "interpreter"] {
            let text = stdout(&format!("run {recorded} --backend {backend}"));
            for rank in 0..ranks {
                let equal = format!("rank {rank} output 2: equal");
                assert!(text.contains(&equal), "{program} on {backend}:\n{text}");
            }
        }
        let program = stdout(&format!("print experts/{program}.pt2 --ranks {ranks}{defined}"));
        for node in ["%dispatch.slots: i64[24]", "dispatch_rows %x", "%combine_1: f32[6, 8] = combine_rows"] {
            assert!(program.contains(node), "{node}:\n{program}");
        }
    }
}

#[test]
fn ops_without_a_definition_are_named_with_the_remedy() {
    let dir = tempfile::tempdir().expect("a folder");
    let edited = |name: &str| {
        let text = std::fs::read_to_string(programs().join(format!("experts/{name}"))).expect("a definition");
        write(dir.path(), name, text.replace("minimal_ep::", "other::").as_bytes())
    };
    let text = failure(&mut symmc("run experts/dispatched2.pt2"), 2);
    for part in ["minimal_ep.dispatch.default", "declare its schema", "or define it by a program"] {
        assert!(text.contains(part), "{part:?} is missing in\n{text}");
    }
    let text =
        failure(&mut symmc(&format!("run experts/dispatched2.pt2 --op {}", edited("combine.symm"))), 2);
    assert!(text.contains("no node of other.combine.default"), "{text}");
    let combined = options(&DEFINITIONS[1..]);
    let run = output(symmc(&format!("run experts/dispatched2.pt2{combined}")).arg("--op").arg(SCHEMA));
    let text = String::from_utf8_lossy(&run.stderr).into_owned();
    assert_eq!(run.status.code(), Some(2), "{text}");
    for part in ["minimal_ep.dispatch.default", "--op FILE", "docs/custom-ops.md"] {
        assert!(text.contains(part), "{part:?} is missing in\n{text}");
    }
}

#[test]
fn definitions_that_do_not_fit_are_bad_input() {
    let dir = tempfile::tempdir().expect("a folder");
    let dispatch = std::fs::read_to_string(programs().join("experts/dispatch.symm")).expect("a definition");
    let edited = |from: &str, to: &str| {
        assert!(dispatch.contains(from), "{from}");
        write(dir.path(), "edited.symm", dispatch.replace(from, to).as_bytes())
    };
    let node = "minimal_ep.dispatch.default";
    for (from, to, parts) in [
        ("int receive_capacity", "bool receive_capacity", &[node, "type bool", "the integer 24"][..]),
        ("int receive_capacity", "str receive_capacity", &[node, "type str", "the integer 24"]),
        (", %local\n", "\n", &[node, "expected 4 results", "found 3"]),
        ("return %sent", "return %x", &[node, "the program declares f32[24, 8]", "found f32[6, 8]"]),
        (
            "arg %counts: i64[$counts.0]",
            "arg %counts: i64[3]",
            &[node, "expected i64[3] as `counts`", "found i64[4]"],
        ),
        ("$ep_size", "2", &[node, "the definition does not use `ep_size`"]),
        ("experts=$counts.0", "experts=3", &[node, "multiple of 2 ranks, found 3"]),
        ("int ep_size", "int ep_size == 4", &[node, "expected 4 as `ep_size`, found 2"]),
        ("minimal_ep::dispatch(", "minimal_ep::send(", &["no node of minimal_ep.send.default"]),
    ] {
        let file = edited(from, to);
        let combined = options(&DEFINITIONS[1..]);
        let line = format!("plan experts/dispatched2.pt2 --ranks 2 --op {file}{combined}");
        let text = failure(&mut symmc(&line), 2);
        for part in parts {
            assert!(text.contains(part), "{to}: {part:?} is missing in\n{text}");
        }
    }
    let line = format!("plan experts/dispatched2.pt2 --ranks 4{}", options(&DEFINITIONS));
    let text = failure(&mut symmc(&line), 2);
    assert!(
        text.contains(node) && text.contains("the definition is for 2 ranks, the program has 4"),
        "{text}"
    );
    let file = write(dir.path(), "whole.symm", dispatch.as_bytes());
    let combined = options(&DEFINITIONS[1..]);
    let line = format!("plan experts/dispatched2.pt2 --ranks 2 --op {file}{combined} -o {file}");
    let text = failure(&mut symmc(&line), 2);
    assert!(text.contains("read by the same command"), "{text}");
    for (line, parts) in [
        ("plan experts/dispatched2.pt2 --op nowhere.symm", &["--op nowhere.symm", "No such file"][..]),
        ("plan experts/dispatched2.pt2 --op mesh_2x2.pt2", &["--op mesh_2x2.pt2"]),
        ("plan attention_gradient.symm --op experts/dispatch.symm", &["expected a .pt2 archive"]),
        ("plan gpt_tp2_rank0.onnx --op experts/dispatch.symm", &["expected a .pt2 archive"]),
    ] {
        let text = failure(&mut symmc(line), 2);
        for part in parts {
            assert!(text.contains(part), "{line}: {part:?} is missing in\n{text}");
        }
    }
}
