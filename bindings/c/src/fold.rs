//! Reductions by functions of the program: calls back into C with aligned elements.
#![allow(unsafe_code, reason = "calls functions that C programs gave")]

use std::ffi::c_void;

/// Largest alignment, that of vector types.
const ALIGN_MOST: usize = 64;

/// Memory aligned for any type.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line(#[allow(dead_code, reason = "reached by a pointer")] [u8; ALIGN_MOST]);

/// Unaligned elements are moved to a buffer in blocks of this size, which fit the first-level cache.
const BLOCK_BYTES: usize = 4096;

type Function = unsafe extern "C" fn(
    context: *mut c_void,
    left: *const c_void,
    right: *const c_void,
    result: *mut c_void,
    count: usize,
);

/// A function of the program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OwnFold {
    function: Function,
    context: *mut c_void,
    element_bytes: usize,
}

// SAFETY: it is called by the thread that owns the handle, and by no other; the program knows which one that is.
unsafe impl Send for OwnFold {}
// SAFETY: as above.
unsafe impl Sync for OwnFold {}

impl OwnFold {
    /// # Safety
    /// The function may be called with this context and any number of elements of this size, until the last copy is dropped.
    pub(crate) unsafe fn new(
        function: Function,
        context: *mut c_void,
        element_bytes: usize,
    ) -> Self {
        Self {
            function,
            context,
            element_bytes,
        }
    }

    /// Alignment of elements: sizes are multiples of alignments, so no type of this size needs more.
    fn align(&self) -> usize {
        1 << (self.element_bytes.trailing_zeros()).min(ALIGN_MOST.trailing_zeros())
    }

    /// Folds `incoming` into `held`; both have one length, a multiple of the element's. `left`: `incoming` is the left operand.
    pub(crate) fn fold(&self, held: &mut [u8], incoming: &[u8], left: bool) {
        let askew = |at: *const u8| !at.addr().is_multiple_of(self.align());
        if !askew(held.as_ptr()) && !askew(incoming.as_ptr()) {
            return self.call(held, incoming, left);
        }
        let step = (BLOCK_BYTES / self.element_bytes).max(1) * self.element_bytes;
        let lines = 2 * step.div_ceil(ALIGN_MOST);
        let mut small = [Line([0; ALIGN_MOST]); 2 * BLOCK_BYTES / ALIGN_MOST];
        let mut large = Vec::new(); // for elements larger than a block
        let block: &mut [Line] = if lines <= small.len() {
            &mut small
        } else {
            large.resize(lines, Line([0; ALIGN_MOST]));
            &mut large
        };
        let (a, b) = block.split_at_mut(block.len() / 2);
        let (a, b) = (as_bytes(a), as_bytes(b));
        for (held, incoming) in held.chunks_mut(step).zip(incoming.chunks(step)) {
            let (a, b) = (&mut a[..held.len()], &mut b[..incoming.len()]);
            a.copy_from_slice(held);
            b.copy_from_slice(incoming);
            self.call(a, b, left);
            held.copy_from_slice(a);
        }
    }

    fn call(&self, held: &mut [u8], incoming: &[u8], left: bool) {
        let count = held.len().min(incoming.len()) / self.element_bytes;
        let (result, other) = (held.as_mut_ptr().cast::<c_void>(), incoming.as_ptr().cast());
        let own = result.cast_const();
        let (a, b) = if left { (other, own) } else { (own, other) };
        // SAFETY: `count` elements are at each pointer, the caller of `new` promised the rest; `result` may be written, and is reached by raw
        // pointers only while the function runs.
        unsafe { (self.function)(self.context, a, b, result, count) }
    }
}

fn as_bytes(lines: &mut [Line]) -> &mut [u8] {
    // SAFETY: a line is an array of bytes, as large as its alignment, so without padding; the borrow is passed on.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), size_of_val(lines)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// result = 10 · left + right, for 64-bit words; counts elements in the context, and checks alignment.
    unsafe extern "C" fn digits(
        context: *mut c_void,
        left: *const c_void,
        right: *const c_void,
        result: *mut c_void,
        count: usize,
    ) {
        for at in [left, right, result.cast_const()] {
            assert!(at.addr().is_multiple_of(8));
        }
        // SAFETY: what `fold` gives, checked to be aligned; the context is a counter.
        unsafe {
            *context.cast::<usize>() += count;
            for place in 0..count {
                let (a, b) = (
                    *left.cast::<u64>().add(place),
                    *right.cast::<u64>().add(place),
                );
                *result.cast::<u64>().add(place) = a.wrapping_mul(10).wrapping_add(b);
            }
        }
    }

    /// At every address and length the function sees each element once, aligned, and with the operands in order.
    #[test]
    fn functions_see_aligned_elements() {
        let words = |count: usize, first: u64| (first..).take(count).flat_map(u64::to_le_bytes);
        for count in [0, 1, 511, 512, 513, 2000] {
            for (shift_a, shift_b, left) in
                [(0, 0, true), (1, 0, false), (3, 8, true), (8, 5, false)]
            {
                let mut counted = 0_usize;
                let context = std::ptr::from_mut(&mut counted).cast();
                // SAFETY: `digits` takes any words and a counter.
                let own = unsafe { OwnFold::new(digits, context, 8) };
                let mut held: Vec<u8> = vec![0; shift_a];
                held.extend(words(count, 3));
                let mut incoming: Vec<u8> = vec![0; shift_b];
                incoming.extend(words(count, 1000));
                own.fold(&mut held[shift_a..], &incoming[shift_b..], left);
                assert_eq!(counted, count);
                for (place, found) in (0_u64..).zip(held[shift_a..].chunks(8)) {
                    let (a, b) = (3 + place, 1000 + place);
                    let wanted = if left { 10 * b + a } else { 10 * a + b };
                    assert_eq!(found, wanted.to_le_bytes());
                }
            }
        }
    }

    /// Counts elements in the context, and checks the alignment of vector types.
    unsafe extern "C" fn wide(
        context: *mut c_void,
        left: *const c_void,
        right: *const c_void,
        result: *mut c_void,
        count: usize,
    ) {
        for at in [left, right, result.cast_const()] {
            assert!(at.addr().is_multiple_of(64));
        }
        // SAFETY: the context is a counter.
        unsafe { *context.cast::<usize>() += count }
    }

    /// Elements of 64 bytes are passed at multiples of 64, from any address.
    #[test]
    fn wide_elements_lie_well() {
        for shift in [0, 8, 16, 32] {
            let mut counted = 0_usize;
            let context = std::ptr::from_mut(&mut counted).cast();
            // SAFETY: `wide` takes any bytes and a counter.
            let own = unsafe { OwnFold::new(wide, context, 64) };
            let (mut held, incoming) = (vec![0; shift + 100 * 64], vec![0; 100 * 64]);
            own.fold(&mut held[shift..], &incoming, true);
            assert_eq!(counted, 100);
        }
    }

    /// The size of elements determines their alignment.
    #[test]
    fn alignment_follows_size() {
        for (bytes, align) in [
            (1, 1),
            (6, 2),
            (12, 4),
            (24, 8),
            (48, 16),
            (32, 32),
            (4096, 64),
        ] {
            // SAFETY: it is not called.
            let own = unsafe { OwnFold::new(digits, std::ptr::null_mut(), bytes) };
            assert_eq!(own.align(), align);
        }
    }
}
