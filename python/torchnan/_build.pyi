"""Written by the build."""

torch_version: str
