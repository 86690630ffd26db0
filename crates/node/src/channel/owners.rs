//! Channels that are opened, looked at and closed, and whose handlers are lent.
//!
//! Part of `channel`, called by `endpoint`.

use tsumuji_proto::Lane;

use super::Channels;
use super::books::Books;
use super::mailbox::{Charge, Keeps, Stored};
use super::owned::{Channel, ChannelOptions, ChannelState};
use crate::error::ChannelError;
use crate::handler::Handler;

impl Channels {
    /// Begins a channel. What came for it before is its first; with a handler, that is still to be handed over.
    pub(crate) fn open(
        &mut self,
        number: u16,
        options: &ChannelOptions,
        handler: Option<Box<dyn Handler + Send>>,
    ) -> Result<(), ChannelError> {
        if number == Lane::CONTROL_CHANNEL {
            return Err(ChannelError::Reserved { channel: number });
        }
        if options.budget_bytes == 0 {
            return Err(ChannelError::NoBudget { channel: number });
        }
        if self.is_open(number) {
            return Err(ChannelError::AlreadyOpen { channel: number });
        }
        self.generation += 1;
        let keeps = if options.all_datagrams {
            Keeps::All
        } else {
            Keeps::Newest
        };
        let books = Books::new(number, self.generation, options.budget_bytes);
        let mut channel = Channel::new(books, keeps);
        channel.handler = handler;
        let Self { main, tools, .. } = self;
        // What came early was charged to the endpoint, and is until it is taken.
        let mut early = self.opened.remove(&number);
        let source = early.as_mut().unwrap_or(main);
        for stored in (source.mailbox).split(|message| message.lane.channel() == number) {
            let bytes = stored.message.body.len();
            let (from, books) = (stored.message.from, &mut source.books);
            (tools.overdrafts).release(Some(books), from, Charge::Endpoint, bytes);
            channel.books.charge_beyond(bytes);
            channel.mailbox.push(stored);
        }
        (source.stash).move_to(number, &mut channel.stash, &mut tools.buffers);
        self.opened.insert(number, channel);
        Ok(())
    }

    /// Ends a channel; what waited there, for the caller to release. Peers that had stopped may go on.
    pub(crate) fn close(&mut self, number: u16) -> Result<Vec<Stored>, ChannelError> {
        let is_open = self.is_open(number);
        let open = is_open.then(|| self.opened.remove(&number)).flatten();
        let mut channel = open.ok_or(ChannelError::NotOpen { channel: number })?;
        self.posts.close(number);
        channel.let_go(&mut self.tools.outbox);
        Ok(channel.mailbox.split(|_| true))
    }

    pub(crate) fn is_open(&self, number: u16) -> bool {
        (self.opened.get(&number)).is_some_and(|channel| channel.is_open)
    }

    /// Whether messages can be taken from that channel.
    pub(crate) fn has_mailbox(&self, number: u16) -> Result<(), ChannelError> {
        let open = self.opened.get(&number).filter(|channel| channel.is_open);
        match open {
            None => Err(ChannelError::NotOpen { channel: number }),
            Some(channel) if channel.handler.is_some() => {
                Err(ChannelError::HasHandler { channel: number })
            }
            Some(_) => Ok(()),
        }
    }

    /// Takes a channel's handler out for a while: what comes meanwhile waits.
    pub(crate) fn borrow_handler(&mut self, number: u16) -> Option<Box<dyn Handler + Send>> {
        self.opened.get_mut(&number)?.handler.take()
    }

    pub(crate) fn give_back_handler(&mut self, number: u16, handler: Box<dyn Handler + Send>) {
        if let Some(channel) = self.opened.get_mut(&number) {
            channel.handler = Some(handler);
        }
    }

    pub(crate) fn state(&self, number: u16) -> Option<ChannelState> {
        let channel = self.opened.get(&number).filter(|channel| channel.is_open)?;
        Some(ChannelState {
            messages: channel.mailbox.messages(),
            used_bytes: channel.books.used_bytes(),
            budget_bytes: channel.books.budget_bytes(),
            stopped_peers: channel.stopped.len(),
        })
    }

    pub(crate) fn set_budget(&mut self, number: u16, bytes: usize) -> Result<(), ChannelError> {
        let open = self
            .opened
            .get_mut(&number)
            .filter(|channel| channel.is_open);
        let channel = open.ok_or(ChannelError::NotOpen { channel: number })?;
        if bytes == 0 {
            return Err(ChannelError::NoBudget { channel: number });
        }
        channel.books.set_budget(bytes);
        channel.lift_backpressure(&mut self.tools.outbox);
        Ok(())
    }
}
