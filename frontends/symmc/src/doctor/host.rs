//! The machine without its GPUs: who starts ranks, processors, memory, and what processes share and pass to each other.

use std::path::Path;

use symmc_control::facts::{self, Limited, limit};
use symmc_control::{Found, Launch, Membership, RunError};

use super::check::{Check, Part, Status, bytes};

const HOST: Part = Part::Host;

/// Below so many descriptors a run of few ranks ends for the lack of them.
const DESCRIPTORS: u64 = 256;
/// What NCCL may take of `/dev/shm` for a few ranks; containers have 64 MiB of it unless they ask for more.
const SHM: u64 = 128 << 20;

/// The name of the check of the cache.
const CACHE: &str = "kernel cache";

pub(super) fn checks() -> Vec<Check> {
    vec![
        launcher(Membership::find(Launch::Auto)),
        processors(),
        memory(),
        shared_memory(facts::try_shared_memory(), limit(Limited::FileSize)),
        dev_shm(facts::space("/dev/shm")),
        passing(facts::try_passing()),
        descriptors(limit(Limited::Descriptors)),
        locked(limit(Limited::LockedMemory)),
        cache(),
    ]
}

fn launcher(found: Result<Found, RunError>) -> Check {
    const NAME: &str = "launcher";
    match found {
        Err(error) => {
            let remedy = "start all ranks with one launcher, or unset the variables that it left";
            HOST.short(NAME, Status::Limited, error.to_string(), remedy)
        }
        Ok(Found { place: Some(place), launcher, .. }) => {
            let who = launcher.unwrap_or("the environment");
            HOST.ok(NAME, format!("{who} says that this process is rank {} of {}", place.rank, place.ranks))
        }
        Ok(Found { note: Some(note), .. }) => HOST.ok(NAME, format!("none ({note})")),
        Ok(_) => HOST.ok(NAME, "none: a run starts its ranks itself"),
    }
}

fn processors() -> Check {
    const NAME: &str = "processors";
    match std::thread::available_parallelism() {
        Ok(n) if n.get() == 1 => {
            let remedy = "host ranks take turns on one processor; give the process more (taskset, cgroups)";
            HOST.short(NAME, Status::Limited, "1 for this process", remedy)
        }
        Ok(n) => HOST.ok(NAME, format!("{n} for this process")),
        Err(error) => HOST.short(NAME, Status::Unknown, error.to_string(), "mount /proc"),
    }
}

fn memory() -> Check {
    const NAME: &str = "memory";
    let Some(room) = facts::room() else {
        return HOST.short(NAME, Status::Unknown, "the system does not tell", "mount /proc");
    };
    let of = |what: &str, n: Option<u64>| n.map_or(String::new(), |n| format!(", {what} {}", bytes(n)));
    let mut found = format!("{} of {} available", bytes(room.available), bytes(room.total));
    found += &of("this control group may take", room.group);
    match limit(Limited::Addresses) {
        None => HOST.ok(NAME, found),
        most => {
            found += &of("addresses are limited to", most);
            let remedy =
                "raise the limit (ulimit -v): GPUs and files are mapped beyond what memory they take";
            HOST.short(NAME, Status::Limited, found, remedy)
        }
    }
}

fn shared_memory(tried: Result<(), RunError>, most: Option<u64>) -> Check {
    const NAME: &str = "shared memory";
    match (tried, most) {
        (Err(error), _) => {
            let remedy =
                "allow memfd_create (sysctl vm.memfd_noexec below 2, and no seccomp filter against it)";
            HOST.short(NAME, Status::Missing, error.to_string(), remedy)
        }
        (Ok(()), Some(most)) => {
            let found = format!("segments of up to {}, which is the largest file", bytes(most));
            HOST.short(NAME, Status::Limited, found, "raise the limit (ulimit -f)")
        }
        (Ok(()), None) => HOST.ok(NAME, "anonymous segments (memfd) that only memory limits"),
    }
}

fn dev_shm(space: Option<[u64; 2]>) -> Check {
    const NAME: &str = "/dev/shm";
    let remedy = "NCCL puts buffers there: give the container more (docker run --shm-size=1g); symmc itself uses none of it";
    match space {
        None => HOST.short(NAME, Status::Missing, "there is none", remedy),
        Some([all, free]) => {
            let found = format!("{} of {} free", bytes(free), bytes(all));
            match free < SHM {
                true => HOST.short(NAME, Status::Limited, found, remedy),
                false => HOST.ok(NAME, found),
            }
        }
    }
}

