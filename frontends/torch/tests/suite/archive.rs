//! The container: what is refused, and by which name; aliases and strides of stored tensors; and a second
//! of random damage.

use serde_json::json;
use symmc_ir::Tensor;
use symmc_torch::{ImportOptions, import};

use crate::common::{Fake, meta, zipped};

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
fn what_is_no_program_is_refused_by_name() {
    let set = |name: &'static str, data: &'static [u8]| {
        changed(move |e| e.iter_mut().find(|e| e.0 == name).unwrap().1 = data.to_vec())
    };
    for (bytes, expected) in [
        (b"not a zip".to_vec(), "not a readable zip archive"),
        (Vec::new(), "not a readable zip archive"),
        (
            zipped("", &[("a.txt".into(), b"text".to_vec())]),
            "no entry `archive_format`; it is no torch.export",
        ),
        (set("archive_format", b"onnx"), "`archive_format`: expected `pt2`, found `onnx`"),
        (set("byteorder", b"big"), "`byteorder`: expected `little`, found `big`"),
        (set("models/model.json", b"{\"schema_version\": {\"major\": 9"), "`models/model.json`: EOF"),
        (set("models/model.json", b"{}"), "missing field `graph_module`"),
        (set("models/model.json", b"\xff"), "`models/model.json`: it is not UTF-8"),
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
        let found = message(&bytes);
        assert!(found.contains(expected), "expected {expected}, found {found}");
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
fn of_several_programs_the_named_one_is_read() {
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
    assert!(fake.error().contains("`w` is stored as a pickle in `data/weights/w_w`"), "{}", fake.error());
}

#[test]
fn stored_tensors_must_fit() {
    let w = |data: &[f32]| simple().parameter("w", "f32[2]", Some(&floats(data)));
    assert!(w(&[1.0, 2.0]).import().is_ok());
    assert!(
        w(&[1.0]).error().contains("`w`: expected a storage of at least 2 elements of f32, found 4 bytes")
    );
    let mut other = w(&[1.0, 2.0, 3.0]);
    other.weights["w"]["tensor_meta"] = meta("f32[3]");
    assert!(other.error().contains("`w`: expected f32[2], found f32[3]"), "{}", other.error());
    other.weights["w"]["tensor_meta"] = meta("i32[2]");
    assert!(other.error().contains("`w`: expected f32[2], found i32[2]"), "{}", other.error());
    other.weights["w"]["tensor_meta"]["sizes"] = json!([{"as_int": 1i64 << 40}, {"as_int": 1i64 << 40}]);
    other.weights["w"]["tensor_meta"]["strides"] = json!([{"as_int": 0}, {"as_int": 0}]);
    assert!(other.error().contains("address space"), "{}", other.error());
    other.weights["w"]["tensor_meta"]["sizes"] = json!([{"as_int": 1i64 << 30}, {"as_int": 1}]);
    assert!(other.error().contains("more than the limit"), "{}", other.error());
}

#[test]
fn aliases_share_a_storage_and_strides_are_resolved() {
    let mut fake = simple()
        .parameter("a", "f32[2,2]", Some(&floats(&[0.0, 1.0, 2.0, 3.0, 4.0])))
        .parameter("b", "f32[2,2]", None);
    fake.weights["b"]["path_name"] = json!("w_a");
    fake.weights["b"]["tensor_meta"]["strides"] = json!([{"as_int": 1}, {"as_int": 2}]);
    fake.weights["b"]["tensor_meta"]["storage_offset"] = json!({"as_int": 1});
    let weights = fake.import().unwrap().weights;
    assert_eq!(weights["a"].to_f64(), [0.0, 1.0, 2.0, 3.0]);
    assert_eq!(weights["b"].to_f64(), [1.0, 3.0, 2.0, 4.0]);
}

#[test]
fn parameters_without_data_are_left_out() {
    let imported = simple().parameter("w", "f32[2]", None).import().unwrap();
    assert!(imported.weights.is_empty());
    assert_eq!(imported.notes, ["parameters without data in the archive: 1"]);
}

#[test]
fn bools_are_normalised() {
    let fake = simple().buffer("m", "bool[3]", false, Some(&[0, 1, 255]));
    let graph = fake.import().unwrap().graph;
    let data = graph.inputs.values().find_map(|i| i.data.clone()).unwrap();
    assert_eq!(*data, Tensor::new(symmc_ir::DType::Bool, [3], vec![0, 1, 1]).unwrap());
}

#[test]
fn a_bomb_is_refused_before_it_unpacks() {
    // 64 MiB of blanks compress well and are within the limits.
    let mut entries = simple().entries();
    entries.iter_mut().find(|e| e.0.starts_with("models/")).unwrap().1 = vec![b' '; 1 << 26];
    let mut bytes = zipped("r/", &entries);
    assert!(message(&bytes).contains("EOF"));
    // A declared size beyond the limit of JSON entries.
    let size = ((1u32 << 26).to_le_bytes(), u32::MAX.saturating_sub(1).to_le_bytes());
    let mut at = 0;
    while let Some(found) = bytes[at..].windows(4).position(|w| w == size.0) {
        bytes[at + found..at + found + 4].copy_from_slice(&size.1);
        at += found + 4;
    }
    assert!(message(&bytes).contains("more than the limit of 1073741824"), "{}", message(&bytes));
}
