"""Real Argo CD: the example Application from a Git repository, over the life of a model, each step a commit.

It has a cluster of its own, on which Argo CD and not helm installs the chart.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from testbed import argocd as testbed_argocd
from testbed import pace
from testbed.argocd import NAMESPACE, RESYNC, Application, ArgoCD, describe, health_of, healths
from testbed.asking import Stream, ask
from testbed.binaries import build
from testbed.cluster import up
from testbed.deployments import MODEL, Deployed
from testbed.git_repository import GitRepository, new_repository
from testbed.images import REPOSITORY, Images
from testbed.ready import eventually

pytestmark = pytest.mark.cluster

EXAMPLES = REPOSITORY / "examples" / "argocd"
CHECK = REPOSITORY / "gitops" / "argocd" / "resource_customizations" / "pagemill.dev" / "LLMDeployment"
PATCH = REPOSITORY / "gitops" / "argocd" / "argocd-cm.yaml"
MODELS = "examples/argocd/models"
MANIFEST = f"{MODELS}/smollm2.yaml"
HEALTH = yaml.safe_load((CHECK / "health_test.yaml").read_text(encoding="utf-8"))["tests"]
ANOTHER_MODEL = "pagemill/tiny"
DEFINITION = "CustomResourceDefinition llmdeployments.pagemill.dev"
BENCH = REPOSITORY.parent / "shared" / "bench"  # beside the checkout, as for the other tests that use what is there
LONG = 600  # tokens of an answer that outlasts the way from a commit to a rollout,
SLOW = 0.5  # seconds of a step for as long as that takes: five minutes


@dataclass(frozen=True)
class Installed:
    """The example Application, its repository, and the model that it brings."""

    argocd: ArgoCD
    application: Application
    repository: GitRepository
    model: Deployed
    seen: tuple[str, ...]  # the Application's health from its first moment until it was Healthy
    told: Mapping[str, Sequence[str]]  # and meanwhile that of each object, by kind and name
    answered: str  # what the model said at that moment

    def follow(self, commit: str, health: str = "Healthy", seconds: float = 600) -> dict[str, Any]:
        """The Application's status once it is at this commit and in this health."""
        self.application.refresh()
        return self.application.await_state("Synced", health, commit, seconds)


@pytest.fixture(scope="module")
def argocd(images: Images, pytestconfig: pytest.Config) -> Iterator[ArgoCD]:
    """Argo CD with our health check in its settings, beside a bare cluster."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():  # a build of minutes must be seen
        build("argocd")
    cluster = up(images.all(), kept=False)
    try:
        yield testbed_argocd.start(cluster, yaml.safe_load(PATCH.read_text(encoding="utf-8"))["data"])
    finally:
        cluster.close()


@pytest.fixture(scope="module")
def installed(argocd: ArgoCD, images: Images, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The example, applied as it stands but for the addresses that a user puts in, watched until it is Healthy."""
    repository = new_repository(tmp_path_factory.mktemp("git") / "pagemill")
    for path in ("charts/pagemill", MODELS):
        shutil.copytree(REPOSITORY / path, repository.folder / path)
    share = {
        "requests": {"cpu": "500m"}
    }  # without it the kernel gives a pod next to nothing of a machine that does more
    repository.write(f"{MODELS}/pace.yaml", pace.config_map("models"))
    settings = {"engine": {"kvCacheGiB": 0.2}, "rollout": {"drainTimeoutSeconds": 600}, "pod": pace.paced(0)}
    repository.change(MANIFEST, **settings, resources=share)
    application = argocd.apply(addressed("application.yaml", repository, images))
    model = Deployed(argocd.cluster, "models", "smollm2")
    seen: list[str] = []
    told: defaultdict[str, list[str]] = defaultdict(list)

    def healthy() -> bool | None:
        status = application.status()
        health = health_of(status)
        if health and health not in seen[-1:]:
            seen.append(health)
        for name, one in healths(status).items():
            if one not in told[name][-1:]:
                told[name].append(one)
        if health == "Healthy":
            return True
        raise LookupError(describe(status))

    eventually("a Healthy application", healthy, seconds=900)
    return Installed(argocd, application, repository, model, tuple(seen), dict(told), ask(model))


def addressed(name: str, repository: GitRepository, images: Images) -> dict[str, Any]:
    """An example Application with this repository and these images."""
    application: dict[str, Any] = yaml.safe_load((EXAMPLES / name).read_text(encoding="utf-8"))
    sources = application["spec"].get("sources") or [application["spec"]["source"]]
    for source in sources:
        source["repoURL"] = repository.url
    operator, _, tag = images.operator.rpartition(":")
    for source in sources:
        if "helm" in source:
            values = source["helm"]["valuesObject"]
            values["operator"]["image"] = {"repository": operator, "tag": tag}
            values["server"]["image"] = {"gpu": images.server, "cpu": images.server}
    return application


