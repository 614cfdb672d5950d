"""The framework of the zoo: small deterministic CPU programs that reproduce real-world non-finite bugs.

Every case is one function (no argument) registered with @case(...) and its metadata.
Calling CASES[id].run() seeds the RNG, runs the program, and returns a tuple of tensors,
the SYMPTOMS: what the user of that program looks at (loss, gradients, weights, outputs).
  * bug cases  (kind 'nan' or 'inf'): at least one symptom is non-finite at the end;
  * clean cases (kind 'clean'): every symptom is finite, although many of these programs
    hold non-finite values on purpose on the way.

How a scorer attaches a tool: see HOOKS below (models are announced through track(),
training steps through mark_step(), worker threads through run_threads()), or simply wrap
CASES[id].run() in the tool's context manager. See README.md for the format.

`python -m tests.zoo --selfcheck` runs the reference detector at the end of this file.
All programs are our own; `source` names the public thread whose bug is re-enacted.
"""

import argparse
import collections
import contextlib
import ctypes
import dataclasses
import importlib
import importlib.util
import inspect
import json
import math
import re
import sys
import threading
import types
import warnings
from pathlib import Path

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

INF = float("inf")
NAN = float("nan")

# --------------------------------------------------------------------------- harness hooks
# A scorer appends callables here before running a case, and removes them after.
HOOKS = {
    "model": [],  # f(module): called as soon as a case has built its model
    "step": [],  # f(k): called at the start of training step k (1-based)
    "thread": [],  # f() -> context manager, entered inside every worker thread
}


def track(model):
    """Announces a freshly built model to the harness; returns it."""
    for cb in list(HOOKS["model"]):
        cb(model)
    return model


def mark_step(k):
    """Announces that training step k (1-based) begins."""
    for cb in list(HOOKS["step"]):
        cb(k)


def run_threads(*fns):
    """Runs each function in a separate thread, one after the other (deterministic)."""
    results = [None] * len(fns)

    def work(i):
        with contextlib.ExitStack() as stack:
            for make in list(HOOKS["thread"]):
                stack.enter_context(make())
            results[i] = fns[i]()

    for i in range(len(fns)):
        t = threading.Thread(target=work, args=(i,))
        t.start()
        t.join()
    return results


def dirty(t):
    """Makes fresh memory look recycled: fills it with 0xFF bytes (NaN in every float
    type) without any PyTorch op, as an allocator that hands back used pages does."""
    ctypes.memset(t.data_ptr(), 0xFF, t.numel() * t.element_size())
    return t


class Inapplicable(Exception):
    """Raised by an adapter: a case cannot be run in its way."""


def is_finite(symptoms):
    """Whether all of a case's symptoms are finite."""
    tensors = [leaf for leaf in tree_flatten(symptoms)[0] if isinstance(leaf, torch.Tensor)]
    return all(bool(torch.isfinite(t.detach()).all()) for t in tensors)


# --------------------------------------------------------------------------- registry
@dataclasses.dataclass
class Case:
    id: str
    title: str
    source: str
    category: str
    direction: str  # 'forward' | 'backward' (of the origin); 'forward' for all else
    kind: str  # 'nan' | 'inf' | 'clean': the kind that the origin first produces
    origin: str  # 'op' | 'input' | 'parameter' | 'buffer' | 'uninit' | 'none'
    phase: str  # 'forward' | 'backward' | 'optimizer' | 'data' | 'load' | 'none'
    truth_op: frozenset  # acceptable aten op names (any overload)
    truth_node: frozenset  # acceptable autograd node names (backward cases)
    truth_module: object  # module path in the tracked model, '' = the root, None = outside
    truth_name: object  # name of the parameter/buffer/argument (origin not 'op')
    truth_step: object  # training step (1-based) in which the origin happens, or None
    also: tuple  # further acceptable origins: dicts(direction, op, node)
    since: object  # first torch version the truth holds for (None: any)
    until: object  # first torch version on which the program is clean (None: none)
    debatable: str  # '' or why the truth is open to argument
    naive: bool  # False: no finite-in/bad-out rule can see the origin
    notes: str
    fn: object = dataclasses.field(repr=False, default=None)

    def run(self):
        torch.manual_seed(0)
        out = self.fn()
        return tuple(out) if isinstance(out, (tuple, list)) else (out,)

    def origin_lines(self):
        src, first = inspect.getsourcelines(self.fn)
        return {first + i for i, line in enumerate(src) if "# ORIGIN" in line}


