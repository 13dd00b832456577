//! Tests of library collectives with the fake library of `nccl-sys`, which the C compiler builds. They need
//! neither a GPU nor NCCL.

use std::path::Path;
use std::process;
use std::time::Duration;

use nccl_sys::{Comm, LibrarySearch, Nccl, Version, result_code};
use symmc_ir::DType;
use symmc_ir::collective::{AllToAllSplits, CollectiveKind, CollectiveReduceOp, CollectiveVariant};
use symmc_ir::types::NcclType;
use symmc_runtime::exec::{MemorySpace, ResolvedCollective, ResolvedRegion};

use super::borrowed::BorrowedCommunicator;
use super::comms::{Communicators, lacks, skips_pdl_wait};
use super::wait::CallDeadline;
use crate::codegen::Front;
use crate::codegen::command::GpuCommand;
use crate::error::CudaError;

/// The fake library of a version.
pub(super) fn fake(version: &str, later: bool) -> Nccl {
    // Libraries are loaded only from folders that other users cannot write; `/tmp` itself is not one.
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("libnccl.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../nccl-sys/tests/fake_nccl.c");
    let mut gcc = process::Command::new("gcc");
    gcc.args(["-shared", "-fPIC", "-DCONFIG=72", &format!("-DVERSION={version}"), "-o"]).arg(&path);
    if later {
        gcc.arg("-DLATER");
    }
    assert!(gcc.arg(source).status().expect("gcc runs").success());
    let library =
        Nccl::find_library(&LibrarySearch { explicit_path: Some(path.clone()), ..LibrarySearch::default() });
    library.expect("a usable library")
}

fn comm(n: usize) -> Comm {
    Comm(std::ptr::without_provenance_mut(n))
}

#[test]
fn a_call_is_done_when_the_communicator_says_so() {
    let nccl = fake("22809", true);
    let deadline = CallDeadline { limit: Duration::from_secs(60), alive: &|| Ok(()) };
    // The fake library is busy twice; then odd handles succeed and even ones fail.
    // SAFETY: the fake functions take any handle.
    let settle = |n, code| unsafe { deadline.wait_for_call(&nccl, comm(n), "ncclAllReduce", code) };
    assert_eq!(settle(1, result_code::IN_PROGRESS), Ok(()));
    assert_eq!(settle(3, result_code::SUCCESS), Ok(()));
    let failed = settle(2, result_code::IN_PROGRESS).expect_err("a failure in the background");
    assert!(failed.to_string().contains("ncclAllReduce failed with ncclSystemError (2)"), "{failed}");
    let refused = settle(1, result_code::INVALID_ARGUMENT).expect_err("a refusal at once");
    assert!(matches!(refused, CudaError::Library { .. }), "{refused}");
}

#[test]
fn a_lent_communicator_has_the_ranks_that_were_said() {
    let nccl = fake("22809", false);
    // Rank 2 of four ranks, which are these ranks of the plan.
    assert_eq!(borrow_communicator(3, &[4, 5, 6, 7]).check_ranks(&nccl, 6), Ok(comm(3)));
    let error = borrow_communicator(3, &[4, 5, 6, 7]).check_ranks(&nccl, 5).expect_err("another number");
    assert_eq!(
        error.to_string(),
        "the caller's communicator has 4 ranks, and this process is its rank 2: expected rank 5 of the plan in [4, 5, 6, 7]"
    );
    assert!(borrow_communicator(3, &[0, 1, 2]).check_ranks(&nccl, 2).is_err(), "another number of ranks");
    assert!(borrow_communicator(9, &[0, 1, 2, 3]).check_ranks(&nccl, 3).is_err(), "no number of the group");
}

fn borrow_communicator(n: usize, ranks: &[u32]) -> BorrowedCommunicator {
    // SAFETY: the fake functions take any handle.
    unsafe { BorrowedCommunicator::new(comm(n).0, ranks.to_vec()) }
}

#[test]
fn missing_nccl_functions_are_named_with_their_version() {
    let first = fake("22707", false);
    assert_eq!(
        [CollectiveVariant::Plain, CollectiveVariant::NcclWindow].map(|variant| lacks(&first, variant)),
        [None, None]
    );
    let text = lacks(&first, CollectiveVariant::CopyEngine).expect("copy engines came later");
    assert_eq!(text, "NCCL 2.27.7 has no ncclAlltoAll; expected 2.28.0 or newer");
    assert_eq!(lacks(&fake("22809", true), CollectiveVariant::CopyEngine), None);
}

