//! Machine profiles: the time that each variant of each collective takes on a machine.
//!
//! A [`MachineProfile`] is data: a JSON file of [`CollectiveCurve`]s, one for each collective, variant, state
//! of the exit barrier and number of ranks. The built-in profiles are embedded in the binary; others are read
//! from files. Unknown versions, fields and names are rejected.
//!
//! # The bytes of a curve
//! The bytes are those of the larger side: the tensor of an all-reduce, all-to-all, broadcast or permute, the
//! gathered result of an all-gather, and the operand of a reduce-scatter.
//!
//! # Interpolation
//! Between two points the time is linear in the bytes: each segment is a start-up plus a transfer at one
//! bandwidth. Collectives behave in this way, and a series of doubling sizes resolves it well. Below the first
//! point the time is that of the first point. Above the last point it continues with the bandwidth of the last
//! segment. A number of ranks without its own curve is modelled from the nearest number with a curve
//! ([`model`]). All of this uses only additions, products and quotients of `f64`, which give the same bits on
//! every machine. Logarithms do not, and all ranks must make the same choice.
//!
//! # Contention between collectives and compute
//! A machine with a known number of multiprocessors shares them. A collective that overlaps compute adds two
//! things to a run: the part of its time that nothing overlaps, and the slowdown of the compute
//! ([`model::occupied_compute_share`]). A variant that leaves the multiprocessors alone may therefore be better
//! there, even if it is slower alone. If a profile does not state the number, the choice of variants counts no
//! time as overlapped. Timelines of whole runs ([`timeline`]) also slow down the collective
//! ([`MachineProfile::timed_collectives`]). A profile may state measurements ([`ContentionMeasurement`]).
//!
//! # Fused work
//! On a machine whose [capabilities](DispatchCapabilities) include it, the kernel of an all-reduce by `ll`, or
//! of a large two-shot all-reduce, also adds the residual that follows. `ll` saves a kernel, and one store and
//! read of the reduction. Two-shot kernels do the addition while the links are busy. The variant is credited
//! with the time of a copy of the reduction.
//!
//! Deliberately not here: the copies that a placement forces (the lowering and the planner know them), and the
//! measurement of profiles.

mod backend;
mod capability;
mod collectives;
mod contention;
mod curve;
pub mod model;
mod row_kernels;
mod steps;
mod table;
mod throughput;
pub mod timeline;
mod traffic;

use serde::{Deserialize, Serialize};
use symmc_support::shorten_middle;
use thiserror::Error;

pub use crate::collective::ExitBarrier;
use crate::collective::{CollectiveKind, CollectiveVariant};
pub use backend::Backend;
pub use capability::{
    BatchLimits, CollectiveLimits, ColumnLimits, DispatchCapabilities, GatherLimits, LoopLimits,
    ProductLimits, ProductShape, ReductionLimits, RotaryLimits, RowLimits, SelectionLimits, SplitKLimits,
};
pub use contention::ContentionMeasurement;
pub use curve::{CollectiveCurve, CopyCurve, Provenance};
pub use table::CurveTable;
pub use throughput::{MAX_SERIAL_K, OperationCounts, ProductRate, Throughput};
pub use traffic::{MAX_CONCAT_OPERANDS_PER_KERNEL, MIN_SEPARATE_COPY_BYTES, StepTraffic, TrafficModel};

/// The version of the format.
pub const VERSION: u32 = 5;

/// The maximum length of the name of a profile, which plans record.
const MAX_NAME_BYTES: usize = 4096;

const BUILTIN_PROFILES: [(&str, &str); 7] = [
    ("host", include_str!("host.json")),
    ("h100x2", include_str!("h100x2.json")),
    ("h100x4", include_str!("h100x4.json")),
    ("h100x8", include_str!("h100x8.json")),
    ("h200x2", include_str!("h200x2.json")),
    ("h200x4", include_str!("h200x4.json")),
    ("h200x8", include_str!("h200x8.json")),
];

