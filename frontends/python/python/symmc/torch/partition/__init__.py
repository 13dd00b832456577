"""Partition: decides which nodes of a graph run as plans, and which Inductor or eager runs.

The search tries a graph as one program, legalises what is refused, and leaves to others what remains refused. The result is a function of the
list of the inputs of the graph.
"""
