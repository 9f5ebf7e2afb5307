"""Small real git repositories for tests, whatever the settings of whoever runs them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_HERMETIC = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
_IDENTITY = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always")


class Repository:
    """A repository and its working tree."""

    def __init__(self, path: Path, *options: str) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.git("init", "--quiet", "--initial-branch=main", *options)

    def git(self, *arguments: str) -> str:
        command = ["git", *_IDENTITY, *arguments]
        environment = {**os.environ, **_HERMETIC}
        done = subprocess.run(command, cwd=self.path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def commit(self, files: dict[str, str] | None = None) -> str:
        """Write files (path: text), commit everything, and return the commit's full name."""
        for name, text in (files or {}).items():
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", "more")
        return self.git("rev-parse", "HEAD")

    def state(self) -> tuple[dict[str, bytes], dict[str, bytes]]:
        """Return every file of the working tree and of .git as bytes."""
        files = {str(path.relative_to(self.path)): path.read_bytes() for path in self.path.rglob("*") if path.is_file()}
        inside = {name: content for name, content in files.items() if name.startswith(".git/")}
        return {name: content for name, content in files.items() if name not in inside}, inside
