//! `dprintf` and its like, which the C library writes past us.
#![allow(unsafe_code)] // C's pointers, and lists of arguments.

use std::ffi::{c_char, c_int, c_void};

use super::data;
use crate::{real, table};

unsafe extern "C" {
    fn vasprintf(text: *mut *mut c_char, format: *const c_char, arguments: *mut c_void) -> c_int;
}

/// Writes what `print` makes: all of it, as the C library does.
fn write_printed(fd: c_int, print: impl FnOnce(*mut *mut c_char) -> c_int) -> c_int {
    let mut text = std::ptr::null_mut();
    let bytes = print(&raw mut text);
    let Ok(whole) = usize::try_from(bytes) else {
        return -1;
    };
    let mut done = 0;
    while done < whole {
        // SAFETY: the text has `whole` bytes.
        let written = unsafe { data::write(fd, text.add(done).cast(), whole - done) };
        let Ok(written) = usize::try_from(written) else {
            break;
        };
        done += written;
    }
    let errno = crate::sys::errno();
    // SAFETY: made by `vasprintf`, and not used any more.
    unsafe { libc::free(text.cast()) };
    crate::sys::set_errno(errno);
    if done == whole { bytes } else { -1 }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn vdprintf(
    fd: c_int,
    format: *const c_char,
    arguments: *mut c_void,
) -> c_int {
    if table::stream(fd).is_none() {
        // SAFETY: the program's own arguments.
        return unsafe { real::vdprintf(fd, format, arguments) };
    }
    // SAFETY: the program's own arguments.
    write_printed(fd, |text| unsafe { vasprintf(text, format, arguments) })
}

/// As compilers call it, with checks of the format, which are the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn __vdprintf_chk(
    fd: c_int,
    flag: c_int,
    format: *const c_char,
    arguments: *mut c_void,
) -> c_int {
    if table::stream(fd).is_none() {
        // SAFETY: the program's own arguments.
        return unsafe { real::__vdprintf_chk(fd, flag, format, arguments) };
    }
    // SAFETY: the program's own arguments.
    unsafe { vdprintf(fd, format, arguments) }
}

/// Functions with `...` that call one with a list of arguments (`va_list`) instead. The registers in which arguments may have come are saved below the frame, then
/// the list is made as System V x86-64 has it: how much of these registers the named arguments took, where further ones lie on the stack, and where those
/// registers are.
#[cfg(target_arch = "x86_64")]
macro_rules! with_lists {
    ($(fn $name:ident($($argument:ident: $type:ty),*) = $listed:ident, named $named:literal, in $register:literal;)*) => { $(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[unsafe(naked)]
        pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            std::arch::naked_asm!(
                "push rbp",
                "mov rbp, rsp",
                "sub rsp, 208",
                "mov [rsp + 16], rdx",
                "mov [rsp + 24], rcx",
                "mov [rsp + 32], r8",
                "mov [rsp + 40], r9",
                // How many of the following registers are in use.
                "test al, al",
                "je 2f",
                "movaps [rsp + 48], xmm0",
                "movaps [rsp + 64], xmm1",
                "movaps [rsp + 80], xmm2",
                "movaps [rsp + 96], xmm3",
                "movaps [rsp + 112], xmm4",
                "movaps [rsp + 128], xmm5",
                "movaps [rsp + 144], xmm6",
                "movaps [rsp + 160], xmm7",
                "2:",
                concat!("mov dword ptr [rsp + 176], ", $named),
                "mov dword ptr [rsp + 180], 48",
                "lea rax, [rbp + 16]",
                "mov [rsp + 184], rax",
                "mov [rsp + 192], rsp",
                concat!("lea ", $register, ", [rsp + 176]"),
                "call {listed}",
                "leave",
                "ret",
                listed = sym $listed,
            )
        }
    )* };
}

#[cfg(target_arch = "x86_64")]
with_lists! {
    fn dprintf(fd: c_int, format: *const c_char) = vdprintf, named "16", in "rdx";
    fn __dprintf_chk(fd: c_int, flag: c_int, format: *const c_char) = __vdprintf_chk, named "24", in "rcx";
}
