//! The launcher's side of one agent (`agent`): what it is told, and what it tells.
//!
//! Called by `keeper`; never blocks. The agent's standard input is its lifeline: `hang_up` closes it, and the agent ends all it
//! started. Both sides say now and then that they live: an agent that says nothing for the agreed time is told by `silence`.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};

use super::frames::{self, Frames, FromAgent, Kind, Pulse, ToAgent};

/// Bytes read at once.
const READ_BYTES: usize = 64 << 10;

/// What came from an agent.
#[derive(Debug)]
pub(super) enum Said<'a> {
    Message(FromAgent),
    /// The program printed these bytes.
    Printed(Kind, &'a [u8]),
    /// What is no word of an agent: a shell that talks, another version.
    Garbage,
}

/// Standard input and output of the command that leads to an agent.
#[derive(Debug)]
pub(super) struct Remote {
    to: Option<OwnedFd>,
    from: Option<OwnedFd>,
    /// Not yet taken by the pipe. The launcher says little: a start, a table, a stop.
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

    /// Adds what must be slept on; `listen`: for words of the agent, too.
    pub(super) fn poll_fds<'a>(&'a self, listen: bool, fds: &mut Vec<PollFd<'a>>) {
        if let (Some(fd), true) = (&self.from, listen) {
            fds.push(PollFd::new(fd, PollFlags::IN));
        }
        if let (Some(fd), false) = (&self.to, self.outbox.is_empty()) {
            fds.push(PollFd::new(fd, PollFlags::OUT));
        }
    }

    /// Says something; what the pipe does not take now follows by `write`.
    pub(super) fn tell(&mut self, message: &ToAgent) -> io::Result<()> {
        frames::put_message(&mut self.outbox, message)?;
        self.write();
        Ok(())
    }

    /// Says that we live, if it is time. What waits in the outbox says as much once it leaves; were the pipe stuck, more of it
    /// would not help.
    pub(super) fn beat(&mut self) {
        if self.to.is_none() || !self.pulse.is_due() {
            return;
        }
        if self.outbox.is_empty() {
            frames::put(&mut self.outbox, Kind::Alive, b"");
        }
        self.pulse.said();
        self.write();
    }

    /// How long the agent was silent, if that is too long. To be asked when all that came was read.
    pub(super) fn silence(&self) -> Option<Duration> {
        // A stream that has ended is told by the command's end; one that has not begun, by the time to join.
        let speaks = self.from.is_some() && self.is_greeted();
        (speaks && self.pulse.is_silent()).then_some(self.pulse.silence())
    }

    /// Nobody listened meanwhile.
    pub(super) fn excuse(&mut self) {
        self.pulse.heard();
    }

    /// When there is something to say or to judge.
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
                Err(_) => self.to = None, // the command is dying, and its end will be told
            }
        }
    }

    /// Lets go of the agent, which then kills what it runs. `false`: that was done before.
    pub(super) fn hang_up(&mut self) -> bool {
        self.to.take().is_some()
    }

    /// Whether the agent has answered at all.
    pub(super) fn is_greeted(&self) -> bool {
        self.frames.is_greeted()
    }

    /// Takes what is there, at most about `most` bytes.
    pub(super) fn read(&mut self, most: usize, mut on_said: impl FnMut(Said<'_>)) {
        let mut bytes = [0; READ_BYTES];
        let mut taken = 0;
        while let (Some(fd), true) = (&self.from, taken < most) {
            match rustix::io::read(fd, &mut bytes) {
                Ok(0) => self.from = None,
                Ok(count) => {
                    taken += count;
                    self.pulse.heard();
                    self.frames.feed(&bytes[..count]);
                    if !self.take(&mut on_said) {
                        self.from = None;
                        self.to = None;
                        on_said(Said::Garbage);
                    }
                }
                Err(rustix::io::Errno::AGAIN) => return,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => self.from = None,
            }
        }
    }

    fn take(&mut self, on_said: &mut impl FnMut(Said<'_>)) -> bool {
        loop {
            match self.frames.next() {
                Ok(None) => return true,
                Ok(Some((Kind::Message, content))) => match serde_json::from_slice(content) {
                    Ok(message) => on_said(Said::Message(message)),
                    Err(_) => return false,
                },
                Ok(Some((Kind::Alive, _))) => {}
                Ok(Some((kind, content))) => on_said(Said::Printed(kind, content)),
                Err(frames::Garbage) => return false,
            }
        }
    }
}

/// What an agent says of the program's end, as the kernel would.
pub(super) fn status_of(code: Option<i32>, signal: Option<i32>) -> ExitStatus {
    match (code, signal) {
        (_, Some(signal)) => ExitStatus::from_raw(signal & 0x7f),
        (Some(code), None) => ExitStatus::from_raw((code & 0xff) << 8),
        (None, None) => ExitStatus::from_raw(1 << 8),
    }
}
