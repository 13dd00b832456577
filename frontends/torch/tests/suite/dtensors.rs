//! Parameters that are DTensors: they become the tensor of the rank, whose data archives have as pickles.
//! `dtensor_rank1.pt` is what PyTorch 2.15 saves on rank 1 of 2 for `arange(12.0).reshape(4, 3)`, divided along
//! axis 0.

use serde_json::json;
use symmc_ir::{Op, Tensor};
use symmc_support::random::SplitMix;
use symmc_torch::{ImportOptions, import_ranks};

use crate::common::{Fake, zipped};

const SAVED: &[u8] = include_bytes!("dtensor_rank1.pt");

/// A program that adds a DTensor of two ranks to itself.
fn program(saved: &[u8]) -> Fake {
    let mut fake = Fake::new()
        .parameter("w", "f32[4,3]", Some(saved))
        .node(
            "export.access_subclass_inner_tensor.default",
            "src_subclass_tensor=%w attr='_local_tensor'",
            &[("local", "f32[2,3]")],
        )
        .node("aten.add.Tensor", "self=%local other=%local", &[("y", "f32[2,3]")])
        .output("y");
    fake.weights["w"]["use_pickle"] = json!(true);
    fake
}

/// The archive that `torch.save` writes around a pickle, with the storage `0`.
fn saved(pickle: &[u8], storage: &[u8]) -> Vec<u8> {
    let entries = [("data.pkl".to_string(), pickle.to_vec()), ("data/0".to_string(), storage.to_vec())];
    zipped("archive/", &entries)
}

/// The pickle of a tensor `[2,3]` of this class of storage, with `before` and `after` around it.
fn pickle(before: &[u8], storage: &str, after: &[u8]) -> Vec<u8> {
    let mut out = before.to_vec();
    out.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storage");
    out.extend(format!("ctorch\n{storage}\nX\x01\0\0\00X\x03\0\0\0cpuK\x06t").bytes());
    out.extend(b"QK\0K\x02K\x03\x86K\x03K\x01\x86\x89NtR");
    out.extend(after);
    out
}

