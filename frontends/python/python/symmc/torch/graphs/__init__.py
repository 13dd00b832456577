"""Graphs: what any stage asks of an fx graph, its nodes, symbolic sizes and layouts. Knows no stage."""
