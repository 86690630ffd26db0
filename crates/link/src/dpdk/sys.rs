//! The only access to DPDK: loads the shim, and offers safe interfaces to a device, its memory pool and its mbufs.
//!
//! Called by `eal`, `device`, `rx` and `tx`. The shim (`shim.c`) is part of this program if it was built with the feature `dpdk`; it is loaded from
//! memory, and libdpdk with it, when first asked for, and stays loaded.
//!
//! Invariants: a `Port` and the `Slots` used with it are in one thread at a time. An mbuf has one owner: a `Slots`, or the device. One thread at a
//! time makes, changes, queries or removes a device or a pool (`control`); bursts need no such lock: they access their own device's queues, and pools
//! that are made for several threads.
#![allow(unsafe_code)] // dlopen, and the calls through the shim's table.

use std::cell::Cell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

use crate::Frame;
use crate::ether::MacAddr;

/// The shared object, or nothing where the feature is off.
#[cfg(feature = "dpdk")]
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/tsumuji_dpdk.so"));
#[cfg(not(feature = "dpdk"))]
static OBJECT: &[u8] = &[];
const TABLE: &CStr = c"tsumuji_dpdk_shim";
/// Most frames in one call of the shim; its BURST_FRAMES.
pub(super) const BURST_FRAMES: usize = 64;
/// Bytes of the log that are shown.
const LOG_BYTES: usize = 4096;

/// A frame in an mbuf: shim.c's `struct slot`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct RawSlot {
    mbuf: *mut c_void,
    data: *mut u8,
    part_bytes: u32,
    frame_bytes: u32,
}

/// The second part of a frame: shim.c's `struct body`.
#[derive(Clone, Copy)]
#[repr(C)]
struct RawBody {
    data: *const u8,
    bytes: u32,
}

/// shim.c's `struct device_info`.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
struct RawInfo {
    mac: [u8; 6],
    mtu_bytes: u16,
    max_mtu_bytes: u32,
    default_receive_frames: u16,
    default_transmit_frames: u16,
    numa_node: i32,
}

/// shim.c's `struct stats`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Stats {
    /// Received frames lost because the receive ring was full.
    pub(super) missed: u64,
    /// Received frames with errors.
    pub(super) receive_errors: u64,
    /// Frames for which there was no mbuf.
    pub(super) no_mbuf: u64,
    /// Frames that the device took and could not send.
    pub(super) transmit_errors: u64,
}

/// shim.c's `struct shim`, in the same order.
#[repr(C)]
struct Shim {
    version: unsafe extern "C" fn() -> *const c_char,
    driver_folder: unsafe extern "C" fn() -> *const c_char,
    take_log: unsafe extern "C" fn(*mut u8, usize) -> usize,
    start: unsafe extern "C" fn(c_int, *mut *mut c_char) -> c_int,
    thread_begin: unsafe extern "C" fn() -> c_int,
    thread_end: unsafe extern "C" fn(),
    device_make: unsafe extern "C" fn(*const c_char, *const c_char, *mut u16) -> c_int,
    device_info: unsafe extern "C" fn(u16, *mut RawInfo) -> c_int,
    device_set_up: unsafe extern "C" fn(u16, u16, bool, *mut u16, *mut u16, *mut c_void) -> c_int,
    device_start: unsafe extern "C" fn(u16) -> c_int,
    device_restart: unsafe extern "C" fn(u16) -> c_int,
    device_is_up: unsafe extern "C" fn(u16) -> c_int,
    device_stats: unsafe extern "C" fn(u16, *mut Stats) -> c_int,
    device_unmake: unsafe extern "C" fn(u16) -> c_int,
    xdp_hold: unsafe extern "C" fn(u32) -> c_int,
    pool_make: unsafe extern "C" fn(*const c_char, u32, u32, u16, i32, i32) -> *mut c_void,
    pool_in_use: unsafe extern "C" fn(*const c_void) -> u32,
    pool_free: unsafe extern "C" fn(*mut c_void),
    slots_take: unsafe extern "C" fn(*mut c_void, *mut RawSlot, u32) -> c_int,
    slots_free: unsafe extern "C" fn(*const RawSlot, u32),
    transmit: unsafe extern "C" fn(u16, *const RawSlot, u32) -> u32,
    transmit_parted: unsafe extern "C" fn(u16, *const RawSlot, *const RawBody, u32) -> u32,
    receive: unsafe extern "C" fn(u16, *mut RawSlot, u32) -> u32,
    gather: unsafe extern "C" fn(*const RawSlot, *mut u8, u32) -> u32,
}

