//! How a connection gets a stream: offers of this host's clients to other gateways, and of those to listeners here.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::event::epoll;
use tsumuji_node::{ChannelOptions, NodeId};
use tsumuji_streams::address::{self, Address};
use tsumuji_streams::hello::{Hello, NOT_THERE, OFFERED_THERE};
use tsumuji_streams::ring::{self, CLAIMED, CLIENT, GENERATION_SHIFT, OFFERED, SERVER, SLOTS};

use super::{Gateway, STREAM, STREAMS_MAX, Shared};
use crate::end::End;
use crate::mailbox;
use crate::message::{Control, FIRST};
use crate::segment::Segment;
use crate::stream::{Role, Stream, locked};
use crate::tuning::TUNING;

impl Gateway {
    /// Offers a connection of another host's client to a listener of ours. Token and channel of the stream, if it was told.
    pub(super) fn offer(
        &mut self,
        peer: NodeId,
        there: (u32, u16),
        client: Address,
        server: Address,
    ) -> Option<(u32, u16)> {
        if !self.own.contains(&server.ip) {
            return None;
        }
        let mut names = std::iter::once(server).chain(server.wildcards());
        let listener = names.find_map(|name| mailbox::reach(&address::mailbox(&name)).ok())?;
        let (at, slot) = self.free_slot(server)?;
        let shared = &self.shared[at];
        let words = shared.segment.memory().slot(slot);
        let generation = (words.state.load(Ordering::Acquire) >> GENERATION_SHIFT).wrapping_add(1);
        ring::reset(words);
        words.port.store(u32::from(client.port), Ordering::Relaxed);
        words.ends[CLIENT].own.processes.store(1, Ordering::Relaxed);
        words
            .state
            .store(generation << GENERATION_SHIFT | OFFERED, Ordering::Release);
        let generation = generation & (u64::MAX >> GENERATION_SHIFT);
        let (ours, theirs) = mailbox::pair().ok()?;
        let hello = Hello {
            generation,
            sent_ns: monotonic_ns(),
            slot,
            client,
            server,
        };
        let file = shared.segment.file().as_fd();
        mailbox::leave(&listener, &hello, [file, theirs.as_fd()]).ok()?;
        let end = End {
            segment: Arc::clone(&shared.segment),
            slot,
            side: CLIENT,
            generation,
            wake: Arc::new(ours),
        };
        let index = self.begin(end, Role::Server, peer, at)?;
        let stream = self.streams[index].as_mut()?;
        stream.there = Some(there);
        Some((stream.token, FIRST + index as u16))
    }

    /// A slot of a segment of ours for connections to that listener.
    fn free_slot(&mut self, server: Address) -> Option<(usize, usize)> {
        for (at, shared) in self.shared.iter().enumerate() {
            if shared.server != Some(server) {
                continue;
            }
            let is_free = |slot: &usize| {
                let words = shared.segment.memory().slot(*slot);
                // A server's process that still has the connection counts itself; one that was killed is gone with its socket.
                shared.streams[*slot].is_none()
                    && (words.state.load(Ordering::Acquire) & CLAIMED == 0
                        || words.ends[SERVER].own.processes.load(Ordering::Acquire) == 0)
            };
            if let Some(slot) = (0..SLOTS).find(is_free) {
                return Some((at, slot));
            }
        }
        let segment = Arc::new(Segment::new().ok()?);
        let at = self.share(segment, CLIENT, Some(server))?;
        Some((at, 0))
    }

    fn share(
        &mut self,
        segment: Arc<Segment>,
        side: usize,
        server: Option<Address>,
    ) -> Option<usize> {
        // Those of offers that came to nothing.
        self.trim();
        let waiter = segment.take_waiter(side)?;
        self.shared.push(Shared {
            segment,
            side,
            waiter,
            server,
            streams: [None; SLOTS],
        });
        Some(self.shared.len() - 1)
    }

