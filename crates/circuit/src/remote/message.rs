//! Messages between judge and workers: parcels, each a head and many numbers, cut into messages of bounded size.
//!
//! Parsing takes any bytes and never panics: what does not parse or fit is a [`Misfit`]. Memory grows with the bytes that have arrived, never with
//! what they announce.

use crate::substructure::{PartInput, PartOutput};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use tsumuji_node::{Bytes, Channel, DeliveryClass, Priority};
use tsumuji_numbers::memory;
use tsumuji_solve::distributed::codec;
use tsumuji_solve::local::{LuError, Schur};
use tsumuji_solve::system::Csr;

/// Parcels, in both directions.
pub(super) const PARCELS: Channel = Channel::new(DeliveryClass::Ordered, Priority::BULK, 1);
/// Any message there tells a worker that the run has ended.
pub(super) const LEAVE: Channel = Channel::new(DeliveryClass::Ordered, Priority::URGENT, 2);

/// Bytes of one message: large enough to be cheap, small against any budget.
const CHUNK_BYTES: usize = 256 << 10;
/// Most entries of a part's factors that are believed.
const MOST_ENTRIES: u64 = 1 << 48;

/// Head of a parcel from the judge, after the number of the part that it concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Order {
    /// The part is the worker's, and this is where its block has entries: the length of each row, then the columns, in 32 bits each. Values follow.
    Pattern {
        /// Unknowns of the interior, which come first.
        interior: u32,
        /// Rows of the block.
        rows: u32,
        /// Workers that share the memory of this one's host.
        sharing: u16,
    },
    /// Values of the block: eliminate the interior, and answer `Schur` or `Refused`.
    Values,
    /// Right-hand side of the interior: answer `Border`.
    Interior,
    /// The interface's solution in the order of the Schur complement: answer `Interior`.
    Border,
}

/// Head of a parcel from a worker, after the number of the part that it concerns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Answer {
    /// Interior unknowns that join the interface, in 32 bits each, then the Schur complement.
    Schur {
        /// So many join.
        delayed: u32,
        /// Entries of the factors.
        entries: u64,
    },
    /// The interior has no usable factors.
    Refused(LuError),
    /// What the part adds to the right-hand side of the interface.
    Border,
    /// The interior of the solution.
    Interior,
}

/// A message does not parse, or does not fit what came before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Misfit;

/// A head and what follows it as messages.
pub(super) fn parcel(head: &impl Serialize, body: Vec<u8>) -> VecDeque<Bytes> {
    let first = codec::head_to_bytes(&(head, body.len() as u64), 0);
    let mut messages = VecDeque::from([Bytes::from(first)]);
    let mut rest = Bytes::from(body);
    while !rest.is_empty() {
        messages.push_back(rest.split_to(rest.len().min(CHUNK_BYTES)));
    }
    messages
}

/// A head and numbers as messages.
pub(super) fn numbers(head: &impl Serialize, values: &[f64]) -> VecDeque<Bytes> {
    let mut body = Vec::new();
    codec::put_f64s(&mut body, values);
    parcel(head, body)
}

/// A parcel that is announced to be longer must fit into the memory that is available.
const UNCHECKED_BYTES: u64 = 16 << 20;

/// Puts parcels together from the messages of one sender.
#[derive(Debug)]
pub(super) struct Assembly<T>(Option<Parcel<T>>);

/// A parcel that is not complete yet.
#[derive(Debug)]
struct Parcel<T> {
    head: T,
    bytes: u64,
    body: Vec<u8>,
}

