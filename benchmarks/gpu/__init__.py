"""Tests and measurements on a machine with a GPU, in calls of ten minutes: `python -m benchmarks.gpu 1 OUT`."""
