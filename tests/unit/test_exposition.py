"""Metrics as text and JSON."""

import json

from gateway.exposition import Family, as_json, as_text


def test_samples_are_shown_with_help_type_and_escaped_labels() -> None:
    family = Family("a_b", "gauge", "What it is.").add(3).add(0.5, topic='x"\\\n')
    assert as_text([family]).decode() == (
        '# HELP a_b What it is.\n# TYPE a_b gauge\na_b 3\na_b{topic="x\\"\\\\\\n"} 0.5\n'
    )


def test_histogram_buckets_are_cumulative_and_end_in_infinity() -> None:
    family = Family("h", "histogram", "h.").add_histogram((10, 20), [1, 0, 2], 95)
    assert as_text([family]).decode().splitlines()[2:] == [
        'h_bucket{le="10"} 1',
        'h_bucket{le="20"} 1',
        'h_bucket{le="+Inf"} 3',
        "h_sum 95",
        "h_count 3",
    ]


def test_json_has_a_number_or_a_list_of_labelled_samples_per_metric() -> None:
    families = [Family("a", "gauge", "a.").add(1), Family("b", "gauge", "b.").add(2, topic="t")]
    assert json.loads(as_json(families)) == {"a": 1, "b": [{"labels": {"topic": "t"}, "value": 2}]}
