"""Answers the questions of the C++ core about the Python program: call sites, names, and reachable tensors.

The core calls these functions only when there is something to report.
"""

from __future__ import annotations

import functools
import gc
import itertools
import json
import math
import os
import sys
import sysconfig
import traceback
import urllib.parse
import urllib.request
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.utils.checkpoint

from torchnan._load import _C
from torchnan.detection import (
    communication,
    dataset_items,
    graph_code,
    initial_weights,
    registry,
    signal_handlers,
    tensor_names,
)
from torchnan.detection.containment import contained
from torchnan.detection.graph_code import RawFrame
from torchnan.detection.reference_counts import references_elsewhere
from torchnan.detection.tensor_names import IN_QUERY, Memory, Owned, joined, module_at, parts

Line = tuple[str, int, str]  # file, line, function

_PATHS = sysconfig.get_paths()  # once: each call expands all of them

# Frames of files under these belong to the way from user code to an operation, not to user code.
_INTERNAL_PREFIXES = tuple(
    os.path.join(folder, "")
    for folder in (
        os.path.dirname(torch.__file__),
        os.path.dirname(os.path.dirname(__file__)),
        _PATHS["stdlib"],
    )
)
_COMMANDS = _PATHS["scripts"]  # pytest, torchrun: the folder of installed commands
_PACKAGES = (_PATHS["purelib"], _PATHS["platlib"])
_CALLERS = {  # packages that call functions of the user
    *("accelerate", "lightning", "lightning_fabric", "pytorch_lightning"),
    *("IPython", "ipykernel", "ipykernel_launcher.py", "tornado", "traitlets"),
    *("_pytest", "pluggy", "pytest", "xdist", "execnet"),
    "typing_extensions.py",  # its deprecated() wraps functions of torch.distributed
}

# The code that `python -c "..."` runs in a process started by multiprocessing or pytest-xdist.
_STARTERS = tuple(
    os.path.join(folder, name, "")
    for folder, name in [(_PATHS["stdlib"], "multiprocessing"), *((one, "execnet") for one in _PACKAGES)]
)

_ENGINE = torch.autograd.graph._engine_run_backward.__code__
_FUNCTION_FILE = sys.modules["torch.autograd.function"].__file__
_CHECKPOINT_FILE = sys.modules["torch.utils.checkpoint"].__file__
_OPTIMIZER_FILE = sys.modules["torch.optim.optimizer"].__file__
_SCALER_FILE = sys.modules["torch.amp.grad_scaler"].__file__

_PIPELINE_STAGE = os.path.join("torch", "distributed", "pipelining", "stage.py")

# Attributes under which a wrapper keeps the wrapped module: users do not know them as part of a name.
_WRAPPER_PARTS = {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}


def module_call_code() -> CodeType:
    """Returns the code whose first argument is the module being called."""
    return torch.nn.Module._wrapped_call_impl.__code__


def call_in_module(module: torch.nn.Module, call: Callable[[], Any]) -> Any:
    """Replaces the call of a module on the stack of a replayed compiled region."""
    return call()


def call_in_engine(call: Callable[[], Any]) -> Any:
    """Replaces the autograd engine on the stack of a compiled region that is replayed as part of a backward pass."""
    return call()


def replayed_module_call_code() -> CodeType:
    """The code of :func:`call_in_module`, whose first argument is the module."""
    return call_in_module.__code__


def engine_code() -> CodeType:
    """Returns the code that runs the autograd engine; frames inside it were called by backward nodes."""
    return _ENGINE


def _as_traced(frames: list[RawFrame]) -> list[RawFrame]:
    return graph_code.as_traced(frames, module_call_code())


def is_loss_scaling(live: list[RawFrame]) -> bool:
    """Whether an operation belongs to a loss scaler, which handles its own non-finite values."""
    if not live:
        return False
    code = live[0][0]
    return code.co_filename == _SCALER_FILE or any(code is one for one in _codes_of_scalers(torch.amp.GradScaler))


