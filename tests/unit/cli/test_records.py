import json
from pathlib import Path

import pytest
from pydantic import BaseModel

from pyrula.cli.dev.records import Given, count_lines, from_file, from_samples
from pyrula.cli.problem import Problem


def lines(folder: Path, *content: str) -> str:
    file = folder / "records.jsonl"
    file.write_text("\n".join(content) + "\n")
    return str(file)


def read(path: str, *, envelope: bool = False, key: str | None = None, count: int | None = None) -> list[Given]:
    return list(from_file(path, envelope=envelope, key_field=key, count=count))


def test_a_line_is_a_value_as_it_stands(tmp_path: Path) -> None:
    path = lines(tmp_path, '{"id":  1}', "not JSON", "", "null")
    assert [given.value for given in read(path)] == [b'{"id":  1}', b"not JSON", b"null"]
    assert count_lines(path) == 3


def test_count_limits_the_records_of_a_file(tmp_path: Path) -> None:
    assert [given.value for given in read(lines(tmp_path, "1", "2", "3"), count=2)] == [b"1", b"2"]


@pytest.mark.parametrize(
    ("line", "key"),
    [('{"id": "a"}', b"a"), ('{"id": 7}', b"7"), ('{"id": null}', None), ("{}", None), ("[1]", None), ("oops", None)],
)
def test_the_key_is_taken_from_a_field_where_there_is_one(tmp_path: Path, line: str, key: bytes | None) -> None:
    assert read(lines(tmp_path, line), key="id")[0].key == key


def test_a_key_that_no_record_has_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(read(lines(tmp_path, '{"id": "a"}', '{"name": "b"}'), key="id")) == 2
    assert capsys.readouterr().err == ""
    assert len(read(lines(tmp_path, '{"id": "a"}', "oops"), key="ID")) == 2
    assert capsys.readouterr().err == "--key ID: no record has a value in a field of that name, so none has a key\n"


def test_an_envelope_says_key_headers_and_topic(tmp_path: Path) -> None:
    envelope = {"key": "k", "value": {"a": 1}, "headers": {"source": "web"}, "topic": "orders"}
    (given,) = read(lines(tmp_path, json.dumps(envelope)), envelope=True)
    assert given == Given(b'{"a":1}', b"k", (("source", b"web"),), "orders")


@pytest.mark.parametrize(
    ("line", "value"), [('{"value": null}', None), ('{"text": "not JSON"}', b"not JSON"), ('{"value": "x"}', b'"x"')]
)
def test_null_is_no_value_and_a_text_is_sent_as_it_is(tmp_path: Path, line: str, value: bytes | None) -> None:
    assert read(lines(tmp_path, line), envelope=True)[0].value == value


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("oops", "records.jsonl:1 is no JSON"),
        ("[1]", "records.jsonl:1: with --envelope every line is an object"),
        ('{"key": "k"}', "needs a value"),
        ('{"value": 1, "text": "x"}', "not both"),
        ('{"value": 1, "keys": "k"}', "has keys; a record may have headers, key, text, topic, value"),
        ('{"value": 1, "key": [1]}', "the key [1] is no text"),
    ],
)
def test_a_wrong_envelope_is_named_by_its_line(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(Problem) as problem:
        read(lines(tmp_path, line), envelope=True)
    assert said in str(problem.value)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(Problem, match="No such file"):
        count_lines(str(tmp_path / "none.jsonl"))


class Order(BaseModel):
    id: str


def test_samples_are_pairs_or_envelopes() -> None:
    def samples(count: int) -> list[object]:
        return [("k", Order(id="a")), (None, b"raw"), (3, None), {"value": [count], "headers": {"n": 1}}]

    assert list(from_samples(samples, 4)) == [
        Given(b'{"id":"a"}', b"k"),
        Given(b"raw"),
        Given(None, b"3"),
        Given(b"[4]", None, (("n", b"1"),)),
    ]


@pytest.mark.parametrize("sample", [17, "text", ("k", "v", "w"), {"valu": 1}, {"value": object()}])
def test_a_sample_of_another_form_is_told_with_its_number(sample: object) -> None:
    with pytest.raises(Problem, match=r"sample_records\(2\), item 1"):
        list(from_samples(lambda count: [("k", 1), sample], 2))
