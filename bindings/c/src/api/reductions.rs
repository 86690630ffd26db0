//! Reductions by the library's operations on its types, and by functions of the program. The other collectives are in `collectives`.
#![allow(unsafe_code, reason = "exports symbols to C, and takes its pointers")]

use std::ffi::{c_int, c_void};

use tsumuji_collective::{Number, Op, RawOp};

use super::collectives::{filled, operate, rank};
use crate::failure::Failure;
use crate::ffi::{self, Input, Output};
use crate::fold::OwnFold;
use crate::handle::Handle;

/// Element types of reductions: int8_t.
pub const TSUMUJI_INT8: c_int = 1;
/// uint8_t.
pub const TSUMUJI_UINT8: c_int = 2;
/// int16_t.
pub const TSUMUJI_INT16: c_int = 3;
/// uint16_t.
pub const TSUMUJI_UINT16: c_int = 4;
/// int32_t.
pub const TSUMUJI_INT32: c_int = 5;
/// uint32_t.
pub const TSUMUJI_UINT32: c_int = 6;
/// int64_t.
pub const TSUMUJI_INT64: c_int = 7;
/// uint64_t.
pub const TSUMUJI_UINT64: c_int = 8;
/// float.
pub const TSUMUJI_FLOAT: c_int = 9;
/// double.
pub const TSUMUJI_DOUBLE: c_int = 10;

/// Operations on elements: the sum. Integers wrap around; of NaN and a number, minimum and maximum take the number.
pub const TSUMUJI_SUM: c_int = 1;
/// The product.
pub const TSUMUJI_PRODUCT: c_int = 2;
/// The smaller one.
pub const TSUMUJI_MINIMUM: c_int = 3;
/// The larger one.
pub const TSUMUJI_MAXIMUM: c_int = 4;

/// A reduction by a function of the program. Fields after `function` may be zero.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct TsumujiCombine {
    /// sizeof(tsumuji_combine).
    pub size: usize,
    /// Bytes of an element, 1 to 1048576.
    pub element_bytes: usize,
    /// For each of `count` elements: result[i] becomes left[i] combined with right[i]. result is left or right itself, so element i is written after
    /// both were read. All are aligned as elements of that size must be. Called within calls of this library, by their thread; it must not use the
    /// handle (TSUMUJI_EBUSY), leave by longjmp, or throw. It must be associative, as far as floating point is.
    pub function: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            left: *const c_void,
            right: *const c_void,
            result: *mut c_void,
            count: usize,
        ),
    >,
    /// First argument of every call; it must stay valid until the operation is over.
    pub context: *mut c_void,
    /// 0: operands may be exchanged. 1: they may not; left comes from the lower ranks.
    pub ordered: u64,
}

/// The root gets in `receive` the combination of all members' `send`: `count` elements of a type (TSUMUJI_DOUBLE ...), by an operation (TSUMUJI_SUM
/// ...). receive is used on the root only, and must not overlap send (TSUMUJI_EINVAL).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_reduce(
    handle: Handle,
    group: c_int,
    root: c_int,
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    type_: c_int,
    operation: c_int,
    request: *mut u64,
) -> c_int {
    let by = number_op(type_, operation);
    // SAFETY: the header asks for what `reduce` needs.
    unsafe { reduce(handle, group, root, (send, receive, count), by, request) }
}

/// As tsumuji_reduce, by a function of the program; *by is not used after the call has returned. Members compare element_bytes and ordered, but cannot
/// compare functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_reduce_by(
    handle: Handle,
    group: c_int,
    root: c_int,
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    by: *const TsumujiCombine,
    request: *mut u64,
) -> c_int {
    // SAFETY: the header asks for what `own_op` and `reduce` need.
    unsafe {
        reduce(
            handle,
            group,
            root,
            (send, receive, count),
            own_op(by),
            request,
        )
    }
}

/// Replaces `data` on all members by the combination of the elements of all; with the same bits on all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_all_reduce(
    handle: Handle,
    group: c_int,
    data: *mut c_void,
    count: usize,
    type_: c_int,
    operation: c_int,
    request: *mut u64,
) -> c_int {
    let by = number_op(type_, operation);
    // SAFETY: the header asks for what `all_reduce` needs.
    unsafe { all_reduce(handle, group, data, count, by, request) }
}

/// As tsumuji_all_reduce, by a function of the program; *by is not used after the call has returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_all_reduce_by(
    handle: Handle,
    group: c_int,
    data: *mut c_void,
    count: usize,
    by: *const TsumujiCombine,
    request: *mut u64,
) -> c_int {
    // SAFETY: the header asks for what `own_op` and `all_reduce` need.
    unsafe { all_reduce(handle, group, data, count, own_op(by), request) }
}

