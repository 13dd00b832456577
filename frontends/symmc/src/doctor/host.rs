//! Checks of the machine without its GPUs: the launcher, processors, memory, and the means by which processes share memory.

use std::path::Path;

use symmc_control::machine_limits::{self, ResourceLimit, resource_limit};
use symmc_control::{DetectedLauncher, LauncherChoice, Membership, RunError};

use super::check::{CheckStatus, DoctorCheck, DoctorPart, format_bytes};

const HOST_PART: DoctorPart = DoctorPart::Host;

/// With fewer descriptors than this, even a run of few ranks exhausts them.
const MIN_DESCRIPTORS: u64 = 256;
/// The bytes that NCCL may use in `/dev/shm` for a few ranks. Containers have 64 MiB unless they ask for more.
const MIN_SHM_BYTES: u64 = 128 << 20;

/// The name of the check of the cache.
const CACHE_CHECK: &str = "kernel cache";

pub(super) fn checks() -> Vec<DoctorCheck> {
    vec![
        launcher_check(Membership::detect(LauncherChoice::Auto)),
        processor_check(),
        memory_check(),
        shared_memory_check(machine_limits::try_shared_memory(), resource_limit(ResourceLimit::FileSize)),
        dev_shm_check(machine_limits::file_system_space("/dev/shm")),
        handle_passing_check(machine_limits::try_passing_descriptors()),
        descriptor_check(resource_limit(ResourceLimit::Descriptors)),
        locked_memory_check(resource_limit(ResourceLimit::LockedMemory)),
        cache(),
    ]
}

fn launcher_check(found: Result<DetectedLauncher, RunError>) -> DoctorCheck {
    const CHECK_NAME: &str = "launcher";
    match found {
        Err(error) => {
            let remedy = "start all ranks with one launcher, or unset the variables that it left";
            HOST_PART.problem(CHECK_NAME, CheckStatus::Limited, error.to_string(), remedy)
        }
        Ok(DetectedLauncher { membership: Some(membership), launcher, .. }) => {
            let who = launcher.unwrap_or("the environment");
            HOST_PART.ok(
                CHECK_NAME,
                format!("{who} says that this process is rank {} of {}", membership.rank, membership.ranks),
            )
        }
        Ok(DetectedLauncher { note: Some(note), .. }) => HOST_PART.ok(CHECK_NAME, format!("none ({note})")),
        Ok(_) => HOST_PART.ok(CHECK_NAME, "none: a run starts its ranks itself"),
    }
}

fn processor_check() -> DoctorCheck {
    const CHECK_NAME: &str = "processors";
    match std::thread::available_parallelism() {
        Ok(n) if n.get() == 1 => {
            let remedy = "host ranks take turns on one processor; give the process more (taskset, cgroups)";
            HOST_PART.problem(CHECK_NAME, CheckStatus::Limited, "1 for this process", remedy)
        }
        Ok(n) => HOST_PART.ok(CHECK_NAME, format!("{n} for this process")),
        Err(error) => HOST_PART.problem(CHECK_NAME, CheckStatus::Unknown, error.to_string(), "mount /proc"),
    }
}

fn memory_check() -> DoctorCheck {
    const CHECK_NAME: &str = "memory";
    let Some(room) = machine_limits::machine_memory() else {
        return HOST_PART.problem(
            CHECK_NAME,
            CheckStatus::Unknown,
            "the system does not report it",
            "mount /proc",
        );
    };
    let limit_text = |subject: &str, n: Option<u64>| {
        n.map_or(String::new(), |n| format!(", {subject} {}", format_bytes(n)))
    };
    let mut finding = format!("{} of {} available", format_bytes(room.available), format_bytes(room.total));
    finding += &limit_text("the control group is limited to", room.group);
    match resource_limit(ResourceLimit::Addresses) {
        None => HOST_PART.ok(CHECK_NAME, finding),
        most => {
            finding += &limit_text("addresses are limited to", most);
            let remedy =
                "raise the limit (ulimit -v): mappings of GPUs and files need more addresses than memory";
            HOST_PART.problem(CHECK_NAME, CheckStatus::Limited, finding, remedy)
        }
    }
}

