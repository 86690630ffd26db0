//! Signals: Ctrl-C and TERM, of which the first asks the command to end cleanly and one that comes later ends the program at once, and those that a launch
//! passes on. Ctrl-Z suspends what was launched, too.

use std::io::{ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGSTOP, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2};
use signal_hook::low_level;
use tsumuji_node::UserSignal;
use tsumuji_node::bootstrap::{continue_launches, pause_launches};

/// Exit code of a command that was interrupted: that of a shell for SIGINT.
pub(crate) const INTERRUPTED: u8 = 130;

/// Signals within this time are one request: `timeout` sends its own to the program and to its group, a terminal to the group, of which a shell may pass it on.
const SAME_REQUEST: Duration = Duration::from_millis(500);

/// The error of a command that was interrupted.
#[derive(Debug, thiserror::Error)]
#[error("interrupted; nothing was left behind")]
pub(crate) struct Interrupted;

/// Becomes true when the user wants to stop.
#[derive(Debug, Clone)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens from now on.
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        Self::listen_for(&flag)?;
        Ok(Self(flag))
    }

    /// Sets a given flag instead.
    pub(crate) fn listen_for(flag: &Arc<AtomicBool>) -> anyhow::Result<()> {
        suspend_with_launches()?;
        let (mut told, tell) = UnixStream::pair()?;
        let ends = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register_conditional_default(signal, Arc::clone(&ends))?;
            signal_hook::flag::register(signal, Arc::clone(flag))?;
            low_level::pipe::register(signal, tell.try_clone()?)?;
        }
        let wait = move || {
            while matches!(told.read(&mut [0]), Err(error) if error.kind() == ErrorKind::Interrupted)
            {
            }
            std::thread::sleep(SAME_REQUEST);
            ends.store(true, Ordering::Relaxed);
        };
        let thread = std::thread::Builder::new().name("tsumuji-signal".into());
        thread.spawn(wait)?;
        Ok(())
    }

    /// Whether the user wants to stop.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Ctrl-Z suspends this process, as ever, but first all that it has launched; when this process is continued, so are they.
fn suspend_with_launches() -> anyhow::Result<()> {
    static LISTENS: AtomicBool = AtomicBool::new(false);
    if LISTENS.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    let (mut asked, ask) = UnixStream::pair()?;
    low_level::pipe::register(SIGTSTP, ask)?;
    let continued = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGCONT, Arc::clone(&continued))?;
    let suspend = move || {
        loop {
            // Of several that come together one is enough.
            match asked.read(&mut [0; 64]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            if is_job() {
                continued.store(false, Ordering::Relaxed);
                if !pause_launches() {
                    tell!("tsumuji: not suspended: a host does not take the word");
                } else if !continued.load(Ordering::Relaxed) {
                    let _ = low_level::raise(SIGSTOP); // returns when this process is continued
                }
                continue_launches();
                // What came meanwhile was meant for this pause.
                let _ = asked.set_nonblocking(true);
                while asked.read(&mut [0; 64]).is_ok_and(|bytes| bytes > 0) {}
                let _ = asked.set_nonblocking(false);
            }
        }
    };
    std::thread::Builder::new()
        .name("tsumuji-suspend".to_owned())
        .spawn(suspend)?;
    Ok(())
}

/// Whether somebody could continue this process: the first of its ancestors that is of another process group is of the same session, as a shell is that
/// runs it as a job. The kernel, too, suspends nobody by Ctrl-Z whom no shell could continue.
fn is_job() -> bool {
    let Some(mut member) = groups("/proc/self/stat") else {
        return false;
    };
    let [_, group, session] = member;
    loop {
        let Some(parent) = groups(&format!("/proc/{}/stat", member[0])) else {
            return false;
        };
        if parent[1] != group {
            return parent[2] == session;
        }
        member = parent;
    }
}

/// Parent, process group and session of a process. A session whose leader is in another namespace is 0.
fn groups(stat: &str) -> Option<[u32; 3]> {
    let stat = std::fs::read_to_string(stat).ok()?;
    // Behind the name, which may contain anything, and the state.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut words = rest.split(' ').skip(1).map(str::parse);
    let mut next = || words.next()?.ok();
    Some([next()?, next()?, next()?])
}

/// Signals for the programs of a launch.
#[derive(Debug)]
pub(crate) struct UserSignals([(UserSignal, Arc<AtomicBool>); 2]);

impl UserSignals {
    /// Takes them from now on; without this they would end the program.
    pub(crate) fn take() -> anyhow::Result<Self> {
        let taken = |signal, name| -> anyhow::Result<_> {
            let flag = Arc::new(AtomicBool::new(false));
            signal_hook::flag::register(signal, Arc::clone(&flag))?;
            Ok((name, flag))
        };
        Ok(Self([
            taken(SIGUSR1, UserSignal::Usr1)?,
            taken(SIGUSR2, UserSignal::Usr2)?,
        ]))
    }

    /// Those that have come since the last call.
    pub(crate) fn come(&self) -> impl Iterator<Item = UserSignal> {
        let come = self.0.iter();
        come.filter(|(_, flag)| flag.swap(false, Ordering::Relaxed))
            .map(|(signal, _)| *signal)
    }
}
