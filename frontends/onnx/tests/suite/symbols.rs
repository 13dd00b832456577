//! Symbols with the caller's constraints, and messages with the names of the program.

use prost::Message;
use symmc_import::ranges::{SymbolConstraint, SymbolConstraints};
use symmc_ir::{DType, Tensor};
use symmc_onnx::{ImportError, ImportOptions, ImportOutput, ModelSource, import, import_files};

use crate::common::{Fake, stored, tensor};

fn import_with_extents(fake: &Fake, extents: &[(&str, &str)]) -> Result<ImportOutput, ImportError> {
    let parse = |(name, text): &(&str, &str)| {
        ((*name).to_string(), SymbolConstraint::parse(text).expect("an extent"))
    };
    let extents = extents.iter().map(parse).collect();
    let options = ImportOptions {
        constraints: SymbolConstraints { constraints: extents, ..SymbolConstraints::default() },
        ..ImportOptions::default()
    };
    import(&[fake.source("model.onnx")], &options)
}

fn assumed(imported: &ImportOutput) -> Vec<String> {
    imported.assumed_sizes.iter().map(|(symbol, constraint)| format!("{symbol}={constraint}")).collect()
}

fn ranges(imported: &ImportOutput) -> Vec<String> {
    let symbols = imported.graph.symbols.values();
    symbols.map(|s| format!("{} {}..{}", s.name, s.min, s.max)).collect()
}

#[test]
fn callers_bound_symbols_and_tie_them() {
    let fake = Fake::new(20)
        .input("x", "f32[batch,seq]")
        .input("m", "f32[rows,seq]")
        .node("Add", &["x", "m"], &["y"])
        .output("y");
    let error = import_with_extents(&fake, &[("batch", "1..8"), ("rows", "9..16")]).expect_err("two extents");
    assert!(error.to_string().contains("[batch, seq] and [rows, seq] do not broadcast"), "{error}");
    let symbols = error.symbols.expect("symbols");
    assert_eq!(symbols.named, ["batch", "seq", "rows"]);
    assert_eq!(symbols.unbounded, ["seq"]);
    let imported = fake.import().expect("equal sizes are assumed");
    assert_eq!(ranges(&imported), ["batch 0..65536", "seq 0..65536"]);
    assert_eq!(assumed(&imported), ["batch=0..65536", "seq=0..65536", "rows=batch"]);
    let imported = import_with_extents(&fake, &[("rows", "batch"), ("batch", "1..8")]).expect("a program");
    assert_eq!(ranges(&imported), ["batch 1..8", "seq 0..1048576"]);
    assert_eq!(assumed(&imported), ["seq=0..1048576"]);
    assert_eq!(imported.notes, Vec::<String>::new());
    let error = import_with_extents(&fake, &[("tokens", "1..8")]).expect_err("no such symbol").to_string();
    assert!(error.contains("`tokens`: expected a symbol of the program: batch, seq, rows"), "{error}");
}

#[test]
fn unbounded_symbols_get_a_default_bound_and_are_listed() {
    let fake = Fake::new(20).input("x", "f32[a,b,c,d]").node("Relu", &["x"], &["y"]).output("y");
    let imported = fake.import().expect("bounds that fit");
    assert_eq!(ranges(&imported), ["a 0..256", "b 0..256", "c 0..256", "d 0..256"]);
    assert_eq!(assumed(&imported), ["a=0..256", "b=0..256", "c=0..256", "d=0..256"]);
    let stated = [("a", "..1000000"), ("b", "..1000000"), ("c", "..1000000")];
    let error = import_with_extents(&fake, &stated).expect_err("too large");
    assert!(error.to_string().contains("%x: expected at most"), "{error}");
    assert!(error.to_string().contains("as f32[a, b, c, d]"), "{error}");
    assert_eq!(error.symbols.expect("symbols").unbounded, ["d"]);
    let imported =
        import_with_extents(&fake, &[("a", "..4"), ("b", "2"), ("c", "1..99")]).expect("a program");
    assert_eq!(ranges(&imported), ["a 0..4", "b 2..2", "c 1..99", "d 0..1048576"]);
}

