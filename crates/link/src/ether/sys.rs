//! The only access of `ether` to the kernel: interface requests, further addresses, and the process at the other end of a UNIX socket.
#![allow(unsafe_code)] // ioctl: nothing safe offers them.

use std::io;
use std::mem::zeroed;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::interface::is_gone;
use super::{Interface, InterfaceKind, InterfaceState, MacAddr};
use crate::gather::{option, set_option};

/// A socket for requests; any family will do.
fn asking() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

/// A request about the interface `name`.
pub(crate) fn request_for(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: all-zero bytes are a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { zeroed() };
    let bytes = name.as_bytes();
    // The last byte stays 0.
    if bytes.is_empty() || bytes.len() >= request.ifr_name.len() || bytes.contains(&0) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(bytes) {
        *place = *byte as libc::c_char;
    }
    Ok(request)
}

/// Makes one request about the interface `name`.
fn ask(fd: BorrowedFd<'_>, name: &str, question: libc::Ioctl) -> io::Result<libc::ifreq> {
    let mut request = request_for(name)?;
    // SAFETY: the callers' questions (SIOCGIF…) read the name and write one variant of the `ifreq` that lives here.
    if unsafe { libc::ioctl(fd.as_raw_fd(), question, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(request)
}

/// Gives the interface `name` another address. Needs CAP_NET_ADMIN.
pub(super) fn set_mac(name: &str, mac: MacAddr) -> io::Result<()> {
    let socket = asking()?;
    let mut request = ask(socket.as_fd(), name, libc::SIOCGIFHWADDR)?;
    // SAFETY: SIOCGIFHWADDR filled in this variant; its family stays.
    let address = unsafe { &mut request.ifr_ifru.ifru_hwaddr.sa_data };
    for (place, byte) in address.iter_mut().zip(mac.0) {
        *place = byte as libc::c_char;
    }
    // SAFETY: SIOCSIFHWADDR only reads the `ifreq`, which lives here.
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFHWADDR, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn state_of(fd: BorrowedFd<'_>, name: &str) -> io::Result<InterfaceState> {
    let answer = ask(fd, name, libc::SIOCGIFFLAGS)?;
    // SAFETY: SIOCGIFFLAGS filled in this variant; plain integers.
    let flags = libc::c_int::from(unsafe { answer.ifr_ifru.ifru_flags });
    Ok(if flags & libc::IFF_UP == 0 {
        InterfaceState::Down
    } else if flags & libc::IFF_RUNNING == 0 {
        InterfaceState::NoCarrier
    } else {
        InterfaceState::Up
    })
}

/// The MTU of the interface `name`, asked by any socket.
pub(crate) fn mtu_bytes_of(fd: BorrowedFd<'_>, name: &str) -> io::Result<usize> {
    let answer = ask(fd, name, libc::SIOCGIFMTU)?;
    // SAFETY: SIOCGIFMTU filled in this variant; plain integers.
    let mtu = unsafe { answer.ifr_ifru.ifru_mtu };
    Ok(usize::try_from(mtu).unwrap_or(0))
}

/// All properties of the interface `name`.
pub(super) fn interface(name: &str) -> io::Result<Interface> {
    let socket = asking()?;
    let fd = socket.as_fd();
    let hardware = ask(fd, name, libc::SIOCGIFHWADDR)?;
    // SAFETY: SIOCGIFHWADDR filled in this variant; plain bytes.
    let hardware = unsafe { hardware.ifr_ifru.ifru_hwaddr };
    let kind = match hardware.sa_family {
        libc::ARPHRD_ETHER => InterfaceKind::Ethernet,
        libc::ARPHRD_LOOPBACK => InterfaceKind::Loopback,
        other => InterfaceKind::Other(other),
    };
    let mac = match (kind, hardware.sa_data) {
        (InterfaceKind::Ethernet, [a, b, c, d, e, f, ..]) => {
            MacAddr([a, b, c, d, e, f].map(|byte| byte as u8))
        }
        _ => MacAddr::ZERO,
    };
    Ok(Interface {
        name: name.to_owned(),
        index: rustix::net::netdevice::name_to_index(fd, name)?,
        mac,
        mtu_bytes: mtu_bytes_of(fd, name)?,
        kind,
        state: state_of(fd, name)?,
    })
}

/// The state of the interface with that index, whatever its name is now.
pub(super) fn interface_state(index: u32) -> io::Result<InterfaceState> {
    let socket = asking()?;
    let state = rustix::net::netdevice::index_to_name(&socket, index)
        .map_err(io::Error::from)
        .and_then(|name| state_of(socket.as_fd(), &name));
    match state {
        Err(error) if is_gone(&error) => Ok(InterfaceState::Gone),
        other => other,
    }
}

/// Makes the interface `index` receive frames for another address, too, for as long as the packet socket `fd` is open.
pub(crate) fn add_address(fd: BorrowedFd<'_>, index: u32, mac: MacAddr) -> io::Result<()> {
    let mut address = [0; 8];
    address[..mac.0.len()].copy_from_slice(&mac.0);
    let request = libc::packet_mreq {
        mr_ifindex: index as libc::c_int,
        mr_type: libc::PACKET_MR_UNICAST as u16,
        mr_alen: mac.0.len() as u16,
        mr_address: address,
    };
    set_option(fd, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, request)
}

/// The process that listens at the other end; `None`: not visible from here.
pub(super) fn peer_pid(socket: &OwnedFd) -> Option<u32> {
    let none = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    // SAFETY: plain integers.
    let found = unsafe { option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, none) };
    let pid = found.ok()?.pid;
    // The kernel returns 0 for a process of another process namespace.
    (pid > 0).then_some(pid as u32)
}
