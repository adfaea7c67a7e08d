"""The C extensions, which are optional; all else about the distribution is in setup.cfg."""

from pathlib import Path

from setuptools import Extension, setup

PACKAGES = ("index_format", "blockgz.kafka")
"""Each with C sources in its folder `kernel`, which become its module `_kernel`."""
SHARED_HEADERS = Path("index_format/kernel")


def kernel(package: str) -> Extension:
    """The extension of a package; an install succeeds without it where it cannot be compiled."""
    folder = Path(*package.split("."), "kernel")
    headers = {*folder.glob("*.h"), *SHARED_HEADERS.glob("*.h")}
    return Extension(
        f"{package}._kernel",
        sources=sorted(map(str, folder.glob("*.c"))),
        depends=sorted(map(str, headers)),
        include_dirs=[str(SHARED_HEADERS)],
        define_macros=[("Py_LIMITED_API", "0x030B0000")],
        extra_compile_args=["-O2", "-std=gnu11", "-fvisibility=hidden", "-Wall", "-Wextra"],
        py_limited_api=True,
        optional=True,
    )


setup(ext_modules=[kernel(package) for package in PACKAGES], options={"bdist_wheel": {"py_limited_api": "cp311"}})