/// Why the shim is not available.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Absent {
    /// The program was built without it.
    NotBuiltIn,
    /// It could not be loaded, mostly because libdpdk is not installed.
    NotLoaded(String),
}

/// Whether the program was built with the feature `dpdk`.
pub(super) fn is_built_in() -> bool {
    !OBJECT.is_empty()
}

fn shim() -> Result<&'static Shim, Absent> {
    static LOADED: OnceLock<Result<&'static Shim, Absent>> = OnceLock::new();
    LOADED.get_or_init(load).clone()
}

/// The shim, for owners of a device, which only a loaded shim makes.
fn loaded() -> &'static Shim {
    shim().expect("whoever has a device has the shim")
}

fn load() -> Result<&'static Shim, Absent> {
    if !is_built_in() {
        return Err(Absent::NotBuiltIn);
    }
    let failed = |error: std::io::Error| Absent::NotLoaded(error.to_string());
    let memory = rustix::fs::memfd_create("tsumuji-dpdk", rustix::fs::MemfdFlags::CLOEXEC)
        .map_err(|error| failed(error.into()))?;
    let mut file = std::fs::File::from(memory);
    file.write_all(OBJECT).map_err(failed)?;
    let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).expect("no zero byte");
    // Globally: DPDK's drivers, loaded later, must find the shim's functions before libdpdk's (see shim.c).
    // SAFETY: `path` is a C string. Loading runs the constructors of our own object, of which there are none, and those of libdpdk,
    // which register its parts and have no precondition.
    let object = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if object.is_null() {
        return Err(Absent::NotLoaded(dl_error()));
    }
    // SAFETY: `object` was opened above and is never closed; TABLE is a C string.
    let table = unsafe { libc::dlsym(object, TABLE.as_ptr()) };
    if table.is_null() {
        return Err(Absent::NotLoaded(dl_error()));
    }
    // SAFETY: the object was compiled from shim.c together with this program, so TABLE names a constant `struct shim`, of which
    // `Shim` is the Rust form; it lives as long as the object, which is never closed.
    Ok(unsafe { &*table.cast::<Shim>() })
}

fn dl_error() -> String {
    // SAFETY: no precondition; the text belongs to this thread and stays until its next call of this family.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "unknown".to_owned();
    }
    // SAFETY: not null, so a C string, copied before any other such call.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

/// DPDK makes, changes, queries and removes devices in one thread at a time.
static CONTROL: Mutex<()> = Mutex::new(());

fn control() -> MutexGuard<'static, ()> {
    CONTROL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The same for links that are being polled, which must not wait while another thread opens its device. `None`: ask again later.
fn try_control() -> Option<MutexGuard<'static, ()>> {
    match CONTROL.try_lock() {
        Ok(control) => Some(control),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Turns DPDK's negative results into errors.
fn checked(answer: c_int) -> Result<(), std::io::Error> {
    if answer < 0 {
        Err(std::io::Error::from_raw_os_error(-answer))
    } else {
        Ok(())
    }
}

/// The version, as in `DPDK 22.11.11`, and the folder of its drivers.
pub(super) fn describe() -> Result<(String, String), Absent> {
    let shim = shim()?;
    // SAFETY: no precondition; the answer is a constant C string.
    let version = unsafe { CStr::from_ptr((shim.version)()) };
    // SAFETY: as above.
    let folder = unsafe { CStr::from_ptr((shim.driver_folder)()) };
    let text = |text: &CStr| text.to_string_lossy().into_owned();
    Ok((text(version), text(folder)))
}

/// DPDK's log since the last call.
pub(super) fn take_log() -> String {
    let Ok(shim) = shim() else {
        return String::new();
    };
    let mut text = vec![0; LOG_BYTES];
    // SAFETY: writes at most the given number of bytes, which `text` has.
    let bytes = unsafe { (shim.take_log)(text.as_mut_ptr(), text.len()) };
    text.truncate(bytes);
    String::from_utf8_lossy(&text).into_owned()
}

/// Starts the EAL. The caller takes care that this happens once in the process.
pub(super) fn start(arguments: &[CString]) -> Result<std::io::Result<()>, Absent> {
    let shim = shim()?;
    let mut pointers: Vec<*mut c_char> = arguments
        .iter()
        // The EAL keeps pointers into its arguments.
        .map(|argument| argument.clone().into_raw())
        .collect();
    let count = pointers.len() as c_int;
    pointers.push(ptr::null_mut());
    // SAFETY: an argument vector as `main` gets one: `count` C strings and a null pointer. The strings are leaked, the vector is
    // leaked below, so what the EAL keeps of them stays valid.
    let answer = unsafe { (shim.start)(count, pointers.as_mut_ptr()) };
    std::mem::forget(pointers);
    Ok(checked(answer))
}

/// Registers its thread with DPDK while it lives; by the thread's number pools find its cache.
struct Numbered(bool);

impl Numbered {
    fn begin() -> Self {
        // SAFETY: called by threads that use a device, so after the start of the EAL.
        Self(unsafe { (loaded().thread_begin)() } == 0)
    }
}

impl Drop for Numbered {
    fn drop(&mut self) {
        if self.0 {
            // SAFETY: this thread was registered by `begin` and is now at its end.
            unsafe { (loaded().thread_end)() }
        }
    }
}

/// Registers this thread. Without a number (all 128 in use) a thread only works more slowly.
#[inline]
fn number_this_thread() {
    thread_local! {
        static NUMBERED: Numbered = Numbered::begin();
    }
    // Fails while the thread ends: then it has no number.
    let _ = NUMBERED.try_with(|_| ());
}

/// A device's description of itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Info {
    pub(super) mac: MacAddr,
    pub(super) mtu_bytes: usize,
    pub(super) max_mtu_bytes: usize,
    pub(super) default_receive_frames: u16,
    pub(super) default_transmit_frames: u16,
    pub(super) numa_node: i32,
}

