"""What is kept on disk of a training step: a folder of JSON and safetensors files, never pickle."""

from torchnan.capture.errors import CaptureError, UnkeepableError
from torchnan.capture.load import Capture, load_capture

__all__ = ["Capture", "CaptureError", "UnkeepableError", "load_capture"]
