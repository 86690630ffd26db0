//! The Wireshark dissector (`tools/wireshark/tsumuji.lua`) against the writers of `wire`: tshark must show what was written,
//! call malformed what `wire::parse` refuses, and never end in a Lua error.

mod bench;
mod carriers;
mod fields;
mod mangled;
mod samples;
