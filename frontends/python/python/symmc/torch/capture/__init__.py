"""Capture: entry points that take a graph of Dynamo, an exported program or an fx graph, and hand functional graphs of ATen operators to the
stages below. Nodes of these graphs carry fake values.
"""