/// Mbufs of one device. Freed when the device is gone and no `Slots` has one of them any more.
#[derive(Debug)]
struct Pool(NonNull<c_void>);

// SAFETY: DPDK's pools are made for use by several threads at once; this handle offers nothing else.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Drop for Pool {
    fn drop(&mut self) {
        let _control = control();
        // SAFETY: made by `Port::make_pool` and not freed yet. All users of its mbufs hold it: each `Slots`, and the `Port` until its device is gone.
        // Drivers that keep mbufs when they close (AF_XDP's) no longer write to them then.
        unsafe { (loaded().pool_free)(self.0.as_ptr()) };
    }
}

/// A device.
#[derive(Debug)]
pub(super) struct Port {
    number: u16,
    pool: Option<Arc<Pool>>,
    /// Room in an mbuf, in bytes, for a whole frame.
    room_bytes: usize,
    /// Mbufs of a burst, BURST_FRAMES at most.
    burst_frames: usize,
    /// The driver copies all parts of a frame into one buffer of its own before `transmit` returns.
    copies: bool,
    /// The descriptor by which the driver's XDP program is attached to the interface.
    xdp_link: Option<OwnedFd>,
    /// The device's last statistics. Also keeps a `Port` from being `Sync`: its queues may be used by one thread at a time.
    stats: Cell<Stats>,
    is_up: Cell<bool>,
}

// A `Port` is `Send` by itself: DPDK's devices and pools are bound to no thread.

impl Drop for Port {
    fn drop(&mut self) {
        let control = control();
        // The driver would detach the program from the interface, and then finds it gone.
        drop(self.xdp_link.take());
        // SAFETY: the device was made by `make` and not taken away yet.
        let answer = unsafe { (loaded().device_unmake)(self.number) };
        drop(control);
        if answer != 0 {
            tracing::warn!("dpdk: a device cannot be removed ({answer}); its memory stays in use");
            // The device may still write there.
            std::mem::forget(self.pool.take());
        }
    }
}

impl Port {
    /// Makes the device that `arguments` describe: `net_memif0,role=server`. The EAL is running.
    pub(super) fn make(arguments: &str) -> std::io::Result<Self> {
        let shim = loaded();
        let name = arguments.split(',').next().unwrap_or_default();
        let text = |text: &str| CString::new(text).map_err(|_| std::io::ErrorKind::InvalidInput);
        let (name, arguments) = (text(name)?, text(arguments)?);
        let mut number = 0;
        let _control = control();
        // SAFETY: two C strings that the call only reads, and a number that it writes.
        checked(unsafe { (shim.device_make)(arguments.as_ptr(), name.as_ptr(), &mut number) })?;
        Ok(Self {
            number,
            pool: None,
            room_bytes: 0,
            burst_frames: 0,
            copies: false,
            xdp_link: None,
            stats: Cell::default(),
            is_up: Cell::new(false),
        })
    }

