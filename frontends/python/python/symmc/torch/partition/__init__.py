"""Partition: decides which nodes of a graph run as plans, and which Inductor or eager runs.

The search tries a graph as one program, legalises nodes that are rejected, and leaves those that are still rejected to the fallback.
The result is a function of the list of the inputs of the graph.
"""
