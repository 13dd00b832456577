//! Checks of the driver, its GPUs, their access to each other, and the nearest machine profile.

use symmc_cuda::CudaError;
use symmc_cuda::report::gpus::{ComputeMode, GpuInfo, GpuInventory, GpuPeerAccess};
use symmc_cuda::report::libraries;
use symmc_ir::machine::MachineProfile;

use super::check::{CheckStatus, DoctorCheck, DoctorPart, format_bytes};

const GPUS_PART: DoctorPart = DoctorPart::Gpus;

/// The GPU on which the built-in profiles were measured.
const MEASURED_GPU: &str = "H200";

pub(super) fn checks() -> Vec<DoctorCheck> {
    match symmc_cuda::report::gpus::machine() {
        Ok(machine) => machine_checks(&machine, libraries::kernel_module().as_deref()),
        Err(error) => missing_driver_checks(&error, libraries::kernel_module().as_deref()),
    }
}

/// The checks if no driver answers: there are no GPUs, and all checks about GPUs fail.
fn missing_driver_checks(error: &CudaError, module: Option<&str>) -> Vec<DoctorCheck> {
    let (found, remedy) = match (error, module) {
        (CudaError::Missing { library, .. }, Some(module)) => (
            format!("{library} was not found, but the kernel module is version {module}"),
            "give the container its GPUs and their libraries (docker run --gpus all, the NVIDIA container toolkit)".into(),
        ),
        (CudaError::Missing { library, install }, None) => {
            (format!("{library} was not found"), format!("{install}; for GPUs install the NVIDIA driver"))
        }
        (error, _) => (
            error.to_string(),
            "look at nvidia-smi and dmesg; CUDA_VISIBLE_DEVICES may hide all GPUs, and driver and kernel module must have \
             the same version"
                .into(),
        ),
    };
    let mut checks = vec![GPUS_PART.problem("driver", CheckStatus::Missing, found, remedy)];
    let remedy = "see driver; plans run on host ranks without GPUs";
    let names = ["gpus", "peer access", "memory handles"];
    checks
        .extend(names.map(|name| {
            GPUS_PART.problem(name, CheckStatus::Missing, "none, as there is no driver", remedy)
        }));
    checks.push(GPUS_PART.ok("profile", "host"));
    checks
}

fn machine_checks(machine: &GpuInventory, module: Option<&str>) -> Vec<DoctorCheck> {
    let [major, minor] = machine.cuda;
    let module = module.map_or(String::new(), |m| format!(", kernel module {m}"));
    let driver = GPUS_PART.ok("driver", format!("CUDA {major}.{minor}{module}"));
    let mut checks = vec![driver.with_version(format!("{major}.{minor}")), gpu_count_check(&machine.gpus)];
    checks.extend(machine.gpus.iter().map(gpu_check));
    checks.extend([
        peer_access_check(&machine.gpus),
        memory_handle_check(&machine.gpus),
        profile_check(&machine.gpus),
    ]);
    checks
}

fn gpu_count_check(gpus: &[GpuInfo]) -> DoctorCheck {
    const CHECK_NAME: &str = "gpus";
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let visible = visible.map_or(String::new(), |v| format!(" (CUDA_VISIBLE_DEVICES={v})"));
    match gpus.len() {
        0 => {
            let remedy = "make GPUs visible (CUDA_VISIBLE_DEVICES, docker run --gpus all); without GPUs plans run on host ranks";
            GPUS_PART.problem(CHECK_NAME, CheckStatus::Missing, format!("none{visible}"), remedy)
        }
        n => GPUS_PART.ok(CHECK_NAME, format!("{n}{visible}")),
    }
}

fn gpu_check(gpu: &GpuInfo) -> DoctorCheck {
    let name = format!("gpu {}", gpu.ordinal);
    let [major, minor] = gpu.capability;
    let multicast = if gpu.multicast { "multicast" } else { "no multicast" };
    let finding = format!(
        "{}, compute capability {major}.{minor}, {} multiprocessors, {}, {multicast}",
        gpu.name,
        gpu.multiprocessors,
        format_bytes(gpu.memory)
    );
    let id = gpu.ordinal;
    match gpu.compute_mode {
        ComputeMode::Shared => GPUS_PART.ok(&name, finding),
        ComputeMode::Exclusive => {
            let remedy = format!(
                "let several processes use it (nvidia-smi -i {id} -c DEFAULT), or run one rank on it"
            );
            GPUS_PART.problem(
                &name,
                CheckStatus::Limited,
                format!("{finding}, for one process at a time"),
                remedy,
            )
        }
        ComputeMode::Prohibited => {
            let remedy = format!("allow compute on it (nvidia-smi -i {id} -c DEFAULT)");
            GPUS_PART.problem(
                &name,
                CheckStatus::Missing,
                format!("{finding}, not usable for compute"),
                remedy,
            )
        }
    }
}

