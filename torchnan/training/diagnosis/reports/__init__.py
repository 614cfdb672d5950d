"""Presents a diagnosis: in a terminal, as a page, as a post-mortem."""
