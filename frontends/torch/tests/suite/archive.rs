//! The container: what is rejected, and with which name; aliases and strides of stored tensors; and a second
//! of random damage.

use serde_json::json;
use symmc_ir::Tensor;
use symmc_torch::{ImportOptions, import};

use zip::CompressionMethod;

use crate::common::container::{self, Zip64Records, packed};
use crate::common::{self, Fake, meta, zipped};

fn simple() -> Fake {
    Fake::new().input("x", "f32[2]").node("aten.relu.default", "self=%x", &[("y", "f32[2]")]).output("y")
}

fn message(bytes: &[u8]) -> String {
    import(bytes, &ImportOptions::default()).expect_err("it imports").to_string()
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// The archive of `simple` with its entries changed.
fn changed(change: impl FnOnce(&mut Vec<(String, Vec<u8>)>)) -> Vec<u8> {
    let mut entries = simple().entries();
    change(&mut entries);
    zipped("root/", &entries)
}

#[test]
fn archives_with_and_without_a_root_folder_are_read() {
    let entries = simple().entries();
    for root in ["", "a/", "a/b/"] {
        assert!(import(&zipped(root, &entries), &ImportOptions::default()).is_ok(), "{root}");
    }
}

#[test]
fn invalid_archives_are_rejected_with_the_cause() {
    let set = |name: &'static str, data: &'static [u8]| {
        changed(move |e| e.iter_mut().find(|e| e.0 == name).unwrap().1 = data.to_vec())
    };
    for (bytes, expected) in [
        (b"not a zip".to_vec(), "not a readable zip archive"),
        (Vec::new(), "not a readable zip archive"),
        (
            zipped("", &[("serialized_exported_program.json".into(), b"{}".to_vec())]),
            "written by a version of PyTorch before 2.8",
        ),
        (
            zipped("", &[("a.txt".into(), b"text".to_vec())]),
            "no entry `archive_format`; it is not a torch.export",
        ),
        (set("archive_format", b"onnx"), "`archive_format`: expected `pt2`, found `onnx`"),
        (set("byteorder", b"big"), "`byteorder`: expected `little`, found `big`"),
        (set("models/model.json", b"{\"schema_version\": {\"major\": 9"), "`models/model.json`: EOF"),
        (set("models/model.json", b"{}"), "missing field `graph_module`"),
        (set("models/model.json", b"\xff"), "`models/model.json`: the text is not UTF-8"),
        (set("data/weights/model_weights_config.json", b"[]"), "model_weights_config.json`: invalid"),
        (
            set("models/model.json", b"{\"schema_version\": {\"major\": 9, \"minor\": 1}}"),
            "expected schema version 8, found 9.1",
        ),
        (changed(|e| e.retain(|e| !e.0.starts_with("models/"))), "no entry `models/model.json`"),
        (
            changed(|e| {
                e.retain(|e| !e.0.contains("weights"));
                e.push(("data/weights/model.pt".into(), vec![0x80]));
            }),
            "`all weights` is stored as a pickle in `data/weights/model.pt`",
        ),
    ] {
        let actual = message(&bytes);
        assert!(actual.contains(expected), "expected {expected}, found {actual}");
    }
}

#[test]
fn truncated_archives_are_refused() {
    let bytes = simple().bytes();
    for length in 0..bytes.len() {
        assert!(import(&bytes[..length], &ImportOptions::default()).is_err(), "{length} of {}", bytes.len());
    }
}

#[test]
fn named_program_is_selected_from_several() {
    let bytes = changed(|e| {
        let text = e.iter().find(|e| e.0 == "models/model.json").unwrap().1.clone();
        e.retain(|e| !e.0.starts_with("models/"));
        e.push(("models/first.json".into(), text.clone()));
        e.push(("models/second.json".into(), text));
    });
    assert!(message(&bytes).contains("expected one program, or one called `model`"));
    let options = ImportOptions { name: "second".into(), ..ImportOptions::default() };
    assert_eq!(import(&bytes, &options).unwrap().graph.name, "second");
}

#[test]
fn a_pickled_weight_is_refused_by_name() {
    let mut fake = simple().parameter("w", "f32[2]", Some(&floats(&[1.0, 2.0])));
    fake.weights["w"]["use_pickle"] = json!(true);
    let message = fake.error();
    assert!(
        message.contains("`w` is stored as a pickle in `data/weights/w_w`: expected an archive"),
        "{message}"
    );
}

#[test]
fn stored_tensors_must_fit() {
    let w = |data: &[f32]| simple().parameter("w", "f32[2]", Some(&floats(data)));
    assert!(w(&[1.0, 2.0]).import().is_ok());
    assert!(
        w(&[1.0]).error().contains("`w`: expected a storage of at least 2 elements of f32, found 4 bytes")
    );
    let mut changed = w(&[1.0, 2.0, 3.0]);
    changed.weights["w"]["tensor_meta"] = meta("f32[3]");
    assert!(changed.error().contains("`w`: expected f32[2], found f32[3]"), "{}", changed.error());
    changed.weights["w"]["tensor_meta"] = meta("i32[2]");
    assert!(changed.error().contains("`w`: expected f32[2], found i32[2]"), "{}", changed.error());
    changed.weights["w"]["tensor_meta"]["sizes"] = json!([{"as_int": 1i64 << 40}, {"as_int": 1i64 << 40}]);
    changed.weights["w"]["tensor_meta"]["strides"] = json!([{"as_int": 0}, {"as_int": 0}]);
    assert!(changed.error().contains("address space"), "{}", changed.error());
    changed.weights["w"]["tensor_meta"]["sizes"] = json!([{"as_int": 1i64 << 30}, {"as_int": 1}]);
    assert!(changed.error().contains("exceeds the limit"), "{}", changed.error());
}

#[test]
fn aliases_share_a_storage_and_strides_are_resolved() {
    let mut fake = simple()
        .parameter("a", "f32[2,2]", Some(&floats(&[0.0, 1.0, 2.0, 3.0, 4.0])))
        .parameter("b", "f32[2,2]", None);
    fake.weights["b"]["path_name"] = json!("w_a");
    fake.weights["b"]["tensor_meta"]["strides"] = json!([{"as_int": 1}, {"as_int": 2}]);
    fake.weights["b"]["tensor_meta"]["storage_offset"] = json!({"as_int": 1});
    let imported = fake.import().unwrap();
    assert!(imported.tied_names.is_empty(), "they overlap, but are not one tensor");
    let weights = imported.weights;
    assert_eq!(weights["a"].to_f64(), [0.0, 1.0, 2.0, 3.0]);
    assert_eq!(weights["b"].to_f64(), [1.0, 3.0, 2.0, 4.0]);
}

#[test]
fn parameters_without_data_are_left_out() {
    let imported = simple().parameter("w", "f32[2]", None).import().unwrap();
    assert!(imported.weights.is_empty());
    assert_eq!(imported.notes, ["parameters without data in the archive: 1"]);
}

/// PyTorch writes an empty entry for a parameter on the device `meta`.
#[test]
fn parameters_on_the_meta_device_have_no_data() {
    let mut fake = simple().parameter("w", "f32[2]", Some(&[]));
    fake.weights["w"]["tensor_meta"]["device"] = json!({"type": "meta", "index": null});
    let imported = fake.import().unwrap();
    assert!(imported.weights.is_empty());
    assert_eq!(imported.notes, ["parameters without data in the archive: 1"]);
    fake.weights["w"]["tensor_meta"]["device"] = json!({"type": "cpu", "index": null});
    let error = fake.import().unwrap_err().to_string();
    assert!(error.contains("stored tensor `w`: expected a storage of at least 2 elements"), "{error}");
}

#[test]
fn bools_are_normalised() {
    let fake = simple().buffer("m", "bool[3]", false, Some(&[0, 1, 255]));
    let graph = fake.import().unwrap().graph;
    let data = graph.inputs.values().find_map(|i| i.data.clone()).unwrap();
    assert_eq!(*data, Tensor::new(symmc_ir::DType::Bool, [3], vec![0, 1, 1]).unwrap());
}

/// A weight and the program, compressed in one way, after an entry whose name has this many bytes.
fn write_archive(length: usize, method: CompressionMethod, wide: Zip64Records) -> Vec<u8> {
    let fake = simple().parameter("w", "f32[2]", Some(&floats(&[1.0, 2.0])));
    let first = ("x".repeat(length), vec![7; 4]);
    let entries = std::iter::once(first).chain(fake.entries());
    let entries: Vec<_> = entries.map(|(name, data)| packed(&name, &data, method)).collect();
    container::archive(&entries, wide)
}

#[test]
fn archives_open_for_all_lengths_of_names() {
    for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
        for wide in [Zip64Records::No, Zip64Records::Records, Zip64Records::Entries] {
            for length in 1..=80 {
                let imported = import(&write_archive(length, method, wide), &ImportOptions::default());
                let imported = imported.unwrap_or_else(|e| panic!("{length} {method:?} {wide:?}: {e}"));
                assert_eq!(imported.weights["w"].to_f64(), [1.0, 2.0], "{length} {method:?} {wide:?}");
            }
        }
    }
}

