//! Batches: messages that the program sends together.

use std::ops::{Deref, DerefMut};

use super::Endpoint;
use crate::error::EndpointError;

/// Guard of a batch: messages wait for each other and share frames and system calls, until they fill a call of the link or the guard is dropped.
/// Calls that poll send waiting messages, too. Guards nest.
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
/// let mut batch = a.batch();
/// for row in 0..100_u64 {
///     batch.send(NodeId(1), Channel::ordered(0), &row.to_le_bytes())?;
/// }
/// drop(batch); // all have left that the peer's window permits
/// # for row in 0..100_u64 {
/// #     assert_eq!(b.recv(Duration::from_secs(5))?.ok_or("none")?.body, row.to_le_bytes());
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Batch<'a> {
    endpoint: &'a mut Endpoint,
}

impl Endpoint {
    /// Begins a batch; it ends when the guard is dropped.
    pub fn batch(&mut self) -> Batch<'_> {
        self.cork();
        Batch { endpoint: self }
    }

    /// Begins a batch that ends with `uncork`: for callers that cannot hold a guard.
    pub fn cork(&mut self) {
        self.core.write().drive.begin_batch();
    }

    /// Ends a batch: waiting messages are sent. Errors are the link's.
    pub fn uncork(&mut self) -> Result<(), EndpointError> {
        Ok(self.core.write().drive.end_batch()?)
    }
}

impl Deref for Batch<'_> {
    type Target = Endpoint;

    fn deref(&self) -> &Endpoint {
        self.endpoint
    }
}

impl DerefMut for Batch<'_> {
    fn deref_mut(&mut self) -> &mut Endpoint {
        self.endpoint
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        // Neither a child of `fork` nor the owner of a spoiled core may use it.
        if !self.endpoint.core.is_forked() && !self.endpoint.core.is_spoiled() {
            let _ = self.endpoint.uncork(); // a link that failed returns its error in the next call
        }
    }
}
