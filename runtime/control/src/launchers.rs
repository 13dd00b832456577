//! Detection of other launchers: the rank of this process and the number of ranks, as a launcher passes them.
//!
//! A launcher is a row of [`FAMILIES`]: the variables in which it passes the rank, the number of ranks, the
//! number of ranks on this host, and what distinguishes one run from another. Runs of launchers without such
//! a name (Hydra, which MPICH and Intel MPI use) are distinguished by the process that started all ranks.
//!
//! Variables of several launchers may be set (`torchrun` within a Slurm step). Then a launcher with one rank
//! yields to one with more, and launchers that agree on the rank and the number of ranks do not conflict.
//! Anything else is refused with an error that names both.

use std::fmt;

use crate::error::{Result, RunError};
use crate::membership::Membership;

/// The launcher that assigns this process its rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LauncherChoice {
    /// The launcher that the environment indicates.
    #[default]
    Auto,
    /// No other launcher: this process starts all ranks, whatever the environment contains.
    Local,
    Torchrun,
    /// An MPI launcher: Open MPI, MPICH, Intel MPI or MVAPICH.
    Mpi,
    Slurm,
}

impl fmt::Display for LauncherChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LauncherChoice::Auto => "auto",
            LauncherChoice::Local => "local",
            LauncherChoice::Torchrun => "torchrun",
            LauncherChoice::Mpi => "mpi",
            LauncherChoice::Slurm => "slurm",
        })
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DetectedLauncher {
    /// Its rank among the ranks that a launcher started; `None` if this process starts the ranks itself.
    pub membership: Option<Membership>,
    /// The display name of the launcher that gave the rank.
    pub launcher: Option<&'static str>,
    /// A message about variables that were found and are ignored.
    pub note: Option<String>,
}

#[derive(Debug)]
struct LauncherFamily {
    name: &'static str,
    launch: LauncherChoice,
    rank: &'static str,
    /// The variables of the number of ranks: the first that is set counts.
    size: &'static [&'static str],
    /// The variable of the number of ranks on this host.
    local: Option<&'static str>,
    /// The variables of the number of hosts: the first that is set counts.
    hosts: &'static [&'static str],
    /// Variables that must be set if this launcher started the process.
    required_variables: &'static [&'static str],
    /// Variables that identify the run, as far as they are set.
    run: &'static [&'static str],
}

const FAMILIES: [LauncherFamily; 5] = [
    LauncherFamily {
        name: "torchrun",
        launch: LauncherChoice::Torchrun,
        rank: "RANK",
        size: &["WORLD_SIZE"],
        local: Some("LOCAL_WORLD_SIZE"),
        hosts: &[],
        required_variables: &["WORLD_SIZE", "MASTER_PORT"],
        run: &["MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"],
    },
    LauncherFamily {
        name: "Open MPI",
        launch: LauncherChoice::Mpi,
        rank: "OMPI_COMM_WORLD_RANK",
        size: &["OMPI_COMM_WORLD_SIZE"],
        local: Some("OMPI_COMM_WORLD_LOCAL_SIZE"),
        hosts: &[],
        required_variables: &[],
        run: &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_hnp_uri"],
    },
    LauncherFamily {
        name: "MVAPICH",
        launch: LauncherChoice::Mpi,
        rank: "MV2_COMM_WORLD_RANK",
        size: &["MV2_COMM_WORLD_SIZE"],
        local: Some("MV2_COMM_WORLD_LOCAL_SIZE"),
        hosts: &[],
        required_variables: &[],
        run: &["MPISPAWN_ID"],
    },
    LauncherFamily {
        name: "MPI (PMI: MPICH, Intel MPI)",
        launch: LauncherChoice::Mpi,
        rank: "PMI_RANK",
        size: &["PMI_SIZE"],
        local: Some("MPI_LOCALNRANKS"),
        hosts: &[],
        required_variables: &[],
        run: &["PMI_JOBID", "PMI_KVSNAME", "SLURM_JOB_ID", "SLURM_STEP_ID"],
    },
    LauncherFamily {
        name: "Slurm",
        launch: LauncherChoice::Slurm,
        rank: "SLURM_PROCID",
        size: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        local: None,
        hosts: &["SLURM_STEP_NUM_NODES", "SLURM_NNODES"],
        required_variables: &["SLURM_STEP_ID"],
        run: &["SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_CLUSTER_NAME"],
    },
];

/// Step numbers from here on are not steps of srun: the shell of salloc, the batch script, and other steps of
/// Slurm itself.
const SLURM_SHELLS: u64 = 0xffff_fff0;

type VariableLookup<'a> = &'a dyn Fn(&str) -> Option<String>;

impl Membership {
    /// The membership that the environment gives this process: [`detect`](Self::detect) with
    /// [`LauncherChoice::Auto`].
    pub fn from_env() -> Result<Option<Membership>> {
        Ok(Membership::detect(LauncherChoice::Auto)?.membership)
    }

