//! Collectives on peer pointers.
