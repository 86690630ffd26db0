//! Real programs, each driven by its own client, over kernel TCP and over ours; what comes out must be the same, byte for byte.

mod common;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{
    Carried, Kernel, LIMIT, Server, Way, bytes, carried, free_port, has, program, short, skip,
    succeed, which, with,
};
use tempfile::TempDir;

const WAYS: [Way; 2] = [Kernel, Carried];

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

/// Runs `act` over both, and what it returns must be the same. It returns the program's results, and what the library has explained.
fn compare(act: impl Fn(Way) -> (Vec<u8>, String)) {
    let [kernel, mut ours] = WAYS.map(&act);
    // An end that shuts down before the other one has confirmed its offer stays with TCP, which happens on a busy machine.
    for _ in 0..5 {
        if carried(ours.1.as_bytes()) == 0 {
            ours = act(Carried);
        }
    }
    assert!(
        kernel.0 == ours.0,
        "kernel: {}\nours: {}",
        short(&kernel.0),
        short(&ours.0)
    );
    assert!(!kernel.0.is_empty(), "no results");
    assert_eq!(carried(kernel.1.as_bytes()), 0);
    assert!(
        carried(ours.1.as_bytes()) > 0,
        "nothing was carried: {}",
        ours.1
    );
}

/// The lines of a report for which this holds: those that say what was exchanged, and not when, how fast, or by which port.
fn lines(said: &[u8], keep: impl Fn(&str) -> bool) -> Vec<u8> {
    let text = String::from_utf8_lossy(said);
    let kept = text.lines().filter(|line| keep(line));
    kept.flat_map(|line| [line.trim_end(), "\n"])
        .collect::<String>()
        .into_bytes()
}

/// redis: commands and answers by redis-cli; redis-benchmark with and without pipelining, and what it leaves in the server.
#[test]
fn redis() {
    if !has("redis", &["redis-server", "redis-cli", "redis-benchmark"]) {
        return;
    }
    compare(|way| {
        let (folder, port) = (folder(), free_port().to_string());
        let mut server = program(way, "redis-server");
        server.args([
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--port",
            &port,
            "--dir",
        ]);
        server.arg(folder.path());
        let server = Server::start(server, folder.path()).wait_for(port.parse().expect("a port"));
        let mut commands = String::new();
        for number in 0..200 {
            let value = "v".repeat(number * 37 % 5000);
            commands += &format!("SET key{number} {value}\nGET key{number}\nINCR count\n");
        }
        commands += "GET count\nSTRLEN key199\nEXISTS key199\nECHO end\n";
        let mut client = program(way, "redis-cli");
        let answers = succeed(client.args(["-p", &port]), commands.as_bytes());
        for pipelining in ["1", "16"] {
            let mut bench = program(way, "redis-benchmark");
            bench.args([
                "-p",
                &port,
                "-n",
                "20000",
                "-c",
                "20",
                "-t",
                "set,get,lpush,mset",
                "-P",
                pipelining,
            ]);
            succeed(bench.arg("-q"), b"");
        }
        let left = "DBSIZE\nLLEN mylist\nLRANGE mylist 0 20\nGET key:__rand_int__\n";
        let mut client = program(way, "redis-cli");
        let left = succeed(client.args(["-p", &port]), left.as_bytes());
        ([answers.stdout, left.stdout].concat(), server.end())
    });
}