    /// The membership that a launcher gives this process through the environment: torchrun, `mpirun` and
    /// `mpiexec` of Open MPI, MPICH, Intel MPI and MVAPICH, or `srun`. `None` without a launcher, or if it
    /// started only one process. Fails if a variable is missing or not a number, the ranks are on several
    /// hosts, two launchers contradict each other, or the launcher that `launch` names did not start this
    /// process.
    pub fn detect(launch: LauncherChoice) -> Result<DetectedLauncher> {
        detect_launcher(launch, &|name| std::env::var(name).ok(), &|rank| {
            crate::ancestor::starting_process(rank)
        })
    }
}

/// Reads the environment; `starter` names the process that started all ranks, which have this variable.
fn detect_launcher(
    launch: LauncherChoice,
    get: VariableLookup,
    starter: &dyn Fn(&str) -> String,
) -> Result<DetectedLauncher> {
    if launch == LauncherChoice::Local {
        return Ok(DetectedLauncher::default());
    }
    let mut note = None;
    let mut detected: Vec<(&LauncherFamily, u32, u32)> = Vec::new();
    for family in FAMILIES.iter().filter(|f| launch == LauncherChoice::Auto || f.launch == launch) {
        if get(family.rank).is_none() {
            continue;
        }
        if !family.started_this_process(get) {
            let incomplete = format!(
                "{} is set in the environment, but not {}",
                family.rank,
                family.missing_variables(get)
            );
            match launch {
                // The variables that a Slurm allocation sets for its shell need no note.
                LauncherChoice::Auto if family.launch == LauncherChoice::Slurm => {}
                LauncherChoice::Auto => note = Some(format!("{incomplete}: no launcher is assumed")),
                _ => return Err(RunError::Invalid(format!("launcher {launch}: {incomplete}"))),
            }
            continue;
        }
        let (rank, ranks) = family.rank_and_size(get).map_err(RunError::Invalid)?;
        detected.push((family, rank, ranks));
    }
    if launch == LauncherChoice::Auto {
        detected.retain(|f| f.2 > 1);
    }
    let Some(&(family, rank, ranks)) = detected.first() else {
        return match launch {
            LauncherChoice::Auto => Ok(DetectedLauncher { note, ..DetectedLauncher::default() }),
            _ => {
                let names: Vec<&str> =
                    FAMILIES.iter().filter(|f| f.launch == launch).map(|f| f.rank).collect();
                let names = names.join(" nor ");
                Err(RunError::Invalid(format!("launcher {launch}: the environment does not set {names}")))
            }
        };
    };
    let contradicting =
        detected.iter().find(|(_, other_rank, other_ranks)| (*other_rank, *other_ranks) != (rank, ranks));
    if let Some(&(other, other_rank, other_ranks)) = contradicting {
        return Err(RunError::Invalid(format!(
            "two launchers contradict each other: {} says rank {rank} of {ranks} ({}), {} says rank {other_rank} of \
             {other_ranks} ({}); choose the launcher {} or {}, or none",
            family.name, family.rank, other.name, other.rank, family.launch, other.launch
        )));
    }
    family.expect_one_host(ranks, get).map_err(RunError::Invalid)?;
    let run = family.run_identity(get, starter);
    let membership = Some(Membership { rank, ranks, run });
    Ok(DetectedLauncher { membership, launcher: Some(family.name), note: None })
}

impl LauncherFamily {
    /// Whether this launcher started this process as one of its ranks.
    fn started_this_process(&self, get: VariableLookup) -> bool {
        let is_slurm_shell = self.launch == LauncherChoice::Slurm
            && get("SLURM_STEP_ID")
                .and_then(|id| id.trim().parse::<u64>().ok())
                .is_some_and(|id| id >= SLURM_SHELLS);
        // A rank without a number of ranks is left over from another program. With a number of ranks, missing
        // variables are an error.
        let is_torchrun = self.launch == LauncherChoice::Torchrun && get("WORLD_SIZE").is_some();
        !is_slurm_shell && (is_torchrun || self.required_variables.iter().all(|name| get(name).is_some()))
    }

    fn missing_variables(&self, get: VariableLookup) -> String {
        let missing = self.required_variables.iter().find(|name| get(name).is_none());
        missing.map_or_else(|| "a step of srun".into(), |name| name.to_string())
    }

