//! Files cut at every byte, and a second of random damage. An import gives a program that verifies, or an
//! error, and never panics. The fuzz target `onnx` shares [`symmc_onnx::fuzz::check_bytes`].

use std::time::{Duration, Instant};

use symmc_onnx::{fuzz, proto};
use symmc_support::random::SplitMix;

use crate::common::{Fake, node};

fn program() -> Fake {
    let function = proto::FunctionProto {
        name: "twice".into(),
        domain: "my".into(),
        input: vec!["a".into()],
        output: vec!["b".into()],
        node: vec![node("Add", &["a", "a"], &["b"])],
        ..proto::FunctionProto::default()
    };
    Fake::new(18)
        .function(function)
        .metadata("pkg.torch.export.ExportedProgram.range_constraints", "{s0: VR[2, 64]}")
        .input("x", "f32[tokens,8]")
        .input("i", "i64[tokens]")
        .stored("w", "f32[8,8]", &[0.5; 64])
        .stored("zero", "i64[1]", &[0.0])
        .stored("two", "i64[2]", &[2.0, -1.0])
        .stored("bounds", "i64[1]", &[-3.0])
        .stored("most", "i64[1]", &[9e15])
        .declared("h", "f32[tokens,8]")
        .node("Gemm transB=1 alpha=0.5", &["x", "w"], &["h"])
        .node("Shape", &["h"], &["shape"])
        .node("Gather axis=0", &["shape", "zero"], &["n"])
        .node("Concat axis=0", &["n", "two"], &["target"])
        .node("Reshape", &["h", "target"], &["v"])
        .node("Transpose perm=[1,0,2]", &["v"], &["t"])
        .node("com.microsoft::AllGather group_size=2 axis=2", &["t"], &["g"])
        .node("Slice", &["g", "bounds", "most", "zero"], &["s"])
        .node("Softmax axis=-1", &["s"], &["p"])
        .node("Gather axis=0", &["x", "i"], &["e"])
        .node("Split axis=1 num_outputs=2", &["e"], &["e1", "e2"])
        .node("my::twice", &["e2"], &["f"])
        .node("ReduceMean keepdims=0", &["f", "zero"], &["m"])
        .node("Expand", &["m", "target2"], &["q"])
        .stored("target2", "i64[2]", &[3.0, 4.0])
        .output("p")
        .output("q")
        .output("n")
}

/// The bytes with some of them replaced, removed or doubled.
fn damage_bytes(bytes: &[u8], random: &mut SplitMix) -> Vec<u8> {
    let mut out = bytes.to_vec();
    for _ in 0..1 + random.below(4) {
        let start = random.below(out.len());
        let end = (start + 1 + random.below(12)).min(out.len());
        match random.below(5) {
            0 => out[start] ^= 1 << random.below(8),
            1 => out[start] = [0, 1, 0x7f, 0x80, 0xff][random.below(5)],
            2 => drop(out.drain(start..end)),
            3 => out[start..end].fill(0xff),
            _ => {
                let copy = out[start..end].to_vec();
                let target = random.below(out.len());
                out.splice(target..target, copy);
            }
        }
        if out.is_empty() {
            break;
        }
    }
    out
}

#[test]
fn files_cut_at_any_byte_are_errors_or_programs() {
    let bytes = program().bytes();
    assert!(fuzz::check_bytes(&bytes), "{}", program().error());
    let sound = (0..bytes.len()).filter(|&end| fuzz::check_bytes(&bytes[..end])).count();
    assert!(sound < bytes.len() / 2, "{sound} of {}", bytes.len());
}

#[test]
fn damaged_files_never_panic() {
    let bytes = program().bytes();
    let mut random = SplitMix(7);
    let started = Instant::now();
    let (mut runs, mut imported) = (0u32, 0u32);
    while started.elapsed() < Duration::from_secs(1) {
        imported += u32::from(fuzz::check_bytes(&damage_bytes(&bytes, &mut random)));
        runs += 1;
    }
    assert!(runs > 100 && imported > 0 && imported < runs, "{imported} of {runs}");
}

#[test]
fn deep_nesting_is_refused() {
    // Graphs within attributes within nodes, each nested in the previous one.
    let mut bytes = Vec::new();
    for level in 0..20_000 {
        let tag = [0x0a, 0x2a, 0x32][level % 3];
        let mut outer = vec![tag];
        let mut n = bytes.len();
        while n >= 0x80 {
            outer.push(n as u8 | 0x80);
            n >>= 7;
        }
        outer.push(n as u8);
        outer.append(&mut bytes);
        bytes = outer;
    }
    let mut model = vec![0x3a];
    let mut n = bytes.len();
    while n >= 0x80 {
        model.push(n as u8 | 0x80);
        n >>= 7;
    }
    model.push(n as u8);
    model.append(&mut bytes);
    assert!(!fuzz::check_bytes(&model));
}
