//! One check of a report: a thing that is examined, and its status.

use std::path::Path;

use serde::{Deserialize, Serialize};

/// One check: a thing that was examined, and the result.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DoctorCheck {
    /// The part of the machine that the check belongs to.
    pub part: DoctorPart,
    /// Its name: one of [`DoctorPart::check_names`], or `gpu N` for each GPU.
    pub name: String,
    /// The result.
    pub status: CheckStatus,
    /// A description of what was found.
    pub found: String,
    /// The version, for drivers and libraries.
    pub version: Option<String>,
    /// The path, for files and folders.
    pub path: Option<String>,
    /// The action that would improve the status; `None` if the status is [`Ok`](CheckStatus::Ok).
    pub remedy: Option<String>,
}

/// The result of a check.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CheckStatus {
    /// Fully usable.
    Ok,
    /// Usable with restrictions.
    Limited,
    /// Absent or unusable.
    Missing,
    /// Not known: there was no answer, or the examination failed.
    Unknown,
}

impl CheckStatus {
    /// The name of the status in reports.
    pub fn name(self) -> &'static str {
        match self {
            CheckStatus::Ok => "ok",
            CheckStatus::Limited => "limited",
            CheckStatus::Missing => "missing",
            CheckStatus::Unknown => "unknown",
        }
    }
}

/// A part of the machine, whose checks are examined together.
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

    /// The name of the part in reports.
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

    /// The part of this name, if there is one.
    pub fn from_name(name: &str) -> Option<DoctorPart> {
        DoctorPart::ALL.into_iter().find(|p| p.name() == name)
    }

    /// The names of the part's checks, which every report has. After `gpus` follows one check `gpu N` for each GPU.
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

    /// A check without problems.
    pub(super) fn ok(self, name: &str, found: impl Into<String>) -> DoctorCheck {
        self.new_check(name, CheckStatus::Ok, found)
    }

    /// A check with a problem and its remedy.
    pub(super) fn problem(
        self,
        name: &str,
        status: CheckStatus,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> DoctorCheck {
        DoctorCheck { remedy: Some(one_line(&remedy.into())), ..self.new_check(name, status, found) }
    }

    /// All checks of the part, with the same status.
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

/// Joins the lines of a text to one line.
fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|l| !l.is_empty()).collect::<Vec<_>>().join("; ")
}

/// A number of bytes with a binary unit.
pub(super) fn format_bytes(n: u64) -> String {
    const UNITS: [(u32, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = UNITS.into_iter().find(|(shift, _)| n >> shift > 0);
    unit.map_or_else(
        || format!("{n} B"),
        |(shift, name)| format!("{:.1} {name}", n as f64 / (1u64 << shift) as f64),
    )
}