CASES = collections.OrderedDict()
PROGRAMS = Path(__file__).resolve().with_name("programs")


def _version(v):
    return tuple(int(x) for x in re.findall(r"\d+", v.split("+")[0])[:2])


def case(
    id,
    title,
    source,
    cat,
    kind,
    op=(),
    node=(),
    dir=None,
    module=None,
    origin=None,
    phase=None,
    name=None,
    step=None,
    also=(),
    since=None,
    until=None,
    debatable="",
    naive=True,
    notes="",
):
    def register(fn):
        assert id not in CASES, id
        d = dir or ("backward" if node else "forward")
        is_clean = kind == "clean" or (until is not None and _version(torch.__version__) >= _version(until))
        o = "none" if is_clean else origin or "op"
        phases = {"none": "none", "op": d, "input": "data", "parameter": "load", "buffer": "load", "uninit": "forward"}
        ops = [op] if isinstance(op, str) else list(op)
        CASES[id] = Case(
            id=id,
            title=title,
            source=source,
            category=cat,
            direction=d,
            kind="clean" if is_clean else kind,
            origin=o,
            phase="none" if is_clean else phase or phases[o],
            truth_op=frozenset("aten::" + x for x in ops),
            truth_node=frozenset([node] if isinstance(node, str) else node),
            truth_module=module,
            truth_name=name,
            truth_step=step,
            also=tuple(also),
            since=since,
            until=until,
            debatable=debatable,
            naive=naive,
            notes=notes,
            fn=fn,
        )
        return fn

    return register


def alt(direction, op, node=()):
    """A further acceptable origin."""
    ops = [op] if isinstance(op, str) else list(op)
    return {
        "direction": direction,
        "op": frozenset("aten::" + x for x in ops),
        "node": frozenset([node] if isinstance(node, str) else node),
    }


