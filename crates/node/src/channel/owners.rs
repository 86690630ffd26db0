//! Opening and closing channels, their state, and borrowing their handlers.
//!
//! Part of `channel`, called by `endpoint`.

use std::sync::Arc;

use tsumuji_proto::Channel;

use super::Channels;
use super::ledger::Ledger;
use super::mailbox::{Charge, Keeps, Stored};
use super::owned::{ChannelOptions, ChannelState, OpenChannel};
use crate::error::ChannelError;
use crate::executor::{ExecutorState, Shared};
use crate::handler::Handler;

impl Channels {
    /// Opens a channel. Earlier messages are moved to it; with a handler, the caller still has to deliver them.
    pub(crate) fn open(
        &mut self,
        number: u16,
        options: &ChannelOptions,
        handler: Option<Box<dyn Handler + Send>>,
    ) -> Result<(), ChannelError> {
        if number == Channel::CONTROL_ID {
            return Err(ChannelError::Reserved { channel_id: number });
        }
        if options.budget_bytes == 0 {
            return Err(ChannelError::NoBudget(number));
        }
        if self.is_open(number) {
            return Err(ChannelError::AlreadyOpen(number));
        }
        self.generation += 1;
        let keeps = if options.all_datagrams {
            Keeps::All
        } else {
            Keeps::Newest
        };
        let ledger = Ledger::new(number, self.generation, options.budget_bytes);
        let mut entry = OpenChannel::new(ledger, keeps);
        entry.handler = handler;
        let Self { main, tools, .. } = self;
        // Early messages were charged to the endpoint, and stay so until they are taken.
        let mut early = self.opened.remove(&number);
        let source = early.as_mut().unwrap_or(main);
        for stored in (source.mailbox).split(|message| message.channel.id() == number) {
            let bytes = stored.message.body.len();
            let (from, ledger) = (stored.message.from, &mut source.ledger);
            (tools.overdrafts).release(Some(ledger), from, Charge::Endpoint, bytes);
            entry.ledger.charge_beyond(bytes);
            entry.mailbox.push(stored);
        }
        (source.stash).move_to(number, &mut entry.stash, &mut tools.buffers);
        self.opened.insert(number, entry);
        Ok(())
    }

    /// Closes a channel; returns its waiting messages for the caller to release. Stopped peers may go on.
    pub(crate) fn close(&mut self, number: u16) -> Result<Vec<Stored>, ChannelError> {
        let is_open = self.is_open(number);
        let open = is_open.then(|| self.opened.remove(&number)).flatten();
        let mut entry = open.ok_or(ChannelError::NotOpen(number))?;
        self.posts.close(number);
        entry.let_go(&mut self.tools.outbox);
        Ok(entry.mailbox.split(|_| true))
    }

    pub(crate) fn is_open(&self, number: u16) -> bool {
        (self.opened.get(&number)).is_some_and(|entry| entry.is_open)
    }

    /// The handler of the channel is an executor with this state.
    pub(crate) fn set_executor(&mut self, number: u16, shared: Arc<Shared>) {
        if let Some(entry) = self.opened.get_mut(&number) {
            entry.executor = Some(shared);
        }
    }

    /// Panics if a worker of an executor has: whoever awaits its answer would wait for ever.
    pub(super) fn repeat_panics(&self) {
        let executors = self
            .opened
            .values()
            .filter_map(|entry| entry.executor.as_ref());
        executors.for_each(|executor| executor.repeat_panic());
    }

    /// States of all executors.
    pub(crate) fn executors(&self) -> impl Iterator<Item = (u16, ExecutorState)> {
        let channels = self.opened.iter();
        channels.filter_map(|(number, entry)| Some((*number, entry.executor.as_ref()?.state())))
    }

    /// Whether messages can be taken from that channel.
    pub(crate) fn has_mailbox(&self, number: u16) -> Result<(), ChannelError> {
        let open = self.opened.get(&number).filter(|entry| entry.is_open);
        match open {
            None => Err(ChannelError::NotOpen(number)),
            Some(entry) if entry.handler.is_some() => Err(ChannelError::HasHandler(number)),
            Some(_) => Ok(()),
        }
    }

    /// Takes a channel's handler out for a while: arrivals wait meanwhile.
    pub(crate) fn borrow_handler(&mut self, number: u16) -> Option<Box<dyn Handler + Send>> {
        self.opened.get_mut(&number)?.handler.take()
    }

    pub(crate) fn give_back_handler(&mut self, number: u16, handler: Box<dyn Handler + Send>) {
        if let Some(entry) = self.opened.get_mut(&number) {
            entry.handler = Some(handler);
        }
    }

    pub(crate) fn state(&self, number: u16) -> Option<ChannelState> {
        let entry = self.opened.get(&number).filter(|entry| entry.is_open)?;
        Some(ChannelState {
            messages: entry.mailbox.messages(),
            used_bytes: entry.ledger.used_bytes(),
            budget_bytes: entry.ledger.budget_bytes(),
            stopped_peers: entry.stopped.len(),
        })
    }

    pub(crate) fn set_budget(&mut self, number: u16, bytes: usize) -> Result<(), ChannelError> {
        let open = self.opened.get_mut(&number).filter(|entry| entry.is_open);
        let entry = open.ok_or(ChannelError::NotOpen(number))?;
        if bytes == 0 {
            return Err(ChannelError::NoBudget(number));
        }
        entry.ledger.set_budget(bytes);
        entry.lift_backpressure(&mut self.tools.outbox);
        Ok(())
    }
}
