"""The typed spec of an LLMDeployment: every field, its bounds, its default and what a change of it does.

The CRD is generated from these types (`crd`), manifests are read by them (`resource`), `render` turns them into children.
They say what a field may hold, not which of them this release brings alive: that is `supported`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from pagemill import model_ref
from pagemill.failures import PagemillError
from pagemill_operator.fields import Group, ObjectName, Quantity, Text, group, hot, immutable, operator, restart
from pagemill_operator.spec_gateway import Gateway
from pagemill_operator.spec_pod import NamedReference, Pod, Resources
from pagemill_operator.spec_scaling import Autoscaling

MODEL_PATTERN = r"^((hf|pvc|oci)://[^\s]+|file:///[^\s]+|[^\s:]+)$"
# What the operator itself puts on the command line; a second one would leave it open which of both holds.
OWNED_FLAGS = frozenset(
    (
        *("--host", "--port", "--model", "--device", "--dtype", "--served-model-name", "--gpu-memory-utilization"),
        *("--max-model-len", "--block-size", "--max-num-seqs", "--max-num-batched-tokens", "--kv-cache-memory-bytes"),
        *("--seed", "--scheduling-policy", "--max-num-queued-reqs", "--max-num-queued-tokens", "--quantization"),
        *("--enable-prefix-caching", "--no-enable-prefix-caching", "--kv-offloading-size", "--tensor-parallel-size"),
        *("--api-key", "--lame-duck-seconds", "--shutdown-timeout", "--startup-timeout", "--management-port"),
        *("--management-token", "--scheduling-aging-seconds", "--scheduling-ttft-ms", "--scheduling-weights"),
        *("--task", "--api-key-file", "--settings-file"),
    )
)
# Far beyond any machine, and far below where a product with it leaves the numbers that Kubernetes or a float can hold.
MOST_GIB = 1 << 20
MOST_TOKENS = (1 << 31) - 1
MOST_REPLICAS = 100_000
POLICY_PATTERN = r"^(fcfs|priority|fair|deadline|[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*)$"


class Gpu(Group):
    """What one replica asks of a GPU node."""

    count: int = restart("GPUs of one replica.", 1, ge=1, le=64)
    resource_name: str = restart(
        "The extended resource that a node offers.",
        "nvidia.com/gpu",
        pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$",
        max_length=253,
    )
    memory_gib: float | None = operator(
        "Memory of one GPU in GiB, for the checks before one is taken; left out: what the nodes' labels say.",
        gt=0,
        le=MOST_GIB,
        alias="memoryGiB",
    )


class Engine(Group):
    """The engine's own settings; left out, the server chooses."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = restart("Type of weights and KV cache.", "auto")
    block_size: int | None = restart("Tokens in one block of the KV cache.", ge=1, le=MOST_TOKENS)
    max_num_seqs: int | None = restart("Sequences that one step may hold.", ge=1, le=MOST_TOKENS)
    max_num_batched_tokens: int | None = restart(
        "Tokens that one step may hold, prompts and outputs together.", ge=1, le=MOST_TOKENS
    )
    prefix_caching: bool | None = restart("Share the blocks of equal prompt beginnings.")
    kv_cache_gib: float | None = restart(
        "Size of the KV cache in GiB, for accelerator: cpu (a GPU's follows from gpuMemoryUtilization).",
        gt=0,
        le=MOST_GIB,
        alias="kvCacheGiB",
    )
    host_cache_gib: float | None = restart(
        "Size of the cache's second tier in host memory, in GiB.", gt=0, le=MOST_GIB, alias="hostCacheGiB"
    )
    quantization: str | None = restart(
        "How weights are quantized at the load: none, or int8 with accelerator: cpu (a scale for each output).",
        min_length=1,
        max_length=63,
    )
    seed: int | None = restart("Seed of requests that bring none.", ge=0, le=2**53)
    extra_args: tuple[Annotated[str, Field(max_length=1024)], ...] = restart(
        "Further flags of `pagemill serve`, appended as they are; a flag that has a field of its own is refused.",
        (),
        max_length=64,
    )

    @field_validator("extra_args")
    @classmethod
    def _no_field_of_its_own(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        for word in words:
            if (flag := word.partition("=")[0]) in OWNED_FLAGS:
                raise ValueError(f"{flag} follows from the spec's other fields: set those")
            if "\0" in word:
                raise ValueError("must be without NUL characters: no process can be given one")
        return words


class Scheduling(Group):
    """What the scheduling policy reads, and how much may wait."""

    aging_seconds: float | None = hot("priority: seconds of waiting that lift a request by one level.", gt=0)
    ttft_ms: int | None = hot("deadline: milliseconds to the first token, for requests that bring no deadline.", ge=1)
    weights: dict[str, Annotated[float, Field(gt=0)]] | None = hot(
        "fair: share of each client; 1 for whom it doesn't name.", max_length=64
    )
    max_queued_requests: int | None = hot("Sequences that may wait; more are answered 429.", ge=1, le=MOST_TOKENS)
    max_queued_tokens: int | None = hot("Prompt tokens that may wait; more are answered 429.", ge=1, le=MOST_TOKENS)
    policy_config_map: ObjectName | None = restart(
        "ConfigMap whose keys are the Python modules (NAME.py) of a policy of your own; they are put on the server's path."
    )

    @field_validator("weights")
    @classmethod
    def _names_of_clients(cls, weights: dict[str, float] | None) -> dict[str, float] | None:
        for name in weights or ():
            if not name.strip() or name.startswith("-") or "\0" in name:
                raise ValueError(f"{name!r} can't be a client's name: it is empty or begins with -")
        return weights


class Rollout(Group):
    """How pods are replaced and how one stops."""

    strategy: Literal["Replace", "Surge"] = operator(
        "Replace stops a replica before its successor starts, so that no spare GPU is needed; Surge starts it first.",
        "Replace",
    )
    lame_duck_seconds: int = restart(
        "Seconds that a stopping replica, already unready, still takes new requests while endpoints catch up.",
        5,
        ge=0,
        le=600,
    )
    drain_timeout_seconds: int = restart("Seconds that running streams get to finish.", 120, ge=0, le=86400)
    max_failures: int | None = operator("Replicas that may fail before a rollout stops.", ge=1)


class Startup(Group):
    """How long a start may take."""

    timeout_seconds: int = restart(
        "The longest time without loading progress; then the server ends itself.", 600, ge=1, le=86400
    )


class ModelCache(Group):
    """A claim that holds downloaded models, shared by the replicas: one that exists, or one of this size."""

    existing_claim: ObjectName | None = restart("Name of a claim that exists; instead of size.")
    size: Quantity | None = immutable("Size of the claim that the operator makes, e.g. 50Gi; instead of existingClaim.")
    storage_class_name: ObjectName | None = immutable("Its storage class; left out, the cluster's default.")
    access_mode: Literal["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"] | None = immutable(
        "ReadWriteMany lets replicas on several nodes share it. Default: ReadWriteOnce."
    )
    retain: bool = operator("Keep the claim when the LLMDeployment is deleted.", False)

    @model_validator(mode="after")
    def _one_claim(self) -> ModelCache:
        if (self.existing_claim is None) == (self.size is None):
            raise ValueError("set exactly one of existingClaim and size")
        if self.size is None and (self.storage_class_name or self.access_mode or self.retain):
            raise ValueError("storageClassName, accessMode and retain belong to size, not to existingClaim")
        return self


class SecretKey(Group):
    """One key of a Secret in the same namespace; the kubelet reads it, the operator never does."""

    name: ObjectName = restart("Name of the Secret.", ...)
    key: str = restart("Key in the Secret.", "token", pattern=r"^[-._A-Za-z0-9]+$", max_length=253)


class ApiKeys(Group):
    """A Secret of API keys, each under its own name. The kubelet reads it, the operator never does."""

    name: ObjectName = restart(
        "Name of the Secret; each of its keys names a client. What it holds may change without a restart.", ...
    )


class Service(Group):
    """The Service in front of the replicas."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = operator("How it is reached.", "ClusterIP")
    port: int = operator("Its port.", 8000, ge=1, le=65535)


class NetworkPolicy(Group):
    """Who may reach the pods."""

    enabled: bool = operator(
        "Make a NetworkPolicy that lets in the serving port and, from the operator's namespace, the management port.",
        False,
    )


class Monitoring(Group):
    """How Prometheus finds the pods."""

    pod_monitor: bool = operator("Make a PodMonitor (Prometheus Operator).", False)


class LLMDeploymentSpec(Group):
    """What a user asks for."""

    model: str = restart(
        "The model: org/name, hf://org/name@revision, pvc://claim/path, file:///path or oci://image/path.",
        ...,
        min_length=1,
        max_length=1024,
        pattern=MODEL_PATTERN,
    )
    gpu_memory_utilization: float = restart("Fraction of a GPU's memory that the server uses.", 0.9, gt=0, le=1)
    max_model_len: int | None = restart(
        "Tokens of one sequence, prompt and output together; left out, the most that the model allows and the memory holds.",
        ge=1,
        le=MOST_TOKENS,
    )
    scheduling_policy: str = hot(
        'What orders the waiting queue: fcfs, priority, fair, deadline or "package.module:Class".',
        "fcfs",
        max_length=253,
        pattern=POLICY_PATTERN,
    )
    replicas: int | None = operator(
        "Pods that serve; not beside autoscaling by the operator. Left out: one. The field of whoever scales through /scale.",
        ge=0,
        le=MOST_REPLICAS,
    )
    task: Literal["generate", "embed"] | None = restart("What the model is served for; left out: what it was made for.")
    served_model_names: tuple[Text, ...] = restart(
        "Names under which clients ask for it; the first is answered.", (), max_length=16
    )
    image: Text | None = restart(
        "The server's image; left out, the operator's default at the time, kept until a restart field changes."
    )
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = restart("When the image is pulled.")
    image_pull_secrets: tuple[NamedReference, ...] = Field((), description="Secrets to pull it with.", max_length=16)
    accelerator: Literal["gpu", "cpu"] = restart("What the engine runs on.", "gpu")
    gpu: Gpu = group(Gpu, "What one replica asks of a GPU node.")
    resources: Resources = group(Resources, "CPU, memory and storage of the server's container.")
    engine: Engine = group(Engine, "The engine's own settings.")
    scheduling: Scheduling = group(Scheduling, "What the scheduling policy reads, and how much may wait.")
    autoscaling: Autoscaling | None = Field(None, description="Replicas that follow the load; instead of replicas.")
    rollout: Rollout = group(Rollout, "How pods are replaced and how one stops.")
    startup: Startup = group(Startup, "How long a start may take.")
    model_cache: ModelCache | None = Field(None, description="A claim that holds downloaded models.")
    hf_token_secret_ref: SecretKey | None = Field(None, description="The hub's token, for gated models.")
    api_keys_secret_ref: ApiKeys | None = Field(None, description="Keys that clients must bring.")
    service: Service = group(Service, "The Service in front of the replicas.")
    routing: Literal["service", "leastLoad", "prefix"] = operator("What spreads requests over replicas.", "service")
    gateway: Gateway | None = Field(None, description="A route through a Gateway (Gateway API).")
    network_policy: NetworkPolicy = group(NetworkPolicy, "Who may reach the pods.")
    monitoring: Monitoring = group(Monitoring, "How Prometheus finds the pods.")
    pod: Pod = group(Pod, "What else Kubernetes should know of the pods.")
    suspend: bool = operator("Stop all replicas and keep everything else.", False)

    @field_validator("model")
    @classmethod
    def _a_reference(cls, model: str) -> str:
        try:
            model_ref.parse(model)
        except PagemillError as error:
            raise ValueError(str(error)) from error
        return model

    @model_validator(mode="after")
    def _agree(self) -> LLMDeploymentSpec:
        if self.replicas is not None and self.autoscaling is not None and self.autoscaling.engine == "Operator":
            raise ValueError(
                "replicas and autoscaling exclude each other: remove replicas, or set autoscaling.engine: External"
            )
        if self.accelerator == "cpu" and "gpu" in self.model_fields_set:
            raise ValueError("gpu belongs to accelerator: gpu; remove it or the accelerator")
        if self.accelerator == "gpu" and self.engine.kv_cache_gib is not None:
            raise ValueError(
                "engine.kvCacheGiB is for accelerator: cpu; a GPU's cache follows from gpuMemoryUtilization"
            )
        return self
