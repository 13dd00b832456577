"""Ranks of a job: process groups of PyTorch, and how ranks exchange values while they compile and in calls. Knows no graph."""
