//! Options, members, and the ways to open and close an endpoint.
#![allow(unsafe_code, reason = "exports symbols to C, and takes its pointers")]

use std::ffi::{c_char, c_int};
use std::os::fd::IntoRawFd;

use tsumuji_link::shm::{Shm, ShmConfig, ShmJob};
use tsumuji_node::any_link::Base;
use tsumuji_node::{
    ClusterFile, Endpoint, Membership, NodeId, OpenError, Options, endpoint_from_env,
    endpoint_in_cluster, endpoint_on, report_error,
};

use super::done;
use crate::address_map::{AddressMap, Wanted};
use crate::failure::Failure;
use crate::ffi;
use crate::handle::{Handle, Tsumuji, contained};
use crate::node::Node;
use crate::objects;
use crate::settings::Settings;

/// Options for opening an endpoint.
#[derive(Debug, Default)]
pub struct TsumujiOptions {
    settings: Settings,
}

/// Table of the members and their addresses.
#[derive(Debug, Default)]
pub struct TsumujiMembers {
    address_map: AddressMap,
}

/// Makes options with their default values. Free them with tsumuji_options_free.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_options_new() -> *mut TsumujiOptions {
    objects::give(TsumujiOptions::default())
}

/// Sets one option; tsumuji(3) lists them all. For example "idle" to "sleep", "budget" to "8M", "dead-after" to "2.5".
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_options_set(
    options: *mut TsumujiOptions,
    name: *const c_char,
    value: *const c_char,
) -> c_int {
    done(contained(|| {
        // SAFETY: the header asks for what `text` and `path` need.
        let (name, value) =
            unsafe { (ffi::text(name, "the name")?, ffi::path(value, "the value")?) };
        objects::with(options, "the options", |options| {
            options.settings.set(name, value).map_err(Failure::invalid)
        })
    }))
}

/// Frees options; NULL has no effect. Endpoints opened with them keep their own copy.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_options_free(options: *mut TsumujiOptions) {
    objects::free(options);
}

/// Makes a table without members. Free it with tsumuji_members_free.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_members_new() -> *mut TsumujiMembers {
    objects::give(TsumujiMembers::default())
}

/// Adds a member, at "HOST:PORT" (UDP), or at "packet:INTERFACE MAC", "xdp:INTERFACE MAC", "dpdk:DEVICE MAC" or "relay:NAME MAC" (raw Ethernet).
/// Members are 0, 1, 2 and so on, in any order; all processes add the same ones.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_members_add(
    members: *mut TsumujiMembers,
    node: c_int,
    address: *const c_char,
) -> c_int {
    done(contained(|| {
        // SAFETY: the header asks for what `text` needs.
        let address = unsafe { ffi::text(address, "the address") }?;
        objects::with(members, "the table of members", |members| {
            let added = members.address_map.add(node.into(), address);
            added.map_err(Failure::invalid)
        })
    }))
}

/// Frees a table; NULL has no effect.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_members_free(members: *mut TsumujiMembers) {
    objects::free(members);
}

/// Opens this process's endpoint as its environment says: in a process of `tsumuji launch`, `tsumuji join`, `mpiexec`, `mpirun` or `srun`, or with
/// TSUMUJI_CLUSTER (a hosts file) and TSUMUJI_NODE. options may be NULL. Writes the handle to *handle; close it with tsumuji_close.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_open_env(
    options: *const TsumujiOptions,
    handle: *mut *mut Tsumuji,
) -> c_int {
    // SAFETY: the header asks for what `open` needs.
    unsafe { open(options, handle, |options| Ok(endpoint_from_env(options)?)) }
}

/// Opens the endpoint of node `node` of a cluster file (docs/c.md shows one).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_open_cluster(
    path: *const c_char,
    node: c_int,
    options: *const TsumujiOptions,
    handle: *mut *mut Tsumuji,
) -> c_int {
    // SAFETY: the header asks for what `open` and `path` need.
    unsafe {
        open(options, handle, |options| {
            let path = ffi::path(path, "the path")?;
            let file = ClusterFile::read(path).map_err(OpenError::from)?;
            let me = NodeId(own(node)?);
            Ok(endpoint_in_cluster(&file, path, me, options)?)
        })
    }
}