#[test]
fn an_archive_whose_writing_failed_says_so() {
    for left in ["models/", "data/constants/", "archive_"] {
        let bytes = changed(|e| {
            e.retain(|e| !e.0.starts_with("models/") && (left == "archive_" || !e.0.starts_with(left)));
        });
        let error = message(&bytes);
        assert!(error.contains("torch.export.save failed before it wrote the program"), "{error}");
    }
    let error = message(&changed(|e| e.retain(|e| e.0 == "archive_format")));
    assert!(error.contains("the archive has no exported program"), "{error}");
}

#[test]
fn tied_weights_are_read_and_counted_once() {
    // Three hundred names of one tensor. If each name counted, the limit would be exceeded.
    let data = vec![1u8; 16 << 20];
    let mut fake = simple().parameter("w0", "u8[16777216]", Some(&data));
    for i in 1..300 {
        fake = fake.parameter(&format!("w{i}"), "u8[16777216]", None);
        fake.weights[&format!("w{i}")]["path_name"] = json!("w_w0");
    }
    let entries: Vec<_> = fake.entries();
    let bytes = common::zipped_as("r/", &entries, |_| CompressionMethod::Deflated);
    let imported = import(&bytes, &ImportOptions::default()).unwrap();
    assert_eq!(imported.weights.len(), 300);
    assert_eq!(imported.tied_names.iter().map(Vec::len).collect::<Vec<_>>(), [300]);
    assert!(imported.weights.values().all(|w| std::sync::Arc::ptr_eq(w, &imported.weights["w0"])));
}