#[test]
fn ranges_decide_what_shapes_compute() {
    // The rows of a table of 64 positions up to the length, as exporters write it.
    let fake = Fake::new(20)
        .input("x", "f32[seq,4]")
        .input("table", "f32[64,4]")
        .stored("zero", "i64[1]", &[0.0])
        .node("Shape end=1", &["x"], &["n"])
        .node("Slice", &["table", "zero", "n"], &["rows"])
        .node("Add", &["x", "rows"], &["y"])
        .output("y");
    let error = import_with_extents(&fake, &[("seq", "1..65")]).expect_err("more than the table has");
    assert!(error.to_string().contains("do not broadcast"), "{error}");
    assert_eq!(assumed(&fake.import().expect("a bound is assumed")), ["seq=..64"]);
    import_with_extents(&fake, &[("seq", "1..64")]).expect("a program");
}

#[test]
fn the_rank_of_a_result_does_not_depend_on_sizes() {
    // Without axes, all axes of extent 1 are dropped: also a batch of one.
    let fake = Fake::new(20).input("x", "f32[batch,1,4]").node("Squeeze", &["x"], &["y"]).output("y");
    let imported = fake.import().expect("a batch of one");
    assert_eq!(assumed(&imported), ["batch=1"]);
    assert_eq!(imported.graph.ty(imported.graph.outputs[0].value).rank(), 1);
    let imported = import_with_extents(&fake, &[("batch", "2..8")]).expect("no batch of one");
    assert_eq!(imported.graph.ty(imported.graph.outputs[0].value).rank(), 2);
}

#[test]
fn messages_have_the_names_of_the_program() {
    let has = |fake: &Fake, part: &str| {
        // No assumption helps a program with another error.
        let other = fake.clone().stored("s9", "i64[1]", &[7.0]).node("Reshape", &["s9", "s9"], &["z"]);
        let error = fake.import().err().map_or_else(|| other.error(), |error| error.to_string());
        assert!(error.contains(part) && !error.contains("sym0"), "{part:?} is missing in: {error}");
    };
    let x = |ty: &str| Fake::new(20).input("x", ty);
    let reshaped =
        x("f32[tokens,32]").stored("s", "i64[2]", &[7.0, 5.0]).node("Reshape", &["x", "s"], &["y"]);
    has(&reshaped.output("y"), "32*tokens");
    let expanded =
        x("f32[tokens,32]").stored("s", "i64[2]", &[7.0, 32.0]).node("Expand", &["x", "s"], &["y"]);
    has(&expanded.output("y"), "tokens");
    let product = x("f32[4,tokens]").input("w", "f32[past,4]").node("MatMul", &["x", "w"], &["y"]);
    has(&product.output("y"), "the inner extents differ: tokens and past");
    let huge =
        x("f32[tokens]").stored("s", "i64[1]", &[9e12]).node("Expand", &["x", "s"], &["y"]).output("y");
    assert!(!huge.error().contains("I8 "), "{}", huge.error());
    let gathered = x("f32[4]").stored("i", "i64[]", &[-5.0]).node("Gather", &["x", "i"], &["y"]).output("y");
    has(&gathered, "expected an index from -4 to 4 - 1, found -5");
    let mut narrow = stored("w", &tensor("u8[1]", &[1.0]));
    narrow.data_type = 26;
    has(&x("f32[4]").held(narrow).node("Cast to=1", &["w"], &["y"]).output("y"), "the element type int2");
    let unsupported = x("f32[4]").node("Det", &["x"], &["y"]).output("y");
    has(&unsupported, "this ONNX operator is not supported");
    has(&unsupported, "onnx.shape_inference adds the types of ONNX's own operators");
}

/// The memory of this process in bytes, without that of mapped files.
fn private() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:")).expect("a size");
    line.trim().trim_end_matches("kB").trim().parse::<usize>().expect("a number") * 1024
}

