//! The search for a library.
//!
//! If the library's own variable is set (`SYMMC_NCCL_PATH`), only this path is searched. Otherwise the search
//! tries the names that the system's loader knows, then the toolkit that `CUDA_HOME` or `CUDA_PATH` names,
//! then the wheels that `pip install nvidia-nccl-cu13` puts below a Python installation. No Python is run:
//! its folders are derived from the location of `python3` on the `PATH`.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The environment variable that names the library: a file, or the folder that holds `libnccl.so.2`.
pub const PATH_VARIABLE: &str = "SYMMC_NCCL_PATH";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LibraryNames {
    /// The environment variable that names it: a file, or the folder that contains it.
    pub variable: &'static str,
    /// Its file names, the one with the interface's version first.
    pub names: [&'static str; 2],
    /// Its path below a folder of Python packages.
    pub wheel_path: &'static str,
}

pub const NCCL: LibraryNames = LibraryNames {
    variable: PATH_VARIABLE,
    names: ["libnccl.so.2", "libnccl.so"],
    wheel_path: "nvidia/nccl/lib/libnccl.so.2",
};

#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct LibrarySearch {
    /// A file or a folder; if it is set, nothing else is tried.
    pub explicit_path: Option<PathBuf>,
    /// The root of the CUDA toolkit.
    pub toolkit: Option<PathBuf>,
    /// The root of a Python virtual environment.
    pub virtual_env: Option<PathBuf>,
    pub path: Vec<PathBuf>,
    /// The user's home, where `pip install --user` puts packages.
    pub home: Option<PathBuf>,
}

impl LibrarySearch {
    /// The search that this process's environment defines: the library's own variable, `CUDA_HOME`,
    /// `CUDA_PATH`, `VIRTUAL_ENV`, `PATH` and `HOME`. An empty variable counts as unset.
    pub fn from_env(wanted: &LibraryNames) -> LibrarySearch {
        LibrarySearch::from_variables(wanted, &|name| std::env::var_os(name))
    }

    fn from_variables(wanted: &LibraryNames, get: &dyn Fn(&str) -> Option<OsString>) -> LibrarySearch {
        let non_empty = |name| get(name).filter(|value| !value.is_empty());
        LibrarySearch {
            explicit_path: non_empty(wanted.variable).map(PathBuf::from),
            toolkit: non_empty("CUDA_HOME").or_else(|| non_empty("CUDA_PATH")).map(PathBuf::from),
            virtual_env: non_empty("VIRTUAL_ENV").map(PathBuf::from),
            path: non_empty("PATH").map(|p| std::env::split_paths(&p).collect()).unwrap_or_default(),
            home: non_empty("HOME").map(PathBuf::from),
        }
    }

    /// The candidates, in order. A path with a slash is a file, which may not exist; a bare name is for the
    /// system's loader.
    pub fn candidates(&self, wanted: &LibraryNames) -> Vec<PathBuf> {
        if let Some(path) = &self.explicit_path {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            return if path.is_dir() { wanted.names.map(|name| path.join(name)).into() } else { vec![path] };
        }
        let toolkit = self.toolkit.iter().flat_map(|root| ["lib64", "lib"].map(|lib| root.join(lib)));
        let toolkit = toolkit.map(|lib| lib.join(wanted.names[0])).filter(|file| file.is_file());
        let wheels = self.package_folders().into_iter().map(|folder| folder.join(wanted.wheel_path));
        wanted.names.iter().map(PathBuf::from).chain(toolkit).chain(wheels).collect()
    }

    /// The folders of Python packages that exist: those of the virtual environment, then those of every
    /// `python3` on the `PATH` (of the entry itself, and of its target if it is a link), then the user's own.
    /// Each folder appears once, whatever its names.
    fn package_folders(&self) -> Vec<PathBuf> {
        let mut prefixes: Vec<PathBuf> = self.virtual_env.iter().cloned().collect();
        // A relative entry depends on the current folder of the process.
        let programs =
            self.path.iter().filter(|folder| folder.is_absolute()).map(|folder| folder.join("python3"));
        for python in programs.filter(|python| python.is_file()) {
            let real = std::fs::canonicalize(&python).ok();
            let programs = std::iter::once(python).chain(real);
            prefixes.extend(programs.filter_map(|p| Some(p.parent()?.parent()?.to_path_buf())));
        }
        prefixes.extend(self.home.iter().map(|home| home.join(".local")));
        let mut visited = HashSet::new();
        let folders = prefixes.iter().flat_map(|prefix| package_folders_below(prefix));
        folders.filter(|f| visited.insert(std::fs::canonicalize(f).unwrap_or_else(|_| f.clone()))).collect()
    }
}

