"""Captures of bad training steps: folders of JSON and safetensors files, never pickle."""

from torchnan.training.capture.capture import Capture, load_capture, require_capture
from torchnan.training.storage.errors import CaptureError, UnkeepableError

__all__ = ["Capture", "CaptureError", "UnkeepableError", "load_capture", "require_capture"]
