"""All peers by name. A new one is an adapter file and a line here."""

from __future__ import annotations

from benchmarks.peers import llamacpp, openvino, sentences, vllm
from benchmarks.peers.contestant import Peer


def peers() -> dict[str, Peer]:
    decoders = (llamacpp.peer("f16"), llamacpp.peer("bf16"), openvino.peer(), vllm.peer())
    encoders = (sentences.peer("float32"), sentences.peer("bfloat16"))
    return {peer.name: peer for peer in (*decoders, *encoders)}
