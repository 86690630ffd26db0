//! PMI-1 and PMI-2: text over a descriptor that the launcher passes on.
//!
//! Version 1: lines of `key=value` words, answered by lines. Version 2: six digits of length, then `key=value;` words. Which of them is spoken follows
//! from the environment: Slurm speaks 2, all others 1; `TSUMUJI_PMI` states it (`1` or `2`).

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};

use super::KeyValues;
use crate::bootstrap::{ENV_PMI, worker};
use crate::sys;

/// Longest answer; the services state limits of some thousand bytes.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// The descriptor's number, as MPICH and Slurm pass it.
const ENV_FD: &str = "PMI_FD";

pub(super) fn is_there() -> bool {
    [ENV_FD, "PMI_RANK", "PMI_SIZE"]
        .iter()
        .all(|name| std::env::var_os(name).is_some())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// A connection to the launcher's service.
#[derive(Debug)]
pub(super) struct Pmi {
    service: BufReader<File>,
    version: Version,
    rank: u32,
    size: u32,
    /// Name of the key-value space; version 2: of the job.
    name: String,
}

fn variable<N: std::str::FromStr>(name: &'static str) -> io::Result<N> {
    let value = std::env::var(name).unwrap_or_default();
    value
        .parse()
        .map_err(|_| io::Error::other(format!("{name}=`{value}`: a whole number is accepted")))
}

fn garbage(answer: &str) -> io::Error {
    let shown: String = answer
        .chars()
        .filter(|c| !c.is_control())
        .take(100)
        .collect();
    io::Error::other(format!("its answer is not understood: `{shown}`"))
}

impl Pmi {
    pub(super) fn connect() -> io::Result<Self> {
        let version = match std::env::var(ENV_PMI).as_deref() {
            Ok("1") => Version::One,
            Ok("2") => Version::Two,
            Err(_) if std::env::var_os("SLURM_JOB_ID").is_some() => Version::Two,
            Err(_) => Version::One,
            Ok(other) => {
                let problem = format!("{ENV_PMI}=`{other}`: accepted are 1 and 2");
                return Err(io::Error::other(problem));
            }
        };
        let mut pmi = Self {
            service: BufReader::new(sys::inherited(variable(ENV_FD)?)?.into()),
            version,
            rank: variable("PMI_RANK")?,
            size: variable("PMI_SIZE")?,
            name: String::new(),
        };
        let number = if version == Version::One { "1" } else { "2" };
        let greeting = format!(
            "cmd=init pmi_version={number} pmi_subversion={}",
            u8::from(number == "1")
        );
        let answer = pmi.ask_line(&greeting, "response_to_init")?;
        check(&answer, ' ')?;
        pmi.name = match version {
            Version::One => {
                let answer = pmi.ask_line("cmd=get_my_kvsname", "my_kvsname")?;
                word(&answer, ' ', "kvsname")
                    .ok_or_else(|| garbage(&answer))?
                    .to_owned()
            }
            Version::Two => {
                let rank = pmi.rank;
                let job = std::env::var("PMI_JOBID").unwrap_or_default();
                pmi.ask_words(
                    &format!("cmd=fullinit;pmijobid={job};pmirank={rank};threaded=FALSE;"),
                    "fullinit-response",
                )?;
                let answer = pmi.ask_words("cmd=job-getid;", "job-getid-response")?;
                word(&answer, ';', "jobid")
                    .ok_or_else(|| garbage(&answer))?
                    .to_owned()
            }
        };
        Ok(pmi)
    }

    /// Sends a line and reads one; it must be the answer `expected`.
    fn ask_line(&mut self, question: &str, expected: &str) -> io::Result<String> {
        let service = self.service.get_mut();
        service.write_all(format!("{question}\n").as_bytes())?;
        let mut answer = Vec::new();
        let mut bounded = (&mut self.service).take(ANSWER_BYTES_MAX as u64);
        bounded.read_until(b'\n', &mut answer)?;
        if answer.pop() != Some(b'\n') {
            return Err(garbage("no whole line"));
        }
        expect(answer, ' ', expected)
    }

    /// The same of version 2; the answer's result must be 0.
    fn ask_words(&mut self, question: &str, expected: &str) -> io::Result<String> {
        let service = self.service.get_mut();
        service.write_all(format!("{:6}{question}", question.len()).as_bytes())?;
        let mut length = [0; 6];
        self.service.read_exact(&mut length)?;
        let stated = String::from_utf8_lossy(&length).trim().parse().ok();
        let bytes = stated.filter(|bytes| *bytes <= ANSWER_BYTES_MAX);
        let mut answer = vec![0; bytes.ok_or_else(|| garbage(&String::from_utf8_lossy(&length)))?];
        self.service.read_exact(&mut answer)?;
        let answer = expect(answer, ';', expected)?;
        check(&answer, ';')?;
        Ok(answer)
    }
}

fn expect(answer: Vec<u8>, separator: char, expected: &str) -> io::Result<String> {
    let answer = String::from_utf8(answer).map_err(|_| garbage("no text"))?;
    if word(&answer, separator, "cmd") == Some(expected) {
        Ok(answer)
    } else {
        Err(garbage(&answer))
    }
}

/// The value of a word.
fn word<'a>(answer: &'a str, separator: char, key: &str) -> Option<&'a str> {
    answer
        .split(separator)
        .find_map(|word| word.trim().strip_prefix(key)?.strip_prefix('='))
}

