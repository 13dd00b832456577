//! One line of a report: what was asked for, and how it stands.

use std::path::Path;

use serde::{Deserialize, Serialize};

/// One thing that was asked for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DoctorCheck {
    /// What it belongs to.
    pub part: DoctorPart,
    /// Its name: one of [`DoctorPart::check_names`], or `gpu N` for each GPU.
    pub name: String,
    /// How it stands.
    pub status: CheckStatus,
    /// What was found, for people.
    pub found: String,
    /// The version, of what has one.
    pub version: Option<String>,
    /// The file, of what is one.
    pub path: Option<String>,
    /// What to do; none where all is well.
    pub remedy: Option<String>,
}

/// How a thing stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CheckStatus {
    /// As it should be.
    Ok,
    /// There, with less than there could be.
    Limited,
    /// Not there, or not usable.
    Missing,
    /// It could not be told: nothing answered, or what was asked broke down.
    Unknown,
}

impl CheckStatus {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            CheckStatus::Ok => "ok",
            CheckStatus::Limited => "limited",
            CheckStatus::Missing => "missing",
            CheckStatus::Unknown => "unknown",
        }
    }
}

/// What is asked together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DoctorPart {
    /// The machine without its GPUs.
    Host,
    /// The driver and GPUs.
    Gpus,
    /// NVRTC.
    Nvrtc,
    /// cuBLASLt.
    Cublaslt,
    /// cuDNN.
    Cudnn,
    /// NCCL.
    Nccl,
}

impl DoctorPart {
    /// All parts, in the order of reports.
    pub const ALL: [DoctorPart; 6] = [
        DoctorPart::Host,
        DoctorPart::Gpus,
        DoctorPart::Nvrtc,
        DoctorPart::Cublaslt,
        DoctorPart::Cudnn,
        DoctorPart::Nccl,
    ];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            DoctorPart::Host => "host",
            DoctorPart::Gpus => "gpus",
            DoctorPart::Nvrtc => "nvrtc",
            DoctorPart::Cublaslt => "cublaslt",
            DoctorPart::Cudnn => "cudnn",
            DoctorPart::Nccl => "nccl",
        }
    }

    /// The part of this name.
    pub fn from_name(name: &str) -> Option<DoctorPart> {
        DoctorPart::ALL.into_iter().find(|p| p.name() == name)
    }

    /// The names of its checks, which every report has. For each GPU there is one more, `gpu N`, behind `gpus`.
    pub fn check_names(self) -> &'static [&'static str] {
        match self {
            DoctorPart::Host => &[
                "launcher",
                "processors",
                "memory",
                "shared memory",
                "/dev/shm",
                "handle passing",
                "descriptors",
                "locked memory",
                "kernel cache",
            ],
            DoctorPart::Gpus => &["driver", "gpus", "peer access", "memory handles", "profile"],
            DoctorPart::Nvrtc => &["nvrtc"],
            DoctorPart::Cublaslt => &["cublaslt"],
            DoctorPart::Cudnn => &["cudnn"],
            DoctorPart::Nccl => &["nccl", "nccl dependent launch"],
        }
    }

    fn new_check(self, name: &str, status: CheckStatus, found: impl Into<String>) -> DoctorCheck {
        let (name, found) = (name.into(), one_line(&found.into()));
        DoctorCheck { part: self, name, status, found, version: None, path: None, remedy: None }
    }

    /// A check of what is as it should be.
    pub(super) fn ok(self, name: &str, found: impl Into<String>) -> DoctorCheck {
        self.new_check(name, CheckStatus::Ok, found)
    }

    /// A check that leaves something to be done.
    pub(super) fn problem(
        self,
        name: &str,
        status: CheckStatus,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> DoctorCheck {
        DoctorCheck { remedy: Some(one_line(&remedy.into())), ..self.new_check(name, status, found) }
    }

    /// The same state of all that the part is about.
    pub(super) fn uniform_checks(self, status: CheckStatus, found: &str, remedy: &str) -> Vec<DoctorCheck> {
        self.check_names().iter().map(|name| self.problem(name, status, found, remedy)).collect()
    }
}

impl DoctorCheck {
    #[cfg(any(feature = "cuda", test))]
    pub(super) fn with_version(mut self, version: impl Into<String>) -> DoctorCheck {
        self.version = Some(version.into());
        self
    }

    pub(super) fn with_path(mut self, path: Option<&Path>) -> DoctorCheck {
        self.path = path.map(|p| p.display().to_string());
        self
    }
}

/// A text of several lines as one.
fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|l| !l.is_empty()).collect::<Vec<_>>().join("; ")
}

/// Bytes with a binary unit.
pub(super) fn format_bytes(n: u64) -> String {
    const UNITS: [(u32, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = UNITS.into_iter().find(|(shift, _)| n >> shift > 0);
    unit.map_or_else(
        || format!("{n} B"),
        |(shift, name)| format!("{:.1} {name}", n as f64 / (1u64 << shift) as f64),
    )
}
