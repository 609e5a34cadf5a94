"""Traits: a scheme is what its module declares, with any name and in any place."""

import sys

import pytest
from contract.records import with_settings

import hpcdl.aggregation
from hpcdl import registry, suite
from hpcdl.aggregation.parts.collectives import component, phases
from hpcdl.aggregation.parts.traits import Aggregation
from hpcdl.analysis.run.record import Record
from hpcdl.cases.measuring.autotune import candidates, choose_by_simulation
from hpcdl.commands.list import catalogue
from hpcdl.fabric.network import NETWORKS
from hpcdl.prediction.predict import predict
from hpcdl.prediction.programs import measured_programs

LINE = '''
from hpcdl.aggregation.parts.traits import Aggregation
from hpcdl.aggregation.ring import allgather, reduce_scatter

TRAITS = Aggregation({traits})


async def {name}(comm, buffer):
    """Pass the sum up a line of ranks and back down again. Any p.

    Messages, busiest rank: min(p - 1, 2)
    Bytes, busiest rank: n*min(p - 1, 2)
    Time: (p - 1)*(2*alpha + 2*n*beta + n*gamma)
    """
    below, above = comm.rank - 1, comm.rank + 1
    if comm.rank > 0:
        with comm.scratch(len(buffer), buffer) as inbox:
            await comm.recv(inbox, below)
            await comm.add(buffer, inbox)
    if above < comm.size:
        await comm.send(buffer, above)
        await comm.recv(buffer, above)
    if comm.rank > 0:
        await comm.send(buffer, below)
'''

SUITE = """
[suite]
name = "own"
[[case]]
kind = "collective"
aggregation = {scheme}
message_bytes = 4096
ranks = 4
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """module(traits): return the name of a user's scheme with these traits, in a module outside the package."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mymodule", raising=False)

    def write(traits="", name="alternative_ring"):
        (tmp_path / "mymodule.py").write_text(LINE.format(traits=traits, name=name))
        return f"mymodule:{name}"

    return write


@pytest.fixture
def dropped(tmp_path, monkeypatch):
    """Return the name of a scheme whose file was added to the folder of schemes."""
    (tmp_path / "line.py").write_text(LINE.format(traits="", name="line"))
    monkeypatch.setattr(hpcdl.aggregation, "__path__", [*hpcdl.aggregation.__path__, str(tmp_path)])
    registry.forget()
    yield "line"
    registry.forget()
    sys.modules.pop("hpcdl.aggregation.line", None)


def rows(tmp_path, scheme):
    file = tmp_path / "own.toml"
    file.write_text(SUITE.format(scheme=scheme))
    return predict(file, "ethernet-10g").rows


def record(scheme):
    fields = {
        "kind": "collective",
        "collective": "allreduce",
        "aggregation": scheme,
        "dtype": "float32",
        "message_bytes": 4096,
        "ranks": 4,
        "time_p50_seconds": 1e-3,
        "correct": True,
    }
    return Record.of(with_settings(fields))


def test_the_name_of_a_users_scheme_does_not_make_it_native(tmp_path, module):
    scheme = module()
    (row,) = rows(tmp_path, f'"{scheme}"')
    assert not row.library_decides
    assert measured_programs([record(scheme)])


def test_a_native_scheme_is_native_as_a_component(tmp_path):
    (row,) = rows(tmp_path, '{name = "hierarchical", outer = "native"}')
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
    text = SUITE.format(scheme=f'"{scheme}"')
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
    (row,) = rows(tmp_path, f'"{dropped}"')
    link, gamma = NETWORKS["ethernet-10g"].link, NETWORKS["ethernet-10g"].gamma
    stated = 3 * (2 * link.alpha + 2 * 4096 * link.beta + 4096 * gamma)
    assert row.predicted_seconds == pytest.approx(stated)
