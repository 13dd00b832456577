"""How the scripts of this folder run symmc on one program with its recorded tensors."""

import subprocess


def command(symmc, program, tensors, ranks=1):
    """The command that runs a program on CPU kernels."""
    return [symmc, "run", str(program), "--ranks", str(ranks), "--tensors", str(tensors), "--backend", "threads"]


def run(symmc, program, tensors, ranks=1, options=()):
    """What symmc makes of a program: `agreed`, `refused` or `wrong`, and its last words."""
    try:
        done = subprocess.run([*command(symmc, program, tensors, ranks), *options], capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        return "wrong", "no end within 120 s"
    words = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:] or [""]
    return {0: "agreed", 2: "refused"}.get(done.returncode, "wrong"), words[0]
