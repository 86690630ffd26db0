//! Servers of the system under load: redis, nginx and memcached, each with the load generator that belongs to it, over kernel TCP or through `tsumuji run`.
//!
//! Called by `figures::programs`. Neither program is changed, and both have their usual settings, but that redis saves nothing and answers other
//! hosts, and nginx has one worker and keeps no log of requests.
//! What a measurement starts is ended with it.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tsumuji_testbed::{Host, Testbed};

use super::{Ended, PATIENCE, PeerError, run_within};
use crate::stop;
use crate::streams::Path as Way;

/// Connections that a load keeps busy.
const CONNECTIONS: &str = "50";
/// Requests of one measurement of redis, for each that is under way at once: about a second of TCP.
const REQUESTS: u32 = 100_000;
/// The same where the benchmark is only tried.
const REQUESTS_TRIED: u32 = 2_000;
/// With pipelining a request takes less time.
const PIPELINED_TIMES: u32 = 10;
/// Bytes of nginx's file: as the page that it comes with.
pub(crate) const FILE_BYTES: usize = 612;
/// Longest time until a server listens.
const START: Duration = Duration::from_secs(10);
/// Interval of asking whether it does.
const CHECK_EVERY: Duration = Duration::from_millis(5);

/// Where servers and loads run.
pub(crate) struct Ground<'a> {
    /// `tsumuji`.
    pub(crate) program: &'a Path,
    /// For TCP between hosts: the server is in its first host, the load in the second.
    pub(crate) testbed: Option<&'a Testbed>,
    /// Fewer requests, whose figures are not to be quoted.
    pub(crate) is_tried: bool,
}

/// The two programs of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Server,
    Load,
}

impl Ground<'_> {
    fn host(&self, way: Way, side: Side) -> Option<&Host> {
        let testbed = self.testbed.filter(|_| way.is_between_hosts())?;
        testbed.hosts().get(side as usize)
    }

    /// A command that starts a program of one side over `way`.
    fn command(&self, way: Way, side: Side, program: &Path) -> Command {
        if let Some(host) = self.host(way, side) {
            return host.command(program);
        }
        if way != Way::Carried {
            return Command::new(program);
        }
        let mut command = Command::new(self.program);
        command.args(["run", "--"]).arg(program);
        command
    }
}

/// A server with its load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Service {
    /// redis by redis-benchmark.
    Redis {
        /// Requests that a connection has under way at once.
        pipelining: u32,
    },
    /// nginx by wrk: a small file.
    Nginx,
    /// memcached by memcaslap: nine reads for each write.
    Memcached,
}

/// A program, and Debian's package that has it.
struct Program {
    name: &'static str,
    package: &'static str,
}

impl Program {
    const fn new(name: &'static str, package: &'static str) -> Self {
        Self { name, package }
    }

    /// Where it is: in PATH, or where programs of administrators are.
    fn find(&self) -> Result<PathBuf, PeerError> {
        let folders = std::env::var_os("PATH").unwrap_or_default();
        let more = ["/usr/sbin"].map(PathBuf::from);
        let found = std::env::split_paths(&folders)
            .chain(more)
            .map(|folder| folder.join(self.name))
            .find(|path| path.is_file());
        found.ok_or(PeerError::NotInstalled {
            package: self.package,
        })
    }

    fn failed(&self, problem: impl ToString) -> PeerError {
        PeerError::failed(self.name, problem)
    }
}

impl Service {
    fn server(self) -> Program {
        match self {
            Self::Redis { .. } => Program::new("redis-server", "redis-server"),
            Self::Nginx => Program::new("nginx", "nginx-light"),
            Self::Memcached => Program::new("memcached", "memcached"),
        }
    }

    fn load(self) -> Program {
        match self {
            Self::Redis { .. } => Program::new("redis-benchmark", "redis-tools"),
            Self::Nginx => Program::new("wrk", "wrk"),
            Self::Memcached => Program::new("memcaslap", "libmemcached-tools"),
        }
    }

    /// Name and version of the server, as it says them.
    pub(crate) fn version(self) -> Result<String, PeerError> {
        let server = self.server();
        let option = match self {
            Self::Redis { .. } => "--version",
            Self::Nginx => "-v",
            Self::Memcached => "-V",
        };
        let mut command = Command::new(server.find()?);
        let left = run_within(command.arg(option), START, server.name)?;
        let said = left.stdout + &left.stderr;
        let words: Vec<&str> = said.split_whitespace().take(3).collect();
        Ok(words.join(" "))
    }

