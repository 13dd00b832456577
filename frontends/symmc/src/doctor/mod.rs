//! What this machine can do and what it lacks, one [`DoctorCheck`] for each thing, with the remedy where something is to be done.
//!
//! Everything is asked, nothing is changed: no context is made on a GPU, no communicator, no multicast object. Nothing that
//! is missing is an error. What drivers and libraries answer is waited for with a limit; where a [`Prober`] is named, a
//! process of its own asks each of them, so that one that crashes is a line of the report as well.
//!
//! The report is a wire form: names of checks and parts, and the meaning of a status, stay with [`VERSION`].

mod check;
#[cfg(feature = "cuda")]
mod gpus;
mod host;
#[cfg(feature = "cuda")]
mod libraries;
mod probe;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use check::{CheckStatus, DoctorCheck, DoctorPart};
pub use probe::{Prober, examine};

/// The version of the report.
pub const VERSION: u32 = 1;

/// What a machine is found to have.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Diagnosis {
    /// The version of the report: [`VERSION`].
    pub version: u32,
    /// The version of symmc.
    pub symmc: String,
    /// All checks, in the order of [`DoctorPart::ALL`] and of [`DoctorPart::check_names`].
    pub checks: Vec<DoctorCheck>,
}

/// How to ask.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DoctorConfig {
    /// How long a driver or a library may take to answer.
    pub timeout: Duration,
    /// What asks drivers and libraries; none for threads of this process, which one that crashes takes with it.
    pub prober: Option<Prober>,
}

impl Default for DoctorConfig {
    /// Threads of this process, and half a minute: a driver that starts for the first time takes seconds for each GPU.
    fn default() -> Self {
        DoctorConfig { timeout: Duration::from_secs(30), prober: None }
    }
}

impl DoctorConfig {
    /// With [`limit`](Self::timeout).
    #[must_use]
    pub fn with_timeout(mut self, limit: Duration) -> Self {
        self.timeout = limit;
        self
    }

    /// With [`prober`](Self::prober).
    #[must_use]
    pub fn with_prober(mut self, prober: Prober) -> Self {
        self.prober = Some(prober);
        self
    }
}

/// What this machine can do and what it lacks.
pub fn doctor(config: &DoctorConfig) -> Diagnosis {
    let mut checks = probe::check_all_parts(config.timeout, config.prober.as_ref());
    check_cuda_versions(&mut checks);
    Diagnosis { version: VERSION, symmc: env!("CARGO_PKG_VERSION").into(), checks }
}

/// What follows from several checks together: a library of a later major version of CUDA than the driver's gives code that
/// the driver does not load.
fn check_cuda_versions(checks: &mut [DoctorCheck]) {
    let major = |version: &str| version.split('.').next()?.parse::<u32>().ok();
    let driver = checks.iter().find(|c| c.name == "driver").and_then(|c| c.version.clone());
    let Some((driver, most)) = driver.as_deref().and_then(|v| Some((v, major(v)?))) else { return };
    for check in checks.iter_mut().filter(|c| matches!(c.part, DoctorPart::Nvrtc | DoctorPart::Cublaslt)) {
        let Some(found) = check.version.as_deref().and_then(major).filter(|&found| found > most) else {
            continue;
        };
        check.status = CheckStatus::Limited;
        check.found = format!("{}, but the driver is for CUDA {driver}", check.found);
        check.remedy = Some(format!("install a driver for CUDA {found}, or the library of CUDA {most}"));
    }
}

#[cfg(test)]
mod tests {
    use super::check::format_bytes;
    use super::*;

    /// Each check that the page on parts names is there once and in order; each has a status, and a remedy where something
    /// is to be done.
    #[track_caller]
    fn well_formed(checks: &[DoctorCheck]) {
        for part in DoctorPart::ALL {
            let of_part = checks.iter().filter(|c| c.part == part).map(|c| c.name.as_str());
            let fixed: Vec<&str> = of_part.filter(|n| !n.starts_with("gpu ")).collect();
            assert_eq!(fixed, part.check_names(), "{part:?}");
        }
        for check in checks {
            assert_eq!(check.status == CheckStatus::Ok, check.remedy.is_none(), "{check:?}");
            let texts = [Some(&check.found), check.remedy.as_ref()];
            assert!(texts.into_iter().flatten().all(|t| !t.is_empty() && !t.contains('\n')), "{check:?}");
        }
    }

    #[test]
    fn this_machine_has_a_whole_report() {
        let found = doctor(&DoctorConfig::default());
        well_formed(&found.checks);
        let text = serde_json::to_string(&found).unwrap();
        assert_eq!(serde_json::from_str::<Diagnosis>(&text).unwrap(), found);
    }

    #[test]
    fn names_are_read_back() {
        for part in DoctorPart::ALL {
            assert_eq!(DoctorPart::from_name(part.name()), Some(part));
            assert_eq!(serde_json::to_value(part).unwrap(), part.name());
        }
        for status in [CheckStatus::Ok, CheckStatus::Limited, CheckStatus::Missing, CheckStatus::Unknown] {
            assert_eq!(serde_json::to_value(status).unwrap(), status.name());
        }
    }

    #[test]
    fn a_library_that_is_newer_than_the_driver_is_named() {
        let of = |part: DoctorPart, name, version: &str| part.ok(name, version).with_version(version);
        let mut checks = [
            of(DoctorPart::Gpus, "driver", "12.8"),
            of(DoctorPart::Nvrtc, "nvrtc", "13.0"),
            of(DoctorPart::Cublaslt, "cublaslt", "12.9.1"),
        ];
        check_cuda_versions(&mut checks);
        assert_eq!(checks[1].status, CheckStatus::Limited);
        assert_eq!(checks[1].found, "13.0, but the driver is for CUDA 12.8");
        assert_eq!(checks[2].status, CheckStatus::Ok, "minor versions go together");
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!(
            [0, 1023, 1024, 3 << 29, 5 << 40].map(format_bytes),
            ["0 B", "1023 B", "1.0 KiB", "1.5 GiB", "5.0 TiB"]
        );
    }
}
