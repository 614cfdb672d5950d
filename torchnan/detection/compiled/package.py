"""AOTInductor packages: a value that one returns is followed if the package was made while detection was on."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torchnan._load import _C
from torchnan.detection.compiled.compilation import unwatched
from torchnan.detection.compiled.stack import Line
from torchnan.detection.containment import contained

if TYPE_CHECKING:
    from torchnan.detection.compiled.packaged_graph import PackagedGraph

NO_GRAPH = "the package was not made in this process under detection, and has no graph"
OTHER_WEIGHTS = "the weights that the package was made with are gone or replaced"
OWN_STATE = "the package overwrites buffers of its own"

_paths: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()  # by loader
_graphs: weakref.WeakKeyDictionary[Any, PackagedGraph] = weakref.WeakKeyDictionary()
_with_other_weights: weakref.WeakSet[Any] = weakref.WeakSet()
_calls: weakref.WeakKeyDictionary[Any, dict[str, Callable[..., Any]]] = weakref.WeakKeyDictionary()  # by obstacle


def making(compile_exported: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the function that compiles an exported program for a package so that its graph is kept."""

    @functools.wraps(compile_exported)
    def compile_and_keep(gm: Any, *args: Any, **options: Any) -> Any:
        graph = None
        with contained("storing the graph of an AOTInductor package"):
            from torchnan.detection.compiled import packaged_graph

            graph = packaged_graph.graph_of(gm)
        with unwatched():
            made = compile_exported(gm, *args, **options)
        with contained("storing the graph of an AOTInductor package"):
            if graph is not None:
                packaged_graph.remember(made if isinstance(made, list) else [made], graph)
        return made

    return compile_and_keep


def loading(load: Callable[..., None]) -> Callable[..., None]:
    """Wraps the constructor of a package's loader: the package is reported under its path, and its graph is found."""

    @functools.wraps(load)
    def load_named(loader: Any, path: Any, model_name: Any = "model", *rest: Any, **options: Any) -> None:
        load(loader, path, model_name, *rest, **options)
        with contained("naming an AOTInductor package"):
            from torchnan.detection.compiled import packaged_graph

            _paths[loader] = str(path)
            found = packaged_graph.find(str(path), str(model_name))
            if found is not None:
                _graphs[loader] = found

    return load_named


def replacing_weights(load_constants: Callable[..., None]) -> Callable[..., None]:
    """Wraps the function that replaces the weights of a package: its graph is then out of date."""

    @functools.wraps(load_constants)
    def load_other(loader: Any, *args: Any, **options: Any) -> None:
        with contained("recording that a package gets other weights"):
            _with_other_weights.add(loader)
        load_constants(loader, *args, **options)

    return load_other


def checking(run: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the call of a package so that its results are checked."""

    @functools.wraps(run)
    def run_checked(loader: Any, inputs: list[Any], *rest: Any, **options: Any) -> Any:
        call = None
        with contained("checking an AOTInductor package"):
            # A stream is given for a device, where results are not checked at the border.
            if _C.current_session() is not None and type(inputs) is list and not rest and not options:
                _C.mark_all_stale(inputs)  # it may write into them without reporting it
                call = _checked(loader, run, inputs)
        return run(loader, inputs, *rest, **options) if call is None else call()

    return run_checked


def _checked(loader: Any, run: Callable[..., Any], inputs: list[Any]) -> Callable[[], Any]:
    made_of = _graphs.get(loader)
    weights = None if made_of is None or loader in _with_other_weights else made_of.alive_weights()
    if made_of is None:
        obstacle = NO_GRAPH
    elif weights is None:
        obstacle = OTHER_WEIGHTS
    else:
        obstacle = OWN_STATE if made_of.keeps_state() else ""
    calls = _calls.setdefault(loader, {})
    if obstacle not in calls:
        calls[obstacle] = _region(loader, run, None if obstacle else made_of, obstacle)
    call = functools.partial(calls[obstacle], *([] if obstacle else weights or []), *inputs)
    inputs.clear()  # like the loader before it runs
    return call


def _region(loader: Any, run: Callable[..., Any], made_of: PackagedGraph | None, obstacle: str) -> Callable[..., Any]:
    from torchnan.detection.compiled.region import Region
    from torchnan.detection.compiled.replay import Traced

    known, weights = weakref.ref(loader), 0 if made_of is None else len(made_of.weights)

    def run_alive(*args: Any) -> Any:
        return run(known(), list(args[weights:]))

    name = " ".join(["AOTInductor package", *_paths.get(loader, "").splitlines()])
    traced = None
    if made_of is not None:
        traced = Traced(made_of.graph, {}, made_of.modules, made_of.overwritten, has_kernels=False)
    return Region(traced, run_alive, Line("", 0, name), obstacle).checked()