fn shared_memory_check(tried: Result<(), RunError>, most: Option<u64>) -> DoctorCheck {
    const CHECK_NAME: &str = "shared memory";
    match (tried, most) {
        (Err(error), _) => {
            let remedy =
                "allow memfd_create (sysctl vm.memfd_noexec below 2, and no seccomp filter against it)";
            HOST_PART.problem(CHECK_NAME, CheckStatus::Missing, error.to_string(), remedy)
        }
        (Ok(()), Some(limit)) => {
            let finding = format!("segments of up to {}, the largest file size", format_bytes(limit));
            HOST_PART.problem(CHECK_NAME, CheckStatus::Limited, finding, "raise the limit (ulimit -f)")
        }
        (Ok(()), None) => HOST_PART.ok(CHECK_NAME, "anonymous segments (memfd), limited by memory only"),
    }
}

fn dev_shm_check(space: Option<[u64; 2]>) -> DoctorCheck {
    const CHECK_NAME: &str = "/dev/shm";
    let remedy = "NCCL puts buffers there: give the container more (docker run --shm-size=1g); symmc itself does not use it";
    match space {
        None => HOST_PART.problem(CHECK_NAME, CheckStatus::Missing, "it does not exist", remedy),
        Some([total, free]) => {
            let finding = format!("{} of {} free", format_bytes(free), format_bytes(total));
            if free < MIN_SHM_BYTES {
                HOST_PART.problem(CHECK_NAME, CheckStatus::Limited, finding, remedy)
            } else {
                HOST_PART.ok(CHECK_NAME, finding)
            }
        }
    }
}

fn handle_passing_check(tried: Result<(), RunError>) -> DoctorCheck {
    const CHECK_NAME: &str = "handle passing";
    match tried {
        Ok(()) => {
            HOST_PART.ok(CHECK_NAME, "descriptors of memory can be passed over Unix sockets (SCM_RIGHTS)")
        }
        Err(error) => {
            let remedy =
                "allow Unix sockets and their ancillary data (seccomp, AppArmor, SELinux): ranks need them";
            HOST_PART.problem(CHECK_NAME, CheckStatus::Missing, error.to_string(), remedy)
        }
    }
}

fn descriptor_check(most: Option<u64>) -> DoctorCheck {
    const CHECK_NAME: &str = "descriptors";
    match most {
        None => HOST_PART.ok(CHECK_NAME, "no limit"),
        Some(n) if n < MIN_DESCRIPTORS => {
            let remedy =
                "raise the limit (ulimit -n 1024): each rank opens several for each of its peers and files";
            HOST_PART.problem(CHECK_NAME, CheckStatus::Limited, format!("{n} may be open"), remedy)
        }
        Some(n) => HOST_PART.ok(CHECK_NAME, format!("{n} may be open")),
    }
}

fn locked_memory_check(most: Option<u64>) -> DoctorCheck {
    let finding = match most {
        None => "no limit".to_string(),
        Some(n) => {
            format!("{}; GPUs of one host need none, NCCL over InfiniBand needs no limit", format_bytes(n))
        }
    };
    HOST_PART.ok("locked memory", finding)
}

#[cfg(feature = "cuda")]
fn cache() -> DoctorCheck {
    let folder = symmc_cuda::report::libraries::cache_folder();
    match symmc_cuda::report::libraries::cache_refusal() {
        Some(refusal) => untrusted_cache_check(folder.as_deref(), &refusal.found, &refusal.remedy),
        None => cache_folder_check(folder.as_deref()),
    }
}

#[cfg(not(feature = "cuda"))]
fn cache() -> DoctorCheck {
    HOST_PART.ok("kernel cache", "this build compiles no kernels")
}

