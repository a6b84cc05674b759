"""Match grammar and the tag index: exactly the tags meant, found without walking the log."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shards.requests import decode_delete
from topics.engine import tags
from topics.engine.run import encode_tag
from topics.engine.tags import TagColumn, parse_match
from topics.errors import InvalidRequest

TAGS = st.text(st.sampled_from('ab*"\\\n\x7fä😀'), max_size=4)


def delete_field(body: str) -> str:
    """The field that a refused delete is blamed on."""
    with pytest.raises(InvalidRequest) as refused:
        decode_delete(body.encode())
    assert refused.value.http_status == 400
    assert refused.value.code == "invalid_request"
    field = refused.value.detail["field"]
    assert isinstance(field, str)
    return field


def covers(match: str | list[str], tag: str) -> bool:
    return parse_match(match, field="match").covers(encode_tag(tag))


@pytest.mark.parametrize(
    "match",
    [
        "[]",
        '["tag"]',
        '["tag","Eq"]',
        '["tag","Eq","x","y"]',
        '["node","Eq","x"]',
        '["Tag","Eq","x"]',
        '["tag","eq","x"]',
        '["tag","Regex","x"]',
        '["tag","Glob","x"]',
        '["tag","Glob",""]',
        '["tag","Glob","x**"]',
        '["tag","Glob","*x"]',
        '["tag","Glob","x*y*"]',
        '["tag","Glob","x*y"]',
        '["tag","Eq",5]',
        '["tag","Eq",null]',
        '["tag",null,"x"]',
        '[["tag","Eq","x"]]',
        '{"tag":"x"}',
        "5",
        "true",
        "null",
    ],
)
def test_every_other_tuple_is_refused_with_its_field(match: str) -> None:
    assert delete_field(f'{{"match":{match}}}').startswith("match")


@pytest.mark.parametrize("depth", [10, 500, 900, 990, 994, 995, 996, 1000, 100_000])
def test_a_nested_match_is_refused_at_any_depth(depth: int) -> None:
    for opened, closed in (("[", "]"), ('{"a":', "}")):
        nested = opened * depth + "1" + closed * depth
        assert delete_field(f'{{"match":["tag",{nested},"x"]}}')
        assert delete_field(f'{{"match":{nested}}}')


def test_a_delete_names_a_bound_or_a_match() -> None:
    assert delete_field("{}") == "before_seq"
    assert delete_field('{"before_seq":-1}') == "before_seq"
    assert delete_field('{"before_seq":1.0}') == "before_seq"
    assert delete_field('{"before_seq":null}') == "before_seq"
    assert delete_field('{"before_seq":18446744073709551616}') == "before_seq"
    assert decode_delete(b'{"before_seq":18446744073709551615}').before_seq == 2**64 - 1


@pytest.mark.parametrize("text", ["x", "x*", "*", "", "ä", 'a"b', "\\"])
def test_a_bare_string_means_that_very_tag(text: str) -> None:
    assert covers(text, text)
    assert covers(["tag", "Eq", text], text)
    assert not covers(text, text + "y")


def test_a_glob_matches_its_literal_prefix_and_nothing_shorter() -> None:
    assert covers(["tag", "Glob", "chat-42:*"], "chat-42:")
    assert covers(["tag", "Glob", "chat-42:*"], "chat-42:x")
    assert not covers(["tag", "Glob", "chat-42:*"], "chat-42")
    assert not covers(["tag", "Glob", "chat-42:*"], "chat-421:x")
    assert covers(["tag", "Glob", "*"], "")


@given(prefix=TAGS.filter(lambda text: "*" not in text), tag=TAGS)
def test_globs_and_equality_agree_with_plain_text(prefix: str, tag: str) -> None:
    assert covers(["tag", "Glob", prefix + "*"], tag) == tag.startswith(prefix)
    assert covers(prefix, tag) == (prefix == tag)


@given(
    batches=st.lists(st.lists(st.none() | TAGS, min_size=1, max_size=40), min_size=1, max_size=6),
    matches=st.lists(st.tuples(TAGS, st.booleans()), min_size=1, max_size=6),
    untagged=st.integers(0, 3),
    unsorted_max=st.sampled_from([0, 1, 5, 64]),
)
def test_the_index_finds_what_a_walk_over_all_tags_finds(
    batches: list[list[str | None]], matches: list[tuple[str, bool]], untagged: int, unsorted_max: int
) -> None:
    column = TagColumn(untagged)
    every: list[str | None] = [None] * untagged
    original, tags._UNSORTED_MAX = tags._UNSORTED_MAX, unsorted_max
    try:
        for number, batch in enumerate(batches):
            encoded = [b"" if tag is None else encode_tag(tag) for tag in batch]
            if any(encoded):
                column.extend(array("I", map(len, encoded)), b"".join(encoded))
            else:
                column.extend_untagged(len(batch))
            every += batch
            text, is_prefix = matches[number % len(matches)]
            text = text.replace("*", "") if is_prefix else text
            match = parse_match(["tag", "Glob", text + "*"] if is_prefix else text, field="match")
            for below in (0, len(every) // 2, len(every), len(every) + 1):
                wanted = [
                    index
                    for index, tag in enumerate(every[:below])
                    if tag is not None and (tag.startswith(text) if is_prefix else tag == text)
                ]
                assert sorted(column.find(match, below=below)) == wanted
    finally:
        tags._UNSORTED_MAX = original
    assert len(column) == len(every)
    shown = [b"" if tag is None else b',"$tag":' + encode_tag(tag) for tag in every]
    assert [column.sections(at, at + 1)[0] for at in range(len(every))] == shown
    assert column.sections(0, len(every)) == shown


def test_columns_are_whole_however_much_of_them_was_indexed() -> None:
    """Also where the index knows some of the tags only."""
    some = [encode_tag(f"t{number % 7}") for number in range(100)]
    column = TagColumn(1)
    column.extend(array("I", map(len, some)), b"".join(some))
    for later in (b'"t3"', b'"a"'):
        whole = sorted(range(1, len(column)), key=column.__getitem__)
        assert column.columns()[2].tolist() == whole
        copy = TagColumn.of(*column.columns())
        assert [copy[index] for index in range(len(copy))] == [column[index] for index in range(len(column))]
        for text in ("t3", "a", "t9"):
            match = parse_match(text, field="match")
            assert sorted(copy.find(match, below=200)) == sorted(column.find(match, below=200))
        column.extend(array("I", [len(later)]), later)
