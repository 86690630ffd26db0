//! Collective operations of real endpoints. One program for all, for each one links the endpoint again.

mod agreement;
mod chaos;
mod common;
mod death;
mod differing;
mod ethernet;
mod joined;
mod operations;
mod processes;
mod progress;
