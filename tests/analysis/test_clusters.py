"""Table of other people's measurements of real clusters, and the program that makes it from their archives."""

import gzip
import importlib.util
import io
import tarfile
from pathlib import Path

import hpcdl
from hpcdl.aggregation.parts.traits import COLLECTIVES, offered
from hpcdl.analysis.network.clusters import Measurement, measurements, records

PICO = Path(hpcdl.__file__).parents[1] / "reports" / "oracles" / "pico.py"

HEAD = (
    "timestamp,test_id,nnodes,tasks_per_node,collective_type,mpi_lib,mpi_lib_version,libbine_version,"
    "gpu_awareness,gpu_lib,gpu_lib_version,output_level,MPI_Op,notes\n"
)
JOBS = {
    "leonardo": (
        "0,3,1,ALLGATHER,OMPI,4.1.6,1.0.0,no,null,null,summarized,null,null",
        {
            "0/512_ring_ompi_int32.csv": "highest\n900\n40\n10\n20\n30\n50\n",
            "alloc.csv": "MPI_Rank,allocation\n0,lrdn0001.leonardo.local\n      1,lrdn0011.leonardo.local\n"
            "      2,lrdn0091.leonardo.local\n",
        },
    ),
    "mare_nostrum": (
        "0,16,4,ALLREDUCE,OMPI,4.1.5,1.0.0,yes,CUDA,12,summarized,MPI_SUM,vsnccl",
        {
            "0/256_allreduce_nccl_ring.csv": "highest\n0\n90000\n44411\n44410\n44412\n44412\n44413\n"
            "-> Buffer: 256 byte, Latency: 6.5e-05\n"
        },
    ),
    "fugaku": (
        "0,2x2x2,1,BCAST,FJMPI,4.0.1,1.0.0,no,null,null,summarized,null,null",
        {"0/8_default-binomial_int32.csv": "highest\n7\n5\n9\nAverage runtime: 0.000258\n"},
    ),
    "lumi": (
        "0,2,1,REDUCE,CRAY_MPICH,8.1.29,1.0.0,no,null,null,summarized,MPI_SUM,null",
        {
            "0/1_binomial_mpich_int32.csv": "highest\n3\n5\n7\n",
            "0/8_binomial_mpich_int32.csv": "highest\n",  # cut off: no row
            "alloc.csv": "MPI_Rank,allocation,xname\n0,nid1,x1301c6s6b0n0\n1,nid2,x1301c6s6b1n0\n"
            "2,nid3,x1301c7s0b0n0\n3,nid4,x1302c0s3b0n0\n",
        },
    ),
}
"""By folder of PICO: a line of the metadata, and files of the archive, as PICO's programs write them."""


def test_archives_become_rows(tmp_path):
    job = "2025_01_02___03_04_05"
    for folder, (test, files) in JOBS.items():
        (tmp_path / "results" / folder).mkdir(parents=True)
        (tmp_path / f"results/{folder}_metadata.csv").write_text(f"{HEAD}{job},{test}\n")
        with tarfile.open(tmp_path / f"results/{folder}/{job}.tar.gz", "w:gz") as archive:
            for name, text in files.items():
                entry = tarfile.TarInfo(f"{job}/{name}")
                entry.size = len(text)
                archive.addfile(entry, io.BytesIO(text.encode()))
    module = importlib.util.module_from_spec(spec := importlib.util.spec_from_file_location("pico", PICO))
    spec.loader.exec_module(module)
    for name in ("once", "again"):
        (tmp_path / name).mkdir()
        module.main(tmp_path, tmp_path / name)
    once, again = ((tmp_path / name / "pico.csv.gz").read_bytes() for name in ("once", "again"))
    assert once == again
    lines = gzip.decompress(once).decode().splitlines(keepends=True)
    rows = [line for line in lines if not line.startswith("#")]
    assert "".join(rows[1:]) == (
        f"fugaku,{job},8,8,FJMPI 4.0.1,host,,broadcast,default-binomial,32,3,6,7,8\n"  # no warm-up among the times
        f"leonardo,{job},3,3,OMPI 4.1.6,host,,allgather,ring_ompi,2048,5,20,30,40\n"  # a fifth is warm-up
        f"lumi,{job},2,4,CRAY_MPICH 8.1.29,host,,reduce,binomial_mpich,4,3,4,5,6\n"  # the list has 2 ranks a node
        f"marenostrum5,{job},16,64,OMPI 4.1.5,gpu,vsnccl,allreduce,allreduce_nccl_ring,256,5,44410,44410,44410\n"
    )


def test_rows_are_ordered_quartiles_of_schemes_that_offer_the_collective():
    for each in measurements():
        assert 0 < each.low <= each.seconds <= each.high
        assert each.repetitions > 1
    known = {(each.collective, each.scheme) for each in measurements()}
    assert len(known) > 20
    for collective, scheme in known:
        if scheme is not None and collective in COLLECTIVES:
            offered(collective, scheme)


def test_another_algorithm_under_the_same_name_is_no_scheme():
    ring = Measurement("leonardo", "", 8, 16, "OMPI 4.1.6", "host", "", "allreduce", "ring_ompi", 64, 9, 1, 2, 3)
    short = ring.__class__(**{**vars(ring), "message_bytes": 60})  # 15 elements on 16 ranks: recursive doubling
    nothing = ring.__class__(**{**vars(short), "collective": "allgather", "algorithm": "recursive_doubling_ompi"})
    segments = ring.__class__(**{**vars(ring), "collective": "broadcast", "algorithm": "binary_ompi"})
    folded = ring.__class__(**{**vars(ring), "ranks": 14, "algorithm": "rabenseifner_ompi"})
    assert ring.scheme == "ring"
    assert [each.scheme for each in (short, nothing, segments, folded)] == [None] * 4


def test_families_are_compared_by_their_fastest_algorithm_in_every_job():
    """On any number of ranks a node, by the table itself."""
    jobs = {}
    for each in measurements():
        if (each.collective, each.message_bytes, each.memory) == ("allreduce", 64 << 20, "host"):
            for family in ("bine", "rabenseifner"):
                # Cray's own are not what their names say, and one job's library was changed
                is_cray = each.library.startswith("CRAY") and "_over" not in each.algorithm
                if family in each.algorithm and not is_cray and not each.library.startswith("custom"):
                    sides = jobs.setdefault(each.job, {})
                    sides[family] = min(each.seconds, sides.get(family, each.seconds))
    both = {job: sides for job, sides in jobs.items() if len(sides) == 2}
    found = {}
    for record in records():
        if (record.collective, record.message_bytes) == ("allreduce", 64 << 20):
            found.setdefault(record.settings["job"], {})[record.settings["algorithm"]] = record.time_p50_seconds
    assert len(both) == 11
    assert any(each.ranks > each.nodes for each in measurements() if each.job in both)
    for job, sides in both.items():
        assert {family: found[job][family] for family in sides} == sides
