"""The spec's `gateway`: which Gateway leads to the deployment, under which host names, and who picks the replica (Gateway API)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from pagemill_operator.fields import Group, ObjectName, operator

# As the Gateway API has it: a DNS name in small letters, its first label may be `*`.
HostName = Annotated[
    str,
    Field(
        pattern=r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
        min_length=1,
        max_length=253,
    ),
]


class ParentRef(Group):
    """A Gateway (Gateway API)."""

    name: ObjectName = operator("Name of the Gateway.", ...)
    namespace: ObjectName | None = operator("Its namespace; left out, the LLMDeployment's.")
    section_name: ObjectName | None = operator("One of its listeners.")


class EndpointPicker(Group):
    """A picker of the Gateway API Inference Extension."""

    name: ObjectName = operator("Name of its Service, in the LLMDeployment's namespace.", ...)
    port: int = operator("Port of its Service.", 9002, ge=1, le=65535)
    failure_mode: Literal["FailOpen", "FailClose"] = operator(
        "Where it does not answer: FailOpen lets the gateway choose a replica, FailClose refuses the request.",
        "FailOpen",
    )


class Gateway(Group):
    """A route through a Gateway."""

    parent_ref: ParentRef = Field(description="The Gateway that carries the route.")
    hostnames: tuple[HostName, ...] = operator(
        "Host names that lead here; left out, every one of the listener's. Several deployments behind one listener need them.",
        (),
        max_length=16,
    )
    endpoint_picker: EndpointPicker | None = Field(
        None,
        description="Who chooses the replica of each request, by an InferencePool; left out, the route leads to the Service.",
    )
