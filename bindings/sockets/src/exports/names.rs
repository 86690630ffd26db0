//! How functions of the C library's names are written where many differ in little: as one line each.
//!
//! What a line says goes for the arguments that the program has given, which is all that makes these functions safe.

/// Functions of a descriptor: of a stream, where `if` holds, what the line says; otherwise the next function of that name.
macro_rules! of_streams {
    ($($(#[$doc:meta])* fn $name:ident($fd:ident: c_int $(, $argument:ident: $type:ty)*) -> $result:ty = |$using:ident $(if ($guard:expr))?| $ours:expr;)*) => { $(
        $(#[$doc])*
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub(crate) unsafe extern "C" fn $name($fd: c_int $(, $argument: $type)*) -> $result {
            match $crate::table::stream($fd)$(.filter(|_| $guard))? {
                Some($using) => $ours,
                // SAFETY: the program's own arguments.
                None => unsafe { $crate::real::$name($fd $(, $argument)*) },
            }
        }
    )* };
}

/// Functions before which something of ours is done; then the next function of that name is called.
macro_rules! prepared {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty = $first:expr;)*) => { $(
        $(#[$doc])*
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            $first;
            // SAFETY: the program's own arguments; further ones than it has given are not looked at by the kernel.
            unsafe { $crate::real::$name($($argument),*) }
        }
    )* };
}

/// Functions after whose success something is to be done; their results are below 0 where they fail.
macro_rules! followed {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),*) = $then:expr;)*) => { $(
        $(#[$doc])*
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            // SAFETY: the program's own arguments.
            let result = unsafe { $crate::real::$name($($argument),*) };
            if result >= 0 {
                $then;
            }
            result
        }
    )* };
}

/// Other names of functions.
macro_rules! also_named {
    ($(fn $other:ident($($argument:ident: $type:ty),*) -> $result:ty = $name:ident;)*) => { $(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub(crate) unsafe extern "C" fn $other($($argument: $type),*) -> $result {
            // SAFETY: the program's own arguments; both are the same on 64 bits.
            unsafe { $name($($argument),*) }
        }
    )* };
}

/// Functions that also state a buffer's room, as compilers call them: a buffer that is known to be too small ends the process.
macro_rules! checked {
    ($(fn $checked:ident($fd:ident: c_int, $buffer:ident: *mut c_void, $count:ident: size_t, room $(, $more:ident: $type:ty)*) -> ssize_t = $name:ident;)*) => { $(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        pub(crate) unsafe extern "C" fn $checked($fd: c_int, $buffer: *mut c_void, $count: size_t, room: size_t $(, $more: $type)*) -> ssize_t {
            if $count > room {
                std::process::abort();
            }
            // SAFETY: the program's own arguments.
            unsafe { $name($fd, $buffer, $count $(, $more)*) }
        }
    )* };
}
