// SPDX-License-Identifier: MIT
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/mapping.hpp>
#include <peerbus/core/memory_file.hpp>
#include <peerbus/core/object_bytes.hpp>
#include <peerbus/core/process_memory.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/transport/detail/memory_limit.hpp>
#include <peerbus/transport/refinements.hpp>
#include <peerbus/transport/unified_bus.hpp>

namespace peerbus::detail {

PEERBUS_INLINE std::size_t file_bytes(window_shape shape) noexcept {
  // Never empty, which could not be mapped; whole huge pages where it has any.
  const std::size_t bytes = direct_window::mapped_bytes(shape) + 1;
  return align_up(bytes, bytes >= huge_page_bytes ? huge_page_bytes : 4096);
}

/// Maps the memory files of all ranks. Ranks that are gone have no file. In their place lies memory
/// that no other rank shares.
/// Throws: `error` mismatch, out_of_memory.
inline std::shared_ptr<const mapping> map_files(const membership& members,
                                                std::span<const int> files, std::size_t bytes) {
  for (const rank_id owner : all_ranks{files.size()}) {
    if (members.is_excluded(owner)) continue;
    struct stat status{};
    const int fd = files[owner.index()];
    if (fd < 0 || ::fstat(fd, &status) != 0 || static_cast<std::size_t>(status.st_size) < bytes)
      throw error{errc::mismatch, detail::concat({"the memory file of ", owner, " has ",
                                                  status.st_size, " bytes, expected ", bytes})};
  }
  return std::make_shared<const mapping>(mapping::shared_files(files, bytes));
}

/// Returns the private memory of the process that gave `words` as its contribution to a window.
inline process_memory private_memory_of(const bootstrap& boot, std::span<const std::byte> bytes) {
  if (boot.addresses() == address_space::shared) return process_memory::own();
  process_word word;
  if (bytes.size() != sizeof word) return {};
  std::memcpy(&word, bytes.data(), sizeof word);
  return process_memory::find(word);
}

PEERBUS_INLINE direct_window make_shared_window(bootstrap& boot, window_shape shape,
                                                const memory_hook& on_memory, deadline until) {
  const std::size_t bytes = file_bytes(shape);
  bootstrap::contribution own_part;
  std::uint64_t own_word = 0;  // Peers read it before the agreement at the end.
  auto objection = objection_to(shape);
  if (!objection)
    objection = objection_of("a window's memory file", [&] {
      own_part.fd = make_memory_file("peerbus", bytes);
      const process_word word = process_word::describe(own_word);
      const auto described = object_bytes(word);
      own_part.bytes.assign(described.begin(), described.end());
    });
  auto all = gather_or_refuse(boot, "window", std::move(own_part), objection, until);

  std::vector<window_memory> parts;
  std::vector<process_memory> processes;
  objection = objection_of("a window's parts", [&] {
    std::vector<int> files;
    files.reserve(all.size());
    processes.reserve(all.size());
    for (const auto& of_rank : all) {
      files.push_back(of_rank.fd.get());
      processes.push_back(private_memory_of(boot, of_rank.bytes));
    }
    parts.reserve(all.size());
    const auto memory = map_files(*boot.members(), files, bytes);
    const std::size_t part_bytes = memory->size() / all.size();
    for (const rank_id rank : all_ranks{all.size()}) {
      std::byte* const part = memory->data() + rank.index() * part_bytes;
      parts.push_back(direct_window::part_at(part, memory, shape));
      // Peers access the part only after the agreement below.
      if (on_memory && rank == boot.rank()) on_memory({part, part_bytes});
    }
  });
  all.clear();  // Closes the files.
  // Throws on all ranks or on none: one may have run out of address space or descriptors.
  agree(boot, "window mapped", {}, until, objection);
  return direct_window{shape, boot.rank(), std::move(parts), std::move(processes)};
}

}  // namespace peerbus::detail