def _codes_of_scalers(base: type[object]) -> Iterator[CodeType]:
    """Yields the code of the methods of each subclass, and of the functions inside them."""
    for kind in base.__subclasses__():
        methods = [method.__code__ for method in vars(kind).values() if isinstance(method, FunctionType)]
        yield from methods
        yield from (code for method in methods for code in method.co_consts if isinstance(code, CodeType))
        yield from _codes_of_scalers(kind)


def is_shape_inference(live: list[RawFrame]) -> bool:
    """Whether an operation runs only to infer shapes: a pipeline stage does so on uninitialized memory."""
    return any("_inference" in code.co_name and code.co_filename.endswith(_PIPELINE_STAGE) for code, *_ in live)


def bucket(numel: int, element: int) -> str:
    """Returns the parameter of an element of the bucket that this thread communicates, or else the names of all.

    Args:
        numel: of the tensor of the element, which need not be the bucket.
        element: its index there.
    """
    parameters = communication.parameters_of_bucket()
    if not parameters:
        return ", ".join(map(clean, communication.names_in_fsdp_group()))
    if sum(parameter.numel() for parameter in parameters) == numel:
        ends = itertools.accumulate(parameter.numel() for parameter in parameters)
        parameters = [next(one for one, end in zip(parameters, ends, strict=True) if element < end)]
    return ", ".join(filter(None, map(name_of_parameter, parameters)))


def resolve_site(
    live: list[RawFrame], forward: list[RawFrame], node: str, grad_mode: bool, session_id: int
) -> tuple[list[Line], tuple[str, str] | None, str, list[Line]]:
    """Returns the user's stack, the module's path and the name of its class, and the phase of an operation, and the
    Python frames of the backward pass: of a Function's backward or of a hook.

    Args:
        live: the stack when the operation ran.
        forward: in the backward pass, the stack of the forward call that made the node.
        node: name of the node, empty outside the backward pass.
        grad_mode: whether gradients were being recorded.
        session_id: id of the detection session.
    """
    forward = _as_traced(forward)
    if not node:
        live = _as_traced(live)
        module, phase = _module_of(_modules(live), session_id), _phase(live, grad_mode)
        ends_backward = any(code is _ENGINE for code, *_ in live)  # callbacks that run after the last node
        return _lines(live), module, "backward" if ends_backward else phase, []
    inside = _inside_engine(live)
    # a traced backward pass has the lines of the forward pass
    if (traced := graph_code.first_frame(inside)) is not None:
        origin = _as_traced([inside[traced], *_before_function_apply(forward)])
        inside, origin = graph_code.split_at_backward(origin)
        return _lines(origin), _module_of(_modules(origin), session_id), "backward", _users(inside)
    if any(code.co_filename == _CHECKPOINT_FILE for code, *_ in inside):  # the forward pass, run again
        return _lines(inside), _module_of(_modules(inside) + _modules(forward), session_id), "forward", []
    if inside and inside[-1][0].co_filename != _FUNCTION_FILE:  # a hook; Function.backward has its file last
        hook = _lines(inside)
        outside = forward or live[len(inside) :]  # a leaf has no forward call: take the caller of backward()
        stack = [*_users(inside), *_users(outside)] or hook
        return stack, _module_of(_modules(forward), session_id), "backward", hook
    origin = _before_function_apply(forward) if inside else forward
    return _lines(origin or live), _module_of(_modules(origin), session_id), "backward", _users(inside)


def resolve_sites(sites: list[tuple[list[RawFrame], bool]], session_id: int) -> list[tuple[str | None, str]]:
    """Returns the module path and the phase of many operations outside the backward pass.

    Args:
        sites: the stack of each, and whether gradients were being recorded.
        session_id: id of the detection session.
    """
    traced = [(_as_traced(live), grad_mode) for live, grad_mode in sites]
    modules = [_module_of(_modules(live), session_id) for live, _ in traced]
    return [(module and module[0], _phase(*site)) for module, site in zip(modules, traced, strict=True)]


