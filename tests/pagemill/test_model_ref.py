"""Which kind of place a `model` field names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagemill.failures import FailureReason, PagemillError
from pagemill.model_ref import ModelRef, parse


@pytest.mark.parametrize(
    ("text", "ref"),
    [
        ("meta-llama/Llama-2-7b-chat-hf", ModelRef("hub", "meta-llama/Llama-2-7b-chat-hf")),
        ("org/name@v1.0", ModelRef("hub", "org/name", revision="v1.0")),
        ("hf://org/name", ModelRef("hub", "org/name")),
        ("hf://org/name@refs/pr/3", ModelRef("hub", "org/name", revision="refs/pr/3")),
        ("file:///models/a b", ModelRef("file", "/models/a b")),
        ("/models/x.gguf", ModelRef("file", "/models/x.gguf")),
        ("./x", ModelRef("file", "./x")),
        ("../x", ModelRef("file", "../x")),
        ("~/x", ModelRef("file", "~/x")),
        (".", ModelRef("file", ".")),
        ("pvc://models/llama/7b/", ModelRef("pvc", "models", path="llama/7b")),
        ("pvc://models", ModelRef("pvc", "models")),
        ("oci://registry.example/models/x:1", ModelRef("oci", "registry.example/models/x:1")),
    ],
)
def test_forms(text: str, ref: ModelRef) -> None:
    assert parse(text) == ref


@pytest.mark.parametrize(
    "text",
    [
        "",
        " org/name",
        "org/name\n",
        "name",
        "org/name/more",
        "org/",
        "/".join(["a", "..", "b"]),
        "org/..",
        "org/name@",
        "org/name@../../etc",
        "hf://",
        "hf://name",
        "file://relative",
        "file://",
        "http://host/model",
        "s3://bucket/model",
        "pvc://",
        "pvc:///path",
        "pvc://Claim/x",
        "pvc://claim/../other",
        "oci://",
        "oci:///x",
        "oci://a b",
        "org/na me",
        "-org/name",
        "/a\0b",
    ],
)
def test_anything_else_is_refused_with_the_forms_there_are(text: str) -> None:
    with pytest.raises(PagemillError, match="hf://org/name@revision") as caught:
        parse(text)
    assert caught.value.failure.reason is FailureReason.INVALID_CONFIGURATION


@given(st.text() | st.from_regex(r"(hf|pvc|oci|file)://[a-z./@-]*", fullmatch=True))
def test_no_text_ends_in_another_exception_or_climbs_out(text: str) -> None:
    try:
        ref = parse(text)
    except PagemillError:
        return
    if ref.kind in ("hub", "pvc"):
        parts = f"{ref.location}/{ref.path}/{ref.revision or ''}".split("/")
        assert ".." not in parts
