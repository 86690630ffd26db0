//! `exec`, `posix_spawn`, `fork`, `vfork`, `daemon`.
#![allow(unsafe_code)] // C's pointers.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use libc::pid_t;

use crate::exec::{self, Prepared};
use crate::{close, real, start};

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// # Safety
/// As `execve`; `call` is given the environment to use.
unsafe fn execute(
    path: &CStr,
    environment: *const *const c_char,
    call: impl FnOnce(*const *const c_char) -> c_int,
) -> c_int {
    // SAFETY: the program's own environment.
    let prepared: Option<Prepared> = unsafe { exec::prepare(path, environment) };
    let Some(prepared) = prepared else {
        return call(environment);
    };
    let result = call(prepared.environment.as_ptr());
    prepared.undo();
    result
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn execve(
    path: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    // SAFETY: the program's own arguments, here and below.
    unsafe {
        if path.is_null() {
            return real::execve(path, arguments, environment);
        }
        execute(CStr::from_ptr(path), environment, |environment| {
            real::execve(path, arguments, environment)
        })
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn execv(
    path: *const c_char,
    arguments: *const *const c_char,
) -> c_int {
    // SAFETY: the program's own arguments and environment.
    unsafe { execve(path, arguments, environ) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn execvpe(
    name: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    // SAFETY: the program's own arguments, here and below.
    unsafe {
        if name.is_null() || !crate::table::has_any() {
            return real::execvpe(name, arguments, environment);
        }
        let path = exec::find(CStr::from_ptr(name));
        execute(&path, environment, |environment| {
            real::execvpe(name, arguments, environment)
        })
    }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn execvp(
    name: *const c_char,
    arguments: *const *const c_char,
) -> c_int {
    // SAFETY: the program's own arguments and environment.
    unsafe { execvpe(name, arguments, environ) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn fexecve(
    fd: c_int,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    let path = CString::new(format!("/proc/self/fd/{fd}")).unwrap_or_default();
    // SAFETY: the program's own arguments, here and below.
    unsafe {
        execute(&path, environment, |environment| {
            real::fexecve(fd, arguments, environment)
        })
    }
}

/// Older C libraries have no function of that name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn execveat(
    folder: c_int,
    path: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
    flags: c_int,
) -> c_int {
    let call = |environment: *const *const c_char| {
        let [path, arguments, environment] =
            [path as usize, arguments as usize, environment as usize];
        let (folder, flags) = (folder as usize, flags as usize);
        // SAFETY: the program's own arguments, and an environment that lives.
        let result = unsafe {
            let number = libc::SYS_execveat;
            real::syscall(number, folder, path, arguments, environment, flags, 0)
        };
        result as c_int
    };
    if path.is_null() {
        return call(environment);
    }
    // SAFETY: the program's own path.
    let name = unsafe { CStr::from_ptr(path) };
    let is_whole = name.to_bytes().starts_with(b"/") || folder == libc::AT_FDCWD;
    let full = if is_whole {
        name.to_owned()
    } else {
        let folder = format!("/proc/self/fd/{folder}");
        let parts = match name.to_bytes() {
            b"" => folder.into_bytes(),
            name => [folder.as_bytes(), b"/", name].concat(),
        };
        CString::new(parts).unwrap_or_default()
    };
    // SAFETY: the program's own environment.
    unsafe { execute(&full, environment, call) }
}

/// Arguments of a function with `...` that do not fit the registers: a structure of this size is passed where they are, on the stack.
#[cfg(target_arch = "x86_64")]
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct OnStack([*const c_char; ON_STACK]);

/// Arguments that `execl` and its like take beyond the five in registers.
#[cfg(target_arch = "x86_64")]
const ON_STACK: usize = 58;

/// The list of arguments of `execl`: up to its NULL, and what follows that.
#[cfg(target_arch = "x86_64")]
fn listed(
    first: [*const c_char; 5],
    rest: &OnStack,
) -> Option<(Vec<*const c_char>, *const c_char)> {
    let all: Vec<_> = first.into_iter().chain(rest.0).collect();
    let end = all.iter().position(|argument| argument.is_null())?;
    let after = all.get(end + 1).copied().unwrap_or(std::ptr::null());
    Some((all[..=end].to_vec(), after))
}

/// More arguments than are looked for.
#[cfg(target_arch = "x86_64")]
fn too_many() -> c_int {
    crate::sys::set_errno(crate::sys::Errno(libc::E2BIG));
    -1
}

// The functions below read `ON_STACK` words above their own frame. Where the program has given fewer, these are words of its own frames, of which there are
// always as many: above the first frame of a thread lies what the C library keeps of it, above that of the program its arguments and environment.

/// Functions that take their arguments as a list: `list` is what they have, with its NULL, and `after` what follows that.
#[cfg(target_arch = "x86_64")]
macro_rules! of_lists {
    ($(fn $name:ident(|$path:ident, $list:ident, $after:ident| $executes:expr);)*) => { $(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub(crate) unsafe extern "C" fn $name(
            $path: *const c_char,
            a: *const c_char,
            b: *const c_char,
            c: *const c_char,
            d: *const c_char,
            e: *const c_char,
            rest: OnStack,
        ) -> c_int {
            match listed([a, b, c, d, e], &rest) {
                Some(($list, $after)) => $executes,
                None => too_many(),
            }
        }
    )* };
}

#[cfg(target_arch = "x86_64")]
of_lists! {
    // SAFETY: the program's own arguments and environment, here and below.
    fn execl(|path, list, _after| unsafe { execve(path, list.as_ptr(), environ) });
    // SAFETY: as above.
    fn execlp(|name, list, _after| unsafe { execvpe(name, list.as_ptr(), environ) });
    // SAFETY: as above; the environment follows the NULL.
    fn execle(|path, list, environment| unsafe { execve(path, list.as_ptr(), environment.cast()) });
}

/// Standard streams that a spawned program inherits without more ado.
fn pass_standard_streams() {
    exec::pass_on(0..3, "a spawned program inherits it");
}

prepared! {
    fn posix_spawn(child: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: *const *const c_char, environment: *const *const c_char) -> c_int = pass_standard_streams();
    fn posix_spawnp(child: *mut pid_t, name: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: *const *const c_char, environment: *const *const c_char) -> c_int = pass_standard_streams();
    /// How `posix_spawn` gives a socket to a child as its standard input or output. The C library executes the child past us.
    fn posix_spawn_file_actions_adddup2(actions: *mut c_void, fd: c_int, copy: c_int) -> c_int = exec::pass_on([fd], "a spawned program inherits it");
}

/// Ends the process without the functions that the dynamic linker calls at its end.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn _exit(status: c_int) -> c_int {
    start::leave_all();
    // SAFETY: a number.
    unsafe { real::_exit(status) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
#[allow(non_snake_case)] // the C library's name
pub(crate) unsafe extern "C" fn _Exit(status: c_int) -> c_int {
    // SAFETY: a number.
    unsafe { _exit(status) }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn fork() -> pid_t {
    // SAFETY: no arguments.
    start::forking(|| unsafe { real::fork() })
}

/// A child that shares the memory of its parent would change the parent's table: it gets its own, as the standard permits.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn vfork() -> pid_t {
    // SAFETY: no arguments.
    unsafe { fork() }
}

#[cfg_attr(not(test), unsafe(no_mangle))]
#[allow(non_snake_case)] // the C library's name
pub(crate) unsafe extern "C" fn _Fork() -> pid_t {
    // SAFETY: no arguments.
    start::forking_untold(|| unsafe { real::_Fork() })
}

/// Where a child of `clone` begins.
struct Entry {
    function: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
    argument: *mut c_void,
}

unsafe extern "C" fn begin_child(entry: *mut c_void) -> c_int {
    // SAFETY: given by `clone` below; this is the child's copy, which nobody else reads.
    let Entry { function, argument } = unsafe { entry.cast::<Entry>().read() };
    start::begin_child(0);
    // SAFETY: the program's own function and argument.
    let status = function.map_or(0, |function| unsafe { function(argument) });
    // SAFETY: a number.
    unsafe { _exit(status) }
}

/// A child that shares the memory shares the table, too, as a thread does. While this process waits for another child to execute a program (`CLONE_VFORK`),
/// its other threads would wait for our lists.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn clone(
    function: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent_id: usize,
    local: usize,
    child_id: usize,
) -> c_int {
    if flags & libc::CLONE_VM != 0 || function.is_none() || stack.is_null() {
        // SAFETY: the program's own arguments.
        return unsafe {
            real::clone(function, stack, flags, argument, parent_id, local, child_id)
        };
    }
    let mut entry = Entry { function, argument };
    let entry = (&raw mut entry).cast();
    // SAFETY: the program's own arguments but for the entry, which lives in the child's copy of this frame as long as the child.
    start::forking_untold(|| unsafe {
        real::clone(
            Some(begin_child),
            stack,
            flags & !libc::CLONE_VFORK,
            entry,
            parent_id,
            local,
            child_id,
        )
    })
}

/// Whether the call of that number makes a child with memory of its own, which goes on where its parent does.
///
/// # Safety
/// The arguments are those of the call.
pub(crate) unsafe fn is_fork(call: libc::c_long, [a, b, ..]: [usize; 6]) -> bool {
    /// Places of flags and stack in the kernel's `clone_args`.
    const FLAGS: usize = 0;
    const STACK: usize = 5;
    let (flags, stack) = match call {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork => (0, 0),
        libc::SYS_clone => (a, b),
        libc::SYS_clone3 if a != 0 && b >= (STACK + 1) * size_of::<u64>() => {
            let words = a as *const u64;
            // SAFETY: the program's own structure, of that size.
            let word = |place| unsafe { words.add(place).read_unaligned() } as usize;
            (word(FLAGS), word(STACK))
        }
        _ => return false,
    };
    flags & (libc::CLONE_VM | libc::CLONE_VFORK) as usize == 0 && stack == 0
}

#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn daemon(keeps_folder: c_int, keeps_files: c_int) -> c_int {
    // SAFETY: numbers.
    let result = start::forking(|| unsafe { real::daemon(keeps_folder, keeps_files) });
    if result == 0 && keeps_files == 0 {
        // The C library has put /dev/null there, past us.
        for fd in 0..3 {
            let _ = close::before(fd);
        }
    }
    result
}
