//! What a worker gives to an all-reduce, and takes from it.

use super::super::message::Answer;
use super::{Phase, State, Worker};
use crate::newton::Newton;
use crate::sgd::Sgd;

/// What an all-reduce begins with, and ends with.
#[derive(Debug)]
pub(in super::super) enum Reduced {
    Newton(Newton),
    Sgd(Box<Sgd>),
}

impl Worker {
    /// What an all-reduce came to; `exchanges`: how many there were.
    pub(in super::super) fn reduced(&mut self, result: Reduced, exchanges: u64) {
        self.exchange.exchanges += exchanges;
        match result {
            Reduced::Newton(newton) => {
                let epoch = match &self.state {
                    State::Newton { epoch, .. } => *epoch,
                    _ => 0,
                };
                self.state = State::Newton {
                    newton,
                    epoch,
                    version: 0,
                    published: 0,
                };
                self.report_newton(true);
            }
            Reduced::Sgd(sgd) => {
                let done = sgd.epochs();
                self.state = State::Sgd(sgd);
                self.tell(&Answer::Epochs {
                    done,
                    is_last: true,
                });
                self.phase = Phase::Ended;
            }
        }
    }

    /// The method's state, to be advanced by an all-reduce.
    pub(in super::super) fn reducing(&self) -> Option<Reduced> {
        match &self.state {
            State::None => None,
            State::Newton { newton, .. } => Some(Reduced::Newton(newton.clone())),
            State::Sgd(sgd) => Some(Reduced::Sgd(sgd.clone())),
        }
    }
}