/// # Safety
/// As `operate`; `count` elements can be read at the first pointer, and on the root written at the second, until the operation is over.
unsafe fn reduce(
    handle: Handle,
    group: c_int,
    root: c_int,
    (send, receive, count): (*const c_void, *mut c_void, usize),
    by: Result<RawOp, Failure>,
    request: *mut u64,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        operate(handle, group, request, |call| {
            let by = by?;
            let bytes = bytes_of(&by, count)?;
            let (root, send) = (rank(root)?, Input::new(send, bytes)?);
            let receive = if root == call.rank {
                Output::new(receive, bytes)?
            } else {
                Output::nothing()
            };
            receive.check_apart(&send)?;
            filled(call.collectives.start_reduce_raw(
                call.endpoint,
                call.group,
                root,
                send,
                receive,
                &by,
            ))
        })
    }
}

/// # Safety
/// As `operate`; `count` elements can be read and written at `data` until the operation is over.
unsafe fn all_reduce(
    handle: Handle,
    group: c_int,
    data: *mut c_void,
    count: usize,
    by: Result<RawOp, Failure>,
    request: *mut u64,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        operate(handle, group, request, |call| {
            let by = by?;
            let data = Output::new(data, bytes_of(&by, count)?)?;
            let (collectives, endpoint) = (call.collectives, call.endpoint);
            filled(collectives.start_all_reduce_raw(endpoint, call.group, data, &by))
        })
    }
}

fn bytes_of(by: &RawOp, count: usize) -> Result<usize, Failure> {
    count
        .checked_mul(by.element_bytes())
        .ok_or_else(|| Failure::invalid("the elements are larger than memory"))
}

/// An operation of the library on one of its types.
fn number_op(type_: c_int, operation: c_int) -> Result<RawOp, Failure> {
    fn of<T: Number>(operation: c_int) -> Result<RawOp, Failure> {
        let op = match operation {
            TSUMUJI_SUM => Op::<T>::sum(),
            TSUMUJI_PRODUCT => Op::product(),
            TSUMUJI_MINIMUM => Op::minimum(),
            TSUMUJI_MAXIMUM => Op::maximum(),
            other => {
                return Err(Failure::invalid(format!(
                    "there is no operation {other}; see TSUMUJI_SUM and its like"
                )));
            }
        };
        Ok(RawOp::from(&op))
    }
    match type_ {
        TSUMUJI_INT8 => of::<i8>(operation),
        TSUMUJI_UINT8 => of::<u8>(operation),
        TSUMUJI_INT16 => of::<i16>(operation),
        TSUMUJI_UINT16 => of::<u16>(operation),
        TSUMUJI_INT32 => of::<i32>(operation),
        TSUMUJI_UINT32 => of::<u32>(operation),
        TSUMUJI_INT64 => of::<i64>(operation),
        TSUMUJI_UINT64 => of::<u64>(operation),
        TSUMUJI_FLOAT => of::<f32>(operation),
        TSUMUJI_DOUBLE => of::<f64>(operation),
        _ => Err(Failure::invalid(format!(
            "there is no type {type_}; see TSUMUJI_DOUBLE and its like"
        ))),
    }
}

/// An operation of the program.
///
/// # Safety
/// `by` is NULL, or its first field can be read and says how much more can.
unsafe fn own_op(by: *const TsumujiCombine) -> Result<RawOp, Failure> {
    if by.is_null() {
        return Err(Failure::invalid("the function's description is NULL"));
    }
    // SAFETY: as the caller promises; all zero is valid: no function, no context.
    let by = unsafe {
        let room = std::ptr::addr_of!((*by).size).read_unaligned();
        ffi::read_struct(by, room)?
    };
    let function = by
        .function
        .ok_or_else(|| Failure::invalid("the function is NULL"))?;
    if by.ordered > 1 {
        return Err(Failure::invalid("accepted for `ordered` are 0 and 1"));
    }
    // SAFETY: the program gave this function for elements of this size, to be called with what `context` was given.
    let own = unsafe { OwnFold::new(function, by.context, by.element_bytes) };
    RawOp::new(
        by.element_bytes,
        by.ordered == 0,
        move |held, incoming, left| {
            own.fold(held, incoming, left);
        },
    )
    .ok_or_else(|| Failure::invalid("elements have 1 to 1048576 bytes"))
}
