"""Models and tensors that answer no question, or answer with nonsense. They can be trained nevertheless."""

from __future__ import annotations

import torch
from torch import nn

from tests.support.bad_training import Net


class Hostile(Net):
    """Active from its first forward pass on; the optimizer has its parameters by then."""

    armed = False

    def forward(self, x):
        self.armed = True
        return super().forward(x)


class NoChildren(Hostile):
    def named_children(self):
        if self.armed:
            raise RuntimeError("no children")
        return super().named_children()


class NoModules(Hostile):
    def named_modules(self, *args, **kwargs):
        if self.armed:
            raise KeyError("no modules")
        return super().named_modules(*args, **kwargs)


class NoParameters(Hostile):
    def named_parameters(self, *args, **kwargs):
        if self.armed:
            raise AssertionError("no parameters")
        return super().named_parameters(*args, **kwargs)


class NoClass(Hostile):
    @property
    def __class__(self):
        if self.armed:
            raise RuntimeError("no class")
        return type(self)


class NoRepr(Hostile):
    def __repr__(self):
        raise RuntimeError("no repr")

    __str__ = __repr__


class NoEquality(Hostile):
    __hash__ = nn.Module.__hash__

    def __eq__(self, other):
        raise RuntimeError("not to be compared")


class NoAttributes(Hostile):
    def __getattr__(self, name):
        if self.armed and name not in ("layer", "norm", "out", "branch"):
            raise RuntimeError(f"no {name}")
        return super().__getattr__(name)


class NamedByNumber(Hostile):
    def forward(self, x):
        self._modules[3] = nn.Identity()
        return super().forward(x)


class NamedByNothing(Hostile):
    def forward(self, x):
        self._modules[None] = nn.Identity()
        return super().forward(x)


class ModulesThatAreNone(Hostile):
    def forward(self, x):
        self._modules["nothing"] = None
        return super().forward(x)


class HalfMade(nn.Module):
    """Alive, and ``nn.Module.__init__`` has not run: a model while it is made."""

    def __init__(self):
        pass


class Stranger(torch.Tensor):
    """A subclass that answers no question."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise RuntimeError("no answer")


MODELS = (
    NoChildren,
    NoModules,
    NoParameters,
    NoClass,
    NoRepr,
    NoEquality,
    NoAttributes,
    NamedByNumber,
    NamedByNothing,
    ModulesThatAreNone,
)
