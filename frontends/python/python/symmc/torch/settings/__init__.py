"""Settings that all stages read: options, the version of PyTorch, files of reports. Depends on no stage."""
