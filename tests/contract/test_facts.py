"""Bugs that engines like this one had, each with the tests of ours that would find it here.

The numbers are those of the list that the engine was planned with; threads are named as repository#number. Those that are missing
were about what this engine does not have. The tests themselves run where they stand: here it is only seen that they do.
"""

from __future__ import annotations

import pytest

from tests.contract.bug_table import bug, missing

ENGINE, API, TEXT, MODEL = "server/engine/", "server/api/", "server/text/", "server/model/"
ROWS = (1, 3, 4, 6, 7, *range(9, 15), *range(16, 22), 23, 24, 27, 28, 29, *range(31, 43), 44, 45, 46)


BUGS = {
    1: bug(
        "a client that does not stream hangs up, and the engine runs on",
        "vllm#32442, ROCm/ATOM#1562",
        f"{API}test_disconnect::test_hanging_up",
        f"{API}test_faults::test_a_client_that_goes_frees_its_blocks",
        f"{API}test_status::test_hanging_up_while_the_prompt_is_tokenised",
    ),
    3: bug(
        "two requests with one id; a late abort kills the newer",
        "vllm#23697, sglang#19035",
        f"{API}test_request_id::test_two_requests_at_once_may_have_the_same",
        f"{API}test_request_id::test_it_stays_out_of_the_answers_own_id",
        f"{ENGINE}test_loop::test_a_stream_that_ended_does_not_abort_the_next_of_its_id",
    ),
    4: bug(
        "after an abort of all the gauges stay",
        "vllm#22545",
        f"{ENGINE}test_engine::test_abort_frees_blocks_and_gauges_at_once",
        f"{API}test_metrics::test_gauges_follow_what_runs",
    ),
    6: bug(
        "blocks freed twice or never",
        "sglang#12224",
        f"{ENGINE}test_kv_cache::test_release_is_idempotent",
        f"{ENGINE}test_kv_cache_properties::TestCache",
        f"{ENGINE}test_engine_properties::TestEngine",
    ),
    7: bug(
        "a request larger than the pool kills the engine or blocks all",
        "nano-vllm#274, vllm#39734",
        f"{ENGINE}test_engine::test_what_can_never_fit_is_refused_at_once",
        f"{ENGINE}test_engine::test_who_outgrows_what_there_is_ends_with_length",
        f"{ENGINE}test_engine::test_many_that_each_fill_the_cache_all_end",
    ),
    9: bug(
        "blocks that are being fetched count as free: nothing runs for ever",
        "vllm#45387",
        f"{ENGINE}test_fetching::test_one_that_needs_the_whole_pool_waits_for_the_fetch_of_one_that_left",
        f"{ENGINE}test_fetching::test_a_fetch_may_begin_although_the_budget_is_used_up",
        f"{ENGINE}test_loop_hot::test_a_fetch_that_never_ends_is_a_stall",
    ),
    10: bug(
        "a large request at the head keeps small ones out",
        "vllm#31731",
        f"{ENGINE}test_admission::test_small_ones_pass_a_blocked_head_for_a_bounded_time",
    ),
    11: bug(
        "priorities starve others",
        "vllm#20608, sglang#31954",
        f"{ENGINE}policies/test_priority::test_nothing_waits_without_bound",
        f"{ENGINE}policies/test_priority::test_no_number_takes_the_bound_away",
    ),
    12: bug(
        "a preempted request loses its place",
        "vllm#41951",
        f"{ENGINE}test_scheduler::test_the_last_admitted_gives_way_and_comes_back_first",
        f"{ENGINE}test_waiting::test_the_policy_orders_then_the_preempted_then_the_order_of_arrival",
    ),
    13: bug(
        "a prompt that is cached whole leaves nothing to compute",
        "vllm#9972, #11186",
        f"{ENGINE}test_kv_cache_sharing::test_an_equal_prompt_finds_its_full_blocks_but_computes_a_token_at_least",
        f"{ENGINE}test_siblings::test_of_a_prompt_of_whole_blocks_the_last_is_computed_by_each",
    ),
    14: bug(
        "one tenant finds another's blocks; a salt is taken for something else",
        "vllm#44701, CVE-2025-46570, GHSA-rm76-4mrf-v9r8",
        f"{ENGINE}test_kv_cache_sharing::test_salts_never_share_and_equal_salts_do",
        f"{ENGINE}test_prefix::test_keys_of_different_kinds_never_spell_the_same",
        f"{API}test_sampling::test_a_salt_keeps_requests_apart",
    ),
    16: bug(
        "log-probabilities of a prompt from the cache: stale, or the engine's end",
        "vllm#3251, #8268",
        f"{ENGINE}test_commit::test_a_request_for_prompt_logprobs_reads_no_cache_and_fills_it",
        f"{API}test_echo::test_around_a_blocks_end_and_in_chunks_with_a_warm_cache",
    ),
    17: bug(
        "a stop string over several tokens leaks; text and log-probabilities part; a marker is cut in two",
        "vllm#3574, #36830, #57052",
        f"{TEXT}test_stop::test_table",
        f"{TEXT}test_stop::test_cut_in_any_way_the_text_is_the_same",
        f"{API}test_choice::test_whatever_stops_it_text_and_tokens_end_together",
        f"{TEXT}test_reasoning::test_any_cut_is_read_alike",
    ),
    18: bug(
        "a stop string or a further EOS ends it before min_tokens",
        "vllm#21987, #26317",
        f"{API}test_sampling::test_before_the_minimum_neither_stop_tokens_nor_stop_strings_end_it",
        f"{API}test_sampling::test_no_eos_before_the_minimum",
        f"{MODEL}test_penalties::test_the_mask_holds_against_a_bias",
    ),
    19: bug(
        "a character over several tokens comes out broken",
        "vllm#17448, exo#1691",
        f"{TEXT}test_detokenizer::test_the_pieces_joined_are_the_whole_decoded",
        f"{TEXT}test_detokenizer::test_a_half_character_is_never_shown",
    ),
    20: bug(
        "a seed does not hold in company",
        "vllm#51226, #17524",
        f"{API}test_sampling::test_a_seeds_answer_does_not_depend_on_the_company",
        f"{ENGINE}same_answer/test_tiny_llama::test_in_whatever_company",
    ),
    21: bug(
        "with a seed all of n are the same; a stream ends with its first choice",
        "vllm#10852, #11898",
        f"{API}test_sampling::test_n_choices_differ_and_come_again_with_the_seed",
        f"{API}test_sampling::test_n_choices_streamed",
        f"{API}test_sampling::test_usage_has_the_prompt_once_and_every_choices_tokens",
    ),
    23: bug(
        "an id beyond the vocabulary kills the engine or hits a neighbour",
        "vllm#16529, #54195, #11375",
        f"{API}test_malformed::test_chat",
        f"{API}test_malformed::test_completions",
        f"{API}test_embeddings::test_what_cannot_be_asked",
    ),
    24: bug(
        "an empty prompt kills the server",
        "vllm#7283, #7632",
        f"{API}test_malformed::test_completions",
        f"{API}test_embeddings::test_what_cannot_be_asked",
    ),
    27: bug(
        "penalties fail in a mixed batch, or count the prompt",
        "vllm#27878, TensorRT-LLM#5623",
        f"{MODEL}test_penalties::test_repetition_is_transformers_over_prompt_and_output",
        f"{MODEL}test_penalties::test_frequency_and_presence_look_at_the_output_alone",
        f"{MODEL}test_penalties::test_rows_that_ask_for_nothing_are_left_alone",
    ),
    28: bug(
        "a regex or schema that can't be kills the engine, or is not enforced",
        "vllm#17313, #17248, llama.cpp#19051",
        f"{API}test_tools::test_a_schema_that_can_not_be_enforced",
        f"{API}test_structured::test_what_is_asked_wrongly_is_a_400_with_its_name",
        f"{API}test_tools::test_what_is_asked_for_is_compiled_before_it_waits",
        f"{TEXT}grammar/test_schemas::test_what_cannot_be_enforced_is_refused",
        f"{TEXT}grammar/test_compiler::test_what_blows_up_is_refused_or_stays_small",
    ),
    29: bug(
        "a template's refusal is a 500",
        "mistral.rs#506, jan#6254",
        f"{API}test_malformed::test_the_templates_own_refusal",
        f"{API}test_chat::test_developer_is_system_and_null_an_empty_turn",
        f"{API}test_chat::test_content_as_text_or_parts",
    ),
    31: bug(
        "an error in another shape breaks clients",
        "vllm#12886",
        f"{API}test_malformed_http::test_bad_http",
        f"{API}test_openai_client::test_a_mistake_is_an_error_of_its_class",
    ),
    32: bug(
        "what does not fit the context is said wrongly",
        "vllm#33418, #19861",
        f"{API}test_malformed::test_an_answer_that_does_not_fit_names_both_numbers",
        f"{API}test_chat::test_without_max_tokens_the_context_is_the_limit",
    ),
    33: bug(
        "no usage, or in a chunk with choices",
        "llama.cpp#15444, sglang#954",
        f"{API}test_chat::test_usage_only_when_asked",
        f"{API}test_chat::test_chunks_to_the_letter",
    ),
    34: bug(
        "a finish reason that is none, or no [DONE]",
        "TGI#2344, TGI#2221, vllm#27572",
        f"{API}test_chat::test_chunks_to_the_letter",
        f"{API}test_openai_client::test_a_stream_of_a_completion",
    ),
    35: bug(
        "calls are read otherwise in a stream; markers within arguments",
        "vllm#9209, #58824, sglang#41315",
        f"{API}test_tools::test_streamed_is_whole",
        f"{TEXT}test_canitoolcall::test_any_cut_is_read_alike",
        f"{TEXT}tool_formats/test_hermes::test_markers_within_arguments_are_arguments",
    ),
    36: bug(
        "an error in the middle of a stream hangs the client",
        "vllm#22341, mistral.rs#1874",
        f"{API}test_faults::test_a_device_that_fails_in_the_middle",
        f"{API}test_access_log::test_a_bug_in_the_middle_of_a_stream",
    ),
    37: bug(
        "the engine is dead or hangs, and /health says 200",
        "vllm#7633, #39863",
        f"{API}test_status::test_a_dead_engine",
        f"{API}test_status::test_a_stalled_engine",
        f"{ENGINE}test_loop_hot::test_a_step_that_hangs_is_a_stall_whatever_is_sent_meanwhile",
    ),
    38: bug(
        "tokenising holds up the event loop",
        "vllm#24910, #1026",
        f"{API}test_status::test_tokenising_blocks_nobody",
        f"{API}test_malformed_http::test_a_body_too_large",
    ),
    39: bug(
        "the queue has no bound",
        "vllm#18826, kaito#2205",
        f"{API}test_overload::test_beyond_the_bound_it_is_429_and_what_was_taken_is_answered",
        f"{API}test_overload::test_a_request_waits_with_all_of_its_sequences_or_not_at_all",
        f"{ENGINE}test_queue_bounds::test_so_many_may_wait_and_n_counts_n",
        f"{ENGINE}test_queue_bounds::test_on_its_way_n_counts_n_too",
    ),
    40: bug(
        "SIGTERM cuts streams off",
        "vllm#24885",
        "server/test_serve::test_a_running_stream_finishes_while_it_drains",
        f"{API}test_faults::test_a_stop_ends_what_outlasts_it_with_a_last_word",
    ),
    41: bug(
        "a small request asks for all memory",
        "gpt4all#3635, CVE-2025-48956",
        f"{API}test_limits::test_one_more_is_refused",
        f"{API}test_prepare::test_a_small_body_does_not_ask_for_gigabytes",
        f"{API}test_malformed_http::test_headers_without_end",
    ),
    42: bug(
        "a key leaves some routes open",
        "vllm's documentation",
        f"{API}test_keys_http::test_of_our_routes_only_the_probes_are_open",
        f"{API}test_keys_http::test_every_route_and_method_asks_for_it",
    ),
    44: bug(
        "offers what can't be batched: code of the client's, best_of",
        "vllm#17799, #13361",
        f"{API}test_malformed::test_chat",
        f"{API}test_malformed::test_completions",
    ),
    45: bug(
        "one setting is silently taken for another",
        "TGI's presence_penalty",
        f"{API}test_prepare::test_every_field_arrives",
        f"{API}test_sampling::test_frequency_and_presence_look_at_the_answer",
        f"{API}test_sampling::test_repetition_penalty_gives_transformers_tokens",
    ),
    46: bug(
        "a prompt that is too long is dropped, and its client waits; settings are ignored",
        "mini-sglang",
        f"{API}test_chat::test_a_conversation_too_long_for_the_model",
        f"{API}test_fuzz::test_chat",
        f"{API}test_neutral::test_what_asks_for_something_is_refused_by_name",
    ),
}


def test_every_row_is_there() -> None:
    assert tuple(BUGS) == ROWS


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"B{row}")
def test_its_tests_are_there(row: int) -> None:
    assert BUGS[row].tests
    assert not missing(BUGS[row])
