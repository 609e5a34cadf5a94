"""Settings of records that are made by hand, from their other fields."""

import ast
import json
from dataclasses import MISSING

from hpcdl.cases.keys.key import Choice, keys
from hpcdl.cases.keys.suite_tables import kinds, module_of
from hpcdl.registry import parts

USUAL = {"learning_rate": 0.1, "model": "lenet5", "dataset": "digits"}


def choice(folder, text):
    """Return the choice whose text is ``text``."""
    name, settings = parts(text)
    return Choice(folder, name, {key: value_of(one) for key, one in settings.items()})


def value_of(text):
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text  # a word


def with_settings(fields):
    """Return a record with the field ``settings``: those that are given, choices, and what a suite must give."""
    found = {}
    for name, one in keys(module_of(fields["kind"]).SPEC).items() if fields.get("kind") in kinds() else ():
        value, folder = fields.get(name, USUAL.get(name)), one.metadata["key"].folder
        if folder and value and value != "own" and not str(value)[0].isdigit():
            found[name] = choice(folder, str(value)).written
        elif value is not None and (one.default is MISSING or name in {"collective", "dtype"}):
            found[name] = value
    return {**fields, "settings": json.dumps({**found, **fields.get("settings", {})})}
