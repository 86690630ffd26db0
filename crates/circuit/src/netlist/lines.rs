//! Logical lines of a netlist: comments removed, continuations joined, letters in lower case, files included.
//!
//! `reader` asks for one line after the other. A line that begins with `+` continues the one before, over comments and empty lines between them. `*`
//! at the beginning of a line, `;`, and `$` after a blank begin comments. Of an included file no line is a title.
//!
//! Invariant: no more than two physical lines of each open file are in memory, each of [`LONGEST_LINE_BYTES`] at most, and files of [`MOST_FILES`]
//! deep.

use super::{Origin, quoted};
use std::io::{BufRead, Read};
use std::path::{Component, Path, PathBuf};
use tsumuji_numbers::{FileError, Place, Source};

/// Longest logical line: enough for the points of any source, not for a file without ends of lines.
const LONGEST_LINE_BYTES: usize = 1 << 20;
/// Deepest nesting of included files.
const MOST_FILES: usize = 8;
/// Most included files altogether: a file may be included many times.
const MOST_INCLUDES: usize = 1000;

/// One open file.
struct Open<'a> {
    reader: Box<dyn BufRead + 'a>,
    file: u16,
    /// The line that is read next, counted from 1.
    line: u32,
    /// The beginning of the next logical line, if it has been read.
    next: Vec<u8>,
    next_line: u32,
    has_next: bool,
}

/// The files being read, the innermost last.
pub(super) struct Lines<'a> {
    open: Vec<Open<'a>>,
    /// Names for messages.
    files: Vec<String>,
    /// The folder beneath which files may be included. `None`: nothing may.
    folder: Option<PathBuf>,
    bytes_left: u64,
}

impl<'a> Lines<'a> {
    /// Reads `reader`, called `name` in messages; files are included from `folder` and below.
    pub(super) fn new(
        name: &str,
        reader: Box<dyn BufRead + 'a>,
        folder: Option<PathBuf>,
        most_bytes: u64,
    ) -> Self {
        Self {
            open: vec![Open::new(reader, 0)],
            files: vec![name.to_owned()],
            folder,
            bytes_left: most_bytes,
        }
    }

    /// The name of a file.
    pub(super) fn file(&self, origin: Origin) -> &str {
        &self.files[origin.file as usize]
    }

    /// An error at a place.
    pub(super) fn error(&self, origin: Origin, what: impl Into<String>) -> FileError {
        FileError::new(self.file(origin), Place::Line(origin.line.into()), what)
    }

