// SPDX-License-Identifier: MIT
#pragma once

// What the library reads from launchers, files, other processes and other ranks, apart from what
// tcp_targets.hpp has: variables, secrets, invitations, agreements, tables of costs, files of the
// kernel, notices of networks, configurations and routings of exchanges.

#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/by_all_gather.hpp>
#include <peerbus/bootstrap/detail/invitation.hpp>
#include <peerbus/bootstrap/detail/local_rendezvous.hpp>
#include <peerbus/bootstrap/detail/offered_place.hpp>
#include <peerbus/bootstrap/detail/tcp_environment.hpp>
#include <peerbus/bootstrap/detail/tcp_place.hpp>
#include <peerbus/bootstrap/environment.hpp>
#include <peerbus/bootstrap/launch_environment.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/bootstrap/split.hpp>
#include <peerbus/codec/bf16.hpp>
#include <peerbus/codec/fp8_e4m3_per_128.hpp>
#include <peerbus/core/caches.hpp>
#include <peerbus/core/cgroup.hpp>
#include <peerbus/core/cost_table.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/unique_fd.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/expert_map.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/plan/expert_router.hpp>
#include <peerbus/moe/plan/objection.hpp>
#include <peerbus/moe/plan/refusal.hpp>
#include <peerbus/moe/plan/send_plan.hpp>
#include <peerbus/moe/routing.hpp>
#include <peerbus/transport/fabric/arrivals.hpp>
#include <peerbus/transport/planes/far_bootstrap.hpp>
#include <peerbus/transport/verbs/arrivals.hpp>

#include "fuzz/bytes.hpp"

namespace fuzz {

/// The environment of this process, which holds `lines` in place of its own for as long as this
/// object lives.
class false_environment {
 public:
  explicit false_environment(std::string_view lines) {
    for (std::size_t start = 0; start < lines.size(); start += lines_.back().size() + 1)
      lines_.emplace_back(
          lines.substr(start, std::min(lines.find('\n', start), lines.size()) - start));
    for (std::string& line : lines_) pointers_.push_back(line.data());
    pointers_.push_back(nullptr);
    ::environ = pointers_.data();
  }
  false_environment(const false_environment&) = delete;
  false_environment& operator=(const false_environment&) = delete;
  ~false_environment() { ::environ = before_; }

