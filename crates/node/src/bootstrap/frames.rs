//! The protocol between a launcher and its agent on a host: frames in a byte stream over standard input and output.
//!
//! Used by `agent` (on the host) and `remote` (the launcher's side). The agent first sends a greeting line, to tell apart what a login shell prints
//! before it; then both sides send frames: four bytes of length (little-endian, kind included), one byte of kind, and the content. A side with
//! nothing to send sends signs of life (`Pulse`). Input is not trusted: lengths are bounded, nothing panics. `drain` reads the pipes of all of them.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::Signal;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::binding::CoreSlot;
use super::relay::Wanted;
use super::rendezvous::{FromLauncher, FromWorker};

/// The agent's first line. Its number is that of the rendezvous (`rendezvous::VERSION`).
pub(super) const GREETING: &[u8] = b"tsumuji agent 5\n";
/// Limit of bytes before the greeting, such as a shell's welcome.
const NOISE_BYTES_MAX: usize = 64 << 10;
/// The largest frame: a table of all nodes (see `rendezvous`), with room to spare.
pub(super) const FRAME_BYTES_MAX: usize = 256 << 10;
const HEAD_BYTES: usize = 5;
/// Bytes read at once.
pub(super) const READ_BYTES: usize = 64 << 10;

/// What the content of a frame is, on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A message as JSON.
    Message = 0,
    /// Output of the program.
    Stdout = 1,
    Stderr = 2,
    /// No content: a sign of life.
    Alive = 3,
}

/// Signs of life in the time after which silence counts as death: so many may be late or lost together.
const BEATS: u32 = 6;

/// When to send the next sign of life, and whether the other side was silent for too long. Both sides use the same limit.
#[derive(Debug)]
pub(super) struct Pulse {
    silence: Duration,
    said: Instant,
    heard: Instant,
    /// The other side was suspended, and has announced it: nothing is said to it, and its silence is none.
    is_held: bool,
}

impl Pulse {
    pub(super) fn new(silence: Duration) -> Self {
        let now = Instant::now();
        Self {
            silence,
            said: now,
            heard: now,
            is_held: false,
        }
    }

    /// Begins anew with another limit of silence. The other side may be suspended already.
    pub(super) fn begin_again(&mut self, silence: Duration) {
        *self = Self {
            is_held: self.is_held,
            ..Self::new(silence)
        };
    }

    /// The other side is suspended from now on, or goes on.
    pub(super) fn hold(&mut self, is_held: bool) {
        self.is_held = is_held;
        self.heard();
    }

    /// Limit of the other side's silence.
    pub(super) fn silence(&self) -> Duration {
        self.silence
    }

    pub(super) fn said(&mut self) {
        self.said = Instant::now();
    }

    /// Input arrived, or this side did not read.
    pub(super) fn heard(&mut self) {
        self.heard = Instant::now();
    }

    /// Whether it is time for a sign of life.
    pub(super) fn needs_beat(&self) -> bool {
        !self.is_held && self.said.elapsed() >= self.silence / BEATS
    }

    pub(super) fn is_silent(&self) -> bool {
        !self.is_held && self.heard.elapsed() >= self.silence
    }

    /// Time until the other side's silence is too long; zero: it is.
    pub(super) fn until_silent(&self) -> Duration {
        if self.is_held {
            return Duration::MAX;
        }
        self.silence.saturating_sub(self.heard.elapsed())
    }

    /// Longest sleep: until the next sign of life or until silence is too long, unless it is already.
    pub(super) fn until_next(&self) -> Duration {
        if self.is_held {
            return Duration::MAX;
        }
        let to_say = (self.silence / BEATS).saturating_sub(self.said.elapsed());
        match self.until_silent() {
            Duration::ZERO => to_say,
            to_judge => to_say.min(to_judge),
        }
    }
}

