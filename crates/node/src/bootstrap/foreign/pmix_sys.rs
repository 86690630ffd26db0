//! PMIx: Open MPI's `mpirun`, and `srun --mpi=pmix`. Calls of its library, which is loaded when a launcher offers its service: `libpmix.so.2`, of PMIx 2
//! and later.
//!
//! The library's structures are passed as bytes: a process is a name of 256 bytes and a rank, a value a type and a union at offset 8.
#![allow(
    unsafe_code,
    reason = "functions of a C library that is loaded at run time"
)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;

use super::KeyValues;
use crate::bootstrap::worker;

/// Whether a launcher offers the service.
pub(super) fn is_there() -> bool {
    ["PMIX_NAMESPACE", "PMIX_RANK"]
        .iter()
        .all(|name| std::env::var_os(name).is_some())
}

/// Bytes of a job's name (PMIX_MAX_NSLEN + 1) and of a key (PMIX_MAX_KEYLEN + 1).
const NAME_BYTES: usize = 256;
const KEY_BYTES: usize = 512;
/// PMIX_STRING and PMIX_GLOBAL.
const STRING: u16 = 3;
const GLOBAL: u8 = 3;
/// Where a value's union begins, and room for any value.
const UNION_AT: usize = 8;
const VALUE_BYTES: usize = 256;
/// Longest text that is read.
const TEXT_BYTES_MAX: usize = 1024;

/// `pmix_proc_t`.
#[repr(C)]
#[derive(Clone)]
struct Process {
    job: [u8; NAME_BYTES],
    rank: u32,
}

/// `pmix_value_t`, with room to spare.
#[repr(C, align(8))]
struct Value([u8; VALUE_BYTES]);

type Init = unsafe extern "C" fn(*mut Process, *mut c_void, usize) -> c_int;
type Put = unsafe extern "C" fn(u8, *const c_char, *mut Value) -> c_int;
type Commit = unsafe extern "C" fn() -> c_int;
type Fence = unsafe extern "C" fn(*const Process, usize, *const c_void, usize) -> c_int;
type Get = unsafe extern "C" fn(
    *const Process,
    *const c_char,
    *const c_void,
    usize,
    *mut *const u8,
) -> c_int;
type Finalize = unsafe extern "C" fn(*const c_void, usize) -> c_int;

/// The loaded library, and this process as it names it. It stays loaded until the process ends.
pub(super) struct Library {
    put: Put,
    commit: Commit,
    fence: Fence,
    get: Get,
    finalize: Finalize,
    own: Process,
    size: u32,
}

fn returned(what: &str, status: c_int) -> io::Result<()> {
    match status {
        0 => Ok(()),
        status => Err(io::Error::other(format!("PMIx_{what} returned {status}"))),
    }
}

/// The library's function with that name.
///
/// # Safety
/// `F` is the type of that function.
unsafe fn function<F: Copy>(library: *mut c_void, name: &CStr) -> io::Result<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: `library` was returned by `dlopen` and is never closed; the name ends with a zero.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    if found.is_null() {
        let name = name.to_string_lossy();
        return Err(io::Error::other(format!("libpmix has no function {name}")));
    }
    // SAFETY: `F` is a function pointer, as large as `found` (asserted above), of this function's type, as the caller states.
    Ok(unsafe { std::mem::transmute_copy(&found) })
}

fn key_of(key: &str) -> [u8; KEY_BYTES] {
    let mut bytes = [0; KEY_BYTES];
    let kept = key.len().min(KEY_BYTES - 1);
    bytes[..kept].copy_from_slice(&key.as_bytes()[..kept]);
    bytes
}