def owner_of_memory(
    memory: tuple[int, int, int], use: list[RawFrame], search_all_modules: bool, session_id: int
) -> tuple[bool, str] | None:
    """Returns whether memory belongs to a buffer (else a parameter), and its name.

    Args:
        memory: address of the StorageImpl, and the range of bytes in it.
        use: the stack of the operation that read it.
        search_all_modules: search modules that are not on the stack, too.
        session_id: id of the detection session.
    """
    roots = list(_roots(_modules(use), session_id))
    # Before a model is called, ranks send each other its weights. Afterwards they send gradients.
    search_all_modules |= rank() is not None and all(code is not _ENGINE for code, *_ in use)
    owned = _find(roots, search_all_modules, lambda root: tensor_names.known_owner_of_memory(root, Memory(*memory)))
    return None if owned is None else (owned.is_buffer, clean(owned.name))


def rank() -> int | None:
    """Returns the rank of this process; ``None`` if no process group is initialized."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else None


def initial_magnitude(storage: int) -> tuple[float, int] | None:
    """Returns the largest ``|x|`` of a parameter before its optimizer's first step, and the number of that step."""
    return initial_weights.find(storage)


def dataset_item(storage: int, address: int) -> str:
    """Returns the index in the dataset that this thread is reading, as text; ``""`` if it reads none."""
    return dataset_items.current(storage, address)


def bad_hyperparameter() -> str:
    """Returns as a clause which hyperparameter of the optimizer that takes a step here is bad; ``""`` if none is.

    Any that is NaN, and an infinite learning rate. Others may be infinite, as a limit is.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _is_optimizer_wrapper(frame.f_code):
            return _bad_hyperparameter_of(frame.f_locals.get("self"))
        frame = frame.f_back
    return ""


def _bad_hyperparameter_of(optimizer: object) -> str:
    for i, group in enumerate(getattr(optimizer, "param_groups", ())):
        for name, value in group.items():
            if isinstance(value, float) and (math.isnan(value) or (name == "lr" and math.isinf(value))):
                what = "the learning rate" if name == "lr" else clean(name)
                number = "NaN" if math.isnan(value) else f"{value:g}"
                return f"{what} is {number}, in parameter group {i}"
    return ""


def raised_at(error: BaseException) -> Line | None:
    """Returns the user's line that raised an error."""
    frames: list[RawFrame] = [(frame.f_code, line, None, -1) for frame, line in traceback.walk_tb(error.__traceback__)]
    return next(iter(_lines(frames[::-1])), None)


