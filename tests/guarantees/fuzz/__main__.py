"""Fuzzes a reader that is written in Python: ``python -m tests.guarantees.fuzz log_file FOLDER -max_total_time=60``.

The arguments after the name go to libFuzzer. An input that causes an undocumented error is kept as ``crash-...``; once
it is fixed it goes into ``corpus/<reader>``, which `make test` runs over.
"""

from __future__ import annotations

import importlib
import sys

import atheris

from tests.guarantees.fuzz import json_mutator

with atheris.instrument_imports(include=["torchnan", "tomllib"]):
    reader = importlib.import_module(f"tests.guarantees.fuzz.{sys.argv[1]}")

reader.seeds()  # made once, and not caused by an input
atheris.Setup([sys.argv[0], *sys.argv[2:]], reader.one, custom_mutator=json_mutator.mutate)
atheris.Fuzz()