    /// The first line of the netlist, which is its title whatever it holds.
    pub(super) fn title(&mut self) -> Result<String, FileError> {
        let mut bytes = Vec::new();
        self.physical(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// Puts the next logical line into `text`, which it empties before. `None` at the end of all files.
    pub(super) fn next(&mut self, text: &mut String) -> Result<Option<Origin>, FileError> {
        text.clear();
        let mut bytes = Vec::new();
        loop {
            let Some(open) = self.open.last_mut() else {
                return Ok(None);
            };
            if open.has_next {
                open.has_next = false;
                bytes.append(&mut open.next);
            } else if !self.physical(&mut bytes)? {
                self.open.pop();
                continue;
            }
            let open = self.open.last_mut().expect("a line was read from it");
            let origin = Origin {
                file: open.file,
                line: open.next_line,
            };
            if is_blank(&bytes) {
                bytes.clear();
                continue;
            }
            if bytes.trim_ascii_start().starts_with(b"+") {
                return Err(self.error(
                    origin,
                    "a line that begins with '+' continues another, but there is none before it",
                ));
            }
            strip_comment(&mut bytes);
            self.continuations(&mut bytes, origin)?;
            self.decode(std::mem::take(&mut bytes), origin, text)?;
            // Blanks beyond ASCII are blanks, too.
            if !text.trim().is_empty() {
                return Ok(Some(origin));
            }
        }
    }

    /// Appends to `bytes` the lines that continue it; keeps the one that does not.
    fn continuations(&mut self, bytes: &mut Vec<u8>, origin: Origin) -> Result<(), FileError> {
        let mut more = Vec::new();
        loop {
            more.clear();
            if !self.physical(&mut more)? {
                return Ok(());
            }
            if is_blank(&more) {
                continue;
            }
            let open = self.open.last_mut().expect("a line was read from it");
            if !more.trim_ascii_start().starts_with(b"+") {
                open.has_next = true;
                std::mem::swap(&mut open.next, &mut more);
                return Ok(());
            }
            strip_comment(&mut more);
            let rest = &more.trim_ascii_start()[1..];
            if bytes.len() + rest.len() > LONGEST_LINE_BYTES {
                return Err(self.error(
                    origin,
                    format!(
                        "the line and its continuations are longer than {LONGEST_LINE_BYTES} bytes"
                    ),
                ));
            }
            bytes.push(b' ');
            bytes.extend_from_slice(rest);
        }
    }

    /// Reads one physical line without its end into `bytes`. `false` at the end of the innermost file.
    fn physical(&mut self, bytes: &mut Vec<u8>) -> Result<bool, FileError> {
        let open = self.open.last_mut().expect("a file is open");
        open.line = open.line.saturating_add(1);
        open.next_line = open.line;
        let origin = Origin {
            file: open.file,
            line: open.line,
        };
        let most = LONGEST_LINE_BYTES as u64 + 1;
        let read = (&mut open.reader).take(most).read_until(b'\n', bytes);
        let read =
            read.map_err(|source| FileError::io(&self.files[origin.file as usize], source))?;
        if read == 0 {
            return Ok(false);
        }
        if read as u64 > self.bytes_left {
            return Err(self.error(
                origin,
                "the netlist is too large for the memory that is available",
            ));
        }
        self.bytes_left -= read as u64;
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
        } else if read as u64 == most {
            return Err(self.error(
                origin,
                format!("the line is longer than {LONGEST_LINE_BYTES} bytes; is it a netlist?"),
            ));
        }
        Ok(true)
    }

    /// The line as text, in lower case but for the names of files.
    fn decode(&self, bytes: Vec<u8>, origin: Origin, text: &mut String) -> Result<(), FileError> {
        let Ok(decoded) = String::from_utf8(bytes) else {
            return Err(self.error(
                origin,
                "the line holds bytes that are no UTF-8; only comments may",
            ));
        };
        *text = decoded;
        if let Some(control) = text.chars().find(|c| c.is_control() && !c.is_whitespace()) {
            return Err(self.error(
                origin,
                format!("the line holds the control character {control:?}; only comments may"),
            ));
        }
        let card = text.trim_ascii_start();
        if !card
            .get(..4)
            .is_some_and(|card| card.eq_ignore_ascii_case(".inc"))
        {
            text.make_ascii_lowercase();
        }
        Ok(())
    }

    /// Goes on with the file `path` of an `.include`, then with what follows in the present one.
    pub(super) fn include(&mut self, path: &str, origin: Origin) -> Result<(), FileError> {
        let path = path.trim().trim_matches(['"', '\'']);
        let refused =
            |what: &str| Err(self.error(origin, format!("include {}: {what}", quoted(path))));
        let Some(folder) = &self.folder else {
            return refused("no files are included from here; put its lines in place of it");
        };
        let relative = Path::new(path);
        let mut components = relative.components();
        if path.is_empty()
            || !components.all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
        {
            return refused(
                "only files beside the netlist or in folders below are included: a relative path without '..'",
            );
        }
        if self.open.len() >= MOST_FILES {
            return refused("files are included more than 8 deep; does one include itself?");
        }
        if self.files.len() > MOST_INCLUDES {
            return refused("more than 1000 files are included");
        }
        let path = folder.join(relative);
        let name = path.display().to_string();
        let io = |source| FileError::io(&name, source);
        let real = path.canonicalize().map_err(io)?;
        if !real.starts_with(folder.canonicalize().map_err(io)?) {
            return refused("it is a link that leaves the folder of the netlist");
        }
        if !real.metadata().map_err(io)?.is_file() {
            return refused("it is no regular file");
        }
        let (_, reader) = Source::open(&real, |_| ()).map_err(|error| match error {
            FileError::Io { source, .. } => io(source), // by the name that the netlist gives
            other => other,
        })?;
        let number = self.files.len() as u16;
        self.files.push(name);
        self.open.push(Open::new(reader, number));
        Ok(())
    }

    /// Leaves the innermost file. `true`: another one goes on.
    pub(super) fn end_file(&mut self) -> bool {
        self.open.pop();
        !self.open.is_empty()
    }
}

impl<'a> Open<'a> {
    fn new(reader: Box<dyn BufRead + 'a>, file: u16) -> Self {
        Self {
            reader,
            file,
            line: 0,
            next: Vec::new(),
            next_line: 0,
            has_next: false,
        }
    }
}

/// Whether a physical line holds a comment or nothing.
fn is_blank(bytes: &[u8]) -> bool {
    matches!(
        bytes.trim_ascii_start().first(),
        None | Some(b'*' | b';' | b'$')
    )
}

/// Removes a comment that follows text, and blanks before it.
fn strip_comment(bytes: &mut Vec<u8>) {
    let mut is_quoted = false;
    let mut before = b' ';
    let comment = bytes.iter().position(|&byte| {
        is_quoted ^= byte == b'\'';
        let begins =
            !is_quoted && (byte == b';' || byte == b'$' && matches!(before, b' ' | b'\t' | b','));
        before = byte;
        begins
    });
    if let Some(comment) = comment {
        bytes.truncate(comment);
    }
    bytes.truncate(bytes.trim_ascii_end().len());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[u8]) -> Result<Vec<(u32, String)>, FileError> {
        let mut lines = Lines::new("in", Box::new(text), None, u64::MAX);
        lines.title()?;
        let mut found = Vec::new();
        let mut line = String::new();
        while let Some(origin) = lines.next(&mut line)? {
            found.push((origin.line, line.clone()));
        }
        Ok(found)
    }

