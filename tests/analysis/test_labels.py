import pytest

from hpcdl.registry import label, parts


@pytest.mark.parametrize(
    "choice",
    [
        {"name": "ring"},
        {"name": "tree", "arity": 4},
        {"name": "hierarchical", "inner": {"name": "tree", "arity": 3, "deep": True}, "outer": "ring"},
        {"name": "schedule", "steps": [1, 2, 3], "factor": 0.5},
    ],
)
def test_a_label_comes_apart_into_what_it_was_made_of(choice):
    settings = {key: label(value) for key, value in choice.items() if key != "name"}
    assert parts(label(choice)) == (choice["name"], settings)


@pytest.mark.parametrize("text", ["", "SGD (old)", "a(b", "a(b)"])
def test_other_text_is_a_name(text):
    assert parts(text) == (text, {})
