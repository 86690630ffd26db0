//! Pointers from C, turned into Rust's types, and results written back. NULL is an error wherever something is needed.
//!
//! Each function states what the caller's pointer must be; the headers ask the same of C programs.
#![allow(
    unsafe_code,
    reason = "reads and writes memory that C programs point at"
)]

use std::ffi::{OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use tsumuji_collective::Memory;

use crate::failure::Failure;

/// Longer than any program runs.
const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);

/// Longest text with its terminating zero, so that one without it is not read far.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// Largest structure size that a program may give: several times the largest structure.
const STRUCT_BYTES_MAX: usize = 4096;

/// # Safety
/// `text` is NULL or ends in a zero byte, and does not change while the result lives.
unsafe fn unchecked<'a>(text: *const c_char, what: &'static str) -> Result<&'a [u8], Failure> {
    if text.is_null() {
        return Err(Failure::invalid(format!("{what} is NULL")));
    }
    // SAFETY: not NULL; read up to its zero byte, which the caller promises, and not further than the limit.
    let bytes = unsafe { libc::strnlen(text, TEXT_BYTES_MAX) };
    if bytes == TEXT_BYTES_MAX {
        return Err(Failure::invalid(format!(
            "{what} does not end within {TEXT_BYTES_MAX} bytes"
        )));
    }
    // SAFETY: so many bytes were read just now; the caller promises the rest.
    Ok(unsafe { std::slice::from_raw_parts(text.cast(), bytes) })
}

/// # Safety
/// `text` is NULL or ends in a zero byte, and does not change while the result lives.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &'static str) -> Result<&'a str, Failure> {
    // SAFETY: as the caller promises.
    std::str::from_utf8(unsafe { unchecked(text, what) }?)
        .map_err(|_| Failure::invalid(format!("{what} is not UTF-8")))
}

/// A path: any bytes, as the kernel takes them.
///
/// # Safety
/// As `text`.
pub(crate) unsafe fn path<'a>(
    text: *const c_char,
    what: &'static str,
) -> Result<&'a Path, Failure> {
    // SAFETY: as the caller promises.
    Ok(Path::new(OsStr::from_bytes(unsafe {
        unchecked(text, what)
    }?)))
}

/// As `text`; NULL and "" give `None`.
///
/// # Safety
/// As `text`.
pub(crate) unsafe fn optional_text<'a>(
    given: *const c_char,
    what: &'static str,
) -> Result<Option<&'a str>, Failure> {
    if given.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise is the same.
    unsafe { text(given, what) }.map(|text| (!text.is_empty()).then_some(text))
}

/// # Safety
/// `data` is NULL, or `bytes` bytes can be read there and do not change while the result lives.
pub(crate) unsafe fn bytes<'a>(data: *const c_void, bytes: usize) -> Result<&'a [u8], Failure> {
    if bytes == 0 {
        return Ok(&[]);
    }
    if data.is_null() || isize::try_from(bytes).is_err() {
        return Err(Failure::invalid(
            "the buffer is NULL, or larger than memory",
        ));
    }
    // SAFETY: not NULL, not longer than isize::MAX; the caller promises the rest.
    Ok(unsafe { std::slice::from_raw_parts(data.cast(), bytes) })
}

/// Fails if a buffer of some length is NULL.
pub(crate) fn check_buffer(buffer: *mut c_void, room: usize) -> Result<(), Failure> {
    if buffer.is_null() && room > 0 {
        return Err(Failure::invalid("the buffer is NULL"));
    }
    Ok(())
}

/// Copies `data` to memory of the program.
///
/// # Safety
/// `to` is NULL, or as many bytes as `data` has can be written there, none of them part of `data`.
pub(crate) unsafe fn copy_out(data: &[u8], to: *mut c_void) -> Result<(), Failure> {
    if data.is_empty() {
        return Ok(());
    }
    if to.is_null() {
        return Err(Failure::invalid("the buffer is NULL"));
    }
    // SAFETY: not NULL; the caller promises room and no overlap.
    unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to.cast(), data.len()) };
    Ok(())
}

/// Copies numbers to memory of the program.
///
/// # Safety
/// `to` is NULL, or as many numbers can be written there, none of them part of `values`.
pub(crate) unsafe fn copy_doubles_out(values: &[f64], to: *mut f64) -> Result<(), Failure> {
    let first = values.as_ptr().cast::<u8>();
    // SAFETY: the bytes of these numbers, which have no padding; the caller promises the rest.
    unsafe {
        let bytes = std::slice::from_raw_parts(first, size_of_val(values));
        copy_out(bytes, to.cast())
    }
}

