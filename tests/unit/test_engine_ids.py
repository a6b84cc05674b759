"""Topic names: the documented charset, nothing that merely looks like it."""

import pytest

from topics.engine.ids import check_topic_name, is_topic_name
from topics.errors import InvalidRequest


@pytest.mark.parametrize(
    "name", ["a", "0", "Z9", "jobs", "render-queue:tenantA", "a._:-", "orders.eu-1", "a" * 255, "a--..::__"]
)
def test_documented_names_are_taken(name: str) -> None:
    assert is_topic_name(name)
    check_topic_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "", "a" * 256, "-a", ".a", "_a", ":a", "a b", " a", "a ", "a\n", "\na", "a\x00", "a/b", "..", "a>b",
        "ä", "aä", "\uff41", "a\u0661", "a%20", "a*", "a,b", "a\\b",
    ],
)  # fmt: skip
def test_everything_else_is_refused_with_its_field(name: str) -> None:
    assert not is_topic_name(name)
    with pytest.raises(InvalidRequest) as caught:
        check_topic_name(name, field="dead_letter")
    assert caught.value.detail["field"] == "dead_letter"
    assert caught.value.detail["value"] == name


def test_a_refused_name_is_not_shown_at_any_length() -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_topic_name("ä" * 100_000)
    assert len(str(caught.value.detail["value"])) == 300
