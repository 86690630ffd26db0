//! Files by name: compressed, missing, of unknown format; and disks without room.

use std::io::Write;
use std::path::Path;

use tsumuji_solve::system::formats::{
    Format, WriteError, emit_vector, read_matrix, read_system, read_vector, write_vector,
};

use crate::file;
use crate::harwell_boeing::harwell;

fn gzipped(bytes: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    out.write_all(bytes).unwrap();
    out.finish().unwrap()
}

/// Files by name: gzip undone, formats told by content or ending, faults of the file system in one line.
#[test]
fn files_are_opened() {
    let directory = tempfile::tempdir().unwrap();
    let text = "%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 2\n2 2 4\n";
    for (name, bytes) in [
        ("a.mtx", text.as_bytes().to_vec()),
        ("a.mtx.gz", gzipped(text.as_bytes())),
        ("no-ending", text.as_bytes().to_vec()),
        ("a.rua.gz", gzipped(harwell("RUA", "").as_bytes())),
    ] {
        let path = file(directory.path(), name, &bytes);
        let matrix = read_matrix(&path).unwrap().matrix;
        assert!(matrix.diagonal(0) == 2.0 || matrix.diagonal(0) == 4.0);
    }
    let system = read_system(&directory.path().join("a.mtx"), None)
        .unwrap()
        .0;
    assert_eq!(system.rhs, [2.0, 4.0]);
    let rhs = file(
        directory.path(),
        "b.mtx",
        b"%%MatrixMarket matrix array real general\n2 1\n8\n8\n",
    );
    let system = read_system(&directory.path().join("a.mtx"), Some(&rhs))
        .unwrap()
        .0;
    assert_eq!(system.rhs, [8.0, 8.0]);
    let with_rhs = file(
        directory.path(),
        "c.rua",
        harwell("RUA", "F\n  1.00  2.50 -3.00").as_bytes(),
    );
    let (system, notes) = read_system(&with_rhs, None).unwrap();
    assert_eq!(system.rhs, [4.0, 5.0, -1.0 - 0.2 + 6.0]);
    assert!(notes[0].contains("brings a right-hand side"), "{notes:?}");
    assert_eq!(
        read_system(&with_rhs, Some(&with_rhs)).unwrap().0.rhs,
        [1.0, 2.5, -3.0]
    );

    let whole = gzipped(text.repeat(50).as_bytes());
    let message = |name: &str, bytes: &[u8]| {
        let path = file(directory.path(), name, bytes);
        let message = read_matrix(&path).unwrap_err().to_string();
        assert!(
            message.starts_with(&format!("{}:", path.display())),
            "{message}"
        );
        message
    };
    assert!(message("empty.mtx", b"").contains("the file is empty"));
    assert!(message("unknown.dat", b"hello").contains("the format is unknown; accepted are"));
    assert!(message("cut.mtx.gz", &whole[..whole.len() / 2]).contains("truncated"));
    assert!(message("not.gz", &[0x1f, 0x8b, 0, 0, 0, 0]).contains("truncated"));
    let mut wrong = whole;
    wrong[12..30].fill(0xff);
    assert!(message("wrong.mtx.gz", &wrong).contains("cannot be read"));
    let missing = read_matrix(Path::new("/nowhere/a.mtx"))
        .unwrap_err()
        .to_string();
    assert!(
        missing.starts_with("/nowhere/a.mtx: cannot be read: No such file"),
        "{missing}"
    );
    let folder = read_matrix(directory.path()).unwrap_err().to_string();
    assert!(folder.contains("it is a directory"), "{folder}");
    let zero = file(
        directory.path(),
        "z.mtx",
        b"%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 2\n1 2 4\n",
    );
    let zero = read_system(&zero, None).unwrap_err().to_string();
    assert!(zero.contains("the matrix is singular"), "{zero}");
    let shifted = file(
        directory.path(),
        "s.mtx",
        b"%%MatrixMarket matrix coordinate real general\n2 2 3\n1 1 1\n1 2 4\n2 1 3\n",
    );
    let (system, notes) = read_system(&shifted, None).unwrap();
    assert!(notes[0].contains("rows were reordered"), "{notes:?}");
    assert_eq!(system.rhs, [3.0, 5.0]);
}