/// The times of the variants of collectives on a machine, in microseconds (see the [module](self)).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineProfile {
    /// The version of the format: [`VERSION`].
    pub version: u32,
    /// The name that plans record.
    pub name: String,
    /// A description of the machine and of the origin of the numbers, for people.
    pub about: String,
    /// The backend that runs plans on the machine.
    pub backend: Backend,
    /// The number of multiprocessors of a device. Absent if communication occupies all of a rank that would
    /// compute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multiprocessors: Option<u32>,
    /// The sets of nodes that run as one kernel.
    #[serde(default, skip_serializing_if = "DispatchCapabilities::is_none")]
    pub dispatches: DispatchCapabilities,
    /// The rates of computation. Without it, products take as long as copying one byte for each 512 operations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throughput: Option<Throughput>,
    /// The rates of products by their number of rows, in ascending order. Without it, all products have the
    /// rates of `throughput`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub product_rates: Vec<ProductRate>,
    /// The measured slowdown of collectives and computation by each other: at most one measurement for each
    /// collective, variant and number of ranks. Missing measurements are modelled ([`model`]).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contention: Vec<ContentionMeasurement>,
    pub copy: CopyCurve,
    /// The curves: at most one for each collective, variant, state of the exit barrier and number of ranks.
    pub curves: CurveTable,
}

#[derive(Debug, Error)]
pub enum ProfileError {
    #[error("not a machine profile: {0}")]
    Json(#[from] serde_json::Error),
    #[error("profile {name}: version {found}, expected {VERSION}")]
    Version { name: String, found: u32 },
    #[error("profile {name}: curve {curve}: {message}")]
    Curve {
        name: String,
        /// The curve: collective, variant, exit barrier and ranks; or `copy`.
        curve: String,
        message: String,
    },
    #[error(
        "profile {name}: throughput.{field}: expected {}, found {found:e}",
        throughput::describe_allowed_numbers()
    )]
    Throughput { name: String, field: &'static str, found: f64 },
    #[error("profile {name}: {field}: {message}")]
    Measurement { name: String, field: String, message: String },
    #[error("profile {name}: {field}: expected at least 1, found 0")]
    Zero { name: String, field: String },
}

/// The fields of a profile that all versions have.
#[derive(Deserialize)]
struct ProfileHeader {
    version: u32,
    #[serde(default)]
    name: String,
}

impl MachineProfile {
    pub fn builtin(name: &str) -> Option<MachineProfile> {
        let (_, text) = BUILTIN_PROFILES.iter().find(|(n, _)| *n == name)?;
        MachineProfile::from_json(text).ok()
    }

