"""Graphs: functions on fx graphs, their nodes, symbolic sizes and layouts, for all stages. Depends on no stage."""
