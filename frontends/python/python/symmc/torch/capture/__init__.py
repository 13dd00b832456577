"""Capture: entry points that take a graph of Dynamo, an exported program or an fx graph, and pass functional graphs of ATen operators
to the stages below. The nodes of these graphs carry fake values.
"""
