//! Several collectives as one kernel: what is launched, and what it computes on host threads.

use symmc_ir::tensor::{read_f64, write_f64};
use symmc_runtime::exec::{ResolvedMember, StepWork};

use super::emulate::{
    CollectiveCase, EmulatedWorld, EmulationLibrary, WorldConfig, bytes_at, element, expected, results_of,
};
use super::*;
use crate::codegen::addresses::AddressMap;

/// Collectives that run as one step.
struct JointCollectives {
    cases: Vec<CollectiveCase>,
}

/// The offset of the values of sets in the arena of a rank.
const START: usize = 16 << 10;

impl JointCollectives {
    /// These collectives by a variant, each with `elements` elements per rank in separate memory, which
    /// begins `shift` elements after a multiple of 64 bytes.
    fn new(
        n: u32,
        variant: CollectiveVariant,
        exit: Option<ExitBarrier>,
        collectives: &[(Kind, DType, usize, usize)],
    ) -> JointCollectives {
        let mut end = START;
        let cases = collectives.iter().map(|(kind, dtype, elements, shift)| {
            let elements = elements * if matches!(kind, Kind::AllGather) { 1 } else { n as usize };
            let results = results_of(kind, elements, n as usize);
            let mut allocate = |elements: usize| {
                let offset = end + shift * dtype.size();
                end = (offset + elements * dtype.size()).next_multiple_of(64);
                ResolvedRegion::uniform(MemorySpace::Symmetric, offset)
            };
            let mut call = collective(kind.clone(), variant, n, *dtype, elements);
            (call.operand, call.result, call.exit) = (allocate(elements), allocate(results), exit);
            CollectiveCase { call, results }
        });
        JointCollectives { cases: cases.collect() }
    }

    /// The launches of a rank.
    fn lowered(
        &self,
        peers: &PeerContext,
        source: &mut KernelSource,
    ) -> Result<Option<Vec<GpuCommand>>, CudaError> {
        let members = self.cases.iter().map(|case| ResolvedMember {
            node: String::new(),
            op_name: String::new(),
            work: StepWork::Collective(case.call.clone()),
        });
        let members: Vec<ResolvedMember> = members.collect();
        let symmetric = peers.arenas[peers.rank as usize];
        let addresses = AddressMap::without_ports(1 << 40, symmetric);
        lower_several(7, &members, &addresses, peers, source)
    }

    fn kernel(&self, peers: &PeerContext, source: &mut KernelSource) -> KernelLaunch {
        let works = self.lowered(peers, source).expect("it fits").expect("it is one step");
        match works.as_slice() {
            [GpuCommand::Kernel(kernel)] => kernel.clone(),
            other => panic!("expected one kernel, found {other:?}"),
        }
    }

    /// Runs the kernel of a rank on the values of a round and compares all results.
    fn run(
        &self,
        kernel: &KernelLaunch,
        peers: &PeerContext,
        (me, round): (usize, usize),
        library: &EmulationLibrary,
    ) {
        let address_of = |r: &ResolvedRegion| peers.arenas[me] + r.offset as Address;
        for CollectiveCase { call, .. } in &self.cases {
            // SAFETY: a value of this rank's arena. No peer accesses it outside of the kernel, if that ends
            // with an exit, or before the next kernel has begun.
            let operand = unsafe { bytes_at(address_of(&call.operand), call.elements * call.dtype.size()) };
            for i in 0..call.elements {
                write_f64(call.dtype, operand, i, element(&call.kind, call.dtype, me, i, round));
            }
        }
        library.run(kernel);
        for case in &self.cases {
            let CollectiveCase { call, results } = case;
            // SAFETY: as above.
            let result = unsafe { bytes_at(address_of(&call.result), results * call.dtype.size()) };
            for i in 0..*results {
                let actual = read_f64(call.dtype, result, i);
                let expected = expected(case, me, i, round);
                let label = (call.kind.name(), call.variant, call.dtype, call.elements);
                assert_eq!(actual, expected, "{label:?}: element {i} on rank {me} in round {round}");
            }
        }
    }
}

