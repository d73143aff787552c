"""The reconcile of a namespace's gateway: deployments → members → ports → render → plan → apply. Its key is `gateway_key`'s.

Level-triggered as the deployments' own. It is there while some deployment needs it, or is still on its way out of it; who is led
through it, `lead` decides in each deployment's reconcile. Called by the operator's worker.
"""

from __future__ import annotations

from pagemill_operator.apply import apply
from pagemill_operator.cluster.interface import Cluster, Key
from pagemill_operator.gateway_members import allot, held_ports, may_need, members, routed_ports, said_refused
from pagemill_operator.observe import GATEWAY_KINDS, observe_gateway
from pagemill_operator.plan import plan
from pagemill_operator.render_namespace_gateway import RIGHTS, render_gateway
from pagemill_operator.settings import Settings


async def reconcile_gateway(cluster: Cluster, namespace: str, settings: Settings) -> float | None:
    """One look and the next steps. Returns the seconds until another look is worth it; None: only on events."""
    world = await observe_gateway(cluster, namespace, ask=False)
    live, resources = world.child("Deployment"), await cluster.resources(namespace)
    if not world.children and not any(map(may_need, resources)):
        return None
    names = [found["metadata"]["name"] for found in resources]
    services = {name: await cluster.children(Key(namespace, name), "Service") for name in names}
    found = members(resources, services, live)
    holding = {**routed_ports(service for each in services.values() for service in each), **held_ports(live)}
    ports = allot([member.name for member in found], holding)
    said = said_refused(world)
    desired = render_gateway(namespace, found, ports, settings, said)
    held = RIGHTS if world.pods else ()  # while its pods finish what they run they look for replicas all the same
    refusals = await apply(cluster, plan(None, desired, world, held))
    refused = "; ".join(refusal.message for refusal in refusals)
    if refused != said and found:  # the deployments' own reconciles have no other way to know
        account, *_ = render_gateway(namespace, found, ports, settings, refused)
        await apply(cluster, plan(None, (account,), world, GATEWAY_KINDS))
    return settings.refused_seconds if refusals else None
