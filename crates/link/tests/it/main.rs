//! The conformance suite on all links but DPDK's, and links of several processes on one interface. One program for all; the files beside this folder
//! say why they are programs of their own.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/segment.rs"]
mod segment;

mod conformance_packet;
mod conformance_shm;
mod conformance_udp;
mod conformance_wrapped;
mod conformance_xdp;
mod holder;
mod packet_process;
mod xdp_and_kernel;
