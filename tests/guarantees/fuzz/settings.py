"""Any bytes as a policy in TOML and as the variables of the environment: settings, or an OptionError."""

from __future__ import annotations

import contextlib
import json
import tempfile

from torchnan import startup
from torchnan.config import policy
from torchnan.config.detection_options import DetectionOptions
from torchnan.config.options import OptionError


def seeds() -> list[bytes]:
    """Every option, as TOML and as a variable."""
    defaults = {name: option.default for name, option in policy.options().items() if option.default}
    toml = "\n".join(f"{name} = {json.dumps(default)}" for name, default in defaults.items())
    variables = [f"_POLICY_{name.upper()}={option.default}" for name, option in policy.options().items()]
    variables += [f"_{name.upper()}={option.default}" for name, option in DetectionOptions.options().items()]
    return [toml.encode(), "\n".join(variables).encode(), b"=raise\n_SKIP_OPS=aten::log,_foreach_*\n_MAX_FINDINGS=1"]


def one(data: bytes) -> None:
    """Reads them."""
    with tempfile.NamedTemporaryFile() as file, contextlib.suppress(OptionError):
        file.write(data)
        file.flush()
        policy.Policy.from_toml(file.name)
    environment = _environment_of(data)
    with contextlib.suppress(OptionError):
        startup.options_from(environment)
    with contextlib.suppress(OptionError):
        policy.Policy().with_environment(environment)


def _environment_of(data: bytes) -> dict[str, str]:
    """A line is a variable; its name is what follows ``TORCHNAN``."""
    pairs = (line.partition("=") for line in data.decode("utf-8", "surrogateescape").replace("\0", "").split("\n"))
    return {f"TORCHNAN{name}": value for name, _, value in pairs if name != "_POLICY"}  # that one opens a file
