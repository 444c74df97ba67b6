"""The script of a worker process: loads its rooms by path, under their own names.

`mega` itself is not imported, which would cost more than all the rest. A user's file that
imports `mega` later gets these very modules.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from types import ModuleType

PACKAGE = "mega.adapters.pool"
ROOMS = ("frames", "failures", "mainfile", "logs", "guards", "child")  # imported ones first


def load(room: str) -> ModuleType:
    name = f"{PACKAGE}.{room}"
    path = os.path.join(os.path.dirname(__file__), f"{room}.py")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    rooms = [load(room) for room in ROOMS]
    rooms[-1].main(*map(int, sys.argv[1:]))
