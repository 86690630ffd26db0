//! Posted receives: buffers for the next messages of a channel.

use std::any::Any;
use std::marker::PhantomData;
use std::time::Duration;

use tsumuji_proto::{NodeId, ReceiveBuffer};

use super::{Core, Endpoint};
use crate::channel::{Arrived, Channels};
use crate::error::{ChannelError, RecvError};

/// A posted buffer. The endpoint owns it until [`Endpoint::unpost`], even if this value is dropped before.
#[derive(Debug)]
#[must_use = "the buffer comes back by `Endpoint::unpost`"]
pub struct Post<B> {
    number: u64,
    buffer: PhantomData<fn() -> B>,
}

impl<B> Post<B> {
    /// Number of the post; no other post of this process has it.
    pub fn number(&self) -> u64 {
        self.number
    }
}

/// A buffer that was posted, and the message in it, if any.
#[derive(Debug)]
pub struct Unposted<B> {
    /// The buffer.
    pub buffer: B,
    /// State of the post and its message.
    pub arrived: Arrived,
}

impl Endpoint {
    /// Posts `buffer` for the next message of an opened channel, from one peer or (`None`) from any: the oldest that waits there, or the next that
    /// arrives. Posts of a channel are filled in the order in which they were made, each by one message. A long message is received directly into the
    /// buffer, frame by frame and whatever the program does meanwhile; a short one is copied. A complete message in a posted buffer does not count
    /// against the channel's budget.
    ///
    /// A message longer than the buffer ends the post, and waits on the channel. Channels that have a handler take no posts.
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

    /// Waits until a message has filled the buffer or its channel was closed. Returns `false` after `timeout`, or if a [`Waker`](crate::Waker) was
    /// used. Error: [`RecvError::PeerDead`] if the post is for messages of one peer, which is dead.
    pub fn wait_posted<B>(&mut self, post: &Post<B>, timeout: Duration) -> Result<bool, RecvError> {
        let core = &mut *self.core.write();
        let number = post.number;
        let is_done = core.channels.posts.is_done(number);
        if is_done.ok_or(ChannelError::NoSuchPost(number))? {
            return Ok(true);
        }
        let is_done = |channels: &mut Channels| channels.posts.is_done(number) == Some(true);
        let from = core.channels.posts.source(number);
        core.await_or_wake(timeout, from, is_done)?;
        let is_done = is_done(&mut core.channels);
        if !is_done {
            core.may_send(from)?;
        }
        Ok(is_done)
    }

    /// Ends a post and returns its buffer, with the message that filled it, if any. A message that is still arriving is moved to other memory, and
    /// waits on its channel when it is complete. Error: [`ChannelError::NoSuchPost`] if the post is another endpoint's.
    ///
    /// If there is no such memory, the session with the sender ends as if this node had died: messages in both directions are lost, and both sides
    /// are told.
    pub fn unpost<B: ReceiveBuffer>(&mut self, post: Post<B>) -> Result<Unposted<B>, ChannelError> {
        let core = &mut *self.core.write();
        let number = post.number;
        core.recall(number);
        let removed = core.channels.posts.remove(number);
        let (buffer, arrived) = removed.ok_or(ChannelError::NoSuchPost(number))?;
        let buffer: Box<dyn Any> = buffer;
        let buffer = (buffer.downcast()).map_err(|_| ChannelError::NoSuchPost(number))?;
        Ok(Unposted {
            buffer: *buffer,
            arrived,
        })
    }
}

impl Core {
    /// Moves a message that is arriving in the buffer of that post to other memory.
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