/// Writes a required result.
///
/// # Safety
/// `to` is NULL or can be written.
pub(crate) unsafe fn put<T>(to: *mut T, what: &'static str, value: T) -> Result<(), Failure> {
    if to.is_null() {
        return Err(Failure::invalid(format!("{what} is NULL")));
    }
    // SAFETY: not NULL; the caller promises the rest. The old value is C's, so it is not dropped.
    unsafe { to.write_unaligned(value) };
    Ok(())
}

/// Writes a result unless the pointer is NULL.
///
/// # Safety
/// As `put`.
pub(crate) unsafe fn put_if_wanted<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: not NULL; the caller promises the rest.
        unsafe { to.write_unaligned(value) };
    }
}

/// Writes a text and its final 0, cut between two characters so that it takes at most `room` bytes.
///
/// # Safety
/// `to` is NULL, or `room` bytes can be written there.
pub(crate) unsafe fn put_text(
    to: *mut c_char,
    room: usize,
    what: &'static str,
    text: &str,
) -> Result<(), Failure> {
    if to.is_null() || room == 0 {
        return Err(Failure::invalid(format!("{what} is NULL or has no room")));
    }
    let mut end = text.len().min(room - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    // SAFETY: `end` bytes can be read, and with the final 0 they are at most `room`, which the caller promises. C's bytes are its own: no overlap.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast::<u8>(), end);
        to.cast::<u8>().add(end).write(0);
    }
    Ok(())
}

/// Copies numbers or structures of the program, which need no alignment.
///
/// # Safety
/// `from` is NULL or `count` of them can be read there.
pub(crate) unsafe fn copied<T: Copy>(
    from: *const T,
    count: usize,
    what: &'static str,
) -> Result<Vec<T>, Failure> {
    if from.is_null() {
        return Err(Failure::invalid(format!("{what}: NULL")));
    }
    // SAFETY: each is one of `count`; the caller promises the rest.
    Ok((0..count)
        .map(|place| unsafe { from.add(place).read_unaligned() })
        .collect())
}

/// Writes as much of a structure as the program knows: one built with an older header has fewer fields.
///
/// # Safety
/// `to` is NULL or `room` bytes can be written there.
pub(crate) unsafe fn put_struct<T: Copy>(
    to: *mut T,
    room: usize,
    value: &T,
) -> Result<(), Failure> {
    check_struct(to.is_null(), room)?;
    let known = room.min(size_of::<T>());
    // SAFETY: `known` bytes can be read from `value`, of which none are padding (the structures consist of 8-byte fields, and
    // their sizes are checked beside them); the caller promises `room` bytes there. C's bytes are its own: no overlap.
    unsafe {
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(value).cast::<u8>(), to.cast(), known);
        to.cast::<u8>().add(known).write_bytes(0, room - known);
    }
    Ok(())
}

/// Reads a structure of which the program may know only the first fields; the others are zero.
///
/// # Safety
/// `from` is NULL or `room` bytes can be read there, and all-zero bytes are a valid `T`.
pub(crate) unsafe fn read_struct<T: Copy>(from: *const T, room: usize) -> Result<T, Failure> {
    check_struct(from.is_null(), room)?;
    let mut value = std::mem::MaybeUninit::<T>::zeroed();
    let known = room.min(size_of::<T>());
    // SAFETY: `known` bytes can be read there (promised) and written here; the two do not overlap. Zero is valid for the rest, and C wrote valid
    // values into the fields that it knows.
    unsafe {
        std::ptr::copy_nonoverlapping(from.cast::<u8>(), value.as_mut_ptr().cast(), known);
        Ok(value.assume_init())
    }
}

fn check_struct(is_null: bool, room: usize) -> Result<(), Failure> {
    if is_null || !(1..=STRUCT_BYTES_MAX).contains(&room) {
        return Err(Failure::invalid(
            "the structure is NULL, or the size given is not its size",
        ));
    }
    Ok(())
}

/// Memory of the program that a collective operation reads until it is over.
#[derive(Debug)]
pub(crate) struct Input(Area);

/// Memory of the program that a collective operation fills until it is over, or a message until its post ends.
#[derive(Debug)]
pub(crate) struct Output(Area);

/// `count` bytes; of 0 the place does not matter.
#[derive(Debug)]
struct Area {
    at: *mut u8,
    count: usize,
}

