//! Placeholder page; replaced as the crate is written.
