"""Follows what ranks communicate through Python: callbacks of futures, buckets of gradients, and objects."""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from torchnan._load import _C
from torchnan.detection.containment import contained
from torchnan.detection.replacement import replace

Hand = Callable[[Any, Any], Any]

_FSDP_POST_BACKWARD = ("_fsdp_param_group.py", "post_backward")


class _OfThread(threading.local):
    bucket: Callable[[], Any] = staticmethod(lambda: None)  # the last one given to a communication hook; weak
    parameters: list[weakref.ref[torch.Tensor]] | None = None  # of the bucket that a callback belongs to


_of_thread = _OfThread()


def install() -> list[Callable[[], None]]:
    """Follows values through futures, buckets and objects; the returned functions end that."""
    undo = [replace(torch._C.Future, name, _handing_over) for name in ("then", "add_done_callback")]
    if dist.is_available():
        bucket = torch._C._distributed_c10d.GradBucket
        undo += [replace(bucket, name, _noting_bucket) for name in ("buffer", "gradients", "parameters")]
        undo.append(replace(dist.distributed_c10d, "_pickler", _noting_sent))
        undo.append(replace(dist.distributed_c10d, "_unpickler", _marking_received))
    return undo


def parameters_of_bucket() -> list[torch.Tensor]:
    """Returns the parameters whose gradients this thread communicates, in the order of their bucket."""
    if _of_thread.parameters is not None:
        return [parameter for one in _of_thread.parameters if (parameter := one()) is not None]
    bucket = _of_thread.bucket()
    return list(bucket.parameters()) if bucket is not None else []


def names_in_fsdp_group() -> list[str]:
    """Returns the names of the parameters whose gradients FSDP is about to reduce on this thread."""
    frame = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if code.co_name == _FSDP_POST_BACKWARD[1] and code.co_filename.endswith(_FSDP_POST_BACKWARD[0]):
            group = frame.f_locals.get("self")
            return [str(one._param_fqn) for one in getattr(group, "fsdp_params", ()) if one._param_fqn]
        frame = frame.f_back  # type: ignore[assignment]
    return []


def _handing_over(hand: Hand) -> Hand:
    @functools.wraps(hand)
    def handing_over(future: Any, callback: Any) -> Any:
        with contained("following the callback of a future"):
            callback = _on_behalf(callback)
        return hand(future, callback)

    return handing_over


def _on_behalf(callback: Any) -> Any:
    """Returns a callback that belongs to the current work of this thread, wherever it runs."""
    site = _C.CallbackSite.here()
    if site is None or not callable(callback):
        return callback
    parameters = _of_thread.parameters
    if parameters is None:
        parameters = [weakref.ref(one) for one in parameters_of_bucket()] or None

    @functools.wraps(callback)
    def run(*args: Any) -> Any:
        before, _of_thread.parameters = _of_thread.parameters, parameters
        try:
            return site.run(callback, *args)
        finally:
            _of_thread.parameters = before

    return run


def _noting_bucket(look: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wraps the function that every communication hook calls first."""

    @functools.wraps(look)
    def noting(bucket: Any) -> Any:
        _of_thread.bucket = weakref.ref(bucket)
        return look(bucket)

    return noting


def _noting_sent(pickler: type[Any]) -> type[Any]:
    """Returns the class that writes the objects for other ranks: it notes the tensors in them as sent."""

    class NotingPickler(pickler):  # type: ignore[misc]
        def reducer_override(self, value: Any, /) -> Any:
            if issubclass(type(value), torch.Tensor):
                with contained("noting a value for another rank"):
                    _C.record_sent(value)
            override = getattr(super(), "reducer_override", None)
            return NotImplemented if override is None else override(value)

    return NotingPickler


def _marking_received(unpickler: type[Any]) -> type[Any]:
    """Returns the class that unpickles objects sent by other ranks: it marks their tensors as received."""

    class MarkingUnpickler(unpickler):  # type: ignore[misc]
        def find_class(self, module: str, name: str, /) -> Any:
            found = super().find_class(module, name)
            return _marking(found) if (module, name) == ("torch._utils", "_rebuild_tensor_v2") else found

    return MarkingUnpickler


def _marking(rebuild: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def rebuilding(*args: Any) -> torch.Tensor:
        tensor = rebuild(*args)
        with contained("noting a value from another rank"):
            _C.record_received(tensor)
        return tensor

    return rebuilding