def one_pod(model: Deployed) -> dict[str, Any]:
    """The only pod that is not on its way out."""
    (pod,) = model.staying()
    return pod


def leaves(model: Deployed, pod: dict[str, Any]) -> bool:
    """Whether the pod is on its way out."""
    going = [found["metadata"]["uid"] for found in model.pods() if "deletionTimestamp" in found["metadata"]]
    return pod["metadata"]["uid"] in going


@dataclass
class Seen:
    """What a thread beside the test sees of the model and its Application: each thing when it is another than before."""

    installed: Installed
    replicas: list[int] = field(default_factory=list)  # that the Deployment is held to
    syncs: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Seen:
        self.thread = threading.Thread(target=self._look)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()

    def _look(self) -> None:
        cluster = self.installed.argocd.cluster
        while not self.over.wait(0.5):
            held = cluster.read("/apis/apps/v1/namespaces/models/deployments/smollm2")["spec"]["replicas"]
            sync = self.installed.application.status()["sync"]["status"]
            for found, kept in ((held, self.replicas), (sync, self.syncs)):
                if found not in kept[-1:]:  # type: ignore[operator]
                    kept.append(found)  # type: ignore[arg-type]


def restarts(pod: dict[str, Any]) -> int:
    return int(pod["status"]["containerStatuses"][0]["restartCount"])


