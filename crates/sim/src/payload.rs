//! Message contents that are made from a number and recognised by a checksum, so that the oracle stores neither.

use crate::rng::mix;

/// Fills `into` from `seed`: different seeds differ in every 8-byte word, and no word repeats within a message.
pub(crate) fn fill(seed: u64, into: &mut [u8]) {
    let mut counter = mix(seed);
    let (words, rest) = into.as_chunks_mut::<8>();
    for word in words {
        // One multiplication a word: 64 MiB must take only milliseconds. The xor-shift brings the high bits down.
        counter = counter.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let value = counter.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        *word = (value ^ value >> 32).to_le_bytes();
    }
    counter = counter.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = mix(counter).to_le_bytes();
    let length = rest.len();
    rest.copy_from_slice(&value[..length]);
}

/// A 64-bit checksum over length, content and order of the bytes. Not keyed: it finds mistakes, not forgeries.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    // Four independent sums: a single one would wait for its own multiplication at each word.
    let mut sums = [1, 2, 3, 4].map(|channel| mix(bytes.len() as u64 ^ channel << 56));
    let (rows, rest) = bytes.as_chunks::<32>();
    for row in rows {
        for (sum, word) in sums.iter_mut().zip(row.as_chunks::<8>().0) {
            *sum = take(*sum, *word);
        }
    }
    let mut last = [0; 32];
    last[..rest.len()].copy_from_slice(rest);
    let words = last.as_chunks::<8>().0;
    let sums = sums.into_iter().zip(words);
    mix(sums.fold(0, |all, (sum, word)| {
        take(all, take(sum, *word).to_le_bytes())
    }))
}

fn take(sum: u64, word: [u8; 8]) -> u64 {
    let sum = (sum ^ u64::from_le_bytes(word)).wrapping_mul(0x9fb2_1c65_1e98_df25);
    sum ^ sum >> 29
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The checksum sees a flipped bit, a swapped word, a shorter and a longer message.
    #[test]
    fn checksum_sees_every_kind_of_damage() {
        let mut message = vec![0; 1001];
        fill(7, &mut message);
        let sum = checksum(&message);
        assert_eq!(sum, checksum(&message.clone()));
        for bit in 0..message.len() * 8 {
            let mut damaged = message.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(checksum(&damaged), sum, "bit {bit}");
        }
        let mut swapped = message.clone();
        swapped[..16].rotate_left(8);
        assert_ne!(checksum(&swapped), sum);
        assert_ne!(checksum(&message[..1000]), sum);
        message.push(0);
        assert_ne!(checksum(&message), sum);
    }

    /// Contents of different seeds differ from the first byte on, also where they are short.
    #[test]
    fn contents_differ_between_seeds() {
        for length in [3, 8, 64] {
            let (mut one, mut other) = (vec![0; length], vec![0; length]);
            fill(1, &mut one);
            fill(2, &mut other);
            assert_ne!(one, other);
        }
    }
}
