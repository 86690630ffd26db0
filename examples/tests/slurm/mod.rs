//! Ranks under Slurm's `srun`: a controller, a node's daemon and their authentication, all of the test's own and on this host alone.
//!
//! Needs root and Debian's packages slurm-wlm and munge. The daemons run in the foreground as children of the test, and end with it.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::c_library::{has, skip_without, text};
use crate::{LONG, programs, under};

const TEST: &str = "slurm";

/// A daemon, which ends with the test.
struct Daemon(Child);

impl Daemon {
    fn start(words: &[&str]) -> Self {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).stdin(Stdio::null());
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Self(child.expect("it is installed"))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(5) {
            if matches!(self.0.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A port of loopback that was free just now.
fn port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

fn lacking() -> Option<String> {
    let programs = ["munged", "slurmctld", "slurmd", "srun", "sinfo"];
    if let Some(missing) = programs.into_iter().find(|program| !has(program)) {
        return Some(format!("{missing} is not installed"));
    }
    let user = Command::new("id").arg("-u").output().expect("id");
    (text(&user.stdout).trim() != "0").then(|| "its daemons want root".to_owned())
}

fn configuration(folder: &Path, host: &str, cores: usize) -> String {
    let at = folder.display();
    format!(
        "ClusterName=tsumuji\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={}\nSlurmdPort={}\nSlurmUser=root\nSlurmdUser=root\n\
         AuthType=auth/munge\nAuthInfo=socket={at}/munge.socket\nStateSaveLocation={at}/state\nSlurmdSpoolDir={at}/spool\n\
         SlurmctldPidFile={at}/slurmctld.pid\nSlurmdPidFile={at}/slurmd.pid\nSlurmctldLogFile={at}/slurmctld.log\nSlurmdLogFile={at}/slurmd.log\n\
         ProctrackType=proctrack/pgid\nTaskPlugin=task/none\nMpiDefault=none\nReturnToService=2\nSelectType=select/cons_tres\n\
         SelectTypeParameters=CR_CPU\nAccountingStorageType=accounting_storage/none\nJobAcctGatherType=jobacct_gather/none\n\
         NodeName={host} NodeAddr=127.0.0.1 CPUs={cores}\nPartitionName=all Nodes=ALL Default=YES State=UP OverSubscribe=YES\n",
        port(),
        port()
    )
}

/// Ranks of `srun` find each other by PMI-2 and by PMIx, in both languages, within the host's memory or over UDP; without either they are told what
/// is missing.
#[test]
fn ranks_of_slurm() {
    if let Some(reason) = lacking() {
        return skip_without("slurm", TEST, &reason);
    }
    let folder = tempfile::tempdir().expect("folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("text").to_owned();
    for name in ["state", "spool"] {
        std::fs::create_dir(path(name)).expect("folder");
    }
    let host = Command::new("hostname").arg("-s").output();
    let host = text(&host.expect("hostname").stdout).trim().to_owned();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let configuration = configuration(folder.path(), &host, cores);
    std::fs::write(path("slurm.conf"), configuration).expect("write");
    // 1024 bytes that nobody else knows.
    let mut key = std::fs::File::open("/dev/urandom").expect("random");
    let mut secret = vec![0; 1024];
    std::io::Read::read_exact(&mut key, &mut secret).expect("random");
    std::fs::write(path("key"), secret).expect("write");
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o400);
    std::fs::set_permissions(path("key"), private).expect("permissions");
    let option = |name: &str, file: &str| format!("--{name}={}", path(file));
    let _munge = Daemon::start(&[
        "munged",
        "--foreground",
        "--force",
        &option("key-file", "key"),
        &option("socket", "munge.socket"),
        &option("pid-file", "munged.pid"),
        &option("log-file", "munged.log"),
        &option("seed-file", "munge.seed"),
    ]);
    let begun = Instant::now();
    while !Path::new(&path("munge.socket")).exists() {
        if begun.elapsed() > LONG {
            return skip_without("slurm", TEST, "munged does not start on this machine");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let file = path("slurm.conf");
    let _controller = Daemon::start(&["slurmctld", "-D", "-f", &file]);
    let _node = Daemon::start(&["slurmd", "-D", "-f", &file]);
    let ask = |words: &[&str]| {
        let mut command = Command::new(words[0]);
        let output = command.args(&words[1..]).env("SLURM_CONF", &file).output();
        text(&output.expect("it is installed").stdout)
    };
    while ask(&["sinfo", "--noheader", "--format=%t"]).trim() != "idle" {
        if begun.elapsed() > LONG {
            let log = std::fs::read_to_string(path("slurmctld.log")).unwrap_or_default();
            let last = log.lines().last().unwrap_or("no word");
            let reason = format!("its node does not come up on this machine: {last}");
            return skip_without("slurm", TEST, &reason);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let ranks = ["-n", "4", "--overcommit"];
    for program in programs("ring") {
        for (interface, link, named) in [
            ("--mpi=pmi2", None, "shm"),
            ("--mpi=pmix", None, "shm"),
            ("--mpi=pmi2", Some("udp:127.0.0.1:0"), "shm+udp"),
        ] {
            let words = [&["srun", interface][..], &ranks].concat();
            let mut env = vec![("SLURM_CONF", file.as_str())];
            env.extend(link.map(|link| ("TSUMUJI_LINK", link)));
            let said = under(&words, &env, &program, "20").expect("it is installed");
            assert!(
                said.contains(&format!("20 laps of 4 nodes over {named}")),
                "{said}"
            );
        }
    }
    let alone = Command::new("srun")
        .args(["--mpi=none", "-n", "2", "--overcommit"])
        .arg(&programs("ring")[0])
        .env("SLURM_CONF", &file)
        .output();
    let alone = alone.expect("it is installed");
    assert!(!alone.status.success());
    assert!(
        text(&alone.stderr).contains("this process was not launched"),
        "{}",
        text(&alone.stderr)
    );
}
