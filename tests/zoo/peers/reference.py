"""The zoo's own slow reference detector, reporting the first event by the rule 'finite in, non-finite out'."""


def run(case, zoo):
    det = zoo.RefDetector()
    with det.watch():
        case.run()
    out = [
        dict(
            level="error",
            kind=e["made"],
            origin="op",
            op=e["op"],
            node=e["node"],
            module=e["module"],
            line=e["line"],
            step=e["step"],
        )
        for e in det.events
        if e["nonfinite"]
    ]
    return out
