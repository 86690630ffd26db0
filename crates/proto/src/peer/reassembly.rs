//! A message that arrives in several fragments, in any order.
//!
//! Invariant: bit i of `arrived` is set if and only if fragment i lies in `buffer`; `missing` counts the clear ones.

use alloc::vec::Vec;

use crate::numbers::NUMBER_WINDOW;
use crate::pool::{Pool, has_bit, set_bit};

#[derive(Debug)]
pub(crate) struct Reassembly {
    buffer: Vec<u8>,
    length_bytes: usize,
    fragment_bytes: usize,
    arrived: Vec<u64>,
    missing: usize,
    /// All fragments before this one have arrived; perhaps more.
    first_missing: usize,
}

/// A fragment further ahead of the first that is missing is refused, so that memory is filled by what arrives, not by what
/// one frame claims. An honest sender gets there only if one fragment is lost again and again.
const AHEAD_FRAGMENTS: usize = NUMBER_WINDOW as usize;

impl Reassembly {
    /// `None`: no memory. What is reserved is not touched until fragments fill it.
    pub(crate) fn new(pool: &mut Pool, length_bytes: usize, fragment_bytes: usize) -> Option<Self> {
        let buffer = pool.take(length_bytes)?;
        let missing = length_bytes.div_ceil(fragment_bytes);
        Some(Self {
            buffer,
            length_bytes,
            fragment_bytes,
            arrived: pool.take_bitmap(missing),
            missing,
            first_missing: 0,
        })
    }

    pub(crate) fn length_bytes(&self) -> usize {
        self.length_bytes
    }

    /// Bytes that have not arrived, counted in whole fragments.
    pub(crate) fn remaining_bytes(&self) -> usize {
        self.missing * self.fragment_bytes
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.missing == 0
    }

    /// Is the fragment at `offset` too far ahead to be taken now?
    pub(crate) fn is_beyond(&mut self, offset: usize) -> bool {
        let fragment = offset / self.fragment_bytes;
        if fragment < self.first_missing + AHEAD_FRAGMENTS {
            return false;
        }
        while has_bit(&self.arrived, self.first_missing) {
            self.first_missing += 1;
        }
        fragment >= self.first_missing + AHEAD_FRAGMENTS
    }

    /// Takes the fragment at `offset`, which obeys R-14; `false` if it was there already.
    pub(crate) fn insert(&mut self, offset: usize, payload: &[u8]) -> bool {
        if !set_bit(&mut self.arrived, offset / self.fragment_bytes) {
            return false;
        }
        self.missing -= 1;
        if offset >= self.buffer.len() {
            self.buffer.resize(offset, 0);
            self.buffer.extend_from_slice(payload);
        } else {
            self.buffer[offset..offset + payload.len()].copy_from_slice(payload);
        }
        true
    }

    pub(crate) fn finish(self, pool: &mut Pool) -> Vec<u8> {
        pool.put_bitmap(self.arrived);
        self.buffer
    }
}
