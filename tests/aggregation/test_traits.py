"""Traits: a scheme is what its module declares, with any name and in any place."""

import sys

import pytest
from contract.records import with_settings
from suite.conftest import CASES, text_of
from test_contributing import EXAMPLES

import hpcdl.aggregation
from hpcdl import registry, suite
from hpcdl.aggregation.parts.traits import Aggregation, component, phases
from hpcdl.analysis.run.record import Record
from hpcdl.cases.parts.autotune import candidates, choose_by_simulation
from hpcdl.commands.list import catalogue
from hpcdl.fabric.network import NETWORKS
from hpcdl.prediction.predict import predict
from hpcdl.prediction.programs import measured_programs


def scheme_text(traits="", name="line"):
    """Return the example of CONTRIBUTING.md with these traits and name, which imports the phases of a ring."""
    text = EXAMPLES["aggregation/line.py"].replace("Aggregation(autotuned=False)", f"Aggregation({traits})")
    text = text.replace("TRAITS =", "from hpcdl.aggregation.ring import allgather, reduce_scatter\n\nTRAITS =")
    return text.replace("async def line(", f"async def {name}(")


@pytest.fixture
def module(tmp_path, monkeypatch):
    """module(traits): return the name of a user's scheme with these traits, in a module outside the package."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mymodule", raising=False)

    def write(traits="", name="alternative_ring"):
        (tmp_path / "mymodule.py").write_text(scheme_text(traits, name))
        return f"mymodule:{name}"

    return write


@pytest.fixture
def dropped(tmp_path, monkeypatch):
    """Return the name of a scheme whose file was added to the folder of schemes."""
    (tmp_path / "line.py").write_text(scheme_text())
    monkeypatch.setattr(hpcdl.aggregation, "__path__", [*hpcdl.aggregation.__path__, str(tmp_path)])
    registry.forget()
    yield "line"
    registry.forget()
    sys.modules.pop("hpcdl.aggregation.line", None)


CASE = {**CASES["collective"], "message_bytes": 4096, "ranks": 4}


def rows(tmp_path, scheme):
    file = tmp_path / "own.toml"
    file.write_text(text_of({**CASE, "aggregation": scheme}))
    return predict(file, "ethernet-10g").rows


def record(scheme):
    fields = {**CASE, "collective": "allreduce", "aggregation": scheme, "dtype": "float32"}
    return Record.of(with_settings({**fields, "time_p50_seconds": 1e-3, "correct": True}))


def test_the_name_of_a_users_scheme_does_not_make_it_native(tmp_path, module):
    scheme = module()
    (row,) = rows(tmp_path, scheme)
    assert not row.library_decides
    assert measured_programs([record(scheme)])


def test_a_native_scheme_is_native_as_a_component(tmp_path):
    (row,) = rows(tmp_path, {"name": "hierarchical", "outer": "native"})
    assert row.library_decides
    assert not measured_programs([record("hierarchical(outer=native)")])
    assert measured_programs([record("hierarchical(outer=tree)")])


def test_declared_traits_of_a_users_scheme_are_used(module):
    assert not measured_programs([record(module("native=True"))])


def test_a_composite_scheme_shares_ports_if_a_component_does():
    names = ("hierarchical(outer=direct)", "hierarchical(outer=ring)")
    assert [each.shares_ports for each in measured_programs(map(record, names))] == [True, False]


def test_a_declaration_of_another_type_is_refused_in_one_line(module, tmp_path):
    scheme = module()
    file = tmp_path / "mymodule.py"
    file.write_text(file.read_text().replace("TRAITS = Aggregation()", "TRAITS = {'native': True}"))
    text = text_of({**CASE, "aggregation": scheme})
    with pytest.raises(suite.UsageError) as refused:
        suite.parse(text, str(tmp_path / "own.toml"))
    reason = f"aggregation: '{scheme}': TRAITS is of type dict, not Aggregation"
    assert str(refused.value) == f"{tmp_path / 'own.toml'}: [[case]] 1: {reason}"


def test_a_composite_scheme_is_no_component_of_another():
    for name in registry.names("aggregation"):
        traits = registry.traits("aggregation", name, Aggregation)
        if traits.composite or traits.sparse or not traits.sums:
            with pytest.raises(ValueError, match=f"^outer = '{name}': this scheme "):
                component("outer", name)
        else:
            assert component("outer", name) is registry.find("aggregation", name)
        assert set(traits.parts) <= set(registry.settings_of(registry.find("aggregation", name)))


def test_halves_that_a_module_imports_do_not_belong_to_its_scheme(module):
    assert phases(registry.find("aggregation", module()), "reduce_scatter", "allgather") is None
    assert phases(registry.find("aggregation", "ring"), "reduce_scatter", "allgather") is not None


def test_a_file_in_the_folder_is_enough(tmp_path, dropped):
    """It is listed, a candidate of ``auto`` and predicted."""
    assert dropped in {entry["name"] for entry in catalogue("aggregation")}
    assert dropped in candidates()
    assert dropped in choose_by_simulation(4, NETWORKS["ethernet-10g"], [64], "float32").times
    (row,) = rows(tmp_path, dropped)
    link, gamma = NETWORKS["ethernet-10g"].link, NETWORKS["ethernet-10g"].gamma
    stated = 3 * (2 * link.alpha + 2 * 4096 * link.beta + 4096 * gamma)
    assert row.predicted_seconds == pytest.approx(stated)