const EXCHANGE: Kind = Kind::AllToAll(AllToAllSplits::Even);

fn scatter(op: CollectiveReduceOp) -> Kind {
    Kind::ReduceScatter(op)
}

fn sum(op: CollectiveReduceOp) -> Kind {
    Kind::AllReduce(op)
}

/// Sets of kinds, dtypes, odd sizes and addresses, and empty collectives.
fn sets(n: u32) -> Vec<JointCollectives> {
    use CollectiveReduceOp::*;
    use DType::*;
    let kept_exit = Some(ExitBarrier::Kept);
    let pulled = [
        (Kind::AllGather, BF16, 77, 0),
        (EXCHANGE, F32, 24, 0),
        (scatter(Avg), BF16, 88, 0),
        (Kind::AllGather, U8, 13, 1),
        (scatter(Sum), Bool, 33, 1),
        (EXCHANGE, I64, 0, 0),
        (scatter(Max), F32, 1, 0),
        (EXCHANGE, BF16, 7, 3),
        (Kind::AllGather, F64, 203, 0),
    ];
    let pushed = [
        (Kind::AllGather, F16, 101, 0),
        (EXCHANGE, U8, 19, 1),
        (Kind::AllGather, I32, 5, 0),
        (EXCHANGE, BF16, 96, 0),
    ];
    let summed = [
        (sum(Sum), F32, 30, 0),
        (sum(Avg), I32, 7, 1),
        (sum(Prod), BF16, 9, 0),
        (sum(Max), U8, 1, 0),
        (sum(Min), F64, 65, 0),
    ];
    let gathers: Vec<_> = (0..16).map(|i| (Kind::AllGather, BF16, 1 + i % 5 * 8, 0)).collect();
    vec![
        JointCollectives::new(n, CollectiveVariant::Pull, kept_exit, &pulled),
        JointCollectives::new(n, CollectiveVariant::Push, None, &pushed),
        JointCollectives::new(n, CollectiveVariant::OneShot, kept_exit, &summed),
        JointCollectives::new(n, CollectiveVariant::Pull, kept_exit, &gathers),
        JointCollectives::new(n, CollectiveVariant::Pull, kept_exit, &pulled[1..2]),
    ]
}

fn rounds(worlds: &[(u32, WorldConfig)], rounds: usize, name: &str) {
    let emulated: Vec<EmulatedWorld> =
        worlds.iter().map(|(n, given)| EmulatedWorld::new(*n, given)).collect();
    let mut source = KernelSource::new();
    let mut of_ranks = Vec::new();
    for world in &emulated {
        let sets = sets(world.peers.len() as u32);
        let mut kernels = Vec::new();
        for peers in &world.peers {
            kernels
                .push(sets.iter().map(|set| set.kernel(peers, &mut source)).collect::<Vec<KernelLaunch>>());
        }
        of_ranks.push((sets, kernels));
    }
    let Some(library) = EmulationLibrary::new(&source, name) else { return };
    for (world, (sets, kernels)) in emulated.iter().zip(&of_ranks) {
        std::thread::scope(|scope| {
            for (me, (peers, kernels)) in world.peers.iter().zip(kernels).enumerate() {
                let library = &library;
                scope.spawn(move || {
                    for round in 0..rounds {
                        for (set, kernel) in sets.iter().zip(kernels) {
                            set.run(kernel, peers, (me, round), library);
                        }
                    }
                });
            }
        });
    }
}

#[test]
fn several_collectives_give_what_each_gives() {
    let config = WorldConfig::default();
    rounds(&[2, 3, 4].map(|n| (n, WorldConfig { first: (5, 0), ..config })), 3, "several");
    rounds(
        &[(2, WorldConfig { chaos: Some(3), ..config }), (4, WorldConfig { chaos: Some(4), ..config })],
        1,
        "several-chaos",
    );
}