    pub(super) fn info(&self) -> std::io::Result<Info> {
        let mut raw = RawInfo::default();
        let _control = control();
        // SAFETY: the device exists as long as `self`; the answer is plain numbers.
        checked(unsafe { (loaded().device_info)(self.number, &mut raw) })?;
        Ok(Info {
            mac: MacAddr(raw.mac),
            mtu_bytes: raw.mtu_bytes.into(),
            max_mtu_bytes: raw.max_mtu_bytes as usize,
            default_receive_frames: raw.default_receive_frames,
            default_transmit_frames: raw.default_transmit_frames,
            numa_node: raw.numa_node,
        })
    }

    /// Makes the pool: `frames` mbufs, each with room for a frame of `room_bytes`, for bursts of `burst_frames`, of which each thread may keep one;
    /// `dense`: all mbufs in one piece of memory.
    pub(super) fn make_pool(
        &mut self,
        name: &str,
        frames: u32,
        burst_frames: usize,
        room_bytes: u16,
        numa_node: i32,
        dense: bool,
    ) -> Result<(), ()> {
        assert!(self.pool.is_none(), "a device has one pool");
        assert!(
            (1..=BURST_FRAMES).contains(&burst_frames),
            "what the shim takes"
        );
        let _control = control();
        let name = CString::new(name).expect("a name of ours");
        // SAFETY: the EAL is running; `name` is a C string that is copied.
        let pool = unsafe {
            (loaded().pool_make)(
                name.as_ptr(),
                frames,
                burst_frames as u32,
                room_bytes,
                numa_node,
                dense.into(),
            )
        };
        self.pool = Some(Arc::new(Pool(NonNull::new(pool).ok_or(())?)));
        self.room_bytes = room_bytes.into();
        self.burst_frames = burst_frames;
        Ok(())
    }

    /// States that the driver copies: memif's, without zero-copy, and with buffers smaller than the pool's mbufs (with larger ones, DPDK from 23.03
    /// on puts each mbuf of a frame into a buffer of its own).
    pub(super) fn set_copies(&mut self) {
        self.copies = true;
    }

    pub(super) fn copies(&self) -> bool {
        self.copies
    }

    /// Mbufs of a burst.
    pub(super) fn burst_frames(&self) -> usize {
        self.burst_frames
    }

    /// Sets up one queue each way over the pool; returns how many frames they hold. `mtu_bytes` 0: the device's own. `promiscuous`: frames for all stations are received.
    pub(super) fn set_up(
        &mut self,
        mtu_bytes: u16,
        promiscuous: bool,
        wanted: (u16, u16),
    ) -> std::io::Result<(u16, u16)> {
        let (mut receive, mut transmit) = wanted;
        let pool = self.pool.as_ref().expect("make_pool comes first");
        let _control = control();
        // SAFETY: the device and its pool live as long as `self`, and the pool is freed after the device.
        checked(unsafe {
            (loaded().device_set_up)(
                self.number,
                mtu_bytes,
                promiscuous,
                &mut receive,
                &mut transmit,
                pool.0.as_ptr(),
            )
        })?;
        Ok((receive, transmit))
    }

    /// Ties the program that the AF_XDP driver attached to that interface to this process: it is detached however the process ends.
    pub(super) fn hold_xdp_program(&mut self, interface: u32) -> std::io::Result<()> {
        let _control = control();
        // SAFETY: plain numbers in and out.
        let answer = unsafe { (loaded().xdp_hold)(interface) };
        checked(answer)?;
        // SAFETY: not negative, so a descriptor that was made for us and that nobody else has.
        self.xdp_link = Some(unsafe { OwnedFd::from_raw_fd(answer) });
        Ok(())
    }

    pub(super) fn start(&mut self) -> std::io::Result<()> {
        let _control = control();
        // SAFETY: the device exists; one that is not set up is refused.
        checked(unsafe { (loaded().device_start)(self.number) })
    }

    /// Stops a device that was started and has no link, and starts it again.
    pub(super) fn restart(&mut self) -> std::io::Result<()> {
        let _control = control();
        // SAFETY: the device exists, and `&mut self` says that no burst of it is under way.
        checked(unsafe { (loaded().device_restart)(self.number) })
    }

    /// Whether it is up; the last known state while another thread has the lock. Never waits.
    pub(super) fn is_up(&self) -> bool {
        if let Some(_control) = try_control() {
            // SAFETY: the device exists.
            self.is_up
                .set(unsafe { (loaded().device_is_up)(self.number) } == 1);
        }
        self.is_up.get()
    }

