"""What a file of programs beside zoo_open.py needs to use its framework."""

import os

import zoo_open


def begin(file):
    """Empties the registry for the programs of `file`, whose lines the reference detector is to look for."""
    zoo_open.CASES.clear()
    zoo_open.SPLIT.clear()
    zoo_open.HERE = os.path.abspath(file)
    zoo_open.FIRST_LINE, zoo_open.LAST_LINE = zoo_open._case_lines()


def end(name):
    """After the last program; runs the command line of zoo_open.py if the file is the main program."""
    for case in zoo_open.CASES.values():
        case.split = "open"
    if name == "__main__":
        zoo_open.main()
