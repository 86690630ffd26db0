//! Numbers of carried streams that trade one thing for another. The size of rings is part of the segments' form, which both ends must agree on, and
//! stands in `ring`.

/// The numbers of this crate.
pub(crate) struct Tuning {
    /// A producer does not go back to the beginning of a ring before this position, in bytes: that much stays in the nearest cache.
    pub(crate) rewind_bytes: u64,
    /// Bytes of a piece of a long copy: less than 2,048, from which on the C library's `memcpy` may use `rep movsb`.
    pub(crate) copy_bytes: usize,
}

pub(crate) const TUNING: Tuning = Tuning {
    rewind_bytes: 16 << 10,
    copy_bytes: 1984,
};
