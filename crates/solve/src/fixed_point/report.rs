//! What members tell node 0 while they iterate, which may be lost, and what all tell all in a pause.

use crate::distributed::codec;
use serde::{Deserialize, Serialize};

/// A member's word to node 0.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Report {
    /// Laps since the beginning of the run, and of the epoch.
    pub(super) laps: u64,
    pub(super) in_epoch: u64,
    /// The certificate of the own range, on values of others as old as they are here.
    pub(super) estimate: f64,
    pub(super) state: State,
}

/// What a member is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct State {
    /// Its last lap changed nothing, and nothing has arrived since.
    pub(super) is_still: bool,
    /// Its `stop` says so.
    pub(super) stops: bool,
    /// It computed NaN.
    pub(super) failed: bool,
}

impl State {
    const STILL: u64 = 1;
    const STOPS: u64 = 2;
    const FAILED: u64 = 4;

    pub(super) fn bits(self) -> u64 {
        let bit = |is_set: bool, bit: u64| if is_set { bit } else { 0 };
        bit(self.is_still, Self::STILL)
            | bit(self.stops, Self::STOPS)
            | bit(self.failed, Self::FAILED)
    }

    pub(super) fn of_bits(bits: u64) -> Self {
        Self {
            is_still: bits & Self::STILL != 0,
            stops: bits & Self::STOPS != 0,
            failed: bits & Self::FAILED != 0,
        }
    }
}

impl Report {
    pub(super) fn payload(&self) -> Vec<u8> {
        codec::to_bytes(self, &[])
    }

    /// `None`: these bytes are no report.
    pub(super) fn parse(payload: &[u8]) -> Option<Self> {
        codec::from_bytes(payload)
    }
}

/// A member's word in a pause, as it is gathered.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Record {
    /// The exact part of the certificate.
    pub(super) part: f64,
    pub(super) laps: u64,
    pub(super) state: State,
    /// The element that became NaN, if one did.
    pub(super) index: usize,
}

impl Record {
    /// Words of a record.
    pub(super) const WORDS: usize = 4;

    pub(super) fn words(&self) -> [u64; Self::WORDS] {
        [
            self.part.to_bits(),
            self.laps,
            self.state.bits(),
            self.index as u64,
        ]
    }

    pub(super) fn of_words(words: &[u64; Self::WORDS]) -> Self {
        Self {
            part: f64::from_bits(words[0]),
            laps: words[1],
            state: State::of_bits(words[2]),
            index: words[3] as usize,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Reports and records survive their way, and no bytes panic.
        #[test]
        fn reports_and_records_round_trip(bits in 0u64..8, laps: u64, bytes: Vec<u8>) {
            let state = State::of_bits(bits);
            let report = Report { laps, in_epoch: 3, estimate: 0.5, state };
            prop_assert_eq!(Report::parse(&report.payload()), Some(report));
            let record = Record { part: 0.5, laps, state, index: 7 };
            prop_assert_eq!(Record::of_words(&record.words()), record);
            prop_assert_eq!(Report::parse(&[&report.payload()[..], &bytes[..]].concat()).is_some(), bytes.is_empty());
            let counts = |report: Report| (report.laps, report.in_epoch, report.state);
            let parsed = Report::parse(&bytes);
            let again = parsed.and_then(|report| Report::parse(&report.payload()));
            prop_assert_eq!(again.map(counts), parsed.map(counts));
        }
    }
}