/// Message from the launcher to an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum ToAgent {
    /// The first message: run this command.
    Start {
        node: u16,
        command: Vec<String>,
        env: Vec<(String, String)>,
        /// Working directory, if it exists there.
        directory: Option<String>,
        /// Each side takes the other for dead after this much silence.
        silence_ms: u64,
        /// The relay that its link needs.
        relay: Option<Wanted>,
        /// Run the program on a core of its own.
        #[serde(rename = "seat")]
        core_slot: Option<CoreSlot>,
    },
    /// A message for the program that said hello.
    Forward { message: FromLauncher },
    /// The launcher's standard output has no reader any more: close the program's.
    CloseStdout,
    /// Send TERM to the program.
    Stop,
    /// Send it a signal of the user's.
    Signal { signal: UserSignal },
    /// The launcher is about to be suspended: suspend the program, and expect no sign of life.
    Pause,
    /// The launcher goes on: continue the program.
    Continue,
}

/// A signal without a meaning of its own, which a launcher passes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UserSignal {
    /// SIGUSR1.
    Usr1,
    /// SIGUSR2.
    Usr2,
}

impl From<UserSignal> for Signal {
    fn from(signal: UserSignal) -> Self {
        match signal {
            UserSignal::Usr1 => Self::USR1,
            UserSignal::Usr2 => Self::USR2,
        }
    }
}

/// Message from an agent to its launcher.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum FromAgent {
    /// The program runs.
    Started { pid: u32 },
    /// The program could not be started.
    CouldNotStart { program: String, reason: String },
    /// A message of the program.
    Forward { message: FromWorker },
    /// The program has closed its rendezvous: its address is no longer valid.
    Left,
    /// The program has ended, by exit code or signal.
    Ended {
        code: Option<i32>,
        signal: Option<i32>,
    },
}

/// Appends a frame.
pub(super) fn put(out: &mut Vec<u8>, kind: Kind, content: &[u8]) {
    let length = u32::try_from(content.len() + 1).unwrap_or(u32::MAX); // both sides keep far below `FRAME_BYTES_MAX`
    out.extend_from_slice(&length.to_le_bytes());
    out.push(kind as u8);
    out.extend_from_slice(content);
}

/// Appends a message as a frame.
pub(super) fn put_message(out: &mut Vec<u8>, message: &impl Serialize) -> std::io::Result<()> {
    put(out, Kind::Message, &serde_json::to_vec(message)?);
    Ok(())
}

/// The stream holds something that is no frame; nothing after it can be trusted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Garbage;

/// Content of a frame that came; `M`: the messages of the other side.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Item<'a, M> {
    Message(M),
    /// The program printed these bytes.
    Printed(Kind, &'a [u8]),
    Alive,
}

/// Passes on available input of a pipe that does not block, at most about `most` bytes. Afterwards `fd` is `None` if the pipe has ended. Stops at an
/// error of `take`.
pub(super) fn drain<E>(
    fd: &mut Option<OwnedFd>,
    most: usize,
    mut take: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut bytes = [0; READ_BYTES];
    let mut taken = 0;
    while let (Some(pipe), true) = (&*fd, taken < most) {
        match rustix::io::read(pipe, &mut bytes) {
            Ok(count) if count > 0 => {
                take(&bytes[..count])?;
                taken += count;
            }
            Err(Errno::AGAIN) => break,
            Err(Errno::INTR) => {}
            Ok(_) | Err(_) => *fd = None,
        }
    }
    Ok(())
}

/// Collects bytes until frames are complete.
#[derive(Debug)]
pub(super) struct Frames {
    bytes: Vec<u8>,
    /// Bytes already taken from the front of `bytes`.
    taken: usize,
    greeted: bool,
}

impl Frames {
    /// For a stream with or without a greeting.
    pub(super) fn new(with_greeting: bool) -> Self {
        Self {
            bytes: Vec::new(),
            taken: 0,
            greeted: !with_greeting,
        }
    }

    /// Whether the greeting has come.
    pub(super) fn is_greeted(&self) -> bool {
        self.greeted
    }