/// An archive of the entries of `simple` and these. The declared size of the last entry is changed.
fn declaring(extra: &[(&str, &[u8])], size: impl Fn(u64) -> u64) -> Vec<u8> {
    let mut entries: Vec<_> = simple()
        .entries()
        .iter()
        .map(|(name, data)| packed(name, data, CompressionMethod::Deflated))
        .collect();
    entries.extend(extra.iter().map(|(name, data)| packed(name, data, CompressionMethod::Deflated)));
    if let Some(last) = entries.last_mut() {
        last.size = size(last.size);
    }
    container::archive(&entries, Zip64Records::Entries)
}

#[test]
fn bombs_are_refused_before_they_unpack() {
    // Blanks compress by a factor of a thousand, more than the text of any program.
    let mut entries = simple().entries();
    entries.iter_mut().find(|e| e.0.starts_with("models/")).unwrap().1 = vec![b' '; 1 << 27];
    let error = message(&common::zipped_as("r/", &entries, |_| CompressionMethod::Deflated));
    assert!(error.contains("`models/model.json`") && error.contains("exceeds the limit"), "{error}");

    // Declared sizes that the bytes in the file cannot unpack to.
    let config = br#"{"config": {}}"#;
    for size in [u64::MAX, 1 << 40, 1 << 26] {
        let error = message(&declaring(&[("data/weights/model_weights_config.json", config)], |_| size));
        assert!(error.contains(&format!("bytes cannot unpack to {size}")), "{error}");
    }

    // Entries that overlap.
    let mut entries: Vec<_> =
        simple().entries().iter().map(|(n, d)| packed(n, d, CompressionMethod::Stored)).collect();
    let long = entries.iter().map(|e| e.data.len()).max().unwrap();
    let mut bytes = container::archive(&entries, Zip64Records::Records);
    let end = bytes.len();
    entries.clear();
    for at in directory(&bytes) {
        bytes[at + 20..at + 24].copy_from_slice(&(long as u32).to_le_bytes());
        bytes[at + 24..at + 28].copy_from_slice(&(long as u32).to_le_bytes());
    }
    assert_eq!(bytes.len(), end);
    assert!(message(&bytes).contains("bytes in total, but the file has"), "{}", message(&bytes));
}

/// The offsets of the headers in the directory.
fn directory(bytes: &[u8]) -> Vec<usize> {
    (0..bytes.len() - 4).filter(|&i| bytes[i..].starts_with(b"PK\x01\x02")).collect()
}

#[test]
fn tensors_that_are_refused_take_no_memory() {
    // Tensors of one stored element, repeated by strides of 0. Each of them is within the limit, but not all
    // together.
    let mut fake = simple();
    for i in 0..40 {
        fake = fake.parameter(&format!("w{i}"), "f32[8192,8192]", Some(&[0; 4]));
        fake.weights[&format!("w{i}")]["tensor_meta"]["strides"] = json!([{"as_int": 0}, {"as_int": 0}]);
    }
    let bytes = fake.bytes();
    let start = std::time::Instant::now();
    let error = message(&bytes);
    assert!(error.contains("exceeds the limit"), "{error}");
    // One of them takes longer to build.
    assert!(start.elapsed() < std::time::Duration::from_secs(1), "{:?}", start.elapsed());
}

#[test]
fn deep_json_is_refused() {
    let depth = 100_000;
    for (open, close) in [("[", "]"), ("{\"graph_module\":", "}")] {
        let text = open.repeat(depth) + &close.repeat(depth);
        let bytes = changed(|e| {
            let program = e.iter_mut().find(|e| e.0 == "models/model.json").unwrap();
            program.1 = text.clone().into_bytes();
        });
        assert!(message(&bytes).contains("`models/model.json`"), "{}", message(&bytes));
    }
    // Skipped fields may have any depth.
    let mut program = simple().program().to_string();
    program.insert_str(1, &format!("\"x\":{}{},", "[".repeat(depth), "]".repeat(depth)));
    let bytes = changed(|e| {
        e.iter_mut().find(|e| e.0 == "models/model.json").unwrap().1 = program.clone().into_bytes();
    });
    let _ = import(&bytes, &ImportOptions::default());
}
