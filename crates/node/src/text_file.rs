//! Small text files that people write, such as cluster files: read whole up to a limit; errors are located by line.

use std::io::{self, Read};
use std::path::Path;

/// Reads the whole file; `None`: it is longer than `limit_bytes`. Does not rely on its stated size, which pipes and devices do not have.
pub fn read(path: &Path, limit_bytes: u64) -> io::Result<Option<String>> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path)?;
    let read = file.take(limit_bytes + 1).read_to_end(&mut bytes)?;
    if read as u64 > limit_bytes {
        return Ok(None);
    }
    let text = String::from_utf8(bytes);
    let text = text.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8"))?;
    Ok(Some(text))
}

/// The line, from 1, in which the byte at `offset` lies.
pub fn line_of(text: &str, offset: usize) -> usize {
    let before = text.bytes().take(offset);
    1 + before.filter(|byte| *byte == b'\n').count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file is read up to its limit, and an endless one is refused.
    #[test]
    fn files_have_limits() {
        let path = std::env::temp_dir().join(format!("tsumuji-text-{}", std::process::id()));
        std::fs::write(&path, "one\ntwo").expect("written");
        assert_eq!(read(&path, 7).expect("read").as_deref(), Some("one\ntwo"));
        assert_eq!(read(&path, 6).expect("read"), None);
        std::fs::write(&path, b"\xff").expect("written");
        assert!(read(&path, 7).is_err());
        std::fs::remove_file(&path).expect("removed");
        assert_eq!(read(Path::new("/dev/zero"), 100).expect("read"), None);
        assert_eq!(
            (line_of("a\nb", 0), line_of("a\nb", 1), line_of("a\nb", 99)),
            (1, 1, 2)
        );
    }
}
