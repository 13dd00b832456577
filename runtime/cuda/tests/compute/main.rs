//! Compute steps without a GPU: lowering of every op ([`check`]), kernels on the host ([`emulate`]), fusion. Where
//! NVRTC is present, some of the code is compiled.

// The example `check_compute` uses the rest.
#[allow(dead_code)]
mod check;
mod emulate;
mod library;
mod products;
mod rotary;
mod twins;

use symmc_cases::corpus;
use symmc_cuda::CudaError;
use symmc_cuda::compile::Source;
use symmc_cuda::compile::compile;
use symmc_cuda::compute::fuse::{Group, Member, groups, lower_fused};
use symmc_cuda::compute::{Attentions, InputUse, Machine};
use symmc_cuda::compute::{Sites, Step};
use symmc_cuda::launch::Work;
use symmc_ir::{BinaryOp, DType, Op, Scalar, UnaryOp};
use symmc_plan::Lane;
use symmc_runtime::exec::{BoundStep, Home, Located, Work as StepWork};

use crate::check::{lowered, workspace_bytes};

fn machine(workspace_bytes: usize, shared: usize) -> Machine {
    Machine {
        multiprocessors: 132,
        status: 0x1000,
        workspace: 0x10_0000,
        workspace_bytes,
        shared,
        groups: true,
        inputs: InputUse::Read,
        attention: Attentions::Kernels,
    }
}

#[test]
fn every_case_is_lowered_and_compiles() {
    let cases = corpus();
    let room = workspace_bytes(&cases, &machine(0, 0));
    let machine = machine(room, 225 << 10);
    let all = lowered(&cases, &machine, 1 << 32);
    for (case, works) in cases.iter().zip(&all.works) {
        let works = works.as_ref().unwrap_or_else(|e| panic!("{}: {e}", case.name));
        for work in works {
            let Work::Kernel(kernel) = work else { continue };
            assert!(all.source.names().any(|n| n == kernel.entry), "{}: no {}", case.name, kernel.entry);
            let threads: u32 = kernel.block.iter().product();
            assert!((1..=1024).contains(&threads), "{}: {threads} threads", case.name);
            assert!(kernel.grid.iter().all(|&n| n > 0), "{}: {:?} blocks", case.name, kernel.grid);
        }
    }
    // A sample: all of them take minutes.
    let sample: Vec<_> = cases.into_iter().step_by(12).collect();
    for (target, shared, groups) in [([9, 0], 225 << 10, true), ([8, 0], 160 << 10, false)] {
        match compile(&lowered(&sample, &Machine { shared, groups, ..machine }, 1 << 32).source, target) {
            Ok(code) => assert!(!code.is_empty()),
            Err(CudaError::Missing { library, .. }) => println!("skipped: no {library}"),
            Err(error) => panic!("{error}"),
        }
    }
}

fn at(home: Home, offset: usize) -> Located {
    Located { home, offset, by_rank: 0, dtype: DType::F32, shape: [8, 32].into(), strides: [32, 1].into() }
}

fn step(index: usize, op: Op, operands: Vec<Located>, result: Located) -> BoundStep {
    let work = StepWork::Kernel { op, operands, results: vec![result] };
    BoundStep {
        index,
        lane: Lane::Compute,
        waits: vec![],
        node: format!("n{index}"),
        op_name: "op".into(),
        work,
    }
}

/// The kernels of a group, or none if its memory does not allow one.
fn fused(list: &[BoundStep], group: &Group) -> Option<Vec<Work>> {
    let members = group.steps.iter().zip(&group.stored).map(|(&place, &stored)| match &list[place].work {
        StepWork::Kernel { op, operands, results } => {
            Member { step: Step { index: list[place].index, op, operands, results }, stored }
        }
        other => panic!("{other:?}"),
    });
    let members: Vec<_> = members.collect();
    let address = |v: &Located| (v.offset + 0x10_0000 * (1 + usize::from(v.home == Home::Ordinary))) as u64;
    lower_fused(&members, &address, &machine(0, 0), &mut Source::new(), &mut Sites::new()).expect("fits")
}

