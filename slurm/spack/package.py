# Recipe of Spack. Put it into a repository of your own, beside the archive that `make release` writes:
#   spack repo create mine && P=mine/spack_repo/mine/packages && mkdir $P/py_hpcdl $P/py_perfetto
#   cp package.py $P/py_hpcdl/ && cp perfetto.py $P/py_perfetto/package.py && spack repo add mine
#   cd DIST && spack install --no-checksum py-hpcdl    # in the folder of hpcdl-1.1.0.tar.gz
import os

from spack.package import *
from spack_repo.builtin.build_systems.python import PythonPackage


class PyHpcdl(PythonPackage):
    """MPI-native benchmark suite for distributed deep learning."""

    homepage = "file://" + os.getcwd()
    url = f"file://{os.getcwd()}/hpcdl-1.1.0.tar.gz"
    manual_download = True

    license("BSD-3-Clause")

    version("1.1.0")

    variant("report", default=True, description="Pages with figures, timelines and Chakra traces")
    variant("nvml", default=False, description="Clocks, errors and energy of NVIDIA GPUs")

    depends_on("python@3.11:", type=("build", "run"))
    depends_on("py-setuptools@77:", type="build")
    depends_on("py-mpi4py@4.1:", type=("build", "run"))
    depends_on("py-numpy@2.0:", type=("build", "run"))
    depends_on("py-h5py@3.12:", type=("build", "run"))
    depends_on("py-pandas@2.2:", type=("build", "run"))
    depends_on("py-numba@0.61:", type=("build", "run"))
    depends_on("py-scipy@1.11:", type=("build", "run"))
    depends_on("py-threadpoolctl@3.5:", type=("build", "run"))
    depends_on("py-jinja2@3.1:", type=("build", "run"), when="+report")
    depends_on("py-matplotlib@3.9:", type=("build", "run"), when="+report")
    depends_on("py-perfetto@0.50:", type=("build", "run"), when="+report")
    depends_on("py-protobuf@6.31:", type=("build", "run"), when="+report")
    depends_on("py-rich@13:", type=("build", "run"), when="+report")
    depends_on("py-nvidia-ml-py@12.560:", type=("build", "run"), when="+nvml")
