//! One line of a report: what was asked for, and how it stands.

use std::path::Path;

use serde::{Deserialize, Serialize};

/// One thing that was asked for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Check {
    /// What it belongs to.
    pub part: Part,
    /// Its name: one of [`Part::names`], or `gpu N` for each GPU.
    pub name: String,
    /// How it stands.
    pub status: Status,
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
pub enum Status {
    /// As it should be.
    Ok,
    /// There, with less than there could be.
    Limited,
    /// Not there, or not usable.
    Missing,
    /// It could not be told: nothing answered, or what was asked broke down.
    Unknown,
}

impl Status {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Status::Ok => "ok",
            Status::Limited => "limited",
            Status::Missing => "missing",
            Status::Unknown => "unknown",
        }
    }
}

/// What is asked together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Part {
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

impl Part {
    /// All parts, in the order of reports.
    pub const ALL: [Part; 6] = [Part::Host, Part::Gpus, Part::Nvrtc, Part::Cublaslt, Part::Cudnn, Part::Nccl];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Part::Host => "host",
            Part::Gpus => "gpus",
            Part::Nvrtc => "nvrtc",
            Part::Cublaslt => "cublaslt",
            Part::Cudnn => "cudnn",
            Part::Nccl => "nccl",
        }
    }

    /// The part of this name.
    pub fn from_name(name: &str) -> Option<Part> {
        Part::ALL.into_iter().find(|p| p.name() == name)
    }

    /// The names of its checks, which every report has. For each GPU there is one more, `gpu N`, behind `gpus`.
    pub fn names(self) -> &'static [&'static str] {
        match self {
            Part::Host => &[
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
            Part::Gpus => &["driver", "gpus", "peer access", "memory handles", "profile"],
            Part::Nvrtc => &["nvrtc"],
            Part::Cublaslt => &["cublaslt"],
            Part::Cudnn => &["cudnn"],
            Part::Nccl => &["nccl", "nccl dependent launch"],
        }
    }

    fn check(self, name: &str, status: Status, found: impl Into<String>) -> Check {
        let (name, found) = (name.into(), one_line(&found.into()));
        Check { part: self, name, status, found, version: None, path: None, remedy: None }
    }

    /// A check of what is as it should be.
    pub(super) fn ok(self, name: &str, found: impl Into<String>) -> Check {
        self.check(name, Status::Ok, found)
    }

    /// A check that leaves something to be done.
    pub(super) fn short(
        self,
        name: &str,
        status: Status,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Check {
        Check { remedy: Some(one_line(&remedy.into())), ..self.check(name, status, found) }
    }

    /// The same state of all that the part is about.
    pub(super) fn all(self, status: Status, found: &str, remedy: &str) -> Vec<Check> {
        self.names().iter().map(|name| self.short(name, status, found, remedy)).collect()
    }
}

impl Check {
    #[cfg(any(feature = "cuda", test))]
    pub(super) fn of_version(mut self, version: impl Into<String>) -> Check {
        self.version = Some(version.into());
        self
    }

    pub(super) fn at(mut self, path: Option<&Path>) -> Check {
        self.path = path.map(|p| p.display().to_string());
        self
    }
}

/// A text of several lines as one.
fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|l| !l.is_empty()).collect::<Vec<_>>().join("; ")
}

/// Bytes with a binary unit.
pub(super) fn bytes(n: u64) -> String {
    const UNITS: [(u32, &str); 4] = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = UNITS.into_iter().find(|(shift, _)| n >> shift > 0);
    unit.map_or_else(
        || format!("{n} B"),
        |(shift, name)| format!("{:.1} {name}", n as f64 / (1u64 << shift) as f64),
    )
}