/// A cache folder that is not used because another user can change its content.
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
fn untrusted_cache_check(folder: Option<&Path>, found: &str, remedy: &str) -> DoctorCheck {
    let finding = format!("not used: {found}; kernels are compiled and products measured again in every run");
    HOST_PART
        .problem(
            CACHE_CHECK,
            CheckStatus::Limited,
            finding,
            format!("{remedy}, or name another folder (XDG_CACHE_HOME)"),
        )
        .with_path(folder)
}

/// Checks that the cache folder can be written or created.
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
fn cache_folder_check(folder: Option<&Path>) -> DoctorCheck {
    const CHECK_NAME: &str = CACHE_CHECK;
    let lost = "kernels are compiled and products measured again in every run; name a folder that can be written \
                (XDG_CACHE_HOME)";
    let Some(folder) = folder else {
        return HOST_PART.problem(
            CHECK_NAME,
            CheckStatus::Missing,
            "the environment names no folder for it",
            lost,
        );
    };
    // A dangling link exists, but is not a folder.
    let nearest = folder.ancestors().find(|f| f.symlink_metadata().is_ok());
    if nearest.is_some_and(|f| f.is_dir() && machine_limits::is_writable(f)) {
        HOST_PART.ok(CHECK_NAME, folder.display().to_string()).with_path(Some(folder))
    } else {
        let finding = format!("{} cannot be written", folder.display());
        HOST_PART.problem(CHECK_NAME, CheckStatus::Missing, finding, lost).with_path(Some(folder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_short_is_said_with_a_remedy() {
        let refused = || RunError::system("allocating memory", "Operation not permitted");
        let folder = tempfile::tempdir().unwrap();
        let dangling = folder.path().join("symmc");
        std::os::unix::fs::symlink("/nope/nope", &dangling).unwrap();
        for (check, status) in [
            (shared_memory_check(Err(refused()), None), CheckStatus::Missing),
            (shared_memory_check(Ok(()), Some(1 << 20)), CheckStatus::Limited),
            (dev_shm_check(None), CheckStatus::Missing),
            (dev_shm_check(Some([64 << 20; 2])), CheckStatus::Limited),
            (handle_passing_check(Err(refused())), CheckStatus::Missing),
            (descriptor_check(Some(64)), CheckStatus::Limited),
            (cache_folder_check(None), CheckStatus::Missing),
            (cache_folder_check(Some(Path::new("/dev/null/symmc"))), CheckStatus::Missing),
            (cache_folder_check(Some(&dangling)), CheckStatus::Missing),
            (
                untrusted_cache_check(
                    Some(Path::new("/a")),
                    "others can write /a (mode 0777)",
                    "chmod go-w /a",
                ),
                CheckStatus::Limited,
            ),
            (launcher_check(Err(RunError::Invalid("RANK is set".into()))), CheckStatus::Limited),
        ] {
            assert_eq!(check.status, status, "{check:?}");
            assert!(check.remedy.is_some(), "{check:?}");
        }
    }

    #[test]
    fn what_is_there_is_said_without() {
        let membership = Membership { rank: 1, ranks: 4, run: "RANK/x".into() };
        let detected =
            DetectedLauncher { membership: Some(membership), launcher: Some("torchrun"), note: None };
        let check = launcher_check(Ok(detected));
        assert_eq!(check.found, "torchrun says that this process is rank 1 of 4");
        let folder = tempfile::tempdir().unwrap();
        let checks = [
            check,
            launcher_check(Ok(DetectedLauncher::default())),
            shared_memory_check(Ok(()), None),
            dev_shm_check(Some([8 << 30; 2])),
            handle_passing_check(Ok(())),
            descriptor_check(None),
            locked_memory_check(Some(8 << 20)),
            cache_folder_check(Some(&folder.path().join("a/b"))),
        ];
        assert!(checks.iter().all(|c| c.status == CheckStatus::Ok && c.remedy.is_none()), "{checks:?}");
        assert!(!folder.path().join("a").exists(), "nothing is made");
    }
}
