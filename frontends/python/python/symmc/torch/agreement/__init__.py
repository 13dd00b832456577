"""Agreement: functions that several ranks call together. In each call the ranks agree on what they run, by what all of them have."""