def calling_line() -> tuple[str, int] | None:
    """Returns the user's line that is calling an operation; ``None`` if a node of the backward pass calls it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _ENGINE:
        if not is_internal(frame.f_code.co_filename):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return None


def name_of_parameter(wanted: torch.Tensor) -> str:
    """Returns the name of a parameter in whichever module owns it, empty if none does."""
    owned = _find([], True, lambda root: tensor_names.known_owner_of_tensor(root, wanted))
    return "" if owned is None or owned.is_buffer else clean(owned.name)


def _find(
    roots: list[torch.nn.Module], search_all_modules: bool, look: Callable[[torch.nn.Module], Owned | None]
) -> Owned | None:
    """Returns what is found first in the models: as the last walks over them found them, or else by walking again.

    Args:
        roots: the models to look at first.
        search_all_modules: look at all others of the program, too.
        look: looks among the names that are known of a model.
    """

    def likely() -> Iterator[torch.nn.Module]:
        yield from roots
        if search_all_modules:
            yield from _roots_of_owners()

    for root in likely():
        with contained(IN_QUERY):
            if (owned := look(root)) is not None:
                return owned
    walked: set[int] = set()
    for root in itertools.chain(likely(), _roots_of_program() if search_all_modules else ()):
        if id(root) in walked:
            continue
        walked.add(id(root))
        with contained(IN_QUERY):
            tensor_names.walk(root)
            if (owned := look(root)) is not None:
                _note_root(root)
                return owned
    return None


def _roots_of_owners() -> Iterator[torch.nn.Module]:
    """Yields the models of the sessions, and the roots that have owned what was looked for before."""
    yield from map(unwrap, registry.models())
    yield from {id(root): root for known in list(_known_roots.values()) if (root := known()) is not None}.values()


def _roots_of_program() -> Iterator[torch.nn.Module]:
    """Yields every module that is not a child of another: models given to ``detect()`` first, then other models, bare
    lists of parameters, and modules made by a tracer. The search visits every object of the interpreter."""
    modules = _modules_of_program()
    children = {id(child) for module in modules for _, child in parts(module, "_modules")}
    roots = [unwrap(m) for m in modules if id(m) not in children]
    # A list may refer to parameters of a model, as that of the composable replicate() does.
    lists = (torch.nn.ParameterList, torch.nn.ParameterDict)
    roots.sort(key=lambda root: (issubclass(type(root), torch.fx.GraphModule), issubclass(type(root), lists)))
    yield from (*map(unwrap, registry.models()), *roots)


def _modules_of_program() -> list[torch.nn.Module]:
    return _C.instances_of(torch.nn.Module)


def reachable_tensors(storages: list[int]) -> list[tuple[torch.Tensor, bool]]:
    """Returns the tensors on these storages that user code can reach, and whether only as the gradient of a leaf."""
    wanted = set(storages)
    with torch._C.DisableTorchFunction():  # inspecting a tensor is not a call by user code
        found = _tensors_on(wanted)
        if found and gc.isenabled():
            found.clear()
            gc.collect()  # a tensor that only garbage refers to is not reachable
            found = _tensors_on(wanted)
    return found


def _tensors_on(storages: set[int]) -> list[tuple[torch.Tensor, bool]]:
    found: list[tuple[torch.Tensor, bool]] = []
    tensors = _C.instances_of(torch.Tensor)
    counted = list(zip(tensors, references_elsewhere(tensors), strict=True))
    for tensor, references in counted:
        if _C.storage_of(tensor) in storages and _is_held(tensor, references):
            found.append((tensor, False))
    for tensor, references in counted:
        gradient = _gradient_of(tensor)
        if gradient is not None and _C.storage_of(gradient) in storages and _is_held(tensor, references):
            found.append((gradient, True))
    return found


def _is_held(tensor: Any, references: int) -> bool:
    """Returns whether not only autograd refers to a tensor: as one that it saved, or as the leaf of a graph."""
    return references > int(tensor._use_count() > 1)


def _gradient_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Returns the gradient of a leaf; None if its class refuses to return it."""
    try:
        return tensor.grad if tensor.is_leaf else None
    except Exception as error:  # noqa: BLE001
        signal_handlers.let_through(error)
        return None


def _modules(frames: Iterable[RawFrame]) -> list[torch.nn.Module]:
    return [module for _, _, module, _ in frames if module is not None]


def _inside_engine(frames: list[RawFrame]) -> list[RawFrame]:
    """Returns the frames that the autograd engine has called: hooks, Function.backward, recomputation."""
    for i, (code, *_) in enumerate(frames):
        if code is _ENGINE or code is call_in_engine.__code__:
            return frames[:i]
    return frames  # on a thread of the engine


def _before_function_apply(frames: list[RawFrame]) -> list[RawFrame]:
    """Returns the stack of the call to Function.apply, without the frames of its forward."""
    for i, (code, *_) in enumerate(frames):
        if code.co_filename == _FUNCTION_FILE and code.co_name == "apply":
            return frames[i + 1 :]
    return frames


def _is_optimizer_wrapper(code: CodeType) -> bool:
    """Whether it is the function that PyTorch puts around each optimizer's step()."""
    return code.co_filename == _OPTIMIZER_FILE and code.co_name == "wrapper"


