"""Files with the reports of plans."""

from __future__ import annotations

import errno
import os
import pathlib
import stat
from typing import Literal

import symmc
from symmc import _symmc

_FORMATS: dict[str, Literal["text", "html"]] = {".txt": "text", ".html": "html"}

_END = "</body></html>\n"


def format_of(path: str | os.PathLike[str]) -> Literal["text", "html"]:
    """The format of reports in a file of this name."""
    suffix = pathlib.PurePath(os.fspath(path)).suffix
    if not suffix and _is_stream(path):
        return "text"
    if suffix not in _FORMATS:
        raise symmc.InputError(f"option report: expected a name that ends in .txt or .html, found {os.fspath(path)!r}")
    return _FORMATS[suffix]


def _is_stream(path: str | os.PathLike[str]) -> bool:
    """Whether the path is that of a device or a pipe, such as `/dev/stdout`."""
    name = os.fspath(path)
    return name.startswith("/dev/") and not name.startswith("/dev/shm/") and os.path.exists(name) and not os.path.isdir(name)


def append(plan: symmc.Plan, path: str | os.PathLike[str]) -> None:
    """Adds the report of a plan to those in the file, which stays one page.

    The file is replaced as all output files are: a symbolic link by a new file, and a folder is rejected. A device or a pipe
    receives the report alone.
    """
    text = plan.report(format_of(path))
    try:
        before = _reports_in(path)
        if format_of(path) == "html" and before.endswith(_END):
            body = text[text.index("<body>") + len("<body>") :]
            text = before.removesuffix(_END) + "<hr>\n" + body
        else:
            text = before + text + ("" if text.endswith("</html>\n") else "\n")
        _symmc.write_file(path, text)
    except OSError as error:
        raise symmc.RunError(f"option report: {os.fspath(path)}: {error.strerror}") from error
    except symmc.Error as error:
        raise symmc.RunError(f"option report: {error}") from error


def _reports_in(path: str | os.PathLike[str]) -> str:
    """The text of the regular file at a path. Other files keep no reports."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            return ""
        raise
    with open(descriptor, encoding="utf-8") as file:
        return file.read() if stat.S_ISREG(os.fstat(descriptor).st_mode) else ""
