"""One run of a training step: forward and backward, gradient statistics, saved inputs, and replays."""
