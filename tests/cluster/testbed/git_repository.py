"""A Git repository in a folder, as Argo CD's source: written, committed and reverted as a person does. Called by test_argocd."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

IDENTITY = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"} | {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "tests"), ("EMAIL", "tests@example.com"))
}


@dataclass(frozen=True)
class GitRepository:
    """A repository with a branch `main`."""

    folder: Path

    @property
    def url(self) -> str:
        return self.folder.as_uri()

    def write(self, path: str, *manifests: dict[str, Any]) -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump_all(manifests, sort_keys=False), encoding="utf-8")

    def read(self, path: str) -> dict[str, Any]:
        found: dict[str, Any] = yaml.safe_load((self.folder / path).read_text(encoding="utf-8"))
        return found

    def change(self, path: str, **spec: Any) -> str:
        """Commit other values of a manifest's spec; None takes a field out. Returns the commit."""
        manifest = self.read(path)
        merged = {**manifest["spec"], **spec}
        manifest["spec"] = {name: value for name, value in merged.items() if value is not None}
        self.write(path, manifest)
        return self.commit(f"{path}: {', '.join(spec)}")

    def commit(self, message: str) -> str:
        """Commit all that is different; returns the commit."""
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)
        return self.head()

    def revert(self) -> str:
        """Undo the newest commit by another; returns that."""
        self.git("revert", "--no-edit", "HEAD")
        return self.head()

    def head(self) -> str:
        return self.git("rev-parse", "HEAD").strip()

    def git(self, *arguments: str) -> str:
        command = ["git", "-C", str(self.folder), *arguments]
        return subprocess.run(command, env=os.environ | IDENTITY, capture_output=True, text=True, check=True).stdout


def new_repository(folder: Path) -> GitRepository:
    """An empty one."""
    folder.mkdir(parents=True)
    repository = GitRepository(folder)
    repository.git("init", "--quiet", "--initial-branch=main")
    return repository
