"""How a field of the resource is declared: its tag, its text, its bounds.

Every leaf of the spec says what a change of it does: `hot` (the running engine takes it over), `operator` (other objects
change, pods stay), `restart` (the pods roll) or `immutable`. The tag opens the field's description in the CRD, and `render`
hashes the fields that are tagged `restart`, so the two can't drift apart. Used by the spec modules only.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

Tag = Literal["hot", "operator", "restart", "immutable"]


class Group(BaseModel):
    """A part of the spec: frozen, strict, closed. What the API server refuses is refused here, in a person's words."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, alias_generator=to_camel, allow_inf_nan=False)


def _tagged(tag: Tag, text: str, default: Any, **rules: Any) -> Any:
    stated = "" if default is None or default is ... or default in ((), {}) else f" Default: {_shown(default)}."
    return Field(default, description=f"[{tag}] {text}{stated}", **rules)


def _shown(default: object) -> str:
    return str(default).lower() if isinstance(default, bool) else str(default)


def hot(text: str, default: Any = None, **rules: Any) -> Any:
    """A field that the running engine takes over without a restart."""
    return _tagged("hot", text, default, **rules)


def operator(text: str, default: Any = None, **rules: Any) -> Any:
    """A field that acts on other objects than the pods."""
    return _tagged("operator", text, default, **rules)


def restart(text: str, default: Any = None, **rules: Any) -> Any:
    """A field whose change rolls the pods."""
    return _tagged("restart", text, default, **rules)


def immutable(text: str, default: Any = None, **rules: Any) -> Any:
    """A field that can't change once it is set."""
    return _tagged("immutable", text, default, **rules)


def group(kind: type[Group], text: str) -> Any:
    """A group that is always there, so that code reads its defaults without asking whether it was written."""
    return Field(default_factory=kind, description=text)


def tag_of(description: str | None) -> Tag | None:
    """The tag that opens a description, or None where there is none (a group)."""
    for tag in ("hot", "operator", "restart", "immutable"):
        if description is not None and description.startswith(f"[{tag}] "):
            return tag
    return None


PRESERVE = {"x-kubernetes-preserve-unknown-fields": True}

# A part of Kubernetes' own pod API, handed through: the API server checks it when the Deployment is written.
Passthrough = Annotated[dict[str, Any], Field(json_schema_extra=PRESERVE)]
# Kubernetes' quantities as plain strings: an int-or-string is normalised by others and shows up as drift in GitOps.
Quantity = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$", max_length=32)]
ObjectName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
Text = Annotated[str, Field(min_length=1, max_length=1024)]