def _is_optimizer_step(frames: list[RawFrame], grad_mode: bool) -> bool:
    """Whether the innermost activity is an optimizer's arithmetic, not a closure's forward pass."""
    if grad_mode:
        return False
    for code, _, module, _ in frames:
        if module is not None:
            return False
        if _is_optimizer_wrapper(code):
            return True
    return False


def package_of(file: str) -> str | None:
    """Returns the installed package that a file belongs to, ``None`` if it belongs to none."""
    for folder in _PACKAGES:
        if file.startswith(folder + os.sep):
            return file[len(folder) + 1 :].split(os.sep, 1)[0]
    return None


@functools.lru_cache(maxsize=4096)
def is_internal(file: str) -> bool:
    """Whether a file belongs to the way from user code to an operation."""
    if file.startswith(("<frozen ", graph_code.FILE)):  # the import system; code generated by torch.fx
        return True
    if os.path.dirname(file) == _COMMANDS and os.path.basename(file) in _written_by_installers():
        return True
    package = package_of(file)
    if package is not None and package not in ("torch", "torchnan"):
        return package in _CALLERS
    return file.startswith(_INTERNAL_PREFIXES)


@functools.lru_cache(maxsize=4096)
def is_installed(file: str) -> bool:
    """Whether a file belongs to a package that the program uses, not to the program.

    Apart from the folders of installed packages, the nearest folder around the file decides. The project of an editable
    install and an entry of ``sys.path`` are installed, unless the program's script lies in them. Without a script, as
    in a notebook or under pytest, all that lies in the working directory is the program's.
    """
    if package_of(file) is not None or is_internal(file):
        return True
    try:
        script = _folder_of_script()
        program = script or os.getcwd()
        around = max((one for one in _import_folders() if _is_in(file, one)), key=len, default=program)
        is_programs = _is_in(program, around) or (script is None and _is_in(file, program))
        return not is_programs or file in _files_installed_in(around)
    except (OSError, ValueError):  # no working directory, damaged metadata
        return False


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(os.path.join(folder, ""))


def _folder_of_script() -> str | None:
    """Returns the folder of the program's script; ``None`` if there is none, or if an installed command runs the
    program."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if not script:
        return None
    script = os.path.abspath(script)
    folder = os.path.dirname(script)
    return None if folder == _COMMANDS or package_of(script) is not None or is_internal(script) else folder


def _import_folders() -> Iterator[str]:
    """Yields the folders of ``sys.path`` and those of the projects that are installed as editable."""
    yield from (os.path.abspath(one) for one in sys.path if isinstance(one, str))
    yield from _editable_projects()


@functools.cache
def _editable_projects() -> list[str]:
    from importlib import metadata  # not needed before there is a report

    abouts = [json.loads(one.read_text("direct_url.json") or "{}") for one in metadata.distributions()]
    urls = [about["url"] for about in abouts if about.get("dir_info", {}).get("editable")]
    return [urllib.request.url2pathname(urllib.parse.urlsplit(url).path) for url in urls]


@functools.cache
def _files_installed_in(folder: str) -> set[str]:
    """Returns the files that installers have put beside the program, as ``pip install --target`` does."""
    from importlib import metadata

    records = [one.read_text("RECORD") or "" for one in metadata.distributions(path=[folder])]
    return {os.path.join(folder, row.split(",")[0]) for record in records for row in record.splitlines()}


@functools.cache
def _written_by_installers() -> set[str]:
    """Returns the names of the commands that pip and uv write: a few lines that call a function of a package."""
    from importlib import metadata  # not needed before a command calls an operation

    return {command.name for command in metadata.entry_points(group="console_scripts")}


def _lines(frames: list[RawFrame]) -> list[Line]:
    """Returns the user's lines, innermost first; all lines if there are none."""
    return _users(frames) or _without_resumptions(_all_lines(_without_hidden(frames)))


def hide(code: CodeType) -> None:
    """Leaves a function of torchnan, and everything that it calls, out of stacks that have no line of the user."""
    _hidden[id(code)] = code


