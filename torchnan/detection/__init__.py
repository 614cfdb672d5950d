"""The Python side of detection: sessions, findings, hooks and introspection."""
