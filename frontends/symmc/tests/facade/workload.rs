//! The sources of the inputs of a run.

use std::sync::Arc;

use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use symmc::unstable::control::JoinTermValue;
use symmc::{DrawConfig, OpenOptions, RunConfig, Tensor, TensorFile, Weights, Workload};
use symmc_ir::{DType, Graph, InputKind, text};

const WORKLOAD_PROGRAM: &str = r#"program "p" ranks 2
symbol n in 1..=8
param %w: f32[2] source "w"
param %state: f32[2] source "state"
arg %x: f32[n, 2]
%y: f32[n, 2] = mul %x, %w
%z: f32[n, 2] = add %y, %state
return %z
"#;

fn graph() -> Graph {
    text::parse(WORKLOAD_PROGRAM).expect("a program")
}

/// A file with these tensors of f32, each given by name, shape and first element.
fn file(dir: &tempfile::TempDir, tensors: &[(&str, &[usize], f32)]) -> TensorFile {
    let data: Vec<Vec<u8>> = tensors
        .iter()
        .map(|(_, shape, first)| {
            let count: usize = shape.iter().product();
            (0..count).flat_map(|i| (first + i as f32).to_le_bytes()).collect()
        })
        .collect();
    let views = tensors.iter().zip(&data).map(|((name, shape, _), data)| {
        (*name, TensorView::new(Dtype::F32, shape.to_vec(), data).expect("a tensor"))
    });
    let path = dir.path().join("t.safetensors");
    serialize_to_file(views, None, &path).expect("written");
    TensorFile::open(&path).expect("a file of tensors")
}

fn weights(buffers: &[&str]) -> Weights {
    let tensor = |x| Arc::new(Tensor::from_f64(DType::F32, [2], &[x, x]).expect("two elements"));
    Weights::new([[("w", tensor(7.0)), ("state", tensor(9.0))]]).with_buffers(buffers.iter().copied())
}

const RECORDED_TENSORS: [(&str, &[usize], f32); 4] = [
    ("rank0.w.w", &[2], 1.0),
    ("rank1.w.w", &[2], 2.0),
    ("rank0.in.0", &[3, 2], 0.0),
    ("rank1.in.0", &[3, 2], 0.0),
];

#[test]
fn aligned_tensors_are_borrowed_from_the_mapped_file() {
    let dir = tempfile::tempdir().expect("a folder");
    let tensor = file(&dir, &RECORDED_TENSORS).weight(1, "w").expect("known dtype").expect("recorded");
    assert!(tensor.backing_slice().is_some());
    assert_eq!(tensor.to_f64(), [2.0, 3.0]);

    // The same behind a header of odd length.
    let mut header = r#"{"rank1.w.w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#.to_string();
    header.push_str(if header.len().is_multiple_of(2) { " " } else { "" });
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend([2f32, 3f32].iter().flat_map(|x| x.to_le_bytes()));
    let path = dir.path().join("odd.safetensors");
    std::fs::write(&path, bytes).expect("written");
    let odd = TensorFile::open(&path).expect("a file of tensors");
    let odd = odd.weight(1, "w").expect("known dtype").expect("recorded");
    assert!(odd.backing_slice().is_none());
    assert_eq!(odd, tensor);
}

#[test]
fn a_weight_of_the_wrong_shape_is_named() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut tensors = RECORDED_TENSORS.to_vec();
    tensors[1].1 = &[1, 2];
    let file = file(&dir, &tensors);
    let error = Workload::gather(&graph(), &weights(&["state"]), Some(&file), &DrawConfig::default());
    let error = error.expect_err("two axes").to_string();
    assert_eq!(error, "rank1.w.w (%w): expected f32[2], found f32[1, 2]");
}

#[test]
fn a_buffer_that_the_file_lacks_is_the_archives() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = file(&dir, &RECORDED_TENSORS);
    let work = Workload::gather(&graph(), &weights(&["state"]), Some(&file), &DrawConfig::default())
        .expect("inputs");
    for rank in 0..2 {
        assert_eq!(work.inputs[rank][0].to_f64()[0], rank as f64 + 1.0);
        assert_eq!(work.inputs[rank][1].to_f64(), [9.0, 9.0]);
    }
}

