"""What users of other serving operators complain of, each with the tests of ours that show that it is right here.

The numbers are those of the list that the operator was planned with; threads are named as repository#number. The tests themselves
run where they stand: here it is only seen that they do.
"""

from __future__ import annotations

import pytest

from tests.contract.bug_table import bug, missing

OPERATOR, CLUSTER = "operator/", "cluster/"
ROWS: tuple[int | str, ...] = (*range(1, 13), 15, *range(17, 23), *range(24, 28), "27b", 28, 33, 34)

BUGS = {
    1: bug(
        "Ready while pods crash",
        "kserve#1859, kserve#2037",
        f"{OPERATOR}test_status_regressions::test_kserve_1859_and_2037_not_ready_while_pods_crash",
        f"{OPERATOR}test_pod_state::test_an_init_container_that_somebody_put_in_is_told",
        f"{CLUSTER}test_troubles::test_a_crash_loop_is_told_with_how_it_ended",
    ),
    2: bug(
        "an out-of-memory kill is not in the status",
        "kserve#2260",
        f"{OPERATOR}test_status_regressions::test_kserve_2260_out_of_memory_is_in_the_status",
        f"{CLUSTER}test_starts::test_out_of_memory_names_the_limit",
    ),
    3: bug(
        "what a pod lacks does not reach its parent's status",
        "kthena#1220, kthena#1503",
        f"{OPERATOR}test_status_regressions::test_kthena_1220_and_1503_what_a_pod_lacks",
        f"{CLUSTER}test_status_truth::test_what_is_missing_is_named",
        f"{CLUSTER}test_troubles::test_trouble_is_told",
    ),
    4: bug(
        "another model is asked for and the former one served, under a stale observedGeneration",
        "LLMKube#1767",
        f"{OPERATOR}test_status_regressions::test_llmkube_1767_another_model_is_another_generation",
        f"{CLUSTER}test_status_truth::test_another_model_is_never_ready_with_the_former_ones_pods",
    ),
    5: bug(
        "a change of the spec is not rolled out",
        "kubeai#219",
        f"{OPERATOR}test_spec_leaves::test_a_leaf_changes_the_render_or_is_refused",
        f"{OPERATOR}test_hot::test_a_change_is_told_to_each_replica_and_nothing_restarts",
        f"{CLUSTER}test_hot::test_the_process_stays_and_so_does_the_stream_that_runs_in_it",
    ),
    6: bug(
        "a scale-down cuts streams",
        "kthena#1589, gpustack#6059",
        f"{OPERATOR}test_scale_down::test_the_least_busy_goes_when_it_has_finished_what_it_runs",
        f"{CLUSTER}test_streams::test_a_scale_down_in_the_middle_of_which_the_operator_is_killed",
    ),
    7: bug(
        "SIGTERM drops streams, and the endpoint is still routed to",
        "vllm#24885, kserve#5485, kserve#5496, GIE#549",
        "server/test_serve::test_a_running_stream_finishes_while_it_drains",
        f"{CLUSTER}test_streams::test_an_update_of_a_single_replica_by_a_surge",
    ),
    8: bug(
        "a rollout ends running generations",
        "LLMKube#856",
        f"{CLUSTER}test_streams::test_a_rolling_update_one_by_one",
    ),
    9: bug(
        "a rolling update waits for the GPU of the pod that it is to replace",
        "LLMKube#192, airunway#400",
        f"{OPERATOR}test_rollout_fields::test_the_former_ones_serve_on_where_it_has_stopped",
        f"{CLUSTER}test_gpu::test_a_rollout_takes_the_device_of_the_replica_that_it_replaces",
    ),
    10: bug(
        "the operator reverts replicas, and fights whoever scales",
        "crossplane-kubernetes#275, crossplane-kubernetes#277",
        f"{OPERATOR}test_reconcile::test_the_resource_itself_is_never_written",
        f"{CLUSTER}test_no_drift::test_neither_does_it_change_when_it_serves_is_scaled_or_edited",
    ),
    11: bug(
        "/scale has no selector",
        "LLMKube#1881, LLMKube#473",
        f"{OPERATOR}test_crd::test_scale_and_columns",
        f"{CLUSTER}test_serving::test_whoever_scales_finds_the_replicas_and_their_pods",
    ),
    12: bug(
        "Argo CD is out of sync about replicas, also by a default of the schema",
        "production-stack#891, numaflow#3585, snese#200",
        f"{OPERATOR}test_crd::test_replicas_have_no_default_and_no_field_has_one",
        f"{CLUSTER}test_argocd::test_replicas_that_somebody_else_sets_stay",
        f"{CLUSTER}test_argocd::test_it_stays_synced_with_self_heal_and_prune_on",
    ),
    15: bug(
        "an upgrade of the operator restarts every model",
        "kserve#5085, aibrix#2041",
        f"{OPERATOR}test_reconcile::test_a_later_operator_restarts_no_pod_and_writes_nothing",
        f"{OPERATOR}test_render::test_golden",
        f"{CLUSTER}test_streams::test_a_new_operator_leaves_them_too",
    ),
    17: bug(
        "the liveness probe ends a load that is slow",
        "kserve#5062, aibrix#782",
        f"{OPERATOR}test_status_regressions::test_kserve_5062_and_aibrix_782_a_slow_load_has_its_budget",
        f"{CLUSTER}test_starts::test_a_slow_load_is_never_killed_while_it_moves",
        f"{CLUSTER}test_starts::test_a_load_that_stops_moving_ends_with_its_reason",
    ),
    18: bug(
        "no /dev/shm, and NCCL crashes",
        "production-stack#899, production-stack#276, vllm#37982",
        f"{OPERATOR}test_render_security::test_shared_memory_is_there_and_sized",
    ),
    19: bug(
        "a claim of one node holds all replicas there; a claim in another namespace",
        "kserve#3409, LLMKube#728, LLMKube#363",
        f"{OPERATOR}test_render_security::test_the_cache_claim_is_in_the_namespace_of_its_pods_and_may_be_shared",
        f"{OPERATOR}test_admission::test_a_claim_of_one_node_for_many_replicas_is_warned_of",
    ),
    20: bug(
        "the hub's token does not reach who downloads; a gated model shows in a log only",
        "kserve#4400, kserve#6260, LLMKube#1750, kubeai#155",
        f"{OPERATOR}test_status_regressions::test_kserve_4400_and_others_a_gated_model_is_said_and_the_token_is_there",
        f"{CLUSTER}test_preflight::test_a_gated_model_starts_no_pod_until_it_has_a_token",
    ),
    21: bug(
        "tolerations and selectors are ignored",
        "kaito#2220, kaito#1428",
        f"{OPERATOR}test_render_security::test_where_a_pod_may_go_reaches_the_pod",
    ),
    22: bug(
        "a model that was scaled to zero answers 404, so its client stops and nothing ever wakes it",
        "production-stack#1003",
        f"{OPERATOR}gateway/test_waiting_room::test_a_request_for_the_model_waits_for_a_replica",
        f"{OPERATOR}gateway/test_waiting_room::test_a_wait_ends",
        f"{CLUSTER}test_sleep::test_requests_wake_it_and_none_of_their_clients_sees_an_error",
    ),
    24: bug(
        "no data, or NaN, is taken for zero and scales production down",
        "keda#3065, keda#4249, keda#7576",
        f"{OPERATOR}test_autoscale_properties::test_never_down_on_what_is_not_known",
        f"{OPERATOR}test_autoscale_unknown::test_what_is_not_known_never_scales_down_and_says_so",
        "prometheus/test_signals::test_where_nothing_is_scraped_no_query_gives_a_zero",
        "prometheus/test_signals::test_a_prometheus_that_has_stopped_makes_all_doubtful",
    ),
    25: bug(
        "at no replicas there are no series, so nothing wakes it",
        "llm-d#2492",
        f"{OPERATOR}test_autoscale_unknown::test_at_zero_the_gateway_wakes",
        f"{CLUSTER}test_sleep::test_requests_wake_it_and_none_of_their_clients_sees_an_error",
    ),
    26: bug(
        "a queue grows while KV usage is low; a replica is added at each look with no load; a signal that can't reach its target",
        "llm-d-autoscaling#662, llm-d-autoscaling#380, LLMKube#482",
        f"{OPERATOR}test_autoscale_asks::test_a_queue_asks_while_kv_usage_is_low",
        f"{OPERATOR}test_autoscale::test_a_queue_that_waits_for_loading_replicas_does_not_run_away",
        f"{OPERATOR}test_autoscale::test_what_is_asked_for_is_steady_and_the_minimum_is_the_fewest",
        f"{CLUSTER}test_argocd::test_an_open_loop_load_scales_it_up_and_back_and_fails_no_request_while_git_stays_synced",
    ),
    27: bug(
        "a context that the cache can't hold is a crash loop, or hangs for the probes' budget",
        "vllm#2418, vllm#10517, vllm#27508",
        f"{OPERATOR}test_status_regressions::test_vllm_2418_and_others_a_cache_too_small_is_said_with_what_fits",
        f"{CLUSTER}test_preflight::test_what_does_not_fit_takes_no_gpu",
    ),
    "27b": bug(
        "a request that needs more than there is stops the scheduler",
        "vllm#39734",
        "server/engine/test_engine::test_what_can_never_fit_is_refused_at_once",
        "server/engine/test_scheduler::test_work_that_can_never_run_is_an_error_and_not_a_spin",
    ),
    28: bug(
        "memory is not checked before a GPU is taken",
        "kaito#1178, kaito#977, aibrix#2744",
        "pagemill/test_memory_fit::test_what_does_not_fit_says_what_would",
        f"{OPERATOR}test_preflight::test_no_pod_starts_before_the_model_was_looked_at",
        f"{CLUSTER}test_preflight::test_what_does_not_fit_takes_no_gpu",
    ),
    33: bug(
        "an upgrade drops requests",
        "kuberay#1559, kuberay#1565",
        f"{CLUSTER}test_streams::test_a_rolling_update_one_by_one",
        f"{CLUSTER}test_release::test_models_live_through_an_uninstall_and_are_taken_over_by_the_next_install",
    ),
    34: bug(
        "a consolidation evicts the only replica",
        "karpenter#2985, karpenter-provider-aws#5232, karpenter-provider-aws#6129",
        f"{OPERATOR}test_render_beside::test_only_several_replicas_have_a_disruption_budget",
        f"{CLUSTER}test_disruption::test_one_of_two_may_go_and_then_the_other_may_not",
        f"{CLUSTER}test_disruption::test_the_only_one_may_go",
    ),
}


def test_every_row_is_there() -> None:
    assert tuple(BUGS) == ROWS


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"row {row}")
def test_its_tests_are_there(row: int | str) -> None:
    assert BUGS[row].tests
    assert not missing(BUGS[row])
