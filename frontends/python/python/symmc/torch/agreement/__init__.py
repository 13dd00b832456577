"""Agreement: functions that several ranks call together. In each call the ranks agree on the plan to run, from the graphs that all of
them have.
"""
