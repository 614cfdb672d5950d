"""Valid and invalid values for every option."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

NO_PATHS = ["", " ", "\t\n", "a\0b"]
WORDS = [
    "",
    " ",
    "\t",
    "raise ",
    " raise",
    "RAISE",
    "Raise",
    "raise\0",
    "ra\u0131se",
    "\uff52\uff41\uff49\uff53\uff45",
    "rais",
    "0",
    "1",
    "nan",
]
NO_COUNTS = [-1, -(2**63), 2**63, 10**400, 0.5, 1.0, math.nan, math.inf, True, False, None, "1", b"1", [1], 1j]
NO_BOOLS = [0, 1, 1.0, "True", "true", "", None, [], torch.tensor(True)]
NO_NAMES = [
    "aten::log", ("",), (" ",), ("aten::log ",), ("aten::log\0",), ("aten log",), ("aten::add.Tensor",), ("öp",),
    ("a,b",), (1,), (None,), ([],), None, 7, {"aten::log"}, b"aten::log",
]  # fmt: skip

# For every option of a detection: valid values, invalid values.
DETECTION: dict[str, tuple[list[Any], list[Any]]] = {
    "action": (["raise", "warn", "log", print], [*WORDS[:11], None, 1, b"raise", ("raise",), torch.ones(2)]),
    "check_nan": ([True, False], NO_BOOLS),
    "check_inf": ([True, False], NO_BOOLS),
    "when": (["harm", "origin"], ["", " harm", "Harm", "HARM", "origin\n", "later", None, 1, torch.ones(2)]),
    "backward": ([True, False], NO_BOOLS),
    "stacks": ([True, False], NO_BOOLS),
    "skip_ops": ([(), [], ("aten::log",), ["log", "_foreach_*"], ("aten::[a-c]?[!d]*",)], NO_NAMES),
    "rescan_every": ([0, 1, 2**63 - 1], NO_COUNTS),
    "headroom": ([True, False], NO_BOOLS),
    "max_findings": ([1, 100, 2**63 - 1], [*NO_COUNTS, 0]),
    "max_copied_bytes": ([0, 1, 2**63 - 1], NO_COUNTS),
    "max_preserved_bytes": ([0, 1, 2**63 - 1], NO_COUNTS),
    "max_explanation_seconds": ([0, 1, 2**63 - 1], NO_COUNTS),
    "log": ([None, "log", Path("log"), " log ", "caf\udce9", "größe"], [*NO_PATHS, "\ud800", 1, True, b"log", ["log"]]),
}

NO_INTEGERS_AS_TEXT = [
    "", " ", "ten", "1.0", "1e3", "0x10", "1_000", " 1", "1 ", "1\n", "+1", "--1", "\u0661\u0662", "\uff11\uff12", "²",
    "nan", "inf", "-1", "True", "9" * 30, "9" * 5000,
]  # fmt: skip
NO_NUMBERS_AS_TEXT = [
    "", " ", "ten", "1_0.5", " 1.5", "1.5 ", "1.5\n", "\u0661.\u0665", "\uff11.\uff15", "nan", "NaN", "inf", "-inf",
    "infinity", "1e400", "0", "-1.5", "0x1p3", "1,5", ".", "e5",
]  # fmt: skip
NO_BOOLS_AS_TEXT = ["", " ", "yes", "on", "2", " 1", "1 ", "tru", "\uff54\uff52\uff55\uff45", "None"]

# The same as text, in variables and on the command line.
DETECTION_AS_TEXT: dict[str, tuple[dict[str, Any], list[str]]] = {
    "action": ({"raise": "raise", "warn": "warn", "log": "log"}, [w for w in WORDS if "\0" not in w]),
    "when": ({"harm": "harm", "origin": "origin"}, ["", " harm", "Harm", "origin ", "later"]),
    "skip_ops": (
        {"aten::log": ("aten::log",), "a, _foreach_*": ("a", "_foreach_*")},
        ["", " ", ",", "a,,b", "a,", "a b", "a\tb", "a,\u3000b", "aten::add.Tensor"],
    ),
    "rescan_every": ({"0": 0, "7": 7, "007": 7, str(2**63 - 1): 2**63 - 1}, [*NO_INTEGERS_AS_TEXT, str(2**63)]),
    "max_copied_bytes": ({"0": 0, str(2**63 - 1): 2**63 - 1}, [*NO_INTEGERS_AS_TEXT, str(2**63)]),
    "max_preserved_bytes": ({"0": 0, str(2**63 - 1): 2**63 - 1}, [*NO_INTEGERS_AS_TEXT, str(2**63)]),
    "max_explanation_seconds": ({"0": 0, str(2**63 - 1): 2**63 - 1}, [*NO_INTEGERS_AS_TEXT, str(2**63)]),
    "max_findings": ({"1": 1, str(2**63 - 1): 2**63 - 1}, [*NO_INTEGERS_AS_TEXT, "0", str(2**63)]),
    "log": ({"x": "x", " x": " x", "caf\udce9": "caf\udce9"}, ["", " ", "\t\n"]),
    **dict.fromkeys(
        ("check_nan", "check_inf", "backward", "stacks", "headroom"),
        ({"1": True, "0": False, "true": True, "False": False, "TRUE": True}, NO_BOOLS_AS_TEXT),
    ),
}

NO_POSITIVE = [0, -1, -0.5, math.nan, math.inf, 10**400, "3", True, [1.0], 1j]
RECOVERY: dict[str, tuple[list[Any], list[Any]]] = {
    "on_bad_step": (["skip", "rollback", "raise"], ["", " skip", "Skip", "warn", "retry", None, 1, torch.ones(2)]),
    "max_consecutive": ([1, 2**63 - 1], [*NO_COUNTS, 0]),
    "max_skips": ([0], NO_COUNTS),
    "remedy": (
        [{}, {"data": "raise"}],
        [{"data": "warn"}, {"date": "skip"}, {1: 2}, {"data": None}, [], "data=skip", None],
    ),
    "instability": (
        [{}, {"spike": "skip", "plateau": "lower_clip"}],
        [{"spike": "retry"}, {"healthy": "skip"}, {1: 2}, {"spike": None}, [], "spike=skip", None],
    ),
    "retries": ([0, 5], NO_COUNTS),
    "max_norm": ([None, 1, 0.5], NO_POSITIVE),
    "exact_clip": ([True, False], NO_BOOLS),
    "norm_limit": ([None, 1, 1e300], NO_POSITIVE),
    "norm_factor": ([None, 1, 0.5], NO_POSITIVE),
    "norm_window": ([10], [*NO_COUNTS, 0, 9]),
    "max_scaler_skips": ([1], [*NO_COUNTS, 0]),
    "replay": ([True, False], NO_BOOLS),
    "try_remedies": ([True, False], NO_BOOLS),
    "keep": (["reference", "copy"], ["", "Copy", "copy ", "deepcopy", None]),
    "captures": ([None, "x", Path("x")], [*NO_PATHS, 1, b"x"]),
    "max_captures": ([1], [*NO_COUNTS, 0]),
    "capture_ranks": ([1], [*NO_COUNTS, 0]),
    "max_capture_bytes": ([1], [*NO_COUNTS, 0]),
    "snapshot_every": ([0, 1], NO_COUNTS),
    "snapshots": ([1], [*NO_COUNTS, 0]),
    "snapshot_folder": ([None, "x", Path("x")], [*NO_PATHS, 1, b"x"]),
    "rollback_depth": ([1, 2], [*NO_COUNTS, 0]),
    "max_rollbacks": ([0], NO_COUNTS),
    "health": ([True, False], NO_BOOLS),
    "rewind_data": ([True, False], NO_BOOLS),
    "lr_factor": ([1, 0.5, 1e-9], [*NO_POSITIVE, 1.5, 2, None]),
    "lr_ramp": ([0], NO_COUNTS),
    "clip_factor": ([1, 0.5, 1e-9], [*NO_POSITIVE, 1.5, 2, None]),
    "out_of_memory": (["raise", "split"], ["", "Split", "skip", None]),
    "max_splits": ([1], [*NO_COUNTS, 0]),
    "max_undo_bytes": ([0, 1], NO_COUNTS),
    "log": ([None, "x", Path("x")], [*NO_PATHS, 1, b"x"]),
}
NO_TEXT_OF = {
    int: NO_INTEGERS_AS_TEXT,
    float: NO_NUMBERS_AS_TEXT,
    bool: NO_BOOLS_AS_TEXT,
    str: ["", " "],
    type(None): ["", " "],
}
