"""What a machine with a GPU shows, in stages: `python -m benchmarks.gpu OUT`."""
