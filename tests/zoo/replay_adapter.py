"""The step guard as the zoo's scorer sees it: the program is a step that is bad, and its replay names the origin.

Detection is off until the guard has checked the values that the program's user sees; then the program runs again.
"""

import torch

import torchnan
from tests.zoo.adapter import as_dict
from torchnan._load import _C


def run(case, zoo):
    """Runs one case as a training step and returns the findings of the replay."""
    nothing = torch.nn.Linear(1, 1)
    held = []  # until the detection has ended, as the user of the program holds them
    zoo.HOOKS["step"].append(lambda k: (watch := _C.current_session()) and watch.mark_step(k))

    def step(model, batch):
        held[:] = case.run()
        return torch.tensor(float("nan") if any(map(is_bad, held)) else 0.0)

    optimizer = torch.optim.SGD(nothing.parameters(), lr=0.1)
    guard = torchnan.StepGuard(nothing, optimizer, step, remedy={"model": "skip"})
    event = guard.step(None).event
    return [] if event is None or event.finding is None else [as_dict(event.finding)]


def is_bad(symptom):
    if not torch.is_tensor(symptom) or not (symptom.is_floating_point() or symptom.is_complex()):
        return False
    return not torch.ops.torchnan.all_finite(symptom.detach())
