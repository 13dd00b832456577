//! Where the outputs of a run are written: a file is replaced whole, a link is followed, and nothing else is touched.
#![cfg(unix)]

use std::os::unix::fs::{FileTypeExt, symlink};
use std::os::unix::net::UnixListener;

use symmc::{Tensor, TensorFile};
use symmc_ir::{DType, text};

const PROGRAM: &str = r#"program "p" ranks 1
arg %x: f32[2]
%y: f32[2] = add %x, %x
return %y
"#;

#[test]
fn what_is_no_file_is_refused_and_stays() {
    let dir = tempfile::tempdir().expect("a folder");
    let graph = text::parse(PROGRAM).expect("a program");
    let output = vec![vec![Tensor::from_f64(DType::F32, [2], &[1.0, 2.0]).expect("two elements")]];
    let socket = dir.path().join("socket");
    let _listener = UnixListener::bind(&socket).expect("a socket");
    let link = dir.path().join("link");
    symlink(&socket, &link).expect("a link");
    for path in [&socket, &link] {
        let found = symmc::check_output(path).expect_err("no file").to_string();
        assert!(found.contains("a device, a pipe or a socket"), "{found}");
        symmc::write_outputs(path, &graph, 0..1, &output).expect_err("no file");
    }
    assert!(socket.symlink_metadata().expect("it stays").file_type().is_socket());
    assert!(link.symlink_metadata().expect("it stays").file_type().is_symlink());
}

#[test]
fn a_link_leads_to_the_file_that_is_written() {
    let dir = tempfile::tempdir().expect("a folder");
    let graph = text::parse(PROGRAM).expect("a program");
    let output = vec![vec![Tensor::from_f64(DType::F32, [2], &[1.0, 2.0]).expect("two elements")]];
    let (file, link) = (dir.path().join("file.safetensors"), dir.path().join("link.safetensors"));
    std::fs::write(&file, b"old").expect("written");
    symlink(&file, &link).expect("a link");
    symmc::check_output(&link).expect("a file");
    symmc::write_outputs(&link, &graph, 0..1, &output).expect("written");
    assert!(link.symlink_metadata().expect("it stays").file_type().is_symlink());
    let written = TensorFile::open(&file).expect("tensors").get("rank0.out.0").expect("f32").expect("there");
    assert_eq!(written.to_f64(), [1.0, 2.0]);
}
