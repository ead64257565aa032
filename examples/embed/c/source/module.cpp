// SPDX-License-Identifier: MIT
#include "module.hpp"

#include <dlfcn.h>
#include <peerbus.h>

#include <string>

#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::c_library {

namespace {

/// Returns the folder of this library with a slash at its end, or nothing if it cannot be told.
std::string own_folder() {
  Dl_info found{};
  // Not a function of the interface: a program may have its own address for that.
  static const char here = 0;
  if (::dladdr(&here, &found) == 0 || found.dli_fname == nullptr) return {};
  const std::string path{found.dli_fname};
  return path.substr(0, path.rfind('/') + 1);
}

}  // namespace

const module& load(const module_file& file) {
  // As its own name: a module of another version must not be taken.
  const std::string name =
      concat("libpeerbus_", file.name, ".so.", PEERBUS_VERSION_MAJOR, ".", PEERBUS_VERSION_MINOR);
  void* handle = nullptr;
  std::string why;
  for (const std::string& path : {own_folder() + name, name}) {
    handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) break;
    why += concat(why.empty() ? "" : "; ", ::dlerror());
  }
  if (handle == nullptr)
    throw error{errc::unsupported, concat("cannot load ", name, " (", why,
                                          "); expected it beside libpeerbus.so, and "
                                          "what it needs (Debian: ",
                                          file.package, ")")};
  const auto find =
      reinterpret_cast<const module* (*)() noexcept>(::dlsym(handle, "peerbus_module"));
  const module* const found = find == nullptr ? nullptr : find();
  if (found == nullptr || found->build != module::expected_build)
    throw error{errc::unsupported, concat(name,
                                          " is of another build than libpeerbus.so, expected "
                                          "both of one build of peerbus")};
  return *found;
}

}  // namespace peerbus::c_library
