"""Supports training: a guard around each step, captures, a monitor, diagnosis and health checks."""
