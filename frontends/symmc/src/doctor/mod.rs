//! Examines what this machine supports and what it lacks. Each thing has one [`DoctorCheck`], with a remedy if there is a problem.
//!
//! Nothing is changed: no context is created on a GPU, no communicator, no multicast object. A missing thing is not an error.
//! Drivers and libraries have a timeout to answer. With a [`Prober`], a separate process examines each of them, so that a crash
//! becomes a line of the report.
//!
//! The report is a wire form: the names of checks and parts, and the meaning of a status, change only with [`VERSION`].

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

/// The version of the report's format.
pub const VERSION: u32 = 1;

/// The report on a machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Diagnosis {
    /// The version of the report's format: [`VERSION`].
    pub version: u32,
    /// The version of symmc.
    pub symmc: String,
    /// All checks, in the order of [`DoctorPart::ALL`] and of [`DoctorPart::check_names`].
    pub checks: Vec<DoctorCheck>,
}

/// The options of [`doctor()`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DoctorConfig {
    /// The longest time that a driver or a library may take to answer.
    pub timeout: Duration,
    /// The command that examines drivers and libraries. With `None` threads of this process examine them, and a library that
    /// crashes ends this process.
    pub prober: Option<Prober>,
}

impl Default for DoctorConfig {
    /// No prober, and a timeout of 30 seconds: a driver that starts for the first time takes seconds for each GPU.
    fn default() -> Self {
        DoctorConfig { timeout: Duration::from_secs(30), prober: None }
    }
}

impl DoctorConfig {
    /// Sets [`timeout`](Self::timeout).
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets [`prober`](Self::prober).
    #[must_use]
    pub fn with_prober(mut self, prober: Prober) -> Self {
        self.prober = Some(prober);
        self
    }
}

/// Examines what this machine supports and what it lacks.
pub fn doctor(config: &DoctorConfig) -> Diagnosis {
    let mut checks = probe::check_all_parts(config.timeout, config.prober.as_ref());
    check_cuda_versions(&mut checks);
    Diagnosis { version: VERSION, symmc: env!("CARGO_PKG_VERSION").into(), checks }
}

/// Compares the versions of CUDA: the driver does not load code from a library of a later major version.
fn check_cuda_versions(checks: &mut [DoctorCheck]) {
    let major = |version: &str| version.split('.').next()?.parse::<u32>().ok();
    let driver = checks.iter().find(|c| c.name == "driver").and_then(|c| c.version.clone());
    let Some((driver, supported)) = driver.as_deref().and_then(|v| Some((v, major(v)?))) else { return };
    for check in checks.iter_mut().filter(|c| matches!(c.part, DoctorPart::Nvrtc | DoctorPart::Cublaslt)) {
        let Some(needed) = check.version.as_deref().and_then(major).filter(|&needed| needed > supported)
        else {
            continue;
        };
        check.status = CheckStatus::Limited;
        check.found = format!("{}, but the driver is for CUDA {driver}", check.found);
        check.remedy =
            Some(format!("install a driver for CUDA {needed}, or the library of CUDA {supported}"));
    }
}

#[cfg(test)]
mod tests {
    use super::check::format_bytes;
    use super::*;

    /// Each check that [`DoctorPart`] names exists once and in order. Each has a status, and a remedy if there is a problem.
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
        let diagnosis = doctor(&DoctorConfig::default());
        well_formed(&diagnosis.checks);
        let text = serde_json::to_string(&diagnosis).unwrap();
        assert_eq!(serde_json::from_str::<Diagnosis>(&text).unwrap(), diagnosis);
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
        let check = |part: DoctorPart, name, version: &str| part.ok(name, version).with_version(version);
        let mut checks = [
            check(DoctorPart::Gpus, "driver", "12.8"),
            check(DoctorPart::Nvrtc, "nvrtc", "13.0"),
            check(DoctorPart::Cublaslt, "cublaslt", "12.9.1"),
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