// SAFETY: the program promised that nothing else uses the memory until the operation is over, whichever thread drives it.
unsafe impl Send for Area {}

impl Area {
    fn new(at: *mut c_void, count: usize) -> Result<Self, Failure> {
        let fits = isize::try_from(count).is_ok() && (at as usize).checked_add(count).is_some();
        if count > 0 && (at.is_null() || !fits) {
            return Err(Failure::invalid(
                "the buffer is NULL, or larger than memory",
            ));
        }
        let at = at.cast();
        Ok(Self { at, count })
    }

    fn nothing() -> Self {
        let at = std::ptr::null_mut();
        Self { at, count: 0 }
    }

    fn bytes(&self) -> &[u8] {
        if self.count == 0 {
            return &[];
        }
        // SAFETY: checked by `new` to be possible; whoever made the `Input` or `Output` promised that it can be read and does not change, but by
        // `bytes_mut`, which takes `&mut self`.
        unsafe { std::slice::from_raw_parts(self.at, self.count) }
    }
}

impl Input {
    /// # Safety
    /// `at` is NULL, or `count` bytes can be read there, unchanged, until this is dropped.
    pub(crate) unsafe fn new(at: *const c_void, count: usize) -> Result<Self, Failure> {
        Area::new(at.cast_mut(), count).map(Self)
    }

    /// For a member that sends nothing.
    pub(crate) fn nothing() -> Self {
        Self(Area::nothing())
    }
}

impl Output {
    /// # Safety
    /// `at` is NULL, or `count` bytes can be read and written there, and nothing else does either, until this is dropped.
    pub(crate) unsafe fn new(at: *mut c_void, count: usize) -> Result<Self, Failure> {
        Area::new(at, count).map(Self)
    }

    /// For a member that receives nothing.
    pub(crate) fn nothing() -> Self {
        Self(Area::nothing())
    }

    /// Fails if an operation's input and output overlap.
    pub(crate) fn check_apart(&self, input: &Input) -> Result<(), Failure> {
        let (a, b) = (self.0.at as usize, input.0.at as usize);
        let apart = a + self.0.count <= b || b + input.0.count <= a; // neither sum overflows: see `Area::new`
        if self.0.count == 0 || input.0.count == 0 || apart {
            return Ok(());
        }
        Err(Failure::invalid(
            "what is sent and where it is received overlap",
        ))
    }
}

impl Memory for Input {
    fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut [] // an input is not written
    }
}

impl Memory for Output {
    fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        if self.0.count == 0 {
            return &mut [];
        }
        // SAFETY: checked by `Area::new` to be possible; the caller of `new` promised that it can be written and that nothing else uses it.
        unsafe { std::slice::from_raw_parts_mut(self.0.at, self.0.count) }
    }
}

impl AsRef<[u8]> for Output {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl AsMut<[u8]> for Output {
    fn as_mut(&mut self) -> &mut [u8] {
        self.bytes_mut()
    }
}

/// Lengths of the parts of all members, and their sum.
///
/// # Safety
/// `counts` is NULL, or `size` numbers can be read there.
pub(crate) unsafe fn lengths(
    counts: *const usize,
    size: usize,
    otherwise: usize,
) -> Result<(Vec<usize>, usize), Failure> {
    let lengths = if counts.is_null() {
        vec![otherwise; size]
    } else {
        // SAFETY: as the caller promises. `size` is a number of nodes.
        unsafe { copied(counts, size, "the counts") }?
    };
    let total = lengths
        .iter()
        .try_fold(0_usize, |total, length| total.checked_add(*length))
        .ok_or_else(|| Failure::invalid("the parts together are larger than memory"))?;
    Ok((lengths, total))
}

/// Sets C's `errno` for this thread.
pub(crate) fn set_errno(number: c_int) {
    // SAFETY: the C library returns the address of this thread's `errno`, which any code of this thread may write.
    unsafe { *libc::__errno_location() = number };
}

/// Microseconds from C; negative: without limit.
pub(crate) fn timeout(us: i64) -> Duration {
    u64::try_from(us).map_or(FOREVER, Duration::from_micros)
}

/// A descriptor from C, borrowed for a call.
///
/// # Safety
/// `fd` stays open while the result lives.
pub(crate) unsafe fn borrow_fd<'a>(fd: c_int) -> Result<std::os::fd::BorrowedFd<'a>, Failure> {
    if fd < 0 {
        return Err(Failure::invalid(format!("{fd} is not a file descriptor")));
    }
    // SAFETY: not −1; the caller promises that it stays open.
    Ok(unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) })
}