def _without_hidden(frames: list[RawFrame]) -> list[RawFrame]:
    hidden = [i for i, (code, *_) in enumerate(frames) if id(code) in _hidden]
    return frames[hidden[-1] + 1 :] if hidden else frames


def _users(frames: list[RawFrame]) -> list[Line]:
    everything = _all_lines(_without_start_of_worker(frames))
    users = [i for i, line in enumerate(everything) if not is_internal(line[0])]
    if users:
        _note_columns(everything[users[0]], frames[users[0]])
    return _without_resumptions([everything[i] for i in users])


def _without_start_of_worker(frames: list[RawFrame]) -> list[RawFrame]:
    """Returns a stack without the ``python -c "..."`` with which another process started this one."""
    started = len(frames)
    while started > 1 and frames[started - 1][0].co_filename == "<string>":
        started -= 1
    above = frames[started - 1][0].co_filename if started > 0 else ""
    return frames[:started] if above.startswith(_STARTERS) else frames


def _without_resumptions(lines: list[Line]) -> list[Line]:
    """Merges the generated functions in which Dynamo resumes after graph breaks into one line of the user."""
    kept: list[Line] = []
    resumed = ("", "")
    for file, line, name in lines:
        plain = graph_code.plain_name(name)
        own = plain != name.rpartition(".")[2]
        if (file, plain) != resumed:
            kept.append((file, line, plain if own else name))
        elif not own:
            kept[-1] = (*kept[-1][:2], name)
        resumed = (file, plain) if own else ("", "")
    return kept


def _all_lines(frames: list[RawFrame]) -> list[Line]:
    return [(code.co_filename, line or 0, graph_code.full_name_of(code)) for code, line, *_ in frames]


# Of functions that stand between an operation and the engine in a replay; by id(), because generated code has no hash.
_hidden: dict[int, CodeType] = {}
_columns: dict[Line, tuple[int, int] | None] = {}  # for the lines resolved last
_MAX_COLUMNS = 1000


def _note_columns(line: Line, frame: RawFrame) -> None:
    """Records where in its line an operation was called.

    If a line has several operations, the origin is the innermost one: its result is among the arguments of the others.
    """
    code, number, _, instruction = frame
    try:
        first, last, start, end = _position(code, instruction)
    except TypeError:  # generated code with a constant that has no hash
        return
    if start is None or end is None or (first, last) != (number, number):
        return
    if len(_columns) >= _MAX_COLUMNS:
        _columns.clear()
    known = _columns.setdefault(line, (start, end))
    if known is not None:
        is_inside, is_around = known[0] <= start and end <= known[1], start <= known[0] and known[1] <= end
        _columns[line] = (start, end) if is_inside else known if is_around else None  # side by side: unknown


