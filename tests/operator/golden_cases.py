"""The LLMDeployments whose children are kept as golden manifests (`make golden` writes them anew).

A change of a golden pod template restarts that user's models at the next upgrade of the operator: read the diff with that in
mind.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from pagemill_operator.labels import TEMPLATE_ANNOTATION
from pagemill_operator.render import render
from pagemill_operator.render_command import as_yaml
from pagemill_operator.resource import read
from pagemill_operator.settings import Settings
from tests.operator.manifests import manifest, stored

FOLDER = Path(__file__).parent / "golden"
# Images of no version, so that a release does not touch the files.
SETTINGS = Settings(
    cpu_image="registry.example/server:cpu",
    gpu_image="registry.example/server:gpu",
    gateway_image="registry.example/operator",
    version="test",
    namespace="system",
    preflight=False,
)
MANAGED = replace(SETTINGS, management_key=b"a key of the operator's own, as long as one is")

_AFFINITY = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["a100"]}]}]
        }
    }
}
EVERYTHING: dict[str, Any] = {
    "model": "hf://meta-llama/Llama-2-7b-chat-hf@refs/pr/1",
    "accelerator": "gpu",
    "gpuMemoryUtilization": 0.85,
    "maxModelLen": 4096,
    "replicas": 3,
    "servedModelNames": ["llama-2", "chat"],
    "image": "registry.example/own:1",
    "imagePullPolicy": "Always",
    "imagePullSecrets": [{"name": "pull"}],
    "gpu": {"count": 2, "resourceName": "example.com/gpu", "memoryGiB": 80},
    "resources": {"requests": {"cpu": "1500m", "memory": "2048Mi"}, "limits": {"memory": "8Gi", "cpu": "2.0"}},
    "engine": {
        "dtype": "bfloat16",
        "blockSize": 32,
        "maxNumSeqs": 16,
        "maxNumBatchedTokens": 1024,
        "prefixCaching": False,
        "hostCacheGiB": 8.5,
        "seed": 7,
        "extraArgs": ["--load-format", "safetensors"],
    },
    "schedulingPolicy": "fair",
    "scheduling": {
        "agingSeconds": 12.5,
        "ttftMs": 800,
        "weights": {"team-a": 2, "team-b": 0.5},
        "maxQueuedRequests": 100,
        "maxQueuedTokens": 50000,
    },
    "rollout": {"strategy": "Surge", "lameDuckSeconds": 3, "drainTimeoutSeconds": 90},
    "startup": {"timeoutSeconds": 1800},
    "modelCache": {"size": "100Gi", "storageClassName": "fast", "accessMode": "ReadWriteMany", "retain": True},
    "hfTokenSecretRef": {"name": "hub", "key": "hf"},
    "apiKeysSecretRef": {"name": "clients"},
    "service": {"type": "NodePort", "port": 80},
    "pod": {
        "nodeSelector": {"pool": "gpu"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": _AFFINITY,
        "topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}
        ],
        "env": [{"name": "LOG_LEVEL", "value": "debug"}, {"name": "EMPTY", "value": ""}],
        "envFrom": [{"configMapRef": {"name": "settings"}}],
        "volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "1024Mi"}}],
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
        "labels": {"team": "search"},
        "annotations": {"example.com/note": "kept"},
        "serviceAccountName": "own",
        "runtimeClassName": "nvidia",
        "priorityClassName": "high",
        "securityContext": {"fsGroup": 2000},
        "shmSizeMiB": 2048,
    },
}
PICKED = {
    "parentRef": {"name": "edge", "namespace": "infra", "sectionName": "https"},
    "hostnames": ["chat.example.com"],
    "endpointPicker": {"name": "picker"},
}


def _labelled() -> dict[str, Any]:
    """Whose own labels and annotations are GitOps', but for one that is allowed to go on."""
    made = stored("labelled")
    made["metadata"]["labels"] = {
        "app.kubernetes.io/instance": "argo-app",
        "argocd.argoproj.io/instance": "argo-app",
        "app.kubernetes.io/part-of": "search",
    }
    made["metadata"]["annotations"] = {"argocd.argoproj.io/tracking-id": "x"}
    return made


CASES: dict[str, dict[str, Any]] = {
    "cpu": stored("cpu", engine={"kvCacheGiB": 0.5}, maxModelLen=2048),
    "gpu": stored("gpu", model="meta-llama/Llama-2-7b-chat-hf", accelerator=None),
    "everything": stored("everything", **EVERYTHING),
    "labelled": _labelled(),
    "claim": stored("claim", modelCache={"size": "10Gi"}),
    "existing-claim": stored("existing-claim", modelCache={"existingClaim": "weights"}),
    "model-in-a-claim": stored("model-in-a-claim", model="pvc://weights/llama/7b"),
    "model-in-an-image": stored("model-in-an-image", model="oci://registry.example/llama:7b"),
    "model-file": stored("model-file", model="file:///models/llama.gguf"),
    "embeddings": stored("embeddings", model="sentence-transformers/all-MiniLM-L6-v2", task="embed"),
    "suspended": stored("suspended", suspend=True, replicas=4),
    "routed": stored("routed", gateway={"parentRef": {"name": "edge"}}, service={"port": 80}),
    "picked": stored("picked", replicas=2, gateway=PICKED),
    "guarded": stored(
        "guarded",
        networkPolicy={"enabled": True},
        monitoring={"podMonitor": True},
        schedulingPolicy="ours:Shortest",
        scheduling={"policyConfigMap": "policies"},
        pod={"env": [{"name": "PYTHONPATH", "value": "/own"}]},
    ),
    "from-a-file": manifest("from-a-file", namespace=None),
}


def rendered(name: str) -> str:
    """A case's children as YAML."""
    children: list[Any] = list(render(read(CASES[name]), MANAGED))
    for child in children:  # the pod template once more, for the operator's own use
        (child["metadata"].get("annotations") or {}).pop(TEMPLATE_ANNOTATION, None)
    return as_yaml(children)
