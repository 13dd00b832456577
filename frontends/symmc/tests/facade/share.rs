//! Tensors that sessions share are read where they lie, kept as long as a run may read them, and refused where they do not fit.

use std::sync::Arc;
use std::thread;

use symmc::{CompileConfig, DType, ErrorKind, Group, PortStorage, Program, Session, SessionConfig, Tensor};

const PROGRAM: &str = r#"program "shared" ranks 1
symbol n in 1..=8
arg %x: f32[n, 4]
param %w: f32[4] source "layer.weight"
arg %kept: f32[4]
%y: f32[n, 4] = mul %x, %w
%next: f32[4] = add %kept, %w
return %y
mutate %kept = %next
"#;

fn session() -> Session {
    let program = Program::from_text(PROGRAM).expect("a program");
    let plan = symmc::compile(&program, &CompileConfig::default()).expect("a plan");
    let group = Group::threads(1).remove(0);
    Session::open(&plan, &group, &SessionConfig::default()).expect("a session")
}

fn tensor(shape: &[usize], elements: &[f64]) -> Arc<Tensor> {
    Arc::new(Tensor::from_f64(DType::F32, shape, elements).expect("it fits"))
}

#[test]
fn two_sessions_read_one_tensor_where_it_lies() {
    let weight = tensor(&[4], &[1.0, 2.0, 3.0, 4.0]);
    let run = |weight: Arc<Tensor>| {
        let mut session = session();
        session.set("n", 1).expect("a size");
        session.share("layer.weight", weight.clone()).expect("it fits");
        let memory = session.address("layer.weight").expect("an address");
        assert!(matches!(memory.storage, PortStorage::Caller(_)));
        assert_eq!(memory.as_ptr().cast_const(), weight.data().as_ptr());
        session.write_tensor("x", &tensor(&[1, 4], &[2.0; 4])).expect("it fits");
        session.write_tensor("kept", &tensor(&[4], &[0.0; 4])).expect("it fits");
        (0..3).for_each(|_| session.run().expect("a run"));
        let (y, kept) = (session.read("out.0").expect("y"), session.read("kept").expect("what is kept"));
        assert!(Arc::strong_count(&weight) >= 3, "the session keeps it");
        session.close().expect("it ends");
        (y.to_f64(), kept.to_f64())
    };
    thread::scope(|scope| {
        let ranks = [0, 1].map(|_| scope.spawn(|| run(weight.clone())));
        for rank in ranks {
            let (y, kept) = rank.join().expect("a rank");
            assert_eq!(y, [2.0, 4.0, 6.0, 8.0]);
            assert_eq!(kept, [3.0, 6.0, 9.0, 12.0]);
        }
    });
    assert_eq!(Arc::strong_count(&weight), 1, "nobody keeps it behind its sessions");
}

#[test]
fn replaced_shared_tensors_live_until_their_runs_end() {
    let mut session = session();
    session.set("n", 8).expect("a size");
    session.write_tensor("kept", &tensor(&[4], &[0.0; 4])).expect("it fits");
    session.share("w.layer.weight", tensor(&[4], &[1.0; 4])).expect("it fits");
    let mut old = Vec::new();
    for round in 0..50 {
        let x = tensor(&[8, 4], &[f64::from(round); 32]);
        old.push(Arc::downgrade(&x));
        session.share("x", x).expect("it fits");
        session.enqueue().expect("a run");
    }
    session.wait(std::time::Duration::from_secs(10)).expect("they end");
    assert_eq!(session.read("out.0").expect("y").to_f64(), [49.0; 32]);
    session.share("x", tensor(&[8, 4], &[0.0; 32])).expect("it fits");
    assert!(old.iter().all(|x| x.upgrade().is_none()));
}

#[test]
fn invalid_shared_tensors_are_rejected_without_changes() {
    let mut session = session();
    let error = session.share("x", tensor(&[1, 4], &[0.0; 4])).expect_err("n is open");
    assert!(error.to_string().contains("set n"), "{error}");
    session.set("n", 2).expect("a size");
    let integers = || Arc::new(Tensor::from_i64(DType::I64, [4], &[0; 4]).expect("it fits"));
    let four = || tensor(&[4], &[0.0; 4]);
    let cases: [(&str, Arc<Tensor>, &str); 5] = [
        ("x", four(), "x: expected f32[2, 4], found f32[4]"),
        ("layer.weight", integers(), "layer.weight: expected f32[4], found i64[4]"),
        ("kept", four(), "kept: the output %next replaces it"),
        ("out.0", four(), "out.0 is an output: only inputs can be shared"),
        ("nothing", four(), "there is no input or output nothing; expected one of %x, "),
    ];
    for (name, given, says) in cases {
        let error = session.share(name, given).expect_err("it does not fit");
        assert_eq!(error.kind(), ErrorKind::Input);
        assert!(error.to_string().contains(says), "{name}: {error}");
    }
    let error = session.write_tensor("x", &four()).expect_err("it does not fit");
    assert!(error.to_string().contains("x: expected f32[2, 4], found f32[4]"), "{error}");
    let error = session.run().expect_err("nothing is there");
    assert!(error.to_string().contains("has no data"), "{error}");
}

#[test]
fn undersized_bound_memory_is_neither_written_nor_read() {
    let mut session = session();
    session.set("n", 2).expect("a size");
    let mut memory = [7f32; 64];
    // SAFETY: the array stays until the session has gone, and nobody else touches it.
    unsafe { session.bind("x", memory.as_mut_ptr().cast(), 32).expect("it fits two rows") };
    session.write("x", &[0; 32]).expect("two rows");
    session.set("n", 8).expect("another size");
    let errors = [
        session.write("x", &[0; 128]).expect_err("it is too small"),
        session.read("x").expect_err("it is too small"),
        session.address("x").expect_err("it is too small"),
    ];
    for error in errors {
        assert!(error.to_string().contains("is too small: expected 128 bytes"), "{error}");
    }
    session.set("n", 1).expect("another size");
    session.write("x", &[0; 16]).expect("one row");
    drop(session);
    assert_eq!(memory[8..], [7.0; 56]);
}

/// Tensor files store a weight without a source under the name of its value. Sessions find it by the same name, and an
/// unknown name lists the weights.
#[test]
fn weights_without_a_source_have_stored_names_too() {
    let text = PROGRAM.replace(" source \"layer.weight\"", "");
    let program = Program::from_text(&text).expect("a program");
    let plan = symmc::compile(&program, &CompileConfig::default()).expect("a plan");
    let group = Group::threads(1).remove(0);
    let mut session = Session::open(&plan, &group, &SessionConfig::default()).expect("a session");
    session.set("n", 1).expect("a size");
    session.share("w.w", tensor(&[4], &[1.0; 4])).expect("the weight %w");
    let error = session.value("w.down").expect_err("there is no such weight").to_string();
    let expected =
        "there is no input or output w.down; expected one of %x, %kept, %y, %next, or a weight: w.w";
    assert!(error.ends_with(expected), "{error}");
}
