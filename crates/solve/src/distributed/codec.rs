//! Little-endian numbers into bytes and back, for `message`. Reading never panics: what is missing is `None`.

/// Appends numbers.
#[derive(Debug, Default)]
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    pub(super) fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(super) fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    pub(super) fn f64(&mut self, value: f64) -> &mut Self {
        self.u64(value.to_bits())
    }

    pub(super) fn f64s(&mut self, values: &[f64]) -> &mut Self {
        self.0.reserve(size_of_val(values));
        for value in values {
            self.f64(*value);
        }
        self
    }

    /// With its length before it. A longer one is cut, in the middle of a character if need be.
    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        let bytes = &text.as_bytes()[..text.len().min(TEXT_LIMIT_BYTES)];
        self.u32(bytes.len() as u32);
        self.0.extend_from_slice(bytes);
        self
    }
}

/// Longest text in a message: an error's line, a path.
pub(super) const TEXT_LIMIT_BYTES: usize = 16 << 10;

/// Takes numbers from the front.
#[derive(Debug)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    pub(super) fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    pub(super) fn usize(&mut self) -> Option<usize> {
        self.u64()?.try_into().ok()
    }

    pub(super) fn f64(&mut self) -> Option<f64> {
        self.u64().map(f64::from_bits)
    }

    /// The rest, as bytes.
    pub(super) fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// The rest, as whole numbers of 8 bytes.
    pub(super) fn rest_f64s(&mut self) -> Option<Vec<f64>> {
        let (numbers, odd) = self.rest().as_chunks::<8>();
        odd.is_empty().then(|| {
            numbers
                .iter()
                .map(|bytes| f64::from_le_bytes(*bytes))
                .collect()
        })
    }

    pub(super) fn text(&mut self) -> Option<String> {
        let length = self.u32()? as usize;
        if length > TEXT_LIMIT_BYTES {
            return None;
        }
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(String::from_utf8_lossy(text).into_owned())
    }

    /// `count` items, each at least one byte long: a count that cannot be is refused before memory is taken for it.
    pub(super) fn many<T>(
        &mut self,
        mut item: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<Vec<T>> {
        let count = self.u32()? as usize;
        if count > self.0.len() {
            return None;
        }
        (0..count).map(|_| item(self)).collect()
    }

    /// `Some` if nothing is left.
    pub(super) fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}
