//! Outputs with a number of elements that is another output.

use symmc_ir::text::{parse, print};
use symmc_ir::verify::verify;
use symmc_ir::{DType, Tensor};

const PROGRAM: &str = "program \"p\" ranks 1\narg %x: f32[2, 3]\narg %n: i64[]\n%y: f32[2, 3] = neg %x\n\
                       %m: i64[] = neg %n\nreturn %y\n";

#[test]
fn lengths_are_read_written_and_cut() {
    let graph = parse(&format!("{PROGRAM}length %n output=0 axis=1\n")).expect("a program");
    assert_eq!(verify(&graph), Ok(()));
    assert_eq!(parse(&print(&graph)).expect("a program"), graph);
    assert_eq!(graph.output_lengths(0).collect::<Vec<_>>(), [(1, 1)]);
    let elements = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    for (length, expected) in
        [(0, vec![]), (2, vec![1.0, 2.0, 4.0, 5.0]), (3, elements.to_vec()), (9, elements.to_vec())]
    {
        let y = Tensor::from_f64(DType::F32, vec![2, 3], &elements).expect("six elements");
        let n = Tensor::from_i64(DType::I64, vec![], &[length]).expect("a number");
        let cut = graph.cut_outputs(vec![y, n]);
        assert_eq!(cut[0].shape(), [2, expected.len() / 2]);
        assert_eq!(cut[0].to_f64(), expected);
    }
}

#[test]
fn lengths_are_integers_of_axes_of_returned_outputs() {
    let ends = [
        ("length %y output=0 axis=1\n", "expected a length as i64[], found f32[2, 3]"),
        ("length %n output=0 axis=2\n", "expected an axis of a returned output, found axis 2 of output 0"),
        ("length %n output=1 axis=0\n", "expected an axis of a returned output, found axis 0 of output 1"),
        ("length %n output=7 axis=0\n", "expected an axis of a returned output, found axis 0 of output 7"),
        (
            "length %n output=0 axis=0\nlength %m output=0 axis=0\n",
            "expected one length of axis 0 of output 0, found two",
        ),
    ];
    for (end, expected) in ends {
        let graph = parse(&format!("{PROGRAM}{end}")).expect("a program");
        let violations = verify(&graph).expect_err(expected);
        assert!(violations.iter().any(|v| v.to_string().contains(expected)), "{violations:?}");
    }
}