/// The weights that the files of both ranks give.
fn weights_of_ranks(second: f64) -> Weights {
    let tensor = |x| Arc::new(Tensor::from_f64(DType::F32, [2], &[x, x]).expect("two elements"));
    let weights = |x| [("w", tensor(x)), ("state", tensor(x + 0.5))];
    Weights::new([weights(7.0), weights(second)])
}

#[test]
fn imported_weights_apply_unless_the_file_has_others() {
    let gather = |weights: &Weights, file: Option<&TensorFile>| {
        Workload::gather(&graph(), weights, file, &DrawConfig::default()).expect("inputs")
    };
    let first = |work: &Workload, rank: usize| [0, 1].map(|i| work.inputs[rank][i].get_f64(0));
    let imported = gather(&weights_of_ranks(8.0), None);
    assert_eq!((first(&imported, 0), first(&imported, 1)), ([7.0, 7.5], [8.0, 8.5]));
    // The tensors of the file take precedence.
    let dir = tempfile::tempdir().expect("a folder");
    let with_file = gather(&weights_of_ranks(8.0), Some(&file(&dir, &RECORDED_TENSORS)));
    assert_eq!((first(&with_file, 0), first(&with_file, 1)), ([1.0, 7.5], [2.0, 8.5]));
    // Ranks that join each other compare what they hold.
    let setting = |work: &Workload| {
        let weights = work.settings.iter().find(|term| term.name == "weights")?;
        match &weights.value {
            JoinTermValue::Content(content) => Some(content.digest().expect("read")),
            JoinTermValue::Text(_) => None,
        }
    };
    assert!(setting(&imported).is_some());
    assert_eq!(setting(&imported), setting(&gather(&weights_of_ranks(8.0), None)));
    assert_ne!(setting(&imported), setting(&gather(&weights_of_ranks(9.0), None)));
    assert_eq!(setting(&gather(&weights(&[]), None)), None);
}

#[test]
fn a_parameter_that_the_file_lacks_is_an_error() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = file(&dir, &RECORDED_TENSORS);
    let error = Workload::gather(&graph(), &weights(&[]), Some(&file), &DrawConfig::default())
        .expect_err("no weight");
    assert!(error.to_string().contains("rank0.w.state is missing; expected f32[2]"), "{error}");
}