    /// This process's rank, and the number of ranks.
    fn rank_and_size(&self, get: VariableLookup) -> Result<(u32, u32), String> {
        let size = self.size.iter().find(|name| get(name).is_some()).or(self.size.first());
        let size = size.copied().unwrap_or_default();
        let me = self.read_number(self.rank, get)?;
        let ranks = self.read_number(size, get)?;
        if ranks == 0 {
            return Err(format!("{size}: expected at least 1 rank, found 0"));
        }
        if me >= ranks {
            return Err(format!("{}: expected a number below {ranks}, found {me}", self.rank));
        }
        if let Some(name) = self.required_variables.iter().find(|name| get(name).is_none()) {
            return Err(format!("{} is set in the environment, but not {name}", self.rank));
        }
        Ok((me, ranks))
    }

    fn read_number(&self, name: &str, get: VariableLookup) -> Result<u32, String> {
        let text =
            get(name).ok_or_else(|| format!("{} is set in the environment, but not {name}", self.rank))?;
        text.trim().parse().map_err(|_| format!("{name}: expected a number, found {text:?}"))
    }

    fn expect_one_host(&self, ranks: u32, get: VariableLookup) -> Result<(), String> {
        let local_ranks = self.local.and_then(get);
        let hosts = self.hosts.iter().find_map(|name| get(name));
        if local_ranks.is_some_and(|n| n.trim() != ranks.to_string())
            || hosts.is_some_and(|n| n.trim() != "1")
        {
            return Err(format!(
                "{}: the {ranks} ranks are on several hosts: host ranks share memory and must be on one",
                self.name
            ));
        }
        Ok(())
    }