def load_programs(path: Path) -> types.ModuleType:
    """Loads a file of programs, or a folder of such files; returns the module with their CASES and HOOKS: this one, or
    a file from elsewhere with a different framework."""
    path = path.resolve()
    if path != PROGRAMS and PROGRAMS not in path.parents:
        spec = importlib.util.spec_from_file_location("zoo", path)
        zoo = sys.modules["zoo"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(zoo)
        return zoo
    for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
        if file.name != "__init__.py":
            theme = ".".join(file.relative_to(PROGRAMS).with_suffix("").parts)
            importlib.import_module(f"tests.zoo.programs.{theme}")
    return sys.modules[__name__]


# --------------------------------------------------------------------------- reference detector
# Pure Python, slow, for checking the truths: a TorchDispatchMode sees every aten op (forward,
# backward, optimizer), a TorchFunctionMode maps autograd nodes to the module and the source
# line that made them, hooks on the nodes name the node an op of the backward belongs to.
#
# An EVENT is an op that makes something bad out of nothing bad, by either of two rules:
#   'nonfinite': all tensor and Python-number arguments finite, some output not finite;
#   'nan':       no argument is NaN, some output is.
# Neither rule alone finds every human truth; the self-check says which rule's FIRST event is it.
EMPTY_OPS = {"aten::empty", "aten::empty_like", "aten::new_empty", "aten::empty_strided", "aten::new_empty_strided"}
# ops that hand a tensor on, or overwrite it, without computing with its values
PASS_OPS = {
    *(
        "aten::lift",
        "aten::lift_fresh",
        "aten::lift_fresh_copy",
        "aten::detach",
        "aten::detach_",
        "aten::alias",
        "aten::view",
        "aten::_unsafe_view",
        "aten::reshape",
        "aten::_reshape_alias",
        "aten::slice",
        "aten::select",
        "aten::transpose",
        "aten::t",
        "aten::permute",
        "aten::expand",
        "aten::unsqueeze",
        "aten::squeeze",
        "aten::as_strided",
        "aten::unbind",
        "aten::split",
        "aten::split_with_sizes",
        "aten::chunk",
        "aten::narrow",
        "aten::clone",
        "aten::_to_copy",
        "aten::contiguous",
        "aten::copy_",
        "aten::_copy_from",
        "aten::zero_",
        "aten::zero",
        "aten::fill_",
        "aten::normal_",
        "aten::uniform_",
        "aten::random_",
        "aten::bernoulli_",
        "aten::exponential_",
        "aten::index_put_",
        "aten::_index_put_impl_",
        "aten::set_",
        "aten::resize_",
        "aten::view_as_real",
        "aten::view_as_complex",
        "aten::_conj",
        "aten::unfold",
        "aten::diagonal",
    ),
}


def _user_line():
    """The line of the innermost frame that is a program's."""
    files = {case.fn.__code__.co_filename for case in CASES.values()}
    f = sys._getframe(1)
    while f is not None:
        if f.f_code.co_filename in files:
            return f.f_lineno
        f = f.f_back
    return None


def _status(t):
    """(has NaN, has a non-finite value) of a tensor."""
    if not isinstance(t, torch.Tensor) or t.layout != torch.strided or t.numel() == 0:
        return False, False
    if not (t.is_floating_point() or t.is_complex()) or t.device.type == "meta":
        return False, False
    if t.dtype in (torch.float16, torch.bfloat16):
        t = t.float()
    return bool(torch.isnan(t).any()), not bool(torch.isfinite(t).all())


class Event(dict):
    def __str__(self):
        where = "B" if self["direction"] == "backward" else "F"
        s = "{} {}".format(where, self["op"])
        if self["node"]:
            s += " in " + self["node"]
        s += " mod={!r} line={}".format(self["module"], self["line"])
        if self["step"]:
            s += " step=%d" % self["step"]
        return s + " ->" + self["made"]


class RefDetector:
    def __init__(self):
        self.events, self.external = [], []
        self.keep, self.bad_ptrs, self.empties = [], {}, {}
        self.node_site, self.node_keep = {}, []
        self.pending, self.depth, self.step = [], 0, None
        self.local = threading.local()
        self.models = []

    # -- harness hooks
    def on_model(self, model):
        self.models.append(model)
        for name, mod in model.named_modules():
            mod.register_forward_pre_hook(self._push(name))
            mod.register_forward_hook(self._pop())

    def _stack(self):
        if not hasattr(self.local, "stack"):
            self.local.stack = []
        return self.local.stack

    def _push(self, name):
        def hook(mod, args):
            self._stack().append(name)

        return hook

    def _pop(self):
        def hook(mod, args, out):
            self._stack().pop()

        return hook

    def on_step(self, k):
        self.step = k

    def site(self):
        st = self._stack()
        return (st[-1] if st else None), _user_line()

    # -- context
    @contextlib.contextmanager
    def modes(self):
        det = self

        class Fn(TorchFunctionMode):
            def __torch_function__(self, func, types, args=(), kwargs=None):
                out = func(*args, **(kwargs or {}))
                det.note_nodes(out)
                return out

        class Dp(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                return det.dispatch(func, args, kwargs or {})

        with Fn(), Dp():
            yield

    @contextlib.contextmanager
    def watch(self):
        HOOKS["model"].append(self.on_model)
        HOOKS["step"].append(self.on_step)
        HOOKS["thread"].append(self.modes)
        real_backward, real_grad = torch.autograd.backward, torch.autograd.grad

        def backward(tensors, *a, **k):
            with self.hooked(tensors):
                return real_backward(tensors, *a, **k)

        def grad(outputs, *a, **k):
            with self.hooked(outputs):
                out = real_grad(outputs, *a, **k)
            self.note_nodes(out)
            return out

        fn_cls = torch.autograd.Function
        own = "apply" in fn_cls.__dict__
        real_apply = next(k.__dict__["apply"] for k in fn_cls.__mro__ if "apply" in k.__dict__)

        def apply(cls, *a, **k):
            out = real_apply.__get__(None, cls)(*a, **k)
            self.note_nodes(out)
            return out

        fn_cls.apply = classmethod(apply)
        torch.autograd.backward, torch.autograd.grad = backward, grad
        try:
            with self.modes():
                yield self
        finally:
            torch.autograd.backward, torch.autograd.grad = real_backward, real_grad
            if own:
                fn_cls.apply = real_apply
            else:
                del fn_cls.apply
            HOOKS["model"].remove(self.on_model)
            HOOKS["step"].remove(self.on_step)
            HOOKS["thread"].remove(self.modes)

    # -- autograd nodes
    def note_nodes(self, out):
        flat = [t for t in tree_flatten(out)[0] if isinstance(t, torch.Tensor) and t.requires_grad]
        todo = []
        for t in flat:
            with contextlib.suppress(RuntimeError):  # the grad_fn of a view may be illegal to ask for (no_grad views)
                todo.append(t.grad_fn)
        if not any(n is not None for n in todo):
            return
        site = self.site()
        while todo:
            n = todo.pop()
            if n is None or id(n) in self.node_site:
                continue
            self.node_site[id(n)] = site
            self.node_keep.append(n)
            todo.extend(m for m, _ in n.next_functions)

    @contextlib.contextmanager
    def hooked(self, roots):
        roots = [roots] if isinstance(roots, torch.Tensor) else list(roots)
        todo, seen, handles = [r.grad_fn for r in roots if r.grad_fn is not None], {}, []
        while todo:
            n = todo.pop()
            if n is None or id(n) in seen:
                continue
            seen[id(n)] = n
            todo.extend(m for m, _ in n.next_functions)
        for n in seen.values():
            handles.append(n.register_hook(self._post(n)))
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1
            for h in handles:
                h.remove()

    def _post(self, node):
        name, site = node.name(), self.node_site.get(id(node), (None, None))

        def hook(*_):
            for e in self.pending:
                e["node"], e["module"], e["line"] = name, site[0], site[1]
            self.pending = []

        return hook

    # -- ops
    def dispatch(self, func, args, kwargs):
        op = func._schema.name if hasattr(func, "_schema") else str(func)
        with torch._C.DisableTorchFunction():
            flat = tree_flatten((args, kwargs))[0]
            tens = [t for t in flat if isinstance(t, torch.Tensor)]
            nums = [x for x in flat if isinstance(x, (float, complex)) and not isinstance(x, bool)]
            in_nan = any(x != x for x in nums)
            in_bad = any(not math.isfinite(abs(x)) for x in nums)
            foreign = []
            for t in tens:
                nan, bad = _status(t)
                in_nan, in_bad = in_nan or nan, in_bad or bad
                if bad and not self.known(t):
                    foreign.append(t)
            src = [self._storage(t) for t in foreign]
            out = func(*args, **kwargs)
            outs = [t for t in tree_flatten(out)[0] if isinstance(t, torch.Tensor)]
            if foreign and op in PASS_OPS:
                for t in outs:  # provenance goes with the copy
                    if self._storage(t) not in src and _status(t)[1]:
                        self.keep.append(t)
                        if any(p in self.empties for p in src):
                            self.empties[self._storage(t)] = ("copy of uninitialised memory",)
                return out
            if foreign and any(
                t.is_floating_point() or t.is_complex() for t in outs + self.mutated(func, args, kwargs)
            ):
                for t in foreign:
                    self.check_external(op, t)
            if op in EMPTY_OPS:
                for t in outs:
                    self.keep.append(t)
                    self.empties[self._storage(t)] = (op, *self.site())
                    self.bad_ptrs.pop(self._storage(t), None)
                return out
            outs += self.mutated(func, args, kwargs)
            made_nan = made_bad = False
            for t in outs:
                nan, bad = _status(t)
                made_nan, made_bad = made_nan or nan, made_bad or bad
                if bad:
                    self.keep.append(t)
                    self.bad_ptrs[self._storage(t)] = op
            if (made_bad and not in_bad) or (made_nan and not in_nan):
                if not tens and in_bad:
                    return out  # full(inf), scalar_tensor(nan): asked for by the program
                mod, line = self.site()
                e = Event(
                    op=op,
                    direction="backward" if self.depth else "forward",
                    node=None,
                    module=mod,
                    line=line,
                    step=self.step,
                    made="nan" if made_nan else "inf",
                    nonfinite=made_bad and not in_bad,
                    nan=made_nan and not in_nan,
                )
                self.events.append(e)
                if self.depth:
                    e["module"] = e["line"] = None
                    self.pending.append(e)
        return out

    @staticmethod
    def _storage(t):
        return (t.untyped_storage() if hasattr(t, "untyped_storage") else t.storage()).data_ptr()

    @staticmethod
    def mutated(func, args, kwargs):
        got = []
        for i, a in enumerate(func._schema.arguments):
            if a.alias_info is not None and a.alias_info.is_write:
                v = args[i] if i < len(args) else kwargs.get(a.name)
                got += [t for t in (v if isinstance(v, (list, tuple)) else [v]) if isinstance(t, torch.Tensor)]
        return got

    def known(self, t):
        return self._storage(t) in self.bad_ptrs

    def check_external(self, op, t):
        """A non-finite argument no observed op has made: data, a weight, or raw memory."""
        ptr = self._storage(t)
        kind, name = "input", None
        for m in self.models:
            for n, p in m.named_parameters():
                if self._storage(p) == ptr:
                    kind, name = "parameter", n
            for n, b in m.named_buffers():
                if self._storage(b) == ptr:
                    kind, name = "buffer", n
        if kind == "input" and ptr in self.empties:
            kind = "uninit"
        mod, line = self.site()
        self.keep.append(t)
        self.bad_ptrs[ptr] = "external"
        self.external.append(
            {
                "kind": kind,
                "name": name,
                "op": op,
                "module": mod,
                "line": line,
                "step": self.step,
                "nan": _status(t)[0],
                "direction": "backward" if self.depth else "forward",
            }
        )


# --------------------------------------------------------------------------- self-check
def applies(c):
    return not c.since or _version(torch.__version__) >= _version(c.since)


def _matches(e, ops, nodes, direction):
    return e["op"] in ops and e["direction"] == direction and (not nodes or e["node"] in nodes)


def check(c):
    """Runs one case under the reference detector; returns a dict with the verdict."""
    r = {
        "id": c.id,
        "verdict": "",
        "problems": [],
        "first_nonfinite": None,
        "first_nan": None,
        "events": 0,
        "rule": None,
        "external": None,
        "unseen": [],
    }
    det = RefDetector()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with det.watch():
            out = c.run()
    bad = [_status(t.detach()) for t in out if isinstance(t, torch.Tensor)]
    symptom_bad = any(b for _, b in bad)
    ev = det.events
    r["events"] = len(ev)
    nf = [e for e in ev if e["nonfinite"]]
    nn_ = [e for e in ev if e["nan"]]
    r["first_nonfinite"] = nf[0] if nf else None
    r["first_nan"] = nn_[0] if nn_ else None
    r["external"] = det.external[0] if det.external else None
    r["all"] = ev
    if c.kind == "clean":
        if symptom_bad:
            r["problems"].append("symptoms are not finite")
        r["verdict"] = "DISAGREE" if r["problems"] else "clean-ok"
        r["rule"] = "quiet" if not ev else "noise:%d" % len(ev)
        return r
    if not symptom_bad:
        r["problems"].append("no symptom is non-finite")
    if c.origin == "op":
        hits = [e for e in ev if _matches(e, c.truth_op, c.truth_node, c.direction)]
        if not hits and not c.naive:
            r["rule"] = "none"
        elif not hits:
            r["problems"].append("truth is not an event")
        else:
            h = hits[0]
            r["rule"] = (
                "first-nonfinite" if h is r["first_nonfinite"] else "first-nan" if h is r["first_nan"] else "later"
            )
            both = h is r["first_nonfinite"] and h is r["first_nan"]
            if both:
                r["rule"] = "first-both"
            if not any(e["made"] == c.kind for e in hits):
                r["problems"].append("made {}, not {}".format(h["made"], c.kind))
            if h["module"] != c.truth_module:
                r["problems"].append("module {!r}".format(h["module"]))
            if c.truth_step is not None and h["step"] != c.truth_step:
                r["problems"].append("step {}".format(h["step"]))
            if h["line"] not in c.origin_lines():
                r["problems"].append("line {} not in {}".format(h["line"], sorted(c.origin_lines())))
    else:
        x = next((x for x in det.external if x["kind"] == c.origin), None)
        if x is None:
            r["problems"].append(f"no external {c.origin} seen: {det.external[:2]}")
        else:
            r["rule"] = "external" if x is det.external[0] else "external-later"
            if c.origin in ("parameter", "buffer") and x["name"] != c.truth_name:
                r["problems"].append("name {!r}".format(x["name"]))
            if x["module"] != c.truth_module:
                r["problems"].append("module {!r}".format(x["module"]))
            if c.truth_step is not None and x["step"] != c.truth_step:
                r["problems"].append("step {}".format(x["step"]))
    for a in c.also:
        if not (
            any(_matches(e, a["op"], a["node"], a["direction"]) for e in ev)
            or any(x["op"] in a["op"] for x in det.external)
        ):
            r["unseen"].append(sorted(a["op"]))
    if not c.origin_lines():
        r["problems"].append("no ORIGIN mark")
    r["verdict"] = "DISAGREE" if r["problems"] else "ok"
    return r


def selfcheck(ids, verbose=False):
    torch.set_num_threads(1)
    print("torch", torch.__version__)
    tally = collections.Counter()
    for cid in ids:
        c = CASES[cid]
        if not applies(c):
            tally["skipped"] += 1
            print("%-36s SKIP (since %s)" % (cid, c.since))
            continue
        try:
            r = check(c)
        except Exception as err:  # noqa: BLE001 - a case that cannot run is a finding too
            tally["ERROR"] += 1
            print("%-36s ERROR %s: %s" % (cid, type(err).__name__, str(err)[:200]))
            if verbose:
                import traceback

                traceback.print_exc()
            continue
        tally[r["verdict"]] += 1
        tally["rule " + str(r["rule"]).split(":")[0]] += 1
        first = r["first_nonfinite"]
        ext = r["external"]
        line = "%-36s %-8s %-15s" % (cid, r["verdict"], r["rule"])
        if first is not None:
            line += f" | first bad: {first}"
        if r["first_nan"] is not None and r["first_nan"] is not first:
            line += " | first nan: {}".format(r["first_nan"])
        if ext is not None:
            line += " | external: {} {} at {}".format(ext["kind"], ext["name"] or "", ext["op"])
        if r["unseen"]:
            line += " | alternatives no event: {}".format(r["unseen"])
        if r["problems"]:
            line += " | PROBLEM: " + "; ".join(r["problems"])
            line += f" | truth: {sorted(c.truth_op)} {sorted(c.truth_node)} {c.direction} mod={c.truth_module!r}"
        print(line)
        if verbose:
            for e in r["all"]:
                print("      ", e, "nonfinite" if e["nonfinite"] else "", "nan" if e["nan"] else "")
    print(dict(tally))
    return tally["DISAGREE"] + tally["ERROR"]


def as_json(c):
    d = {k: v for k, v in dataclasses.asdict(c).items() if k != "fn"}

    def conv(v):
        return sorted(v) if isinstance(v, frozenset) else v

    d = {k: conv(v) for k, v in d.items()}
    d["also"] = [{k: conv(v) for k, v in a.items()} for a in c.also]
    d["origin_lines"] = sorted(c.origin_lines())
    return d


def main():
    p = argparse.ArgumentParser(description="NaN zoo")
    p.add_argument("--zoo", type=Path, default=PROGRAMS / "open", help="a file of programs, or a folder of such")
    p.add_argument("--selfcheck", action="store_true", help="run the reference detector on the cases")
    p.add_argument("--list", action="store_true", help="one line per case")
    p.add_argument("--json", action="store_true", help="all metadata as JSON")
    p.add_argument("--counts", action="store_true", help="counts by category and kind")
    p.add_argument("--verbose", "-v", action="store_true")
    p.add_argument("ids", nargs="*", help="case ids (default: all)")
    a = p.parse_args()
    load_programs(a.zoo)
    ids = a.ids or list(CASES)
    if a.list:
        for i in ids:
            c = CASES[i]
            print("%-36s %-8s %-5s %s" % (i, c.direction, c.kind, c.title))
    if a.json:
        print(json.dumps([as_json(CASES[i]) for i in ids], indent=1))
    if a.counts:
        for key in ("kind", "origin", "direction", "phase", "category"):
            print(key, dict(collections.Counter(getattr(CASES[i], key) for i in ids)))
    if a.selfcheck:
        sys.exit(1 if selfcheck(ids, a.verbose) else 0)