    /// The name of the built-in profile that is closest to a machine with this number of GPUs.
    pub fn nearest_builtin(gpus: u32) -> &'static str {
        match gpus {
            0..=2 => "h200x2",
            3..=4 => "h200x4",
            _ => "h200x8",
        }
    }

    pub fn builtin_names() -> Vec<&'static str> {
        BUILTIN_PROFILES.iter().map(|(name, _)| *name).collect()
    }

    /// Fails if the text is not a profile or has another version. Fails also for a curve that is duplicated,
    /// names an unknown collective or variant, or has missing, unordered or invalid points.
    pub fn from_json(text: &str) -> Result<MachineProfile, ProfileError> {
        // Other versions have other fields.
        let header: ProfileHeader = serde_json::from_str(text)?;
        if header.version != VERSION {
            return Err(ProfileError::Version { name: header.name, found: header.version });
        }
        let profile: MachineProfile = serde_json::from_str(text)?;
        if profile.name.len() > MAX_NAME_BYTES {
            let message = format!("expected at most {MAX_NAME_BYTES} bytes, found {}", profile.name.len());
            let name = shorten_middle(&profile.name, 80);
            return Err(ProfileError::Measurement { name, field: "name".into(), message });
        }
        let error =
            |curve: String, message| ProfileError::Curve { name: profile.name.clone(), curve, message };
        let zero_field = (profile.multiprocessors == Some(0)).then(|| "multiprocessors".to_string());
        if let Some(field) = zero_field.or_else(|| profile.dispatches.find_zero_limit()) {
            return Err(ProfileError::Zero { name: profile.name, field });
        }
        if let Some((field, value)) = profile.throughput.as_ref().and_then(Throughput::find_invalid_field) {
            return Err(ProfileError::Throughput { name: profile.name, field, found: value });
        }
        if let Some((field, message)) = profile.invalid_measurement() {
            return Err(ProfileError::Measurement { name: profile.name, field, message });
        }
        curve::check_points(&profile.copy.points).map_err(|m| error("copy".into(), m))?;
        for (i, curve) in profile.curves.iter().enumerate() {
            let is_duplicate = profile.curves[..i].iter().any(|c| c.key() == curve.key());
            let checked =
                if is_duplicate { Err("the curve is a duplicate".to_string()) } else { check_curve(curve) };
            checked.map_err(|m| error(curve.to_string(), m))?;
        }
        Ok(profile)
    }

    /// The first measurement of products or of contention that breaks a rule, and the message.
    fn invalid_measurement(&self) -> Option<(String, String)> {
        for (i, rate) in self.product_rates.iter().enumerate() {
            let after = i.checked_sub(1).map_or(0, |before| self.product_rates[before].rows);
            if let Some(message) = rate.validation_error(after) {
                return Some((format!("product_rates[{i}]"), message));
            }
        }
        for (i, measurement) in self.contention.iter().enumerate() {
            let is_duplicate = self.contention[..i].iter().any(|earlier| {
                (earlier.collective, earlier.variant, earlier.ranks)
                    == (measurement.collective, measurement.variant, measurement.ranks)
            });
            let duplicate = is_duplicate.then(|| "it is a duplicate".to_string());
            if let Some(message) = duplicate.or_else(|| measurement.validation_error()) {
                return Some((format!("contention[{i}]"), message));
            }
        }
        None
    }

    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// The estimated time in microseconds of one collective on groups of `ranks` ranks. `None` if the profile
    /// has no curve for this variant, or only one of `ll` for smaller messages, because extrapolation would not
    /// justify the landing zones of larger ones. `exit` is whether a droppable exit barrier is kept; it is
    /// ignored for other variants, and `None` counts as kept. The [module](self) defines `bytes`.
    pub fn estimate_collective(
        &self,
        kind: &CollectiveKind,
        variant: CollectiveVariant,
        exit: Option<bool>,
        bytes: u64,
        ranks: u32,
    ) -> Option<f64> {
        // The kernels for GPUs support at most this number of ranks.
        if self.backend == Backend::Cuda && ranks > model::MAX_GPU_CELL_RANKS && !variant.is_library() {
            return None;
        }
        let curve = self.nearest_curve(kind, variant, exit, ranks)?;
        let is_measured = curve.points.last().is_some_and(|&(max_bytes, _)| bytes <= max_bytes);
        (is_measured || variant != CollectiveVariant::Ll).then(|| model::scale_to_ranks(curve, bytes, ranks))
    }

    /// The share of its time that a collective takes from concurrent computation. `None` if the number of
    /// multiprocessors of the machine is unknown. A measurement at one size is scaled to other sizes in
    /// proportion to [`model::occupied_compute_share`].
    fn occupied_compute_share(
        &self,
        kind: &CollectiveKind,
        variant: CollectiveVariant,
        bytes: u64,
        ranks: u32,
    ) -> Option<f64> {
        let modelled = self.modelled_compute_share(kind, variant, bytes, ranks)?;
        let Some(measured) = self.nearest_contention(kind, variant, ranks) else {
            return Some(modelled);
        };
        let at_measured = self.modelled_compute_share(kind, variant, measured.bytes, measured.ranks)?;
        Some((measured.taken * modelled / at_measured).clamp(0.0, 1.0))
    }

    fn modelled_compute_share(
        &self,
        kind: &CollectiveKind,
        variant: CollectiveVariant,
        bytes: u64,
        ranks: u32,
    ) -> Option<f64> {
        let multiprocessors = self.multiprocessors?;
        let max_blocks = self.max_blocks(kind, variant, bytes, ranks);
        let name = kind.collective_name();
        let transfer_share = self.transfer_share(ranks);
        let share = model::occupied_compute_share;
        Some(share(name, variant, bytes, ranks, max_blocks, multiprocessors, transfer_share))
    }

    /// The share of concurrent compute that moving bytes at the speed of links and memory takes, regardless of
    /// the mechanism: that of copies, which occupy no multiprocessors, at the nearest number of ranks. Without
    /// it, [`model::ASSUMED_TRANSFER_SHARE`].
    pub fn transfer_share(&self, ranks: u32) -> f64 {
        let copies = self.nearest_contention(&CollectiveKind::AllGather, CollectiveVariant::Copies, ranks);
        copies.map_or(model::ASSUMED_TRANSFER_SHARE, |copies| copies.taken)
    }

    /// The rate of a collective next to computation that fills the machine.
    fn concurrent_rate(&self, kind: &CollectiveKind, variant: CollectiveVariant, ranks: u32) -> f64 {
        self.nearest_contention(kind, variant, ranks)
            .map_or_else(|| model::concurrent_rate(variant), |measured| measured.rate)
    }

    /// The measurement of the nearest number of ranks.
    fn nearest_contention(
        &self,
        kind: &CollectiveKind,
        variant: CollectiveVariant,
        ranks: u32,
    ) -> Option<&ContentionMeasurement> {
        let measurements =
            self.contention.iter().filter(|c| (c.collective, c.variant) == (kind.measured_as(), variant));
        measurements.min_by_key(|c| (c.ranks.abs_diff(ranks), c.ranks))
    }

    /// The curve that [`estimate_collective`](Self::estimate_collective) reads: the curve for `ranks` ranks, or
    /// for the nearest number (the smaller of two equally near), from which the time is then modelled.
    pub fn nearest_curve(
        &self,
        kind: &CollectiveKind,
        variant: CollectiveVariant,
        exit: Option<bool>,
        ranks: u32,
    ) -> Option<&CollectiveCurve> {
        let exit = if exit.unwrap_or(true) { ExitBarrier::Kept } else { ExitBarrier::Dropped };
        self.curves.nearest(kind.measured_as(), variant, exit, ranks)
    }

    /// Whether the estimate of a collective rests on a model: its curve is modelled, is that of another number
    /// of ranks, or does not exist. The parameters are those of
    /// [`estimate_collective`](Self::estimate_collective).
    pub fn is_modelled(
        &self,
        kind: &CollectiveKind,
        variant: CollectiveVariant,
        exit: Option<bool>,
        ranks: u32,
    ) -> bool {
        let curve = self.nearest_curve(kind, variant, exit, ranks);
        curve.is_none_or(|c| c.provenance == Provenance::Modelled || c.ranks != ranks)
    }

    /// The maximum number of blocks of the kernel that runs a collective on a GPU. `None` if the profile has no
    /// measurements of this kind of collective that state it. The parameters are those of
    /// [`estimate_collective`](Self::estimate_collective).
    pub fn max_blocks(
        &self,
        kind: &CollectiveKind,
        variant: CollectiveVariant,
        bytes: u64,
        ranks: u32,
    ) -> Option<u32> {
        // A kernel that adds rows needs more blocks than one that copies as many bytes.
        if kind.exchanges_rows() {
            return None;
        }
        // The blocks do not depend on whether the exit barrier runs.
        [Some(false), Some(true)]
            .into_iter()
            .find_map(|exit| self.nearest_curve(kind, variant, exit, ranks).and_then(|c| c.blocks_at(bytes)))
    }

    /// The variants that have a curve for collectives of this kind, in order of [`CollectiveVariant::ALL`].
    pub fn supported_variants(&self, kind: &CollectiveKind) -> Vec<CollectiveVariant> {
        let variants = CollectiveVariant::ALL.iter().copied();
        variants
            .filter(|&variant| {
                let curve = self.nearest_curve(kind, variant, None, 2);
                curve.or(self.nearest_curve(kind, variant, Some(false), 2)).is_some()
            })
            .collect()
    }

    /// The estimated time in microseconds of copying `bytes` within the memory of one rank; 0 for no bytes.
    pub fn copy_us(&self, bytes: u64) -> f64 {
        if bytes == 0 { 0.0 } else { curve::interpolate_time(&self.copy.points, bytes) }
    }
}

