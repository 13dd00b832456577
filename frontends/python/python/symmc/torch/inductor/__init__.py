"""Inductor: replaces collectives of graphs that Inductor compiles by operators that run as plans.

The operators hold what they compute as text, so that graphs which Inductor keeps in its cache run in other processes.
"""
