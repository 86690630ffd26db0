//! Real endpoints, alone and together. One program for all, for each one links the endpoint again; the files beside this folder say why they are
//! programs of their own.

#[path = "../common/mod.rs"]
mod common;

mod away;
mod away_cables;
mod cables;
mod channels;
mod cluster;
mod congestion;
mod death;
mod dissector;
mod hands;
mod joining;
mod launch;
mod messages;
mod metrics;
mod narrow_cables;
mod order;
mod polling;
mod posts;
mod references;
mod rough;
mod silence;
mod stopped;
mod together;
mod tuning;
