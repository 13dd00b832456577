//! Output files of runs: a file is replaced as a whole, a link is replaced by the file, and other files are not changed.

use std::os::unix::fs::{FileTypeExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use symmc::{Graph, Tensor, TensorFile};
use symmc_ir::{DType, text};

const PROGRAM: &str = r#"program "p" ranks 1
arg %x: f32[2]
%y: f32[2] = add %x, %x
return %y
"#;

fn program() -> (Graph, Vec<Vec<Tensor>>) {
    let graph = text::parse(PROGRAM).expect("a program");
    (graph, vec![vec![Tensor::from_f64(DType::F32, [2], &[1.0, 2.0]).expect("two elements")]])
}

fn read(path: &Path) -> Vec<f64> {
    TensorFile::open(path).expect("tensors").get("rank0.out.0").expect("f32").expect("there").to_f64()
}

#[test]
fn a_stream_or_a_folder_is_refused_and_stays() {
    let dir = tempfile::tempdir().expect("a folder");
    let (graph, output) = program();
    let socket = dir.path().join("socket");
    let _listener = UnixListener::bind(&socket).expect("a socket");
    let refused = [(socket.as_path(), "a device, a pipe or a socket"), (dir.path(), "a folder")];
    let streams = ["/dev/null", "/dev/stdout", "/dev/fd/2"].map(|path| (Path::new(path), "a device"));
    for (path, what) in refused.into_iter().chain(streams) {
        let message = symmc::check_output(path).expect_err("no file").to_string();
        assert!(message.contains(what), "{message}");
        symmc::write_outputs(path, &graph, 0..1, &output).expect_err("no file");
    }
    assert!(socket.symlink_metadata().expect("it stays").file_type().is_socket());
}

#[test]
fn writing_replaces_a_link_but_not_its_target() {
    let dir = tempfile::tempdir().expect("a folder");
    let (graph, output) = program();
    let (file, link) = (dir.path().join("file.safetensors"), dir.path().join("link.safetensors"));
    std::fs::write(&file, b"old").expect("written");
    for target in [file.as_path(), Path::new("missing"), Path::new("/dev/null"), dir.path()] {
        let _ = std::fs::remove_file(&link);
        symlink(target, &link).expect("a link");
        symmc::check_output(&link).expect("a file can be written");
        assert!(link.symlink_metadata().expect("it stays").file_type().is_symlink(), "nothing is touched");
        symmc::write_outputs(&link, &graph, 0..1, &output).expect("written");
        assert!(link.symlink_metadata().expect("written").is_file());
        assert_eq!(read(&link), [1.0, 2.0]);
        assert_eq!(std::fs::read(&file).expect("it stays"), b"old");
    }
    assert_eq!(std::fs::read_dir(dir.path()).expect("a folder").count(), 2, "no other file is left");
}

#[test]
fn outputs_of_all_types_are_aligned_and_read_back() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("o.safetensors");
    let tensors: Vec<Tensor> =
        DType::ALL.iter().filter_map(|&d| Tensor::from_f64(d, [3], &[1.0, 0.0, 1.0])).collect();
    let program: String =
        tensors.iter().enumerate().map(|(i, t)| format!("arg %x{i}: {}[3]\n", t.dtype())).collect();
    let copies: String =
        tensors.iter().enumerate().map(|(i, t)| format!("%y{i}: {}[3] = copy %x{i}\n", t.dtype())).collect();
    let returned: Vec<String> = (0..tensors.len()).map(|i| format!("%y{i}")).collect();
    let text = format!("program \"p\" ranks 1\n{program}{copies}return {}\n", returned.join(", "));
    let graph = text::parse(&text).expect("a program");
    symmc::write_outputs(&path, &graph, 0..1, std::slice::from_ref(&tensors)).expect("written");
    let file = TensorFile::open(&path).expect("tensors");
    for (i, tensor) in tensors.iter().enumerate() {
        let stored = file.get(&format!("rank0.out.{i}")).expect("known").expect("there");
        assert_eq!(*stored, *tensor);
        let slice = stored.backing_slice().expect("a part of the file, not a copy");
        assert!(slice.range().start.is_multiple_of(tensor.dtype().size()));
    }
}

#[test]
fn input_files_are_not_overwritten_through_any_name() {
    let dir = tempfile::tempdir().expect("a folder");
    let path_of = |name: &str| dir.path().join(name);
    std::fs::write(path_of("a.symm"), "x").expect("written");
    std::fs::write(path_of("b.symm"), "x").expect("written");
    symlink("a.symm", path_of("link")).expect("a link");
    std::fs::hard_link(path_of("a.symm"), path_of("hard")).expect("a link");
    let inputs = [path_of("missing"), path_of("b.symm"), path_of("link")];
    for output in ["a.symm", "b.symm", "link", "hard", "./a.symm"] {
        let error = symmc::refuse_overwrite(&path_of(output), &inputs).expect_err("it is read");
        assert!(error.is_bad_input() && error.to_string().contains(output), "{error}");
    }
    for output in ["missing", "c.symm", "no/folder"] {
        symmc::refuse_overwrite(&path_of(output), &inputs).expect("it is not read");
    }
}

#[test]
fn two_outputs_to_the_same_file_are_rejected() {
    let dir = tempfile::tempdir().expect("a folder");
    let path_of = |name: &str| dir.path().join(name);
    std::fs::write(path_of("there"), "x").expect("written");
    std::fs::create_dir(path_of("folder")).expect("a folder");
    symlink("there", path_of("link")).expect("a link");
    symlink("folder", path_of("other folder")).expect("a link");
    std::fs::hard_link(path_of("there"), path_of("hard")).expect("a link");
    for (first, second) in [
        ("there", "there"),
        ("there", "./there"),
        ("there", "folder/../there"),
        ("there", "link"),
        ("hard", "there"),
        ("new", "new"),
        ("new", "./new"),
        ("folder/new", "other folder/new"),
        ("no/folder", "no/folder"),
    ] {
        let error = symmc::refuse_same_output(&[&path_of("third"), &path_of(first), &path_of(second)])
            .expect_err("it is one file");
        assert!(error.is_bad_input() && error.to_string().contains(first), "{error}");
    }
    let stdout = std::path::Path::new("/dev/stdout");
    symmc::refuse_same_output(&[
        &path_of("there"),
        &path_of("new"),
        &path_of("folder/new"),
        &path_of("no/new"),
    ])
    .expect("four files");
    symmc::refuse_same_output(&[stdout, stdout]).expect("both go to the terminal");
}