    /// Continuations are joined over comments; each line has the number of its beginning.
    #[test]
    fn continuations_are_joined() {
        let text = b"title\n* comment\nR1 a B 1k ; ohms\r\n+ tc1=0 $ none\n\n*between\n + tc2=0\n  V1 a 0\n+5\n\xff is not reached";
        let error = lines(text).unwrap_err().to_string();
        assert_eq!(
            error,
            "in: line 10: the line holds bytes that are no UTF-8; only comments may"
        );
        assert_eq!(
            lines(&text[..text.len() - 17]).unwrap(),
            [
                (3, "r1 a b 1k  tc1=0  tc2=0".to_owned()),
                (8, "  v1 a 0 5".to_owned())
            ]
        );
    }

    /// A dollar within a name, and a semicolon within quotes, begin no comment.
    #[test]
    fn comments_begin_after_blanks() {
        assert_eq!(lines(b"t\nr1 a$b 0 1 $ c").unwrap()[0].1, "r1 a$b 0 1");
        assert_eq!(lines(b"t\nr1 a 0 '1;2'").unwrap()[0].1, "r1 a 0 '1;2'");
    }

    /// Lines without end, continuations of nothing and includes from memory are refused.
    #[test]
    fn hostile_lines_are_refused() {
        let long = vec![b'r'; 3 << 20];
        assert!(
            lines(&[b"t\n", long.as_slice()].concat())
                .unwrap_err()
                .to_string()
                .contains("longer than")
        );
        let mut continued = b"t\nr1".to_vec();
        (0..300_000).for_each(|_| continued.extend_from_slice(b"\n+ abc"));
        assert!(
            lines(&continued)
                .unwrap_err()
                .to_string()
                .contains("longer than")
        );
        assert!(lines(b"t\n+ a").is_err());
        assert!(
            lines("t\n\u{a0}\n\u{b}\u{2003}".as_bytes())
                .unwrap()
                .is_empty()
        );
        assert!(lines(b"t\nr1 a\x01 0 1").is_err());
        let mut none = Lines::new("in", Box::new(&b""[..]), None, u64::MAX);
        assert!(none.include("x", Origin { file: 0, line: 1 }).is_err());
    }
}