    /// Its statistics; the last known ones while another thread has the lock. Never waits.
    pub(super) fn stats(&self) -> Stats {
        if let Some(_control) = try_control() {
            let mut stats = self.stats.get();
            // SAFETY: the device exists; the answer is plain numbers. Refused, they stay what they were.
            unsafe { (loaded().device_stats)(self.number, &mut stats) };
            self.stats.set(stats);
        }
        self.stats.get()
    }

    /// Mbufs that are with the device or in a `Slots`.
    pub(super) fn mbufs_in_use(&self) -> u32 {
        let _control = control();
        let pool = self.pool.as_ref().expect("set up");
        // SAFETY: the pool lives as long as `self`.
        unsafe { (loaded().pool_in_use)(pool.0.as_ptr()) }
    }
}

/// Mbufs that we own, each with at most one frame.
#[derive(Debug)]
pub(super) struct Slots {
    raw: Vec<RawSlot>,
    pool: Arc<Pool>,
    shim: &'static Shim,
}

impl std::fmt::Debug for Shim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shim")
    }
}

// SAFETY: mbufs are plain memory of a pool that any thread may use; `Slots` owns them, and is in one thread at a time.
unsafe impl Send for Slots {}

impl Drop for Slots {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Slots {
    /// An empty list with room for a burst of mbufs of one device.
    pub(super) fn new(port: &Port) -> Self {
        Self {
            raw: Vec::with_capacity(port.burst_frames),
            pool: Arc::clone(port.pool.as_ref().expect("set up")),
            shim: loaded(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.raw.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }

    /// Checks that the mbufs go only to and from the device of their pool, which lives as long as they.
    #[inline]
    fn check(&self, port: &Port) {
        let same = port
            .pool
            .as_ref()
            .is_some_and(|pool| Arc::ptr_eq(pool, &self.pool));
        assert!(same, "another device's mbufs");
    }

    /// Returns all mbufs to their pool.
    pub(super) fn clear(&mut self) {
        if self.raw.is_empty() {
            return;
        }
        number_this_thread();
        // SAFETY: `raw` holds mbufs that we own; the list is emptied, so none is freed twice.
        unsafe { (self.shim.slots_free)(self.raw.as_ptr(), self.raw.len() as u32) };
        self.raw.clear();
    }

    /// Takes `count` more mbufs from the pool, all or none.
    pub(super) fn take(&mut self, count: usize) -> bool {
        number_this_thread();
        let count = count.min(BURST_FRAMES);
        self.raw.reserve(count);
        let old = self.raw.len();
        // SAFETY: there is place for `count` more behind the `old` that are there; the shim writes all of them exactly if it
        // answers 0. Of each mbuf, `data` begins `room_bytes` that are ours.
        unsafe {
            let place = self.raw.as_mut_ptr().add(old);
            if (self.shim.slots_take)(self.pool.0.as_ptr(), place, count as u32) != 0 {
                return false;
            }
            self.raw.set_len(old + count);
        }
        true
    }

    /// The first `bytes` of the last mbuf, which came by `take` from `port`.
    #[inline]
    pub(super) fn last_mut(&mut self, port: &Port, bytes: usize) -> &mut [u8] {
        self.check(port);
        assert!(bytes <= port.room_bytes, "an mbuf has room for a frame");
        let slot = self.raw.last_mut().expect("there is one");
        assert_eq!(slot.part_bytes, 0, "not a received frame");
        // SAFETY: `take` gave an mbuf of which `room_bytes` from `data` on are ours alone until we hand it over or free it. They
        // are initialised: the EAL's memory begins as zeros.
        unsafe { std::slice::from_raw_parts_mut(slot.data, bytes) }
    }

    /// States the length of the frame in the last mbuf and gives the mbuf to `queue`.
    #[inline]
    pub(super) fn give_last(&mut self, port: &Port, bytes: usize, queue: &mut Self) {
        assert!(
            Arc::ptr_eq(&self.pool, &queue.pool),
            "another device's mbufs"
        );
        queue.raw.push(self.raw.pop().expect("there is one"));
        queue.set_last_bytes(port, bytes);
    }

    /// States the length of the frame in the last mbuf.
    #[inline]
    pub(super) fn set_last_bytes(&mut self, port: &Port, bytes: usize) {
        assert!(bytes <= port.room_bytes, "an mbuf has room for a frame");
        self.raw.last_mut().expect("there is one").frame_bytes = bytes as u32;
    }

    /// Gives frames to the device, in order, as many as it takes: those are its own now. Returns their number.
    #[inline]
    pub(super) fn transmit(&mut self, port: &Port) -> usize {
        self.check(port);
        number_this_thread();
        // SAFETY: the device exists; the mbufs are ours, of its pool, each of one part with a length that `set_last_bytes` checked.
        // Those that it took are taken from the list, so that we do not touch them again.
        let sent =
            unsafe { (self.shim.transmit)(port.number, self.raw.as_ptr(), self.raw.len() as u32) };
        self.raw.drain(..sent as usize);
        sent as usize
    }

    /// As `transmit`; the mbufs hold the heads of `frames`, and the bodies follow. Mbufs that the device did not take have only the heads; see `append`.
    pub(super) fn transmit_parted(&mut self, port: &Port, frames: &[Frame<'_>]) -> usize {
        self.check(port);
        assert!(port.copies, "the bodies are only borrowed");
        number_this_thread();
        let none = RawBody {
            data: ptr::null(),
            bytes: 0,
        };
        let mut parts = [none; BURST_FRAMES];
        let mut count = 0;
        for ((part, frame), head) in parts.iter_mut().zip(frames).zip(&self.raw) {
            let body = frame.body;
            let whole = head.frame_bytes as usize + body.len();
            assert!(whole <= port.room_bytes, "an mbuf has room for a frame");
            (part.data, part.bytes) = (body.as_ptr(), body.len() as u32);
            count += 1;
        }
        // SAFETY: the device exists; the first `count` mbufs are ours, of its pool, each of one part with a length that `set_last_bytes`
        // checked, and there are as many bodies, borrowed during this call, in which a driver that `copies` has copied what it took and
        // the shim has forgotten the rest. The mbufs that it took are taken from the list, so that we do not touch them again.
        let sent = unsafe {
            (self.shim.transmit_parted)(port.number, self.raw.as_ptr(), parts.as_ptr(), count)
        };
        self.raw.drain(..sent as usize);
        sent as usize
    }

    /// Appends `body` to the content of the mbuf at `at`, which came by `take` from `port`.
    pub(super) fn append(&mut self, port: &Port, at: usize, body: &[u8]) {
        self.check(port);
        let slot = &mut self.raw[at];
        let start = slot.frame_bytes as usize;
        assert!(
            start + body.len() <= port.room_bytes,
            "an mbuf has room for a frame"
        );
        assert_eq!(slot.part_bytes, 0, "not a received frame");
        // SAFETY: as for `last_mut`, and `body`, which is borrowed, is not part of an mbuf that is ours alone.
        unsafe { ptr::copy_nonoverlapping(body.as_ptr(), slot.data.add(start), body.len()) };
        slot.frame_bytes += body.len() as u32;
    }

    /// Takes received frames from the device; the list must be empty before.
    #[inline]
    pub(super) fn receive(&mut self, port: &Port) -> usize {
        self.check(port);
        assert!(self.raw.is_empty(), "the last burst was handed on");
        number_this_thread();
        // SAFETY: the device exists; there is place for `room`, which is no more than the shim takes, and as many as answered are written.
        unsafe {
            let room = self.raw.capacity().min(port.burst_frames) as u32;
            let count = (self.shim.receive)(port.number, self.raw.as_mut_ptr(), room);
            self.raw.set_len(count as usize);
        }
        self.raw.len()
    }

    /// A received frame: where it lies, or joined in `scratch` if it lies in several mbufs. `None`: longer than `scratch`.
    #[inline]
    pub(super) fn frame<'a>(&'a self, at: usize, scratch: &'a mut [u8]) -> Option<&'a [u8]> {
        let slot = &self.raw[at];
        if slot.part_bytes == slot.frame_bytes {
            // SAFETY: the mbuf has room for that many bytes (the shim's `receive` bounds them, whatever the driver says), which are
            // initialised as all of the EAL's memory is, and is ours until `clear`, which needs `&mut self`.
            return Some(unsafe {
                std::slice::from_raw_parts(slot.data, slot.part_bytes as usize)
            });
        }
        if slot.frame_bytes as usize > scratch.len() {
            return None;
        }
        // SAFETY: an mbuf of ours; at most the length of `scratch` is written.
        let bytes = unsafe { (self.shim.gather)(slot, scratch.as_mut_ptr(), scratch.len() as u32) };
        (bytes == slot.frame_bytes).then(|| &scratch[..bytes as usize])
    }
}
