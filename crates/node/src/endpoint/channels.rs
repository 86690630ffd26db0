//! Opening and closing channels, with a handler or a mailbox; senders and wakers for other threads.

use std::sync::Arc;

use tsumuji_proto::{Channel, NodeId};

use super::Endpoint;
use crate::channel::{ChannelOptions, ChannelState, MessageSender, Waker};
use crate::error::ChannelError;
use crate::executor::{Dispatch, ExecutorOptions, ExecutorState, Service, Shared};
use crate::handler::Handler;

impl Endpoint {
    /// Opens `channel_id`, in every class and priority, with its own mailbox: messages wait for `recv_on`, `recv_retained` and `poll_on`, datagrams
    /// for
    /// `recv_datagram` and `poll_on`. Messages of the channel that arrived before and were not taken come first.
    ///
    /// Waiting messages count against the channel's own budget ([`ChannelOptions`]), so an unread channel does not stop others. When half of the
    /// budget is used, peers are told to stop sending on this channel: their `send` waits, and `try_send` returns `WouldBlock`. Messages already on
    /// their way may exceed the budget by as much as two of the peers' send queues hold; beyond that they count against the endpoint's budget.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tsumuji_link::shm::{Shm, ShmConfig, ShmJob};
    /// # use tsumuji_node::{ChannelOptions, Endpoint, Channel, Membership, NodeId, Options};
    /// # let job = ShmJob::create(2, ShmConfig::for_nodes(2))?;
    /// # let open = |id: u16| -> Result<_, Box<dyn std::error::Error>> {
    /// #     Ok(Endpoint::new(Shm::attach(&job, id)?, Membership::local(NodeId(id), 2), Options::default())?)
    /// # };
    /// # let (mut a, mut b) = (open(0)?, open(1)?);
    /// b.open(7, ChannelOptions::default())?;
    /// a.send(NodeId(1), Channel::ordered(7), b"for the owner of channel 7")?;
    /// a.send(NodeId(1), Channel::ordered(0), b"for the program")?;
    /// let wait = Duration::from_secs(5);
    /// assert_eq!(b.recv(wait)?.ok_or("none")?.body, b"for the program");
    /// assert_eq!(b.recv_on(7, Some(NodeId(0)), wait)?.ok_or("none")?.body, b"for the owner of channel 7");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(&mut self, channel_id: u16, options: ChannelOptions) -> Result<(), ChannelError> {
        self.core.write().channels.open(channel_id, &options, None)
    }

    /// Opens a channel with a handler that is called for everything that arrives on it: by any call of the program that polls, or by the progress
    /// assistant while the program computes. It is also told of peers that come up or die. Earlier messages are delivered at once.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tsumuji_link::shm::{Shm, ShmConfig, ShmJob};
    /// # use tsumuji_node::{ChannelOptions, Context, Delivery, Endpoint, Handler, Channel, Membership, NodeId, Options};
    /// # let job = ShmJob::create(2, ShmConfig::for_nodes(2))?;
    /// # let open = |id: u16| -> Result<_, Box<dyn std::error::Error>> {
    /// #     Ok(Endpoint::new(Shm::attach(&job, id)?, Membership::local(NodeId(id), 2), Options::default())?)
    /// # };
    /// # let (mut a, mut b) = (open(0)?, open(1)?);
    /// struct Echo;
    /// impl Handler for Echo {
    ///     fn message(&mut self, context: &mut Context<'_>, delivery: Delivery<'_>) {
    ///         let _ = context.reply(delivery.body.bytes());
    ///     }
    /// }
    /// b.open_with(7, ChannelOptions::default(), Echo)?; // answers from now on, whatever b's program does
    /// a.send(NodeId(1), Channel::ordered(7), b"hello")?;
    /// assert_eq!(a.recv(Duration::from_secs(5))?.ok_or("none")?.body, b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open_with(
        &mut self,
        channel_id: u16,
        options: ChannelOptions,
        handler: impl Handler + Send + 'static,
    ) -> Result<(), ChannelError> {
        let core = &mut *self.core.write();
        core.channels
            .open(channel_id, &options, Some(Box::new(handler)))?;
        core.drive.mark_pending();
        core.hand_over_early(channel_id);
        Ok(())
    }

    /// Opens a channel with a service, which an executor runs: on the driving thread or by workers ([`Executor`](crate::Executor)). The channel has one handler, the
    /// executor; all that is said of handlers of channels holds for a service on the driving thread. Panics of a service that a worker runs are
    /// repeated on the driving thread.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tsumuji_link::shm::{Shm, ShmConfig, ShmJob};
    /// # use tsumuji_node::{Answers, Channel, ChannelOptions, Endpoint, ExecutorOptions, Membership, NodeId, Options, Request};
    /// # let job = ShmJob::create(2, ShmConfig::for_nodes(2))?;
    /// # let open = |id: u16| -> Result<_, Box<dyn std::error::Error>> {
    /// #     Ok(Endpoint::new(Shm::attach(&job, id)?, Membership::local(NodeId(id), 2), Options::default())?)
    /// # };
    /// # let (mut a, mut b) = (open(0)?, open(1)?);
    /// let sum = |request: &Request<'_>, answers: &mut Answers<'_>| {
    ///     let sum: u32 = request.body.iter().map(|byte| u32::from(*byte)).sum();
    ///     let _ = answers.reply(&sum.to_le_bytes());
    /// };
    /// b.serve(7, ChannelOptions::default(), ExecutorOptions::default(), sum)?;
    /// a.send(NodeId(1), Channel::ordered(7), b"work")?;
    /// assert_eq!(a.recv(Duration::from_secs(5))?.ok_or("none")?.body, 451_u32.to_le_bytes());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn serve(
        &mut self,
        channel_id: u16,
        options: ChannelOptions,
        executor: ExecutorOptions,
        service: impl Service,
    ) -> Result<(), ChannelError> {
        if channel_id >= Channel::LIBRARY_IDS {
            return Err(ChannelError::Reserved { channel_id });
        }
        let dispatch = Dispatch::new(Arc::new(service), executor, self.sender());
        let shared = dispatch.shared();
        self.open_with(channel_id, options, dispatch)?;
        let core = &mut *self.core.write();
        if let Some(publisher) = &core.drive.publisher {
            publisher.show_executor(channel_id, Some(Arc::clone(&shared)));
        }
        core.channels.set_executor(channel_id, shared);
        Ok(())
    }

    /// Shows in metrics whose work is where. The channel has no service.
    pub(crate) fn show_executor(&self, channel_id: u16, state: Arc<Shared>) {
        let core = self.core.read();
        if let Some(publisher) = &core.drive.publisher {
            publisher.show_executor(channel_id, Some(state));
        }
    }

    /// State of the executor of a channel; `None`: it has none.
    pub fn executor(&self, channel_id: u16) -> Option<ExecutorState> {
        let core = self.core.read();
        let mut all = core.channels.executors();
        all.find(|(number, _)| *number == channel_id)
            .map(|(_, state)| state)
    }

    /// Closes an opened channel and drops its handler. Messages that were not taken are dropped; returns their number. Posts end. Later messages
    /// arrive as if the channel had never been opened.
    pub fn close_channel(&mut self, channel_id: u16) -> Result<usize, ChannelError> {
        let core = &mut *self.core.write();
        for post in core.channels.posts.filling_of(channel_id) {
            core.recall(post);
        }
        let left = core.channels.close(channel_id)?;
        if let Some(publisher) = &core.drive.publisher {
            publisher.show_executor(channel_id, None);
        }
        let messages = left.len();
        core.release_all(left);
        core.drive.mark_pending();
        Ok(messages)
    }

    /// State of an opened channel; `None`: it is not open.
    pub fn channel(&self, channel_id: u16) -> Option<ChannelState> {
        self.core.read().channels.state(channel_id)
    }

    /// Changes the budget of the channel, in bytes.
    pub fn set_channel_budget(
        &mut self,
        channel_id: u16,
        bytes: usize,
    ) -> Result<(), ChannelError> {
        let core = &mut *self.core.write();
        core.channels.set_budget(channel_id, bytes)?;
        core.drive.mark_pending();
        Ok(())
    }

    /// Whether the peer has stopped that channel: a `send` on it would wait.
    pub fn is_stopped(&self, peer: NodeId, channel_id: u16) -> bool {
        self.core.read().channels.is_stopped(peer, channel_id)
    }

    /// A handle with which other threads send.
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
    /// let wait = Duration::from_secs(5);
    /// let sender = a.sender();
    /// let threads = (0..3_u8).map(|number| {
    ///     let sender = sender.clone();
    ///     std::thread::spawn(move || sender.send(NodeId(1), Channel::ordered(0), vec![number], wait))
    /// });
    /// for thread in threads.collect::<Vec<_>>() {
    ///     thread.join().unwrap()?;
    /// }
    /// let sum: u8 = (0..3).map(|_| b.recv(wait).unwrap().unwrap().body[0]).sum();
    /// assert_eq!(sum, 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sender(&mut self) -> MessageSender {
        let core = &mut *self.core.write();
        core.channels.bell().mind();
        core.channels.sender()
    }

    /// A handle with which other threads end a wait of this endpoint.
    pub fn waker(&mut self) -> Waker {
        let core = &mut *self.core.write();
        core.channels.bell().mind();
        core.channels.waker()
    }
}
