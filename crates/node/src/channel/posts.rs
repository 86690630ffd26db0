//! Posted receives: the program's buffers for messages that are still to arrive on its channels.
//!
//! Owned by `channel`. A message goes to the first matching post of its channel. A long one borrows the buffer when its first frame arrives, and is
//! assembled there; a shorter one is copied. A message that does not fit goes to the mailbox, and ends the post.
//!
//! Invariant: `free` holds just those posts whose buffer is in state `Free`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

use tsumuji_proto::{Body, Channel, Delivery, NodeId, Posted, ReceiveBuffer};

/// Number of the last post of any endpoint of this process.
static LAST: AtomicU64 = AtomicU64::new(0);

/// State of a posted buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Arrived {
    /// Nothing has arrived for it.
    Nothing,
    /// A message lies at the start of the buffer.
    Message {
        /// The sender.
        from: NodeId,
        /// The channel it came by.
        channel: Channel,
        /// Its length in bytes.
        bytes: usize,
    },
    /// A message was longer than the buffer: it waits on its channel, as if no buffer had been posted.
    TooLong {
        /// The sender.
        from: NodeId,
        /// Its length in bytes.
        bytes: usize,
    },
}

#[derive(Debug, Default)]
pub(crate) struct Posts {
    posts: BTreeMap<u64, Post>,
    /// Waiting posts by channel, in the order in which they were posted.
    free: BTreeMap<u16, BTreeSet<u64>>,
}

struct Post {
    channel_id: u16,
    from: Option<NodeId>,
    state: State,
}

enum State {
    Free(Box<dyn ReceiveBuffer>),
    /// Borrowed to the message that arrives from that node on that channel.
    Filling(NodeId, Channel),
    Done(Box<dyn ReceiveBuffer>, Arrived),
}

impl std::fmt::Debug for Post {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = match &self.state {
            State::Free(_) => "free",
            State::Filling(..) => "filling",
            State::Done(..) => "done",
        };
        f.debug_struct("Post")
            .field("channel", &self.channel_id)
            .field("from", &self.from)
            .field("state", &state)
            .finish()
    }
}

