"""Inductor: collectives of graphs that Inductor compiles, planned and run by symmc."""