fn passing(tried: Result<(), RunError>) -> Check {
    const NAME: &str = "handle passing";
    match tried {
        Ok(()) => HOST.ok(NAME, "descriptors of memory pass over Unix sockets (SCM_RIGHTS)"),
        Err(error) => {
            let remedy = "allow Unix sockets and their ancillary data (seccomp, AppArmor, SELinux); ranks have no other way";
            HOST.short(NAME, Status::Missing, error.to_string(), remedy)
        }
    }
}

fn descriptors(most: Option<u64>) -> Check {
    const NAME: &str = "descriptors";
    match most {
        None => HOST.ok(NAME, "no limit"),
        Some(n) if n < DESCRIPTORS => {
            let remedy =
                "raise the limit (ulimit -n 1024): each rank opens some for each of its peers and files";
            HOST.short(NAME, Status::Limited, format!("{n} may be open"), remedy)
        }
        Some(n) => HOST.ok(NAME, format!("{n} may be open")),
    }
}

fn locked(most: Option<u64>) -> Check {
    let found = match most {
        None => "no limit".to_string(),
        Some(n) => format!("{}; GPUs of one host need none, NCCL over InfiniBand no limit", bytes(n)),
    };
    HOST.ok("locked memory", found)
}

#[cfg(feature = "cuda")]
fn cache() -> Check {
    let folder = symmc_cuda::device::libraries::cache_folder();
    match symmc_cuda::device::libraries::cache_refusal() {
        Some(refusal) => untrusted_cache(folder.as_deref(), &refusal.found, &refusal.remedy),
        None => cache_at(folder.as_deref()),
    }
}

#[cfg(not(feature = "cuda"))]
fn cache() -> Check {
    HOST.ok("kernel cache", "this build compiles no kernels")
}

/// A folder that is not used because another user can change what is in it.
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
fn untrusted_cache(folder: Option<&Path>, found: &str, remedy: &str) -> Check {
    let found = format!("not used: {found}; kernels are compiled and products measured again in every run");
    HOST.short(CACHE, Status::Limited, found, format!("{remedy}, or name another folder (XDG_CACHE_HOME)"))
        .at(folder)
}

/// Whether the folder, or the nearest one above it that exists, can be written.
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
fn cache_at(folder: Option<&Path>) -> Check {
    const NAME: &str = CACHE;
    let lost = "kernels are compiled and products measured again in every run; name a folder that can be written \
                (XDG_CACHE_HOME)";
    let Some(folder) = folder else {
        return HOST.short(NAME, Status::Missing, "the environment names no folder for it", lost);
    };
    // A link that leads nowhere is there, and no folder.
    let nearest = folder.ancestors().find(|f| f.symlink_metadata().is_ok());
    match nearest.is_some_and(|f| f.is_dir() && facts::is_writable(f)) {
        true => HOST.ok(NAME, folder.display().to_string()).at(Some(folder)),
        false => {
            let found = format!("{} cannot be written", folder.display());
            HOST.short(NAME, Status::Missing, found, lost).at(Some(folder))
        }
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
            (shared_memory(Err(refused()), None), Status::Missing),
            (shared_memory(Ok(()), Some(1 << 20)), Status::Limited),
            (dev_shm(None), Status::Missing),
            (dev_shm(Some([64 << 20; 2])), Status::Limited),
            (passing(Err(refused())), Status::Missing),
            (descriptors(Some(64)), Status::Limited),
            (cache_at(None), Status::Missing),
            (cache_at(Some(Path::new("/dev/null/symmc"))), Status::Missing),
            (cache_at(Some(&dangling)), Status::Missing),
            (
                untrusted_cache(Some(Path::new("/a")), "others can write /a (mode 0777)", "chmod go-w /a"),
                Status::Limited,
            ),
            (launcher(Err(RunError::Invalid("RANK is set".into()))), Status::Limited),
        ] {
            assert_eq!(check.status, status, "{check:?}");
            assert!(check.remedy.is_some(), "{check:?}");
        }
    }

    #[test]
    fn what_is_there_is_said_without() {
        let place = Membership { rank: 1, ranks: 4, run: "RANK/x".into() };
        let found = Found { place: Some(place), launcher: Some("torchrun"), note: None };
        let check = launcher(Ok(found));
        assert_eq!(check.found, "torchrun says that this process is rank 1 of 4");
        let folder = tempfile::tempdir().unwrap();
        let all = [
            check,
            launcher(Ok(Found::default())),
            shared_memory(Ok(()), None),
            dev_shm(Some([8 << 30; 2])),
            passing(Ok(())),
            descriptors(None),
            locked(Some(8 << 20)),
            cache_at(Some(&folder.path().join("a/b"))),
        ];
        assert!(all.iter().all(|c| c.status == Status::Ok && c.remedy.is_none()), "{all:?}");
        assert!(!folder.path().join("a").exists(), "nothing is made");
    }
}
