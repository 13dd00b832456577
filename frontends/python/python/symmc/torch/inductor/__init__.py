"""Inductor: replaces collectives of graphs that Inductor compiles by operators that run as plans.

The operators hold their computation as text, so that graphs from Inductor's cache run in other processes.
"""
