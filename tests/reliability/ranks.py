"""One rank of the trials, in Python: opens a session again and again, runs it, and leaves as it is told.

Usage: ranks.py LIMIT_S ACTION AT. After AT runs this rank does ACTION: ``raise`` (out of the ``with`` block), ``drop`` (the
last reference goes), ``raise_bare`` (an exception that ends the interpreter with the session open), ``exit`` (of the
process), ``close`` (in order), or ``none``. An error is printed as one line: culprit, reporter, text.
"""

import os
import sys

import numpy as np

import symmc

limit, action, at = float(sys.argv[1]), sys.argv[2], int(sys.argv[3])
plan = symmc.compile(symmc.from_text(os.environ["TRIAL_PROGRAM"]))
group = symmc.Group.from_env()
data = np.zeros(512, np.float32)
run = 0


def leave(session):
    print("LEAVES", flush=True)
    if action == "exit":
        os._exit(7)
    if action == "close":
        session.close()
        sys.exit(0)
    if action in ("raise", "raise_bare"):
        raise ValueError("the trial")


def runs(session):
    global run
    session.write("x", data)
    for _ in range(40):
        if run == at and action != "none":
            leave(session)
            return False
        session.run()
        if run == 0:
            print("RUNS", flush=True)
        run += 1
    return True


try:
    while True:
        if action in ("drop", "raise_bare"):
            kept = symmc.Session(plan, group, timeout=limit)
            if not runs(kept):
                del kept
                sys.exit(0)
            kept.close()
        else:
            with symmc.Session(plan, group, timeout=limit) as session:
                runs(session)
except symmc.Error as error:
    print("ERROR", error.culprit, error.reporter, str(error).replace("\n", " "), flush=True)
    sys.exit(1)