impl Posts {
    /// Whether there are no posts.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.posts.is_empty()
    }

    /// Returns the post's number.
    pub(crate) fn add(
        &mut self,
        channel_id: u16,
        from: Option<NodeId>,
        buffer: Box<dyn ReceiveBuffer>,
    ) -> u64 {
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        let state = State::Free(buffer);
        let post = Post {
            channel_id,
            from,
            state,
        };
        self.posts.insert(number, post);
        self.free.entry(channel_id).or_default().insert(number);
        number
    }

    /// The one peer whose messages the post takes, if it takes only those.
    pub(crate) fn source(&self, number: u64) -> Option<NodeId> {
        self.posts.get(&number)?.from
    }

    /// The first post for a message of `sender`.
    fn first(&self, channel_id: u16, sender: NodeId) -> Option<u64> {
        let free = self.free.get(&channel_id)?;
        let fits = |number: &&u64| {
            let post = self.posts.get(number);
            post.is_some_and(|post| post.from.is_none_or(|from| from == sender))
        };
        free.iter().find(fits).copied()
    }

    /// Takes the buffer of a waiting post for a message of that node and channel.
    fn use_up(
        &mut self,
        number: u64,
        (from, channel): (NodeId, Channel),
    ) -> Option<Box<dyn ReceiveBuffer>> {
        let post = self.posts.get_mut(&number)?;
        let filling = State::Filling(from, channel);
        match std::mem::replace(&mut post.state, filling) {
            State::Free(buffer) => {
                let channel_id = post.channel_id;
                self.waits_no_longer(channel_id, number);
                Some(buffer)
            }
            other => {
                post.state = other;
                None
            }
        }
    }

    fn waits_no_longer(&mut self, channel_id: u16, number: u64) {
        if let Some(free) = self.free.get_mut(&channel_id) {
            free.remove(&number);
            if free.is_empty() {
                self.free.remove(&channel_id);
            }
        }
    }

    fn end(&mut self, number: u64, buffer: Box<dyn ReceiveBuffer>, arrived: Arrived) {
        if let Some(post) = self.posts.get_mut(&number) {
            post.state = State::Done(buffer, arrived);
        }
    }

    /// A long message begins to arrive: returns the buffer for it.
    pub(crate) fn place(&mut self, from: NodeId, channel: Channel, bytes: usize) -> Option<Posted> {
        if self.free.is_empty() {
            return None;
        }
        let number = self.first(channel.id(), from)?;
        let buffer = self.use_up(number, (from, channel))?;
        match Posted::new(number, bytes, buffer) {
            Ok(posted) => Some(posted),
            Err(buffer) => {
                self.wait_again(number, buffer); // it ends when the message is whole
                None
            }
        }
    }

    /// Takes a borrowed buffer back; its message does not arrive there.
    pub(crate) fn put_back(&mut self, posted: Posted) {
        self.wait_again(posted.number, posted.buffer);
    }

    fn wait_again(&mut self, number: u64, buffer: Box<dyn ReceiveBuffer>) {
        if let Some(post) = self.posts.get_mut(&number) {
            post.state = State::Free(buffer);
            self.free.entry(post.channel_id).or_default().insert(number);
        }
    }

    /// A message arrived. Returns `true` if it is in a posted buffer.
    pub(crate) fn take(&mut self, delivery: &mut Delivery<'_>) -> bool {
        let (from, channel) = (delivery.from, delivery.channel);
        let bytes = delivery.body.bytes().len();
        let arrived = Arrived::Message {
            from,
            channel,
            bytes,
        };
        if let Body::Posted(posted) = &mut delivery.body {
            let Some(Posted { number, buffer, .. }) = posted.take() else {
                return false;
            };
            self.end(number, buffer, arrived);
            return true;
        }
        let first = self.first(channel.id(), from);
        first.is_some_and(|number| self.copy(number, (from, channel), delivery.body.bytes()))
    }

    /// Copies a message into that buffer. Returns `false` if it does not fit.
    pub(crate) fn copy(
        &mut self,
        number: u64,
        (from, channel): (NodeId, Channel),
        message: &[u8],
    ) -> bool {
        let bytes = message.len();
        let Some(mut buffer) = self.use_up(number, (from, channel)) else {
            return false;
        };
        let place = buffer.bytes_mut().get_mut(..bytes);
        let fits = place.is_some();
        let arrived = if let Some(place) = place {
            place.copy_from_slice(message);
            Arrived::Message {
                from,
                channel,
                bytes,
            }
        } else {
            Arrived::TooLong { from, bytes }
        };
        self.end(number, buffer, arrived);
        fits
    }

    /// Channel and peer of a waiting post.
    pub(crate) fn free(&self, number: u64) -> Option<(u16, Option<NodeId>)> {
        let post = self.posts.get(&number)?;
        matches!(post.state, State::Free(_)).then_some((post.channel_id, post.from))
    }

    /// Whether the post has ended; `None`: there is no such post.
    pub(crate) fn is_done(&self, number: u64) -> Option<bool> {
        let post = self.posts.get(&number)?;
        Some(matches!(post.state, State::Done(..)))
    }

    /// Source and channel of the message that is arriving in the post's buffer.
    pub(crate) fn filling_to(&self, number: u64) -> Option<(NodeId, Channel)> {
        match self.posts.get(&number)?.state {
            State::Filling(from, channel) => Some((from, channel)),
            _ => None,
        }
    }

    /// Ends a post whose buffer is not borrowed.
    pub(crate) fn remove(&mut self, number: u64) -> Option<(Box<dyn ReceiveBuffer>, Arrived)> {
        let post = self.posts.remove(&number)?;
        match post.state {
            State::Free(buffer) => {
                self.waits_no_longer(post.channel_id, number);
                Some((buffer, Arrived::Nothing))
            }
            State::Done(buffer, arrived) => Some((buffer, arrived)),
            State::Filling(..) => {
                self.posts.insert(number, post);
                None
            }
        }
    }

    /// Posts of a channel whose buffers are borrowed.
    pub(crate) fn filling_of(&self, channel_id: u16) -> Vec<u64> {
        let filling = self.posts.iter().filter(|(_, post)| {
            post.channel_id == channel_id && matches!(post.state, State::Filling(..))
        });
        filling.map(|(number, _)| *number).collect()
    }

    /// Ends the waiting posts of a channel that is closed.
    pub(crate) fn close(&mut self, channel_id: u16) {
        for number in self.free.remove(&channel_id).unwrap_or_default() {
            if let Some((buffer, arrived)) = self.remove(number) {
                let (from, state) = (None, State::Done(buffer, arrived));
                let post = Post {
                    channel_id,
                    from,
                    state,
                };
                self.posts.insert(number, post);
            }
        }
    }
}
