//! What judge and workers send each other. Parsing takes any bytes and never panics: what does not parse or fit is `None`.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tsumuji_node::{Channel, DeliveryClass, Priority};

use crate::config::{LearnConfig, Mode};
use crate::data::Features;
use crate::objective::Shape;

use super::table::Plausible;

/// Orders and answers.
pub(super) const CONTROL: Channel = Channel::new(DeliveryClass::Ordered, Priority::URGENT, 1);
/// Rows.
pub(super) const BULK: Channel = Channel::new(DeliveryClass::Ordered, Priority::BULK, 1);
/// Statistics and parameters between workers, that are too long for a datagram.
pub(super) const PEERS: Channel = Channel::new(DeliveryClass::Ordered, Priority::NORMAL, PEERS_ID);
/// The same as datagrams.
pub(super) const PEERS_ID: u16 = 2;

/// What a worker must know before its rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Setup {
    pub(super) config: LearnConfig,
    pub(super) mode: Mode,
    /// Sizes and bounds of the data, and the rows of each worker.
    pub(super) plausible: Plausible,
    /// Without rows, so that the form is known.
    pub(super) empty: Features,
    /// The first step of SGD.
    pub(super) rate: f64,
    /// What TCP connections of this run begin with.
    pub(super) token: u64,
}

impl Setup {
    fn is_sound(&self) -> bool {
        let Shape { width, outputs } = self.plausible.shape;
        let parameters = width.checked_mul(outputs);
        self.plausible.kind == self.config.kind
            && self.empty.columns() + 1 == width
            && self.empty.rows() == 0
            && self.empty.stored() == 0
            && self.config.sgd.batch > 0
            && self.config.sgd.period > 0
            && parameters.is_some_and(|count| count <= crate::problem::PARAMETERS_MAX)
    }
}

/// From the judge to a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Order {
    Setup(Box<Setup>),
    /// Rows and their targets.
    Rows(Features, Vec<f64>),
    Begin(Begin),
    /// Make loss and gradient at these parameters.
    Verify {
        id: u32,
        theta: Vec<f64>,
    },
    /// Tell your parameters.
    Parameters {
        id: u32,
    },
    /// No more steps; tell your counters.
    Finish,
    Leave,
    Abort {
        why: String,
    },
}

/// Begin, or begin again, at these parameters with these workers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Begin {
    pub(super) epoch: u32,
    pub(super) alive: Vec<bool>,
    /// Rows of each worker. It has as many or more: those at the end of its share are another's now.
    pub(super) rows: Vec<u64>,
    pub(super) theta: Vec<f64>,
    /// Passes over the data that are done (SGD).
    pub(super) epochs: u64,
    /// Where workers listen (`Mode::Tcp`).
    pub(super) ports: Vec<u16>,
}

/// From a worker to the judge.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Answer {
    /// All rows are here.
    Ready,
    /// TCP sockets listen at this port.
    Listens {
        port: u16,
    },
    /// A Newton step is done; the parameters are those to try next, or the last accepted ones where it is the last step.
    Step {
        epoch: u32,
        steps: u64,
        loss: f64,
        gradient_norm: f64,
        theta: Vec<f64>,
        is_last: bool,
    },
    /// Epochs of SGD are done.
    Epochs {
        done: u64,
        is_last: bool,
    },
    /// Statistics of this worker are implausible.
    Suspect {
        worker: usize,
    },
    /// Loss and gradient for a `Verify`.
    Gradient {
        id: u32,
        sums: Vec<f64>,
    },
    /// Parameters for a `Parameters`.
    Parameters {
        id: u32,
        theta: Vec<f64>,
    },
    /// Counters for a `Finish`.
    Final {
        exchanges: u64,
        rejected: u64,
        bytes_sent: u64,
        /// Rows of steps that a second thread has done.
        rows_beside: u64,
    },
    Failed {
        why: String,
    },
    /// Statistics of others have been missing for long.
    Waits {
        epoch: u32,
    },
}

/// Between workers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum PeerMessage {
    /// The statistic of the sender's rows at the parameters of this version.
    Statistic {
        epoch: u32,
        version: u64,
        values: Vec<f64>,
    },
    /// The sender lacks the receiver's statistic of this version.
    Ask {
        epoch: u32,
        version: u64,
    },
    /// Parameters of SGD, to be averaged with the receiver's.
    Push {
        number: u64,
        theta: Vec<f64>,
    },
    /// The receiver's parameters before it averaged.
    Pull {
        number: u64,
        theta: Vec<f64>,
    },
    Mass(Mass),
    /// The sum of all statistics of this version (push-sum).
    Sum {
        epoch: u32,
        version: u64,
        values: Vec<f64>,
    },
}

/// All the mass of this version that the sender has ever given to the receiver (push-sum).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Mass {
    pub(super) epoch: u32,
    pub(super) version: u64,
    /// Of the sender's messages of this version to the receiver, from 1.
    pub(super) number: u64,
    /// It answers the receiver's; else the receiver is to answer.
    pub(super) is_answer: bool,
    pub(super) given: Vec<f64>,
}

/// A message as bytes.
pub(super) fn encode(message: &impl Serialize) -> Vec<u8> {
    postcard::to_allocvec(message).expect("all lengths are known and memory grows")
}

fn whole<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let (message, rest) = postcard::take_from_bytes(bytes).ok()?;
    rest.is_empty().then_some(message)
}

impl Order {
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let order: Self = whole(bytes)?;
        let is_sound = match &order {
            Self::Setup(setup) => setup.is_sound(),
            Self::Rows(features, targets) => {
                features.is_sound() && features.rows() == targets.len() && finite(targets)
            }
            _ => true,
        };
        is_sound.then_some(order)
    }
}

impl Answer {
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        whole(bytes)
    }
}

impl PeerMessage {
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        whole(bytes)
    }
}

/// Whether all numbers are.
pub(super) fn finite(values: &[f64]) -> bool {
    values.iter().all(|value| value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Rows whose parts do not fit together are no order.
    #[test]
    fn unsound_rows_are_refused() {
        let features = Features::Dense {
            columns: 2,
            values: vec![1.0; 4],
        };
        let good = Order::Rows(features.clone(), vec![0.0; 2]);
        assert_eq!(Order::parse(&encode(&good)), Some(good));
        assert_eq!(
            Order::parse(&encode(&Order::Rows(features.clone(), vec![0.0; 3]))),
            None
        );
        assert_eq!(
            Order::parse(&encode(&Order::Rows(features, vec![0.0, f64::NAN]))),
            None
        );
    }

    proptest! {
        /// Any bytes are parsed without a panic, and messages with bytes behind them are refused.
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = (Order::parse(&bytes), Answer::parse(&bytes), PeerMessage::parse(&bytes));
            let mut push = encode(&PeerMessage::Push { number: 1, theta: vec![1.0] });
            push.extend(&bytes);
            prop_assert_eq!(PeerMessage::parse(&push).is_some(), bytes.is_empty());
        }
    }
}
