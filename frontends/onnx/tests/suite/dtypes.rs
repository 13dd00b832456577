//! The dtypes that operators take (`dtypes.txt`, made by `dtypes.py`): the importer rejects the dtypes of operands that ONNX
//! Runtime rejects, and no others for their dtypes.

use crate::common::{Fake, stored};
use crate::ops::typed;

/// The dtypes of a row.
const DTYPES: [&str; 8] = ["bool", "u8", "i32", "i64", "f16", "bf16", "f32", "f64"];

/// The program of a line whose operands at some positions have another dtype.
fn program(call: &str, operands: &[&str], position: &str, dtype: &str) -> Fake {
    let (version, call) = call.split_once(' ').expect("a version and a call");
    let mut fake = Fake::new(version.parse().expect("a version"));
    let mut names = Vec::new();
    for (i, operand) in operands.iter().enumerate() {
        names.push(if *operand == "-" { String::new() } else { format!("x{i}") });
        if let Some(constant) = operand.strip_prefix("const ") {
            fake = fake.held(stored(&names[i], &typed(constant).1));
        } else if *operand != "-" {
            let changed = position == "*" || position.parse() == Ok(i);
            let (own, shape) = operand.split_at(operand.find('[').expect("a shape"));
            let dtype = if changed { dtype } else { own };
            fake = fake.input(&names[i], &format!("{dtype}{shape}"));
        }
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    fake.node(call, &names, &["r0"]).output("r0")
}

/// Whether an error is about the dtype of an operand.
fn is_about_dtypes(error: &str) -> bool {
    error.contains("operand ") && error.contains(": expected ")
}

#[test]
fn operands_have_the_dtypes_that_onnx_runtime_accepts() {
    let (mut accepted, mut rejected, mut wrong) = (0, 0, Vec::new());
    for line in include_str!("dtypes.txt").lines().filter(|l| !l.starts_with('#')) {
        let parts: Vec<&str> = line.split(" | ").collect();
        let [call, operands, rows] = parts.as_slice() else { panic!("three parts: {line}") };
        let operands: Vec<&str> = operands.split(';').map(str::trim).collect();
        for row in rows.split(' ') {
            let (position, letters) = row.split_at(row.len() - DTYPES.len());
            for (dtype, letter) in DTYPES.iter().zip(letters.chars()) {
                let found = program(call, &operands, position, dtype).import().map_err(|e| e.to_string());
                let what = format!("{call}: {dtype} at {position}");
                match (letter, found) {
                    ('x', Err(error)) if is_about_dtypes(&error) => wrong.push(format!("{what}: {error}")),
                    ('.', Ok(_)) => wrong.push(format!("{what}: it imports")),
                    ('x', _) => accepted += 1,
                    ('.', _) => rejected += 1,
                    _ => {}
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(accepted > 700 && rejected > 700, "{accepted} accepted, {rejected} rejected");
}
