//! The receiver of the checks that place bodies.

use crate::{Coming, HEAD_BYTES_MAX, LinkAddr, Placement, Receiver};

/// Bytes of the heads that [`Placer`] has separated.
pub(super) const HEAD_BYTES: usize = 40;

/// Takes all frames whole; bodies of one length have places, which are used in turn.
pub(super) struct Placer {
    places: Vec<u8>,
    body_bytes: usize,
    /// Whether it expects the body behind this head.
    expects: fn(&[u8]) -> bool,
    /// Finds no body sound.
    pub(super) spoils: bool,
    pub(super) taken: Vec<Vec<u8>>,
    /// How many of them were placed.
    pub(super) placed: usize,
}

impl Placer {
    pub(super) fn new(places: usize, body_bytes: usize, expects: fn(&[u8]) -> bool) -> Self {
        Self {
            places: vec![0; places * body_bytes],
            body_bytes,
            expects,
            spoils: false,
            taken: Vec::new(),
            placed: 0,
        }
    }

    /// The places from the next one on.
    fn next(&mut self) -> &mut [u8] {
        let at = self.placed * self.body_bytes % self.places.len();
        &mut self.places[at..]
    }
}

impl Receiver for Placer {
    fn frame(&mut self, _: LinkAddr, frame: &[u8]) {
        self.taken.push(frame.to_vec());
    }

    fn placement(&mut self, coming: Option<Coming<'_>>) -> Option<Placement<'_>> {
        if let Some(coming) = coming {
            assert!(coming.start.len() <= coming.bytes.min(HEAD_BYTES_MAX));
        }
        Some(Placement {
            head_bytes: HEAD_BYTES,
            body_bytes: self.body_bytes,
            place: self.next(),
        })
    }

    fn is_expected(&mut self, _: LinkAddr, index: usize, head: &[u8], body_bytes: usize) -> bool {
        assert_eq!(head.len(), HEAD_BYTES);
        assert!(index * self.body_bytes < self.next().len());
        body_bytes == self.body_bytes && (self.expects)(head)
    }

    fn is_sound(&mut self, _: usize, _: &[u8], _: usize) -> bool {
        !self.spoils
    }

    fn placed(&mut self, _: LinkAddr, head: &[u8], body_bytes: usize) {
        let frame = [head, &self.next()[..body_bytes]].concat();
        self.taken.push(frame);
        self.placed += 1;
    }

    fn bodiless(&mut self, _: LinkAddr, head: &[u8], _: usize) {
        panic!("the body behind {head:?} was not read");
    }
}
