//! The libraries that GPUs are used through, and what is known of their versions.

use symmc_cuda::device::libraries::{self, Found, FoundNccl, Unusable};

use super::check::{Check, Part, Status};

/// The checks of a library's part.
pub(super) fn checks(part: Part) -> Vec<Check> {
    match part {
        Part::Nvrtc => vec![library(part, libraries::nvrtc(), Status::Missing)],
        Part::Cublaslt => vec![library(part, libraries::cublaslt(), Status::Missing)],
        Part::Cudnn => vec![library(part, libraries::cudnn(), Status::Limited)],
        Part::Nccl => nccl(libraries::nccl()),
        Part::Host | Part::Gpus => Vec::new(),
    }
}

/// A library; `without` is how symmc stands that has none.
fn library(part: Part, found: Result<Found, Unusable>, without: Status) -> Check {
    match found {
        Ok(found) => version(part, &found),
        Err(Unusable { found, remedy }) => {
            let found = match without {
                Status::Limited => format!("{found}; symmc's own kernels compute attention"),
                _ => found,
            };
            part.short(part.name(), without, found, remedy)
        }
    }
}

fn version(part: Part, found: &Found) -> Check {
    let at = found.file.as_ref().map_or(String::new(), |p| format!(", {}", p.display()));
    let check = part.ok(part.name(), format!("{}{at}", found.version));
    check.of_version(found.version.clone()).at(found.file.as_deref())
}

fn nccl(found: Result<FoundNccl, Unusable>) -> Vec<Check> {
    let [library_name, waits_name] = ["nccl", "nccl dependent launch"];
    let part = Part::Nccl;
    let found = match found {
        Ok(found) => found,
        Err(Unusable { found, remedy }) => {
            let found = format!("{found}; what runs as plain, in windows or by copy engines needs it");
            let none = part.ok(waits_name, "no NCCL, so not met");
            return vec![part.short(library_name, Status::Limited, found, remedy), none];
        }
    };
    let mut library = version(part, &found.library);
    if !found.copy_engines {
        library.status = Status::Limited;
        library.found += "; without collectives by copy engines";
        library.remedy = Some("install NCCL 2.28 or newer".into());
    }
    let version = &found.library.version;
    let waits = match found.skips_pdl_wait {
        true => format!(
            "{version} launches kernels on windows by programmatic dependent launch, and they do not wait for the kernel in \
             front of them (2.28.0 to 2.30.6); plans do not meet it, as a store stands in front of each such call"
        ),
        false => format!(
            "{version} is not among the versions whose kernels on windows do not wait (2.28.0 to 2.30.6)"
        ),
    };
    vec![library, part.ok(waits_name, waits)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(version: &str) -> Found {
        Found { version: version.into(), file: Some("/opt/lib/libx.so".into()) }
    }

    #[test]
    fn what_a_library_is_stands_in_its_line() {
        let check = library(Part::Cudnn, Ok(found("9.19.0")), Status::Limited);
        assert_eq!((check.name.as_str(), check.found.as_str()), ("cudnn", "9.19.0, /opt/lib/libx.so"));
        assert_eq!(
            (check.version.as_deref(), check.path.as_deref()),
            (Some("9.19.0"), Some("/opt/lib/libx.so"))
        );
        let none = || Err(Unusable { found: "none".into(), remedy: "install it".into() });
        assert_eq!(library(Part::Nvrtc, none(), Status::Missing).status, Status::Missing);
        let check = library(Part::Cudnn, none(), Status::Limited);
        assert_eq!(check.status, Status::Limited);
        assert_eq!(check.remedy.as_deref(), Some("install it"));
    }

    #[test]
    fn versions_of_nccl_that_skip_the_wait_of_dependent_launches_are_known() {
        let of = |version: &str, copy_engines, skips_pdl_wait| {
            let library = found(version);
            let [library, waits] =
                <[Check; 2]>::try_from(nccl(Ok(FoundNccl { library, copy_engines, skips_pdl_wait })))
                    .unwrap();
            (library.status, waits.status, waits.found)
        };
        let (library, waits, text) = of("2.29.7", true, true);
        assert_eq!((library, waits), (Status::Ok, Status::Ok), "plans do not meet it");
        assert!(text.contains("a store stands in front"), "{text}");
        let (library, _, text) = of("2.27.7", false, false);
        assert_eq!(library, Status::Limited);
        assert!(text.contains("not among"), "{text}");
        let none = nccl(Err(Unusable { found: "none".into(), remedy: "install it".into() }));
        assert_eq!(none.iter().map(|c| c.name.as_str()).collect::<Vec<_>>(), Part::Nccl.names());
    }
}