fn check_curve(curve: &CollectiveCurve) -> Result<(), String> {
    if curve.ranks < 2 {
        return Err(format!("{} ranks, expected at least 2", curve.ranks));
    }
    curve::check_points(&curve.points)?;
    if !curve.spread.is_empty() && curve.spread.len() != curve.points.len() {
        let points = curve.points.len();
        let spread = curve.spread.len();
        return Err(format!("{spread} spreads for {points} points, expected one each or none"));
    }
    if !curve.blocks.is_empty() && curve.blocks.len() != curve.points.len() {
        let points = curve.points.len();
        let blocks = curve.blocks.len();
        return Err(format!("{blocks} numbers of blocks for {points} points, expected one each or none"));
    }
    if curve.blocks.contains(&0) {
        return Err("0 blocks, expected at least 1".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::{
        AllToAllSplits, CollectiveName, CollectiveReduceOp, Contract, ExitBarrierPolicy,
    };

    const AR: CollectiveKind = CollectiveKind::AllReduce(CollectiveReduceOp::Sum);

    #[test]
    fn builtin_profiles_read_and_round_trip() {
        for name in MachineProfile::builtin_names() {
            let text = BUILTIN_PROFILES.iter().find(|b| b.0 == name).unwrap().1;
            let profile = MachineProfile::from_json(text).unwrap();
            assert_eq!(profile.name, name);
            assert_eq!(MachineProfile::from_json(&profile.to_json()).unwrap(), profile);
        }
        assert!(MachineProfile::builtin("abacus").is_none());
    }

    /// Checks that every collective has plain, and that every variant with a contract has a curve, for both
    /// states of a droppable exit barrier. Variants of GPUs are required only on machines with GPUs.
    #[test]
    fn builtin_profiles_are_complete() {
        for name in MachineProfile::builtin_names() {
            let profile = MachineProfile::builtin(name).unwrap();
            for kind in CollectiveKind::sample_kinds(4) {
                if kind.moves_by_data() {
                    continue;
                }
                for &variant in CollectiveVariant::ALL {
                    let Some(Contract { exit_barrier: exit, .. }) = variant.contract(&kind) else { continue };
                    let on_gpus = [
                        CollectiveVariant::NcclWindow,
                        CollectiveVariant::CopyEngine,
                        CollectiveVariant::Copies,
                        CollectiveVariant::PullCopies,
                    ];
                    if name == "host" && on_gpus.contains(&variant) {
                        assert!(!profile.supported_variants(&kind).contains(&variant), "{name} {variant}");
                        continue;
                    }
                    for bytes in [1, 1 << 12, 1 << 20, 1 << 30] {
                        let estimate = |exit| profile.estimate_collective(&kind, variant, exit, bytes, 4);
                        let label = format!("{name} {} {variant} {bytes}", kind.name());
                        if variant == CollectiveVariant::Ll && bytes > 1 << 20 {
                            assert_eq!(estimate(None), None, "{label}");
                            continue;
                        }
                        assert!(estimate(None).is_some_and(|us| us > 0.0), "{label}");
                        // Beyond the measured sizes two measured slopes may cross.
                        assert!(bytes > 1 << 20 || estimate(Some(false)) <= estimate(Some(true)), "{label}");
                        assert!(
                            exit == ExitBarrierPolicy::Droppable
                                || estimate(Some(false)) == estimate(Some(true)),
                            "{label}"
                        );
                    }
                }
            }
        }
    }

    /// The paths to all numbers in a JSON value.
    fn numbers(value: &serde_json::Value, at: &str, out: &mut Vec<String>) {
        match value {
            serde_json::Value::Object(fields) => {
                fields.iter().for_each(|(name, v)| numbers(v, &format!("{at}/{name}"), out));
            }
            _ => out.push(at.into()),
        }
    }

    #[test]
    fn measured_contention_replaces_the_model() {
        let measurement = |taken, rate| ContentionMeasurement {
            collective: CollectiveName::AllGather,
            variant: CollectiveVariant::Push,
            ranks: 2,
            bytes: 1 << 24,
            taken,
            rate,
            provenance: Provenance::Measured,
            note: String::new(),
        };
        let plain = MachineProfile { contention: vec![], ..MachineProfile::builtin("h200x2").unwrap() };
        let measured =
            MachineProfile { contention: vec![measurement(0.25, 0.5)], version: VERSION, ..plain.clone() };
        let timed = |p: &MachineProfile, bytes| {
            p.timed_collectives(&[(&CollectiveKind::AllGather, bytes)], CollectiveVariant::Push, None, 2)
                .unwrap()
        };
        let gather = timed(&measured, 1 << 24);
        assert_eq!((gather.compute_share, gather.rate), (timeline::FULL_RATE / 4, timeline::FULL_RATE / 2));
        assert_eq!(gather.time, timed(&plain, 1 << 24).time);
        // The model scales the measurement to other sizes, and other variants use only the model.
        let [small, large] = [1 << 13, 1 << 24].map(|bytes| f64::from(timed(&plain, bytes).compute_share));
        let expected = 0.25 * f64::from(timeline::FULL_RATE) * small / large;
        assert!((f64::from(timed(&measured, 1 << 13).compute_share) - expected).abs() <= 2.0);
        let [measured_pull, plain_pull] = [&measured, &plain].map(|p| {
            p.timed_collectives(&[(&CollectiveKind::AllGather, 1 << 24)], CollectiveVariant::Pull, None, 2)
        });
        assert_eq!(measured_pull, plain_pull);
        assert_eq!(MachineProfile::from_json(&measured.to_json()).unwrap(), measured);
        // Both measurements may be absent.
        let mut absent = fields(&plain);
        absent.remove("product_rates");
        let absent = MachineProfile::from_json(&serde_json::to_string(&absent).unwrap()).unwrap();
        assert!(absent.contention.is_empty() && absent.product_rates.is_empty());
        let rate = ProductRate { rows: 8, matmul_16bit: 1.0, matmul: 1.0 };
        for (bad, part) in [
            (
                MachineProfile { contention: vec![measurement(1.5, 0.5)], ..plain.clone() },
                "contention[0]: taken",
            ),
            (
                MachineProfile { contention: vec![measurement(0.5, 0.0)], ..plain.clone() },
                "contention[0]: rate",
            ),
            (
                MachineProfile { contention: vec![measurement(0.5, 0.5); 2], ..plain.clone() },
                "contention[1]: it is a duplicate",
            ),
            (MachineProfile { product_rates: vec![rate; 2], ..plain.clone() }, "product_rates[1]: rows"),
            (MachineProfile { version: VERSION + 1, ..plain.clone() }, "version 6, expected 5"),
        ] {
            let error = MachineProfile::from_json(&bad.to_json()).unwrap_err().to_string();
            assert!(error.contains(part), "{part}: {error}");
        }
        let unknown = measured.to_json().replace(
            "\"variant\": \"push\",\n      \"ranks\": 2,\n      \"bytes\"",
            "\"variant\": \"shove\",\n      \"ranks\": 2,\n      \"bytes\"",
        );
        assert!(MachineProfile::from_json(&unknown).unwrap_err().to_string().contains("shove"));
    }

    fn fields(profile: &MachineProfile) -> serde_json::Map<String, serde_json::Value> {
        serde_json::from_str(&profile.to_json()).unwrap()
    }

    #[test]
    fn rejects_profiles_without_a_known_backend() {
        let profile = MachineProfile::builtin("h200x2").unwrap();
        let unknown = profile.to_json().replacen("\"cuda\"", "\"abacus\"", 1);
        let error = MachineProfile::from_json(&unknown).unwrap_err().to_string();
        assert!(error.contains("backend: expected one of host, cuda, found abacus"), "{error}");
        let mut absent = fields(&profile);
        absent.remove("backend");
        let error =
            MachineProfile::from_json(&serde_json::to_string(&absent).unwrap()).unwrap_err().to_string();
        assert!(error.contains("missing field `backend`"), "{error}");
        let stated = MachineProfile { backend: Backend::Host, ..profile };
        assert_eq!(MachineProfile::from_json(&stated.to_json()).unwrap(), stated);
    }

    #[test]
    fn limits_that_are_0_are_refused_by_name() {
        let profile = MachineProfile::builtin("h200x2").unwrap();
        let mut text: serde_json::Value = serde_json::from_str(&profile.to_json()).unwrap();
        let mut paths = vec!["/multiprocessors".to_string()];
        numbers(&text["dispatches"], "/dispatches", &mut paths);
        assert!(paths.len() > 15, "{paths:?}");
        for path in paths {
            let original = std::mem::replace(text.pointer_mut(&path).unwrap(), 0.into());
            let message = MachineProfile::from_json(&text.to_string()).unwrap_err().to_string();
            let field = path[1..].replace('/', ".");
            assert_eq!(message, format!("profile h200x2: {field}: expected at least 1, found 0"));
            *text.pointer_mut(&path).unwrap() = original;
        }
    }

    #[test]
    fn products_are_worth_a_kernel_up_to_a_number_of_rows() {
        let limits = DispatchCapabilities::GPU.product.unwrap();
        let shape = |count, rows, columns, k| capability::ProductShape { count, rows, columns, k };
        for (count, columns, k) in
            [(1, 1024, 256), (2, 3584, 8192), (1, 512, 64), (1, 14336, 4096), (2, 64, 1024)]
        {
            let max_rows = limits.max_profitable_rows(&shape(count, 0, columns, k), 132);
            for rows in 1..=80 {
                assert_eq!(
                    limits.is_profitable(&shape(count, rows, columns, k), 132),
                    rows <= max_rows,
                    "{count} {columns} {k} {rows}"
                );
            }
        }
        assert_eq!(limits.max_profitable_rows(&shape(1, 0, 1024, 256), 132), 7);
    }

    #[test]
    fn measured_points_are_given_back() {
        let p = MachineProfile::builtin("h200x4").unwrap();
        assert_eq!(p.estimate_collective(&AR, CollectiveVariant::Plain, None, 1 << 20, 4), Some(18.118));
        assert_eq!(p.estimate_collective(&AR, CollectiveVariant::OneShot, Some(true), 4096, 4), Some(4.864));
        assert_eq!(p.estimate_collective(&AR, CollectiveVariant::OneShot, Some(false), 4096, 4), Some(3.315));
        assert_eq!(p.estimate_collective(&AR, CollectiveVariant::Ll, None, 4096, 4), Some(2.531));
        assert_eq!(
            p.nearest_curve(&AR, CollectiveVariant::Plain, None, 4).unwrap().provenance,
            Provenance::Measured
        );
        let x8 = MachineProfile::builtin("h200x8").unwrap();
        assert!(x8.curves.iter().all(|c| c.provenance == Provenance::Modelled));
        let is_modelled =
            |p: &MachineProfile, ranks| p.is_modelled(&AR, CollectiveVariant::Plain, None, ranks);
        assert_eq!([2, 4].map(|ranks| is_modelled(&p, ranks)), [true, false]);
        assert!(is_modelled(&x8, 8));
        let without_curves = MachineProfile { curves: Default::default(), ..p };
        assert!(is_modelled(&without_curves, 4));
    }

    #[test]
    fn kernels_that_were_not_measured_have_no_number_of_blocks() {
        let p = MachineProfile::builtin("h200x2").unwrap();
        let blocks = |kind| p.max_blocks(&kind, CollectiveVariant::Push, 256 << 20, 2);
        assert_eq!(blocks(CollectiveKind::AllToAll(AllToAllSplits::Even)), Some(64));
        assert_eq!(blocks(CollectiveKind::ReduceRows), None);
    }

    #[test]
    fn a_slower_collective_may_add_less_next_to_compute() {
        let p = MachineProfile::builtin("h200x2").unwrap();
        let gather = CollectiveKind::AllGather;
        let added =
            |variant, hidden| p.estimate_added_us(&[(&gather, 128 << 20)], variant, None, 2, hidden).unwrap();
        assert!(added(CollectiveVariant::Copies, 0.0) > added(CollectiveVariant::Push, 0.0));
        assert!(added(CollectiveVariant::Copies, 1.0) < added(CollectiveVariant::Push, 1.0));
        // Time that is not overlapped counts in full.
        let alone = added(CollectiveVariant::Copies, 0.0);
        let half_hidden = added(CollectiveVariant::Copies, 0.5);
        let expected = alone / 2.0 + alone / 2.0 * p.transfer_share(2);
        assert!((half_hidden - expected).abs() < 1e-9);
        let host = MachineProfile::builtin("host").unwrap();
        let [next_to_compute, without_compute] = [1.0, 0.0].map(|hidden| {
            host.estimate_added_us(&[(&gather, 1 << 20)], CollectiveVariant::Push, None, 2, hidden)
        });
        assert_eq!(next_to_compute, without_compute);
    }

    #[test]
    fn other_versions_are_named_whatever_their_fields_are() {
        let text = r#"{"version": 4, "name": "old", "throughput": {"gap": 3}}"#;
        let error = MachineProfile::from_json(text).expect_err("refused");
        assert!(matches!(&error, ProfileError::Version { name, found: 4 } if name == "old"), "{error}");
        let error = MachineProfile::from_json(r#"{"name": "none"}"#).expect_err("refused").to_string();
        assert!(error.contains("version"), "{error}");
    }

    #[test]
    fn bad_profiles_are_refused_by_name() {
        let good = MachineProfile::builtin("h200x2").unwrap();
        let refused = |change: &dyn Fn(&mut MachineProfile), expected: &str| {
            let mut p = good.clone();
            change(&mut p);
            let message = MachineProfile::from_json(&p.to_json()).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        };
        refused(&|p| p.name = "n".repeat(5000), "name: expected at most 4096 bytes, found 5000");
        refused(&|p| p.version = 9, "profile h200x2: version 9, expected 5");
        for (from, to, expected) in [
            (
                "\"all_reduce\"",
                "\"reduce_all\"",
                "curve reduce_all plain on 2 ranks: unknown collective, expected one of all_reduce",
            ),
            (
                "\"plain\"",
                "\"magic\"",
                "curve all_reduce magic on 2 ranks: unknown variant, expected one of plain, one_shot",
            ),
        ] {
            let message =
                MachineProfile::from_json(&good.to_json().replacen(from, to, 1)).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
        refused(&|p| p.curves.edit(|c| c[0].ranks = 1), "1 ranks, expected at least 2");
        refused(&|p| p.curves.edit(|c| c.push(c[3].clone())), "the curve is a duplicate");
        refused(&|p| p.curves.edit(|c| c[0].points.clear()), "the curve has no points");
        refused(&|p| p.curves.edit(|c| c[0].spread = vec![0.5]), "1 spreads for ");
        refused(&|p| p.curves.edit(|c| c[0].blocks = vec![8]), "1 numbers of blocks for ");
        refused(
            &|p| p.curves.edit(|c| c[0].blocks = vec![0; c[0].points.len()]),
            "0 blocks, expected at least 1",
        );
        refused(&|p| p.multiprocessors = Some(0), "multiprocessors: expected at least 1, found 0");
        refused(&|p| p.copy.points.reverse(), "curve copy: the bytes");
        refused(&|p| p.curves.edit(|c| c[0].points[0].1 = -1.0), "-1e0 µs at");
        let unknown = good.to_json().replacen("\"about\"", "\"abuot\"", 1);
        assert!(MachineProfile::from_json(&unknown).unwrap_err().to_string().contains("abuot"));
    }
}
