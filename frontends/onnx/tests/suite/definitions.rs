//! Nodes are checked against the schemas of their ops. Attributes and operands that a schema does not have
//! are rejected by name, and those that a rule does not read are not ignored. Every op of `ops.txt` is tried
//! with every attribute and operand that its schema has and the line does not.

use std::collections::{BTreeSet, HashMap};

use symmc_ir::Op;

use crate::common::{Fake, attribute, stored, tensor};
use crate::ops::program;

/// One version of an op: its largest numbers of operands and results, and its attributes as name, type and
/// default.
struct OpDefinition {
    since: i64,
    most: [Option<usize>; 2],
    attributes: Vec<(&'static str, &'static str, Option<&'static str>)>,
}

fn definitions() -> HashMap<&'static str, Vec<OpDefinition>> {
    let mut definitions: HashMap<&str, Vec<OpDefinition>> = HashMap::new();
    let lines = include_str!("../../src/schemas.txt").lines();
    for line in lines.filter(|l| !l.starts_with(['#', 'n', 'o']) && !l.ends_with("deprecated")) {
        let words: Vec<&str> = line.split(' ').collect();
        let [name, since, operands, results, _, attributes @ ..] = words.as_slice() else { panic!("{line}") };
        let max_counts = [operands, results].map(|c| c.split_once("..").expect("a range").1.parse().ok());
        let attribute = |word: &&'static str| {
            let (name, ty) = word.split_once(':').expect("a name and a type");
            let (ty, default) = ty.split_once('=').map_or((ty, None), |(ty, d)| (ty, Some(d)));
            (name, ty.trim_end_matches('!'), default)
        };
        let attributes = attributes.iter().map(attribute).collect();
        let since = since.parse().expect("a version");
        definitions.entry(name).or_default().push(OpDefinition { since, most: max_counts, attributes });
    }
    definitions
}

/// Attributes and operands that do not affect the numbers that the rules give.
const HARMLESS: &[(&str, &str)] = &[
    // Casts to powers of two, which are refused, and casts of numbers that no float of 8 bits is too small for.
    ("Cast", "round_mode"),
    ("CastLike", "saturate"),
    ("CastLike", "round_mode"),
    // Nothing is dropped.
    ("Dropout", "seed"),
    ("Dropout", "ratio"),
    ("Dropout", "operand 1"),
    // Any order is allowed.
    ("TopK", "sorted"),
    // How precisely kernels compute at least.
    ("com.microsoft::MatMulNBits", "accuracy_level"),
    // It only affects a result that is refused.
    ("com.microsoft::EmbedLayerNormalization", "mask_index_type"),
    // The size of pieces in which kernels compute.
    ("LinearAttention", "chunk_size"),
    // These only affect scores that are output, and keys that are padded.
    ("Attention", "qk_matmul_output_mode"),
    ("com.microsoft::MultiHeadAttention", "mask_filter_value"),
];

/// A program of `ops.txt` with its op and the schema of the op.
fn cases(mut visit: impl FnMut(&'static str, &OpDefinition, &dyn Fn() -> Fake)) {
    let definitions = definitions();
    for line in include_str!("ops.txt").lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
        let (version, call) = line.split_once(' ').expect("a version and a call");
        let (op, version) =
            (call.split(' ').next().expect("an op"), version.parse::<i64>().expect("a version"));
        let Some(versions) = definitions.get(op) else { panic!("no definition of {op}") };
        // All ops of com.microsoft have version 1.
        let version = if op.contains("::") { 1 } else { version };
        let of_then = versions.iter().filter(|d| d.since <= version).max_by_key(|d| d.since);
        visit(op, of_then.unwrap_or_else(|| panic!("no {op} in version {version}")), &|| program(line).0);
    }
}

/// The program as text, if it has no opaque ops.
fn import_supported(fake: &Fake) -> Option<String> {
    let graph = fake.import().ok()?.graph;
    let opaque = graph.nodes.values().any(|n| matches!(n.op, Op::Opaque { .. }));
    (!opaque).then(|| symmc_ir::text::print(&graph))
}

/// Values of an attribute of a type, as [`attribute`] reads them.
fn values(ty: &str) -> &'static [&'static str] {
    match ty {
        "int" => &["0", "1", "2", "-1", "7", "11"],
        "float" => &["0.25", "3.5"],
        "string" => &["'other'"],
        "ints" => &["[0]", "[5]"],
        _ => &["{f32[1]:2}"],
    }
}

