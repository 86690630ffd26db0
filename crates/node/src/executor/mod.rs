//! Executors: who runs a channel's service, the thread that drives the endpoint or workers beside it.
//!
//! A [`Service`] is code that answers messages. It is the same for all three executors. *Run-to-completion* calls it on the driving thread: receive,
//! work and transmit on one core, data stay in its nearest cache. *Pipeline* gives messages to workers, while the driving thread receives and
//! transmits; heavy services then hold up neither acknowledgements nor other channels. *Adaptive* begins with the first, measures, and moves the
//! service to the workers and back (`policy`).
//!
//! A program that computes all the time has no service: it hands its work over to a thread ([`Beside`]) by the same three words.
//!
//! Opened by `Endpoint::serve`; it is the channel's handler (`dispatch`). Invariants: messages of one peer on ordered channels are served one at a time, in order,
//! also across a move, and their answers leave in that order; a message counts against the channel's budget until it was served, which bounds the
//! workers' queues.
//!
//! Left out on purpose: a thread of its own for transmission. The engine is one state machine, so one thread at a time both receives and transmits;
//! workers give it their answers.

mod beside;
mod dispatch;
mod division;
mod policy;
#[cfg(test)]
mod tests;
mod workers;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tsumuji_proto::{Channel, NodeId};

pub use self::beside::{Beside, Stepped, Work};
pub(crate) use self::dispatch::{Dispatch, Shared};
use crate::channel::{Letter, MessageSender};
use crate::error::SendError;
use crate::handler::Context;

/// Code that answers what arrives on a channel, on whatever thread an executor runs it.
///
/// Several threads may call it at a time, each for other peers; what comes from one peer on ordered channels is served in order.
pub trait Service: Send + Sync + 'static {
    /// Serves a message or a datagram.
    fn serve(&self, request: &Request<'_>, answers: &mut Answers<'_>);
}

impl<F: Fn(&Request<'_>, &mut Answers<'_>) + Send + Sync + 'static> Service for F {
    fn serve(&self, request: &Request<'_>, answers: &mut Answers<'_>) {
        self(request, answers);
    }
}

/// What is to be served.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The sender.
    pub from: NodeId,
    /// The channel it came by; of a datagram the ordered one of its id.
    pub channel: Channel,
    /// Number of the sender's session, as in [`Delivery`](crate::Delivery).
    pub session: u64,
    /// Its content.
    pub body: &'a [u8],
}

/// How a service sends.
#[derive(Debug)]
pub struct Answers<'a>(Via<'a>);

#[derive(Debug)]
enum Via<'a> {
    /// Messages leave when the present poll ends.
    Driver(&'a mut dyn Outlet),
    /// The worker sends them when it has served some.
    Worker {
        sender: &'a MessageSender,
        source: (NodeId, Channel),
        outgoing: &'a mut Vec<Letter>,
    },
}

/// The context of a handler, whatever its lifetime.
trait Outlet: fmt::Debug {
    fn send(&mut self, to: NodeId, channel: Channel, message: &[u8]) -> Result<(), SendError>;
    fn reply(&mut self, message: &[u8]) -> Result<(), SendError>;
}

impl Outlet for Context<'_> {
    fn send(&mut self, to: NodeId, channel: Channel, message: &[u8]) -> Result<(), SendError> {
        Context::send(self, to, channel, message)
    }

    fn reply(&mut self, message: &[u8]) -> Result<(), SendError> {
        Context::reply(self, message)
    }
}

impl<'a> Answers<'a> {
    fn of_driver(context: &'a mut Context<'_>) -> Self {
        Self(Via::Driver(context))
    }

    /// Sends a copy of `message`. On the driving thread [`SendError::WouldBlock`] says that too many answers wait, as in [`Context::send`]; a worker waits
    /// for room, after the call.
    pub fn send(&mut self, to: NodeId, channel: Channel, message: &[u8]) -> Result<(), SendError> {
        match &mut self.0 {
            Via::Driver(outlet) => outlet.send(to, channel, message),
            Via::Worker {
                sender, outgoing, ..
            } => post(sender, outgoing, (to, channel), message),
        }
    }

    /// Sends a copy of `message` to the source of the request, on its channel.
    pub fn reply(&mut self, message: &[u8]) -> Result<(), SendError> {
        match &mut self.0 {
            Via::Driver(outlet) => outlet.reply(message),
            Via::Worker {
                sender,
                source,
                outgoing,
            } => post(sender, outgoing, *source, message),
        }
    }
}

fn post(
    sender: &MessageSender,
    outgoing: &mut Vec<Letter>,
    (to, channel): (NodeId, Channel),
    message: &[u8],
) -> Result<(), SendError> {
    sender.check(to, channel)?;
    outgoing.push(Letter::of_thread(to, channel, message.to_vec()));
    Ok(())
}

/// The thread that runs a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum Executor {
    /// The driving thread: receive, serve and transmit on one core.
    RunToCompletion,
    /// Workers; the driving thread receives and transmits.
    Pipeline,
    /// The driving thread, as long as the service is light.
    #[default]
    Adaptive,
}

impl Executor {
    /// The name as users write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RunToCompletion => "rtc",
            Self::Pipeline => "pipeline",
            Self::Adaptive => "adaptive",
        }
    }
}

impl fmt::Display for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The text names no executor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("accepted are rtc (run-to-completion), pipeline and adaptive")]
pub struct UnknownExecutor;

impl FromStr for Executor {
    type Err = UnknownExecutor;

    fn from_str(text: &str) -> Result<Self, UnknownExecutor> {
        [Self::RunToCompletion, Self::Pipeline, Self::Adaptive]
            .into_iter()
            .find(|executor| executor.name() == text)
            .ok_or(UnknownExecutor)
    }
}

/// Options of an executor.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExecutorOptions {
    /// The thread that runs the service.
    pub executor: Executor,
    /// Number of workers; 0: one for each core but the driving thread's. There are no more than that in any case, and at least one. The cores are those
    /// of the thread that opens the channel; if it is bound to one, those of the process's first thread.
    pub workers: usize,
    /// Cores for the workers, in turn; empty: the scheduler chooses. A worker whose core cannot be had is not bound; the log says so.
    pub cores: Vec<usize>,
}

/// Why an adaptive executor does as it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Reason {
    /// Its options say so.
    #[default]
    Fixed,
    /// Not enough was measured yet.
    Unmeasured,
    /// The service is light.
    Light,
    /// The service takes most of the driving thread's time.
    Heavy,
    /// One call takes so long that peers would wait for acknowledgements.
    Long,
    /// There is no core for workers, or they have lately done no good: their rate was lower, or messages came one at a time.
    NoCore,
}

impl Reason {
    /// As a label.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::Unmeasured => "unmeasured",
            Self::Light => "light",
            Self::Heavy => "heavy",
            Self::Long => "long",
            Self::NoCore => "no-core",
        }
    }
}

/// State of an executor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ExecutorState {
    /// As in the options.
    pub executor: Executor,
    /// The service is with the workers now.
    pub with_workers: bool,
    /// Why.
    pub reason: Reason,
    /// Number of workers.
    pub workers: usize,
    /// Messages served on the driving thread.
    pub driver_messages: u64,
    /// Messages served by workers.
    pub worker_messages: u64,
    /// Messages that wait for workers.
    pub waiting_messages: usize,
    /// Datagrams dropped because too many waited.
    pub dropped_datagrams: u64,
    /// Mean time of a call, in nanoseconds: of the last few hundred that were timed, or of fewer long ones.
    pub call_ns: u64,
    /// How often the service was moved.
    pub moves: u64,
}