/// The folders of Python packages below one prefix: `lib/python3.X/site-packages`, the newest Python first, and
/// `dist-packages`, where Debian puts them (also below `local`).
fn package_folders_below(prefix: &Path) -> Vec<PathBuf> {
    let libs = ["lib", "lib64", "local/lib"].map(|lib| prefix.join(lib));
    let mut pythons: Vec<(u32, PathBuf)> = Vec::new();
    for entry in libs.iter().filter_map(|lib| std::fs::read_dir(lib).ok()).flatten().flatten() {
        let name = entry.file_name();
        let minor = match name.to_str().and_then(|n| n.strip_prefix("python3")) {
            Some("") => Some(0),
            Some(rest) => rest.strip_prefix('.').and_then(|n| n.parse().ok()),
            None => None,
        };
        pythons.extend(minor.map(|minor| (minor, entry.path())));
    }
    pythons.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    let folders =
        pythons.iter().flat_map(|(_, python)| ["site-packages", "dist-packages"].map(|d| python.join(d)));
    folders.filter(|folder| folder.is_dir()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(root: &Path, path: &str) -> PathBuf {
        let folder = root.join(path);
        std::fs::create_dir_all(&folder).expect("a new folder");
        folder
    }

    #[test]
    fn the_variable_rules_out_all_else() {
        let root = tempfile::tempdir().expect("a folder");
        folder(root.path(), "venv/lib/python3.12/site-packages");
        let variables = |named: &Path| {
            let (named, venv) = (named.as_os_str().to_owned(), root.path().join("venv").into_os_string());
            LibrarySearch::from_variables(&NCCL, &move |name| match name {
                PATH_VARIABLE => Some(named.clone()),
                "VIRTUAL_ENV" => Some(venv.clone()),
                _ => None,
            })
        };
        let file = root.path().join("my_nccl.so");
        assert_eq!(variables(&file).candidates(&NCCL), std::slice::from_ref(&file));
        let candidates = [root.path().join("libnccl.so.2"), root.path().join("libnccl.so")];
        assert_eq!(variables(root.path()).candidates(&NCCL), candidates);
        assert!(
            variables(Path::new("libx.so")).candidates(&NCCL)[0].is_absolute(),
            "a file, not a name for the loader"
        );
        assert_eq!(variables(Path::new("")).candidates(&NCCL).len(), 3, "empty is unset");
    }

    #[test]
    fn names_then_wheels_of_every_python() {
        let root = tempfile::tempdir().expect("a folder");
        let root = std::fs::canonicalize(root.path()).expect("a real path");
        let expected = [
            folder(&root, "venv/lib/python3.13/site-packages"),
            folder(&root, "conda/lib/python3.11/site-packages"),
            folder(&root, "conda/lib/python3.9/site-packages"),
            folder(&root, "usr/local/lib/python3.12/dist-packages"),
            folder(&root, "usr/lib/python3/dist-packages"),
            folder(&root, "home/.local/lib/python3.12/site-packages"),
        ];
        folder(&root, "conda/lib/perl5/site-packages");
        folder(&root, "opt/lib/python3.8/site-packages");
        let path = ["conda/bin", "opt/bin", "links"].map(|bin| folder(&root, bin));
        std::os::unix::fs::symlink("conda", root.join("alias")).expect("a link");
        std::fs::write(path[0].join("python3"), "").expect("a file");
        std::fs::write(folder(&root, "usr/bin").join("python3.12"), "").expect("a file");
        std::os::unix::fs::symlink("../usr/bin/python3.12", path[2].join("python3")).expect("a link");

        // A relative folder leads to packages as well, and is skipped.
        folder(&root, "relative/lib/python3.12/site-packages");
        std::fs::write(folder(&root, "relative/bin").join("python3"), "").expect("a file");
        let working = std::env::current_dir().expect("a folder");
        let up: PathBuf = working.components().skip(1).map(|_| "..").collect();
        let relative = up.join(root.strip_prefix("/").expect("an absolute path")).join("relative/bin");
        assert!(relative.is_relative() && relative.join("python3").is_file());

        let search = LibrarySearch {
            explicit_path: None,
            toolkit: Some(root.join("cuda")),
            virtual_env: Some(root.join("venv")),
            path: [&path[..], &[root.join("alias/bin"), relative]].concat(),
            home: Some(root.join("home")),
        };
        let in_toolkit = folder(&root, "cuda/lib64").join("libnccl.so.2");
        std::fs::write(&in_toolkit, "").expect("a file");
        let names = ["libnccl.so.2", "libnccl.so"].map(PathBuf::from);
        let wheels = expected.map(|packages| packages.join("nvidia/nccl/lib/libnccl.so.2"));
        assert_eq!(search.candidates(&NCCL), [&names[..], &[in_toolkit], &wheels[..]].concat());
    }
}