/// Checks which GPUs can access the memory of which others.
fn peer_access_check(gpus: &[GpuInfo]) -> DoctorCheck {
    const CHECK_NAME: &str = "peer access";
    let list_links = |access: GpuPeerAccess| {
        let links_of = |gpu: &GpuInfo| {
            let peers = gpu.peer_access.iter().enumerate();
            let peers = peers.filter(|(o, found)| *o != gpu.ordinal as usize && **found == access);
            let peers: Vec<String> = peers.map(|(o, _)| o.to_string()).collect();
            (!peers.is_empty()).then(|| format!("{} to {}", gpu.ordinal, peers.join(",")))
        };
        gpus.iter().filter_map(links_of).collect::<Vec<_>>().join("; ")
    };
    let none = list_links(GpuPeerAccess::None);
    let peer = list_links(GpuPeerAccess::LoadStore);
    match (gpus.len(), none.is_empty(), peer.is_empty()) {
        (0, ..) => {
            GPUS_PART.problem(CHECK_NAME, CheckStatus::Missing, "none, as there are no GPUs", "see gpus")
        }
        (1, ..) => {
            let remedy = "runs of several ranks on GPUs need several: see gpus";
            GPUS_PART.problem(CHECK_NAME, CheckStatus::Limited, "one GPU has no peer", remedy)
        }
        (_, true, true) => {
            GPUS_PART.ok(CHECK_NAME, "every GPU accesses every other, with atomic operations (NVLink)")
        }
        (_, true, false) => {
            let remedy = "kernels add fences on such links and are slower: look at nvidia-smi topo -m and nvlink --status";
            let finding =
                format!("every GPU accesses every other, but without atomic operations (PCIe): {peer}");
            GPUS_PART.problem(CHECK_NAME, CheckStatus::Limited, finding, remedy)
        }
        (_, false, _) => {
            let remedy = "run ranks on GPUs that can access each other; look at nvidia-smi topo -p2p r, MIG, and IOMMU or \
                          ACS settings of the machine";
            GPUS_PART.problem(CHECK_NAME, CheckStatus::Limited, format!("not from {none}"), remedy)
        }
    }
}

/// Checks whether ranks can pass handles of their memory to each other.
fn memory_handle_check(gpus: &[GpuInfo]) -> DoctorCheck {
    const CHECK_NAME: &str = "memory handles";
    let without: Vec<String> =
        gpus.iter().filter(|g| !g.exports_memory).map(|g| g.ordinal.to_string()).collect();
    match (gpus.is_empty(), without.is_empty()) {
        (true, _) => {
            GPUS_PART.problem(CHECK_NAME, CheckStatus::Missing, "none, as there are no GPUs", "see gpus")
        }
        (_, true) => {
            GPUS_PART.ok(CHECK_NAME, "memory of all GPUs passes between processes as file descriptors")
        }
        (_, false) => {
            let finding = format!(
                "not of GPU {}: its driver exports no memory as file descriptors",
                without.join(", ")
            );
            let remedy = "use bare metal, a container, or a passed-through GPU; symmetric memory needs the driver's virtual \
                          memory management";
            GPUS_PART.problem(CHECK_NAME, CheckStatus::Missing, finding, remedy)
        }
    }
}

