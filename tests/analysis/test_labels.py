from hpcdl.registry import label, parts


def test_a_label_comes_apart_into_what_it_was_made_of():
    for choice in [
        {"name": "ring"},
        {"name": "tree", "arity": 4},
        {"name": "hierarchical", "inner": {"name": "tree", "arity": 3, "deep": True}, "outer": "ring"},
        {"name": "schedule", "steps": [1, 2, 3], "factor": 0.5},
    ]:
        settings = {key: label(value) for key, value in choice.items() if key != "name"}
        assert parts(label(choice)) == (choice["name"], settings)


def test_other_text_is_a_name():
    for text in ["", "SGD (old)", "a(b", "a(b)"]:
        assert parts(text) == (text, {})
