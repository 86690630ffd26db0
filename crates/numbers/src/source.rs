//! A file as a stream of bytes: opened, decompressed, and bounded by its length and by the memory there is.

use super::{FileError, Place, memory};
use flate2::bufread::MultiGzDecoder;
use std::fs::File;
use std::io::{BufRead, BufReader, Cursor, Read};
use std::path::Path;

/// Buffer of a reader: large against a system call.
const BUFFER_BYTES: usize = 1 << 18;
/// First bytes of a gzip stream.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
/// Some programs put it before text in UTF-8; no format of numbers begins so.
const BYTE_ORDER_MARK: [u8; 3] = [0xef, 0xbb, 0xbf];
/// No gzip stream grows by more than this factor.
const GZIP_FACTOR: u64 = 1032;
/// Bytes between two words on how far reading is.
const TELL_BYTES: u64 = 4 << 20;

/// A file that is being read, and what bounds the memory that it may take.
#[derive(Debug, Clone)]
pub struct Source {
    /// Name for messages.
    pub file: String,
    /// Most bytes that the readers get; of compressed files only a bound.
    pub length_bytes: u64,
    /// Most memory that the result may take.
    pub memory_limit_bytes: u64,
}

impl Source {
    /// Opens a file, and decompresses it if it begins as gzip does. `seen` is told the part of it that has been read, now and then.
    pub fn open<'a>(
        path: &Path,
        seen: impl FnMut(f64) + 'a,
    ) -> Result<(Self, Box<dyn BufRead + 'a>), FileError> {
        let mut source = Self {
            file: path.display().to_string(),
            length_bytes: u64::MAX / GZIP_FACTOR,
            memory_limit_bytes: memory::available_bytes().unwrap_or(u64::MAX),
        };
        let file = File::open(path).map_err(|error| source.io(error))?;
        let metadata = file.metadata().map_err(|error| source.io(error))?;
        if metadata.is_dir() {
            return Err(source.io(std::io::Error::other("it is a directory")));
        }
        // A pipe has no length, and a file of the kernel's says 0: only the arriving data count.
        if metadata.is_file() && metadata.len() > 0 {
            source.length_bytes = metadata.len();
        }
        let watched = Watched {
            file,
            length: source.length_bytes,
            done: 0,
            told: 0,
            seen,
        };
        let reader = source.unpack(BufReader::with_capacity(BUFFER_BYTES, watched))?;
        Ok((source, reader))
    }

    /// The content, decompressed if it begins as gzip does, without the mark that may stand before text.
    pub fn unpack<'a>(
        &mut self,
        reader: impl BufRead + 'a,
    ) -> Result<Box<dyn BufRead + 'a>, FileError> {
        let (mut first, mut reader) = self.peek(reader, BYTE_ORDER_MARK.len())?;
        if first.starts_with(&GZIP_MAGIC) {
            self.length_bytes = self.length_bytes.saturating_mul(GZIP_FACTOR);
            let decoder = BufReader::with_capacity(BUFFER_BYTES, MultiGzDecoder::new(reader));
            (first, reader) = self.peek(decoder, BYTE_ORDER_MARK.len())?;
        }
        if first == BYTE_ORDER_MARK {
            reader.consume(first.len());
        }
        Ok(reader)
    }

    /// The first `count` bytes, fewer only at the end, and a reader that still has them.
    pub fn peek<'a>(
        &self,
        mut reader: impl BufRead + 'a,
        count: usize,
    ) -> Result<(Vec<u8>, Box<dyn BufRead + 'a>), FileError> {
        let mut first = Vec::with_capacity(count);
        let read = (&mut reader).take(count as u64).read_to_end(&mut first);
        read.map_err(|error| self.io(error))?;
        let whole: Box<dyn BufRead + 'a> = Box::new(Cursor::new(first.clone()).chain(reader));
        Ok((first, whole))
    }

    /// A compressed part of this file, `name` in messages.
    pub fn part(&self, name: &str) -> Self {
        Self {
            file: format!("{}: {name}", self.file),
            length_bytes: self.length_bytes.saturating_mul(GZIP_FACTOR),
            memory_limit_bytes: self.memory_limit_bytes,
        }
    }

    /// An error of the content.
    pub fn error(&self, place: Place, what: impl Into<String>) -> FileError {
        FileError::new(&self.file, place, what)
    }

    /// An error of the system, or of the decompression.
    pub fn io(&self, source: std::io::Error) -> FileError {
        FileError::io(&self.file, source)
    }

    /// Refuses content that would not fit into memory.
    pub fn check_memory(&self, place: Place, needed_bytes: u128) -> Result<(), FileError> {
        let limit = u128::from(self.memory_limit_bytes);
        if needed_bytes <= limit {
            return Ok(());
        }
        let (needed, limit) = (memory::human(needed_bytes), memory::human(limit));
        let what = format!("{needed} of data are more than the {limit} of memory available");
        Err(self.error(place, what))
    }
}

/// Tells how much of a file has been read.
struct Watched<F> {
    file: File,
    length: u64,
    done: u64,
    told: u64,
    seen: F,
}

impl<F: FnMut(f64)> Read for Watched<F> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.done += read as u64;
        if self.done - self.told >= TELL_BYTES {
            self.told = self.done;
            (self.seen)(self.done as f64 / self.length as f64);
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// A large file is watched, compressed ones are unpacked, also where several streams follow one another; what was looked at is not lost.
    #[test]
    fn files_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let bytes = vec![7_u8; TELL_BYTES as usize + 1];
        std::fs::write(&path, &bytes).unwrap();
        let mut parts = Vec::new();
        let (source, mut reader) = Source::open(&path, |part| parts.push(part)).unwrap();
        let mut read = Vec::new();
        reader.read_to_end(&mut read).unwrap();
        drop(reader);
        assert!(read == bytes && source.length_bytes == TELL_BYTES + 1);
        assert!(parts.len() == 1 && parts[0] <= 1.0, "{parts:?}");

        let packed = |text: &[u8]| {
            let level = flate2::Compression::fast();
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), level);
            encoder.write_all(text).unwrap();
            encoder.finish().unwrap()
        };
        let both = [packed(b"one "), packed(b"two")].concat();
        std::fs::write(&path, &both).unwrap();
        let (source, reader) = Source::open(&path, |_| ()).unwrap();
        assert_eq!(source.length_bytes, both.len() as u64 * GZIP_FACTOR);
        let (first, mut reader) = source.peek(reader, 5).unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!((&first[..], &text[..]), (&b"one t"[..], "one two"));

        let marked = [&BYTE_ORDER_MARK[..], b"x"].concat();
        for bytes in [packed(&marked), marked] {
            std::fs::write(&path, &bytes).unwrap();
            let (_, mut reader) = Source::open(&path, |_| ()).unwrap();
            text.clear();
            reader.read_to_string(&mut text).unwrap();
            assert_eq!(text, "x");
        }
    }

    /// What does not fit into memory is refused with both sizes.
    #[test]
    fn memory_is_checked() {
        let source = Source {
            file: "a".into(),
            length_bytes: 0,
            memory_limit_bytes: 1000,
        };
        assert!(source.check_memory(Place::Whole, 1000).is_ok());
        let error = source.part("x").check_memory(Place::Header, 8_000_000);
        assert_eq!(
            error.unwrap_err().to_string(),
            "a: x: header: 8.0 MB of data are more than the 1.0 kB of memory available"
        );
    }
}
