"""What the webhook refuses, what it only warns of, and what it must never hold up."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from pagemill_operator.admission import Verdict, judge
from pagemill_operator.admission_fit import GPU_MEMORY_LABEL, largest_gpu
from tests.operator.manifests import REFUSED, manifest, stored

GIB = 1024**3
LLAMA = "meta-llama/Llama-2-7b-chat-hf"
# 12.5 GiB of weights, half a MiB a token.
CAPACITY = {
    "weightsBytes": int(12.5 * GIB),
    "kvCacheBytes": 4 * GIB,
    "kvBlocks": 512,
    "maxConcurrentTokens": 8192,
    "maxModelLenThatFits": 4096,
}


def create(new: dict[str, Any], *others: dict[str, Any], gpu_bytes: int | None = None) -> Verdict:
    request = {"uid": "1", "operation": "CREATE", "namespace": "team", "object": new, "oldObject": None}
    return judge(request, others, gpu_bytes)


def update(
    old: dict[str, Any], new: dict[str, Any], *others: dict[str, Any], gpu_bytes: int | None = None, **more: Any
) -> Verdict:
    request = {"uid": "1", "operation": "UPDATE", "namespace": "team", "object": new, "oldObject": old, **more}
    return judge(request, (old, *others), gpu_bytes)


def served(name: str, namespace: str = "team", **spec: Any) -> dict[str, Any]:
    return stored(name, namespace=namespace, **spec)


def llama(name: str = "chat", measured: bool = False, namespace: str = "team", **spec: Any) -> dict[str, Any]:
    made = stored(name, namespace=namespace, **{"model": LLAMA, "accelerator": "gpu", **spec})
    return {**made, "status": {"observedGeneration": 1, "capacity": CAPACITY}} if measured else made


def test_what_is_right_is_allowed() -> None:
    assert create(manifest()) == Verdict()


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_types_refuse_is_refused_with_its_line(case: str) -> None:
    spec, says = REFUSED[case]
    refusal = create(manifest(**spec)).refusal
    assert refusal is not None
    assert refusal.startswith("InvalidSpec: spec")
    assert says in refusal


def test_a_field_that_nothing_acts_on_is_refused() -> None:
    refusal = create(manifest(engine={"quantization": "fp8"})).refusal
    assert refusal is not None
    assert refusal.startswith("UnsupportedField: spec.engine.quantization is not served by this release: ")


def test_all_problems_are_told_at_once() -> None:
    refusal = create(manifest(replcas=1, suspend=1)).refusal
    assert refusal is not None
    assert "spec.replcas: unknown field" in refusal
    assert "spec.suspend: must be true or false" in refusal


class TestServedNames:
    def test_one_that_another_in_the_namespace_has_is_refused(self) -> None:
        refusal = create(manifest("two", servedModelNames=["b", "a"]), served("one", servedModelNames=["a"])).refusal
        assert refusal == "ServedNameTaken: one is served as a already: set servedModelNames to names of its own"

    def test_a_hub_models_own_name_counts(self) -> None:
        refusal = create(manifest("two"), served("one")).refusal
        assert refusal is not None
        assert "one is served as HuggingFaceTB/SmolLM2-135M-Instruct already" in refusal

    def test_other_namespaces_do_not(self) -> None:
        assert create(manifest("two"), served("one", namespace="other")) == Verdict()

    def test_the_same_name_elsewhere_is_not_itself(self) -> None:
        assert create(manifest("one"), served("one", namespace="other")) == Verdict()

    def test_itself_does_not(self) -> None:
        old = served("one")
        assert update(old, served("one", replicas=2)) == Verdict()

    def test_what_is_being_deleted_or_can_not_be_read_does_not(self) -> None:
        going = served("one")
        going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        assert create(manifest("two"), going, served("three", replcas=1)) == Verdict()

    def test_a_conflict_that_was_there_before_holds_up_no_other_change(self) -> None:
        one, two = served("one"), served("two")
        assert update(two, served("two", replicas=3), one) == Verdict()
        assert update(two, served("two", servedModelNames=["own"]), one) == Verdict()
        refusal = update(
            two, served("two", servedModelNames=["a"]), one, served("three", servedModelNames=["a"])
        ).refusal
        assert refusal is not None
        assert "three is served as a already" in refusal


WRONG: dict[str, Any] = {"engine": {"quantization": "fp8"}, "replcas": 1}


class TestWhatIsNeverHeldUp:
    def test_a_deletion(self) -> None:
        old = served("one", **WRONG)
        assert judge({"uid": "1", "operation": "DELETE", "object": None, "oldObject": old}, (), None) == Verdict()

    def test_a_write_of_status(self) -> None:
        new = served("one", replcas=2)
        assert update(served("one"), new, subResource="status") == Verdict()

    def test_labels_and_finalizers_of_what_is_wrong(self) -> None:
        old = served("one", **WRONG)
        new = copy.deepcopy(old)
        new["metadata"]["labels"] = {"a": "b"}
        assert update(old, new) == Verdict()

    def test_what_is_on_its_way_out(self) -> None:
        new = served("one", **WRONG)
        new["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        assert update(served("one"), new) == Verdict()

    def test_an_edit_that_mends_one_thing_of_two(self) -> None:
        wrong = served("one", replcas=1, suspend=1)
        assert update(wrong, served("one", replcas=1, suspend=True)) == Verdict()

    def test_but_not_one_that_breaks_something_else(self) -> None:
        refusal = update(served("one", replcas=1), served("one", replcas=1, suspend=1)).refusal
        assert refusal == "InvalidSpec: spec.suspend: must be true or false, not 1"

    def test_an_unreadable_request(self) -> None:
        assert judge({"uid": "1", "operation": "CREATE", "object": None}, (), None) == Verdict()

    def test_a_new_object_of_a_generated_name(self) -> None:
        new = manifest("x")
        new["metadata"] = {"generateName": "chat-"}
        assert create(new) == Verdict()


class TestMemory:
    def test_weights_larger_than_the_gpu_are_refused_with_the_numbers(self) -> None:
        refusal = create(
            llama("two", gpu={"memoryGiB": 12}, servedModelNames=["b"]), llama("one", measured=True)
        ).refusal
        assert refusal is not None
        assert refusal.startswith(
            f"KVCacheTooSmall: {LLAMA} has weights of 12.5 GiB, and 0.9 of a GPU of 12.0 GiB are 10.8 GiB"
        )
        assert "use a larger GPU" in refusal

    def test_a_length_that_the_rest_has_no_room_for_is_refused_with_the_one_that_fits(self) -> None:
        """0.9 × 16 GiB − 12.5 GiB = 1.9 GiB, at half a MiB a token: 3891, in steps of 64."""
        two = llama("two", gpu={"memoryGiB": 16}, servedModelNames=["b"], maxModelLen=4096)
        refusal = create(two, llama("one", measured=True)).refusal
        assert refusal is not None
        assert "room for 3840 tokens beside them, not for 4096; set maxModelLen to 3840 or less" in refusal
        assert (
            create(
                llama("two", gpu={"memoryGiB": 16}, servedModelNames=["b"], maxModelLen=3840),
                llama("one", measured=True),
            )
            == Verdict()
        )

    def test_what_it_measured_itself_counts_for_its_next_spec(self) -> None:
        old = llama(measured=True, gpu={"memoryGiB": 16}, maxModelLen=2048)
        refusal = update(old, llama(gpu={"memoryGiB": 16}, maxModelLen=4096)).refusal
        assert refusal is not None
        assert "set maxModelLen to 3840 or less" in refusal

    def test_a_status_about_a_former_spec_does_not_count(self) -> None:
        old = llama(measured=True, gpu={"memoryGiB": 16}, maxModelLen=2048)
        old["metadata"]["generation"] = 2
        assert update(old, llama(gpu={"memoryGiB": 16}, maxModelLen=4096)) == Verdict()

    @pytest.mark.parametrize(
        "other",
        [
            {"model": "meta-llama/Llama-2-13b-chat-hf"},
            {"engine": {"dtype": "float32"}},
            {"gpu": {"count": 2}},
            {"model": "pvc://weights/llama", "namespace": "other"},
        ],
    )
    def test_what_another_shape_measured_does_not_count(self, other: dict[str, Any]) -> None:
        model = other.get("model", LLAMA) if "namespace" in other else LLAMA
        new = llama("two", model=model, gpu={"memoryGiB": 12}, servedModelNames=["b"])
        assert create(new, llama("one", measured=True, **other)) == Verdict()

    def test_a_model_of_the_hub_is_the_same_in_every_namespace(self) -> None:
        new = llama("two", gpu={"memoryGiB": 12})
        assert create(new, llama("one", measured=True, namespace="other")).refusal is not None

    def test_nobody_knows_the_model_or_the_gpu_and_nothing_is_said(self) -> None:
        assert create(llama("two", gpu={"memoryGiB": 1})) == Verdict()
        assert create(llama("two", servedModelNames=["b"]), llama("one", measured=True)) == Verdict()

    def test_the_nodes_label_is_no_more_than_a_warning(self) -> None:
        """A larger node may come as soon as it is asked for."""
        verdict = create(llama("two", servedModelNames=["b"]), llama("one", measured=True), gpu_bytes=12 * GIB)
        assert verdict.refusal is None
        (warning,) = verdict.warnings
        assert warning.startswith(f"MemoryFit: {LLAMA} has weights of 12.5 GiB")

    def test_an_encoder_has_no_cache_and_its_weights_count(self) -> None:
        capacity = {**CAPACITY, "kvCacheBytes": 0, "kvBlocks": 0, "maxConcurrentTokens": 0}
        one = llama("one", measured=True)
        one["status"]["capacity"] = capacity
        assert create(llama("two", gpu={"memoryGiB": 24}, servedModelNames=["b"], maxModelLen=512), one) == Verdict()
        refusal = create(llama("two", gpu={"memoryGiB": 8}, servedModelNames=["b"]), one).refusal
        assert refusal is not None
        assert "use a larger GPU" in refusal

    def test_the_largest_of_the_nodes_gpus(self) -> None:
        nodes = [{"metadata": {"labels": {GPU_MEMORY_LABEL: size}}} for size in ("24576", "81920", "much")]
        assert largest_gpu([*nodes, {"metadata": {}}]) == 80 * GIB
        assert largest_gpu([{"metadata": {}}]) is None


def test_a_class_of_the_users_own_is_warned_of_once() -> None:
    """It is in an image that the operator can't import from."""
    (warning,) = create(manifest(schedulingPolicy="ours:Shortest")).warnings
    assert warning.startswith("schedulingPolicy ours:Shortest: only the server can tell")
    old = served("one", schedulingPolicy="ours:Shortest")
    assert update(old, served("one", schedulingPolicy="ours:Shortest", replicas=2)) == Verdict()


def test_a_policy_that_nobody_has_is_refused() -> None:
    refusal = create(manifest(schedulingPolicy="shortest")).refusal
    assert refusal is not None
    assert 'spec.schedulingPolicy: "shortest" does not match' in refusal


def test_a_claim_of_one_node_for_many_replicas_is_warned_of() -> None:
    """kserve#3409, LLMKube#728: a claim that pins all replicas to one node."""
    (warning,) = create(manifest(replicas=2, modelCache={"size": "1Gi"})).warnings
    assert warning.startswith("modelCache of ReadWriteOnce with 2 replicas: they can only run where it is mounted")
    assert create(manifest(replicas=2, modelCache={"size": "1Gi", "accessMode": "ReadWriteMany"})) == Verdict()
    assert create(manifest(modelCache={"size": "1Gi"})) == Verdict()
    assert create(manifest(replicas=2, modelCache={"existingClaim": "own"})) == Verdict()
