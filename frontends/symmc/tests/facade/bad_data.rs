//! A run whose data one rank refuses fails on all ranks, wherever its collectives stand, and another session runs.

use std::thread;

use symmc::{CompileConfig, DType, DataFault, Error, Group, Program, Session, SessionConfig, Tensor};

const TAKE_BEFORE: &str = "%s: f32[2] = take %x, %i axis=0\n%y: f32[2] = all_reduce %s op=sum group=@all";
const TAKE_AFTER: &str = "%s: f32[4] = all_reduce %x op=sum group=@all\n%y: f32[2] = take %s, %i axis=0";
const TAKE_ALONE: &str = "%y: f32[2] = take %x, %i axis=0";

/// The result of one run with these indices on each of two ranks.
fn run(body: &str, indices: [[i64; 2]; 2]) -> Vec<Result<Vec<f64>, Error>> {
    let head = "program \"indexed\" ranks 2\ngroup @all world\narg %x: f32[4]\narg %i: i64[2]";
    let program = Program::from_text(&format!("{head}\n{body}\nreturn %y\n")).expect("a program");
    let plan = symmc::compile(&program, &CompileConfig::default()).expect("a plan");
    let of_rank = |group: Group, indices: [i64; 2]| {
        let mut session = Session::open(&plan, &group, &SessionConfig::default())?;
        let x = Tensor::from_f64(DType::F32, [4], &[1.0, 2.0, 3.0, 4.0]).expect("it fits");
        let i = Tensor::from_i64(DType::I64, [2], &indices).expect("it fits");
        session.write("x", x.data())?;
        session.write("i", i.data())?;
        session.run()?;
        let y = session.read("out.0")?.to_f64();
        // A rank that has finished closes its session only after the other one has run, too.
        session.close().map(|()| y)
    };
    thread::scope(|scope| {
        let groups = Group::threads(2).into_iter().zip(indices);
        let ranks: Vec<_> = groups.map(|(group, i)| scope.spawn(move || of_rank(group, i))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("a rank")).collect()
    })
}

#[test]
fn bad_index_on_one_rank_fails_all_ranks() {
    for body in [TAKE_BEFORE, TAKE_AFTER, TAKE_ALONE] {
        for culprit in [0, 1] {
            let mut indices = [[0, 3]; 2];
            indices[culprit][1] = 9;
            for found in run(body, indices) {
                let error = found.expect_err("one rank has a bad index");
                assert_eq!(error.data_fault(), Some(DataFault::Index), "{body}: {error}");
                assert!(error.to_string().contains("the index 9 is outside axis 0"), "{body}: {error}");
                assert!(error.to_string().contains(&format!("rank {culprit}")), "{body}: {error}");
            }
        }
        assert!(run(body, [[0, 3]; 2]).iter().all(Result::is_ok), "{body}");
    }
}