impl Library {
    /// Loads the library, and announces this process to the launcher's service.
    pub(super) fn connect() -> io::Result<Self> {
        let size = worker::first_number(&["OMPI_COMM_WORLD_SIZE", "PRTE_JOB_SIZE", "SLURM_NTASKS"]);
        let size = size.ok_or_else(|| {
            io::Error::other(
                "neither OMPI_COMM_WORLD_SIZE nor SLURM_NTASKS says how many processes there are",
            )
        })?;
        let open = |name: &CStr| {
            // SAFETY: the name ends with a zero; the library's initializers run as for any program that is linked with it.
            unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) }
        };
        let library = open(c"libpmix.so.2");
        if library.is_null() {
            return Err(io::Error::other(
                "libpmix.so.2 is not installed (Debian: package libpmix2)",
            ));
        }
        // SAFETY: the types are those of the functions in pmix.h.
        let (init, library): (Init, _) = unsafe {
            (
                function(library, c"PMIx_Init")?,
                Self {
                    put: function(library, c"PMIx_Put")?,
                    commit: function(library, c"PMIx_Commit")?,
                    fence: function(library, c"PMIx_Fence")?,
                    get: function(library, c"PMIx_Get")?,
                    finalize: function(library, c"PMIx_Finalize")?,
                    own: Process {
                        job: [0; NAME_BYTES],
                        rank: 0,
                    },
                    size,
                },
            )
        };
        let mut library = library;
        // SAFETY: the library writes a `pmix_proc_t`, which `Process` is; no information is passed.
        let status = unsafe { init(&raw mut library.own, std::ptr::null_mut(), 0) };
        returned("Init", status).map(|()| library)
    }
}

impl KeyValues for Library {
    fn rank(&self) -> u32 {
        self.own.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn local_rank(&self) -> Option<u16> {
        worker::first_number(&["OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"])
    }

    fn put(&mut self, key: &str, text: &str) -> io::Result<()> {
        let text = CString::new(text).map_err(io::Error::other)?;
        let mut value = Value([0; VALUE_BYTES]);
        value.0[..2].copy_from_slice(&STRING.to_ne_bytes());
        let address = text.as_ptr().expose_provenance();
        value.0[UNION_AT..UNION_AT + size_of::<usize>()].copy_from_slice(&address.to_ne_bytes());
        // SAFETY: the key ends with a zero and has the length of a `pmix_key_t`; the value has a string's type and a pointer to a text that ends with a
        // zero and lives until the call returns. The library copies both.
        let status = unsafe { (self.put)(GLOBAL, key_of(key).as_ptr().cast(), &raw mut value) };
        returned("Put", status)?;
        // SAFETY: no arguments.
        returned("Commit", unsafe { (self.commit)() })
    }

    fn fence(&mut self) -> io::Result<()> {
        // SAFETY: no processes and no information are passed, which stands for all of the job.
        let status = unsafe { (self.fence)(std::ptr::null(), 0, std::ptr::null(), 0) };
        returned("Fence", status)
    }

    fn get(&mut self, rank: u32, key: &str) -> io::Result<String> {
        let no_text = || io::Error::other(format!("rank {rank} states no text"));
        let of = Process {
            rank,
            ..self.own.clone()
        };
        let mut found: *const u8 = std::ptr::null();
        // SAFETY: both structures live until the call returns; the library writes a pointer to a value of its own, which is not freed: it is read once
        // for each process.
        let status = unsafe {
            (self.get)(
                &raw const of,
                key_of(key).as_ptr().cast(),
                std::ptr::null(),
                0,
                &raw mut found,
            )
        };
        returned("Get", status)?;
        // SAFETY: a value begins with its type, of 16 bits.
        if found.is_null() || unsafe { found.cast::<u16>().read_unaligned() } != STRING {
            return Err(no_text());
        }
        let at = found.wrapping_add(UNION_AT);
        // SAFETY: the union of a value with a string's type holds a pointer to a text that ends with a zero.
        let text = unsafe { at.cast::<*const c_char>().read_unaligned() };
        if text.is_null() {
            return Err(no_text());
        }
        // SAFETY: as above; the value is not freed.
        let text = unsafe { CStr::from_ptr(text) };
        let bytes = text.to_bytes();
        Ok(String::from_utf8_lossy(&bytes[..bytes.len().min(TEXT_BYTES_MAX)]).into_owned())
    }

    fn finish(&mut self) -> io::Result<()> {
        // SAFETY: no information is passed; nothing of the library is called afterwards.
        let status = unsafe { (self.finalize)(std::ptr::null(), 0) };
        returned("Finalize", status)
    }
}