/// `(x + 1)` to the arena, `relu` in place, times `x` to `out`.
fn chain(out: Located) -> Vec<BoundStep> {
    let (x, t) = (at(Home::Input(0), 0), at(Home::Ordinary, 0));
    let add = Op::BinaryScalar { op: BinaryOp::Add, scalar: Scalar::Int(1), scalar_left: false };
    vec![
        step(0, add, vec![x.clone()], t.clone()),
        step(1, Op::Unary(UnaryOp::Relu), vec![t.clone()], t.clone()),
        step(2, Op::Binary(BinaryOp::Mul), vec![t, x], out),
    ]
}

#[test]
fn a_chain_is_one_kernel_that_stores_what_is_read() {
    let mut list = chain(at(Home::Output(0), 0));
    let group = Group { steps: vec![0, 1, 2], stored: vec![false, false, true] };
    assert_eq!(groups(&list), std::slice::from_ref(&group));
    let parameters = |list: &[BoundStep], group: &Group| match &fused(list, group).expect("one kernel")[..] {
        [Work::Kernel(kernel)] => kernel.params.len(),
        other => panic!("{other:?}"),
    };
    assert_eq!(parameters(&list, &group), 2);
    // A step of another shape that reads the middle: the step that wrote there last stores it.
    let row = Located { shape: [32].into(), strides: [1].into(), ..at(Home::Ordinary, 64) };
    let last = Located { shape: [32].into(), strides: [1].into(), ..at(Home::Output(1), 0) };
    list.push(step(3, Op::Unary(UnaryOp::Exp), vec![row], last));
    let group = Group { stored: vec![false, true, true], ..group };
    assert_eq!(groups(&list), std::slice::from_ref(&group));
    assert_eq!(parameters(&list, &group), 3);
}

#[test]
fn steps_stay_single_where_memory_is_reused_across_positions() {
    // The last result lies on its operand, one row further on.
    let list = chain(at(Home::Ordinary, 128));
    let [group] = &groups(&list)[..] else { panic!("one group") };
    assert_eq!(fused(&list, group), None);
}

#[test]
fn a_step_that_the_other_lane_awaits_ends_its_group() {
    let mut list = chain(at(Home::Output(0), 0));
    let copy = step(3, Op::Copy, vec![at(Home::Ordinary, 0)], at(Home::Output(1), 0));
    list.push(BoundStep { lane: Lane::Comm, waits: vec![1], ..copy });
    let group = Group { steps: vec![0, 1], stored: vec![false, true] };
    assert_eq!(groups(&list), [group]);
}

#[test]
fn a_group_spans_steps_that_do_not_touch_it() {
    let between = |operand: Located, result: Located| {
        let mut list = chain(at(Home::Output(0), 0));
        list.insert(1, step(1, Op::Softmax { axis: 1, log: false }, vec![operand], result));
        list.iter_mut().enumerate().for_each(|(index, step)| step.index = index);
        list
    };
    let steps = |list: &[BoundStep]| groups(list).into_iter().map(|g| g.steps).collect::<Vec<_>>();
    let apart = between(at(Home::Input(1), 0), at(Home::Output(1), 0));
    assert_eq!(steps(&apart), [vec![0, 2, 3]]);
    let reads_the_result = between(at(Home::Ordinary, 0), at(Home::Output(1), 0));
    assert_eq!(steps(&reads_the_result), [vec![2, 3]]);
    let writes_the_operand = between(at(Home::Input(1), 0), at(Home::Input(0), 0));
    assert_eq!(steps(&writes_the_operand), [vec![2, 3]]);
    // Another lane takes it as a sign that all before it is done.
    let mut awaited = apart;
    let copy = step(4, Op::Copy, vec![at(Home::Output(1), 0)], at(Home::Output(2), 0));
    awaited.push(BoundStep { lane: Lane::Comm, waits: vec![1], ..copy });
    assert_eq!(steps(&awaited), [vec![2, 3]]);
}