 private:
  char** before_ = ::environ;
  std::vector<std::string> lines_;
  std::vector<char*> pointers_;
};

/// Variables of launchers and users: a line each.
inline void read_variables(bytes given) {
  namespace d = peerbus::detail;
  const false_environment set{text_of(given)};
  (void)peerbus::environment_bootstrap::launched();
  const auto described = peerbus::read_launch_environment();
  expect(
      described.rank.has_value() || !described.trouble.empty() || described.rank_variable.empty(),
      "a rank or the reason why not");
  for (const auto allowed : {d::hosts::one, d::hosts::any})
    accept_or_refuse([&] {
      const auto read = d::read_launch_settings(allowed);
      expect(read.rank < read.size && read.size <= d::most_ranks, "a rank of the group");
      expect(read.local_rank < read.size, "a local rank");
      expect(d::rendezvous_point{read}.bytes <= sizeof(sockaddr_un), "a name that fits");
    });
  accept_or_refuse([&] {
    const auto read = d::read_tcp_settings();
    d::check_settings(read);
    expect(read.rank < read.size, "a rank of the group");
    expect(read.secret.empty() || read.secret.size() >= d::least_secret_bytes, "a long secret");
  });
}

/// The file of a secret, after the two bytes of its mode.
inline void read_secret(bytes given) {
  input from{given};
  const mode_t mode = from.take<std::uint16_t>() & 0777U;
  const auto file = file_with(from.rest());
  expect(::fchmod(file.get(), mode) == 0, "a mode");
  accept_or_refuse([&] {
    const std::string secret = peerbus::detail::read_secret_file(path_of(file));
    expect((mode & 0137U) == 0, "a file that others cannot use");
    expect(!secret.empty() && secret.size() <= 4096, "a secret");
    expect(secret.back() != '\n' && secret.back() != '\r', "no end of a line");
    expect(text_of(from.rest()).starts_with(secret), "the file's own bytes");
  });
}

/// A table of costs.
inline void read_costs(bytes given) {
  using peerbus::cost_table;
  accept_or_refuse([&] {
    const auto table = cost_table::parse(text_of(given));
    const auto again = cost_table::parse(table.text());
    expect(again.text() == table.text() && again.hash() == table.hash(), "the same table");
    std::string file = table.file_text();
    const auto read = cost_table::parse(file);
    expect(read.file_text() == file && read.machine() == table.machine(), "the same file");
    file.resize(given.size() % file.size());
    bool is_refused = true;
    accept_or_refuse([&] {
      (void)cost_table::parse(file);
      is_refused = false;
    });
    expect(is_refused, "a file that is cut off to be refused");
  });
  accept_or_refuse([&] { (void)cost_table::load(path_of(file_with(given))); });
}

/// What MPI, PMIx or a store carries from rank 0 to the others.
inline void read_invitation(bytes given) {
  namespace d = peerbus::detail;
  accept_or_refuse([&] {
    const auto read = d::invitation::decode(text_of(given));
    expect(!read.place.address.empty(), "an address");
    expect(read.is_one_host || read.secret.size() >= d::least_secret_bytes, "a secret");
  });
  accept_or_refuse([&] {
    const auto over_network =
        [](const peerbus::tcp_settings& settings,
           peerbus::deadline /*until*/) -> std::unique_ptr<peerbus::bootstrap> {
      d::check_settings(settings);
      throw peerbus::error{peerbus::errc::unsupported, "no network here"};
    };
    const auto all_gather = [&, calls = 0](std::span<const std::byte> own) mutable {
      std::vector<std::byte> all(2 * own.size());
      std::copy(own.begin(), own.end(), all.begin() + static_cast<std::ptrdiff_t>(own.size()));
      const auto first = ++calls == 1 ? own : given.first(std::min(given.size(), own.size()));
      std::copy(first.begin(), first.end(), all.begin());
      return all;
    };
    (void)peerbus::bootstrap_by_all_gather(1, 2, all_gather, over_network,
                                           peerbus::deadline::after(std::chrono::seconds{0}));
  });
}

/// Rank 0 of a group, whose other ranks give what the input says. A rank that is gone gives
/// nothing.
class fuzzed_group final : public peerbus::bootstrap {
 public:
  fuzzed_group(input& from, std::size_t size, bool has_lost_one)
      : from_{&from}, states_{std::make_unique<peerbus::membership::state_word[]>(size)} {
    set_members(std::make_shared<peerbus::membership>(peerbus::rank_id{0}, size, states_.get(),
                                                      nullptr, std::vector<peerbus::unique_fd>{}));
    if (has_lost_one) members()->exclude(peerbus::rank_id{size - 1});
  }

  [[nodiscard]] peerbus::address_space addresses() const noexcept override {
    return peerbus::address_space::separate;
  }
  [[nodiscard]] std::vector<contribution> allgather(contribution own_part,
                                                    peerbus::deadline /*until*/,
                                                    std::string_view /*doing*/) override {
    std::vector<contribution> all(size());
    for (std::size_t rank = 1; rank < size(); ++rank) {
      if (members()->is_excluded(peerbus::rank_id{rank})) continue;
      // Many ranks give the same; a length that stands for that spares the fuzzer the copy.
      const std::size_t count = from_->below(256);
      const bytes given = count == 255 ? bytes{own_part.bytes} : from_->take_bytes(count);
      all[rank].bytes.assign(given.begin(), given.end());
    }
    all[0] = std::move(own_part);
    return all;
  }