#[test]
fn some_nccl_versions_skip_the_pdl_wait() {
    let window = CollectiveVariant::NcclWindow;
    for (minor, patch) in [(28, 0), (28, 9), (29, 7), (30, 6)] {
        assert!(skips_pdl_wait(Version::new(2, minor, patch), window), "2.{minor}.{patch}");
    }
    for (minor, patch) in [(27, 7), (30, 7), (31, 0)] {
        assert!(!skips_pdl_wait(Version::new(2, minor, patch), window), "2.{minor}.{patch}");
    }
    let other_variants = [CollectiveVariant::Plain, CollectiveVariant::CopyEngine, CollectiveVariant::Ll];
    assert!(other_variants.into_iter().all(|variant| !skips_pdl_wait(Version::new(2, 28, 9), variant)));
}

/// A collective of four ranks.
fn call(kind: CollectiveKind, variant: CollectiveVariant) -> ResolvedCollective {
    let region = ResolvedRegion { space: MemorySpace::Symmetric, offset: 0, by_rank: None };
    ResolvedCollective {
        kind,
        variant,
        exit: None,
        cell: (0..4).collect(),
        group: 7,
        dtype: DType::F32,
        elements: 64,
        row_elements: 1,
        operand: region.clone(),
        result: region,
        blocks: None,
        landing: None,
        splits: None,
        rows: None,
    }
}

#[test]
fn kernels_that_skip_the_wait_never_follow_kernels() {
    use CollectiveKind as Kind;
    let kinds = [
        Kind::AllReduce(CollectiveReduceOp::Sum),
        Kind::AllGather,
        Kind::ReduceScatter(CollectiveReduceOp::Sum),
        Kind::Broadcast { root: 1 },
        Kind::AllToAll(AllToAllSplits::Even),
    ];
    let progress = 0x100;
    let unread = 0x200;
    for (version, skips) in
        [("22707", false), ("22800", true), ("22907", true), ("23006", true), ("23007", false)]
    {
        let library: &'static Nccl = Box::leak(Box::new(fake(version, version > "22800")));
        let variants =
            [CollectiveVariant::Plain, CollectiveVariant::NcclWindow, CollectiveVariant::CopyEngine];
        let comms = Communicators::of_test(library, 7, &variants, comm(1));
        for variant in variants {
            for (kind, asked) in kinds.iter().flat_map(|k| [(k, None), (k, Some(progress))]) {
                let front = Front { told: asked, unread, word: 3 };
                let work = comms
                    .lower(
                        &call(kind.clone(), variant),
                        0,
                        [0x1000, 0x2000].map(crate::device::launch::DevicePtr::from),
                        front,
                    )
                    .expect("calls");
                let fenced = skips && variant == CollectiveVariant::NcclWindow;
                let address = asked.or(fenced.then_some(unread));
                let expected = address.map(|at| GpuCommand::Store { at: at.into(), word: 3 });
                let [front @ .., GpuCommand::Nccl(_)] = work.as_slice() else { panic!("{work:?}") };
                assert_eq!(front.first(), expected.as_ref(), "{version} {variant} {kind:?}");
                assert!(front.len() <= 1, "{work:?}");
            }
        }
    }
}

#[test]
fn dtypes_have_the_numbers_of_the_library() {
    use nccl_sys::data_type as nccl;
    let size = |number| match number {
        nccl::I8 | nccl::U8 => 1,
        nccl::F16 | nccl::BF16 => 2,
        nccl::I32 | nccl::U32 | nccl::F32 => 4,
        nccl::I64 | nccl::F64 => 8,
        other => panic!("number {other}"),
    };
    for &dtype in DType::ALL {
        assert_eq!(size(dtype.facts().nccl.number()), dtype.size(), "{dtype}");
    }
    let reduced = [DType::U8, DType::U32, DType::I8, DType::I32, DType::I64, DType::F16, DType::BF16];
    let numbers = reduced.map(|dtype| dtype.facts().nccl);
    let expected = [nccl::U8, nccl::U32, nccl::I8, nccl::I32, nccl::I64, nccl::F16, nccl::BF16];
    assert_eq!(numbers, expected.map(NcclType::Reduced));
}
