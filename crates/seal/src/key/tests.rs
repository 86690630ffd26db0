use std::os::unix::fs::PermissionsExt;

use super::*;

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("tsumuji-key-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    folder
}

fn parse(text: &str) -> Result<Keys, KeyError> {
    Keys::parse(text.as_bytes(), Path::new("cluster.key"))
}

fn prints(keys: &Keys) -> Vec<KeyPrint> {
    keys.0.iter().map(ClusterKey::print).collect()
}

/// A generated key is read as it was written; only its owner can read its file, and the file is not overwritten.
#[test]
fn written_key_reads_back() {
    let folder = folder("written");
    let path = folder.join("cluster.key");
    let key = ClusterKey::generate().expect("random");
    key.write_new(&path).expect("write");
    let mode = std::fs::metadata(&path).expect("stat").mode();
    assert_eq!(mode & 0o777, 0o600);
    let keys = Keys::read(&path).expect("read");
    assert_eq!(prints(&keys), [key.print()]);
    assert!(matches!(key.write_new(&path), Err(KeyError::Exists { .. })));
    std::fs::remove_dir_all(folder).expect("clean up");
}

/// A file that others may read is refused, with the command that helps.
#[test]
fn open_file_is_refused() {
    let folder = folder("open");
    let path = folder.join("cluster.key");
    ClusterKey::generate()
        .and_then(|key| key.write_new(&path))
        .expect("write");
    for mode in [0o640, 0o604, 0o620, 0o601, 0o666] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("chmod");
        let error = Keys::read(&path).expect_err("open to others").to_string();
        assert!(
            error.contains(&format!("chmod 600 {}", path.display())),
            "{error}"
        );
        assert!(error.contains(&format!("{mode:o}")), "{error}");
    }
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o400)).expect("chmod");
    Keys::read(&path).expect("read-only is fine");
    std::fs::remove_dir_all(folder).expect("clean up");
}

/// A file of another user is refused, whatever its mode, with the command that helps; root's is accepted.
#[test]
fn foreign_file_is_refused() {
    let path = Path::new("/x/cluster.key");
    assert!(check_owner(path, 1000, 1000).is_ok() && check_owner(path, 0, 1000).is_ok());
    for (owner, me) in [(1001, 1000), (1000, 0)] {
        let error = check_owner(path, owner, me)
            .expect_err("foreign")
            .to_string();
        assert!(
            error.contains(&format!("belongs to user {owner}")),
            "{error}"
        );
        assert!(
            error.ends_with(&format!("chown {me} /x/cluster.key")),
            "{error}"
        );
    }
    // The same with a real file, if this process may change a file's owner.
    let folder = folder("foreign");
    let path = folder.join("cluster.key");
    ClusterKey::generate()
        .and_then(|key| key.write_new(&path))
        .expect("write");
    let me = rustix::process::geteuid().as_raw();
    if std::os::unix::fs::chown(&path, Some(me + 1), None).is_ok() {
        let error = Keys::read(&path).expect_err("another user's");
        assert!(matches!(error, KeyError::Foreign { owner, .. } if owner == me + 1));
    }
    std::fs::remove_dir_all(folder).expect("clean up");
}

/// For a file without a key, the error names the command that makes one.
#[test]
fn empty_file_is_refused() {
    for text in ["", "\n\n", "# nothing\n"] {
        let error = parse(text).expect_err("no key").to_string();
        assert_eq!(
            error,
            "cluster.key has no key in it; make a new one: rm cluster.key && tsumuji key cluster.key"
        );
    }
}

/// Hex of both cases and all four forms of base64 give the same key; order is kept, repetitions are not.
#[test]
fn writings_of_a_key() {
    let bytes: Vec<u8> = (0..32).map(|i| 255 - 3 * i).collect();
    let hex = HEXLOWER.encode(&bytes);
    let writings = [
        hex.clone(),
        hex.to_uppercase(),
        BASE64.encode(&bytes),
        BASE64_NOPAD.encode(&bytes),
        BASE64URL.encode(&bytes),
        BASE64URL_NOPAD.encode(&bytes),
    ];
    let other = ClusterKey::generate().expect("random");
    let mut text = format!("# keys\r\n\n  {} # new\r\n", &*other.to_hex());
    for writing in &writings {
        text += &format!("{writing}\n");
    }
    let keys = parse(&text).expect("all are keys");
    let same = ClusterKey(bytes.try_into().expect("32"));
    assert_eq!(prints(&keys), [other.print(), same.print()]);
}

/// A line that is no key is refused with its number, and is not shown.
#[test]
fn wrong_lines() {
    let good = ClusterKey::generate().expect("random").to_hex();
    let bad = [
        "a".repeat(63),
        "g".repeat(64),
        "0".repeat(64),
        "A".repeat(43),
        "!".repeat(44),
        format!("{}==", "A1b2".repeat(10) + "AA"),
        good[..62].to_owned(),
        format!("{} {}", &*good, &*good),
    ];
    for line in bad {
        let error = parse(&format!("# one\n{}\n{line}\n", &*good)).expect_err("no key");
        let text = error.to_string();
        assert!(text.starts_with("cluster.key:3: "), "{text}");
        assert!(!text.contains(&line) && !text.contains('\n'), "{text}");
    }
    let error = Keys::parse(b"\xff\xfe", Path::new("k")).expect_err("no text");
    assert!(matches!(error, KeyError::Line { line: 1, .. }));
    assert!(matches!(Keys::new([]), Err(KeyError::None)));
    let many: String = (0..=KEYS_MAX)
        .map(|_| ClusterKey::generate().expect("random").to_hex().to_string() + "\n")
        .collect();
    assert!(matches!(parse(&many), Err(KeyError::TooMany)));
}

/// A huge file is refused before it is read whole.
#[test]
fn huge_file_is_refused() {
    let folder = folder("huge");
    let path = folder.join("cluster.key");
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)
        .expect("create");
    file.write_all(&vec![b'\n'; FILE_BYTES_MAX + 1])
        .expect("write");
    assert!(matches!(Keys::read(&path), Err(KeyError::TooLong { .. })));
    std::fs::remove_dir_all(folder).expect("clean up");
}

/// The debug form does not show a key, and each purpose has a key of its own.
#[test]
fn keys_do_not_leak() {
    let key = ClusterKey::generate().expect("random");
    let shown = format!("{key:?} {:?} {}", Keys::new([key.clone()]), key.print());
    assert!(!shown.contains(&key.to_hex()[..16]));
    let derived = DerivedKey::new(&key);
    assert_ne!(*derived.psk, key.0);
    assert_ne!(derived.psk[..8], derived.print.0);
}
