//! Elements of plain memory, the memory that holds them, and operations on two of them.
//!
//! Used by `api`, which turns typed slices into bytes; `operation` folds bytes without knowing their type.
//!
//! Invariant: a fold always computes `f(left, right)` with the lower ranks on the left, so that all members that compute the same partial result get
//! the same bits.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::tuning::TUNING;

/// Plain memory that can be sent unchanged: numbers, arrays of them, structures that derive zerocopy's traits.
///
/// Elements are sent as they are in memory, so all members must have the same byte order (all supported machines are little-endian).
pub trait Element: FromBytes + IntoBytes + Immutable + Copy + Send + Sync + 'static {}

impl<T: FromBytes + IntoBytes + Immutable + Copy + Send + Sync + 'static> Element for T {}

/// Memory of a non-blocking operation's elements.
pub trait Memory: Any + Send {
    /// The whole memory.
    fn bytes(&self) -> &[u8];
    /// The whole memory, to be written.
    fn bytes_mut(&mut self) -> &mut [u8];
}

impl<T: Element> Memory for Vec<T> {
    fn bytes(&self) -> &[u8] {
        self.as_slice().as_bytes()
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        self.as_mut_slice().as_mut_bytes()
    }
}

/// Numbers with sum, product, minimum and maximum. Integers wrap around. Of NaN and a number, minimum and maximum return the number.
pub trait Number: Element {
    /// Tells numbers of one size apart in what members compare; 0 for types of programs.
    #[doc(hidden)]
    const KIND: u8 = 0;

    /// a + b.
    fn sum(a: Self, b: Self) -> Self;
    /// a · b.
    fn product(a: Self, b: Self) -> Self;
    /// The smaller one.
    fn minimum(a: Self, b: Self) -> Self;
    /// The larger one.
    fn maximum(a: Self, b: Self) -> Self;
}

macro_rules! number {
    ($kind:literal $add:ident $multiply:ident: $($type:ty)*) => {$(
        impl Number for $type {
            const KIND: u8 = $kind;
            #[inline]
            fn sum(a: Self, b: Self) -> Self { a.$add(b) }
            #[inline]
            fn product(a: Self, b: Self) -> Self { a.$multiply(b) }
            #[inline]
            fn minimum(a: Self, b: Self) -> Self { a.min(b) }
            #[inline]
            fn maximum(a: Self, b: Self) -> Self { a.max(b) }
        }
    )*};
}
number!(1 wrapping_add wrapping_mul: u8 u16 u32 u64 usize);
number!(2 wrapping_add wrapping_mul: i8 i16 i32 i64 isize);
use std::ops::{Add, Mul};
number!(3 add mul: f32 f64);

/// Folds elements: those held, which become the result; those that come in; and whether the latter are the left operands.
type CombineFn<T> = dyn Fn(&mut [T], &[T], bool) + Send + Sync;
type Combine<T> = Arc<CombineFn<T>>;

/// As `CombineFn`, on bytes.
pub(crate) type Fold = Arc<dyn Fn(&mut [u8], &[u8], bool) + Send + Sync>;

/// Largest element that can be folded, in bytes: several are read and folded in one poll (`operation`).
pub const ELEMENT_BYTES_MAX: usize = 1 << 20;

/// An operation on two elements as bytes: for elements without a Rust type. Every [`Op`] can be converted to one.
#[derive(Clone)]
pub struct RawOp {
    pub(crate) fold: Fold,
    /// Bytes of an element.
    pub(crate) unit: usize,
    pub(crate) commutative: bool,
    /// As that of [`Op`].
    name: u16,
}

impl fmt::Debug for RawOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawOp")
            .field("unit", &self.unit)
            .field("commutative", &self.commutative)
            .finish_non_exhaustive()
    }
}

