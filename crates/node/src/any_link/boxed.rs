//! A link behind a table of functions: a wrapped one, or one that the program brings along.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use tsumuji_link::{
    Capacity, Erased, Frame, Link, LinkAddr, LinkCaps, LinkCounters, LinkError, Receiver,
    SealCounters, pass_on,
};

/// A link of a type that is not known here. It offers no rings.
pub struct BoxedLink {
    link: Box<dyn Calls>,
}

impl BoxedLink {
    pub(super) fn new(link: impl Link + Send + 'static) -> Self {
        Self {
            link: Box::new(link),
        }
    }
}

impl fmt::Debug for BoxedLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BoxedLink({})", self.link.caps().name)
    }
}

/// Declares the table, and fills it for each type of link.
macro_rules! table {
    (
        shared { $(fn $get:ident($($get_arg:ident: $get_type:ty)?) -> $got:ty;)* }
        exclusive { $(fn $name:ident($($arg:ident: $type:ty),*) $(-> $result:ty)?;)* }
    ) => {
        trait Calls: Send {
            $(fn $get(&self $(, $get_arg: $get_type)?) -> $got;)*
            $(fn $name(&mut self $(, $arg: $type)*) $(-> $result)?;)*
            fn receive(&mut self, max: usize, receiver: &mut dyn Receiver) -> Result<usize, LinkError>;
        }

        impl<L: Link + Send> Calls for L {
            $(fn $get(&self $(, $get_arg: $get_type)?) -> $got {
                Link::$get(self $(, $get_arg)?)
            })*
            $(fn $name(&mut self $(, $arg: $type)*) $(-> $result)? {
                Link::$name(self $(, $arg)*)
            })*
            fn receive(&mut self, max: usize, receiver: &mut dyn Receiver) -> Result<usize, LinkError> {
                Link::receive(self, max, &mut Erased(receiver))
            }
        }
    };
}

table! {
    shared {
        fn caps() -> LinkCaps;
        fn caps_to(to: LinkAddr) -> LinkCaps;
        fn local_addr() -> LinkAddr;
        fn fd() -> Option<BorrowedFd<'_>>;
        fn counters() -> LinkCounters;
        fn sealing() -> Option<SealCounters>;
    }
    exclusive {
        fn capacity(to: LinkAddr) -> Result<Capacity, LinkError>;
        fn send(to: LinkAddr, frames: &[Frame<'_>]) -> Result<usize, LinkError>;
        fn flush() -> Result<(), LinkError>;
        fn wait(timeout: Duration) -> Result<(), LinkError>;
        fn arm_fd() -> Result<bool, LinkError>;
        fn has_unsent() -> bool;
        fn set_reach(to: LinkAddr, frame_bytes: usize);
        fn note_time(now_ns: u64);
    }
}

impl Link for BoxedLink {
    pass_on!((link): caps caps_to local_addr capacity send receive flush wait fd arm_fd set_reach note_time counters sealing);
}
