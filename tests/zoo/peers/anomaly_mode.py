"""torch.autograd.set_detect_anomaly as a detector: the node named in its error."""

import re

import torch


def run(case, zoo):
    with torch.autograd.set_detect_anomaly(True):
        try:
            case.run()
        except RuntimeError as e:
            m = re.search(r"Function '(\w+)' returned nan", str(e))
            if not m:
                raise
            return [dict(level="error", kind="nan", origin="op", node=m.group(1))]
    return []