/// Checks whether a built-in profile fits the GPUs.
fn profile_check(gpus: &[GpuInfo]) -> DoctorCheck {
    const CHECK_NAME: &str = "profile";
    let nearest = match gpus.len() {
        0 => return GPUS_PART.ok(CHECK_NAME, "host"),
        n => MachineProfile::nearest_builtin(u32::try_from(n).unwrap_or(u32::MAX)),
    };
    match gpus.iter().find(|g| !g.name.contains(MEASURED_GPU)) {
        None => GPUS_PART.ok(CHECK_NAME, nearest),
        Some(other) => {
            let finding = format!("{nearest}, which was measured on {MEASURED_GPU}, not on {}", other.name);
            GPUS_PART.problem(CHECK_NAME, CheckStatus::Limited, finding, "measure this machine (symmc tune)")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(names: &[&str], reach: impl Fn(usize, usize) -> GpuPeerAccess) -> GpuInventory {
        let gpu = |(i, name): (usize, &&str)| GpuInfo {
            ordinal: i as u32,
            name: name.to_string(),
            capability: [9, 0],
            multiprocessors: 132,
            memory: 141 << 30,
            compute_mode: ComputeMode::Shared,
            exports_memory: true,
            multicast: true,
            peer_access: (0..names.len())
                .map(|o| if o == i { GpuPeerAccess::Atomic } else { reach(i, o) })
                .collect(),
        };
        GpuInventory { cuda: [13, 0], gpus: names.iter().enumerate().map(gpu).collect() }
    }

    fn find<'a>(checks: &'a [DoctorCheck], name: &str) -> &'a DoctorCheck {
        checks.iter().find(|c| c.name == name).unwrap_or_else(|| panic!("no {name}: {checks:?}"))
    }

    #[test]
    fn four_linked_gpus_have_nothing_to_do() {
        let checks =
            machine_checks(&machine(&["NVIDIA H200"; 4], |_, _| GpuPeerAccess::Atomic), Some("580.65.06"));
        assert!(checks.iter().all(|c| c.status == CheckStatus::Ok), "{checks:?}");
        assert_eq!(find(&checks, "driver").found, "CUDA 13.0, kernel module 580.65.06");
        assert_eq!(find(&checks, "profile").found, "h200x4");
        let gpu = "NVIDIA H200, compute capability 9.0, 132 multiprocessors, 141.0 GiB, multicast";
        assert_eq!(find(&checks, "gpu 3").found, gpu);
    }

    #[test]
    fn links_that_are_missing_or_slow_are_listed() {
        let pairs =
            |i: usize, o: usize| if i / 2 == o / 2 { GpuPeerAccess::Atomic } else { GpuPeerAccess::None };
        let checks = machine_checks(&machine(&["NVIDIA H200"; 4], pairs), None);
        let peers = find(&checks, "peer access");
        assert_eq!(peers.status, CheckStatus::Limited);
        assert_eq!(peers.found, "not from 0 to 2,3; 1 to 2,3; 2 to 0,1; 3 to 0,1");
        let checks =
            machine_checks(&machine(&["NVIDIA A100-PCIE-40GB"; 2], |_, _| GpuPeerAccess::LoadStore), None);
        assert!(find(&checks, "peer access").found.ends_with("(PCIe): 0 to 1; 1 to 0"), "{checks:?}");
        let profile = find(&checks, "profile");
        assert_eq!(profile.status, CheckStatus::Limited);
        assert!(profile.found.starts_with("h200x2") && profile.found.contains("A100"), "{profile:?}");
    }

    #[test]
    fn gpus_that_cannot_be_used_say_so() {
        let mut limited = machine(&["NVIDIA H200"; 2], |_, _| GpuPeerAccess::Atomic);
        limited.gpus[0].compute_mode = ComputeMode::Prohibited;
        limited.gpus[1].compute_mode = ComputeMode::Exclusive;
        limited.gpus[1].exports_memory = false;
        let checks = machine_checks(&limited, None);
        let status = |name| find(&checks, name).status;
        assert_eq!(
            ["gpu 0", "gpu 1", "memory handles"].map(status),
            [CheckStatus::Missing, CheckStatus::Limited, CheckStatus::Missing]
        );
        assert!(
            find(&checks, "gpu 0")
                .remedy
                .as_deref()
                .is_some_and(|r| r.contains("nvidia-smi -i 0 -c DEFAULT"))
        );
        let none = machine_checks(&machine(&[], |_, _| GpuPeerAccess::None), None);
        let short = none.iter().filter(|c| c.status == CheckStatus::Missing).map(|c| c.name.as_str());
        assert_eq!(short.collect::<Vec<_>>(), ["gpus", "peer access", "memory handles"]);
        let checks = machine_checks(&machine(&["NVIDIA H200"], |_, _| GpuPeerAccess::None), None);
        assert_eq!(find(&checks, "peer access").found, "one GPU has no peer");
    }

    #[test]
    fn without_a_driver_each_line_says_so() {
        let missing =
            CudaError::Missing { library: "the CUDA driver (libcuda.so.1)", install: "there is none" };
        let refused = CudaError::Driver {
            call: "starting the CUDA driver".into(),
            name: "CUDA_ERROR_NO_DEVICE".into(),
            text: "no CUDA-capable device is detected".into(),
        };
        for (error, module, remedy) in [
            (&missing, None, "install"),
            (&missing, Some("580"), "--gpus all"),
            (&refused, None, "nvidia-smi"),
        ] {
            let checks = missing_driver_checks(error, module);
            let names: Vec<&str> = checks.iter().map(|c| c.name.as_str()).collect();
            assert_eq!(names, GPUS_PART.check_names());
            assert!(checks[0].remedy.as_deref().is_some_and(|r| r.contains(remedy)), "{checks:?}");
            assert!(checks[..4].iter().all(|c| c.status == CheckStatus::Missing), "{checks:?}");
        }
    }
}