#[test]
fn every_attribute_is_read_or_refused() {
    // An attribute may affect only some of the cases.
    let (mut tried, mut read) = (BTreeSet::new(), BTreeSet::new());
    cases(|op, definition, fake| {
        let plain = import_supported(&fake());
        assert!(plain.is_some(), "{op}: {:?}", fake().import().map(|i| i.notes));
        for &(name, ty, default) in &definition.attributes {
            let is_given = fake().graph().node[0].attribute.iter().any(|a| a.name == name);
            let other_values = values(ty).iter().filter(|v| is_given || Some(**v) != default);
            let changed = other_values.clone().any(|value| {
                let mut with = fake();
                let attributes = &mut with.graph().node[0].attribute;
                attributes.retain(|a| a.name != name);
                attributes.push(attribute(name, value));
                import_supported(&with) != plain
            });
            tried.insert((op, name));
            if changed || HARMLESS.contains(&(op, name)) {
                read.insert((op, name));
            }
        }
    });
    let ignored: Vec<_> = tried.difference(&read).collect();
    assert!(ignored.is_empty() && tried.len() > 100, "of {}: {ignored:?}", tried.len());
}

#[test]
fn every_operand_is_read_or_refused() {
    let (mut ignored, mut tried) = (BTreeSet::new(), 0);
    cases(|op, definition, fake| {
        let plain = import_supported(&fake());
        let count = fake().graph().node[0].input.len();
        for i in count..definition.most[0].unwrap_or(count) {
            let changed =
                [("f32[]", 0.5), ("i64[1]", 1.0), ("bool[]", 1.0)].into_iter().any(|(ty, number)| {
                    let mut with = fake().held(stored("more", &tensor(ty, &[number])));
                    let inputs = &mut with.graph().node[0].input;
                    inputs.resize(i, String::new());
                    inputs.push("more".into());
                    import_supported(&with) != plain
                });
            tried += 1;
            if !changed && !HARMLESS.contains(&(op, format!("operand {i}").as_str())) {
                ignored.insert(format!("{op} operand {i}"));
            }
        }
    });
    assert!(ignored.is_empty() && tried > 30, "of {tried}: {ignored:?}");
}

#[test]
fn unknown_operands_and_attributes_are_rejected_by_name() {
    let mut ops = BTreeSet::new();
    cases(|op, definition, fake| {
        let refused = |with: Fake, part: &str| {
            let error = with.error();
            assert!(
                error.contains("node `r0`") && error.contains(op) && error.contains(part),
                "{op}: {error}"
            );
        };
        let mut with = fake();
        with.graph().node[0].attribute.push(attribute("no_such", "1"));
        refused(with, "found no_such=1");
        let mut with = fake();
        let a = attribute(definition.attributes.first().map_or("no_such", |a| a.0), "{f32[1]:2}");
        with.graph().node[0].attribute.insert(0, a);
        assert!(import_supported(&with).is_none(), "{op}");
        for (list, most) in definition.most.into_iter().enumerate() {
            let Some(max_count) = most else { continue };
            let mut with = fake();
            let node = &mut with.graph().node[0];
            let names = if list == 0 { &mut node.input } else { &mut node.output };
            let first = names.first().cloned().unwrap_or_default();
            (names.len()..=max_count)
                .for_each(|i| names.push(if list == 0 { first.clone() } else { format!("x.{i}") }));
            if first.is_empty() {
                continue;
            }
            refused(with, &format!("found {}", max_count + 1));
        }
        let mut with = fake();
        with.model.opset_import.iter_mut().for_each(|o| o.version = 99);
        assert!(with.error().contains("found version 99"), "{}", with.error());
        ops.insert(op);
    });
    // Sequences, graphs, collectives, extents that are data, and ops that neither evaluator has are tested elsewhere.
    let untested = [
        "Constant",
        "Scatter",
        "SequenceConstruct",
        "SequenceEmpty",
        "SequenceErase",
        "SequenceInsert",
        "SequenceLength",
        "OptionalGetElement",
        "OptionalHasElement",
        "SplitToSequence",
        "SequenceAt",
        "NonZero",
        "Unique",
        "ConcatFromSequence",
        "If",
        "Loop",
        "Scan",
        "com.microsoft::SimplifiedLayerNormalization",
    ];
    let untried: Vec<&str> = symmc_onnx::supported_ops().into_iter().map(|(op, _)| op).collect();
    let untried: Vec<&str> =
        untried.into_iter().filter(|op| !ops.contains(op) && !untested.contains(op)).collect();
    assert_eq!(untried, ["com.microsoft::AllReduce", "com.microsoft::AllGather", "com.microsoft::AllToAll"]);
}