 private:
  [[nodiscard]] std::unique_ptr<bootstrap> make_subgroup(const std::vector<peerbus::rank_id>& ranks,
                                                         peerbus::rank_id /*member*/,
                                                         peerbus::deadline /*until*/) override {
    return std::make_unique<fuzzed_group>(*from_, ranks.size(), false);
  }

  input* from_;
  std::unique_ptr<peerbus::membership::state_word[]> states_;
};

/// What ranks give in collectives of the bootstrap. The first byte says in which.
inline void agree(bytes given) {
  using peerbus::rank_id;
  input from{given};
  const auto which = from.below(12);
  fuzzed_group group{from, 3, which >= 6};
  const auto never = peerbus::deadline::never();
  accept_or_refuse([&] {
    switch (which % 6) {
      case 0: {
        const std::vector<peerbus::declared> values{{"size", 3}, {"name", "text"}};
        peerbus::agree(group, "agreement", values, never);
        break;
      }
      case 1: (void)peerbus::split(group, 1, 0, never); break;
      case 2: (void)group.subgroup({rank_id{0}}, never); break;
      case 3: (void)group.subgroup({rank_id{1}, rank_id{0}}, never); break;
      case 4: {
        peerbus::detail::far_bootstrap far{group};
        (void)far.allgather({}, never, "purpose");
        far.finish(std::nullopt, never);
        break;
      }
      default: (void)peerbus::detail::offered_place::decode(from.rest()); break;
    }
  });
}

/// Files of the kernel about this process and its ancestors: an environment, a command line, groups
/// of processes and caches. The first byte says which.
inline void read_kernel_texts(bytes given) {
  // Removed at the end of the program.
  struct folder {
    std::filesystem::path path =
        std::filesystem::temp_directory_path() / ("peerbus_fuzz_" + std::to_string(::getpid()));
    folder() {
      std::filesystem::create_directories(path / "proc/self");
      std::filesystem::create_directories(path / "index0");
    }
    ~folder() { std::filesystem::remove_all(path); }
  };
  static const folder root;
  const auto write = [](const std::filesystem::path& file, std::string_view text) {
    std::ofstream{file, std::ios::binary} << text;
  };
  input from{given};
  const auto which = from.below(3);
  const std::string_view text = text_of(from.rest());
  if (which == 0) {
#ifndef PEERBUS_COMPILED  // Its objects do not offer these functions to others.
    const auto parts = peerbus::detail::split_at_zeros(text);
    (void)peerbus::detail::takes_commands(parts);
    (void)peerbus::detail::has_same_value(parts, "RANK");
#endif
  } else if (which == 1) {
    write(root.path / "proc/self/cgroup", text);
    for (const auto& directory : peerbus::cgroup_directories(root.path, "memory"))
      expect(directory.size() < root.path.native().size() + text.size() + 64, "a directory");
    (void)peerbus::cgroup_memory_limit(root.path);
    (void)peerbus::cgroup_memory_kills(root.path);
  } else {
    const auto line = std::min(text.find('\n'), text.size());
    write(root.path / "index0/size", text.substr(0, line));
    write(root.path / "index0/shared_cpu_map", text.substr(line));
    const auto found = peerbus::largest_cache(root.path);
    expect(found.bytes == 0 || found.cores != 0, "a core for each cache");
  }
}

/// Notices that come over libfabric, from whoever reaches the endpoint.
inline void take_fabric_notices(input& from) {
  namespace ofi = peerbus::detail::ofi;
  std::array<ofi::notice_buffer, 8> buffers{};
  ofi::arrivals coming{3, buffers};
  std::vector<std::uint32_t> free{0, 1, 2, 3, 4, 5, 6, 7};
  std::array<std::uint32_t, 3> expected{};
  while (!from.is_empty()) {
    const std::size_t source = from.below(3);
    const auto skip = static_cast<std::int32_t>(from.take<std::int8_t>());
    if (coming.is_given_up(source)) continue;
    const std::uint32_t buffer = free.back();
    free.pop_back();
    buffers[buffer].head.source = static_cast<std::uint32_t>(source);
    // Near what is due, or anywhere.
    buffers[buffer].head.sequence = skip == -128
                                        ? from.take<std::uint32_t>()
                                        : expected[source] + static_cast<std::uint32_t>(skip);
    coming.came(buffer, [&](std::uint32_t next) noexcept {
      free.push_back(next);
      ++expected[source];
    });
    // As `completions` does, so that a buffer is left for the next.
    if (coming.held_of(source) > 6 || free.empty())
      coming.give_up(source, [&](std::uint32_t dropped) noexcept { free.push_back(dropped); });
    expect(
        free.size() == buffers.size() - coming.held_of(0) - coming.held_of(1) - coming.held_of(2),
        "each buffer once");
  }
}

/// Notices that come over the queue pairs of one peer.
inline void take_verbs_notices(input& from) {
  namespace rdma = peerbus::detail::rdma;
  constexpr std::uint32_t slots = 16;
  rdma::arrivals coming;
  coming.open(slots);
  std::array<bool, slots> is_held{};
  std::uint32_t slot = 0;
  const auto raise = [&](const rdma::raised_signal& /*what*/, std::uint32_t raised) noexcept {
    is_held[raised] = false;
  };
  while (!from.is_empty()) {
    const std::size_t kind = from.below(3);
    if (kind == 2) {
      coming.fence_came(1 + from.below(rdma::most_queue_pairs - 1), raise);
      continue;
    }
    if (is_held[slot]) return;  // The peer has no receive request left.
    is_held[slot] = true;
    const std::uint32_t used = slot;
    slot = (slot + 1) % slots;
    if (kind == 0)
      coming.signal_came(rdma::short_notice::decode(from.take<std::uint32_t>()), used, raise);
    else
      coming.signal_came(from.take<rdma::notice>(), used, raise);
  }
}

inline void take_notices(bytes given) {
  input from{given};
  from.below(2) == 0 ? take_fabric_notices(from) : take_verbs_notices(from);
}

/// Calls `visit(layout)` for the layout of a number.
template <class Visit>
void with_layout(std::size_t number, Visit&& visit) {
  namespace moe = peerbus::moe;
  switch (number % 5) {
    case 0: return visit(moe::compact{});
    case 1: return visit(moe::padded{});
    case 2: return visit(moe::rank_major{});
    case 3: return visit(moe::slots{});
    default: return visit(moe::expert_slots{});
  }
}

/// Returns an error of a configuration of an exchange, if it has one.
template <class Layout>
std::optional<peerbus::error> objection_to(const peerbus::moe::exchange_config& config,
                                           std::size_t ranks, const Layout& layout, bool is_fp8) {
  namespace d = peerbus::moe::detail;
  using peerbus::codec::bf16;
  using fp8 = peerbus::codec::fp8_e4m3_per_128_f32;
  const auto facts =
      is_fp8 ? d::codec_facts::of<fp8>(config.hidden) : d::codec_facts::of<bf16>(config.hidden);
  return d::objection_to(config, ranks, facts, d::layout_facts::of(layout, config.protocol));
}

/// The configuration of an exchange, with any numbers.
inline void read_configuration(bytes given) {
  namespace moe = peerbus::moe;
  input from{given};
  const std::size_t number = from.below(256);
  // A byte, shifted by another, reaches all limits.
  const auto size = [&] {
    const auto low = from.take<std::uint8_t>();
    return std::uint64_t{low} << (from.take<std::uint8_t>() % 64U);
  };
  moe::exchange_config config{
      .experts = size(), .hidden = size(), .top_k = size(), .max_tokens = size()};
  const std::size_t ranks = std::max<std::size_t>(size(), 1);
  config.in_flight = size();
  config.outputs = static_cast<moe::outputs_at>(from.below(3));
  config.protocol = static_cast<moe::dispatch_protocol>(from.below(4));
  for (auto& attachment : config.attachments) attachment = size();
  config.output_attachment = size();
  config.note_bytes = size();
  config.logfmt_outputs = from.below(2) == 1;
  std::vector<std::uint32_t> map(from.below(16));
  for (auto& entry : map) entry = from.take<std::uint8_t>();
  config.physical_to_logical = map;
  std::vector<std::uint32_t> counts(from.below(8));
  for (auto& count : counts) count = static_cast<std::uint32_t>(from.below(8));
  config.experts_of_rank = counts;
  with_layout(number, [&](const auto& layout) {
    const auto objection = fuzz::objection_to(config, ranks, layout, number % 2 == 1);
    if (objection || config.experts > 4096 || ranks > 64) return;
    const moe::expert_map experts{config, ranks};
    for (std::size_t e = 0; e < config.experts; ++e) {
      expect(experts.physical(e) < experts.physical_experts(), "an expert");
      expect(experts.holder(experts.physical(e)) < ranks, "a rank");
    }
  });
}

/// The experts and weights of a dispatch, with any numbers and sizes.
inline void read_routing(bytes given) {
  namespace moe = peerbus::moe;
  input from{given};
  const std::size_t number = from.below(256);
  constexpr std::size_t ranks = 3;
  moe::exchange_config config{.experts = 7, .hidden = 8, .top_k = 2, .max_tokens = 5};
  if (number % 2 == 1) config.other_ids = moe::ids_outside::skipped;
  const bool is_wide = from.below(2) == 1;
  const std::size_t values = from.below(64);
  const std::size_t weights = from.below(16);
  const std::size_t slots = from.below(16);
  std::vector<std::int64_t> wide(slots);
  std::vector<std::int32_t> narrow(slots);
  for (std::size_t i = 0; i < slots; ++i) {
    const auto id = from.take<std::int8_t>();
    wide[i] = id == 127 ? from.take<std::int64_t>() : id;
    narrow[i] = id == 127 ? from.take<std::int32_t>() : id;
  }
  const std::vector<float> factors(weights, 0.5F);
  // As large as they say, so that a sanitizer sees who reads beyond.
  const std::vector<std::uint16_t> tokens(values);
  with_layout(number / 2, [&](const auto& layout) {
    expect(!fuzz::objection_to(config, ranks, layout, false), "a good configuration");
    const auto geometry = layout.geometry(config, ranks);
    moe::send_plan plan{
        config, geometry,
        std::make_shared<const moe::expert_router>(config, peerbus::rank_id{1}, ranks),
        peerbus::rank_id{1}, ranks};
    const moe::routing route = is_wide ? moe::routing{std::span{std::as_const(wide)}, factors}
                                       : moe::routing{std::span{std::as_const(narrow)}, factors};
    if (const auto refusal = plan.count(tokens, route)) {
      expect(!moe::describe(refusal).empty(), "a reason");
      return;
    }
    if (!geometry.has_slots()) {
      const std::size_t blocks = plan.counts().size();
      std::vector<std::uint32_t> counts(ranks * blocks);
      std::copy(plan.counts().begin(), plan.counts().end(),
                counts.begin() + static_cast<std::ptrdiff_t>(blocks));
      plan.place({std::as_bytes(std::span{counts}).data(), blocks * sizeof(std::uint32_t),
                  sizeof(std::uint32_t)});
    } else {
      plan.place_in_slots();
    }
    for (std::size_t t = 0; t < plan.tokens(); ++t)
      for (const moe::row_place& place : plan.places(t))
        expect(!place.sent() || (place.rank < ranks && place.row < geometry.row_capacity),
               "a row that there is room for");
  });
}

/// The targets of this file.
inline constexpr std::array library_targets{
    target{"variables", read_variables}, target{"secret_files", read_secret},
    target{"cost_tables", read_costs},   target{"invitations", read_invitation},
    target{"agreements", agree},         target{"kernel_texts", read_kernel_texts},
    target{"notices", take_notices},     target{"configurations", read_configuration},
    target{"routings", read_routing},
};

}  // namespace fuzz
