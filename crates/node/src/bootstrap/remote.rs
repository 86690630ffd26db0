//! The launcher's connection to one agent (`agent`).
//!
//! Used by `keeper`; never blocks. `hang_up` closes the agent's standard input, and the agent then ends everything it started. Both sides send signs
//! of life: `silence` tells when an agent has sent nothing for the agreed time.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};

use crate::sleep;

use super::frames::{self, Frames, FromAgent, Garbage, Item, Kind, Pulse, ToAgent, drain};

/// Standard input and output of the command that reaches an agent.
#[derive(Debug)]
pub(super) struct Remote {
    to: Option<OwnedFd>,
    from: Option<OwnedFd>,
    /// Bytes the pipe has not taken yet. The launcher sends little: a start, a table, a stop.
    outbox: Vec<u8>,
    frames: Frames,
    pulse: Pulse,
}

impl Remote {
    /// Takes over the pipes of a command that was just started, and tells the agent what to run.
    pub(super) fn new(child: &mut Child, start: &ToAgent, silence: Duration) -> io::Result<Self> {
        let to: Option<OwnedFd> = child.stdin.take().map(Into::into);
        let from: Option<OwnedFd> = child.stdout.take().map(Into::into);
        for fd in to.iter().chain(&from) {
            rustix::io::ioctl_fionbio(fd, true)?;
        }
        let mut remote = Self {
            to,
            from,
            outbox: Vec::new(),
            frames: Frames::new(true),
            pulse: Pulse::new(silence),
        };
        remote.tell(start)?;
        Ok(remote)
    }

    /// Adds the descriptors to poll; `listen`: also for input from the agent.
    pub(super) fn poll_fds<'a>(&'a self, listen: bool, fds: &mut Vec<PollFd<'a>>) {
        if let (Some(fd), true) = (&self.from, listen) {
            fds.push(PollFd::new(fd, PollFlags::IN));
        }
        if let (Some(fd), false) = (&self.to, self.outbox.is_empty()) {
            fds.push(PollFd::new(fd, PollFlags::OUT));
        }
    }

    /// Sends a message; `write` sends what the pipe does not take now.
    pub(super) fn tell(&mut self, message: &ToAgent) -> io::Result<()> {
        frames::put_message(&mut self.outbox, message)?;
        self.write();
        Ok(())
    }

    /// All that was told has left.
    pub(super) fn is_flushed(&self) -> bool {
        self.to.is_none() || self.outbox.is_empty()
    }

    /// Sends a sign of life, if it is time. Bytes that wait in the outbox serve as one once they leave; with a stuck pipe, more of them would not
    /// help.
    pub(super) fn beat(&mut self) {
        if self.to.is_none() || !self.pulse.needs_beat() {
            return;
        }
        if self.outbox.is_empty() {
            frames::put(&mut self.outbox, Kind::Alive, b"");
        }
        self.pulse.said();
        self.write();
    }

    /// Time of the agent's silence, if that is too long. Input that waits counts: this process may have been stopped since it read.
    pub(super) fn silence(&self) -> Option<Duration> {
        // If the stream has ended, the command's end tells; if it has not begun, the time limit for joining does.
        let from = self.from.as_ref().filter(|_| self.is_greeted())?;
        let is_silent = self.pulse.is_silent() && !has_input(from);
        is_silent.then_some(self.pulse.silence())
    }

    /// The launcher did not read meanwhile, so the silence starts anew.
    pub(super) fn excuse(&mut self) {
        self.pulse.heard();
    }

    /// Time until the next sign of life or check for silence; `None` after `hang_up`.
    pub(super) fn until_next(&self) -> Option<Duration> {
        self.to.is_some().then(|| self.pulse.until_next())
    }

    /// Writes as much as the pipe takes.
    pub(super) fn write(&mut self) {
        while let (Some(fd), false) = (&self.to, self.outbox.is_empty()) {
            match rustix::io::write(fd, &self.outbox) {
                Ok(written) => drop(self.outbox.drain(..written)),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return,
                Err(_) => self.to = None, // the command is ending, which will be reported
            }
        }
    }

    /// Closes the agent's input; the agent then kills what it runs. `false`: that was done before.
    pub(super) fn hang_up(&mut self) -> bool {
        self.to.take().is_some()
    }

    /// Whether the agent has answered at all.
    pub(super) fn is_greeted(&self) -> bool {
        self.frames.is_greeted()
    }

    /// Reads available input, at most about `most` bytes. At garbage (output of a shell, or another version) the agent is hung up on.
    pub(super) fn read(
        &mut self,
        most: usize,
        mut on_item: impl FnMut(Result<Item<'_, FromAgent>, Garbage>),
    ) {
        let (frames, pulse) = (&mut self.frames, &mut self.pulse);
        let read = drain(&mut self.from, most, |bytes| {
            pulse.heard();
            frames.feed(bytes);
            while let Some(item) = frames.next()? {
                on_item(Ok(item));
            }
            Ok(())
        });
        if let Err(garbage) = read {
            (self.from, self.to) = (None, None);
            on_item(Err(garbage));
        }
    }
}

/// Exit status of the program on the other host, as the kernel encodes it.
pub(super) fn status_of(code: Option<i32>, signal: Option<i32>) -> ExitStatus {
    match (code, signal) {
        (_, Some(signal)) => ExitStatus::from_raw(signal & 0x7f),
        (Some(code), None) => ExitStatus::from_raw((code & 0xff) << 8),
        (None, None) => ExitStatus::from_raw(1 << 8),
    }
}

fn has_input(from: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(from, PollFlags::IN)];
    sleep::poll(&mut fds, Some(Duration::ZERO)).unwrap_or(false)
}
