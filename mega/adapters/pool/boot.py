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
HOME = os.path.abspath(__file__).removesuffix(os.path.join(*PACKAGE.split("."), "boot.py"))
ROOMS = ("frames", "failures", "mainfile", "logs", "guards", "child")  # imported ones first


def load(name: str) -> ModuleType:
    path = os.path.join(HOME, *name.split(".")) + ".py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    load("mega.cpu")
    rooms = [load(f"{PACKAGE}.{room}") for room in ROOMS]
    rooms[-1].main(*map(int, sys.argv[1:]))
