"""Partition: what of a graph runs as plans, and what Inductor or eager runs."""