/// memcached with several threads: a text session by netcat, and files that its own client stores and reads.
#[test]
fn memcached() {
    if !has("memcached", &["memcached", "nc", "memccp", "memccat"]) {
        return;
    }
    compare(|way| {
        let (folder, port) = (folder(), free_port());
        let mut server = program(way, "memcached");
        server.args([
            "-u",
            "root",
            "-l",
            "127.0.0.1",
            "-t",
            "3",
            "-p",
            &port.to_string(),
        ]);
        let server = Server::start(server, folder.path()).wait_for(port);
        let mut session = String::new();
        for number in 0..300 {
            let value = "x".repeat(1 + number * 61 % 3000);
            session += &format!(
                "set k{number} 0 0 {}\r\n{value}\r\nget k{number}\r\n",
                value.len()
            );
        }
        session += "incr none 1\r\ndelete k7\r\nget k7\r\nquit\r\n";
        let mut client = program(way, "nc");
        client.args(["-q", "1", "127.0.0.1", &port.to_string()]);
        let mut results = succeed(&mut client, session.as_bytes()).stdout;
        let servers = format!("--servers=127.0.0.1:{port}");
        for size in [1, 5000, 900_000] {
            let name = size.to_string();
            let file = folder.path().join(&name);
            std::fs::write(&file, bytes(size)).expect("a file");
            succeed(program(way, "memccp").arg(&servers).arg(&file), b"");
            let read = succeed(program(way, "memccat").args([&servers, &name]), b"");
            assert!(read.stdout.starts_with(&bytes(size)), "{size} bytes");
            results.extend(read.stdout);
        }
        (results, server.end())
    });
}

fn nginx_with(workers: u32) {
    if !has("nginx", &["nginx", "curl", "wrk"]) {
        return;
    }
    compare(|way| {
        let (folder, port) = (folder(), free_port());
        let at = folder.path().display();
        let sizes = [0, 1, 612, 65536, 3_000_000];
        for size in sizes {
            std::fs::write(folder.path().join(size.to_string()), bytes(size)).expect("a file");
        }
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {at}/{name};"))
            .concat();
        let user = if is_root() { "user root;" } else { "" };
        let config = format!(
            "{user} worker_processes {workers}; daemon off; pid {at}/pid; error_log stderr; events {{ worker_connections 256; }}\n\
             http {{ access_log off; sendfile on; tcp_nopush on; {temporary} server {{ listen 127.0.0.1:{port}; root {at};\n\
             location /through/ {{ proxy_pass http://127.0.0.1:{port}/; }} }} }}\n"
        );
        let file = folder.path().join("nginx.conf");
        std::fs::write(&file, config).expect("a file");
        let mut server = program(way, "nginx");
        server.arg("-c").arg(&file);
        let server = Server::start(server, folder.path()).wait_for(port);
        let mut results = Vec::new();
        for size in sizes {
            let url = format!("http://127.0.0.1:{port}/{size}");
            let through = format!("http://127.0.0.1:{port}/through/{size}");
            // Twice over one connection; the third time nginx asks itself for it.
            let urls = ["-sS", &url, &url, &through];
            let answer = succeed(program(way, "curl").args(urls), b"");
            assert!(answer.stdout == bytes(size).repeat(3), "{size} bytes");
            results.extend(answer.stdout);
            let mut client = program(way, "curl");
            let head = succeed(client.args(["-sS", "--head", &url]), b"").stdout;
            let of_the_time = ["Date:", "Last-Modified:", "ETag:"];
            results.extend(lines(&head, |line| {
                !of_the_time.iter().any(|name| line.starts_with(*name))
            }));
        }
        for (name, header) in [
            ("612", "X: y"),
            ("65536", "X: y"),
            ("612", "Connection: close"),
        ] {
            let url = format!("http://127.0.0.1:{port}/{name}");
            let mut load = program(way, "wrk");
            let load = succeed(load.args(["-t2", "-c16", "-d1", "-H", header, &url]), b"");
            let report = String::from_utf8_lossy(&load.stdout).into_owned();
            let has_failed = report.contains("Socket errors") || report.contains("Non-2xx");
            assert!(
                !has_failed && report.contains("Requests/sec"),
                "{way:?}: {report}"
            );
        }
        (results, server.end())
    });
}

/// nginx and curl: files of several sizes, and their heads; wrk: no errors.
#[test]
fn nginx() {
    nginx_with(1);
}

