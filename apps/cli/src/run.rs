//! `tsumuji run`: starts an unmodified program whose TCP connections are carried by the sockets layer.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use object::elf::{self, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};
use object::{Endianness, FileKind};
use serde_json::json;
use tsumuji_gateway::Gateway;
use tsumuji_node::LinkSpec;

use crate::{Outcome, gateway};

/// The preloaded library, and a variable with another place for it.
const LIBRARY: &str = "libtsumuji_sockets.so";
const ENV_LIBRARY: &str = "TSUMUJI_SOCKETS_LIBRARY";
/// Where it is, seen from the program's folder: beside it, or installed.
const PLACES: [&str; 3] = [".", "../lib/tsumuji", "../lib"];
/// Bits of a file's mode.
const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;
/// What the library reads.
const ENV_LINK: &str = "TSUMUJI_SOCKETS_LINK";
const ENV_EXPLAIN: &str = "TSUMUJI_SOCKETS_EXPLAIN";
const ENV_SPIN: &str = "TSUMUJI_SOCKETS_SPIN_US";
const ENV_PRELOAD: &str = "LD_PRELOAD";
/// A script may name a script as its interpreter, so often.
const SCRIPTS_MAX: usize = 4;
/// The kernel reads no more of a script's first line.
const LINE_BYTES: u64 = 256;
/// Larger programs are not read.
const PROGRAM_BYTES_MAX: u64 = 1 << 30;

/// Run an unmodified program; its TCP connections to other programs that are run so pass through shared memory, or by messages between hosts.
///
/// Each end must be run so, by the same user; all other connections stay kernel TCP, and nothing tells them from those of the program
/// alone. With --hosts connections to the other hosts of that file are carried, too, by a gateway on each host (`tsumuji gateway`), which is started if
/// there is none. Datagram sockets are not carried. Programs that are linked statically, and Go programs, call the kernel past the C library: they are named, and run
/// over kernel TCP. Ends as the program does.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  tsumuji run -- redis-server --port 7000\n  tsumuji run --explain -- redis-benchmark -p 7000 -t get -q\n  tsumuji run --hosts lab.toml --key lab.key -- redis-benchmark -h pc2 -p 7000"
)]
pub(crate) struct Args {
    /// What carries connections between hosts, if it is not the link of the hosts file: udp, packet, xdp or dpdk; without --hosts: shm, the processes of one host
    #[arg(long, value_name = "LINK")]
    link: Option<LinkSpec>,
    /// Carry connections to the other hosts of this file, too
    #[arg(long, value_name = "FILE")]
    hosts: Option<PathBuf>,
    /// Which node of the hosts file this host is [default: the one whose name or address is this host's]
    #[arg(long, value_name = "I", requires = "hosts")]
    id: Option<u16>,
    #[command(flatten)]
    security: crate::security::Flags,
    /// Say on standard error which path each connection took, and why; at the end of each process, its counters
    #[arg(long)]
    explain: bool,
    /// Longest time of looking for data before a wait sleeps in the kernel, in microseconds [default: 20; 0: sleep at once]
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u32).range(0..=10_000))]
    spin: Option<u32>,
    /// With --explain: each line is a JSON object
    #[arg(long, requires = "explain")]
    json: bool,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM ARGS")]
    command: Vec<OsString>,
}

/// Runs the command. It returns only if the program cannot be started.
pub(crate) fn run(args: Args) -> Outcome {
    if args.hosts.is_none() {
        if let Some(link) = args.link.filter(|link| *link != LinkSpec::Shm) {
            bail!(
                "--link {link}: between hosts programs are carried with --hosts FILE, which names them"
            );
        }
        if args.security.is_given() {
            bail!(
                "--key, --seal and --open have no effect without --hosts: nothing leaves this host"
            );
        }
    }
    let name = &args.command[0];
    let path = find(name)
        .with_context(|| format!("`{}` is neither a file nor found in PATH", name.display()))?;
    let mut command = Command::new(&path);
    command.arg0(name).args(&args.command[1..]);
    match reach(&path)? {
        Reach::Carried => {
            let library = library()?;
            command.env(ENV_PRELOAD, preloaded(&library)?);
            command.env(
                ENV_LINK,
                if args.hosts.is_some() {
                    "gateway"
                } else {
                    "shm"
                },
            );
            if let Some(hosts) = &args.hosts {
                ensure_gateway(&args, hosts)?;
            }
            if args.explain {
                command.env(ENV_EXPLAIN, if args.json { "json" } else { "text" });
                explain(
                    &args,
                    "carries",
                    "the program is linked dynamically; its datagram sockets are not carried",
                );
            } else {
                command.env_remove(ENV_EXPLAIN);
            }
            command.envs(args.spin.map(|us| (ENV_SPIN, us.to_string())));
        }
        Reach::Beyond(why) => explain(&args, "stays with kernel TCP", &why),
    }
    let error = command.exec();
    Err(error).with_context(|| format!("cannot run `{}`", name.display()))
}