/// Opens the endpoint of member `node` of a table. link may be NULL (as the table says), or one link for all: "udp",
/// "packet:INTERFACE", "xdp:INTERFACE", "dpdk:DEVICE", "relay:NAME".
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_open_members(
    members: *const TsumujiMembers,
    link: *const c_char,
    node: c_int,
    options: *const TsumujiOptions,
    handle: *mut *mut Tsumuji,
) -> c_int {
    // SAFETY: the header asks for what `open` and `optional_text` need.
    unsafe {
        open(options, handle, |options| {
            let address_map = objects::with(members, "the table of members", |members| {
                Ok(members.address_map.clone())
            })?;
            let gap = (0..).zip(address_map.ids()).find(|(place, id)| place != id);
            if let Some((place, _)) = gap {
                return Err(Failure::invalid(format!(
                    "there is no member {place}: members are 0, 1, 2 … without gap"
                )));
            }
            let wanted = match ffi::optional_text(link, "the link")? {
                None => Wanted::Stated,
                Some(link) => Wanted::read(link).map_err(Failure::invalid)?,
            };
            address_map.open(own(node)?, &wanted, None, options)
        })
    }
}

/// Makes shared memory for `nodes` processes, and returns its descriptor, or a code below 0. Pass it to them (by fork, or over a UNIX socket); each
/// opens its endpoint with tsumuji_open_shm. It is close-on-exec; the memory lives as long as a process uses it.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_shm_create(nodes: c_int) -> c_int {
    super::number(contained(|| {
        let nodes = usize::try_from(nodes).unwrap_or(0);
        let failed = |error: tsumuji_link::shm::ShmCreateError| {
            Failure::open(error.to_string(), libc::EINVAL)
        };
        let job = ShmJob::create(nodes, ShmConfig::for_nodes(nodes)).map_err(failed)?;
        Ok(job.into_raw_fd())
    }))
}

/// Opens the endpoint of node `node` of `nodes` processes that share the memory behind `fd`. The descriptor stays the caller's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_open_shm(
    fd: c_int,
    nodes: c_int,
    node: c_int,
    options: *const TsumujiOptions,
    handle: *mut *mut Tsumuji,
) -> c_int {
    // SAFETY: the header asks for what `open` needs, and that the descriptor stays open during the call.
    unsafe {
        open(options, handle, |options| {
            let nodes = u16::try_from(nodes)
                .map_err(|_| Failure::invalid(format!("{nodes} nodes are not possible")))?;
            let me = own(node)?;
            let link = Shm::attach(ffi::borrow_fd(fd)?, me).map_err(OpenError::from)?;
            let membership = Membership::local(NodeId(me), nodes);
            Ok(endpoint_on(Base::Shm(link), membership, options)?)
        })
    }
}

/// Closes a handle: waits at most timeout_us microseconds (negative: without limit) for acknowledgements, tells the peers that this node leaves, and
/// frees everything of the handle, borrowed messages included. NULL has no effect. TSUMUJI_ELOST: closed, but messages were lost, or not acknowledged
/// in time. TSUMUJI_ELINK: closed, and the link failed. After other failures the handle stays open. A closed handle is TSUMUJI_EINVAL to every call.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_close(handle: Handle, timeout_us: i64) -> c_int {
    done(contained(|| {
        let Some(handle) = handle.get() else {
            return Ok(());
        };
        if let Some(mut node) = handle.close()?
            && !node.spoiled
        {
            node.collective_state = None; // operations end, as their memory is the program's again
            node.endpoint.close(ffi::timeout(timeout_us))?;
        }
        Ok(())
    }))
}

/// Ends the calling thread's ownership of the handle, so that another thread can acquire it.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_release_ownership(handle: Handle) -> c_int {
    done(contained(|| handle.needed()?.release_ownership()))
}

/// Makes the calling thread the handle's owner, after the last owner has released it.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_acquire_ownership(handle: Handle) -> c_int {
    done(contained(|| handle.needed()?.acquire_ownership()))
}

/// Reports to the launcher why this process cannot go on; `tsumuji launch` prints it. Without launcher it has no effect.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_report_error(text: *const c_char) -> c_int {
    done(contained(|| {
        // SAFETY: the header asks for what `text` needs.
        report_error(unsafe { ffi::text(text, "the text") }?);
        Ok(())
    }))
}

fn own(node: c_int) -> Result<u16, Failure> {
    u16::try_from(node)
        .map_err(|_| Failure::invalid(format!("node {node}: accepted are 0 to 65535")))
}

/// # Safety
/// `handle` is NULL or can be written.
unsafe fn open(
    options: *const TsumujiOptions,
    handle: *mut *mut Tsumuji,
    how: impl FnOnce(Options) -> Result<Endpoint, Failure>,
) -> c_int {
    done(contained(|| {
        // SAFETY: as the caller promises.
        unsafe { ffi::put(handle, "the place for the handle", std::ptr::null_mut()) }?;
        let settings = if options.is_null() {
            Settings::default()
        } else {
            objects::with(options, "the options", |options| {
                Ok(options.settings.clone())
            })?
        };
        let mut node = Node::new(how(settings.options())?);
        node.tune = settings.tune();
        // SAFETY: as the caller promises.
        unsafe {
            ffi::put(
                handle,
                "the place for the handle",
                Tsumuji::give(node).pointer(),
            )
        }
    }))
}