#[test]
fn embedded_weights_are_read_lazily() {
    // A matrix of 256 MiB in a sparse file, after a name whose length misaligns its elements.
    const ROWS: u64 = 1 << 16;
    let (bytes, width) = (ROWS * 1024 * 4, 1024);
    let mut fake = Fake::new(20)
        .input("x", "f32[n,65536]")
        .stored("small", "f32[3]", &[1.0, 2.0, 3.0])
        .node("MatMul", &["x", "w"], &["y"])
        .node("Relu", &["small"], &["z"])
        .output("y")
        .output("z");
    let varint = |mut n: u64| {
        let mut out = Vec::new();
        while n > 127 {
            out.push(n as u8 | 128);
            n >>= 7;
        }
        out.push(n as u8);
        out
    };
    let dir = tempfile::tempdir().expect("a folder");
    for name in ["w", "wa", "wab", "wabc"] {
        fake.graph().node[0].input[1] = name.into();
        let graph = fake.graph().encode_to_vec();
        let mut metadata = fake.clone();
        metadata.model.graph = None;
        let mut head =
            symmc_onnx::proto::TensorProto { name: name.into(), data_type: 1, ..Default::default() };
        head.dims = vec![ROWS as i64, width];
        let head = [head.encode_to_vec(), vec![9 << 3 | 2], varint(bytes)].concat();
        let initializer = [vec![5 << 3 | 2], varint(head.len() as u64 + bytes), head].concat();
        let total = graph.len() as u64 + initializer.len() as u64 + bytes;
        let file = [metadata.bytes(), vec![7 << 3 | 2], varint(total), graph, initializer].concat();
        let path = dir.path().join(format!("{name}.onnx"));
        std::fs::write(&path, &file).expect("a file");
        let opened = std::fs::OpenOptions::new().write(true).open(&path).expect("the file");
        opened.set_len(file.len() as u64 + bytes).expect("holes");
        let before = private();
        let imported = import_files(&[path], &ImportOptions::default()).unwrap_or_else(|e| panic!("{e}"));
        let allocated = private().saturating_sub(before);
        assert!(allocated < 128 << 20, "{allocated} bytes for a program");
        let weights = &imported.weights[0];
        assert_eq!(weights["small"].to_f64(), [1.0, 2.0, 3.0]);
        let data = weights[name].data();
        assert_eq!(data.len() as u64, bytes);
        assert!(data.as_ptr().addr().is_multiple_of(4) && data.iter().step_by(4096).all(|b| *b == 0));
    }
}

#[test]
fn weights_of_a_truncated_file_are_an_error() {
    let dir = tempfile::tempdir().expect("a folder");
    let big = Tensor::zeros(DType::F32, [5 << 20]).expect("a tensor");
    // Names whose lengths align and misalign the elements.
    for name in ["w", "wa", "wab", "wabc"] {
        let fake = Fake::new(20).input("x", "f32[5242880]").held(stored(name, &big));
        let fake = fake.node("Add", &["x", name], &["y"]).output("y");
        let path = dir.path().join("m.onnx");
        std::fs::write(&path, fake.bytes()).expect("a file");
        let imported = import_files(std::slice::from_ref(&path), &ImportOptions::default());
        let weight = imported.unwrap_or_else(|e| panic!("{e}")).weights[0][name].clone();
        assert!(weight.load_to_memory().expect("it is there").data().iter().all(|b| *b == 0));
        let file = std::fs::OpenOptions::new().write(true).open(&path).expect("the file");
        file.set_len(1000).expect("it is shortened");
        let error = weight.load_to_memory().expect_err("it is gone").to_string();
        assert!(error.contains("m.onnx: the file changed while it was in use"), "{error}");
    }
}

/// The lengths to which a large model is truncated between opening and decoding.
#[test]
fn model_truncated_before_decoding_is_an_error() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("m.onnx");
    let big = Tensor::zeros(DType::F32, [5 << 20]).expect("a tensor");
    let flag = stored("f", &tensor("i64[1]", &[1.0]));
    let fake = Fake::new(20).input("x", "f32[5242880]").held(stored("w", &big)).held(flag);
    let fake = fake.node("Add", &["x", "w"], &["y"]).output("y");
    let bytes = fake.bytes();
    for cut in [0, 1, 100, 4096, 1 << 20, bytes.len() - 1] {
        std::fs::write(&path, &bytes).expect("a file");
        let source = ModelSource::open(&path).expect("it opens");
        assert!(source.file.is_some(), "it is mapped");
        let file = std::fs::OpenOptions::new().write(true).open(&path).expect("the file");
        file.set_len(cut as u64).expect("it is shortened");
        let error = import(&[source], &ImportOptions::default()).expect_err("it is gone").to_string();
        assert!(error.contains("m.onnx: the file changed while it was in use"), "{cut}: {error}");
    }
}

#[test]
fn bools_that_are_none_are_made_ones() {
    let mut flags = stored("f", &tensor("bool[3]", &[0.0, 1.0, 1.0]));
    flags.raw_data = Some(vec![0, 1, 7].into());
    let fake = Fake::new(20).input("x", "bool[3]").held(flags).node("And", &["x", "f"], &["y"]).output("y");
    let imported =
        import(&[ModelSource { folder: None, ..fake.source("m.onnx") }], &ImportOptions::default());
    let graph = imported.expect("a program").graph;
    let data = graph.inputs.values().find_map(|i| i.data.clone()).expect("a constant");
    assert_eq!(data.data(), [0, 1, 1]);
}
