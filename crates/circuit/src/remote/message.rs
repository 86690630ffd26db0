//! Messages between judge and workers, one for each order and answer, after the number of the part that it concerns.
//!
//! Parsing takes any bytes and never panics: what does not parse or fit is a [`Misfit`]. Memory grows with the bytes that have arrived, never with
//! what they announce.

use crate::substructure::{PartInput, PartOutput};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tsumuji_node::{Bytes, Channel, DeliveryClass, Priority};
use tsumuji_solve::local::LuError;
use tsumuji_solve::system::Csr;

/// Orders and answers.
pub(super) const PARTS: Channel = Channel::new(DeliveryClass::Ordered, Priority::BULK, 1);
/// Any message there tells a worker that the run has ended.
pub(super) const LEAVE: Channel = Channel::new(DeliveryClass::Ordered, Priority::URGENT, 2);

/// Most entries of a part's factors that are believed.
const MOST_ENTRIES: usize = 1 << 48;

/// From the judge.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Order {
    /// The part is the worker's. Values follow.
    Pattern {
        pattern: Pattern,
        /// Workers that share the memory of this one's host.
        sharing: u16,
    },
    /// Values of the block: eliminate the interior, and answer `Schur` or `Refused`.
    Values(Vec<f64>),
    /// Right-hand side of the interior: answer `Border`.
    Interior(Vec<f64>),
    /// The interface's solution in the order of the Schur complement: answer `Interior`.
    Border(Vec<f64>),
}

/// From a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Answer {
    Schur(PartOutput),
    /// The interior has no usable factors.
    Refused(LuError),
    /// What the part adds to the right-hand side of the interface.
    Border(Vec<f64>),
    /// The interior of the solution.
    Interior(Vec<f64>),
}

/// A message does not parse, or does not fit what came before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Misfit;

/// An order or an answer as a message.
pub(super) fn encode(part: u16, content: &impl Serialize) -> Bytes {
    let bytes = postcard::to_allocvec(&(part, content));
    bytes
        .expect("all lengths are known and memory grows")
        .into()
}

/// The part and the content of a message.
pub(super) fn parse<T: DeserializeOwned>(message: &[u8]) -> Result<(u16, T), Misfit> {
    let (content, rest) = postcard::take_from_bytes(message).map_err(|_| Misfit)?;
    rest.is_empty().then_some(content).ok_or(Misfit)
}

/// Where a part's block has entries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Pattern {
    /// Unknowns of the interior, which come first.
    pub(super) interior: u32,
    /// Entries of each row.
    lengths: Vec<u32>,
    columns: Vec<u32>,
}

impl Pattern {
    pub(super) fn of(input: &PartInput) -> Self {
        let ends = input.block.offsets().windows(2);
        Self {
            interior: input.interior.len() as u32,
            lengths: ends.map(|pair| (pair[1] - pair[0]) as u32).collect(),
            columns: input.block.indices().to_vec(),
        }
    }

    /// The block with these values, which has the rows of the interior at least.
    pub(super) fn with(&self, values: Vec<f64>) -> Result<Csr, Misfit> {
        let mut end = 0usize;
        let ends = self.lengths.iter().map(|&length| {
            end += length as usize;
            end
        });
        let offsets = std::iter::once(0).chain(ends).collect();
        let block = Csr::new(self.lengths.len(), offsets, self.columns.clone(), values);
        let block = block.map_err(|_| Misfit)?;
        let fits = self.interior as usize <= block.rows();
        fits.then_some(block).ok_or(Misfit)
    }
}

/// Whether this can be of a part whose interior and border have so many unknowns.
pub(super) fn is_sound(output: &PartOutput, (interior, border): (usize, usize)) -> bool {
    let (delayed, values) = (&output.schur.delayed, &output.schur.values);
    let size = delayed.len() + border;
    delayed.iter().all(|place| (*place as usize) < interior)
        && size.checked_mul(size) == Some(values.len())
        && output.entries <= MOST_ENTRIES
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tsumuji_solve::local::Schur;

    /// A block arrives as it was; what does not fit is refused.
    #[test]
    fn blocks_arrive() {
        let entries = [(0, 0, 2.0), (0, 2, -1.0), (1, 1, 2.0), (2, 0, -1.0)];
        let input = PartInput {
            interior: vec![4, 7],
            border: vec![0],
            block: Csr::from_triplets(3, 3, &entries).unwrap(),
        };
        let (pattern, values) = (Pattern::of(&input), input.block.values().to_vec());
        assert_eq!(parse(&encode(9, &pattern)), Ok((9, pattern.clone())));
        assert_eq!(pattern.with(values.clone()), Ok(input.block.clone()));
        assert_eq!(pattern.with(vec![1.0]), Err(Misfit));
        let large = Pattern {
            interior: 4,
            ..pattern.clone()
        };
        assert_eq!(
            large.with(values.clone()),
            Err(Misfit),
            "more than all rows"
        );
        let short = Pattern {
            lengths: vec![2, 1],
            ..pattern
        };
        assert_eq!(short.with(values), Err(Misfit), "rows that are left");
    }

    /// Only what can be of a part is a Schur complement.
    #[test]
    fn complements_are_checked() {
        let output = PartOutput {
            schur: Schur {
                delayed: vec![1],
                values: vec![1.0, 2.0, 3.0, 4.0],
            },
            entries: 9,
        };
        assert!(is_sound(&output, (2, 1)));
        assert!(!is_sound(&output, (2, 2)), "a larger border");
        assert!(!is_sound(&output, (1, 1)), "beyond the interior");
        let many = PartOutput {
            entries: usize::MAX,
            ..output
        };
        assert!(!is_sound(&many, (2, 1)));
    }

    proptest! {
        /// Any bytes are parsed without a panic, and messages with bytes behind them are refused.
        #[test]
        fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Ok((_, Order::Pattern { pattern, .. })) = parse(&bytes)
                && let Ok(block) = pattern.with(vec![1.0; pattern.columns.len()])
            {
                prop_assert_eq!(block.rows(), pattern.lengths.len());
            }
            let _ = parse::<Answer>(&bytes);
            let mut order = encode(3, &Order::Border(vec![1.0])).to_vec();
            order.extend(&bytes);
            prop_assert_eq!(parse::<Order>(&order).is_ok(), bytes.is_empty());
        }
    }
}
