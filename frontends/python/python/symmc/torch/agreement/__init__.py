"""Agreement: functions that several ranks call together, and what they compile and run by what all of them have."""