#[test]
fn sourceless_parameters_are_stored_by_value_name() {
    let dir = tempfile::tempdir().expect("a folder");
    let gather = |program: &str, names: &[(&str, f32)]| {
        let tensors: Vec<(&str, &[usize], f32)> =
            names.iter().map(|&(name, x)| (name, &[2][..], x)).collect();
        let graph = text::parse(program).expect("a program");
        Workload::gather(&graph, &Weights::default(), Some(&file(&dir, &tensors)), &DrawConfig::default())
    };
    let program = r#"program "p" ranks 1
param %a: f32[2]
param %b: f32[2]
param %c: f32[2] source "stored"
const %d: f32[2] = hex"0000803f00000040"
%s: f32[2] = sub %a, %b
%t: f32[2] = add %s, %c
%u: f32[2] = add %t, %d
return %u
mutate %b = %t
"#;
    let work = gather(program, &[("rank0.w.a", 1.0), ("rank0.w.b", 2.0), ("rank0.w.stored", 3.0)]);
    let work = work.expect("inputs");
    let first: Vec<f64> = work.inputs[0].iter().map(|t| t.to_f64()[0]).collect();
    assert_eq!(first, [1.0, 2.0, 3.0, 1.0]);
    // A tensor without a name is no parameter's, and a missing one is named.
    let error = gather(program, &[("rank0.w.", 1.0), ("rank0.w.stored", 3.0)]).expect_err("no weights");
    assert!(error.to_string().contains("rank0.w.a is missing"), "{error}");
    let shadowed = program.replace(r#"source "stored""#, r#"source "a""#);
    let error = gather(&shadowed, &[("rank0.w.a", 1.0), ("rank0.w.b", 2.0)]).expect_err("two of one name");
    assert!(
        error.is_bad_input() && error.to_string().contains("%a") && error.to_string().contains("%c"),
        "{error}"
    );
}

#[test]
fn a_tied_weight_is_taken_by_its_other_name() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = file(&dir, &RECORDED_TENSORS);
    let tie = |names: &[&'static str]| Weights::default().with_ties([names.to_vec()]);
    let gather = |weights: Weights| Workload::gather(&graph(), &weights, Some(&file), &DrawConfig::default());
    let work = gather(tie(&["x", "w", "state"])).expect("inputs");
    for rank in 0..2 {
        assert_eq!(work.inputs[rank][1], work.inputs[rank][0]);
        assert_eq!(work.inputs[rank][1].to_f64()[0], rank as f64 + 1.0);
    }
    assert!(gather(tie(&["x", "state"])).is_err());
}

const CONSTANTS_PROGRAM: &str = r#"program "p" ranks ?
const %c: f32[2] source "c" = hex"0000803f00000040"
const %d: f32[2] source "d" = hex"0000803f00000040"
arg %x: f32[2]
%y: f32[2] = mul %x, %c
%z: f32[2] = add %y, %d
return %z
"#;

/// Only a tensor that differs from a constant makes the constant a parameter. Ranks that the file omits keep the value of the
/// program.
#[test]
fn constants_that_the_tensors_contradict_become_parameters() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("p.symm");
    std::fs::write(&path, CONSTANTS_PROGRAM).expect("written");
    // The constants are [1, 2]: the same, another, or none.
    let values = [Some(1.0), Some(5.0), None];
    for (first, second) in values.iter().flat_map(|a| values.iter().map(move |b| (*a, *b))) {
        let mut recorded: Vec<(&str, &[usize], f32)> =
            vec![("rank0.in.0", &[2], 1.0), ("rank1.in.0", &[2], 1.0)];
        recorded.extend(first.map(|v| ("rank0.w.c", [2].as_slice(), v)));
        recorded.extend(second.map(|v| ("rank1.w.c", [2].as_slice(), v)));
        let file = Arc::new(file(&dir, &recorded));
        let options = OpenOptions::default().with_tensors(file.clone());
        let program = symmc::Program::open(&path, &options).expect("a program");
        assert_eq!(program.graph.ranks, Some(2));
        let kinds: Vec<InputKind> = program.graph.inputs.values().map(|i| i.kind).collect();
        let contradicted = [first, second].contains(&Some(5.0));
        let kind = if contradicted { InputKind::Parameter } else { InputKind::Constant };
        assert_eq!(kinds, [kind, InputKind::Constant, InputKind::Argument], "{first:?} {second:?}");
        let work = Workload::gather(&program.graph, &program.weights, Some(&file), &DrawConfig::default());
        let work = work.expect("inputs");
        for (rank, value) in [first, second].into_iter().enumerate() {
            assert_eq!(work.inputs[rank][0].to_f64()[0], f64::from(value.unwrap_or(1.0)), "rank {rank}");
        }
        // Opened without the tensors, it does not run on them.
        let options = OpenOptions::default().with_ranks(2);
        let unaware = symmc::Program::open(&path, &options).expect("a program");
        let outcome = Workload::recorded(&unaware, &file);
        assert_eq!(outcome.is_err(), contradicted, "{first:?} {second:?}");
    }
}

#[test]
fn extents_of_ranks_must_agree() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut tensors = RECORDED_TENSORS.to_vec();
    tensors[3].1 = &[4, 2];
    let file = file(&dir, &tensors);
    let error = Workload::gather(&graph(), &weights(&["state"]), Some(&file), &DrawConfig::default());
    assert!(error.expect_err("two extents").to_string().contains("rank 1"));
}

