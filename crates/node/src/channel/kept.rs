//! Messages that a program keeps beyond the call that brought them, to release them later, from any thread.

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use tsumuji_proto::{Channel, NodeId};

use super::bell::Bell;
use super::mailbox::{Charge, Message};
use crate::sys;

/// A message that counts against its channel's budget (or the endpoint's, if nobody opened the channel) until this goes, in whatever thread.
///
/// ```
/// # use std::time::Duration;
/// # use tsumuji_link::shm::{Shm, ShmConfig, ShmJob};
/// # use tsumuji_node::{Endpoint, Channel, Membership, NodeId, Options};
/// # let job = ShmJob::create(2, ShmConfig::for_nodes(2))?;
/// # let open = |id: u16| -> Result<_, Box<dyn std::error::Error>> {
/// #     Ok(Endpoint::new(Shm::attach(&job, id)?, Membership::local(NodeId(id), 2), Options::default())?)
/// # };
/// # let (mut a, mut b) = (open(0)?, open(1)?);
/// a.send(NodeId(1), Channel::ordered(0), b"work")?;
/// let kept = b.recv_kept(None, None, Duration::from_secs(5))?.ok_or("none")?;
/// let worker = std::thread::spawn(move || kept.iter().map(|byte| u32::from(*byte)).sum::<u32>());
/// assert_eq!(worker.join().unwrap(), 451); // and the message is released
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Kept {
    message: Message,
    charge: Charge,
    /// Charged for it.
    bytes: usize,
    generation: u64,
    returns: Arc<Returns>,
    is_back: bool,
}

impl Kept {
    pub(crate) fn new(
        message: Message,
        (charge, bytes): (Charge, usize),
        generation: u64,
        returns: &Arc<Returns>,
    ) -> Self {
        returns.bell.mind();
        Self {
            message,
            charge,
            bytes,
            generation,
            returns: Arc::clone(returns),
            is_back: false,
        }
    }

    /// Who sent it.
    pub fn from(&self) -> NodeId {
        self.message.from
    }

    /// The channel it came by.
    pub fn channel(&self) -> Channel {
        self.message.channel
    }

    /// One that counts against nobody.
    pub(crate) fn free(message: Message, returns: &Arc<Returns>) -> Self {
        let mut kept = Self::new(message, (Charge::Channel, 0), 0, returns);
        kept.is_back = true;
        kept
    }

    /// As it comes back there; and nothing does when this goes. Of another endpoint's, or one that counts against nobody: `None`.
    pub(crate) fn into_return(mut self, returns: &Arc<Returns>) -> Option<Return> {
        if self.is_back || !Arc::ptr_eq(&self.returns, returns) {
            return None;
        }
        self.is_back = true;
        Some(self.as_return())
    }

    fn as_return(&mut self) -> Return {
        Return {
            from: self.message.from,
            channel_id: self.message.channel.id(),
            charge: self.charge,
            bytes: self.bytes,
            generation: self.generation,
            body: std::mem::take(&mut self.message.body),
        }
    }
}

impl Deref for Kept {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.message.body
    }
}

/// For [`Bytes::from_owner`](bytes::Bytes::from_owner): what was kept can be sent on without a copy.
impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if !self.is_back {
            let back = self.as_return();
            self.returns.put(back);
        }
    }
}

/// A message that is not needed any more.
#[derive(Debug)]
pub(crate) struct Return {
    pub(crate) from: NodeId,
    pub(crate) channel_id: u16,
    pub(crate) charge: Charge,
    pub(crate) bytes: usize,
    /// Of the channel, when the message came.
    pub(crate) generation: u64,
    pub(crate) body: Vec<u8>,
}

/// Where kept messages come back to.
#[derive(Debug)]
pub(crate) struct Returns {
    /// Of this process, when the endpoint was opened.
    forks: u32,
    bell: Arc<Bell>,
    waiting: Mutex<Vec<Return>>,
}

impl Returns {
    pub(crate) fn new(bell: Arc<Bell>) -> Self {
        Self {
            forks: sys::forks(),
            bell,
            waiting: Mutex::default(),
        }
    }

    fn put(&self, back: Return) {
        if self.forks != sys::forks() {
            return; // somebody may have held the lock when this child was made
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.push(back);
        drop(waiting);
        self.bell.ring();
    }

    pub(crate) fn collect(&self) -> Vec<Return> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *waiting)
    }
}
