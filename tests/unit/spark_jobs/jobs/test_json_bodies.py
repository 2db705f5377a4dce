"""Any bodies are taken apart into fields, within bounds."""

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.jobs.json_bodies import NOT_JSON, body_fields, split_bodies

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def test_nested_values_are_fields_with_paths() -> None:
    body = b'{"a": 1, "b": {"c": [true, null, "x"]}, "d": 1.5}'

    assert list(body_fields(body)) == [
        ("", "object", None),
        ("a", "integer", "1"),
        ("b", "object", None),
        ("b.c", "array", None),
        ("b.c[]", "boolean", "true"),
        ("b.c[]", "null", None),
        ("b.c[]", "string", "x"),
        ("d", "number", "1.5"),
    ]


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"plain text", b"[" * 100_000])
def test_a_body_that_is_no_json_is_one_field(body: bytes) -> None:
    assert list(body_fields(body)) == [("", NOT_JSON, None)]


def test_fields_depth_and_values_are_bounded() -> None:
    wide = json.dumps({f"f{n}": n for n in range(10_000)}).encode()
    deep = b'{"a":' * 50 + b"1" + b"}" * 50
    long = json.dumps({"a": "x" * 10_000}).encode()

    assert len(list(body_fields(wide))) == 500
    assert len(list(body_fields(deep))) == 7
    assert [len(value or "") for _, _, value in body_fields(long)] == [0, 100]


@given(st.lists(st.tuples(st.text(), values.map(json.dumps) | st.text())))
def test_any_bodies_become_columns(rows: list[tuple[str, str]]) -> None:
    topics = [topic.encode("utf-8", "replace").decode() for topic, _ in rows]
    bodies = [body.encode("utf-8", "replace") for _, body in rows]
    batch = pa.record_batch(
        [pa.array(topics, pa.string()), pa.array(bodies, pa.binary())], ["t", "b"]
    )

    [entries] = split_bodies([batch])

    entries.validate(full=True)
    assert entries["path"].to_pylist().count("") >= len(rows)
    assert set(entries["topic"].to_pylist()) == set(topics)