#[test]
fn a_size_that_is_set_draws_the_arguments() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = file(&dir, &RECORDED_TENSORS);
    let draw = DrawConfig::default().with_symbols([("n", 5)]);
    let work = Workload::gather(&graph(), &weights(&["state"]), Some(&file), &draw).expect("inputs");
    assert_eq!(work.inputs[0][2].shape(), [5, 2]);
    assert!(work.expected.is_none());
    let draw = DrawConfig::default().with_symbols([("n", 3)]);
    let work = Workload::gather(&graph(), &weights(&["state"]), Some(&file), &draw).expect("inputs");
    assert_eq!(work.inputs[0][2].to_f64()[5], 5.0);
}

#[test]
fn recordings_determine_every_symbol_and_argument() {
    let dir = tempfile::tempdir().expect("a folder");
    let program = WORKLOAD_PROGRAM.replace("param %w", "symbol k in 0..=3\nparam %w");
    let graph = text::parse(&program).expect("a program");
    let recorded = file(&dir, &RECORDED_TENSORS);
    let gather = |set: &[(&str, i64)], file: &TensorFile| {
        let draw = DrawConfig::default().with_symbols(set.iter().copied());
        Workload::gather(&graph, &weights(&["state"]), Some(file), &draw)
    };
    let error = gather(&[], &recorded).expect_err("k has no value").to_string();
    assert!(error.contains("gives a value for symbol k: set its size"), "{error}");
    let work = gather(&[("k", 2)], &recorded).expect("inputs");
    assert_eq!(work.inputs[0][2].shape(), [3, 2]);
    let extended = [&RECORDED_TENSORS[..], &[("rank1.in.1", &[], 2.0)]].concat();
    let error = gather(&[("k", 2)], &file(&dir, &extended)).expect_err("two arguments").to_string();
    assert!(error.contains("rank1.in.1: the program has 1 argument"), "{error}");
    assert!(error.contains("symbols (n, k)"), "{error}");
}

const COUNTER_PROGRAM: &str = r#"program "counter" ranks 2
group @w world
arg %x: f32[2]
param %state: f32[2] source "state"
%sum: f32[2] = all_reduce %x op=sum group=@w
%next: f32[2] = add %state, %sum
%twice: f32[2] = add %next, %next
mutate %state = %next
return %twice
"#;

#[test]
fn state_persists_between_runs_and_is_not_recorded() {
    let dir = tempfile::tempdir().expect("a folder");
    let tensors: [(&str, &[usize], f32); 6] = [
        ("rank0.w.state", &[2], 10.0),
        ("rank1.w.state", &[2], 20.0),
        ("rank0.in.0", &[2], 1.0),
        ("rank1.in.0", &[2], 3.0),
        ("rank0.out.0", &[2], 28.0),
        ("rank1.out.0", &[2], 48.0),
    ];
    let file = file(&dir, &tensors);
    let program = symmc::Program::from_text(COUNTER_PROGRAM).expect("valid");
    let plan = symmc::compile(&program, &symmc::CompileConfig::default()).expect("a plan");
    let work = Workload::recorded(&program, &file).expect("inputs");
    let expected = work.expected.as_ref().expect("recorded");
    assert!(expected[0][0].is_none());
    assert_eq!(expected[0][1].as_ref().map(|t| t.get_f64(0)), Some(28.0));
    for execution in [symmc::Execution::Interpreter, symmc::Execution::Threads] {
        for (repeats, state) in [(1, [14.0, 24.0]), (3, [22.0, 32.0])] {
            let config = RunConfig::default().with_repeats(repeats);
            let outputs_by_rank = symmc::run(&plan, &work, &execution, &config).expect("a run");
            for (rank, outputs) in outputs_by_rank.iter().enumerate() {
                assert_eq!(outputs[0].get_f64(0), state[rank], "{execution:?} {repeats}");
                assert_eq!(outputs[1].get_f64(0), 2.0 * state[rank], "{execution:?} {repeats}");
            }
        }
    }
}
