//! Loading, version gates and errors, with fake libraries that the C compiler builds from `fake_nccl.c`. They
//! need neither a GPU nor NCCL.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use libloading::os::unix::Library;
use nccl_sys::{
    Comm, LibrarySearch, LoadError, LoadFailure, MissingFunction, Nccl, NcclConfig, PATH_VARIABLE, Version,
    Window, cta_policy,
};
use tempfile::TempDir;

/// Builds the fake library as `path`.
fn fake(path: &Path, definitions: &[&str]) -> PathBuf {
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("a new folder");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake_nccl.c");
    let status = Command::new("gcc")
        .args(["-shared", "-fPIC", "-Wall", "-Werror", "-Wl,-soname,libnccl.so.2", "-o"])
        .arg(path)
        .args(definitions)
        .arg(source)
        .status()
        .expect("gcc runs");
    assert!(status.success());
    path.to_path_buf()
}

fn only(path: &Path) -> LibrarySearch {
    LibrarySearch { explicit_path: Some(path.to_path_buf()), ..LibrarySearch::default() }
}

fn refusals(error: &LoadError) -> Vec<&LoadFailure> {
    error.attempts.iter().map(|a| &a.failure).collect()
}

/// A library is not even opened if another user could have put it there: its initialisers would run.
#[test]
fn library_in_a_writable_folder_is_not_loaded() {
    let dir = TempDir::new().expect("a folder");
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("permissions");
    };
    let open = dir.path().join("open");
    let library = fake(&open.join("libnccl.so.2"), &["-DVERSION=22707", "-DCONFIG=72"]);
    mode(&open, 0o755);
    mode(&library, 0o644);
    Nccl::find_library(&only(&open)).expect("nobody else can write there");
    for (path, open_mode, closed) in [(&open, 0o777, 0o755), (&open, 0o1777, 0o755), (&library, 0o666, 0o644)]
    {
        mode(path, open_mode);
        for search in [only(&open), only(&library)] {
            let error = Nccl::find_library(&search).expect_err("it is not trusted");
            assert!(
                matches!(&error.attempts[0].failure, LoadFailure::Untrusted { found } if found.path == *path),
                "{error}"
            );
            assert!(error.to_string().contains(&format!("chmod go-w {}", path.display())), "{error}");
        }
        mode(path, closed);
    }
    Nccl::find_library(&only(&open)).expect("nobody else can write there any more");
}

#[test]
fn unusable_libraries_are_listed() {
    let dir = TempDir::new().expect("a folder");
    let file = |name: &str| dir.path().join(name);
    let old = fake(&file("old.so"), &["-DVERSION=22605", "-DCONFIG=72"]);
    let partial = fake(&file("partial.so"), &["-DVERSION=22707", "-DCONFIG=72", "-DPARTIAL"]);
    std::fs::write(file("text.so"), "not a library").expect("a file");

    let refused = |path: &Path| {
        let error = Nccl::find_library(&only(path)).expect_err("no library to use");
        assert_eq!(error.attempts[0].path, path);
        error
    };
    let error = refused(&old);
    assert_eq!(refusals(&error), [&LoadFailure::Old { found: Version::new(2, 26, 5) }]);
    assert_eq!(
        error.to_string(),
        format!(
            "no usable NCCL library (2.27.0 or newer); tried:\n  {}: found version 2.26.5, expected 2.27.0 or newer\n\
             install one with `pip install nvidia-nccl-cu13` (nvidia-nccl-cu12 for CUDA 12) or the system's package \
             libnccl2, or set {PATH_VARIABLE} to the file libnccl.so.2 or its folder",
            old.display()
        )
    );
    assert_eq!(refusals(&refused(&partial)), [&LoadFailure::NoSymbol("ncclCommWindowRegister")]);
    assert_eq!(refusals(&refused(&file("none.so"))), [&LoadFailure::Absent]);
    let error = refused(&file("text.so"));
    assert!(
        matches!(&error.attempts[0].failure, LoadFailure::Loader(text) if text.contains("text.so")),
        "{error}"
    );
    let error = Nccl::find_library(&only(dir.path())).expect_err("an empty folder");
    assert_eq!(refusals(&error), [&LoadFailure::Absent, &LoadFailure::Absent]);
}

#[test]
fn an_old_library_is_passed_over() {
    let dir = TempDir::new().expect("a folder");
    fake(&dir.path().join("libnccl.so.2"), &["-DVERSION=21805", "-DCONFIG=72"]);
    let new = fake(&dir.path().join("libnccl.so"), &["-DVERSION=22707", "-DCONFIG=72"]);
    let nccl = Nccl::find_library(&only(dir.path())).expect("a usable library");
    assert_eq!((nccl.path(), nccl.version()), (new.as_path(), Version::new(2, 27, 7)));
}