/// The same with four processes that accept from one socket.
#[test]
fn nginx_of_several_workers() {
    nginx_with(4);
}

/// iperf3: a stream each way, and three at once; its report, but for numbers.
#[test]
fn iperf3() {
    if !has("iperf3", &["iperf3"]) {
        return;
    }
    compare(|way| {
        let (mut report, mut log) = (Vec::new(), String::new());
        for options in [&["-P", "1"][..], &["-R"], &["-P", "3"]] {
            let (folder, port) = (folder(), free_port().to_string());
            let mut server = program(way, "iperf3");
            server.args(["-s", "-1", "-B", "127.0.0.1", "-p", &port]);
            let server =
                Server::start(server, folder.path()).wait_for(port.parse().expect("a port"));
            let mut client = program(way, "iperf3");
            client
                .args(["-c", "127.0.0.1", "-p", &port, "-n", "200M", "-i", "0"])
                .args(options);
            let said = succeed(&mut client, b"").stdout;
            // Numbers, and their units, differ from run to run.
            let has_no_number = |word: &&str| !word.contains(|sign: char| sign.is_ascii_digit());
            let is_no_unit = |word: &&str| !word.ends_with("Bytes") && !word.ends_with("bits/sec");
            let said = String::from_utf8_lossy(&said).into_owned();
            let words = said.split_whitespace().filter(has_no_number);
            let words: Vec<&str> = words.filter(is_no_unit).collect();
            report.extend(words.join(" ").into_bytes());
            log += &server.end();
        }
        (report, log)
    });
}

/// sockperf finds its functions by name at run time, and counts messages that are lost, repeated or out of order; qperf has its own protocol.
#[test]
fn sockperf_and_qperf() {
    if !has("sockperf_and_qperf", &["sockperf", "qperf"]) {
        return;
    }
    compare(|way| {
        let (folder, port) = (folder(), free_port().to_string());
        let mut server = program(way, "sockperf");
        server.args(["sr", "--tcp", "-i", "127.0.0.1", "-p", &port]);
        let server = Server::start(server, folder.path()).wait_for(port.parse().expect("a port"));
        let mut client = program(way, "sockperf");
        // At a rate: it has places for so many round trips as it expects, and ends with an error where a connection is faster.
        client.args([
            "pp",
            "--mps",
            "100000",
            "--tcp",
            "-i",
            "127.0.0.1",
            "-p",
            &port,
            "-t",
            "1",
            "-m",
            "64",
        ]);
        let said = succeed(&mut client, b"").stdout;
        let mut report = lines(&said, |line| line.contains("dropped messages"));
        let mut log = server.end();
        let port = free_port().to_string();
        let mut server = program(way, "qperf");
        server.args(["-lp", &port]);
        let server = Server::start(server, folder.path());
        std::thread::sleep(std::time::Duration::from_millis(500));
        let mut client = program(way, "qperf");
        client.args(["-lp", &port, "-t", "1", "127.0.0.1", "tcp_lat", "tcp_bw"]);
        let said = succeed(&mut client, b"").stdout;
        // The names of the tests; their results are indented.
        report.extend(lines(&said, |line| line.starts_with("tcp_")));
        log += &server.end();
        (report, log)
    });
}

fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output().expect("id");
    output.stdout == b"0\n"
}

