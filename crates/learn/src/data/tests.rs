use super::*;
use proptest::prelude::*;
use std::io::Write as _;
use std::path::PathBuf;

struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn put(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    }
}

const LEARN: Reading<'_> = Reading::Learn { target: None };

fn refused(name: &str, content: impl AsRef<[u8]>, want: Want) -> String {
    let files = Files::new();
    let error = read(&files.put(name, content), want, LEARN).unwrap_err();
    error.to_string()
}

/// A `.npy` file of version 1.
fn npy(descr: &str, order: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.bytes());
    bytes.extend(data);
    bytes
}

fn doubles(values: &[f64]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

/// Text may be longer than the memory that its numbers take, and loses no row; a record that alone is longer is refused.
#[test]
fn memory_bounds_records_of_csv_not_their_text() {
    const LIMIT_BYTES: u64 = 64 << 10;
    let of = |text: &str| read_bytes("a.csv", text.as_bytes(), LIMIT_BYTES, Want::Numbers, LEARN);
    let rows = (0..1000).map(|row| format!("{row:060},{row:059}\n"));
    let text = String::from("x,y\n") + &rows.collect::<String>();
    assert!(text.len() as u64 > LIMIT_BYTES);
    assert_eq!(of(&text).unwrap().features.rows(), 1000);
    let endless = format!("x,y\n1,2\n\"{}", "3".repeat(100_000));
    let error = of(&endless).unwrap_err().to_string();
    assert!(error.contains("line 3: the line is longer"), "{error}");
}

/// svmlight is read, also when packed, with comments, and keeps its labels.
#[test]
fn svmlight_is_read() {
    let text = "# made by hand\n+1 1:0.5 3:2 # first\n-1 2:1e-3\n\n+1 3:0\n";
    let files = Files::new();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(text.as_bytes()).unwrap();
    let plain = read(&files.put("a.svm", text), Want::Labels, LEARN).unwrap();
    let gzip = files.put("a.svm.gz", packed.finish().unwrap());
    assert_eq!(read(&gzip, Want::Labels, LEARN).unwrap(), plain);
    assert_eq!(
        (
            plain.features.rows(),
            plain.features.columns(),
            plain.features.stored()
        ),
        (3, 3, 3)
    );
    let labels = Targets::Labels {
        classes: vec!["-1".into(), "+1".into()],
        ids: vec![1, 0, 1],
    };
    assert_eq!(plain.targets, Some(labels));
}

/// Rows to predict for may be without labels: then their first words are features, too. Data to learn from may not, nor may some rows be without.
#[test]
fn svmlight_without_labels_keeps_its_first_features() {
    let of = |text: &str, reading| {
        read_bytes("a.svm", text.as_bytes(), 1 << 20, Want::Labels, reading)
            .map_err(|error| error.to_string())
    };
    let like = |needs_targets| Reading::Like {
        columns: 3,
        names: None,
        target: None,
        needs_targets,
    };
    let bare = "1:0.5 3:2\n2:1 # second\n";
    let data = of(bare, like(false)).unwrap();
    assert_eq!((data.targets, data.features.stored()), (None, 3));
    for reading in [LEARN, like(true)] {
        let complaint = of(bare, reading).unwrap_err();
        assert!(
            complaint.contains("line 1: '1:0.5' where a target should be"),
            "{complaint}"
        );
    }
    let ends_blank = of("1:1\n# a comment\n\n", like(false)).unwrap();
    assert_eq!(ends_blank.features.rows(), 1);
    for (text, words) in [
        ("1:1\n7 1:2\n", "line 2: '7' where index:value should be"),
        ("7 1:1\n1:2\n", "line 2: '1:2' where a target should be"),
        // Or was a row of zeros meant?
        ("1:1\n\n1:2\n", "line 2: an empty line among rows"),
    ] {
        let complaint = of(text, like(false)).unwrap_err();
        assert!(complaint.contains(words), "{complaint}");
    }
}

/// Mistakes in svmlight name the line, and what is accepted.
#[test]
fn svmlight_mistakes_name_the_line() {
    for (text, words) in [
        ("1 1:2\n2 3\n", "line 2: '3' is not index:value"),
        (
            "1 1:2\n2 0:1\n",
            "line 2: feature index 0; accepted are indices from 1",
        ),
        ("1 2:2 1:1\n", "line 1: feature index 1 after 2"),
        ("1 1:nan\n", "line 1: feature 1: 'nan' is not finite"),
        ("1 1:2\nx 1:3\n", "line 2: the target 'x' is no number"),
        ("", "no rows"),
        ("1\n2\n", "no row has a feature"),
    ] {
        let complaint = refused("a.svm", text, Want::Numbers);
        assert!(complaint.contains(words), "{text:?}: {complaint}");
    }
    assert!(refused("a.svm", "1 1:2\n1 1:3\n", Want::Labels).contains("one class, '1'"));
    assert!(refused("a.svm", b"1 1:\xff\n", Want::Labels).contains("line 1: the line is not text"));
}

/// CSV is read with names, quotes, and the target wherever it is.
#[test]
fn csv_is_read() {
    let files = Files::new();
    let path = files.put(
        "a.csv",
        "species,\"width, cm\",length\nant,1.5,2\nbee, 3 ,4\n",
    );
    let target = Some("species");
    let data = read(&path, Want::Labels, Reading::Learn { target }).unwrap();
    assert_eq!(
        data.names,
        Some(vec!["width, cm".to_owned(), "length".to_owned()])
    );
    assert_eq!(data.target_name.as_deref(), target);
    let values = vec![1.5, 2.0, 3.0, 4.0];
    assert_eq!(data.features, Features::Dense { columns: 2, values });
    // For a model the target may be missing.
    let names = data.names.unwrap();
    let like = |needs_targets| Reading::Like {
        columns: 2,
        names: Some(&names),
        target,
        needs_targets,
    };
    let bare = files.put("b.csv", "\"width, cm\",length\n1,2\n");
    assert_eq!(
        read(&bare, Want::Labels, like(false)).unwrap().targets,
        None
    );
    let complaint = read(&bare, Want::Labels, like(true))
        .unwrap_err()
        .to_string();
    assert!(complaint.contains("no column 'species'"), "{complaint}");
    let swapped = files.put("c.csv", "length,\"width, cm\"\n1,2\n");
    let complaint = read(&swapped, Want::Labels, like(false))
        .unwrap_err()
        .to_string();
    assert!(
        complaint.contains("column 'length' where the model has"),
        "{complaint}"
    );
}

/// A mark before the text, as some spreadsheets write it, is no part of the first name, and other formats have no target to be named.
#[test]
fn marks_are_no_names_and_only_csv_names_a_target() {
    let of = |name: &str, bytes: &[u8], target| {
        let reading = Reading::Learn { target };
        read_bytes(name, bytes, 1 << 20, Want::Numbers, reading).map_err(|error| error.to_string())
    };
    let data = of("a.csv", b"\xef\xbb\xbf\"x\",y\n1,2\n", Some("x")).unwrap();
    assert_eq!(data.names, Some(vec!["y".to_owned()]));
    let complaint = of("a.svm", b"1 1:2\n", Some("x")).unwrap_err();
    assert!(complaint.contains("no column 'x'"), "{complaint}");
}

/// Mistakes in CSV name line and column.
#[test]
fn csv_mistakes_name_the_place() {
    for (text, words) in [
        ("", "empty"),
        ("a,y\n", "no rows"),
        ("1,2\n3,4\n", "line 1: the first line holds numbers"),
        ("a,y\n1,2\n3\n", "line 3: 1 cells; the header has 2"),
        ("a,y\n1,2\n,4\n", "line 3: column 1: the cell is empty"),
        ("a,y\nNaN,2\n", "line 2: column 1: 'NaN' is not finite"),
        ("a,y\nx,2\n", "line 2: column 1: 'x' is no number"),
        ("a,y\n1,\n", "line 2: the target is empty"),
        ("y\n1\n", "no column of features"),
    ] {
        let complaint = refused("a.csv", text, Want::Numbers);
        assert!(complaint.contains(words), "{text:?}: {complaint}");
    }
}

/// NumPy files are read in every byte order, storage order and size.
#[test]
fn npy_is_read() {
    let files = Files::new();
    let values = vec![1.0, 2.0, 4.0, 5.0];
    let wanted = Features::Dense { columns: 2, values };
    let c = npy(
        "<f8",
        "False",
        "(2, 3)",
        &doubles(&[1.0, 2.0, 0.0, 4.0, 5.0, 1.0]),
    );
    let fortran = npy(
        "<f8",
        "True",
        "(2, 3)",
        &doubles(&[1.0, 4.0, 2.0, 5.0, 0.0, 1.0]),
    );
    let bytes = npy("|u1", "False", "(2, 3)", &[1, 2, 0, 4, 5, 1]);
    let big = npy(
        ">i2",
        "False",
        "(2, 3)",
        &[0, 1, 0, 2, 0, 0, 0, 4, 0, 5, 0, 1],
    );
    for (name, content) in [
        ("c.npy", c),
        ("f.npy", fortran),
        ("b.npy", bytes),
        ("g.npy", big),
    ] {
        let data = read(&files.put(name, content), Want::Labels, LEARN).unwrap();
        assert_eq!(data.features, wanted, "{name}");
        let classes = vec!["0".to_owned(), "1".to_owned()];
        let ids = vec![0, 1];
        assert_eq!(
            data.targets,
            Some(Targets::Labels { classes, ids }),
            "{name}"
        );
    }
    let negative = npy(
        "<i4",
        "False",
        "(1, 2)",
        &[0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0],
    );
    let data = read(&files.put("n.npy", negative), Want::Numbers, LEARN).unwrap();
    assert_eq!(data.features.dot(0, &[1.0]), -1.0);
}

/// Archives have rows and targets by name, packed or stored.
#[test]
fn npz_is_read() {
    let files = Files::new();
    let path = files.0.path().join("a.npz");
    let mut archive = zip::ZipWriter::new(std::fs::File::create(&path).unwrap());
    let packed = zip::write::SimpleFileOptions::default();
    for (name, content) in [
        (
            "X.npy",
            npy("<f8", "False", "(2, 1)", &doubles(&[0.5, 2.0])),
        ),
        ("y.npy", npy("<f8", "False", "(2,)", &doubles(&[3.0, 4.0]))),
    ] {
        archive.start_file(name, packed).unwrap();
        archive.write_all(&content).unwrap();
    }
    archive.finish().unwrap();
    let data = read(&path, Want::Numbers, LEARN).unwrap();
    assert_eq!(data.targets, Some(Targets::Numbers(vec![3.0, 4.0])));
    assert_eq!(data.features.rows(), 2);

    // Labels are texts: of characters in either byte order, or bytes, filled up with zeros.
    let wide = |big: bool| -> Vec<u8> {
        let bytes = |character: char| match big {
            true => u32::from(character).to_be_bytes(),
            false => u32::from(character).to_le_bytes(),
        };
        "aé\0b\0\0".chars().flat_map(bytes).collect()
    };
    let labels = |descr: &str, content: &[u8]| {
        let path = files.0.path().join("labels.npz");
        let mut archive = zip::ZipWriter::new(std::fs::File::create(&path).unwrap());
        let rows = npy("<f8", "False", "(2, 1)", &doubles(&[0.5, 2.0]));
        for (name, content) in [
            ("X.npy", rows),
            ("y.npy", npy(descr, "False", "(2,)", content)),
        ] {
            archive.start_file(name, packed).unwrap();
            archive.write_all(&content).unwrap();
        }
        archive.finish().unwrap();
        read(&path, Want::Labels, LEARN).map(|data| data.targets)
    };
    let expected = |first: &str| Targets::Labels {
        classes: vec![first.to_owned(), "b".to_owned()],
        ids: vec![0, 1],
    };
    assert_eq!(labels("<U3", &wide(false)).unwrap(), Some(expected("aé")));
    assert_eq!(labels(">U3", &wide(true)).unwrap(), Some(expected("aé")));
    assert_eq!(labels("|S2", b"aab\0").unwrap(), Some(expected("aa")));
    for (descr, content, words) in [
        ("<U1", &[0xff; 8][..], "row 1: the text is no Unicode"),
        ("|S1", b"\0a", "row 1: the target is empty"),
        ("|S2", b"aab", "3 bytes of data, its header announces 4"),
        ("<U0", b"", "cannot be read"),
        ("<U999999999999", b"", "cannot be read"),
    ] {
        let error = labels(descr, content).unwrap_err().to_string();
        assert!(error.contains(words), "{descr}: {error}");
    }

    // Packed by another method: bzip2.
    let mut bytes = std::fs::read(&path).unwrap();
    let entry = bytes.windows(4).position(|four| four == b"PK\x01\x02");
    bytes[entry.expect("a list of contents") + 10] = 12;
    let complaint = refused("b.npz", bytes, Want::Numbers);
    assert!(
        complaint.contains("array X") && complaint.contains("ompression"),
        "{complaint}"
    );
}

/// Rows to predict for are read whatever the targets beside them are; why there are none is told. A test set is refused.
#[test]
fn rows_need_no_targets() {
    let files = Files::new();
    let reading = |needs_targets| Reading::Like {
        columns: 1,
        names: None,
        target: None,
        needs_targets,
    };
    let packed = zip::write::SimpleFileOptions::default();
    let archive = |targets: Vec<u8>| {
        let mut archive = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
        let rows = npy("<f8", "False", "(2, 1)", &doubles(&[0.5, 2.0]));
        for (name, content) in [("X.npy", rows), ("y.npy", targets)] {
            archive.start_file(name, packed).unwrap();
            archive.write_all(&content).unwrap();
        }
        archive.finish().unwrap().into_inner()
    };
    let of_three = npy("<f8", "False", "(3,)", &doubles(&[1.0, 2.0, 3.0]));
    for (name, content, why) in [
        (
            "a.csv",
            b"a,y\n1,2\n3,ant\n".to_vec(),
            "a.csv: line 3: the target 'ant'",
        ),
        (
            "a.svm",
            b"1 1:2\nant 1:3\n".to_vec(),
            "a.svm: line 2: the target 'ant'",
        ),
        ("a.npz", archive(of_three), "3 targets for 2 rows"),
        ("b.npz", archive(npy("|O", "False", "(2,)", b"")), "array y"),
        (
            "c.npz",
            archive(npy("<U1", "False", "(2,)", &[97, 0, 0, 0, 98, 0, 0, 0])),
            "row 1: the target 'a'",
        ),
    ] {
        let path = files.put(name, content);
        let data = read(&path, Want::Numbers, reading(false)).unwrap();
        assert_eq!((data.features.rows(), data.targets), (2, None), "{name}");
        let fault = data.targets_fault.unwrap();
        assert!(fault.contains(why), "{name}: {fault}");
        let error = read(&path, Want::Numbers, reading(true)).unwrap_err();
        assert_eq!(error.to_string(), fault);
    }
    let path = files.put("plain.csv", "a\n1\n");
    let data = read(&path, Want::Numbers, reading(false)).unwrap();
    assert_eq!((data.targets, data.targets_fault), (None, None));
}

/// Damaged NumPy files are refused in one line.
#[test]
fn npy_mistakes_are_named() {
    let whole = npy("<f8", "False", "(2, 2)", &doubles(&[1.0, 2.0, 3.0, 4.0]));
    for (content, words) in [
        (Vec::new(), "truncated"),
        (b"hello world".to_vec(), "magic"),
        (
            whole[..whole.len() - 3].to_vec(),
            "has 29 bytes of data, its header announces 32",
        ),
        ([&whole[..], b"x"].concat(), "goes on after the 32 bytes"),
        (npy("|O", "False", "(2, 2)", &[]), "'|O' cannot be read"),
        (
            npy("<f8", "False", "(9999999999999, 9999999999)", &[]),
            "columns; accepted",
        ),
        (
            npy("<f8", "False", "(99999999999999999, 999999)", &[]),
            "of data are more than the",
        ),
        (
            npy("<f8", "False", "(2,)", &doubles(&[1.0, 2.0])),
            "1 dimension",
        ),
        (
            npy("<f8", "False", "(1, 2)", &doubles(&[f64::NAN, 1.0])),
            "row 1: column 1: the value is NaN",
        ),
    ] {
        let complaint = refused("a.npy", content, Want::Numbers);
        assert!(complaint.contains(words), "{complaint}");
        assert_eq!(complaint.lines().count(), 1);
    }
    assert!(refused("a.npz", b"PK\x03\x04rubbish", Want::Numbers).contains("no .npz archive"));
    assert!(refused("a.xls", b"", Want::Numbers).contains("accepted are svmlight"));
}

proptest! {
    /// Any bytes under any name end in data or in one line.
    #[test]
    fn any_bytes(content in proptest::collection::vec(any::<u8>(), 0..400), cut in 0usize..200, ending in 0usize..4) {
        let files = Files::new();
        let name = ["a.svm", "a.csv", "a.npy", "a.npz"][ending];
        let mut whole = match ending {
            0 => b"1 1:2 2:3\n-1 1:1\n".to_vec(),
            1 => b"a,b,y\n1,2,3\n".to_vec(),
            _ => npy("<f8", "False", "(2, 2)", &doubles(&[1.0, 2.0, 3.0, 4.0])),
        };
        whole.truncate(cut);
        whole.extend(content);
        if let Err(error) = read(&files.put(name, whole), Want::Labels, LEARN) {
            prop_assert_eq!(error.to_string().lines().count(), 1);
        }
    }
}