@pytest.mark.parametrize("case", HEALTH, ids=lambda case: Path(case["inputPath"]).stem)
def test_argo_cd_itself_runs_the_health_check(case: dict[str, Any], tmp_path: Path) -> None:
    settings = tmp_path / "argocd-cm.yaml"
    named = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "argocd-cm"}}
    settings.write_text(yaml.safe_dump({**named, **yaml.safe_load(PATCH.read_text(encoding="utf-8"))}))
    command = [str(build("argocd").path("argocd")), "admin", "settings", "resource-overrides", "health"]
    environment = {"ARGOCD_BINARY_NAME": "argocd", "HOME": str(tmp_path), "PATH": ""}
    done = subprocess.run(
        [*command, str(CHECK / case["inputPath"]), "--argocd-cm-path", str(settings)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    wanted = case["healthStatus"]
    assert done.stdout.splitlines() == [f"STATUS: {wanted['status']}", f"MESSAGE: {wanted['message']}"]


def test_the_example_is_healthy_when_the_model_answers_and_not_before(installed: Installed) -> None:
    assert installed.answered
    assert installed.seen[-1] == "Healthy"
    assert "Healthy" not in installed.seen[:-1]
    assert "Progressing" in installed.seen
    model = installed.told["LLMDeployment smollm2"]
    assert set(model[:-1]) <= {"Missing", "Progressing"}, model
    assert model[-1] == "Healthy"
    # Argo CD's own check calls a CRD degraded in the moment before the API server has established it. Nothing else may be.
    assert {name for name, healths in installed.told.items() if "Degraded" in healths} <= {DEFINITION}
    assert set(installed.seen) <= {"Missing", "Progressing", "Healthy", *installed.told.get(DEFINITION, ())}
    said = installed.application.resource("LLMDeployment", "smollm2")["health"]
    assert said == {"status": "Healthy", "message": "Serving: 1 of 1 replicas answer"}


def test_it_stays_synced_with_self_heal_and_prune_on(installed: Installed) -> None:
    """Nothing that the operator writes looks like a difference: no sync is begun, and the object is not touched."""
    installed.model.await_condition("Progressing", "False", "Settled")
    eventually("capacity", lambda: installed.model.get()["status"].get("capacity"))
    before, object_before = installed.application.status(), installed.model.get()
    looks = {before["reconciledAt"]}

    def looked() -> bool | None:
        status = installed.application.status()
        assert status["sync"]["status"] == "Synced", describe(status)
        looks.add(status["reconciledAt"])
        return len(looks) > 3 or None

    eventually("that it looks three times in the meantime", looked, seconds=60 * RESYNC)
    after, object_after = installed.application.status(), installed.model.get()
    assert after["history"] == before["history"]
    assert object_after["metadata"] == object_before["metadata"]


def test_a_change_by_hand_is_undone(installed: Installed) -> None:
    installed.argocd.cluster.kubectl("scale", "llmd/smollm2", "-n", "models", "--replicas=0")
    eventually("Git's replicas", lambda: installed.model.get()["spec"]["replicas"] == 1 or None, seconds=120)
    installed.application.await_state("Synced", "Healthy")
    assert installed.model.get()["spec"] == installed.repository.read(MANIFEST)["spec"]


def test_children_belong_to_no_application(installed: Installed) -> None:
    """Argo CD would prune them: it tracks the resource, and its mark on that must not be handed on."""
    tracking = "argocd.argoproj.io/tracking-id"
    assert tracking in installed.model.get()["metadata"]["annotations"]
    kinds = "deployments,replicasets,pods,services,serviceaccounts,persistentvolumeclaims,jobs,configmaps,secrets"
    children = installed.argocd.cluster.get(kinds, "-n", "models", "-l", "pagemill.dev/deployment=smollm2")["items"]
    assert len(children) >= 4
    for child in children:
        metadata = child["metadata"]
        assert not [name for name in metadata.get("annotations", {}) if "argocd" in name], metadata["name"]
        assert "app.kubernetes.io/instance" not in metadata["labels"]
        assert not installed.application.resource(child["kind"], metadata["name"])


def test_a_model_that_cannot_be_served_is_degraded_with_our_reason_and_a_commit_takes_it_away(
    installed: Installed,
) -> None:
    broken = installed.repository.read(MANIFEST)
    broken["metadata"]["name"] = "misspelt"
    broken["spec"]["model"] = "file:///models/no/such-model"
    installed.repository.write(f"{MODELS}/misspelt.yaml", broken)
    installed.follow(installed.repository.commit("a model that is not there"), "Degraded")
    said = installed.application.resource("LLMDeployment", "misspelt")["health"]
    degraded = Deployed(installed.argocd.cluster, "models", "misspelt").condition("Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "ModelNotFound")
    assert said == {"status": "Degraded", "message": f"{degraded['reason']}: {degraded['message']}"}
    assert installed.application.resource("LLMDeployment", "smollm2")["health"]["status"] == "Healthy"
    installed.follow(installed.repository.revert())
    assert not installed.application.resource("LLMDeployment", "misspelt")
    gone = installed.argocd.cluster.refused("get", "llmd", "misspelt", "-n", "models")
    assert "not found" in gone


def test_a_commit_of_a_hot_field_restarts_nothing(installed: Installed) -> None:
    before = one_pod(installed.model)
    installed.follow(installed.repository.change(MANIFEST, schedulingPolicy="priority"))
    assert installed.model.get()["spec"]["schedulingPolicy"] == "priority"
    after = one_pod(installed.model)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert (restarts(before), restarts(after)) == (0, 0)


def test_a_commit_of_another_model_cuts_no_stream_and_a_revert_brings_the_first_back(installed: Installed) -> None:
    cluster, before = installed.argocd.cluster, one_pod(installed.model)
    pace.set_pace(cluster, before, SLOW)
    stream = Stream(installed.model, tokens=LONG)
    stream.start()
    commit = installed.repository.change(MANIFEST, model=ANOTHER_MODEL)
    installed.application.refresh()
    eventually("the old pod's end", lambda: leaves(installed.model, before) or None, seconds=600)
    assert stream.ended is None, "it was over before anything could cut it"
    pace.set_pace(cluster, before, 0)
    installed.follow(commit)
    after = one_pod(installed.model)
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert stream.outcome() == ("length", LONG)
    assert ask(installed.model)
    installed.follow(installed.repository.revert())
    assert installed.model.get()["spec"]["model"] == MODEL
    assert one_pod(installed.model)["metadata"]["uid"] not in (before["metadata"]["uid"], after["metadata"]["uid"])
    assert ask(installed.model) == installed.answered


def test_replicas_that_somebody_else_sets_stay(installed: Installed) -> None:
    """The example's ignoreDifferences, on the Application that runs: no difference, and a sync of another field keeps them."""
    variant = yaml.safe_load((EXAMPLES / "externally-scaled.yaml").read_text(encoding="utf-8"))["spec"]
    change = {"ignoreDifferences": variant["ignoreDifferences"], "syncPolicy": variant["syncPolicy"]}
    cluster = installed.argocd.cluster
    patch = ("patch", "applications.argoproj.io", installed.application.name, "-n", NAMESPACE, "--type=merge", "-p")
    before = installed.application.get()["spec"]
    cluster.kubectl(*patch, json.dumps({"spec": change}))

    def knows() -> bool | None:
        compared = installed.application.status()["sync"]["comparedTo"]
        return bool(compared.get("ignoreDifferences")) or None

    eventually("that it has read its new spec", knows)  # or it would undo what comes next
    try:
        cluster.kubectl("scale", "llmd/smollm2", "-n", "models", "--replicas=0")
        for _ in range(3 * RESYNC):
            assert installed.model.get()["spec"]["replicas"] == 0
            time.sleep(1)
        installed.follow(installed.repository.change(MANIFEST, rollout={"lameDuckSeconds": 1}))
        assert installed.model.get()["spec"]["rollout"] == {"lameDuckSeconds": 1}  # so it was written anew
        assert installed.model.get()["spec"]["replicas"] == 0
    finally:
        back = {"ignoreDifferences": None, "syncPolicy": before["syncPolicy"]}
        cluster.kubectl(*patch, json.dumps({"spec": back}))
    installed.follow(installed.repository.revert())
    assert installed.model.get()["spec"]["replicas"] == 1


def test_an_open_loop_load_scales_it_up_and_back_and_fails_no_request_while_git_stays_synced(
    installed: Installed, tmp_path: Path
) -> None:
    """Answers of few at a time, each of which takes most of a second at least, and a target that a single one exceeds: two requests
    a second are then more than a replica should carry on any machine, and not more than this one can. Between two of them it may
    be idle when it is looked at: the window is longer than it is ever seen so while they come. By least load: a replica that is
    new takes what is new."""
    small = {"requests": {"cpu": "300m"}}
    targets = {"runningRatio": 0.15}
    scaling = {"minReplicas": 1, "maxReplicas": 3, "targets": targets, "scaleDown": {"stabilizationSeconds": 45}}
    engine = {"kvCacheGiB": 0.2, "maxNumSeqs": 2}
    changed = {"autoscaling": scaling, "engine": engine, "resources": small, "routing": "leastLoad"}
    changed["pod"] = pace.paced(0.02)
    commit = installed.repository.change(MANIFEST, replicas=None, **changed)
    before = installed.follow(commit)
    spec = installed.model.get()["spec"]
    assert "replicas" not in spec
    out = tmp_path / "load.json"
    load = [sys.executable, str(BENCH / "bench_openai.py"), "--base-url", installed.model.address(), "--model", MODEL]
    load += ["--workload", str(BENCH / "workloads" / "w4.json"), "--reps", "1", "--warmup", "0", "--out", str(out)]
    load += ["--extra", json.dumps({"max_tokens": 40})]
    with Seen(installed) as seen:
        done = subprocess.run([*load, "--prompt", "text"], capture_output=True, text=True, check=True, timeout=600)
        eventually("one replica", lambda: one_is_left(installed.model), seconds=600)
    (run,) = json.loads(out.read_text(encoding="utf-8"))["runs"]
    assert (run["requests"], run["failed"]) == (125, 0), done.stdout
    assert seen.replicas[0] == seen.replicas[-1] == 1
    assert max(seen.replicas) == 3
    highest = seen.replicas.index(3)
    assert seen.replicas[: highest + 1] == sorted(seen.replicas[: highest + 1])
    assert seen.replicas[highest:] == sorted(seen.replicas[highest:], reverse=True)
    assert seen.syncs == ["Synced"]
    after = installed.application.status()
    assert after["history"] == before["history"]
    assert installed.model.get()["spec"] == spec
    scaled = installed.model.get()["status"]["autoscaling"]
    assert (scaled["desired"], scaled["decision"]) == (1, "Down")
    events = installed.argocd.cluster.get("events", "-n", "models")["items"]
    told = {event["reason"] for event in events if event["involvedObject"]["name"] == "smollm2"}
    assert {"ScaledUp", "ScaledDown"} <= told
    installed.follow(installed.repository.revert())


def one_is_left(model: Deployed) -> bool | None:
    status = model.get()["status"]
    return True if status["ready"] == "1/1" and len(model.pods()) == 1 else None


def test_the_end_of_the_application_takes_operator_and_models_along_but_not_the_definition(
    installed: Installed,
) -> None:
    """Last: nothing hangs on a finalizer though the operator goes at the same time; the chart keeps its CRD."""
    cluster, name = installed.argocd.cluster, installed.application.name
    finalizer = {"metadata": {"finalizers": ["resources-finalizer.argocd.argoproj.io"]}}
    cluster.kubectl(
        "patch", "applications.argoproj.io", name, "-n", NAMESPACE, "--type=merge", "-p", json.dumps(finalizer)
    )
    cluster.kubectl("delete", "applications.argoproj.io", name, "-n", NAMESPACE, "--timeout=300s")
    assert cluster.get("llmdeployments", "--all-namespaces")["items"] == []
    assert cluster.get("deployments", "-n", "pagemill-system")["items"] == []
    assert cluster.kubectl("get", "crd", "llmdeployments.pagemill.dev")