/// PostgreSQL forks a process for each connection: pgbench with connections that stay and that do not, and queries by psql.
#[test]
fn postgresql() {
    let newest = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
        .filter(|folder| folder.join("pgbench").is_file())
        .max();
    let Some(bin) = newest else {
        return common::skip(
            "postgresql",
            "no PostgreSQL; scripts/setup.sh sockets installs it",
        );
    };
    compare(|way| {
        let (folder, port) = (folder(), free_port());
        let data = folder.path().join("data");
        // It does not run as root.
        let as_user = |name: &str, way: Way| {
            let path = bin.join(name);
            let mut command = if is_root() {
                let mut command = Command::new("setpriv");
                command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]);
                command.arg("env").arg(path);
                command
            } else {
                Command::new(path)
            };
            command.current_dir("/");
            with(&mut command, way);
            command
        };
        if is_root() {
            succeed(Command::new("chmod").arg("755").arg(folder.path()), b"");
            std::fs::create_dir(&data).expect("a folder");
            succeed(Command::new("chown").arg("postgres").arg(&data), b"");
        }
        succeed(
            as_user("initdb", Kernel)
                .args(["-A", "trust", "-N", "-D"])
                .arg(&data),
            b"",
        );
        let mut server = as_user("postgres", way);
        server
            .arg("-D")
            .arg(&data)
            .args(["-k", "", "-p", &port.to_string()]);
        for setting in [
            "listen_addresses=127.0.0.1",
            "fsync=off",
            "shared_buffers=32MB",
        ] {
            server.args(["-c", setting]);
        }
        let server = Server::start(server, folder.path())
            .ends_by("INT")
            .wait_for(port);
        let port = port.to_string();
        let at = ["-h", "127.0.0.1", "-p", &port];
        // It listens before it takes anybody.
        let is_ready = || {
            let mut asks = as_user("pg_isready", Kernel);
            let answer = asks.args(at).stdout(Stdio::null()).status();
            answer.is_ok_and(|status| status.success())
        };
        let until = Instant::now() + LIMIT;
        while !is_ready() {
            assert!(Instant::now() < until, "the server takes nobody");
            std::thread::sleep(Duration::from_millis(50));
        }
        succeed(
            as_user("pgbench", way)
                .args(at)
                .args(["-i", "-q", "postgres"]),
            b"",
        );
        let mut results = Vec::new();
        for options in [
            &["-S", "-c", "6", "-t", "500"][..],
            &["-S", "-C", "-c", "3", "-t", "20"],
            &["-c", "3", "-t", "50"],
        ] {
            let bench = succeed(
                as_user("pgbench", way)
                    .args(at)
                    .args(options)
                    .arg("postgres"),
                b"",
            );
            let report = String::from_utf8_lossy(&bench.stdout).into_owned();
            assert!(report.contains("failed transactions: 0"), "{report}");
            results.extend(lines(&bench.stdout, |line| line.starts_with("number of")));
        }
        let query = "select md5(string_agg(x::text, ',')) from generate_series(1, 100000) x; select repeat('long ', 200000); select count(*) from pgbench_accounts;\n\
             select count(*) from pgbench_history; select sum(abalance) = (select sum(delta) from pgbench_history) from pgbench_accounts;";
        let mut client = as_user("psql", way);
        let answer = succeed(
            client.args(at).args(["-At", "-f", "-", "postgres"]),
            query.as_bytes(),
        );
        results.extend(answer.stdout);
        (results, server.end())
    });
}

/// Debian's, which has Debian's packages.
const PYTHON: &str = "/usr/bin/python3";

/// Fetches a file again and again, by connections that stay open.
const REQUESTS: &str = "import hashlib, requests, sys
with requests.Session() as session:
    for _ in range(30):
        answer = session.get(sys.argv[1])
        print(answer.status_code, hashlib.sha256(answer.content).hexdigest())";

