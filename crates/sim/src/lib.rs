//! See docs.