/// The real systems that come along are read, and both can be relaxed.
#[test]
fn example_data_is_read() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/data");
    for (name, n) in [("add32.mtx.gz", 4960), ("grid2869.mtx.gz", 2359)] {
        let (system, notes) = read_system(&data.join(name), None).unwrap();
        assert_eq!(system.n(), n);
        assert!(notes.is_empty(), "{notes:?}");
    }
}

/// Solutions replace what was there, leave nothing beside it, and go only where their name tells a format.
#[test]
fn solutions_are_written_whole() {
    let directory = tempfile::tempdir().unwrap();
    let x = [1.0, -0.1, 1e-300, f64::MAX];
    for name in ["x.npy", "x.mtx"] {
        let path = file(directory.path(), name, b"old");
        write_vector(&path, &x).unwrap();
        assert_eq!(read_vector(&path, 4).unwrap(), x);
    }
    let names = || std::fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(names(), 2);
    let error = write_vector(&directory.path().join("x.txt"), &x).unwrap_err();
    assert!(matches!(error, WriteError::UnknownFormat { .. }), "{error}");
    let error = write_vector(Path::new("/nowhere/x.npy"), &x)
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("/nowhere/x.npy: cannot be written: No such file"),
        "{error}"
    );
    std::fs::create_dir(directory.path().join("d.npy")).unwrap();
    assert!(write_vector(&directory.path().join("d.npy"), &x).is_err());
    assert_eq!(names(), 3);
}

/// What is written to a device without room is an error, at the latest when it is flushed.
#[test]
fn a_full_device_is_noticed() {
    let mut full = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    for format in [Format::Npy, Format::MatrixMarket] {
        let error = emit_vector(format, &[1.0; 10], &mut full).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    }
}

/// On a full disk the old file survives, nothing is left beside it, and one line says what is needed. Runs itself again
/// in a mount namespace of its own with a file system of 64 kB.
#[test]
fn a_full_disk_leaves_no_trace() {
    const MARK: &str = "TSUMUJI_TEST_TINY_DISK";
    if let Some(disk) = std::env::var_os(MARK) {
        let path = Path::new(&disk).join("x.npy");
        write_vector(&path, &[1.0; 10]).unwrap();
        let error = write_vector(&path, &[2.0; 100_000]).unwrap_err();
        assert!(
            matches!(
                error,
                WriteError::DiskFull {
                    needed_bytes: 800_128,
                    ..
                }
            ),
            "{error}"
        );
        assert!(
            error
                .to_string()
                .contains("the disk is full (800128 bytes are needed); nothing was left behind")
        );
        assert_eq!(read_vector(&path, 10).unwrap(), [1.0; 10]);
        assert_eq!(std::fs::read_dir(&disk).unwrap().count(), 1);
        println!("checked on a tiny disk");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs -o size=64k tiny \"$0\" && exec \"$1\" --exact files::a_full_disk_leaves_no_trace --nocapture";
    let run = std::process::Command::new("unshare")
        .args(["--map-root-user", "--mount", "sh", "-c", script])
        .arg(directory.path())
        .arg(std::env::current_exe().unwrap())
        .env(MARK, directory.path())
        .output();
    match run {
        Ok(output)
            if String::from_utf8_lossy(&output.stderr).contains("mount:")
                || output.status.code() == Some(1) && output.stdout.is_empty() =>
        {
            println!(
                "SKIPPED a_full_disk_leaves_no_trace: no mount namespace here: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(output) => {
            let told = String::from_utf8_lossy(&output.stdout);
            assert!(
                output.status.success() && told.contains("checked on a tiny disk"),
                "{told}{}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Err(error) => {
            println!("SKIPPED a_full_disk_leaves_no_trace: unshare cannot be run: {error}")
        }
    }
}