#[test]
fn versions_that_are_not_known_are_refused() {
    let relu = || Fake::new(20).input("x", "f32[2]").node("Relu", &["x"], &["y"]).output("y");
    let version = |domain: &str, version| {
        let mut fake = relu();
        fake.model.opset_import.iter_mut().filter(|o| o.domain == domain).for_each(|o| o.version = version);
        fake.error()
    };
    assert!(version("", 99).contains("of ONNX's operators, found version 99"), "{}", version("", 99));
    let expected = "model.onnx: expected version 1 of ONNX Runtime's operators, found version 2";
    assert_eq!(version("com.microsoft", 2), expected);
    let mut format = relu();
    for (ir_version, sound) in [(0, false), (2, false), (3, true), (14, true), (15, false), (-1, false)] {
        format.model.ir_version = ir_version;
        assert_eq!(format.import().is_ok(), sound, "{ir_version}");
    }
    assert!(format.error().contains("of the format (ir_version), found version -1"), "{}", format.error());
    let mut twice = relu();
    let import = symmc_onnx::proto::OperatorSetIdProto { domain: "ai.onnx".into(), version: 21 };
    twice.model.opset_import.push(import);
    assert!(
        twice.error().contains("one version of ONNX's operators, 20, found version 21"),
        "{}",
        twice.error()
    );
    let mut none = relu().node("com.microsoft::Gelu", &["x"], &["z"]);
    none.model.opset_import.truncate(1);
    assert!(
        none.error().contains("expected an opset_import for the domain `com.microsoft`"),
        "{}",
        none.error()
    );
    let ended = Fake::new(20)
        .input("x", "f32[2]")
        .stored("i", "i64[1]", &[0.0])
        .node("Scatter", &["x", "i", "x"], &["y"])
        .output("y");
    assert!(ended.error().contains("node `y` (Scatter): "), "{}", ended.error());
}

#[test]
fn fields_that_the_format_has_not_are_refused() {
    use prost::Message;
    use symmc_onnx::{ImportOptions, ModelSource, import};
    // A field with its number, bytes with its value, and the message that contains it.
    let with = |bytes: Vec<u8>| {
        let file = ModelSource { name: "model.onnx".into(), bytes: bytes.into(), file: None, folder: None };
        import(&[file], &ImportOptions::default())
    };
    let fake = || Fake::new(20).input("x", "f32[2]").node("Relu", &["x"], &["y"]).output("y");
    let field = |number: u8, content: &[u8]| {
        let mut bytes = vec![number << 3 | 2, content.len() as u8];
        bytes.extend(content);
        bytes
    };
    // Field 6 of a model and of a node is documentation. Field 9 of a model does not exist.
    let graph = |node: Vec<u8>| {
        let mut fake = fake();
        fake.graph().node.clear();
        let mut content = fake.graph().encode_to_vec();
        content.extend(field(1, &node));
        fake.model.graph = None;
        [fake.bytes(), field(7, &content)].concat()
    };
    let node = |extra: Vec<u8>| [fake().graph().node[0].encode_to_vec(), extra].concat();
    assert!(with([fake().bytes(), field(6, b"about")].concat()).is_ok());
    assert!(with(graph(node(field(6, b"about")))).is_ok());
    let error = |bytes| with(bytes).expect_err("an unknown field").to_string();
    assert_eq!(
        error([fake().bytes(), field(9, b"?")].concat()),
        "model.onnx: expected fields that version 14 of the format has, found field 9 of a model"
    );
    assert!(error(graph(node(field(11, b"?")))).ends_with("found field 11 of a node"));
}

#[test]
fn rules_take_the_windows_of_attention() {
    let windowed = Fake::new(25)
        .input("q", "f32[1,2,n,4]")
        .input("k", "f32[1,2,n,4]")
        .input("v", "f32[1,2,n,4]")
        .node("Attention left_window_size=3", &["q", "k", "v"], &["y"])
        .output("y");
    let text = windowed.text();
    assert!(text.contains("attention %q, %k, %v bounds=[from row + (-3)]"), "{text}");
    let mut older = windowed.clone();
    older.model.opset_import[0].version = 24;
    let error = older.error();
    assert!(error.contains("as of version 24") && error.contains("found left_window_size=3"), "{error}");
}