impl<T> Default for Assembly<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: DeserializeOwned> Assembly<T> {
    /// Takes the next message; returns head and body of the parcel that it completes.
    pub(super) fn take(&mut self, message: &[u8]) -> Result<Option<(T, Vec<u8>)>, Misfit> {
        let parcel = match self.0.take() {
            Some(mut parcel) => {
                parcel.body.extend_from_slice(message);
                parcel
            }
            None => {
                let parsed = codec::from_bytes::<(T, u64)>(message);
                let (head, bytes) = parsed.ok_or(Misfit)?;
                let available = || memory::available_bytes().unwrap_or(u64::MAX);
                if bytes > UNCHECKED_BYTES && bytes > available() {
                    return Err(Misfit);
                }
                let body = Vec::new();
                Parcel { head, bytes, body }
            }
        };
        match (parcel.body.len() as u64).cmp(&parcel.bytes) {
            std::cmp::Ordering::Less => {
                self.0 = Some(parcel);
                Ok(None)
            }
            std::cmp::Ordering::Equal => Ok(Some((parcel.head, parcel.body))),
            std::cmp::Ordering::Greater => Err(Misfit),
        }
    }
}

/// Where a part's block has entries.
#[derive(Debug)]
pub(super) struct Pattern {
    pub(super) interior: usize,
    offsets: Vec<usize>,
    columns: Vec<u32>,
}

impl Pattern {
    /// The pattern of a part, as messages.
    pub(super) fn of(part: u16, input: &PartInput, sharing: u16) -> VecDeque<Bytes> {
        let block = &input.block;
        let head = Order::Pattern {
            interior: input.interior.len() as u32,
            rows: block.rows() as u32,
            sharing,
        };
        let lengths = block.offsets().windows(2);
        let lengths: Vec<u32> = lengths.map(|pair| (pair[1] - pair[0]) as u32).collect();
        let mut body = Vec::new();
        codec::put_u32s(&mut body, &lengths);
        codec::put_u32s(&mut body, block.indices());
        parcel(&(part, head), body)
    }

    pub(super) fn parse(interior: u32, rows: u32, body: &[u8]) -> Option<Self> {
        let (lengths, columns) = body.split_at_checked((rows as usize).checked_mul(4)?)?;
        let (lengths, columns) = (codec::u32s(lengths)?, codec::u32s(columns)?);
        let mut end = 0usize;
        let ends = lengths.iter().map(|&length| {
            end += length as usize;
            end
        });
        let offsets: Vec<usize> = std::iter::once(0).chain(ends).collect();
        let pattern = Self {
            interior: interior as usize,
            offsets,
            columns,
        };
        let fits = interior <= rows && pattern.offsets.last() == Some(&pattern.columns.len());
        fits.then_some(pattern)
    }

    /// The block with these values.
    pub(super) fn with(&self, values: Vec<f64>) -> Option<Csr> {
        let n = self.offsets.len() - 1;
        Csr::new(n, self.offsets.clone(), self.columns.clone(), values).ok()
    }
}

/// The Schur complement of a part, as messages.
pub(super) fn schur(part: u16, output: &PartOutput) -> VecDeque<Bytes> {
    let Schur { delayed, values } = &output.schur;
    let head = Answer::Schur {
        delayed: delayed.len() as u32,
        entries: output.entries as u64,
    };
    let mut body = Vec::new();
    codec::put_u32s(&mut body, delayed);
    codec::put_f64s(&mut body, values);
    parcel(&(part, head), body)
}