/// Starts this host's gateway, unless it is there.
fn ensure_gateway(args: &Args, hosts: &Path) -> anyhow::Result<()> {
    if Gateway::is_there() {
        return Ok(());
    }
    let file = crate::hosts::read(hosts, args.link.as_ref(), crate::hosts::Slots::of(1))?;
    let security = args.security.stated(args.link.as_ref(), Some(&file))?;
    // Checked here: once started, a gateway may also fail because another one began at the same time.
    if let Err(error) = gateway::own_node(&file, hosts, args.id) {
        bail!("no gateway: {error}");
    }
    let mut words = vec!["--hosts".into(), hosts.as_os_str().to_owned()];
    let mut state = |name: &str, value: Option<String>| {
        words.extend(
            value
                .map(|value| [name.into(), value.into()])
                .into_iter()
                .flatten(),
        );
    };
    state("--id", args.id.map(|id| id.to_string()));
    state("--link", args.link.map(|link| link.to_string()));
    words.extend(crate::security::as_words(&security));
    gateway::start(&words)
}

/// Says what becomes of the whole program.
fn explain(args: &Args, path: &str, why: &str) {
    let program = args.command[0].to_string_lossy();
    let line = if args.json {
        json!({ "event": "run", "program": program, "path": path, "why": why }).to_string()
    } else {
        format!("tsumuji: {program} {path}: {why}")
    };
    // The reader may be gone.
    let _ = std::io::Write::write_all(&mut std::io::stderr(), (line + "\n").as_bytes());
}

/// Where the shell would find a program.
fn find(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(name)).filter(|path| path.is_file());
    }
    let is_program = |path: &PathBuf| {
        std::fs::metadata(path)
            .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders)
        .map(|folder| folder.join(name))
        .find(is_program)
}

/// The library: where the variable says, or beside this program, or where it is installed.
fn library() -> anyhow::Result<PathBuf> {
    if let Some(stated) = std::env::var_os(ENV_LIBRARY) {
        let path = PathBuf::from(stated);
        return path
            .canonicalize()
            .with_context(|| format!("{ENV_LIBRARY}={}", path.display()));
    }
    let own = std::env::current_exe().context("where this program is")?;
    let folder = own.parent().context("where this program is")?;
    let found = PLACES
        .iter()
        .find_map(|place| folder.join(place).join(LIBRARY).canonicalize().ok());
    found.with_context(|| {
        format!(
            "{LIBRARY} is not in {} nor in ../lib/tsumuji: build it (`make sockets`), or say where it is by {ENV_LIBRARY}",
            folder.display()
        )
    })
}

/// The variable for the dynamic linker: ours first, then what was there.
fn preloaded(library: &Path) -> anyhow::Result<OsString> {
    let bytes = library.as_os_str().as_bytes();
    if bytes.iter().any(|byte| matches!(byte, b' ' | b':')) {
        bail!(
            "{}: the dynamic linker takes no path with a space or a colon",
            library.display()
        );
    }
    let mut value = library.as_os_str().to_owned();
    if let Some(more) = std::env::var_os(ENV_PRELOAD).filter(|more| !more.is_empty()) {
        value.push(":");
        value.push(more);
    }
    Ok(value)
}

/// Whether the library can stand before a program's C library.
#[derive(Debug, PartialEq, Eq)]
enum Reach {
    Carried,
    /// It cannot, and why.
    Beyond(String),
}

fn reach(path: &Path) -> anyhow::Result<Reach> {
    let mut path = path.to_owned();
    for _ in 0..SCRIPTS_MAX {
        let Some(interpreter) = interpreter(&path)? else {
            return program(&path);
        };
        path = interpreter;
    }
    Ok(Reach::Beyond(
        "it is a script of a script of a script".to_owned(),
    ))
}

/// What runs a script; `None`: it is no script.
fn interpreter(path: &Path) -> anyhow::Result<Option<PathBuf>> {
    let mut line = Vec::new();
    File::open(path)
        .and_then(|file| file.take(LINE_BYTES).read_to_end(&mut line))
        .with_context(|| path.display().to_string())?;
    let Some(rest) = line.strip_prefix(b"#!") else {
        return Ok(None);
    };
    let line = rest.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut words = line
        .split(|byte| matches!(byte, b' ' | b'\t'))
        .filter(|word| !word.is_empty());
    let first = words.next().unwrap_or_default();
    let through_env = first.ends_with(b"/env");
    let name = if through_env {
        words
            .find(|word| !word.starts_with(b"-"))
            .and_then(|word| find(OsStr::from_bytes(word)))
    } else {
        None
    };
    Ok(Some(name.unwrap_or_else(|| {
        PathBuf::from(OsStr::from_bytes(first))
    })))
}

