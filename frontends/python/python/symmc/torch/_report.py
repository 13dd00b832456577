"""Files with the reports of plans."""

from __future__ import annotations

import os
import pathlib
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
    """Writes the report of a plan behind those that the file has: a page stays one."""
    text = plan.report(format_of(path))
    try:
        file = pathlib.Path(path)
        before = file.read_text(encoding="utf-8") if file.exists() else ""
        if format_of(path) == "html" and before.endswith(_END):
            body = text[text.index("<body>") + len("<body>") :]
            file.write_text(before.removesuffix(_END) + "<hr>\n" + body, encoding="utf-8")
        else:
            file.write_text(before + text + ("" if text.endswith("</html>\n") else "\n"), encoding="utf-8")
    except OSError as error:
        raise symmc.RunError(f"option report: {path}: {error.strerror}") from error
