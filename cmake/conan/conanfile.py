# SPDX-License-Identifier: MIT
"""Packs the checkout that this file lies in: conan create CHECKOUT/cmake/conan"""

import os
import re

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load

required_conan_version = ">=2.0"


class Peerbus(ConanFile):
    name = "peerbus"
    description = "Header-only one-sided collectives with fused MoE dispatch and combine"
    license = "MIT"
    topics = ("collectives", "mixture-of-experts", "rdma", "shared-memory", "header-only")
    package_type = "header-library"
    settings = "os", "compiler", "build_type", "arch"
    # The libraries that the targets of these names need. peerbus::pmix needs the system's.
    options = {"fabric": [True, False], "mpi": [True, False], "tcp": [True, False], "topology": [True, False], "verbs": [True, False]}
    default_options = {"fabric": False, "mpi": False, "tcp": False, "topology": False, "verbs": False}

    def _checkout(self):
        return os.path.join(self.recipe_folder, os.pardir, os.pardir)

    def set_version(self):
        text = load(self, os.path.join(self._checkout(), "include", "peerbus", "version.hpp"))
        self.version = ".".join(re.findall(r"#define PEERBUS_VERSION_\w+ (\d+)", text))

    def export_sources(self):
        for pattern in ("CMakeLists.txt", "LICENSE", "cmake/*", "include/*"):
            copy(self, pattern, src=self._checkout(), dst=self.export_sources_folder)

    def requirements(self):
        def need(reference):
            self.requires(reference, transitive_headers=True, transitive_libs=True)

        if self.options.fabric:
            need("libfabric/[>=1.14]")
        if self.options.mpi or self.options.tcp:
            need("openssl/[>=3.0 <4]")
        if self.options.mpi:
            need("openmpi/[>=4.0]")
        if self.options.topology:
            need("hwloc/[>=2.0 <3]")
        if self.options.verbs:
            need("rdma-core/[>=33]")

    def validate(self):
        if self.settings.os != "Linux":
            raise ConanInvalidConfiguration(f"the system is {self.settings.os}; peerbus expects Linux")
        check_min_cppstd(self, 20)

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self)
        for part in ("TESTS", "EXAMPLES", "BENCHMARKS"):
            toolchain.cache_variables[f"PEERBUS_BUILD_{part}"] = "OFF"
        toolchain.generate()

    def build(self):
        CMake(self).configure()

    def package(self):
        copy(self, "LICENSE", src=self.source_folder, dst=os.path.join(self.package_folder, "licenses"))
        CMake(self).install()

    def package_id(self):
        self.info.clear()

    def package_info(self):
        # The package's own CMake files make the targets, so that they are the same as everywhere else.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = [os.path.join("share", "cmake", "peerbus")]
        self.cpp_info.set_property("pkg_config_name", "peerbus")
        self.cpp_info.libdirs = []
        self.cpp_info.bindirs = []
        self.cpp_info.system_libs = ["pthread"]