fn program(path: &Path) -> anyhow::Result<Reach> {
    let place = || path.display().to_string();
    let found = std::fs::metadata(path).with_context(place)?;
    if found.mode() & (SETUID | SETGID) != 0 && !is_owner(&found) {
        return Ok(Reach::Beyond(
            "it runs as another user (set-user-ID), and the dynamic linker then preloads nothing"
                .to_owned(),
        ));
    }
    if found.len() > PROGRAM_BYTES_MAX {
        return Ok(Reach::Carried);
    }
    let bytes = std::fs::read(path).with_context(place)?;
    Ok(of_bytes(&bytes))
}

fn is_owner(found: &std::fs::Metadata) -> bool {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    found.uid() == user.as_raw() && found.gid() == group.as_raw()
}

/// What the program's file shows: which dynamic linker it asks for, and whether it was made by Go.
fn of_bytes(bytes: &[u8]) -> Reach {
    if !matches!(FileKind::parse(bytes), Ok(FileKind::Elf64)) {
        return Reach::Beyond("it is no program of 64 bits".to_owned());
    }
    match parsed(bytes) {
        Ok(reach) => reach,
        Err(error) => Reach::Beyond(format!("its file cannot be read as a program: {error}")),
    }
}

fn parsed(bytes: &[u8]) -> object::read::Result<Reach> {
    let header = FileHeader64::<Endianness>::parse(bytes)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, bytes)?;
    let is_go = sections.iter().any(|section| {
        let name = sections.section_name(endian, section).unwrap_or_default();
        matches!(name, b".go.buildinfo" | b".note.go.buildid") && section.sh_size(endian) > 0
    });
    if is_go {
        return Ok(Reach::Beyond(
            "it is a Go program, which calls the kernel past the C library".to_owned(),
        ));
    }
    let mut linker = None;
    for segment in header.program_headers(endian, bytes)? {
        if segment.p_type(endian) == elf::PT_INTERP {
            linker = segment.interpreter(endian, bytes)?;
        }
    }
    Ok(match linker {
        None => Reach::Beyond(
            "it is linked statically, and the library cannot be loaded into it".to_owned(),
        ),
        Some(linker) if linker.windows(4).any(|part| part == b"musl") => Reach::Beyond(format!(
            "its C library is musl ({}), and the library needs glibc",
            String::from_utf8_lossy(linker)
        )),
        Some(_) => Reach::Carried,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the programs at hand: this test is dynamic, a script is what its interpreter is, and text is none.
    #[test]
    fn programs_are_told_apart() {
        let own = std::env::current_exe().expect("own path");
        assert_eq!(reach(&own).expect("readable"), Reach::Carried);
        let folder = tempfile::tempdir().expect("folder");
        let script = folder.path().join("script");
        std::fs::write(&script, "#!/usr/bin/env sh\nexit 0\n").expect("script");
        assert_eq!(reach(&script).expect("readable"), Reach::Carried);
        std::fs::write(&script, format!("#!{}\n", own.display())).expect("script");
        assert_eq!(reach(&script).expect("readable"), Reach::Carried);
        std::fs::write(&script, "no program").expect("text");
        assert!(matches!(
            reach(&script).expect("readable"),
            Reach::Beyond(_)
        ));
        std::fs::write(&script, format!("#!{}\n", script.display())).expect("script");
        assert!(matches!(
            reach(&script).expect("readable"),
            Reach::Beyond(_)
        ));
        assert!(reach(&folder.path().join("absent")).is_err());
    }

    /// Any bytes are parsed without a panic: the own program, cut and damaged.
    #[test]
    fn damaged_programs_are_refused() {
        let own = std::env::current_exe().expect("own path");
        let bytes = std::fs::read(own).expect("own bytes");
        for length in [0, 4, 16, 63, 64, 100, 1000, 5000] {
            let _ = of_bytes(&bytes[..length]);
        }
        let mut damaged = bytes[..8192].to_vec();
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..2000 {
            let at = random.usize(4..1024);
            damaged[at] = random.u8(..);
            let _ = of_bytes(&damaged);
        }
    }

    /// The name is found as the shell finds it.
    #[test]
    fn names_are_found_in_path() {
        assert!(find(OsStr::new("sh")).is_some_and(|path| path.is_absolute()));
        assert_eq!(find(OsStr::new("no-such-program-anywhere")), None);
        assert_eq!(find(OsStr::new("/no/such")), None);
    }
}