/// The Schur complement of a part whose interior and border have so many unknowns.
pub(super) fn parse_schur(
    (interior, border): (usize, usize),
    (delayed, entries): (u32, u64),
    body: &[u8],
) -> Option<PartOutput> {
    let (delayed, values) = body.split_at_checked((delayed as usize).checked_mul(4)?)?;
    let (delayed, values) = (codec::u32s(delayed)?, codec::f64s(values)?);
    let size = delayed.len() + border;
    let is_interior = |place: &u32| (*place as usize) < interior;
    let fits = delayed.iter().all(is_interior)
        && values.len() == size.checked_mul(size)?
        && entries <= MOST_ENTRIES;
    fits.then_some(PartOutput {
        schur: Schur { delayed, values },
        entries: entries as usize,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn input() -> PartInput {
        let entries = [(0, 0, 2.0), (0, 2, -1.0), (1, 1, 2.0), (2, 0, -1.0)];
        PartInput {
            interior: vec![4, 7],
            border: vec![0],
            block: Csr::from_triplets(3, 3, &entries).unwrap(),
        }
    }

    /// The only parcel that these messages make.
    fn assembled<T: DeserializeOwned>(messages: &VecDeque<Bytes>) -> (T, Vec<u8>) {
        let mut assembly = Assembly::default();
        let mut found = None;
        for message in messages {
            assert!(found.is_none(), "a parcel before its end");
            found = assembly.take(message).unwrap();
        }
        found.expect("a whole parcel")
    }

    /// Bodies of any size arrive whole, in messages of bounded size.
    #[test]
    fn parcels_are_cut_and_joined() {
        for bytes in [0, 8, CHUNK_BYTES, 2 * CHUNK_BYTES + 8] {
            let body: Vec<u8> = (0..bytes).map(|place| (place % 251) as u8).collect();
            let messages = parcel(&Order::Values, body.clone());
            assert_eq!(messages.len(), 1 + bytes.div_ceil(CHUNK_BYTES));
            assert!(messages.iter().all(|message| message.len() <= CHUNK_BYTES));
            assert_eq!(assembled::<Order>(&messages), (Order::Values, body));
        }
    }

    /// A block arrives as it was, and so does a Schur complement.
    #[test]
    fn blocks_and_complements_arrive() {
        let input = input();
        let ((part, order), body) = assembled::<(u16, Order)>(&Pattern::of(9, &input, 3));
        assert_eq!(part, 9);
        let wanted = Order::Pattern {
            interior: 2,
            rows: 3,
            sharing: 3,
        };
        assert_eq!(order, wanted);
        let pattern = Pattern::parse(2, 3, &body).unwrap();
        let values = input.block.values().to_vec();
        assert_eq!(pattern.with(values), Some(input.block.clone()));
        assert_eq!(pattern.with(vec![1.0]), None);
        assert!(Pattern::parse(4, 3, &body).is_none(), "more than all rows");
        assert!(Pattern::parse(2, 2, &body).is_none(), "rows that are left");

        let output = PartOutput {
            schur: Schur {
                delayed: vec![1],
                values: vec![1.0, 2.0, 3.0, 4.0],
            },
            entries: 9,
        };
        let ((part, answer), body) = assembled::<(u16, Answer)>(&schur(4, &output));
        assert_eq!(part, 4);
        let Answer::Schur { delayed, entries } = answer else {
            panic!("{answer:?}");
        };
        let parse = |delayed, entries| parse_schur((2, 1), (delayed, entries), &body);
        assert_eq!(parse(delayed, entries), Some(output));
        assert_eq!(parse(0, entries), None);
        assert_eq!(parse(u32::MAX, entries), None);
        assert_eq!(parse(delayed, u64::MAX), None);
        let mut beyond = body.clone();
        beyond[0] = 2; // the interior has two unknowns
        assert_eq!(parse_schur((2, 1), (delayed, entries), &beyond), None);
    }

    proptest! {
        /// Any bytes are parsed without a panic, and a body that is too long is refused.
        #[test]
        fn any_bytes(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..8),
            interior in 0u32..5,
            rows in 0u32..5,
        ) {
            let mut orders = Assembly::<(u16, Order)>::default();
            let mut answers = Assembly::<(u16, Answer)>::default();
            for message in &messages {
                let _ = (orders.take(message), answers.take(message));
                let _ = parse_schur((2, 1), (interior, 1), message);
                if let Some(pattern) = Pattern::parse(interior, rows, message) {
                    let entries = pattern.columns.len();
                    let block = pattern.with(vec![1.0; entries]);
                    prop_assert!(block.is_none_or(|block| block.rows() == rows as usize));
                }
            }
            let mut assembly = Assembly::<Order>::default();
            prop_assert_eq!(assembly.take(&codec::head_to_bytes(&(Order::Border, 3u64), 0)), Ok(None));
            prop_assert_eq!(assembly.take(&[0; 4]), Err(Misfit));
        }
    }
}
