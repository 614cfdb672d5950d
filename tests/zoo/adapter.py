"""torchnan as the zoo's scorer sees it: public API only."""

import torchnan


def run(case, zoo):
    """Runs one case under detect() and returns its findings, oldest first."""
    watch = torchnan.detect(action="log")
    zoo.HOOKS["step"].append(watch.mark_step)
    zoo.HOOKS["thread"].append(lambda: watch)
    with watch:
        symptoms = case.run()  # held until the detection has ended, as the user of the program holds them
    del symptoms
    return [as_dict(finding) for finding in watch.findings]


def as_dict(finding):
    keys = ("level", "kind", "origin", "op", "node", "module", "name", "file", "line", "step")
    said = {key: getattr(finding, key) for key in keys}
    if said["origin"] == "foreign":  # the zoo does not distinguish the writers of external values
        said["origin"] = "input"
    return said
