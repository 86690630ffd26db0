//! The macro that forwards calls of one link to another: of a wrapper to the wrapped link, of an enum of links to its present variant.

/// Implements the named methods of [`Link`](crate::Link) by calls of the same methods. `(field)`: of the link in this field; `{Variant Variant}`: of
/// what the present variant holds.
#[doc(hidden)]
#[macro_export]
macro_rules! pass_on {
    (@caps $to:tt) => {
        #[inline]
        fn caps(&self) -> $crate::LinkCaps {
            $crate::pass_on!(@call self $to link => link.caps())
        }
    };
    (@caps_to $to:tt) => {
        fn caps_to(&self, to: $crate::LinkAddr) -> $crate::LinkCaps {
            $crate::pass_on!(@call self $to link => link.caps_to(to))
        }
    };
    (@local_addr $to:tt) => {
        #[inline]
        fn local_addr(&self) -> $crate::LinkAddr {
            $crate::pass_on!(@call self $to link => link.local_addr())
        }
    };
    (@capacity $to:tt) => {
        #[inline]
        fn capacity(&mut self, to: $crate::LinkAddr) -> Result<$crate::Capacity, $crate::LinkError> {
            $crate::pass_on!(@call self $to link => link.capacity(to))
        }
    };
    (@send $to:tt) => {
        #[inline]
        fn send(&mut self, to: $crate::LinkAddr, frames: &[$crate::Frame<'_>]) -> Result<usize, $crate::LinkError> {
            $crate::pass_on!(@call self $to link => link.send(to, frames))
        }
    };
    (@receive $to:tt) => {
        #[inline]
        fn receive(&mut self, max: usize, receiver: &mut impl $crate::Receiver) -> Result<usize, $crate::LinkError> {
            $crate::pass_on!(@call self $to link => link.receive(max, receiver))
        }
    };
    (@flush $to:tt) => {
        #[inline]
        fn flush(&mut self) -> Result<(), $crate::LinkError> {
            $crate::pass_on!(@call self $to link => link.flush())
        }
    };
    (@wait $to:tt) => {
        fn wait(&mut self, timeout: std::time::Duration) -> Result<(), $crate::LinkError> {
            $crate::pass_on!(@call self $to link => link.wait(timeout))
        }
    };
    (@fd $to:tt) => {
        fn fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
            $crate::pass_on!(@call self $to link => link.fd())
        }
    };
    (@arm_fd $to:tt) => {
        fn arm_fd(&mut self) -> Result<bool, $crate::LinkError> {
            $crate::pass_on!(@call self $to link => link.arm_fd())
        }
        fn has_unsent(&mut self) -> bool {
            $crate::pass_on!(@call self $to link => link.has_unsent())
        }
    };
    (@set_reach $to:tt) => {
        fn set_reach(&mut self, to: $crate::LinkAddr, frame_bytes: usize) {
            $crate::pass_on!(@call self $to link => link.set_reach(to, frame_bytes))
        }
    };
    (@note_time $to:tt) => {
        #[inline]
        fn note_time(&mut self, now_ns: u64) {
            $crate::pass_on!(@call self $to link => link.note_time(now_ns))
        }
    };
    (@counters $to:tt) => {
        fn counters(&self) -> $crate::LinkCounters {
            $crate::pass_on!(@call self $to link => link.counters())
        }
    };
    (@sealing $to:tt) => {
        fn sealing(&self) -> Option<$crate::SealCounters> {
            $crate::pass_on!(@call self $to link => link.sealing())
        }
    };
    (@call $self:ident ($field:ident) $link:ident => $call:expr) => {{
        let Self { $field: $link, .. } = $self;
        $call
    }};
    (@call $self:ident {$($(#[$cfg:meta])? $variant:ident)*} $link:ident => $call:expr) => {
        match $self { $($(#[$cfg])? Self::$variant($link) => $call,)* }
    };
    ($to:tt: $($method:ident)*) => {
        $($crate::pass_on!(@$method $to);)*
    };
}
