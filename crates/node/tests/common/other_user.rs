//! A process of another user that calls our sockets without end: this same test program, whose test that calls
//! [`OtherUser::call`] then is the other user.

use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

const TARGET: &str = "TSUMUJI_TEST_OTHER_USER";
/// `nobody`, who owns nothing.
const USER: u32 = 65534;
/// That call at the same time.
const THREADS: usize = 16;
/// It ends by itself, should its test be killed.
const SESSION: Duration = Duration::from_secs(120);

/// Ends with its test.
pub(crate) struct OtherUser(Child);

impl OtherUser {
    /// Calls every abstract socket of this kind whose name begins so. The test of that name begins with [`act_if_spawned`]. `None`: there can be no other user here, which is printed.
    pub(crate) fn call(test: &str, kind: SocketType, prefix: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED {test}: only root can be another user");
            return None;
        }
        let program = std::env::current_exe().expect("own path");
        let kind = if kind == SocketType::STREAM {
            "stream"
        } else {
            "packets"
        };
        let child = Command::new(program)
            .args([test, "--exact", "--test-threads=1"])
            .env(TARGET, format!("{kind} {prefix}"))
            .uid(USER)
            .gid(USER)
            .current_dir("/")
            .stdout(Stdio::null())
            .spawn();
        match child {
            Ok(child) => Some(Self(child)),
            Err(error) => {
                println!("SKIPPED {test}: another user cannot run this program: {error}");
                None
            }
        }
    }
}

impl Drop for OtherUser {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a spawned process does; it does not return to its test.
pub(crate) fn act_if_spawned() {
    let Ok(target) = std::env::var(TARGET) else {
        return;
    };
    let (kind, prefix) = target.split_once(' ').expect("kind and prefix");
    let kind = match kind {
        "stream" => SocketType::STREAM,
        _ => SocketType::SEQPACKET,
    };
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while start.elapsed() < SESSION {
                    for name in names(prefix) {
                        while connect(kind, &name).is_some() {}
                    }
                }
            });
        }
    });
    std::process::exit(0);
}

fn names(prefix: &str) -> Vec<String> {
    let list = std::fs::read("/proc/net/unix").expect("list");
    let list = String::from_utf8_lossy(&list);
    let names = list.lines().filter_map(|line| line.rsplit(" @").next());
    let wanted = names.filter(|name| name.starts_with(prefix));
    let names: std::collections::BTreeSet<String> = wanted.map(str::to_owned).collect();
    names.into_iter().collect()
}

/// Waits for room in the queue of those who are not yet let in. `None`: nobody listens any more.
fn connect(kind: SocketType, name: &str) -> Option<OwnedFd> {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).ok()?;
    let addr = SocketAddrUnix::new_abstract_name(name.as_bytes()).ok()?;
    rustix::net::connect(&socket, &addr).ok()?;
    Some(socket)
}