impl RawOp {
    /// Makes an operation on elements of 1 to [`ELEMENT_BYTES_MAX`] bytes; other sizes give `None`.
    ///
    /// `fold` gets elements that it replaces by the result, as many others, and whether those others are the left operands. Both may be unaligned. It
    /// must be associative, and if `commutative` is set also commutative.
    pub fn new(
        element_bytes: usize,
        commutative: bool,
        fold: impl Fn(&mut [u8], &[u8], bool) + Send + Sync + 'static,
    ) -> Option<Self> {
        (1..=ELEMENT_BYTES_MAX)
            .contains(&element_bytes)
            .then(|| Self {
                fold: Arc::new(fold),
                unit: element_bytes,
                commutative,
                name: 0,
            })
    }

    /// Bytes of an element.
    pub fn element_bytes(&self) -> usize {
        self.unit
    }

    /// What all members must agree on: operation and type as far as they are known, size of an element, and whether operands may be exchanged.
    pub(crate) fn digest(&self) -> u64 {
        u64::from(self.name) << 32 | (self.unit as u64) << 1 | u64::from(self.commutative)
    }
}

impl<T: Element> From<&Op<T>> for RawOp {
    fn from(op: &Op<T>) -> Self {
        Self {
            fold: op.fold(),
            unit: size_of::<T>(),
            commutative: op.commutative,
            name: op.name,
        }
    }
}

/// An operation on two elements.
pub struct Op<T> {
    combine: Combine<T>,
    commutative: bool,
    /// Of the crate's own operations: kind of the number, and number of the operation. 0 for functions of programs.
    name: u16,
}

impl<T> Clone for Op<T> {
    fn clone(&self) -> Self {
        Self {
            combine: Arc::clone(&self.combine),
            commutative: self.commutative,
            name: self.name,
        }
    }
}

impl<T> fmt::Debug for Op<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Op")
            .field("commutative", &self.commutative)
            .finish_non_exhaustive()
    }
}

impl<T: Number> Op<T> {
    /// The sum.
    pub fn sum() -> Self {
        Self::named(1, T::sum)
    }
    /// The product.
    pub fn product() -> Self {
        Self::named(2, T::product)
    }
    /// The least.
    pub fn minimum() -> Self {
        Self::named(3, T::minimum)
    }
    /// The greatest.
    pub fn maximum() -> Self {
        Self::named(4, T::maximum)
    }

    fn named(operation: u8, f: impl Fn(T, T) -> T + Send + Sync + 'static) -> Self {
        Self {
            name: u16::from_be_bytes([T::KIND, operation]),
            ..Self::new(true, f)
        }
    }
}

impl<T: Element> Op<T> {
    /// A commutative operation of the program. It must be associative (as far as floating point is). Members whose functions differ are found out only
    /// if the sizes of their elements do, or if others are `ordered`.
    pub fn commutative(f: impl Fn(T, T) -> T + Send + Sync + 'static) -> Self {
        Self::new(true, f)
    }

    /// As `commutative`, but operands are not exchanged: the result is that of ranks 0, 1, 2 … in this order.
    pub fn ordered(f: impl Fn(T, T) -> T + Send + Sync + 'static) -> Self {
        Self::new(false, f)
    }

    fn new(commutative: bool, f: impl Fn(T, T) -> T + Send + Sync + 'static) -> Self {
        let combine = move |held: &mut [T], incoming: &[T], incoming_left: bool| {
            if incoming_left {
                for (held, incoming) in held.iter_mut().zip(incoming) {
                    *held = f(*incoming, *held);
                }
            } else {
                for (held, incoming) in held.iter_mut().zip(incoming) {
                    *held = f(*held, *incoming);
                }
            }
        };
        Self {
            combine: Arc::new(combine),
            commutative,
            name: 0,
        }
    }

    /// The operation on bytes: both slices have one length, a multiple of the element's.
    pub(crate) fn fold(&self) -> Fold {
        const {
            assert!(size_of::<T>() > 0, "elements without bytes cannot travel");
            assert!(
                size_of::<T>() <= ELEMENT_BYTES_MAX,
                "elements are larger than ELEMENT_BYTES_MAX"
            );
        }
        let combine = Arc::clone(&self.combine);
        Arc::new(move |held, incoming, left| {
            if let Ok(held) = <[T]>::mut_from_bytes(held)
                && let Ok(incoming) = <[T]>::ref_from_bytes(incoming)
            {
                combine(held, incoming, left);
                return;
            }
            fold_unaligned(&*combine, held, incoming, left);
        })
    }
}

