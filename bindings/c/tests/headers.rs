//! The headers are made from the exported functions and committed; here they are compared, and written on request.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use cbindgen::{Builder, Config, DocumentationStyle, ExportConfig, Language, Style};

/// Set to write the headers instead of comparing them: `make headers`.
const WRITE: &str = "TSUMUJI_WRITE_HEADERS";

const LICENCE: &str = "/* SPDX-License-Identifier: MIT OR Apache-2.0 */\n";

const TSUMUJI_HEAD: &str = "\
/*
 * tsumuji.h: user-level message passing for iterative computing on commodity PCs and plain Ethernet.
 *
 * The guide is docs/c.md, the manual tsumuji(3). suci.h has the calls of the Suci paper over the same library.
 *
 * Functions return 0 or more, or a code below 0 (TSUMUJI_E...); those that return a pointer return NULL then. Every failure sets
 * errno, and tsumuji_last_error() says in words what to do.
 *
 * A handle belongs to the thread that opened it, until that one calls tsumuji_release_ownership and another tsumuji_acquire_ownership. Calls of other threads
 * are refused with TSUMUJI_ETHREAD, and so are those of a child after fork().
 *
 * A pointer is NULL where that is said to mean something, or else points at what its type says, of the stated length; nothing else may
 * change it during the call. It needs no alignment. Texts are UTF-8, names of files any bytes; they end in a zero byte, within
 * 64 KiB. Handles, options and tables must come from this library; those that were closed or freed are refused with TSUMUJI_EINVAL
 * (freeing again is nothing). Where a structure's size is stated, 0 and more than 4096 are refused.
 */
";

const SUCI_HEAD: &str = "\
/*
 * suci.h: the calls of the paper \"Suci: a UDP message library with user-level flow control\", over any link of tsumuji.
 *
 * The manual is suci(3), an example examples/c/suci_loop.c. datagram_ready, datagram_wait, datagram_queue_length and
 * datagram_retransmission put flow control into the program's hands; everything else of tsumuji.h works on datagram_handle(sock).
 *
 * Functions return 0 or more, or -1 (NULL where they return a pointer) and set errno; tsumuji_last_error() says in words what to do.
 * Threads and pointers: see tsumuji.h.
 */
";

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn config(head: &str, guard: &str, renamed: &[(&str, &str)]) -> Config {
    Config {
        language: Language::C,
        cpp_compat: true,
        header: Some(format!("{LICENCE}{head}")),
        include_guard: Some(guard.to_owned()),
        autogen_warning: Some(
            "/* Made from bindings/c/src by `make headers`: change it there. */".to_owned(),
        ),
        no_includes: true,
        usize_is_size_t: true,
        style: Style::Both,
        documentation_style: DocumentationStyle::C99,
        line_length: 120,
        export: ExportConfig {
            rename: renamed
                .iter()
                .map(|(from, to)| ((*from).to_owned(), (*to).to_owned()))
                .collect::<HashMap<_, _>>(),
            ..ExportConfig::default()
        },
        ..Config::default()
    }
}

fn generate(config: Config, sources: &[&str]) -> String {
    let builder = sources.iter().fold(Builder::new(), |builder, source| {
        builder.with_src(here("src").join(source))
    });
    let mut text = Vec::new();
    builder
        .with_config(config)
        .generate()
        .expect("the sources parse")
        .write(&mut text);
    // `Handle` stands for a pointer.
    let text = String::from_utf8(text).expect("UTF-8");
    text.replace(" * handle", " *handle")
        .replace(" * sock", " *sock")
}

fn tsumuji() -> String {
    let renamed = [
        ("Handle", "struct tsumuji *"),
        ("Tsumuji", "tsumuji"),
        ("TsumujiOptions", "tsumuji_options"),
        ("TsumujiMembers", "tsumuji_members"),
        ("TsumujiMessage", "tsumuji_message"),
        ("TsumujiDatagram", "tsumuji_datagram"),
        ("TsumujiHandler", "tsumuji_handler"),
        ("TsumujiFlow", "tsumuji_flow"),
        ("TsumujiCounters", "tsumuji_counters"),
        ("TsumujiRemoteFlow", "tsumuji_remote_flow"),
        ("TsumujiWindow", "tsumuji_window"),
        ("TsumujiSender", "tsumuji_sender"),
        ("TsumujiChannel", "tsumuji_channel"),
        ("TsumujiThreadSender", "tsumuji_thread_sender"),
        ("TsumujiPolicy", "tsumuji_policy"),
        ("TsumujiRank", "tsumuji_rank"),
        ("TsumujiCombine", "tsumuji_combine"),
        ("TsumujiCollectiveCounters", "tsumuji_collective_counters"),
        ("TsumujiBoard", "tsumuji_board"),
        ("TsumujiBoardDrops", "tsumuji_board_drops"),
    ];
    let mut config = config(TSUMUJI_HEAD, "TSUMUJI_H", &renamed);
    config.export.exclude = vec!["Handle".to_owned()];
    config.sys_includes = vec!["stddef.h".to_owned(), "stdint.h".to_owned()];
    let version = env!("CARGO_PKG_VERSION");
    let mut parts = version.split('.');
    let mut part = || parts.next().expect("a version has three parts");
    config.after_includes = Some(format!(
        "\n/* The version of this header; tsumuji_version() is that of the library. */\n\
         #define TSUMUJI_VERSION \"{version}\"\n#define TSUMUJI_VERSION_MAJOR {}\n#define TSUMUJI_VERSION_MINOR {}\n#define TSUMUJI_VERSION_PATCH {}",
        part(),
        part(),
        part(),
    ));
    generate(
        config,
        &[
            "handle.rs",
            "api/codes.rs",
            "api/open.rs",
            "api/messages.rs",
            "api/datagrams.rs",
            "api/polling.rs",
            "api/channels.rs",
            "api/posts.rs",
            "api/state.rs",
            "api/flow.rs",
            "api/collectives.rs",
            "api/reductions.rs",
            "api/board.rs",
        ],
    )
}

fn suci() -> String {
    let renamed = [
        ("Tsumuji", "tsumuji"),
        ("Handle", "datagram_socket *"),
        ("DatagramSocket", "datagram_socket"),
        ("DatagramAddrdb", "datagram_addrdb"),
        ("DatagramFlow", "datagram_flow"),
    ];
    let mut config = config(SUCI_HEAD, "SUCI_H", &renamed);
    config.includes = vec!["tsumuji.h".to_owned()];
    // A newtype would be written as its content; C shall see a type of its own. The handle is tsumuji.h's.
    config.export.exclude = vec!["DatagramSocket".to_owned(), "Tsumuji".to_owned()];
    config.after_includes = Some(
        "\n// An open socket: reaches every id of the address database.\ntypedef struct datagram_socket datagram_socket;"
            .to_owned(),
    );
    generate(config, &["suci.rs"])
}

/// The committed headers are those that the sources give.
#[test]
fn headers_are_up_to_date() {
    for (name, wanted) in [("tsumuji.h", tsumuji()), ("suci.h", suci())] {
        let path = here("include").join(name);
        if std::env::var_os(WRITE).is_some() {
            std::fs::write(&path, &wanted).expect("written");
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == wanted,
            "{} is not what the sources give; run `make headers` and commit it",
            path.display()
        );
    }
}
