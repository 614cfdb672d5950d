"""Random programs under torchnan, each compared with itself: run plainly, read in full, and explained by a slow truth.

``python -m tests.fuzz --seconds 600`` runs every generator in turn; ``python -m tests.fuzz graph 4711`` one program.
"""