fn fold_unaligned<T: Element>(
    combine: &CombineFn<T>,
    held: &mut [u8],
    incoming: &[u8],
    left: bool,
) {
    const ELEMENTS: usize = TUNING.long.unaligned_elements;
    let (mut a, mut b) = ([T::new_zeroed(); ELEMENTS], [T::new_zeroed(); ELEMENTS]);
    let step = ELEMENTS * size_of::<T>();
    for (held, incoming) in held.chunks_mut(step).zip(incoming.chunks(step)) {
        let count = held.len().min(incoming.len()) / size_of::<T>();
        let bytes = count * size_of::<T>();
        a[..count].as_mut_bytes().copy_from_slice(&held[..bytes]);
        b[..count]
            .as_mut_bytes()
            .copy_from_slice(&incoming[..bytes]);
        combine(&mut a[..count], &b[..count], left);
        held[..bytes].copy_from_slice(a[..count].as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Elements of zero bytes, and those too large for one poll, are refused.
    #[test]
    fn raw_elements_have_bounds() {
        for (bytes, taken) in [
            (0, false),
            (1, true),
            (ELEMENT_BYTES_MAX, true),
            (ELEMENT_BYTES_MAX + 1, false),
        ] {
            assert_eq!(
                RawOp::new(bytes, true, |_, _, _| {}).is_some(),
                taken,
                "{bytes}"
            );
        }
    }

    /// What members compare tells apart operations, types of one size, sizes, and whether operands may be exchanged; all functions of programs are alike.
    #[test]
    fn operations_are_told_apart() {
        fn digest<T: Element>(op: &Op<T>) -> u64 {
            RawOp::from(op).digest()
        }
        let own = |bytes, commutative| {
            let op = RawOp::new(bytes, commutative, |_, _, _| {});
            op.expect("within bounds").digest()
        };
        let all = [
            digest(&Op::<f64>::sum()),
            digest(&Op::<f64>::product()),
            digest(&Op::<f64>::minimum()),
            digest(&Op::<f64>::maximum()),
            digest(&Op::<f32>::sum()),
            digest(&Op::<i64>::sum()),
            digest(&Op::<u64>::sum()),
            own(8, true),
            own(8, false),
            own(16, true),
            own(ELEMENT_BYTES_MAX, true),
        ];
        for (place, one) in all.iter().enumerate() {
            assert!(!all[..place].contains(one), "{place}");
        }
        let plus = Op::commutative(|a: u64, b: u64| a.wrapping_add(b));
        assert_eq!(digest(&plus), own(8, true));
        assert_eq!(digest(&plus.clone()), digest(&plus));
        assert_eq!(
            digest(&Op::<usize>::sum().clone()),
            digest(&Op::<u64>::sum())
        );
    }

    /// Unaligned bytes fold like aligned ones, and the flag selects the left operand.
    #[test]
    fn folds_at_any_address() {
        let minus = Op::ordered(|a: i64, b: i64| a.wrapping_sub(b));
        let fold = minus.fold();
        let (held, incoming): (Vec<i64>, Vec<i64>) = (0..200).map(|i| (i * 7, i * i)).unzip();
        for shift in 0..9 {
            for left in [false, true] {
                let mut a = vec![0; shift];
                a.extend_from_slice(held.as_bytes());
                let mut b = vec![0; 2 * shift + 1];
                b.extend_from_slice(incoming.as_bytes());
                fold(&mut a[shift..], &b[2 * shift + 1..], left);
                let want: Vec<i64> = (0..200)
                    .map(|i| if left { i * i - i * 7 } else { i * 7 - i * i })
                    .collect();
                assert_eq!(&a[shift..], want.as_bytes(), "shift {shift}, left {left}");
            }
        }
    }
}