#[test]
fn coalesced_work_is_divided_among_one_grid() {
    assert_eq!([kernel_of_gathers(2).grid[0], kernel_of_gathers(16).grid[0]], [2, 16]);
    let KernelParam::Value(turns) = &kernel_of_gathers(3).params[1] else { panic!("expected words") };
    let starts: Vec<u64> = turns.words().chunks(18).map(|turn| turn[17]).collect();
    assert_eq!(starts[..3], [0, 256, 512]);
    for rank in 0..4 {
        let large = JointCollectives::new(
            4,
            CollectiveVariant::Push,
            None,
            &[(Kind::AllGather, DType::F32, 1 << 20, 0), (EXCHANGE, DType::U8, 1, 0)],
        );
        let kernel = large.kernel(&peers(rank, 4), &mut KernelSource::new());
        assert_eq!((kernel.grid[0], kernel.block[0]), (128, 512), "the grid is that of all ranks");
    }
}

fn kernel_of_gathers(count: usize) -> KernelLaunch {
    let set = JointCollectives::new(
        4,
        CollectiveVariant::Pull,
        Some(ExitBarrier::Dropped),
        &vec![(Kind::AllGather, DType::F32, 1024, 0); count],
    );
    set.kernel(&peers(0, 4), &mut KernelSource::new())
}

fn lower_on_rank_0(set: &JointCollectives) -> Option<Vec<GpuCommand>> {
    set.lowered(&peers(0, 2), &mut KernelSource::new()).expect("it fits")
}

#[test]
fn unsupported_sets_are_not_lowered_to_one_kernel() {
    let gather = (Kind::AllGather, DType::F32, 4, 0);
    let kept_exit = Some(ExitBarrier::Kept);
    assert!(
        lower_on_rank_0(&JointCollectives::new(
            2,
            CollectiveVariant::Pull,
            kept_exit,
            &vec![gather.clone(); 16]
        ))
        .is_some()
    );
    assert!(
        lower_on_rank_0(&JointCollectives::new(
            2,
            CollectiveVariant::Pull,
            kept_exit,
            &vec![gather.clone(); 17]
        ))
        .is_none(),
        "too many"
    );
    for variant in [
        CollectiveVariant::Copies,
        CollectiveVariant::PullCopies,
        CollectiveVariant::Ll,
        CollectiveVariant::Plain,
    ] {
        assert!(
            lower_on_rank_0(&JointCollectives::new(2, variant, kept_exit, &[gather.clone(), gather.clone()]))
                .is_none(),
            "{variant}"
        );
    }
    let mut mixed =
        JointCollectives::new(2, CollectiveVariant::Pull, kept_exit, &[gather.clone(), gather.clone()]);
    mixed.cases[1].call.variant = CollectiveVariant::Push;
    assert!(lower_on_rank_0(&mixed).is_none(), "two variants");
    let single = JointCollectives::new(1, CollectiveVariant::Pull, kept_exit, &[gather.clone(), gather]);
    let works = single.lowered(&peers(0, 1), &mut KernelSource::new()).expect("it fits").expect("copies");
    assert!(
        matches!(works[..], [GpuCommand::Copy { bytes: 16, .. }, GpuCommand::Copy { bytes: 16, .. }]),
        "{works:?}"
    );
    let mut outside =
        JointCollectives::new(2, CollectiveVariant::Pull, kept_exit, &[(Kind::AllGather, DType::F32, 4, 0)]);
    outside.cases[0].call.operand.offset = ARENA;
    let error =
        outside.lowered(&peers(0, 2), &mut KernelSource::new()).expect_err("no such memory").to_string();
    assert!(error.contains("step 7") && error.contains("symmetric arena"), "{error}");
}

/// The kernels of all sets, for the test that compiles everything.
pub(super) fn kernels(n: u32, source: &mut KernelSource) {
    for set in sets(n) {
        for chaos in [None, Some(1)] {
            set.kernel(&PeerContext { chaos, ..peers(0, n) }, source);
        }
    }
}
