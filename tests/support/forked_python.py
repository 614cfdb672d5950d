"""Python programs in separate processes that begin with PyTorch imported.

Importing PyTorch takes two seconds, nearly all the time of a short program. A server imports it once, with what else
its programs need, and forks for each program. It never imports torchnan, which is loaded afresh in every fork. If a
test is about the start of a program, it uses ``tests.support.processes`` instead.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tests.support.processes import DEADLINE, TIME_FOR_STACKS, restore_ctrl_c

# A fork leaves the loop, so that it runs its program at the top level of a module and ends like any other.
SERVER = """
import faulthandler, importlib, json, os, runpy, socket, sys
import torch
import torch._dynamo  # as the first optimizer would, for two more seconds
for module in sys.argv[2:]:
    importlib.import_module(module)

server = socket.socket(fileno=int(sys.argv[1]))
while True:
    request, descriptors, _, _ = socket.recv_fds(server, 1 << 20, 2)
    if not request:
        os._exit(0)
    request = json.loads(request)
    if "wait_for" in request:
        server.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(request["wait_for"], 0)[1]))
        continue
    child = os.fork()
    if child == 0:
        break
    for descriptor in descriptors:
        os.close(descriptor)
    server.send(b"%d" % child)

server.close()
os.setpgid(0, 0)
for descriptor, own in zip(descriptors, (1, 2)):
    os.dup2(descriptor, own)
    os.close(descriptor)
faulthandler.enable()
os.environ.update(request["variables"])
os.chdir(request["cwd"])
sys.path[1:1] = filter(None, request["variables"].get("PYTHONPATH", "").split(os.pathsep))
sys.argv = request["arguments"]
program = compile(request["code"], "<string>", "exec")
for name in [name for name in globals() if not name.startswith("__") and name != "program"]:
    del globals()[name]
del name
import torchnan_autoload  # as the import of PyTorch would
torchnan_autoload.switch_on_from_environment()
del torchnan_autoload
exec(globals().pop("program"))
"""
FILE = """
import os, runpy, sys
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""
MODULE = """
import runpy, sys
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def run_forked(
    code: str,
    *arguments: str,
    cwd: Path | None = None,
    deadline: float = DEADLINE,
    imports: tuple[str, ...] = (),
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Runs Python code in a fork that has imported PyTorch, with no TORCHNAN variables but the given ones.

    ``imports`` names modules that are imported before the fork, once for all programs that need the same ones.

    Its output goes to files, so the program must not limit the size of files. After the deadline it is killed, and the
    test fails with its output and the stacks of its threads.
    """
    return _finished([_start(code, ["-c", *arguments], cwd, variables, imports)], deadline)


def run_forked_file(
    file: Path, *arguments: str, cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """The same for a file."""
    return _finished([_start(FILE, [str(file), *arguments], cwd, variables)])


def run_forked_command(*arguments: str, cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """The same for a command of ``torchnan``."""
    return _finished([_start(MODULE, ["torchnan", *arguments], cwd, variables)])


def run_forked_ranks(file: Path, world: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The same for a file that runs on several ranks, with the variables that ``torchrun`` gives them.

    Returns the first status that is not 0, and what all have written, rank by rank.
    """
    import torch.distributed as dist

    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    variables = {
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
    }
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank), **variables} for rank in range(world)]
    return _finished([_start(FILE, [str(file), *arguments], None, rank) for rank in ranks])


@dataclass
class _Program:
    what: str
    process: int
    server: socket.socket
    output: BinaryIO
    errors: BinaryIO

    def text(self) -> tuple[str, str]:
        return _read(self.output), _read(self.errors)


def _start(
    code: str, arguments: list[str], cwd: Path | None, variables: dict[str, str], imports: tuple[str, ...] = ()
) -> _Program:
    too_late = [name for name in variables if name.startswith(("PYTHON", "OMP_")) and name != "PYTHONPATH"]
    assert not too_late, f"read before the fork: {too_late}"
    request = {"code": code, "arguments": arguments, "cwd": str(cwd or Path.cwd()), "variables": variables}
    output, errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
    server = _server(imports)
    socket.send_fds(server, [json.dumps(request).encode()], [output.fileno(), errors.fileno()])
    return _Program(f"{arguments}: {code}", int(server.recv(64)), server, output, errors)


def _finished(programs: list[_Program], deadline: float = DEADLINE) -> subprocess.CompletedProcess[str]:
    try:
        statuses = [_status(program, deadline) for program in programs]
    except BaseException:
        for program in programs:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.process, signal.SIGKILL)
            program.server.close()  # it may be about to answer
        _server.cache_clear()
        raise
    texts = [program.text() for program in programs]
    status = next((status for status in statuses if status), 0)
    return subprocess.CompletedProcess(programs[0].what, status, *map("".join, zip(*texts, strict=True)))


def _status(program: _Program, deadline: float) -> int:
    server = program.server
    server.send(json.dumps({"wait_for": program.process}).encode())
    server.settimeout(deadline)
    try:
        return int(server.recv(64))
    except TimeoutError:
        os.kill(program.process, signal.SIGABRT)  # faulthandler prints the stacks
        server.settimeout(TIME_FOR_STACKS)
        server.recv(64)
        output, errors = program.text()
        raise AssertionError(f"no end after {deadline:g} s: {program.what}\n{output}\n{errors}") from None
    finally:
        server.settimeout(None)


@functools.cache
def _server(imports: tuple[str, ...]) -> socket.socket:
    own, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TORCHNAN")}
    subprocess.Popen(  # ends when this end of the pair is closed
        [sys.executable, "-c", SERVER, str(its.fileno()), *imports],
        env=environment | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        pass_fds=[its.fileno()],
        preexec_fn=restore_ctrl_c if signal.getsignal(signal.SIGINT) == signal.SIG_IGN else None,
    )
    its.close()
    return own


def _read(file: BinaryIO) -> str:
    with file:
        file.seek(0)
        return file.read().decode(errors="backslashreplace")
