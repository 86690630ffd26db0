//! Collective operations over groups of endpoints: barrier, broadcast, scatter, gather, all-gather, reduce, all-reduce and
//! all-to-all.
//!
//! A program makes one [`Collectives`] beside its [`Endpoint`](tsumuji_node::Endpoint) and passes that endpoint to every call. All members of a group
//! make the same calls in the same order; an operation with counts (`…_v`) is another call than the one without. Four members over shared memory, in
//! threads:
//!
//! ```
//! use tsumuji_collective::{Collectives, Op};
//! use tsumuji_link::shm::{Shm, ShmConfig, ShmJob};
//! use tsumuji_node::{Endpoint, Membership, NodeId, Options};
//!
//! let job = ShmJob::create(4, ShmConfig::for_nodes(4))?;
//! let member = |id: u16| -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//!     let link = Shm::attach(&job, id)?;
//!     let mut endpoint = Endpoint::new(link, Membership::local(NodeId(id), 4), Options::default())?;
//!     let mut collectives = Collectives::new(&mut endpoint)?;
//!     let world = collectives.world();
//!
//!     let mut sums = [f64::from(id), 1.0];
//!     collectives.all_reduce(&mut endpoint, world, &mut sums, &Op::sum())?;
//!     assert_eq!(sums, [6.0, 4.0]);
//!
//!     // Without waiting, and with another operation meanwhile.
//!     let vector = if id == 2 { vec![1_u64, 2, 3] } else { vec![0; 3] };
//!     let request = collectives.start_broadcast(&mut endpoint, world, 2, vector)?;
//!     collectives.barrier(&mut endpoint, world)?;
//!     assert_eq!(collectives.wait(&mut endpoint, request)?, [1, 2, 3]);
//!     endpoint.close(std::time::Duration::from_secs(5));
//!     Ok(())
//! };
//! std::thread::scope(|scope| {
//!     let members: Vec<_> = (0..4).map(|id| scope.spawn(move || member(id))).collect();
//!     members.into_iter().for_each(|member| member.join().unwrap().unwrap());
//! });
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Failure
//!
//! When a member dies, every operation that cannot end without it fails with an error that names it: within the endpoint's `dead_after` and a moment
//! more, as long as members wait in calls of this crate. The member that notices tells the others, so those that only wait for survivors fail, too.
//! From the failed operation on the group cannot be used; other groups go on, and the survivors may make a new one. A member that needs nothing more
//! from the dead one still succeeds.
//!
//! # Progress and memory
//!
//! Every call of this crate advances all operations. Messages of the program that arrive meanwhile stay in the endpoint's mailbox; messages of this
//! crate that arrive during the endpoint's calls wait for the next call here, on [`CHANNEL`]. What fast members send ahead is bounded by credit: 512
//! KiB for each pair, less in clusters of more than 64.
//!
//! Modules: `api` has the operations; `call` their arguments; `plan` the transfers of each member; `operation` carries out a plan, `native` a
//! broadcast by the link; `table` chooses algorithms, `tune` measures them; `core` dispatches messages and spreads failures; `ledger` is the credit
//! ledger; `tuning` has the numbers of all. Reliability of messages and congestion control are left to the engine.

mod api;
mod call;
mod collectives;
mod core;
mod element;
mod error;
mod group;
mod header;
mod ledger;
mod native;
mod operation;
mod plan;
pub mod profile;
pub mod table;
pub mod tune;
mod tuning;

pub use self::core::{CHANNEL, channel_options};
pub use collectives::{Collectives, GROUPS_MAX, OPERATIONS_MAX, Request};
pub use element::{ELEMENT_BYTES_MAX, Element, Memory, Number, Op, RawOp};
pub use error::{CollectiveError, GroupError, TableError};
pub use group::Group;
pub use ledger::CollectiveCounters;
pub use table::{Algorithm, Table};