fn floats(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

#[test]
fn a_dtensor_is_the_tensor_of_its_rank() {
    let imported = program(SAVED).import().expect("an import");
    let w = &imported.weights["w"];
    assert_eq!(w.shape(), [2, 3]);
    assert_eq!(w.to_f64(), [6.0, 7.0, 8.0, 9.0, 10.0, 11.0]);
    assert!(imported.graph.nodes.values().all(|n| !matches!(n.op, Op::Opaque { .. })));
}

#[test]
fn each_archive_has_the_part_of_its_rank() {
    let plain = pickle(b"", "FloatStorage", b".");
    let locals = [saved(&plain, &floats((0..6).map(|i| i as f32))), SAVED.to_vec()];
    let archives = locals.map(|local| program(&local).bytes());
    let archives: Vec<&[u8]> = archives.iter().map(Vec::as_slice).collect();
    let imported = import_ranks(&archives, &ImportOptions::default()).expect("an import");
    let values = |w: &Tensor| w.to_f64();
    assert_eq!(values(&imported.weights["w"]), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(values(&imported.other_rank_weights[0]["w"]), [6.0, 7.0, 8.0, 9.0, 10.0, 11.0]);
}

#[test]
fn dtensors_in_wrapped_graphs_are_local_tensors() {
    let mut fake = program(SAVED);
    let inner = json!({
        "inputs": [{"as_tensor": {"name": "v"}}], "outputs": [{"as_tensor": {"name": "local"}}],
        "nodes": [fake.nodes[0].clone()],
        "tensor_values": {"v": fake.values["w"], "local": fake.values["local"]},
        "sym_int_values": {}, "sym_bool_values": {},
    });
    let mut inner = inner.to_string();
    inner = inner.replace("\"name\":\"w\"", "\"name\":\"v\"");
    let inner: serde_json::Value = serde_json::from_str(&inner).expect("JSON");
    fake.nodes[0] = json!({
        "target": "torch.ops.higher_order.wrap_with_set_grad_enabled",
        "inputs": [
            {"name": "enabled", "arg": {"as_bool": false}, "kind": 1},
            {"name": "wrapped_func", "arg": {"as_graph": {"name": "g", "graph": inner}}, "kind": 1},
            {"name": "args_0", "arg": {"as_tensor": {"name": "w"}}, "kind": 1},
        ],
        "outputs": [{"as_tensor": {"name": "local"}}], "metadata": {},
    });
    let imported = fake.import().expect("an import");
    assert_eq!(imported.weights["w"].shape(), [2, 3]);
}

#[test]
fn other_attributes_and_subclasses_are_refused_by_name() {
    let mut fake = program(SAVED);
    fake.nodes[0]["inputs"][1]["arg"] = json!({"as_string": "_scale"});
    assert!(fake.error().contains("expected `_local_tensor` of a DTensor, found"), "{}", fake.error());
    let wrapped = |class: &str| {
        let mut before =
            b"ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_wrapper_subclass\n".to_vec();
        before.extend(format!("c{class}\n)}}X\x0d\0\0\0_local_tensor").bytes());
        program(&saved(&pickle(&before, "FloatStorage", b"stR."), &floats([0.5; 6])))
    };
    assert!(wrapped("torch.distributed.tensor\nDTensor").import().is_ok());
    let message = wrapped("torchao\nQuantized").error();
    let expected =
        "`w` is stored as a pickle in `data/weights/w_w`: expected a DTensor, found `torchao.Quantized`";
    assert!(message.contains(expected), "{message}");
}

#[test]
fn tensors_with_attributes_in_python_are_plain() {
    const FUNCTION: &[u8] = b"ctorch._utils\n_rebuild_tensor_v2\n";
    let plain = pickle(b"", "FloatStorage", b"");
    let arguments = &plain[FUNCTION.len()..plain.len() - 1];
    // As `torch.save` writes a tensor on which Dynamo has set an attribute.
    let with_attribute = |class: &str, after: &[u8]| {
        let mut out = b"ctorch._tensor\n_rebuild_from_type_v2\n(".to_vec();
        out.extend(FUNCTION);
        out.extend(format!("c{class}\n").bytes());
        out.extend(arguments);
        out.extend(b"}X\x04\0\0\0markK\x01stR");
        out.extend(after);
        out
    };
    let six = || floats((0..6).map(|i| i as f32));
    let mut local =
        b"ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_wrapper_subclass\n".to_vec();
    local.extend(b"ctorch.distributed.tensor\nDTensor\n)}X\x0d\0\0\0_local_tensor");
    local.extend(with_attribute("torch\nTensor", b"stR."));
    for bytes in
        [with_attribute("torch\nTensor", b"."), with_attribute("torch.nn.parameter\nParameter", b"."), local]
    {
        let imported = program(&saved(&bytes, &six())).import().expect("an import");
        assert_eq!(imported.weights["w"].to_f64(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    }
    let message = program(&saved(&with_attribute("mine\nMarked", b"."), &six())).error();
    assert!(message.contains("expected a DTensor, found `mine.Marked`"), "{message}");
}

#[test]
fn pickles_of_no_tensor_are_refused_and_never_executed() {
    let six = floats([0.0; 6]);
    let good = pickle(b"\x80\x02", "FloatStorage", b".");
    assert!(program(&saved(&good, &six)).import().is_ok());
    for (bytes, expected) in [
        (b"no archive".to_vec(), "expected an archive of `torch.save`"),
        (saved(b"cos\nsystem\nX\x02\0\0\0ls\x85R.", &six), "found a call of `os.system`"),
        (saved(b"K\x01.", &six), "expected a tensor, found another value"),
        (saved(b"\x80\x02", &six), "expected 1 more bytes, found fewer"),
        (saved(b"\xff.", &six), "the opcode 0xff is not supported at byte 0"),
        (saved(b"R.", &six), "expected a value on the stack, found none at byte 0"),
        (
            saved(&pickle(b"", "ComplexFloatStorage", b"."), &six),
            "`torch.ComplexFloatStorage` is not supported",
        ),
        (saved(&good, &six[..20]), "a storage of at least 6 elements of f32, found 20 bytes"),
        (saved(&pickle(b"", "DoubleStorage", b"."), &[0; 48]), "expected f32[2, 3], found f64[2, 3]"),
        (zipped("archive/", &[("data.pkl".into(), good.clone())]), "expected an entry `data/0`, found none"),
    ] {
        let message = program(&bytes).error();
        assert!(message.contains(expected), "expected {expected}, found {message}");
    }
}

#[test]
fn damaged_pickles_never_panic() {
    let mut random = SplitMix(7);
    let pickle = pickle(b"\x80\x02", "FloatStorage", b".");
    for _ in 0..3000 {
        let mut damaged = pickle.clone();
        for _ in 0..1 + random.below(3) {
            let index = random.below(damaged.len());
            damaged[index] = random.below(256) as u8;
        }
        let _ = program(&saved(&damaged, &floats([0.0; 6]))).import();
    }
    for _ in 0..1000 {
        let mut damaged = SAVED.to_vec();
        let index = random.below(damaged.len());
        damaged[index] = random.below(256) as u8;
        let _ = program(&damaged).import();
    }
}
