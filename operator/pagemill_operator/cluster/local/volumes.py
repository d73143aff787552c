"""ConfigMaps as files of a pod's own folder, and a container that finds them there instead of where it mounts them.

Written anew before each start of the container, as a restarted one would find them in a cluster. Called by `pod`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

ConfigMaps = Callable[[str], Mapping[str, str] | None]  # the data of the one of that name


class NoSuchConfigMap(Exception):
    """A pod mounts one that is not there."""


def lay_out(spec: Mapping[str, Any], config_maps: ConfigMaps, folder: Path) -> dict[str, str]:
    """Writes the files; returns where each mount's folder is, by its path in the container. Raises NoSuchConfigMap, OSError."""
    places: dict[str, str] = {}
    for volume in spec.get("volumes") or ():
        if (source := volume.get("configMap")) is None:
            continue
        data = config_maps(source["name"])
        if data is None and not source.get("optional", False):
            raise NoSuchConfigMap(f"ConfigMap {source['name']} is not there, and the pod mounts it")
        place = folder / volume["name"]
        place.mkdir(exist_ok=True)
        for name, text in (data or {}).items():
            (place / name).write_text(text, encoding="utf-8")
        places |= {path: str(place) for path in _mount_paths(spec["containers"][0], volume["name"])}
    return places


def moved(container: Mapping[str, Any], places: Mapping[str, str]) -> dict[str, Any]:
    """The container with those folders for the paths in its arguments."""
    return {**container, "args": [_moved(word, places) for word in container.get("args") or ()]}


def _moved(word: str, places: Mapping[str, str]) -> str:
    for path, place in places.items():
        if word == path or word.startswith(f"{path}/"):
            return place + word.removeprefix(path)
    return word


def _mount_paths(container: Mapping[str, Any], volume: str) -> Iterator[str]:
    for mount in container.get("volumeMounts") or ():
        if mount["name"] == volume:
            yield mount["mountPath"].rstrip("/")
