//! A second of random damage to archives and programs. An import gives a program that verifies, or an error,
//! and never panics. The fuzz target `pt2` shares [`symmc_torch::fuzz::check_bytes`].

use std::time::{Duration, Instant};

use symmc_support::random::SplitMix;

use crate::common::{Fake, zipped};

fn program() -> Fake {
    Fake::new()
        .range("s0", Some(2), Some(64))
        .sym_int("n", "s0")
        .input("x", "f32[s0,4]")
        .parameter("w", "f32[4,4]", Some(&[0; 64]))
        .buffer("i", "i64[2]", false, Some(&[0; 16]))
        .node("aten.sym_size.int", "self=%x dim=0", &[("$n", "")])
        .node("aten.linear.default", "input=%x weight=%w", &[("h", "f32[s0,4]")])
        .node("aten.view.default", "self=%h size=[$n,2,2]", &[("v", "f32[s0,2,2]")])
        .node("aten.permute.default", "self=%v dims=[1,0,2]", &[("p", "f32[2,s0,2]")])
        .node("aten.index.Tensor", "self=%p indices=[%i]", &[("g", "f32[2,s0,2]")])
        .node("aten.slice.Tensor", "self=%g dim=1 start=1 end=9223372036854775807", &[("c", "f32[2,s0-1,2]")])
        .node(
            "_c10d_functional.all_gather_into_tensor.default",
            "input=%g group_size=4 group_name='0'",
            &[("a", "f32[8,s0,2]")],
        )
        .node("_c10d_functional.wait_tensor.default", "tensor=%a", &[("t", "f32[8,s0,2]")])
        .node("aten.mul_.Tensor", "self=%t other=2", &[("m", "f32[8,s0,2]")])
        .list_node("aten.split.Tensor", "self=%t split_size=4", &[("q", "f32[4,s0,2]"), ("r", "f32[4,s0,2]")])
        .output("q")
        .output("c")
}

/// The text with one word or character replaced, removed or doubled.
fn damage_text(text: &[u8], random: &mut SplitMix) -> Vec<u8> {
    const WORDS: [&str; 14] = [
        "0",
        "-1",
        "9223372036854775807",
        "null",
        "[]",
        "{}",
        "true",
        "\"x\"",
        "1e308",
        "as_int",
        "as_none",
        "Symbol",
        "(",
        "13",
    ];
    let mut out = text.to_vec();
    for _ in 0..1 + random.below(3) {
        let position = random.below(out.len());
        let end = (position + 1 + random.below(12)).min(out.len());
        match random.below(4) {
            0 => out[position] ^= 1 << random.below(8),
            1 => drop(out.drain(position..end)),
            2 => {
                let copy = out[position..end].to_vec();
                let target = random.below(out.len());
                out.splice(target..target, copy);
            }
            _ => {
                // A whole number or word.
                let is_word = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_' || *b == b'-';
                let start = out[..position].iter().rposition(|b| !is_word(b)).map_or(0, |p| p + 1);
                let stop =
                    out[position..].iter().position(|b| !is_word(b)).map_or(out.len(), |p| position + p);
                out.splice(start..stop.max(start), WORDS[random.below(WORDS.len())].bytes());
            }
        }
        if out.is_empty() {
            break;
        }
    }
    out
}

#[test]
fn damaged_programs_and_archives_never_panic() {
    let fake = program();
    fake.import().expect("the program is sound");
    let (entries, bytes) = (fake.entries(), fake.bytes());
    let mut random = SplitMix(7);
    let started = Instant::now();
    let (mut runs, mut imported) = (0u32, 0u32);
    while started.elapsed() < Duration::from_secs(1) {
        let damaged = if runs % 4 == 0 {
            damage_text(&bytes, &mut random)
        } else if runs % 4 == 1 {
            damage_text(fake.program().to_string().as_bytes(), &mut random)
        } else {
            let mut entries = entries.clone();
            let json: Vec<usize> = (0..entries.len()).filter(|&i| entries[i].0.ends_with("json")).collect();
            let index = json[random.below(json.len())];
            entries[index].1 = damage_text(&entries[index].1, &mut random);
            zipped("r/", &entries)
        };
        imported += u32::from(symmc_torch::fuzz::check_bytes(&damaged));
        runs += 1;
    }
    assert!(runs > 100 && imported > 0 && imported < runs, "{imported} of {runs}");
}
