//! PMIx: Open MPI's `mpirun`, and `srun --mpi=pmix`.

use std::io;

use super::KeyValues;
use super::pmix_sys::Library;
use crate::bootstrap::worker;

/// Whether a launcher offers the service.
pub(super) fn is_there() -> bool {
    ["PMIX_NAMESPACE", "PMIX_RANK"]
        .iter()
        .all(|name| std::env::var_os(name).is_some())
}

/// The service, by its library.
pub(super) struct Pmix {
    library: Library,
    size: u32,
}

impl Pmix {
    pub(super) fn connect() -> io::Result<Self> {
        let size = worker::first_number(&["OMPI_COMM_WORLD_SIZE", "PRTE_JOB_SIZE", "SLURM_NTASKS"]);
        let size = size.ok_or_else(|| {
            io::Error::other(
                "neither OMPI_COMM_WORLD_SIZE nor SLURM_NTASKS says how many processes there are",
            )
        })?;
        Ok(Self {
            library: Library::load()?,
            size,
        })
    }
}

impl KeyValues for Pmix {
    fn rank(&self) -> u32 {
        self.library.rank()
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn local_rank(&self) -> Option<u16> {
        worker::first_number(&["OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"])
    }

    fn put(&mut self, key: &str, value: &str) -> io::Result<()> {
        self.library.put(key, value)
    }

    fn fence(&mut self) -> io::Result<()> {
        self.library.fence()
    }

    fn get(&mut self, rank: u32, key: &str) -> io::Result<String> {
        self.library.text(rank, key)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.library.finalize()
    }
}
