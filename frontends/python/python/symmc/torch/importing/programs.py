"""Programs of symmc from archives."""

from __future__ import annotations

import os
import tempfile

import symmc


def open_archives(archives: list[bytes], **options) -> symmc.Program:
    """Opens the archive of a program, or the archives of all ranks."""
    with tempfile.TemporaryDirectory(prefix="symmc-") as folder:
        paths = []
        for rank, archive in enumerate(archives):
            paths.append(os.path.join(folder, f"graph{rank}.pt2" if len(archives) > 1 else "graph.pt2"))
            with open(paths[-1], "wb") as file:
                file.write(archive)
        try:
            return symmc.open(paths if len(paths) > 1 else paths[0], **options)
        except symmc.Error as error:
            # The user does not know these temporary files, so the message names the graph instead.
            for rank, path in enumerate(paths):
                name = "the graph" if len(paths) == 1 else f"the graph of rank {rank}"
                error.args = tuple(str(text).replace(path, name).replace("the archive of rank", "the graph of rank") for text in error.args)
            error.path = None
            raise