    /// Identifies this run among others of the user.
    fn run_identity(&self, get: VariableLookup, starter: &dyn Fn(&str) -> String) -> String {
        let names: Vec<String> = self.run.iter().map(|name| get(name).unwrap_or_default()).collect();
        let identity = if names.iter().all(String::is_empty) { starter(self.rank) } else { names.join("/") };
        format!("{}/{identity}", self.rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(launch: LauncherChoice, variables: &[(&str, &str)]) -> Result<DetectedLauncher, String> {
        let get = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| value.to_string());
        detect_launcher(launch, &get, &|rank| format!("the starter of {rank}")).map_err(|e| e.to_string())
    }

    /// The rank and the number of ranks.
    fn place(variables: &[(&str, &str)]) -> Option<(u32, u32)> {
        find(LauncherChoice::Auto, variables).unwrap().membership.map(|p| (p.rank, p.ranks))
    }

    fn error(variables: &[(&str, &str)]) -> String {
        find(LauncherChoice::Auto, variables).unwrap_err()
    }

    const TORCH: [(&str, &str); 5] = [
        ("RANK", "2"),
        ("WORLD_SIZE", "4"),
        ("LOCAL_WORLD_SIZE", "4"),
        ("MASTER_ADDR", "a"),
        ("MASTER_PORT", "1"),
    ];
    const OPEN_MPI: [(&str, &str); 4] = [
        ("OMPI_COMM_WORLD_RANK", "0"),
        ("OMPI_COMM_WORLD_SIZE", "2"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ("PMIX_NAMESPACE", "x"),
    ];
    const HYDRA: [(&str, &str); 6] = [
        ("PMI_RANK", "1"),
        ("PMI_SIZE", "3"),
        ("PMI_FD", "7"),
        ("MPI_LOCALRANKID", "1"),
        ("MPI_LOCALNRANKS", "3"),
        ("HYDI_CONTROL_FD", "9"),
    ];
    const STEP: [(&str, &str); 6] = [
        ("SLURM_PROCID", "1"),
        ("SLURM_NTASKS", "3"),
        ("SLURM_STEP_NUM_TASKS", "3"),
        ("SLURM_JOB_ID", "77"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_STEP_NUM_NODES", "1"),
    ];

    #[test]
    fn each_launcher_gives_a_place() {
        assert_eq!(place(&[]), None);
        assert_eq!(place(&TORCH), Some((2, 4)));
        assert_eq!(place(&OPEN_MPI), Some((0, 2)));
        assert_eq!(place(&HYDRA), Some((1, 3)));
        assert_eq!(place(&[("MV2_COMM_WORLD_RANK", "1"), ("MV2_COMM_WORLD_SIZE", "2")]), Some((1, 2)));
        assert_eq!(place(&STEP), Some((1, 3)));
        let runs = [&TORCH[..], &OPEN_MPI, &HYDRA, &STEP];
        let mut runs: Vec<String> =
            runs.map(|v| find(LauncherChoice::Auto, v).unwrap().membership.unwrap().run).to_vec();
        runs.sort();
        runs.dedup();
        assert_eq!(runs.len(), 4, "{runs:?}");
    }

    #[test]
    fn hydra_names_no_run_and_its_ranks_meet_by_who_started_them() {
        let run = |variables: &[(&str, &str)]| {
            find(LauncherChoice::Auto, variables).unwrap().membership.unwrap().run
        };
        assert_eq!(run(&HYDRA), "PMI_RANK/the starter of PMI_RANK");
        let with_id = [&HYDRA[..], &[("PMI_JOBID", "5")]].concat();
        assert_eq!(run(&with_id), "PMI_RANK/5///");
    }

    #[test]
    fn the_shell_of_a_slurm_job_is_no_rank() {
        let batch =
            [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4"), ("SLURM_JOB_ID", "7"), ("SLURM_NNODES", "1")];
        assert_eq!(find(LauncherChoice::Auto, &batch), Ok(DetectedLauncher::default()));
        // salloc with an interactive step, and a batch script as newer versions report it.
        for id in ["4294967290", "4294967291"] {
            let shell = [&batch[..], &[("SLURM_STEP_ID", id), ("SLURM_STEP_NUM_TASKS", "4")]].concat();
            assert_eq!(find(LauncherChoice::Auto, &shell), Ok(DetectedLauncher::default()));
        }
        // srun --pty bash.
        let pty = [&batch[..], &[("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "1")]].concat();
        assert_eq!(find(LauncherChoice::Auto, &pty), Ok(DetectedLauncher::default()));
        assert!(find(LauncherChoice::Slurm, &batch).unwrap_err().contains("SLURM_STEP_ID"));
        // A step on one host of an allocation of two.
        let environment = [&STEP[..], &[("SLURM_NNODES", "2")]].concat();
        assert_eq!(place(&environment), Some((1, 3)));
    }

    #[test]
    fn a_lone_rank_is_nobodys_and_noted() {
        let detected = find(LauncherChoice::Auto, &[("RANK", "1")]).unwrap();
        assert_eq!(detected.membership, None);
        assert!(detected.note.is_some_and(|n| n.contains("RANK") && n.contains("WORLD_SIZE")));
        assert_eq!(find(LauncherChoice::Auto, &[("WORLD_SIZE", "4")]), Ok(DetectedLauncher::default()));
        assert_eq!(find(LauncherChoice::Local, &TORCH), Ok(DetectedLauncher::default()));
        assert!(find(LauncherChoice::Torchrun, &[("RANK", "1")]).unwrap_err().contains("WORLD_SIZE"));
        assert!(find(LauncherChoice::Mpi, &TORCH).unwrap_err().contains("PMI_RANK"));
        // If another launcher started the process, incomplete variables of one need no note.
        let environment = [&[("RANK", "1")], &HYDRA[..]].concat();
        let detected = find(LauncherChoice::Auto, &environment).unwrap();
        assert_eq!((detected.membership.map(|p| p.rank), detected.note), (Some(1), None));
    }

    #[test]
    fn launchers_within_launchers() {
        // torchrun within a step of one task, and mpirun of one process.
        let slurm = [("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "1"), ("SLURM_STEP_ID", "3")];
        assert_eq!(place(&[&slurm[..], &TORCH].concat()), Some((2, 4)));
        let single = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1")];
        assert_eq!(place(&single), None);
        let membership = find(LauncherChoice::Mpi, &single).unwrap().membership.unwrap();
        assert_eq!((membership.rank, membership.ranks), (0, 1));
        // srun with PMI sets both families to the same rank.
        let pmi = [&STEP[..], &[("PMI_RANK", "1"), ("PMI_SIZE", "3")]].concat();
        assert_eq!(place(&pmi), Some((1, 3)));
        let message = error(&[&TORCH[..], &HYDRA].concat());
        for part in ["torchrun says rank 2 of 4", "rank 1 of 3", "PMI_RANK", "torchrun or mpi"] {
            assert!(message.contains(part), "{message}");
        }
        let membership = find(LauncherChoice::Mpi, &[&TORCH[..], &HYDRA].concat()).unwrap().membership;
        assert_eq!(membership.map(|p| p.rank), Some(1));
    }

    #[test]
    fn impossible_places_are_refused() {
        assert!(error(&[("PMI_RANK", "0")]).contains("PMI_SIZE"));
        assert!(error(&[("RANK", "0"), ("WORLD_SIZE", "2")]).contains("MASTER_PORT"));
        let broken = |rank, size| error(&[("RANK", rank), ("WORLD_SIZE", size), ("MASTER_PORT", "1")]);
        assert!(broken("x", "2").contains("expected a number"));
        assert!(broken("2", "2").contains("below 2"));
        assert!(broken("0", "0").contains("at least 1"));
        let hosts = [("RANK", "0"), ("WORLD_SIZE", "16"), ("LOCAL_WORLD_SIZE", "8"), ("MASTER_PORT", "1")];
        assert!(error(&hosts).contains("several hosts"));
        let mpi = [("PMI_RANK", "0"), ("PMI_SIZE", "16"), ("MPI_LOCALNRANKS", "8")];
        assert!(error(&mpi).contains("several hosts"));
        let slurm = [&STEP[..5], &[("SLURM_STEP_NUM_NODES", "2")]].concat();
        assert!(error(&slurm).contains("several hosts"));
    }
}
