//! Buffers of callers are used where they lie, by any session of their device, kept as long as one may use them, and outlive all.

use std::time::Duration;

use symmc::{CompileConfig, ErrorKind, Group, PortStorage, Program, Session, SessionBuffer, SessionConfig};

const PROGRAM: &str = r#"program "kept" ranks 1
symbol n in 1..=8
arg %x: f32[n, 4]
arg %state: f32[4]
%y: f32[n, 4] = add %x, %state
%one: f32[4] = add %state, %state
return %y
mutate %state = %one
"#;

fn session() -> Session {
    let program = Program::from_text(PROGRAM).expect("a program");
    let plan = symmc::compile(&program, &CompileConfig::default()).expect("a plan");
    let mut session =
        Session::open(&plan, &Group::threads(1).remove(0), &SessionConfig::default()).expect("a session");
    session.set("n", 2).expect("a size");
    session
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

fn bind(session: &mut Session, name: &str, buffer: &SessionBuffer) -> Result<(), symmc::Error> {
    // SAFETY: these tests wait for every run before they touch a buffer, and before another session runs.
    unsafe { session.bind_buffer(name, buffer) }
}

#[test]
fn sessions_share_a_buffer_in_place_which_outlives_them() {
    let mut sessions = [session(), session()];
    let state = sessions[0].allocate(16).expect("memory");
    assert_eq!((state.bytes(), state.read(0, 16).expect("all of it")), (16, vec![0; 16]));
    assert!(state.as_ptr().addr().is_multiple_of(256));
    state.write(0, &bytes(&[1.0; 4])).expect("it fits");
    for session in &mut sessions {
        session.write("x", &[0; 32]).expect("two rows");
        bind(session, "state", &state).expect("it fits");
        let memory = session.address("state").expect("an address");
        assert!(matches!(memory.storage, PortStorage::Caller(_)));
        assert_eq!(memory.as_ptr(), state.as_ptr());
    }
    for run in 0..4 {
        sessions[run % 2].run().expect("a run");
    }
    let [first, second] = sessions;
    first.close().expect("it ends");
    drop(second);
    assert_eq!(state.read(0, 16).expect("it is there"), bytes(&[16.0; 4]));
    assert_eq!(state.read(8, 8).expect("a part"), bytes(&[16.0; 2]));
}

#[test]
fn session_retains_buffers_that_callers_dropped() {
    let mut session = session();
    session.write("state", &bytes(&[1.0; 4])).expect("it fits");
    for round in 0..20 {
        let x = session.allocate(1 << 20).expect("memory");
        x.write(0, &bytes(&[round as f32; 8])).expect("it fits");
        bind(&mut session, "x", &x).expect("it fits");
        drop(x);
        session.write("state", &bytes(&[1.0; 4])).expect("no run is in progress");
        session.enqueue().expect("a run");
        if round % 3 == 0 {
            session.unbind("x").expect("it was bound");
        }
        session.wait(Duration::from_secs(10)).expect("it ends");
        let output = session.read("y").expect("an output");
        assert_eq!(output.to_f64(), vec![f64::from(round) + 1.0; 8]);
    }
}

#[test]
fn invalid_buffer_accesses_are_rejected_by_name() {
    let mut session = session();
    let buffer = session.allocate(12).expect("memory");
    for (at, count) in [(0, 13), (12, 1), (usize::MAX, 1), (4, usize::MAX)] {
        let error = buffer.read(at, count).expect_err("it is not there");
        assert_eq!(error.kind(), ErrorKind::Input);
        assert!(
            error.to_string().contains("the buffer has 12 bytes: expected an offset and a length within it"),
            "{error}"
        );
    }
    let error = buffer.write(8, &[0; 5]).expect_err("it is not there");
    assert!(error.to_string().contains("found 5 bytes from 8"), "{error}");
    buffer.write(12, &[]).expect("nothing is everywhere");
    let error = bind(&mut session, "state", &buffer).expect_err("it is too small");
    assert!(error.to_string().contains("the memory of 12 bytes is too small: expected 16"), "{error}");
    let error = bind(&mut session, "nothing", &buffer).expect_err("there is none");
    assert!(error.to_string().contains("no input or output nothing"), "{error}");
    let error = session.allocate(usize::MAX / 2).expect_err("nobody has as much");
    assert_eq!(error.kind(), ErrorKind::Resources, "{error}");
}
