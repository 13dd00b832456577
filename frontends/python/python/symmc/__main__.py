"""The ``symmc`` command: ``python -m symmc``."""

import signal
import sys

from symmc._symmc import command


def main() -> None:
    # As in other commands, a closed pipe ends the process quietly, and Ctrl-C ends it at once.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    own = (sys.executable, ["-m", "symmc"])
    sys.exit(command(["symmc", *sys.argv[1:]], own))


if __name__ == "__main__":
    main()