    /// Appends input. All whole frames must be taken before the next call: that bounds the memory.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Content of the next whole frame.
    pub(super) fn next<M: DeserializeOwned>(&mut self) -> Result<Option<Item<'_, M>>, Garbage> {
        if !self.greeted && !self.take_greeting()? {
            return Ok(None);
        }
        let rest = &self.bytes[self.taken..];
        let Some((head, _)) = rest.split_first_chunk::<HEAD_BYTES>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let kind = match head[4] {
            0 => Kind::Message,
            1 => Kind::Stdout,
            2 => Kind::Stderr,
            3 => Kind::Alive,
            _ => return Err(Garbage),
        };
        if !(1..=FRAME_BYTES_MAX).contains(&length) {
            return Err(Garbage);
        }
        let end = HEAD_BYTES + length - 1;
        if rest.len() < end {
            return Ok(None);
        }
        let from = self.taken + HEAD_BYTES;
        self.taken += end;
        let content = &self.bytes[from..self.taken];
        Ok(Some(match kind {
            Kind::Message => Item::Message(serde_json::from_slice(content).map_err(|_| Garbage)?),
            Kind::Alive => Item::Alive,
            Kind::Stdout | Kind::Stderr => Item::Printed(kind, content),
        }))
    }

    fn take_greeting(&mut self) -> Result<bool, Garbage> {
        let found = self
            .bytes
            .windows(GREETING.len())
            .position(|window| window == GREETING);
        match found {
            Some(at) => {
                self.taken = at + GREETING.len();
                self.greeted = true;
                Ok(true)
            }
            None if self.bytes.len() > NOISE_BYTES_MAX => Err(Garbage),
            None => Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames come out as they went in, however the stream is cut; a shell's output before the greeting is skipped.
    #[test]
    fn frames_survive_any_cut() {
        let mut stream = b"Welcome to pc2!\ntsumuji agent \n".to_vec();
        stream.extend_from_slice(GREETING);
        put_message(&mut stream, &ToAgent::Stop).expect("json");
        put(&mut stream, Kind::Stderr, b"");
        put(&mut stream, Kind::Stdout, &[0xff; 1000]);
        for piece in [1, 2, 7, 100, stream.len()] {
            let mut frames = Frames::new(true);
            let mut got = Vec::new();
            for bytes in stream.chunks(piece) {
                frames.feed(bytes);
                while let Some(item) = frames.next::<ToAgent>().expect("sound") {
                    got.push(format!("{item:?}"));
                }
            }
            let wanted = [
                Item::Message(ToAgent::Stop),
                Item::Printed(Kind::Stderr, b""),
                Item::Printed(Kind::Stdout, &[0xff; 1000]),
            ];
            let wanted = wanted.map(|item| format!("{item:?}"));
            assert_eq!(got, wanted, "in pieces of {piece}");
        }
    }

    /// The seeds of the fuzz target are valid to their last message.
    #[test]
    fn fuzz_seeds_are_of_this_version() {
        use super::super::fuzzing::stream;
        let start = include_bytes!("../../../../fuzz/seeds/agent/start");
        let started = include_bytes!("../../../../fuzz/seeds/agent/started");
        assert_eq!(stream(&start[1..], 7, false), 3);
        assert_eq!(stream(&started[1..], 7, true), 2);
    }

    /// Impossible lengths and kinds, and endless noise, are refused before they cost memory.
    #[test]
    fn garbage_is_refused() {
        for head in [
            [0, 0, 0, 0, 0],
            [1, 0, 0, 0, 4],
            [0xff, 0xff, 0xff, 0xff, 0],
            [1, 0, 4, 0, 1],
        ] {
            let mut frames = Frames::new(false);
            frames.feed(&head);
            assert_eq!(frames.next::<ToAgent>(), Err(Garbage), "{head:?}");
        }
        let mut frames = Frames::new(true);
        let refused = (0..10_000).position(|_| {
            frames.feed(b"a shell that never stops talking\n");
            frames.next::<ToAgent>().is_err()
        });
        assert!(refused.is_some());
    }
}
