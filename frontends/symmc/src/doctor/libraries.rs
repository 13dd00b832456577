//! Checks of the libraries through which GPUs are used, and of their versions.

use symmc_cuda::report::libraries::{self, FoundLibrary, FoundNccl, UnusableLibrary};

use super::check::{CheckStatus, DoctorCheck, DoctorPart};

/// The checks of a library's part.
pub(super) fn checks(part: DoctorPart) -> Vec<DoctorCheck> {
    match part {
        DoctorPart::Nvrtc => vec![library_check(part, libraries::nvrtc(), CheckStatus::Missing)],
        DoctorPart::Cublaslt => vec![library_check(part, libraries::cublaslt(), CheckStatus::Missing)],
        DoctorPart::Cudnn => vec![library_check(part, libraries::cudnn(), CheckStatus::Limited)],
        DoctorPart::Nccl => nccl_checks(libraries::nccl()),
        DoctorPart::Host | DoctorPart::Gpus => Vec::new(),
    }
}

/// Checks a library. `without` is the status if the library is missing.
fn library_check(
    part: DoctorPart,
    found: Result<FoundLibrary, UnusableLibrary>,
    without: CheckStatus,
) -> DoctorCheck {
    match found {
        Ok(found) => version_check(part, &found),
        Err(UnusableLibrary { found, remedy }) => {
            let finding = match without {
                CheckStatus::Limited => format!("{found}; symmc's own kernels compute attention"),
                _ => found,
            };
            part.problem(part.name(), without, finding, remedy)
        }
    }
}

fn version_check(part: DoctorPart, found: &FoundLibrary) -> DoctorCheck {
    let location = found.file.as_ref().map_or(String::new(), |p| format!(", {}", p.display()));
    let check = part.ok(part.name(), format!("{}{location}", found.version));
    check.with_version(found.version.clone()).with_path(found.file.as_deref())
}

fn nccl_checks(found: Result<FoundNccl, UnusableLibrary>) -> Vec<DoctorCheck> {
    let [library_name, waits_name] = ["nccl", "nccl dependent launch"];
    let doctor_part = DoctorPart::Nccl;
    let found_nccl = match found {
        Ok(nccl) => nccl,
        Err(UnusableLibrary { found, remedy }) => {
            let finding =
                format!("{found}; plain collectives, and those in windows or by copy engines, need it");
            let none = doctor_part.ok(waits_name, "not applicable, as there is no NCCL");
            return vec![doctor_part.problem(library_name, CheckStatus::Limited, finding, remedy), none];
        }
    };
    let mut library = version_check(doctor_part, &found_nccl.library);
    if !found_nccl.copy_engines {
        library.status = CheckStatus::Limited;
        library.found += "; without collectives by copy engines";
        library.remedy = Some("install NCCL 2.28 or newer".into());
    }
    let version = &found_nccl.library.version;
    let waits = if found_nccl.skips_pdl_wait {
        format!(
            "{version} launches kernels on windows by programmatic dependent launch, and they do not wait for the kernel \
             before them (2.28.0 to 2.30.6); plans are not affected, as a store is placed before each such call"
        )
    } else {
        format!("{version} is not among the versions whose kernels on windows do not wait (2.28.0 to 2.30.6)")
    };
    vec![library, doctor_part.ok(waits_name, waits)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(version: &str) -> FoundLibrary {
        FoundLibrary { version: version.into(), file: Some("/opt/lib/libx.so".into()) }
    }

    #[test]
    fn what_a_library_is_stands_in_its_line() {
        let check = library_check(DoctorPart::Cudnn, Ok(found("9.19.0")), CheckStatus::Limited);
        assert_eq!((check.name.as_str(), check.found.as_str()), ("cudnn", "9.19.0, /opt/lib/libx.so"));
        assert_eq!(
            (check.version.as_deref(), check.path.as_deref()),
            (Some("9.19.0"), Some("/opt/lib/libx.so"))
        );
        let none = || Err(UnusableLibrary { found: "none".into(), remedy: "install it".into() });
        assert_eq!(
            library_check(DoctorPart::Nvrtc, none(), CheckStatus::Missing).status,
            CheckStatus::Missing
        );
        let check = library_check(DoctorPart::Cudnn, none(), CheckStatus::Limited);
        assert_eq!(check.status, CheckStatus::Limited);
        assert_eq!(check.remedy.as_deref(), Some("install it"));
    }

    #[test]
    fn versions_of_nccl_that_skip_the_wait_of_dependent_launches_are_known() {
        let checks_of = |version: &str, copy_engines, skips_pdl_wait| {
            let library = found(version);
            let [library, waits] = <[DoctorCheck; 2]>::try_from(nccl_checks(Ok(FoundNccl {
                library,
                copy_engines,
                skips_pdl_wait,
            })))
            .unwrap();
            (library.status, waits.status, waits.found)
        };
        let (library, waits, text) = checks_of("2.29.7", true, true);
        assert_eq!((library, waits), (CheckStatus::Ok, CheckStatus::Ok), "plans are not affected");
        assert!(text.contains("a store is placed before"), "{text}");
        let (library, _, text) = checks_of("2.27.7", false, false);
        assert_eq!(library, CheckStatus::Limited);
        assert!(text.contains("not among"), "{text}");
        let none = nccl_checks(Err(UnusableLibrary { found: "none".into(), remedy: "install it".into() }));
        assert_eq!(none.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), DoctorPart::Nccl.check_names());
    }
}
