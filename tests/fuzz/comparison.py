"""Compares the runs of one program: bits and errors with a plain run, findings when all is read and with the truth."""

from __future__ import annotations

import dataclasses
import re
import warnings
from typing import Any

import torch

from tests.fuzz.program import Fact, Program, Run, run, tensors
from tests.fuzz.truth import Origin, Truth, is_bad, may_hold_nonfinite
from tests.support.bound_samples import Claim, collecting

COMPILED = re.compile(r"torch\.compile\(f, .*\)$", re.MULTILINE)
UNSEEN = Origin("external", "?", ("?", 0))  # for values written without an operation


@dataclasses.dataclass(frozen=True)
class Disagreement:
    """One thing that two runs of a program do not agree on."""

    program: Program
    kind: str
    detail: Any

    def __str__(self) -> str:
        replay = f"python -m tests.fuzz {self.program.generator} {self.program.seed}"
        return f"{self.kind}: {replay}\n    {self.detail}"


@dataclasses.dataclass(frozen=True)
class Modes:
    """The runs that a generator's programs are compared with, besides a plain run."""

    exact: bool = True
    truth: bool = True
    eager: bool = False  # the same program without torch.compile
    claims: bool = False  # each bound that a rule gives, with the result
    silent: bool = False  # whether something that is held in the end is not finite, and nothing is reported
    when: str = "harm"


# Nothing that a rule proves is scanned; every result is.
PROOFS_ALONE = {"rescan_every": 0}
EXACT = {"rescan_every": 1}


def disagreements(program: Program, modes: Modes) -> list[Disagreement]:
    """Returns everything that differs."""
    found: list[tuple[str, Any]] = []
    watched = run(program, "watched", when=modes.when, **PROOFS_ALONE)
    facts, stats = watched.facts, watched.watch.stats()
    found += bits(program, watched, modes.when)
    if watched.internal_errors:
        found.append(("internal error", watched.internal_errors))
    if modes.eager:
        found += against_eager(program, watched)
        torch._dynamo.reset()
    if modes.silent and not facts:
        held = [name for name, value in watched.variables.items() for one in tensors(value) if is_bad(one.detach())]
        found += [("silent", held)] if held else []
    watched.variables = {}
    if modes.exact and stats["proved"]:
        found += other_options(program, facts, when=modes.when, **EXACT)
    if modes.truth:
        found += against_truth(run(program, "truth"), facts, program)
    return [Disagreement(program, kind, detail) for kind, detail in found]


def claims_of(program: Program) -> tuple[list[Claim], int]:
    """Returns the claims of the rules while the program runs, and the internal errors."""
    claims: list[Claim] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with collecting(claims) as watch:
            run(program, "plain")
    return claims, int(watch.stats()["internal_errors"])


def wrong_claims(program: Program, claims: list[Claim], internal_errors: int) -> list[Disagreement]:
    """Returns the claims of a program that do not hold."""
    wrong = [Disagreement(program, f"claim of {claim.op}", claim) for claim in claims if not claim.holds]
    if internal_errors and not wrong:
        wrong = [Disagreement(program, "internal error beside claims that hold", internal_errors)]
    return wrong


def bits(program: Program, watched: Run, when: str) -> list[tuple[str, Any]]:
    """A difference counts if two more plain runs agree with the first, and another watched one with its like."""
    plain = run(program, "plain")
    expected, got = (plain.digest, plain.error), (watched.digest, watched.error)
    if expected == got:
        return []
    again = [
        (r.digest, r.error) for r in (run(program, "plain"), run(program, "plain"), run(program, "watched", when=when))
    ]
    return [("bits", (expected, got))] if again == [expected, expected, got] else []


def other_options(program: Program, facts: list[Fact], **options: Any) -> list[tuple[str, Any]]:
    name = ", ".join(f"{key}={value}" for key, value in options.items())
    other = run(program, "watched", **options)
    found: list[tuple[str, Any]] = []
    if other.internal_errors:
        found.append((f"internal error with {name}", other.internal_errors))
    if plainly(other.facts) != plainly(facts):
        found.append((name, {"default": facts, name: other.facts}))
    return found


def plainly(facts: list[Fact]) -> list[Fact]:
    """Values without an earlier proof came in, and were not written outside of the dispatcher.

    Keeping a value that came in is not harm, and neither is reading an Inf: the runs may differ in whether these are
    reported. Two values of one origin that are first read at one call site are one finding.
    """
    compared = [tuple("input" if value == "foreign" else value for value in fact) for fact in facts]
    told = [fact for fact in compared if not (fact[2] == "input" and (fact[6] == "alive" or fact[1] == "inf"))]
    return list(dict.fromkeys(told))


