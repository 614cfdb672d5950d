"""Written by the build."""

version: str