    /// A new stream, in the segment `at`.
    fn begin(&mut self, end: End, role: Role, peer: NodeId, at: usize) -> Option<usize> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.streams.len() < STREAMS_MAX => {
                self.streams.push(None);
                self.streams.len() - 1
            }
            None => return None,
        };
        let token = self.random.u32(..);
        let stream = Stream::new(end, role, peer, token);
        let options = ChannelOptions {
            budget_bytes: TUNING.budget_bytes,
            ..ChannelOptions::default()
        };
        let receiver = stream.receiver(index, &self.listed);
        let data = u64::from(token) << 32 | (index as u64) << 8 | STREAM;
        let is_open = self
            .endpoint
            .open_with(FIRST + index as u16, options, receiver)
            .is_ok()
            && epoll::add(
                &self.epoll,
                &*stream.end.wake,
                epoll::EventData::new_u64(data),
                epoll::EventFlags::IN | epoll::EventFlags::RDHUP,
            )
            .is_ok();
        if !is_open {
            let _ = self.endpoint.close_channel(FIRST + index as u16);
            self.free.push(index);
            return None;
        }
        let shared = &mut self.shared[at];
        let slot = stream.end.slot;
        let inn = &stream.end.mine().inn;
        inn.is_asleep.store(0, Ordering::Relaxed);
        inn.waiter.store(shared.waiter as u32 + 1, Ordering::SeqCst);
        shared.streams[slot] = Some(index);
        self.streams[index] = Some(stream);
        self.counters.streams += 1;
        Some(index)
    }

    /// A client of this host has left a hello. `None`: no other host is asked.
    pub(super) fn ask_for(
        &mut self,
        asker: OwnedFd,
        hello: &Hello,
        file: OwnedFd,
        wake: OwnedFd,
    ) -> Option<()> {
        let mut found = self
            .addresses
            .iter()
            .filter(|(_, all)| all.contains(&hello.server.ip));
        let (peer, _) = found
            .next()
            .filter(|_| !self.own.contains(&hello.server.ip))?;
        // Of an address that several hosts have, nobody knows whose is meant.
        let peer = *peer;
        if found.next().is_some() {
            return None;
        }
        let segment = Segment::attach(file).ok()?;
        let known = self.shared.iter().position(|shared| {
            shared.side == SERVER && shared.segment.identity == segment.identity
        });
        let at = match known {
            Some(at) => at,
            None => self.share(Arc::new(segment), SERVER, None)?,
        };
        if let Some(before) = self.shared[at].streams[hello.slot].take()
            && let Some(stream) = self.streams[before].as_mut()
        {
            // The program has done with the slot's last connection, which stayed with TCP.
            stream.is_program_gone = true;
            locked(&self.listed).push(before);
        }
        let end = End {
            segment: Arc::clone(&self.shared[at].segment),
            slot: hello.slot,
            side: SERVER,
            generation: hello.generation,
            wake: Arc::new(wake),
        };
        end.state()?;
        let index = self.begin(end, Role::Client, peer, at)?;
        let stream = self.streams[index].as_mut()?;
        stream.asker = Some(asker);
        let control = Control::Offer {
            stream: (stream.token, FIRST + index as u16),
            client: hello.client.words(),
            server: hello.server.words(),
        };
        self.tell(peer, &control);
        Some(())
    }

    /// Another gateway has answered an offer.
    pub(super) fn answered(
        &mut self,
        peer: NodeId,
        (token, channel): (u32, u16),
        answer: Option<(u32, u16)>,
    ) {
        let asked = |stream: &&mut Stream| {
            stream.token == token && stream.peer == peer && stream.there.is_none()
        };
        let index = usize::from(channel.wrapping_sub(FIRST));
        let stream = self.streams.get_mut(index).and_then(Option::as_mut);
        let Some(stream) = stream.filter(asked) else {
            return;
        };
        let asker = stream.asker.take();
        stream.there = answer.filter(|(_, channel)| *channel >= FIRST);
        let is_there = stream.there.is_some();
        if let Some(asker) = asker {
            mailbox::say(&asker, if is_there { OFFERED_THERE } else { NOT_THERE });
        }
        if is_there {
            locked(&self.listed).push(index);
        } else {
            self.counters.not_there += 1;
            self.end(index);
        }
    }
}

fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