def against_eager(program: Program, compiled: Run) -> list[tuple[str, Any]]:
    """Compiled code may round otherwise: where it makes other values non-finite, its report is another as well."""
    eager = run(Program(program.generator, program.seed, COMPILED.sub("f", program.source)), "watched")
    if nonfinite(eager.variables) != nonfinite(compiled.variables) or eager.error != compiled.error:
        return []
    expected, got = ([origin_of(fact) for fact in one.facts if fact[0] == "error"] for one in (eager, compiled))
    return [] if expected == got else [("not as in eager", {"eager": eager.facts, "compiled": compiled.facts})]


def origin_of(fact: Fact) -> Fact:
    """Returns the facts that do not depend on how an operation is run. Decompositions are other operations at the same
    line, and only nodes of PyTorch are known to have an infinite slope as a factor."""
    _, kind, origin, _, place, phase, harm, step = fact
    return (kind if phase == "forward" else "", origin, place, phase, harm, step)


def nonfinite(variables: dict[str, Any]) -> list[Any]:
    """Returns where the tensors of a program are NaN, and where they are infinite."""
    found = [one.detach() for value in variables.values() for one in tensors(value)]
    return [(x.isnan().nonzero().tolist(), x.isinf().nonzero().tolist()) for x in found if may_hold_nonfinite(x)]


def against_truth(result: Run, facts: list[Fact], program: Program) -> list[tuple[str, Any]]:
    truth = result.truth
    assert truth is not None
    if not truth.nonfinite_operations and not truth.origins:
        return [("false alarm", facts)] if facts else []
    errors = [fact for fact in facts if fact[0] == "error"]
    held = held_values(truth, result.variables)
    masks = held_masks(held, result.variables)
    sure = {
        name: own for name, own in held.items() if name not in masks and all(origin.source == "op" for origin in own)
    }
    found: list[tuple[str, Any]] = []
    if sure and not errors and result.error is None:
        found.append(("missed", {"held": sure, "found": facts}))
    found += [complaint for fact in errors for complaint in wrong_origin(fact, truth, program)]
    if len(errors) > len(truth.origins):
        found.append(("reported twice", {"errors": errors, "truth": truth.origins[:8]}))
    if holds_complex(result.variables):
        return found
    alive = [fact for fact in errors if fact[6] == "alive"]
    if alive and not held and result.error is None:
        found.append(("not referenced", alive))
    is_known = bool(errors) and not _is_unknown_line(errors[0][5], truth, program)
    if len(errors) == 1 and errors == alive and errors[0][2] == "op" and held and is_known:
        lines = {origin.line for own in held.values() for origin in own}
        if errors[0][4] not in lines and UNSEEN.line not in lines:
            found.append(("an origin that is gone", {"finding": errors[0], "held": held}))
    return found


def held_values(truth: Truth, variables: dict[str, Any]) -> dict[str, list[Origin]]:
    """Returns, by variable, the origins of what it holds at the end."""
    held = {}
    for name, value in (variables or {}).items():
        for found in tensors(value):
            x = found.detach()
            if not may_hold_nonfinite(x) or x.is_complex():
                continue
            origins = [UNSEEN if i < 0 else truth.origins[i] for i in sorted(truth.origins_of(x))]
            if origins:
                held[name] = origins
    return held


def holds_complex(variables: dict[str, Any]) -> bool:
    """Returns whether a variable holds non-finite values that held_values() leaves out."""
    held = [found for value in variables.values() for found in tensors(value)]
    return any(found.is_complex() and is_bad(found.detach()) for found in held)


def held_masks(held: dict[str, list[Origin]], variables: dict[str, Any]) -> set[str]:
    """Returns the variables that hold no non-finite value but -inf."""

    def is_mask(x: torch.Tensor) -> bool:
        return not may_hold_nonfinite(x) or not bool(torch.isnan(x).any() | (x == float("inf")).any())

    return {name for name in held if all(is_mask(found.detach()) for found in tensors(variables[name]))}


def _is_unknown_line(phase: str, truth: Truth, program: Program) -> bool:
    """Whether the truth cannot know the lines of a backward pass: of lists, and of writes into views."""
    slices = any(origin.node is not None and origin.node.endswith("CopySlices") for origin in truth.origins)
    return phase == "backward" and (slices or "_foreach" in program.source)


def wrong_origin(fact: Fact, truth: Truth, program: Program) -> list[tuple[str, Any]]:
    _, _, origin, op, place, phase, *_ = fact
    detail = {"finding": fact, "truth": truth.origins[:8]}
    sources = {known.source for known in truth.origins}
    if origin == "op" and not _is_unknown_line(phase, truth, program):
        places = {(known.op.rstrip("_"), known.line) for known in truth.origins}
        if (op.rstrip("_"), place) not in places:
            return [("wrong operation" if place in {known.line for known in truth.origins} else "wrong line", detail)]
    allocates = any(word in program.source for word in ("empty", "resize", "set_("))
    if (origin == "uninit" and not allocates) or (origin == "foreign" and "external" not in sources):
        return [(f"wrong origin {origin}", detail)]
    if origin == "input" and not sources & {"external", "constant"}:
        return [("wrong origin input", detail)]
    return []
