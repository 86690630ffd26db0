//! Builds the DPDK shim if the feature `dpdk` is on: a shared object that the program carries in itself and loads when the first
//! DPDK link is opened (docs/decisions, "The DPDK shim is carried, not linked"). Without the feature it does nothing.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "dpdk")]
    dpdk::build();
}

#[cfg(feature = "dpdk")]
mod dpdk {
    use std::path::PathBuf;
    use std::process::Command;

    const SOURCE: &str = "src/dpdk/shim.c";

    pub(super) fn build() {
        println!("cargo::rerun-if-changed={SOURCE}");
        println!("cargo::rerun-if-changed=src/dpdk/guards.h");
        for name in ["PKG_CONFIG", "PKG_CONFIG_PATH"] {
            println!("cargo::rerun-if-env-changed={name}");
        }
        let cflags = pkg_config("--cflags");
        let libs = pkg_config("--libs");
        let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
        let object = out.join("tsumuji_dpdk.so");
        let mut command = cc::Build::new()
            .opt_level(2)
            .pic(true)
            .flag("-std=gnu11")
            .warnings_into_errors(false)
            .get_compiler()
            .to_command();
        command
            .args(["-Wall", "-Wextra", "-shared", "-fvisibility=hidden"])
            .args(cflags)
            .arg(SOURCE)
            .arg("-o")
            .arg(&object)
            // Libraries that nothing here uses are not asked for when the object is loaded.
            .arg("-Wl,--as-needed")
            .args(libs);
        let status = command.status().expect("a C compiler (package gcc)");
        assert!(status.success(), "{SOURCE} does not compile: {command:?}");
    }

    fn pkg_config(question: &str) -> Vec<String> {
        let program = std::env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
        let output = Command::new(program)
            .args([question, "libdpdk"])
            .output()
            .expect("pkg-config (package pkg-config)");
        assert!(
            output.status.success(),
            "the feature `dpdk` needs libdpdk (`apt-get install libdpdk-dev`): {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let flags = String::from_utf8(output.stdout).expect("flags are text");
        flags.split_ascii_whitespace().map(str::to_owned).collect()
    }
}
