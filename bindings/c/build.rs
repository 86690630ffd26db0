//! Gives the shared library the name by which programs ask for it at run time. It changes when programs built before cannot use it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libtsumuji.so.0");
}
