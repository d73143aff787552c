"""Where a deployment's Service leads: to its replicas, or to the namespace's gateway, which knows the replicas by its route.

Pure: (resource, world, fleet, now, settings) → Way. The Service turns to the gateway when every gateway that takes requests says
that it listens for the deployment, and back before the route goes, so that no request meets a closed door. Where no gateway is left
it leads to the replicas, if any is ready. Called by `reconcile`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from pagemill_operator.cluster.interface import Manifest, Probe
from pagemill_operator.conditions import stamp
from pagemill_operator.fleet import Fleet, Wanted, survey
from pagemill_operator.gateway.route import REPLICAS_SUFFIX, ROUTE_ANNOTATION, InvalidRoute, Route, of_json
from pagemill_operator.gateway_members import held_ports, leads_to_gateway, said_refused
from pagemill_operator.labels import GATEWAY_NAME, ROUTE_ENDS_ANNOTATION
from pagemill_operator.observe import World
from pagemill_operator.render_namespace_gateway import PROGRESS_SECONDS, REPLICAS
from pagemill_operator.resource import Resource
from pagemill_operator.serve_flags import served_names
from pagemill_operator.settings import Settings
from pagemill_operator.waiting import Trouble
from pagemill_operator.way import DIRECT, Way, needs_gateway, wake_timeout

LEAST_LEAVING = 5  # seconds that a route stays after its Service has turned: nodes take a moment to hear of that
SHORT_WAIT = 10  # seconds that a request waits where no replica is ready and the deployment never sleeps
_BLOCK_SIZE = 16  # the engine's own, where the spec says none
NOT_READY = "GatewayNotReady"


def lead(resource: Resource, world: World, fleet: Fleet, now: datetime, settings: Settings) -> Way:
    """The way for now. `fleet`: the deployment's replicas."""
    name = resource.owner.key.name
    service, standing = world.service(name), world.service(name + REPLICAS_SUFFIX)
    here, known = _led_to(service), _route_of(standing)
    if not needs_gateway(resource.spec):
        return _leave(resource, here, known, standing, now)
    gateway = world.gateway or World()
    pods = survey(Wanted(REPLICAS, None), gateway, now)
    answers = [gateway.probes.get(pod.name) for pod in pods.newest if pod.ready]
    port = held_ports(gateway.child("Deployment")).get(name)
    target = _target(port, here, answers, serves=any(pod.ready for pod in (*fleet.newest, *fleet.older)))
    return Way(
        route=known if port is None else _route(resource, port),
        target=target,
        trouble=None if answers else _trouble(pods, said_refused(gateway)),
        again=settings.look_again_seconds if target != port and answers else None,  # that it listens is no event
    )


def _target(port: int | None, here: int | None, answers: list[Probe | None], *, serves: bool) -> int | None:
    """`answers`: of the gateway's pods that take requests; `serves`: a replica does, too."""
    if port is not None and answers and all(_listens(answer, port) for answer in answers):
        return port
    if here is None or not serves:
        return here
    # One that only does not answer just now is no reason to leave.
    return (
        None if all(answer is not None and answer.status and not _listens(answer, here) for answer in answers) else here
    )


def _listens(answer: Probe | None, port: int) -> bool:
    ports = answer.body.get("ports") if answer is not None and answer.status == 200 else None
    return isinstance(ports, list) and port in ports


def _leave(resource: Resource, here: int | None, route: Route | None, standing: Manifest | None, now: datetime) -> Way:
    """First the Service turns away, then the route stays for a while, then it goes."""
    if route is None or standing is None:
        return DIRECT
    if here is not None:
        return Way(route)
    ends = _time(_annotations(standing).get(ROUTE_ENDS_ANNOTATION))
    if ends is None:
        ends = now + timedelta(seconds=max(resource.spec.rollout.lame_duck_seconds, LEAST_LEAVING))
    return Way(route, stamp(ends), again=(ends - now).total_seconds()) if now < ends else DIRECT


def _route(resource: Resource, port: int) -> Route:
    spec = resource.spec
    wake = wake_timeout(spec)
    return Route(
        deployment=resource.owner.key.name,
        port=port,
        routing=spec.routing,
        wake_timeout_seconds=SHORT_WAIT if wake is None else wake,
        sleeps=wake is not None,
        models=served_names(resource),
        keys=spec.api_keys_secret_ref is not None,
        lame_duck_seconds=spec.rollout.lame_duck_seconds,
        drain_timeout_seconds=spec.rollout.drain_timeout_seconds,
        block_size=spec.engine.block_size or _BLOCK_SIZE,
    )


def _trouble(pods: Fleet, refused: str) -> Trouble | None:
    """Nothing while it only starts."""
    if refused:
        what = f"the cluster refuses {refused}"
    elif pods.trouble is None:
        return None
    elif pods.trouble.reason != "ProgressDeadline":
        what = pods.trouble.message
    else:
        what = f"no pod of it has become ready within {PROGRESS_SECONDS} s: see their logs"
    return Trouble(NOT_READY, f"the namespace's gateway ({GATEWAY_NAME}) takes no requests: {what}")


def _led_to(service: Manifest | None) -> int | None:
    """The gateway's port that a Service leads to."""
    if service is None or not leads_to_gateway(service):
        return None
    target = service["spec"]["ports"][0].get("targetPort")
    return target if isinstance(target, int) else None


def _route_of(service: Manifest | None) -> Route | None:
    try:
        return None if service is None else of_json(_annotations(service).get(ROUTE_ANNOTATION, ""))
    except InvalidRoute:
        return None


def _time(text: str | None) -> datetime | None:
    try:
        found = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def _annotations(manifest: Manifest) -> Mapping[str, str]:
    return manifest["metadata"].get("annotations") or {}