/// Whether the answer's result code is 0.
fn check(answer: &str, separator: char) -> io::Result<()> {
    match word(answer, separator, "rc") {
        Some("0") => Ok(()),
        _ => Err(io::Error::other(format!("it refused: {}", garbage(answer)))),
    }
}

/// Whether this is an answer of either version that states a value: for fuzz targets.
pub(super) fn is_answer(text: &str) -> bool {
    [' ', ';'].into_iter().any(|separator| {
        let answer = expect(text.as_bytes().to_vec(), separator, "get_result");
        answer.is_ok_and(|answer| {
            check(&answer, separator).is_ok() && word(&answer, separator, "value").is_some()
        })
    })
}

impl KeyValues for Pmi {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn local_rank(&self) -> Option<u16> {
        worker::first_number(&["MPI_LOCALRANKID", "SLURM_LOCALID"])
    }

    fn put(&mut self, key: &str, value: &str) -> io::Result<()> {
        match self.version {
            Version::One => {
                let question = format!("cmd=put kvsname={} key={key} value={value}", self.name);
                check(&self.ask_line(&question, "put_result")?, ' ')
            }
            Version::Two => {
                let question = format!("cmd=kvs-put;key={key};value={value};");
                self.ask_words(&question, "kvs-put-response").map(drop)
            }
        }
    }

    fn fence(&mut self) -> io::Result<()> {
        match self.version {
            Version::One => self.ask_line("cmd=barrier_in", "barrier_out").map(drop),
            Version::Two => self
                .ask_words("cmd=kvs-fence;", "kvs-fence-response")
                .map(drop),
        }
    }

    fn get(&mut self, _rank: u32, key: &str) -> io::Result<String> {
        let (answer, separator) = match self.version {
            Version::One => {
                let question = format!("cmd=get kvsname={} key={key}", self.name);
                let answer = self.ask_line(&question, "get_result")?;
                check(&answer, ' ')?;
                (answer, ' ')
            }
            Version::Two => {
                let question = format!("cmd=kvs-get;jobid={};srcid=-1;key={key};", self.name);
                (self.ask_words(&question, "kvs-get-response")?, ';')
            }
        };
        let value = word(&answer, separator, "value");
        value.map(str::to_owned).ok_or_else(|| garbage(&answer))
    }

    fn finish(&mut self) -> io::Result<()> {
        match self.version {
            Version::One => self.ask_line("cmd=finalize", "finalize_ack").map(drop),
            Version::Two => self
                .ask_words("cmd=finalize;", "finalize-response")
                .map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers are searched for words, and a result other than 0 is an error.
    #[test]
    fn answers_have_words() {
        let answer = "cmd=get_result rc=0 msg=success value=1/a/udp/[::1]:7000";
        assert_eq!(word(answer, ' ', "value"), Some("1/a/udp/[::1]:7000"));
        assert_eq!(word(answer, ' ', "val"), None);
        assert!(check(answer, ' ').is_ok());
        for refused in [
            "cmd=get_result rc=-1 msg=key_not_found",
            "cmd=get_result",
            "",
        ] {
            let error = check(refused, ' ').expect_err(refused).to_string();
            assert!(error.starts_with("it refused"), "{error}");
        }
        assert!(expect(b"cmd=put_result rc=0".to_vec(), ' ', "put_result").is_ok());
        assert!(expect(b"cmd=other rc=0".to_vec(), ' ', "put_result").is_err());
        assert!(expect(vec![0xff], ' ', "put_result").is_err());
    }
}
