//! The versions of a program: of the format, and of the operator sets that it imports.
//!
//! A version that is newer than this importer may give the same text another meaning, so it is rejected.

use std::collections::HashMap;

use crate::error::FailureReason;
use crate::node::normalize_domain;
use crate::proto;
use crate::schemas;

/// The supported versions of the format. Operator sets exist since the first, and [`proto`] has the fields of
/// the last.
pub(crate) const FORMAT: (i64, i64) = (3, 14);

/// The oldest supported version of ONNX's operator set. Older versions have other broadcasting rules.
const OLDEST: i64 = 7;

/// Fails if the model has an unsupported version.
pub(crate) fn check_model_versions(model: &proto::ModelProto) -> Result<(), FailureReason> {
    let (oldest, newest) = FORMAT;
    if !(oldest..=newest).contains(&model.ir_version) {
        return Err(FailureReason::Version {
            expected: format!("version {oldest} to {newest} of the format (ir_version)"),
            found: format!("version {}", model.ir_version),
        });
    }
    opset_versions(&model.opset_import)?;
    for function in &model.functions {
        opset_versions(&function.opset_import)?;
    }
    Ok(())
}

/// The versions of the operator sets, by domain. Fails if a version is unsupported, or a domain has two
/// versions.
pub(crate) fn opset_versions(
    imports: &[proto::OperatorSetIdProto],
) -> Result<HashMap<&str, i64>, FailureReason> {
    let mut versions = HashMap::new();
    for import in imports {
        let domain = normalize_domain(&import.domain);
        let (who, supported) = match domain {
            "" => ("ONNX's operators", OLDEST..=schemas::newest_opset()),
            "com.microsoft" => ("ONNX Runtime's operators", 1..=1),
            other => (other, 0..=i64::MAX),
        };
        let version = format!("version {}", import.version);
        if !supported.contains(&import.version) {
            let oldest = supported.start();
            let newest = supported.end();
            let range = if oldest == newest { oldest.to_string() } else { format!("{oldest} to {newest}") };
            return Err(FailureReason::Version {
                expected: format!("version {range} of {who}"),
                found: version,
            });
        }
        match versions.insert(domain, import.version) {
            Some(first) if first != import.version => {
                let expected = format!("one version of {who}, {first}");
                return Err(FailureReason::Version { expected, found: version });
            }
            _ => {}
        }
    }
    Ok(versions)
}
