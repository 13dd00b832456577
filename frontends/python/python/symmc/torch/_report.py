"""Files with the reports of plans."""

from __future__ import annotations

import os
import pathlib
import secrets
from typing import Literal

import symmc

_FORMATS: dict[str, Literal["text", "html"]] = {".txt": "text", ".html": "html"}

_END = "</body></html>\n"


def format_of(path: str | os.PathLike[str]) -> Literal["text", "html"]:
    """How reports are written into a file of this name."""
    suffix = pathlib.PurePath(os.fspath(path)).suffix
    if suffix not in _FORMATS:
        raise symmc.InputError(f"option report: expected a name that ends in .txt or .html, found {os.fspath(path)!r}")
    return _FORMATS[suffix]


def append(plan: symmc.Plan, path: str | os.PathLike[str]) -> None:
    """Adds the report of a plan to those in the file, which stays one page. A symbolic link is replaced by a new file."""
    text = plan.report(format_of(path))
    try:
        file = pathlib.Path(path)
        before = file.read_text(encoding="utf-8") if file.exists() and not file.is_symlink() else ""
        if format_of(path) == "html" and before.endswith(_END):
            body = text[text.index("<body>") + len("<body>") :]
            _replace(file, before.removesuffix(_END) + "<hr>\n" + body)
        else:
            _replace(file, before + text + ("" if text.endswith("</html>\n") else "\n"))
    except OSError as error:
        raise symmc.RunError(f"option report: {path}: {error.strerror}") from error


def _replace(file: pathlib.Path, text: str) -> None:
    """Writes a new file under a random name next to its destination, and renames it: no link is followed, and a reader
    never sees half a page."""
    pending = file.with_name(f".symmc-{secrets.token_hex(12)}.part")
    descriptor = os.open(pending, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with open(descriptor, "w", encoding="utf-8") as out:
            out.write(text)
        os.replace(pending, file)
    except BaseException:
        pending.unlink(missing_ok=True)
        raise