#[test]
fn later_functions_are_optional() {
    let dir = TempDir::new().expect("a folder");
    let first = fake(&dir.path().join("first/libnccl.so.2"), &["-DVERSION=22707", "-DCONFIG=72"]);
    let later = fake(&dir.path().join("later/libnccl.so"), &["-DVERSION=23203", "-DCONFIG=120", "-DLATER"]);
    // Both stay in the process together, with the same soname, and neither becomes global.
    let first = Nccl::find_library(&only(&first)).expect("the first version");
    let later = Nccl::find_library(&only(later.parent().expect("a folder"))).expect("a later version");
    assert_eq!((first.version(), later.version()), (Version::new(2, 27, 7), Version::new(2, 32, 3)));
    // SAFETY: the symbol is looked up, not used.
    let global = unsafe { Library::this().get::<*const ()>("ncclGetLsaDevicePointer") };
    assert!(global.is_err(), "the library's symbols are its own");

    let version = Version::new(2, 27, 7);
    let missing = |symbol, minor, patch| MissingFunction {
        symbol,
        since: Version::new(2, minor, patch),
        found: version,
    };
    assert_eq!(first.all_to_all().err(), Some(missing("ncclAlltoAll", 28, 0)));
    let error = first.get_lsa_device_pointer().expect_err("2.27 has no such function");
    assert_eq!(error, missing("ncclGetLsaDevicePointer", 29, 2));
    assert_eq!(error.to_string(), "NCCL 2.27.7 has no ncclGetLsaDevicePointer; expected 2.29.2 or newer");

    assert!(later.all_to_all().is_ok());
    let pointer = later.get_lsa_device_pointer().expect("2.32 has it");
    let mut address = std::ptr::null_mut();
    // SAFETY: the fake function only adds numbers.
    let code = unsafe { pointer(Window(0x10000 as *mut _), 256, 3, &mut address) };
    assert_eq!((code, address as usize), (0, 0x10000 + 256 + 3 * 4096));
}

#[test]
fn configs_and_errors_of_every_layout() {
    let dir = TempDir::new().expect("a folder");
    for (code, size) in [("22707", 72), ("22809", 80), ("22907", 88), ("23203", 120)] {
        let definitions = [format!("-DVERSION={code}"), format!("-DCONFIG={size}")];
        let library = fake(&dir.path().join(code), &definitions.each_ref().map(String::as_str));
        let nccl = Nccl::find_library(&only(&library)).expect("a usable library");
        let id = nccl.unique_id().expect("an id");
        assert_eq!(nccl_sys::UniqueId::from_bytes(id.to_bytes()).internal, id.internal);
        let init = |rank, set: fn(&mut NcclConfig)| {
            let mut config = NcclConfig::default();
            set(&mut config);
            nccl.comm_init_rank(4, id, rank, &config)
        };

        let comm = |n: usize| Ok(Comm(n as *mut _));
        assert_eq!(init(2, |_| ()), comm(3), "{code}");
        assert_eq!(init(0, |c| c.blocking = 0), comm(1), "in progress is no failure");
        let message = |rank, set| init(rank, set).expect_err("a failure").to_string();
        assert_eq!(
            message(0, |c| c.cta_policy = cta_policy::ZERO),
            "ncclCommInitRankConfig failed with ncclSystemError (2): unhandled system error; last message: no copy \
             engines"
        );
        assert_eq!(
            message(4, |_| ()),
            "ncclCommInitRankConfig failed with code 99: unknown result code; last message: no such rank"
        );
        // SAFETY: the fake function accepts any handle.
        let state = |n: usize| unsafe { nccl.async_state(Comm(n as *mut _)) };
        assert_eq!([state(1), state(1), state(1), state(2)], [Ok(7), Ok(7), Ok(0), Ok(2)], "{code}");
        assert!(state(0).expect_err("no communicator").to_string().contains("ncclCommGetAsyncError"));
        let error = init(u32::MAX, |_| ()).expect_err("no such rank");
        assert!(error.text.contains("4294967295"), "{error}");
    }
}

/// `load` reads this process's environment, so the test runs itself with another environment.
#[test]
fn load_follows_the_environment() {
    const NAME: &str = "load_follows_the_environment";
    const CHILD: &str = "NCCL_SYS_TEST_CHILD";
    if std::env::var_os(CHILD).is_some() {
        let path = PathBuf::from(std::env::var_os(PATH_VARIABLE).expect("the parent's choice"));
        assert!(Nccl::load().is_err(), "there is no library yet");
        fake(&path, &["-DVERSION=22809", "-DCONFIG=80", "-DLATER"]);
        let nccl = Nccl::load().expect("a usable library");
        assert_eq!((nccl.path(), nccl.version()), (path.as_path(), Version::new(2, 28, 9)));
        std::fs::remove_file(path).expect("the file is there");
        assert!(std::ptr::eq(Nccl::load().expect("the same library"), nccl));
        return;
    }
    let dir = TempDir::new().expect("a folder");
    let output = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", NAME])
        .env(CHILD, "1")
        .env(PATH_VARIABLE, dir.path().join("mine.so"))
        .output()
        .expect("this test runs again");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}