/// Python: its file server with curl and with requests, and a script with asyncio, threads and a server that forks.
#[test]
fn python() {
    if !has("python", &[PYTHON, "curl"]) {
        return;
    }
    let mut asked = Command::new(PYTHON);
    asked.args(["-c", "import requests"]).stderr(Stdio::null());
    if !asked.status().is_ok_and(|status| status.success()) {
        return skip(
            "python",
            "no requests; scripts/setup.sh sockets installs it",
        );
    }
    compare(|way| {
        let (folder, port) = (folder(), free_port());
        std::fs::write(folder.path().join("file"), bytes(900_000)).expect("a file");
        let mut server = program(way, PYTHON);
        server.args([
            "-m",
            "http.server",
            "--protocol",
            "HTTP/1.1",
            "--bind",
            "127.0.0.1",
            &port.to_string(),
        ]);
        server.current_dir(folder.path());
        let log = tempfile::tempdir().expect("a folder");
        let server = Server::start(server, log.path()).wait_for(port);
        let url = format!("http://127.0.0.1:{port}/file");
        let mut results = succeed(program(way, "curl").args(["-sS", &url]), b"").stdout;
        assert!(results == bytes(900_000));
        let mut fetching = program(way, PYTHON);
        results.extend(succeed(fetching.args(["-c", REQUESTS, &url]), b"").stdout);
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/servers.py");
        let output = succeed(program(way, PYTHON).arg(script), b"");
        results.extend(output.stdout);
        (
            results,
            server.end() + &String::from_utf8_lossy(&output.stderr),
        )
    });
}

