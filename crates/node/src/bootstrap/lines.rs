//! Cuts a worker's output into whole lines, tagged with its name if wanted, and keeps the last ones for reports.
//!
//! Used by `keeper` for each pipe of a worker; the result goes to `output`. Input may be any bytes: endless lines are cut, and lines kept for reports
//! are bounded and printable.

use std::collections::VecDeque;

use crate::error::presentable;

/// A line longer than this is passed on in pieces, between which those of other workers may come.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Lines kept for the report of a failure.
const LAST_LINES: usize = 5;
/// Bytes kept of each of these lines.
const LAST_LINE_BYTES: usize = 300;

/// Cuts one stream of bytes into lines.
#[derive(Debug)]
pub(super) struct Lines {
    /// Prefix of each line; `None`: lines are passed on unchanged.
    tag: Option<String>,
    partial: Vec<u8>,
    last: VecDeque<Vec<u8>>,
}

impl Lines {
    /// `tag` is put before each line, with a colon between.
    pub(super) fn new(tag: Option<&str>) -> Self {
        Self {
            tag: tag.map(|tag| format!("{tag}: ")),
            partial: Vec::new(),
            last: VecDeque::with_capacity(LAST_LINES),
        }
    }

    /// Takes input and appends complete lines to `block`.
    pub(super) fn feed(&mut self, mut bytes: &[u8], block: &mut Vec<u8>) {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let (line, rest) = bytes.split_at(end);
            self.partial.extend_from_slice(line);
            self.emit(true, block);
            bytes = &rest[1..];
        }
        self.partial.extend_from_slice(bytes);
        while self.partial.len() >= LINE_BYTES_MAX {
            let rest = self.partial.split_off(LINE_BYTES_MAX);
            self.emit(false, block);
            self.partial = rest;
        }
    }

    /// End of input: passes on a last line without newline.
    pub(super) fn finish(&mut self, block: &mut Vec<u8>) {
        if !self.partial.is_empty() {
            self.emit(false, block);
        }
    }

    fn emit(&mut self, ended: bool, block: &mut Vec<u8>) {
        if let Some(tag) = &self.tag {
            block.extend_from_slice(tag.as_bytes());
        }
        block.extend_from_slice(&self.partial);
        // A tagged line always gets a newline, so that the next tag begins a line; untagged output stays unchanged.
        if ended || self.tag.is_some() {
            block.push(b'\n');
        }
        if !self.partial.trim_ascii().is_empty() {
            if self.last.len() == LAST_LINES {
                self.last.pop_front();
            }
            let kept = self.partial.len().min(LAST_LINE_BYTES);
            self.last.push_back(self.partial[..kept].to_vec());
        }
        self.partial.clear();
    }

    /// The last lines that were not empty, oldest first, fit to be shown.
    pub(super) fn last_lines(&self) -> Vec<String> {
        let lines = self.last.iter();
        lines
            .map(|line| presentable(&String::from_utf8_lossy(line)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fed(tag: Option<&str>, pieces: &[&[u8]]) -> (String, Vec<String>) {
        let mut lines = Lines::new(tag);
        let mut block = Vec::new();
        for piece in pieces {
            lines.feed(piece, &mut block);
        }
        lines.finish(&mut block);
        (
            String::from_utf8_lossy(&block).into_owned(),
            lines.last_lines(),
        )
    }

    /// Lines come out whole for any pieces of input, tagged or byte for byte.
    #[test]
    fn lines_are_whole() {
        let pieces: [&[u8]; 4] = [b"one\ntw", b"o", b"\n\nthr", b"ee"];
        let (text, last) = fed(Some("worker 2"), &pieces);
        assert_eq!(
            text,
            "worker 2: one\nworker 2: two\nworker 2: \nworker 2: three\n"
        );
        assert_eq!(last, ["one", "two", "three"]);
        assert_eq!(fed(None, &pieces).0, "one\ntwo\n\nthree");
    }

    /// Nothing comes out before a line is complete, and an endless line is cut.
    #[test]
    fn partial_lines_are_bounded() {
        let mut lines = Lines::new(None);
        let mut block = Vec::new();
        lines.feed(b"no end yet", &mut block);
        assert!(block.is_empty());
        for _ in 0..100 {
            lines.feed(&[b'x'; 10_000], &mut block);
            assert!(lines.partial.len() < LINE_BYTES_MAX);
        }
        lines.finish(&mut block);
        assert_eq!(block.len(), 10 + 100 * 10_000);
    }

    /// The last lines are few, short and printable for any output.
    #[test]
    fn last_words_are_bounded() {
        let mut noise: Vec<u8> = (0..100_000_u32).map(|i| (i * 7 % 256) as u8).collect();
        noise.extend_from_slice(&[b'y'; 5000]);
        let (_, last) = fed(Some("w"), &[&noise]);
        assert!(last.len() <= LAST_LINES);
        for line in last {
            // An invalid byte becomes a replacement character of three bytes.
            assert!(line.len() <= 3 * LAST_LINE_BYTES && !line.contains(char::is_control));
        }
    }
}