    /// Requests a second over `way`; of redis SET, then GET.
    pub(crate) fn measure(self, ground: &Ground<'_>, way: Way) -> Result<Vec<f64>, PeerError> {
        let (server, load) = (self.server(), self.load());
        let (at_server, at_load) = (server.find()?, load.find()?);
        let failed = |error: io::Error| server.failed(error);
        let folder = tempfile::tempdir().map_err(failed)?;
        let ip = ground
            .host(way, Side::Server)
            .map_or(Ipv4Addr::LOCALHOST, Host::ip);
        let port = free_port().map_err(failed)?;
        let mut command = ground.command(way, Side::Server, &at_server);
        self.listen(&mut command, (ip, port), folder.path())
            .map_err(failed)?;
        let log = File::create(folder.path().join("server.log")).map_err(failed)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(failed)?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let mut running = Ended(child);
        wait_for(&mut running, port).map_err(|problem| server.failed(problem))?;
        let mut command = ground.command(way, Side::Load, &at_load);
        self.drive(&mut command, (ip, port), ground.is_tried);
        let left = run_within(&mut command, PATIENCE, load.name)?;
        let ended = left.status.filter(ExitStatus::success);
        ended
            .and_then(|_| self.read(&left.stdout))
            .ok_or_else(|| left.failure(load.name))
    }

    /// The server's arguments, and its files in `folder`.
    fn listen(
        self,
        command: &mut Command,
        (ip, port): (Ipv4Addr, u16),
        folder: &Path,
    ) -> io::Result<()> {
        let (ip, port) = (ip.to_string(), port.to_string());
        match self {
            Self::Redis { .. } => {
                command.args(["--bind", &ip, "--port", &port, "--save", ""]);
                command
                    .args(["--protected-mode", "no", "--dir"])
                    .arg(folder);
            }
            Self::Nginx => {
                std::fs::write(folder.join("file"), vec![b'x'; FILE_BYTES])?;
                let file = folder.join("nginx.conf");
                std::fs::write(&file, nginx_settings(&format!("{ip}:{port}"), folder))?;
                command.arg("-c").arg(file);
            }
            Self::Memcached => {
                // Started by root, it asks for a user.
                command.args(["-u", "root", "-l", &ip, "-p", &port]);
            }
        }
        Ok(())
    }

    /// The load's arguments.
    fn drive(self, command: &mut Command, (ip, port): (Ipv4Addr, u16), is_tried: bool) {
        let (ip, port) = (ip.to_string(), port.to_string());
        match self {
            Self::Redis { pipelining } => {
                let requests = match (is_tried, pipelining) {
                    (true, _) => REQUESTS_TRIED,
                    (false, 1) => REQUESTS,
                    (false, _) => REQUESTS * PIPELINED_TIMES,
                };
                command.args(["-h", &ip, "-p", &port, "-t", "set,get", "--csv"]);
                command.args(["-c", CONNECTIONS, "-n", &requests.to_string()]);
                command.args(["-P", &pipelining.to_string()]);
            }
            Self::Nginx => {
                command.args(["-t", "1", "-c", CONNECTIONS, "-d", "1s"]);
                command.arg(format!("http://{ip}:{port}/file"));
            }
            Self::Memcached => {
                command.args(["-s", &format!("{ip}:{port}"), "-c", CONNECTIONS]);
                // One thread, which first writes a thousand values by each connection.
                command.args(["-T", "1", "-w", "1k", "-X", "64", "-t", "1s"]);
            }
        }
    }

    /// The rates that a load reports; `None`: it reports none, or failed requests.
    fn read(self, report: &str) -> Option<Vec<f64>> {
        match self {
            Self::Redis { .. } => ["SET", "GET"]
                .map(|name| of_csv(report, name))
                .into_iter()
                .collect(),
            Self::Nginx => {
                let has_failed = report.contains("Socket errors") || report.contains("Non-2xx");
                let rate = behind(report, "Requests/sec:").filter(|_| !has_failed)?;
                Some(vec![rate])
            }
            Self::Memcached => Some(vec![behind(report, "TPS:")?]),
        }
    }
}