/// Node.js: a server and a hundred requests in one process.
#[test]
fn node() {
    if !has("node", &["node"]) {
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/server.js");
    compare(|way| {
        let output = succeed(program(way, "node").arg(&script), b"");
        (
            output.stdout,
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    });
}

/// Java: blocking streams, half close, and a selector.
#[test]
fn java() {
    if !has("java", &["java", "javac"]) {
        return;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/Server.java");
    compare(|way| {
        let output = succeed(program(way, "java").arg("-Xint").arg(&source), b"");
        (
            output.stdout,
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    });
}

/// Writes `file` into a pipe, which stays open until `other`, by another program, has `bytes`, or for a minute.
fn open_until(file: &Path, other: &Path, bytes: usize) -> std::process::Child {
    let script = "cat \"$0\"; for i in $(seq 3000); do [ \"$(stat -c %s \"$1\")\" = \"$2\" ] && break; sleep 0.02; done";
    std::process::Command::new("sh")
        .args(["-c", script])
        .args([file, other])
        .arg(bytes.to_string())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("sh")
}

/// netcat: a file each way at once, and an end by half close. It ends as soon as the other side has said so, whatever is still to be sent: each input ends
/// only when the other side's has arrived.
#[test]
fn netcat() {
    const SIZES: [usize; 2] = [3_000_000, 400_000];
    if !has("netcat", &["nc"]) {
        return;
    }
    compare(|way| {
        let (folder, port) = (folder(), free_port().to_string());
        let at = |name: &str| folder.path().join(name);
        for (name, size) in ["sent", "answer"].into_iter().zip(SIZES) {
            std::fs::write(at(name), bytes(size)).expect("a file");
        }
        let mut server = program(way, "nc");
        server.args(["-N", "-l", "127.0.0.1", &port]);
        // The server's output is there before it starts, and so is the client's.
        let output = std::fs::File::create(at("got")).expect("a file");
        std::fs::File::create(at("output")).expect("a file");
        let mut answers = open_until(&at("answer"), &at("output"), SIZES[0]);
        server.stdin(answers.stdout.take().expect("a pipe"));
        let server = Server::start_apart(server, folder.path());
        let server = server.wait_for(port.parse().expect("a port"));
        let mut sends = open_until(&at("sent"), &at("got"), SIZES[1]);
        let mut client = program(way, "nc");
        client.args(["-N", "127.0.0.1", &port]).stdout(output);
        let ended = (client.stdin(sends.stdout.take().expect("a pipe"))).output();
        let ended = ended.expect("nc");
        assert!(ended.status.success(), "{ended:?}");
        for mut writer in [sends, answers] {
            writer.wait().expect("its end");
        }
        server.end();
        let [output, got] = ["output", "got"].map(|name| std::fs::read(at(name)).expect("a file"));
        for (file, size) in [&output, &got].into_iter().zip(SIZES) {
            assert!(*file == bytes(size), "{} bytes", file.len());
        }
        let explained = String::from_utf8_lossy(&ended.stderr).into_owned();
        ([output, got].concat(), explained)
    });
}

/// ssh: sshd executes itself anew for each connection, and its processes confine themselves to few system calls; data through a remote `cat`.
#[test]
fn ssh() {
    if !has("ssh", &["ssh", "sshd", "ssh-keygen"]) {
        return;
    }
    if !is_root() {
        return println!("SKIPPED ssh: sshd needs root");
    }
    compare(|way| {
        let (folder, port) = (folder(), free_port());
        let at = folder.path();
        let key = |name: &str| {
            let mut command = program(Kernel, "ssh-keygen");
            command
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(at.join(name));
            succeed(&mut command, b"");
        };
        key("host");
        key("user");
        std::fs::create_dir_all("/run/sshd").expect("sshd's folder");
        let config = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {0}/host\nAuthorizedKeysFile {0}/user.pub\nUsePAM no\nPidFile none\nStrictModes no\n",
            at.display()
        );
        std::fs::write(at.join("config"), config).expect("a file");
        let mut server = program(way, "sshd");
        server.args(["-D", "-e", "-f"]).arg(at.join("config"));
        let server = Server::start(server, at).wait_for(port);
        let mut client = program(way, "ssh");
        client.args(["-F", "none", "-p", &port.to_string(), "-o", "BatchMode=yes"]);
        client.args([
            "-o",
            "StrictHostKeyChecking=no",
            "-o",
            "UserKnownHostsFile=/dev/null",
            "-i",
        ]);
        client
            .arg(at.join("user"))
            .args(["127.0.0.1", "cat; echo end"]);
        let output = succeed(&mut client, &bytes(2_000_000));
        assert!(output.stdout.starts_with(&bytes(2_000_000)));
        (
            output.stdout,
            server.end() + &String::from_utf8_lossy(&output.stderr),
        )
    });
}

/// Memory is shared by processes of one user only: another user's client talks TCP, and is answered.
#[test]
fn other_users_talk_tcp() {
    if !has("other_users_talk_tcp", &["python3"]) {
        return;
    }
    if !is_root() {
        return println!("SKIPPED other_users_talk_tcp: only root can become another user");
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/users.py");
    let output = succeed(program(Carried, "python3").arg(script), b"");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.stdout, b"b'HELLO'\n");
    assert_eq!(carried(&output.stderr), 0, "{said}");
    assert!(said.contains("has no mailbox of this user"), "{said}");
    assert!(said.contains("left no hello"), "{said}");
}

/// A program that cannot be reached is served all the same: a static one talks TCP to a carried server.
#[test]
fn static_programs_talk_tcp() {
    if !has("static_programs_talk_tcp", &["gcc", "nc"]) {
        return;
    }
    let folder = folder();
    let source = folder.path().join("client.c");
    std::fs::write(&source, include_str!("programs/client.c")).expect("a file");
    let client = folder.path().join("client");
    let mut compiler = Command::new("gcc");
    compiler.args(["-static", "-o"]).arg(&client).arg(&source);
    if !common::run(&mut compiler, b"").status.success() {
        return println!("SKIPPED static_programs_talk_tcp: no static C library");
    }
    let port = free_port();
    let mut server = program(Carried, "nc");
    server.args(["-l", "127.0.0.1", &port.to_string()]);
    let server = Server::start(server, folder.path()).wait_for(port);
    let mut command = Command::new(which("env").expect("env"));
    command.arg(&client).arg(port.to_string());
    with(&mut command, Carried);
    succeed(&mut command, b"");
    std::thread::sleep(std::time::Duration::from_millis(200));
    let log = server.end();
    assert!(log.contains("hello from a static program"), "{log}");
    assert_eq!(carried(log.as_bytes()), 0, "{log}");
}
