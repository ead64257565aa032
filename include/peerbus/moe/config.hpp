// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <string_view>

#include <peerbus/core/rank.hpp>
#include <peerbus/moe/replica_choice.hpp>

namespace peerbus {
class cost_table;
}  // namespace peerbus

/// Dispatch and combine for a mixture of experts: `exchange`, its arguments and its results.
namespace peerbus::moe {

// The limits of an exchange that do not depend on its layout. The constructor of `exchange` refuses
// a configuration beyond them.
inline constexpr std::size_t max_ranks = 65'535;                   ///< ranks of the communicator
inline constexpr std::size_t max_experts = std::size_t{1} << 24U;  ///< experts of all ranks, also
                                                                   ///< physical ones
inline constexpr std::size_t max_hidden = std::size_t{1} << 24U;   ///< channels of a token
inline constexpr std::size_t max_top_k = 32;                       ///< expert slots of a token
inline constexpr std::size_t max_attachments = 4;                  ///< tensors beside the tokens
inline constexpr std::size_t max_in_flight = 16;                   ///< batches under way at once
/// The largest product ranks x max_tokens x top_k, and the largest number of rows that a rank may
/// have room for.
inline constexpr std::size_t max_rows = (std::size_t{1} << 32U) - 1;

/// The entry of `exchange_config::physical_to_logical` of a physical expert that is vacant: it
/// stands for no logical expert and gets no rows.
inline constexpr std::uint32_t vacant = ~std::uint32_t{0};

/// The place where experts write their outputs, which combine reads.
enum class outputs_at : std::uint32_t {
  /// Outputs lie at the rank of the expert, one row after another, as a grouped GEMM writes them.
  /// There is one output for every row that the layout has room for. In the compact layout, that is
  /// ranks x max_tokens x min(top_k, local experts).
  expert = 0,
  /// Outputs lie at the home rank of the token, in the slot (token, k). The expert stores directly
  /// into the memory of the peer, and combine reads local memory. There are max_tokens x top_k
  /// outputs, regardless of the number of ranks; in the rank-major layout, max_tokens x min(top_k,
  /// ranks). If the transport does not give access to the memory of all peers, `home` acts as
  /// `expert`, and combine puts the outputs for far ranks into slots of their home ranks.
  home = 1
};

/// The order of the messages of a dispatch. It decides how the rows of a rank can lie.
enum class dispatch_protocol : std::uint32_t {
  /// The layout decides. The layouts `automatic` and `automatic_by_rank`, which can have either
  /// protocol, take the one that `estimate_protocols` finds cheaper.
  automatic = 0,
  /// The ranks tell each other the numbers of rows, then rows leave. Rows can lie together.
  counts_first = 1,
  /// Rows leave at once, into slots of their source rank, and counts follow.
  one_phase = 2
};

/// Returns the name of a protocol, such as "counts_first".
constexpr std::string_view describe(dispatch_protocol protocol) noexcept {
  switch (protocol) {
    case dispatch_protocol::automatic: return "automatic";
    case dispatch_protocol::counts_first: return "counts_first";
    case dispatch_protocol::one_phase: return "one_phase";
  }
  return "unknown";
}

/// The number of levels in which an exchange sends rows over a transport with near and far ranks,
/// such as `planes` (moe/relay.hpp).
enum class relay : std::uint32_t {
  never,     ///< one level: each row goes straight to its expert
  always,    ///< two: each token crosses the far plane once for each group, and is handed on there
  automatic  ///< `always` if `estimate_relay` finds it cheaper and nothing forbids it, else `never`
};

/// Returns the name of a choice, such as "always".
constexpr std::string_view describe(relay choice) noexcept {
  switch (choice) {
    case relay::never: return "never";
    case relay::always: return "always";
    case relay::automatic: return "automatic";
  }
  return "unknown";
}

/// The type in which the sums of groups cross between groups where an exchange relays.
enum class relay_sums : std::uint32_t {
  bf16,  ///< each sum of a group is rounded, as DeepEP rounds between nodes
  f32    ///< only results are rounded, for twice the bytes of sums
};

/// The treatment of expert ids that are neither -1 nor 0 to experts - 1.
enum class ids_outside : std::uint8_t {
  refused,  ///< all ranks refuse the dispatch
  skipped   ///< such a slot counts as -1
};

/// The sizes of an exchange. All ranks give equal configurations, except for `stream_from`,
/// `between`, `replicas`, `other_ids` and the times of stores in `costs`.
struct exchange_config {
  std::size_t experts = 0;     ///< logical experts, which routing names; may be fewer than ranks
  std::size_t hidden = 0;      ///< channels of a token; rows and outputs are multiples of 16 bytes
  std::size_t top_k = 0;       ///< expert slots of a token, 1 to `max_top_k`
  std::size_t max_tokens = 0;  ///< the largest number of tokens of a rank in a dispatch
  std::size_t in_flight = 1;   ///< batches under way at once, 1 to `max_in_flight`
  /// The place where experts write outputs. `home` takes less memory if there are many ranks.
  outputs_at outputs = outputs_at::expert;
  /// Bytes per token of each further tensor that travels unchanged with the tokens, such as
  /// positions, or the scales of tokens that are already quantised. A multiple of 4, no more than
  /// 2^24. 0: none.
  std::array<std::size_t, max_attachments> attachments{};
  /// Bytes that may travel home unchanged beside each output, such as gradients of weights or
  /// statistics of an expert (`row_block::output_attachment`). A multiple of 4, no more than 2^24.
  /// 0: none.
  std::size_t output_attachment = 0;
  /// True if ranks may give outputs as LogFMT-10 rows (codec/logfmt10.hpp), which takes fewer bytes
  /// on the way home. A rank that combines with `attached` must then have written all its outputs
  /// by `row_block::encode_output`. The heads are the output attachment, so that
  /// `output_attachment` must be `logfmt10::head_bytes(hidden)`.
  bool logfmt_outputs = false;
  /// The treatment of expert ids other than -1 and 0 to experts - 1. Each rank chooses for itself.
  ids_outside other_ids = ids_outside::refused;
  /// Bytes of the note that a rank may send to all ranks with each dispatch. The note is about the
  /// whole batch, and every rank receives the same bytes (`dispatch_options::note`). No more than
  /// 2^24. 0: none.
  std::size_t note_bytes = 0;
  /// The logical expert of each physical expert, or `vacant`: [physical experts]. Physical experts
  /// are the places for experts, numbered through the ranks. A logical expert may have several, its
  /// replicas, no two of them at one rank. Every logical expert has at least one. Empty: logical
  /// expert e is physical expert e. The memory is the caller's, and only the constructor of the
  /// exchange reads it (`expert_map`).
  std::span<const std::uint32_t> physical_to_logical{};
  /// The number of physical experts of each rank, which may be 0: [ranks]. Empty: experts are
  /// divided equally, as by `expert_placement`. The sum is the number of entries of
  /// `physical_to_logical`, or else `experts`. The memory is the caller's, and only the constructor
  /// of the exchange reads it.
  std::span<const std::uint32_t> experts_of_rank{};
  /// The choice among the replicas of an expert. Ranks may differ in it.
  replica_choice replicas{};
  /// The bytes of a batch from which this rank uses streaming stores, which write memory past the
  /// caches. They avoid reading the memory that they overwrite, and pay if rows would leave the
  /// caches before they are read. 0: always. `never_stream`: never. Empty: the exchange tries both
  /// for each size of batch from time to time (`exchange::stores_for`). Until then it takes the
  /// better ones by `costs`, or, without costs of the size, three quarters of the rank's share of
  /// the largest cache, less `between`. Ranks on one core divide its share. If the system reports
  /// no plausible cache, 32 MiB for 8 cores are assumed. With relay, or where rows are put, there
  /// are no trials. Applies to rows that are stored to peers and to results of combine, except for
  /// rows longer than 32 KiB. Changes no byte. Ranks may differ in it.
  std::optional<std::size_t> stream_from{};
  /// The bytes of other memory, such as the weights and the cache of a layer, that this rank
  /// accesses between two operations, as far as the caller knows. A hint by which the exchange
  /// chooses stores until it has tried both. Ranks may differ in it.
  std::size_t between = 0;
  /// The protocol of dispatches. A layout that cannot have it is refused.
  dispatch_protocol protocol = dispatch_protocol::automatic;
  /// Measured costs, from which layouts that can have either protocol choose (moe/protocol.hpp),
  /// and times of stores from which the exchange starts (`exchange::learned_costs`). Null: the
  /// costs that the library assumes. The memory is the caller's, and only the constructor of the
  /// exchange, its `map_for` and `choices_for` read it. Ranks compare the hash of the table, which
  /// leaves out the times of stores, so that these may differ.
  const cost_table* costs = nullptr;
  /// The choice between one level and two, in which a token crosses once for each group of near
  /// ranks and is handed on there. moe/relay.hpp lists the differences. `always` is refused over
  /// transports without near and far ranks.
  moe::relay relay = moe::relay::never;
  /// True if combines may give weights (`combine_terms::weights`, `local`) where tokens are
  /// relayed. Each combine then sends the weights ahead to the ranks that sum. Without relay it
  /// changes nothing. Refused in layouts by rank, in which combines take no weights.
  /// Cost with relay: 4 x top_k bytes for each group that a token reached and a signal to each rank
  /// of equal place, in every combine.
  bool weights_at_combine = false;
  /// The type of the sums of groups, where tokens are relayed. Without relay it changes nothing.
  moe::relay_sums relay_sums = moe::relay_sums::bf16;
  /// True if the bits of a token's result must depend only on the token, its routing and its
  /// outputs. The exchange then refuses layouts by rank, whose outputs are sums over the experts of
  /// a rank, and relay, which adds up the sums of groups (`automatic` is then `never`).
  /// docs/reproducibility.md lists the influences that it excludes. Costs nothing.
  bool same_bits = false;
  /// True if ranks check every number that other ranks write for them and that becomes an index, a
  /// count, an offset or a size, before they use it: counts of rows, origins, expert ids and the
  /// sizes of notes. They check copies that other ranks cannot change. False: ranks trust these
  /// numbers. docs/security.md states the guarantees.
  ///
  /// If a number is wrong, the dispatch of the rank that reads it throws `error` mismatch, with the
  /// rank that wrote it, the number and its bound, and its communicator is poisoned. No rank waits
  /// for it in that batch: the dispatch or the combine of the other ranks throws `refused` with
  /// that text, unless they find the same.
  /// Cost: 8 bytes of memory for each row that can arrive, 4 x top_k more in layouts by rank, and
  /// the counts of all ranks, each for `in_flight` batches. One more pass over the counts, and over
  /// these bytes of the rows that arrive.
  bool distrust_peers = false;
};

/// The value of `exchange_config::stream_from` for which all stores are plain.
inline constexpr std::size_t never_stream = std::numeric_limits<std::size_t>::max();

/// The division of experts among ranks. Each rank holds consecutive experts. Unless numbers are
/// given, the first `experts % ranks` ranks hold one expert more than the others. If there are
/// fewer experts than ranks, the last ranks hold none.
class expert_placement {
 public:
  /// Divides `experts` experts among `rank_count` ranks, which may be 0.
  constexpr expert_placement(std::size_t experts, std::size_t rank_count) noexcept
      : experts_{experts},
        least_{rank_count == 0 ? 0 : experts / rank_count},
        larger_{rank_count == 0 ? 0 : experts % rank_count},
        most_{least_ + (larger_ > 0 ? 1 : 0)} {}
  /// Gives each rank r `of_rank[r]` experts: [ranks], with at least one rank. The memory is the
  /// caller's, and must outlive the object. `first` and `owner` then take time linear in the ranks.
  constexpr explicit expert_placement(std::span<const std::uint32_t> of_rank) noexcept
      : experts_{std::accumulate(of_rank.begin(), of_rank.end(), std::size_t{0})},
        most_{*std::max_element(of_rank.begin(), of_rank.end())},
        of_rank_{of_rank.data()} {}

