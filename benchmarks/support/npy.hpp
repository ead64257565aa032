// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace bench {

/// A table of whole numbers, as `numpy.save` writes a two-dimensional array of integers: rows one
/// after the other. The format is that of numpy/lib/format.py, versions 1 and 2.
struct npy_table {
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::vector<std::int64_t> values;  ///< [rows, columns]

  /// Reads the file at `path`.
  /// Throws: std::runtime_error that says what is there and what was expected.
  [[nodiscard]] static npy_table read(const std::string& path);
};

}  // namespace bench
