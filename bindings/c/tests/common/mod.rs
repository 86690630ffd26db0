//! What the tests share: the library as `make install` would put it, and C programs built against that by pkg-config.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use tsumuji_testbed::{Spec, Testbed};

/// Where the tests install to; as in `make install PREFIX=… DESTDIR=…`.
const PREFIX: &str = "/opt/tsumuji-test";

/// A file of the C library's, also for tests of other packages.
pub(crate) fn here(path: &str) -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = package
        .ancestors()
        .find(|folder| folder.join("Cargo.lock").is_file());
    root.expect("a workspace").join("bindings/c").join(path)
}

/// A testbed of so many hosts, which is removed when dropped. Where the rights are missing there is none, and the test's output says so.
pub(crate) fn testbed(test: &str, hosts: u16) -> Option<Testbed> {
    if let Err(reason) = tsumuji_testbed::check_rights() {
        skip(test, &reason.to_string());
        return None;
    }
    let name = format!("t{}-{test}", std::process::id());
    let spec = Spec::new(hosts).named(name.parse().expect("a testbed's name"));
    Some(Testbed::up(&spec).expect("a testbed"))
}

/// Says that a test cannot run here for want of rights.
pub(crate) fn skip(test: &str, reason: &str) {
    println!("SKIPPED {test}: {reason}");
}

/// The same for want of a program that `make test` installs: where TSUMUJI_REQUIRE has the word `what` (`c`, `mpi`), that is a failure.
pub(crate) fn skip_without(what: &str, test: &str, reason: &str) {
    skip(test, reason);
    let required = std::env::var("TSUMUJI_REQUIRE").unwrap_or_default();
    assert!(
        !required.split(',').any(|word| word == what),
        "TSUMUJI_REQUIRE={what}, and {test} cannot run: {reason}"
    );
}

pub(crate) fn has(program: &str) -> bool {
    let found = Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    found.is_ok()
}

/// Runs to the end; what it said goes into the failure.
pub(crate) fn run(command: &mut Command) -> Output {
    let output = command
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// An installed tree in cargo's folder for tests, made anew by each test program.
pub(crate) struct Installed {
    dir: PathBuf,
}

/// Where cargo left the libraries of this build.
pub(crate) fn libraries() -> PathBuf {
    let own = std::env::current_exe().expect("own path");
    own.parent().expect("a folder").to_owned()
}

impl Installed {
    pub(crate) fn new() -> Self {
        let own = std::env::current_exe().expect("own path");
        let name = own
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        let name = name.split('-').next().unwrap_or_default(); // without cargo's hash: old trees do not pile up
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("c-{name}"));
        let _ = std::fs::remove_dir_all(&dir); // there may be none
        std::fs::create_dir_all(&dir).expect("a folder");
        let installed = Self { dir };
        run(Command::new("sh")
            .arg(here("install.sh"))
            .env("LIBS", libraries())
            .env("PREFIX", PREFIX)
            .env("DESTDIR", installed.root())
            .env_remove("LIBDIR")
            .env_remove("PROGRAM"));
        installed
    }

    /// DESTDIR.
    pub(crate) fn root(&self) -> PathBuf {
        self.dir.join("root")
    }

    /// A file below PREFIX.
    pub(crate) fn file(&self, path: &str) -> PathBuf {
        let prefix = PREFIX.trim_start_matches('/');
        self.root().join(prefix).join(path)
    }

    /// What pkg-config answers, in words.
    pub(crate) fn pkg_config(&self, arguments: &[&str]) -> Vec<String> {
        let output = run(Command::new("pkg-config")
            .args(arguments)
            .arg("tsumuji")
            .env("PKG_CONFIG_LIBDIR", self.file("lib/pkgconfig"))
            .env("PKG_CONFIG_SYSROOT_DIR", self.root()));
        text(&output.stdout)
            .split_whitespace()
            .map(str::to_owned)
            .collect()
    }

    /// Builds a program of `sources`, as its users would, but with every warning an error.
    pub(crate) fn build(&self, name: &str, sources: &[&str], more: &[&str]) -> PathBuf {
        let program = self.dir.join(name);
        let is_cpp = sources.iter().any(|source| source.ends_with(".cpp"));
        let (compiler, standard) = if is_cpp {
            ("g++", "-std=c++11")
        } else {
            ("gcc", "-std=c99")
        };
        let is_static = more.contains(&"static-library");
        let libs: &[&str] = if is_static {
            &["--cflags", "--libs", "--static"]
        } else {
            &["--cflags", "--libs"]
        };
        let mut libs = self.pkg_config(libs);
        if is_static {
            // Without the shared one, so that the linker takes the archive; what it needs itself stays shared.
            let archive = self.file("lib/libtsumuji.a");
            libs.retain(|word| word != "-ltsumuji");
            libs.insert(0, archive.to_str().expect("UTF-8").to_owned());
        }
        run(Command::new(compiler)
            .args([
                standard,
                "-Wall",
                "-Wextra",
                "-Wpedantic",
                "-Werror",
                "-O1",
                "-g",
            ])
            .args(sources.iter().map(|source| here(source)))
            .arg("-o")
            .arg(&program)
            .args(more.iter().filter(|word| **word != "static-library"))
            .args(libs)
            .arg("-pthread"));
        program
    }

    /// The program with its library found.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        let (name, folder) = self.library_path();
        command.env(name, folder);
        for name in ["TSUMUJI_RENDEZVOUS", "TSUMUJI_CLUSTER", "TSUMUJI_LINK"] {
            command.env_remove(name);
        }
        command
    }

    pub(crate) fn library_path(&self) -> (OsString, OsString) {
        ("LD_LIBRARY_PATH".into(), self.file("lib").into_os_string())
    }

    pub(crate) fn scratch(&self) -> &Path {
        &self.dir
    }
}

/// One for all tests of a test program.
pub(crate) fn installed() -> &'static Installed {
    static INSTALLED: OnceLock<Installed> = OnceLock::new();
    INSTALLED.get_or_init(Installed::new)
}