/// nginx's settings: one process that serves, in the foreground, with all its files in `folder`.
fn nginx_settings(address: &str, folder: &Path) -> String {
    let at = folder.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {at}/{name};"))
        .concat();
    // Its worker would not be allowed to read the folder of root.
    let user = match rustix::process::geteuid().is_root() {
        true => "user root;",
        false => "",
    };
    format!(
        "{user} worker_processes 1; daemon off; pid {at}/pid; error_log stderr; events {{ worker_connections 256; }}\n\
         http {{ access_log off; sendfile on; {temporary} server {{ listen {address}; root {at}; }} }}\n"
    )
}

/// A port that nobody has; a testbed's hosts have none in use.
fn free_port() -> io::Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    Ok(listener.local_addr()?.port())
}

/// Waits until the server listens. The kernel is asked, so that the server sees the load's connections only.
fn wait_for(server: &mut Ended, port: u16) -> Result<(), String> {
    let table = format!("/proc/{}/net/tcp", server.0.id());
    let wanted = format!(":{port:04X} 00000000:0000 0A");
    let until = Instant::now() + START;
    loop {
        if std::fs::read_to_string(&table).is_ok_and(|table| table.contains(&wanted)) {
            return Ok(());
        }
        if let Ok(Some(status)) = server.0.try_wait() {
            return Err(format!("it ended early: {status}"));
        }
        if stop::is_wanted() {
            return Err(stop::REASON.to_owned());
        }
        if Instant::now() > until {
            return Err("it does not listen".to_owned());
        }
        std::thread::sleep(CHECK_EVERY);
    }
}

/// The second field of the line of that name: `"SET","123456.78","0.4"`.
fn of_csv(report: &str, name: &str) -> Option<f64> {
    let head = format!("\"{name}\",\"");
    let fields = report.lines().find_map(|line| line.strip_prefix(&*head))?;
    fields.split('"').next()?.parse().ok()
}

/// The number behind a word.
fn behind(report: &str, word: &str) -> Option<f64> {
    let (_, rest) = report.split_once(word)?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each load's report is read as it prints it; one of failed requests, or of another program, gives no rate.
    #[test]
    fn reports_are_read() {
        let csv = "\"test\",\"rps\",\"avg_latency_ms\"\n\"SET\",\"201600.00\",\"1.420\"\n\"GET\",\"336000.50\",\"0.390\"\n";
        let wrk = "  1000 requests in 1.10s, 830.00KB read\nRequests/sec:  98765.43\nTransfer/sec:     80.00MB\n";
        let caslap = "get_misses: 0\n\nRun time: 1.0s Ops: 48191 TPS: 48187 Net_rate: 9.7M/s\n";
        let redis = Service::Redis { pipelining: 1 };
        assert_eq!(redis.read(csv), Some(vec![201_600.0, 336_000.5]));
        assert_eq!(Service::Nginx.read(wrk), Some(vec![98_765.43]));
        assert_eq!(Service::Memcached.read(caslap), Some(vec![48_187.0]));
        let failed = format!("{wrk}  Socket errors: connect 0, read 3, write 0, timeout 0\n");
        assert_eq!(Service::Nginx.read(&failed), None);
        assert_eq!(redis.read(&csv.replace("GET", "LPUSH")), None);
        assert_eq!(Service::Memcached.read(wrk), None);
    }

    /// Over shared memory a program is run by `tsumuji run`, over TCP as it is.
    #[test]
    fn programs_are_started() {
        let ground = Ground {
            program: Path::new("/bin/tsumuji"),
            testbed: None,
            is_tried: true,
        };
        let words = |way| {
            let command = ground.command(way, Side::Load, Path::new("/bin/wrk"));
            let words = std::iter::once(command.get_program()).chain(command.get_args());
            let words: Vec<_> = words
                .map(|word| word.to_string_lossy().into_owned())
                .collect();
            words.join(" ")
        };
        assert_eq!(words(Way::Carried), "/bin/tsumuji run -- /bin/wrk");
        assert_eq!(words(Way::Tcp), "/bin/wrk");
    }

    /// A program that is not there is named by its package.
    #[test]
    fn missing_programs_name_their_package() {
        let program = Program::new("no-such-program", "some-package");
        let error = program.find().unwrap_err().to_string();
        assert!(error.contains("some-package"), "{error}");
    }
}
