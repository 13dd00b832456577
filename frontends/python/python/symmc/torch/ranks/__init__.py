"""Ranks of a job: process groups of PyTorch, and how ranks exchange values, through a store while they compile and through shared
memory in calls. Knows no graph.
"""