  /// Returns the number of experts of the whole group.
  [[nodiscard]] constexpr std::size_t experts() const noexcept { return experts_; }
  /// Returns the first expert of `rank`, even if the rank holds none.
  [[nodiscard]] constexpr std::size_t first(rank_id rank) const noexcept {
    if (of_rank_ != nullptr)
      return std::accumulate(of_rank_, of_rank_ + rank.index(), std::size_t{0});
    return rank.index() * least_ + std::min(rank.index(), larger_);
  }
  /// Returns the number of experts that `rank` holds, which may be 0.
  [[nodiscard]] constexpr std::size_t count(rank_id rank) const noexcept {
    if (of_rank_ != nullptr) return of_rank_[rank.index()];
    return least_ + (rank.index() < larger_ ? 1 : 0);
  }
  /// Returns the rank that holds `expert`, which is below `experts()`.
  [[nodiscard]] constexpr rank_id owner(std::size_t expert) const noexcept {
    if (of_rank_ != nullptr) {
      std::size_t rank = 0;
      while (expert >= of_rank_[rank]) expert -= of_rank_[rank++];
      return rank_id{rank};
    }
    const std::size_t in_larger = larger_ * (least_ + 1);
    return rank_id{expert < in_larger ? expert / (least_ + 1)
                                      : larger_ + (expert - in_larger) / least_};
  }
  /// Returns the largest number of experts that a rank holds.
  [[nodiscard]] constexpr std::size_t most() const noexcept { return most_; }

 private:
  std::size_t experts_;
  std::size_t least_ = 0;
  std::size_t larger_ = 0;
  std::size_t most_;
  const std::uint32_t* of_rank_ = nullptr;  ///< null: experts divided equally
};

/// Returns the division of the physical experts of `config` among `rank_count` ranks.
constexpr expert_placement placement_of(const exchange_config& config,
                                        std::size_t rank_count) noexcept {
  if (!config.experts_of_rank.empty()) return expert_placement{config.experts_of_rank};
  const std::size_t given = config.physical_to_logical.size();
  return {given == 0 ? config.experts : given, rank_count};
}

}  // namespace peerbus::moe
