"""Lists the programs of the zoo, and checks their truths: ``python -m tests.zoo --help``."""

from tests.zoo import framework

framework.main()
