//! The rendezvous over standard input and output: frames in a stream of bytes, between a launcher and its agent on a host.
//!
//! Called by `agent` (on the host) and `remote` (the launcher's side). The agent greets with a line of text, so that what a
//! login shell prints before it can be told apart; then both sides send frames: four bytes of length (little-endian, kind
//! included), one byte of kind, and the content. Who has nothing to say says so now and then (`Pulse`). Everything read here may be anything: lengths are bounded, nothing panics.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::rendezvous::{FromLauncher, FromWorker};

/// The agent's first line. Its number is that of the rendezvous (`rendezvous::VERSION`).
pub(super) const GREETING: &[u8] = b"tsumuji agent 3\n";
/// What may come before the greeting: a shell's welcome.
const NOISE_BYTES_MAX: usize = 64 << 10;
/// The largest frame: a table of all nodes (see `rendezvous`), with room to spare.
const FRAME_BYTES_MAX: usize = 256 << 10;
const HEAD_BYTES: usize = 5;

/// What a frame holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A message as JSON.
    Message = 0,
    /// What the program printed.
    Stdout = 1,
    Stderr = 2,
    /// Nothing, said so that silence means something.
    Alive = 3,
}

/// Signs of life in the time after which silence counts as death: that many may be late or lost together.
const BEATS: u32 = 6;

/// When one side speaks next, and when the other has been silent for too long. Both judge alike, by the same bound.
#[derive(Debug)]
pub(super) struct Pulse {
    silence: Duration,
    said: Instant,
    heard: Instant,
}

impl Pulse {
    pub(super) fn new(silence: Duration) -> Self {
        let now = Instant::now();
        Self {
            silence,
            said: now,
            heard: now,
        }
    }

    /// The other side may be silent for so long.
    pub(super) fn silence(&self) -> Duration {
        self.silence
    }

    pub(super) fn said(&mut self) {
        self.said = Instant::now();
    }

    /// Something was heard, or nobody listened.
    pub(super) fn heard(&mut self) {
        self.heard = Instant::now();
    }

    /// Time for a sign of life.
    pub(super) fn is_due(&self) -> bool {
        self.said.elapsed() >= self.silence / BEATS
    }

    pub(super) fn is_silent(&self) -> bool {
        self.heard.elapsed() >= self.silence
    }

    /// How long until silence is too long; zero: it is.
    pub(super) fn until_silent(&self) -> Duration {
        self.silence.saturating_sub(self.heard.elapsed())
    }

    /// How long to sleep at most: until it is time to speak, or silence is too long; what is known does not wake again.
    pub(super) fn until_next(&self) -> Duration {
        let to_say = (self.silence / BEATS).saturating_sub(self.said.elapsed());
        match self.until_silent() {
            Duration::ZERO => to_say,
            to_judge => to_say.min(to_judge),
        }
    }
}

/// What the launcher tells an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum ToAgent {
    /// The first message: run this.
    Start {
        node: u16,
        command: Vec<String>,
        env: Vec<(String, String)>,
        /// Where to run it, if there is such a place.
        directory: Option<String>,
        /// Each side takes the other for dead after this much silence.
        silence_ms: u64,
    },
    /// For the program that said hello.
    Forward { message: FromLauncher },
    /// Nobody reads the program's standard output any more: close it.
    CloseStdout,
    /// End the program in good order.
    Stop,
}

/// What an agent tells its launcher.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum FromAgent {
    /// The program runs.
    Started { pid: u32 },
    /// It does not.
    CouldNotStart { program: String, reason: String },
    /// The program says.
    Forward { message: FromWorker },
    /// It has closed its rendezvous: an address that it told is no longer good.
    Left,
    /// It has ended; one of the two is there.
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

/// The stream holds what is no frame: nothing after it can be trusted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Garbage;

/// Gathers bytes until frames are whole.
#[derive(Debug)]
pub(super) struct Frames {
    bytes: Vec<u8>,
    /// Taken from the front of `bytes`.
    taken: usize,
    greeted: bool,
}

impl Frames {
    /// For a stream that begins with a greeting, or straight away.
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

    /// Takes bytes as they came. All whole frames must be taken out before the next call: that bounds what is kept.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole frame.
    pub(super) fn next(&mut self) -> Result<Option<(Kind, &[u8])>, Garbage> {
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
        Ok(Some((kind, &self.bytes[from..self.taken])))
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

    /// Frames come out as they went in, however the stream is cut, and what a shell says before the greeting is skipped.
    #[test]
    fn frames_survive_any_cut() {
        let mut stream = b"Welcome to pc2!\ntsumuji agent \n".to_vec();
        stream.extend_from_slice(GREETING);
        let stop = serde_json::to_vec(&ToAgent::Stop).expect("json");
        put_message(&mut stream, &ToAgent::Stop).expect("json");
        put(&mut stream, Kind::Stderr, b"");
        put(&mut stream, Kind::Stdout, &[0xff; 1000]);
        for piece in [1, 2, 7, 100, stream.len()] {
            let mut frames = Frames::new(true);
            let mut got = Vec::new();
            for bytes in stream.chunks(piece) {
                frames.feed(bytes);
                while let Some((kind, content)) = frames.next().expect("sound") {
                    got.push((kind, content.to_vec()));
                }
            }
            let wanted = [
                (Kind::Message, stop.clone()),
                (Kind::Stderr, Vec::new()),
                (Kind::Stdout, vec![0xff; 1000]),
            ];
            assert_eq!(got, wanted, "in pieces of {piece}");
        }
    }

    /// Impossible lengths and kinds, and noise without end, are refused before they cost memory.
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
            assert_eq!(frames.next(), Err(Garbage), "{head:?}");
        }
        let mut frames = Frames::new(true);
        let refused = (0..10_000).position(|_| {
            frames.feed(b"a shell that never stops talking\n");
            frames.next().is_err()
        });
        assert!(refused.is_some());
    }
}
