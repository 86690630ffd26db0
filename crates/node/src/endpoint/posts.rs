//! Posted receives: where the next messages of a channel are to go.

use std::any::Any;
use std::marker::PhantomData;
use std::time::Duration;

use tsumuji_link::Link;
use tsumuji_proto::{NodeId, ReceiveBuffer};

use super::{Core, Endpoint};
use crate::channel::{Arrived, Channels};
use crate::error::{ChannelError, RecvError};

/// A buffer that was posted, and is the endpoint's until [`Endpoint::unpost`]: also if this is dropped before.
#[derive(Debug)]
#[must_use = "the buffer comes back by `Endpoint::unpost`"]
pub struct Post<B> {
    number: u64,
    buffer: PhantomData<fn() -> B>,
}

impl<B> Post<B> {
    /// Of all posts of this process only this one has it.
    pub fn number(&self) -> u64 {
        self.number
    }
}

/// A buffer that was posted, and what has come for it.
#[derive(Debug)]
pub struct Unposted<B> {
    /// The buffer.
    pub buffer: B,
    /// What lies in it.
    pub arrived: Arrived,
}

impl<L: Link> Endpoint<L> {
    /// Has the next message of an opened channel, from that peer or from any, put into `buffer`: the oldest that waits there, or the first that
    /// comes. Posts of a channel are filled in the order in which they were made, each by one message. A long message lands there as
    /// its frames come, without another copy, whatever the program does meanwhile; a short one is copied there. It does not count
    /// against the channel's budget, once it is whole.
    ///
    /// A message that is longer than the buffer ends the post, and waits on the channel. Channels that have a handler take no posts.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tsumuji_link::shm::{Shm, ShmConfig, ShmJob};
    /// # use tsumuji_node::{Arrived, ChannelOptions, Endpoint, Channel, Membership, NodeId, Options};
    /// # let job = ShmJob::create(2, ShmConfig::for_nodes(2))?;
    /// # let open = |id: u16| -> Result<_, Box<dyn std::error::Error>> {
    /// #     Ok(Endpoint::new(Shm::attach(&job, id)?, Membership::local(NodeId(id), 2), Options::default())?)
    /// # };
    /// # let (mut a, mut b) = (open(0)?, open(1)?);
    /// let (wait, channel) = (Duration::from_secs(5), Channel::ordered(7));
    /// b.open(7, ChannelOptions::default())?;
    /// let row = b.post(7, Some(NodeId(0)), vec![0; 1 << 20])?;
    /// a.send(NodeId(1), channel, &[3; 1 << 20])?;
    /// assert!(b.wait_posted(&row, wait)?);
    /// let row = b.unpost(row)?;
    /// assert_eq!(row.arrived, Arrived::Message { from: NodeId(0), channel, bytes: 1 << 20 });
    /// assert!(row.buffer.iter().all(|byte| *byte == 3));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn post<B: ReceiveBuffer>(
        &mut self,
        channel_id: u16,
        from: Option<NodeId>,
        buffer: B,
    ) -> Result<Post<B>, ChannelError> {
        let core = &mut *self.core.write();
        core.channels.has_mailbox(channel_id)?;
        let number = core.channels.posts.add(channel_id, from, Box::new(buffer));
        core.channels.fill(number);
        Ok(Post {
            number,
            buffer: PhantomData,
        })
    }

    /// Waits until a message has come for that buffer, or its channel was closed; `false`: not within `timeout`, or a [`Waker`](crate::Waker)
    /// was used.
    pub fn wait_posted<B>(&mut self, post: &Post<B>, timeout: Duration) -> Result<bool, RecvError> {
        let core = &mut *self.core.write();
        let number = post.number;
        let is_done = core.channels.posts.is_done(number);
        if is_done.ok_or(ChannelError::NoSuchPost { number })? {
            return Ok(true);
        }
        let is_done = |channels: &mut Channels| channels.posts.is_done(number) == Some(true);
        core.await_or_wake(timeout, is_done)?;
        Ok(is_done(&mut core.channels))
    }

    /// Ends a post, and gives its buffer back, with what has come for it. Of a message that is arriving there, what has come is moved to other memory:
    /// it waits on its channel when it is whole. [`ChannelError::NoSuchPost`]: it is another endpoint's.
    ///
    /// Should there be no such memory, the session with that message's sender ends, as if this node had died: messages of both are lost, and
    /// both are told.
    pub fn unpost<B: ReceiveBuffer>(&mut self, post: Post<B>) -> Result<Unposted<B>, ChannelError> {
        let core = &mut *self.core.write();
        let number = post.number;
        core.recall(number);
        let removed = core.channels.posts.remove(number);
        let (buffer, arrived) = removed.ok_or(ChannelError::NoSuchPost { number })?;
        let buffer: Box<dyn Any> = buffer;
        let buffer = (buffer.downcast()).map_err(|_| ChannelError::NoSuchPost { number })?;
        Ok(Unposted {
            buffer: *buffer,
            arrived,
        })
    }
}

impl<L: Link> Core<L> {
    /// Has a message that arrives in the buffer of that post arrive elsewhere.
    pub(super) fn recall(&mut self, number: u64) {
        let engine = &mut self.drive.engine;
        let unused: Vec<_> = std::iter::from_fn(|| engine.poll_unused()).collect();
        self.channels.put_back_all(unused);
        let Some((from, channel)) = self.channels.posts.filling_to(number) else {
            return;
        };
        match self.drive.engine.recall(from, channel, number) {
            Ok(Some(posted)) => self.channels.posts.put_back(posted),
            Ok(None) => {}
            Err(_) => self.abort(from),
        }
    }
}
