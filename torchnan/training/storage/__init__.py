"""Safe files: atomic folders, and nested values as JSON and safetensors, never pickle."""
