//! Executes the steps of a plan on one rank.