@functools.lru_cache(maxsize=1000)  # Python finds a position by reading all before it
def _position(code: CodeType, instruction: int) -> tuple[int | None, int | None, int | None, int | None]:
    """Returns the first and last line of an instruction, and where in them it starts and ends; ``None`` if unknown."""
    if instruction < 0 or sys.version_info < (3, 11):
        return (None,) * 4
    return next(itertools.islice(code.co_positions(), instruction // 2, None), (None,) * 4)


def columns_of(line: Line) -> tuple[int, int] | None:
    """Returns where in a user's source line the operation was called, in bytes; ``None`` if unknown.

    Known only in the process that made the finding, and with Python 3.11 or newer.
    """
    return _columns.get(line)


def clean(path: str) -> str:
    """Removes the parts that wrappers put into a name."""
    return ".".join(part for part in path.split(".") if part not in _WRAPPER_PARTS)


def unwrap(module: torch.nn.Module) -> torch.nn.Module:
    """Returns the model inside parallel wrappers and ``torch.compile(model)``, in any order."""
    parallel = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)
    while True:
        # not isinstance(), which would ask the module for its class
        name = "module" if issubclass(type(module), parallel) else "_orig_mod"
        inner = module_at(module, name)
        if inner is None:
            return module
        module = inner


def _roots(modules: list[torch.nn.Module], session_id: int) -> Iterator[torch.nn.Module]:
    """Yields the modules that names start from: the session's model, then the root above the outermost on the stack."""
    session = registry.sessions.get(session_id)
    if session is not None and session.model is not None:
        yield unwrap(session.model)
    if modules:
        yield _root_above(unwrap(modules[-1]))


def _phase(live: list[RawFrame], grad_mode: bool) -> str:
    return "optimizer" if _is_optimizer_step(live, grad_mode) else "forward"


_known_roots: weakref.WeakKeyDictionary[torch.nn.Module, weakref.ref[torch.nn.Module]] = weakref.WeakKeyDictionary()


def _note_root(root: torch.nn.Module) -> None:
    if type(root).__hash__ is not None and root not in _known_roots:
        _known_roots[root] = weakref.ref(root)


def _parents() -> dict[int, torch.nn.Module]:
    """Returns the module around each module, by the id of the inner one; a wrapper only if there is no other."""
    inside = [(name, child, parent) for parent in _modules_of_program() for name, child in parts(parent, "_modules")]
    wrapped = {id(child): parent for name, child, parent in inside if name in _WRAPPER_PARTS}
    return wrapped | {id(child): parent for name, child, parent in inside if name not in _WRAPPER_PARTS}


def _root_above(module: torch.nn.Module) -> torch.nn.Module:
    """Returns the outermost ancestor of a module, even if it was not called; else the module itself."""
    known = _known_roots.get(module)
    root = known() if known is not None else None
    if root is None:
        parents = _parents()
        root, seen = module, {id(module)}
        while id(root) in parents and id(parents[id(root)]) not in seen:
            root = parents[id(root)]
            seen.add(id(root))
        root = unwrap(root)
        _known_roots[module] = weakref.ref(root)
    return root


def _module_of(modules: list[torch.nn.Module], session_id: int) -> tuple[str, str] | None:
    """Returns the dotted path of the innermost module that is part of a model, and the name of its class; ``None``
    outside every model.

    Args:
        modules: those that are being called, innermost first.
        session_id: id of the detection session.
    """
    with contained(IN_QUERY):
        roots = list(_roots(modules, session_id))
        for called in map(unwrap, modules):
            for root in roots:
                name = _name_in(root, called)
                if name or (name is not None and _is_model(called)):
                    return clean(name), clean(type(called).__name__)
    return None


class _KnownNames(NamedTuple):
    root: weakref.ref[torch.nn.Module]
    names: dict[int, str]  # by id: some modules cannot be compared


_known_names: dict[int, _KnownNames] = {}  # by the id of the root


def _name_in(root: torch.nn.Module, module: torch.nn.Module) -> str | None:
    """Returns the first name of a module in a model; ``None`` if it is not part of it.

    The names of a large model are computed once. A name is valid as long as it leads to the module.
    """
    known = _known_names.get(id(root))
    if known is not None and known.root() is root:
        name = known.names.get(id(module))
        if name is not None and module_at(root, name) is module:
            return name
        if name is None and _root_above(module) is not root:
            return None
    names = _names_in(root)
    key = id(root)
    _known_names[key] = _KnownNames(weakref.ref(root, lambda _: _known_names.pop(key, None)), names)
    return names.get(id(module))


def _names_in(root: torch.nn.Module) -> dict[int, str]:
    """Returns the first name of every module in a model, by ``id``."""
    names: dict[int, str] = {}
    pending = [("", root)]
    while pending:
        path, module = pending.pop()
        if id(module) not in names:
            names[id(module)] = path
            pending.extend((joined(path, name), child) for name, child in reversed(parts(module, "_modules")))
    return names


def _is_model(root: torch.nn.Module) -> bool:
    """Whether a module is a model, rather than a loss function or activation of PyTorch called on its own."""
    is_own_code = not type(root).__module__.startswith("torch.nn.")
    return is_own_code or any(parts(root, kind) for kind in ("_modules", "_parameters", "_buffers"))
