"""Tests and measurements on a machine with a GPU, in stages: `python -m benchmarks.gpu OUT`."""
