//! Messages as bytes: a head that postcard writes, then numbers as they lie in memory, little-endian.
//!
//! Used by `message`, by reports of `fixed_point`, and for rows (`system`).
//!
//! Parsing takes any bytes and never panics: bytes that do not parse are `None`.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest head: the rows of 65,536 workers, or a text. It bounds the memory that a message with false lengths can take.
const HEAD_LIMIT_BYTES: usize = 1 << 20;

/// The head, with room for the tail.
pub fn head_to_bytes(head: &impl Serialize, tail_bytes: usize) -> Vec<u8> {
    let room = Vec::with_capacity(64 + tail_bytes);
    postcard::to_extend(head, room).expect("all lengths are known and memory grows")
}

/// The head with a tail of numbers.
pub fn to_bytes(head: &impl Serialize, tail: &[f64]) -> Vec<u8> {
    let mut bytes = head_to_bytes(head, size_of_val(tail));
    put_f64s(&mut bytes, tail);
    bytes
}

/// Appends numbers of 8 bytes each.
pub fn put_f64s(bytes: &mut Vec<u8>, numbers: &[f64]) {
    let start = bytes.len();
    bytes.resize(start + size_of_val(numbers), 0);
    let (places, _) = bytes[start..].as_chunks_mut::<8>();
    for (place, value) in places.iter_mut().zip(numbers) {
        *place = value.to_le_bytes();
    }
}

/// Appends numbers of 4 bytes each.
pub fn put_u32s(bytes: &mut Vec<u8>, numbers: &[u32]) {
    let start = bytes.len();
    bytes.resize(start + size_of_val(numbers), 0);
    let (places, _) = bytes[start..].as_chunks_mut::<4>();
    for (place, value) in places.iter_mut().zip(numbers) {
        *place = value.to_le_bytes();
    }
}

/// Parses a head; returns it and the bytes that follow.
pub fn head_from_bytes<T: DeserializeOwned>(bytes: &[u8]) -> Option<(T, &[u8])> {
    let front = &bytes[..bytes.len().min(HEAD_LIMIT_BYTES)];
    let (head, rest) = postcard::take_from_bytes(front).ok()?;
    Some((head, &bytes[front.len() - rest.len()..]))
}

/// Parses a head that must be the whole message.
pub fn from_bytes<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let (head, rest) = head_from_bytes(bytes)?;
    rest.is_empty().then_some(head)
}

/// Parses a tail of numbers of 8 bytes each.
pub fn f64s(tail: &[u8]) -> Option<Vec<f64>> {
    let (numbers, odd) = tail.as_chunks::<8>();
    let numbers = numbers.iter().map(|bytes| f64::from_le_bytes(*bytes));
    odd.is_empty().then(|| numbers.collect())
}

/// Parses a tail of numbers of 4 bytes each.
pub fn u32s(tail: &[u8]) -> Option<Vec<u32>> {
    let (numbers, odd) = tail.as_chunks::<4>();
    let numbers = numbers.iter().map(|bytes| u32::from_le_bytes(*bytes));
    odd.is_empty().then(|| numbers.collect())
}
