"""Written by the build."""

torch_version: str
version: str
