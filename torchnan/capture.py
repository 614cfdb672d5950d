"""Public names of captures: bad training steps in folders of JSON and safetensors files."""

from torchnan.training.capture import Capture, CaptureError, UnkeepableError, load_capture

__all__ = ["Capture", "CaptureError", "UnkeepableError", "load_capture"]
