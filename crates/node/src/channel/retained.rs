//! Messages that a program keeps beyond the call that delivered them, and releases later, from any thread.

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use tsumuji_proto::{Channel, NodeId};

use super::bell::Bell;
use super::mailbox::{Charge, Message};
use crate::sys;

/// A message that counts against its channel's budget (or the endpoint's, if nobody opened the channel) until it is dropped, in any thread.
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
/// let retained = b.recv_retained(None, None, Duration::from_secs(5))?.ok_or("none")?;
/// let worker = std::thread::spawn(move || retained.iter().map(|byte| u32::from(*byte)).sum::<u32>());
/// assert_eq!(worker.join().unwrap(), 451); // and the message is released
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Retained {
    charged: Charged,
    body: Vec<u8>,
    returns: Arc<Returns>,
    is_back: bool,
}

impl Retained {
    pub(crate) fn new(charged: Charged, body: Vec<u8>, returns: &Arc<Returns>) -> Self {
        returns.bell.mind();
        Self {
            charged,
            body,
            returns: Arc::clone(returns),
            is_back: false,
        }
    }

    /// The sender.
    pub fn from(&self) -> NodeId {
        self.charged.from
    }

    /// The channel it came by.
    pub fn channel(&self) -> Channel {
        self.charged.channel
    }

    /// Drops messages of one endpoint together, cheaper than each by itself.
    pub(crate) fn release_together(messages: impl Iterator<Item = Self>) {
        let (mut back, mut owner) = (Vec::new(), None);
        for mut retained in messages {
            if !std::mem::replace(&mut retained.is_back, true) {
                back.push(retained.as_return());
                owner.get_or_insert_with(|| Arc::clone(&retained.returns));
            }
        }
        if let Some(owner) = owner {
            owner.put(back);
        }
    }

    /// A message that is not charged.
    pub(crate) fn free(message: Message, returns: &Arc<Returns>) -> Self {
        let charged = Charged {
            from: message.from,
            channel: message.channel,
            charge: Charge::Channel,
            bytes: 0,
            generation: 0,
        };
        let mut retained = Self::new(charged, message.body, returns);
        retained.is_back = true;
        retained
    }

    /// Takes the message apart for its release, so that dropping it does nothing. `None`: it is another endpoint's, or not charged.
    pub(crate) fn into_return(mut self, returns: &Arc<Returns>) -> Option<Return> {
        if self.is_back || !Arc::ptr_eq(&self.returns, returns) {
            return None;
        }
        self.is_back = true;
        Some(self.as_return())
    }

    fn as_return(&mut self) -> Return {
        (self.charged, std::mem::take(&mut self.body))
    }
}

impl Deref for Retained {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.body
    }
}

/// For [`Bytes::from_owner`](bytes::Bytes::from_owner): a retained message can be sent on without a copy.
impl AsRef<[u8]> for Retained {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Retained {
    fn drop(&mut self) {
        if !self.is_back {
            let back = self.as_return();
            self.returns.put([back]);
        }
    }
}

/// Where a message comes from, and what is charged for it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Charged {
    pub(crate) from: NodeId,
    pub(crate) channel: Channel,
    pub(crate) charge: Charge,
    pub(crate) bytes: usize,
    /// Generation of the channel when the message arrived.
    pub(crate) generation: u64,
}

/// A message to be released.
pub(crate) type Return = (Charged, Vec<u8>);

/// Where dropped messages wait for their release.
#[derive(Debug)]
pub(crate) struct Returns {
    /// Forks of this process when the endpoint was opened.
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

    fn put(&self, back: impl IntoIterator<Item = Return>) {
        if self.forks != sys::forks() {
            return; // another thread may have held the lock at the `fork`
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.extend(back);
        drop(waiting);
        self.bell.ring();
    }

    pub(crate) fn collect(&self) -> Vec<Return> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *waiting)
    }
}
