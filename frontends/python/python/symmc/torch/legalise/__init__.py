"""Legalise: rewrites graphs into operators that symmc imports, without changing what they compute.

A rewrite may ask fake values, but adds no guard on sizes: it holds for all sizes of the graph.
"""
