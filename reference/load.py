"""Find an object by its name: ``module:attribute``, ``path.py:attribute``, or a key of a table of such names.

Models, trainers and data sets are named this way. This module does not import torch; a loaded object's module may.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType


def load_object(spec: str) -> object:
    """Import the object that ``spec`` names.

    Args:
        spec: ``module:attribute`` or ``path.py:attribute``. The attribute may be dotted (``Class.method``), and a
            relative path starts at the working directory or, without such a file there, at the first folder of
            `sys.path` that has it. A file can import from its own folder while it is executed, as when it is run as a
            script.

    Raises:
        ValueError: ``spec`` is neither of the two forms.
        FileNotFoundError: the file does not exist.
        ImportError: the module cannot be found, or raises while it is imported.
        AttributeError: the module has no such attribute.
    """
    source, _, attribute = spec.rpartition(":")
    if not source or not all(part.isidentifier() for part in attribute.split(".")):
        raise ValueError(f"{spec!r} names no object: write module:name or path.py:name")
    module = _module_from_file(Path(source), spec) if source.endswith(".py") else _module_by_name(source, spec)
    loaded: object = module
    for part in attribute.split("."):
        try:
            loaded = getattr(loaded, part)
        except AttributeError:
            public = ", ".join(name for name in vars(module) if not name.startswith("_")) or "nothing"
            raise AttributeError(f"{spec!r}: {source} has no {attribute!r}; it defines {public}") from None
    return loaded


def load_named(name: str, table: Mapping[str, str], kind: str) -> object:
    """Import the object that ``table`` lists under ``name``, or that ``name`` itself specifies.

    Raises as `load_object` does, and ValueError where ``name`` is not in the table and has no ":"; the message lists
    the valid names of this kind ("model", "trainer").
    """
    if name not in table and ":" not in name:
        raise ValueError(f"unknown {kind} {name!r}: choose one of {', '.join(table)}, or name your own as module:name")
    return load_object(table.get(name, name))


def _module_by_name(name: str, spec: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise ImportError(
            f"{spec!r}: importing {name} raised {type(error).__name__}: {error}; "
            "install it, put its folder on PYTHONPATH, or name the file as path.py:name"
        ) from error


def _module_from_file(path: Path, spec: str) -> ModuleType:
    # Path.is_file raises for a name that is too long.
    path = next(filter(os.path.isfile, [path, *(Path(folder, path) for folder in sys.path)]), path).resolve()
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{spec!r}: there is no file {path}; relative paths start at the working directory")
    # A hash, because two files may both be called trainer.py. One file must stay one module: loaded twice, its classes
    # would exist twice.
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    module_spec = importlib.util.spec_from_file_location(name, path)
    if module_spec is None or module_spec.loader is None:
        raise ImportError(f"{spec!r}: {path} is not a Python source file; name one that ends with .py")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    try:
        module_spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise ImportError(f"{spec!r}: executing {path} raised {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(path.parent))
    return module
