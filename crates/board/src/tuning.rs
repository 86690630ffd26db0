//! Numbers of the board that trade one thing for another: each with its unit, what it trades, and where it comes from.

/// The numbers of this crate.
pub(crate) struct Tuning {
    /// A reader of more than this part of an owner's elements, as a divisor, is better sent all of them.
    /// Trades longer frames against more of them.
    pub(crate) whole_divisor: usize,
    /// Elements in a frame, with which the automatic setting begins.
    pub(crate) elements: usize,
    /// Nanoseconds of computing after which the automatic setting decides, so that one slow frame or one clock reading decides nothing.
    pub(crate) window_ns: u64,
    /// A time of more than so many usual ones is an interruption (the core ran another process) and counts only as so many: the frequency of
    /// interruptions has nothing to do with the cost of frames.
    pub(crate) usual_times: u64,
    /// Weight of a new time in the usual one, as a divisor. Trades noise against late notice of change.
    pub(crate) usual_weight: u64,
}

pub(crate) const TUNING: Tuning = Tuning {
    whole_divisor: 2,
    elements: 8,
    window_ns: 2_000_000,
    usual_times: 4,
    usual_weight: 16,
};
