// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <peerbus/communicator/communicator.hpp>
#include <peerbus/compat/deep_ep/argument.hpp>
#include <peerbus/compat/deep_ep/detail/agree_on.hpp>
#include <peerbus/compat/deep_ep/detail/one_sided_window.hpp>
#include <peerbus/compat/deep_ep/detail/pending_operation.hpp>
#include <peerbus/compat/deep_ep/event.hpp>
#include <peerbus/compat/deep_ep/tensor.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/copy.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/fnv_hash.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/transport/concept.hpp>

namespace peerbus::deep_ep {

/// The sizes of sessions of gathers, equal on all ranks.
struct agrs_config {
  /// The largest total size of the tensors of a session. `agrs_sessions::gathered_bytes` has the
  /// size of each.
  std::size_t num_max_session_bytes = 0;
  /// Gathers of a session; each may have several tensors.
  std::size_t num_max_all_gathers_per_session = 0;
};

/// The tensors that an `all_gather` will fill: views of the sessions' memory.
struct all_gather_result {
  std::vector<tensor> gathered{};  ///< [ranks, ...] for each given tensor
  /// The event whose wait returns when the parts of all ranks have arrived.
  /// Throws, on all ranks: `error` refused if a rank has refused its tensors, mismatch if sizes
  /// differ between ranks. The tensors are then undefined. On this rank alone: invalid_argument if
  /// the session is over; timed_out, after which the wait may be repeated; peer_dead.
  event_overlap handle{};
};

/// All-gathers in sessions, as in DeepEP 2.1. Within a session each gather has memory of its own,
/// so that no gather waits for another. Each session uses the memory from its start. A session is
/// over when all ranks have ended it.
///
/// Signals of a rank: for each gather of a session and each rank, the number of the latest session
/// in which that rank's part has arrived; then for each rank, the number of the latest session that
/// it has ended. Behind the memory of sessions lies, for each gather and rank, a word that
/// identifies the sizes that the rank gathers.
///
/// Threads: one call at a time.
class agrs_sessions final : private detail::pending_operations {
 public:
  /// Allocates the sessions. Collective. `comm` must outlive them.
  /// Throws, on all ranks: `error` invalid_argument on the ranks whose sizes are bad and refused on
  /// the others; mismatch if sizes differ between ranks; or as `communicator::make_window`.
  template <transport Transport>
  agrs_sessions(communicator<Transport>& comm, const agrs_config& sizes,
                std::optional<deadline> until = std::nullopt)
      : sizes_{sizes},
        needs_settling_{!detail::window_maker{comm}.is_direct()},
        window_{made(detail::window_maker{comm}, sizes, until.value_or(comm.default_deadline()))} {}

  /// Returns the size in bytes that a tensor of `bytes` bytes takes in a session if it is gathered
  /// from `ranks` ranks.
  [[nodiscard]] static constexpr std::size_t gathered_bytes(std::size_t ranks,
                                                            std::size_t bytes) noexcept {
    return align_up(ranks * bytes, 32);
  }

  /// Begins a session. Tensors that earlier sessions gathered may be overwritten from now on. Does
  /// not communicate.
  /// Throws: `error` invalid_argument if a session is open.
  void begin() {
    constexpr std::string_view call = "create_agrs_session";
    const detail::argument session{call, "session"};
    session.require(!is_open_, "is open already, expected none");
    group().require_healthy(call);
    ++session_;
    is_open_ = true;
    used_ = calls_ = 0;
    broken_.reset();
  }
  /// Ends the session. Collective. Returns when no rank uses its memory any longer.
  /// Cost: a signal to every rank, and a wait for each.
  /// Throws: `error` invalid_argument if no session is open. timed_out, peer_dead or unreachable,
  /// which poison the communicator.
  void end(std::optional<deadline> until = std::nullopt) {
    constexpr std::string_view call = "destroy_agrs_session";
    require_open(call);
    is_open_ = false;
    // Nothing of this session may leave or arrive while the next one fills the memory.
    if (needs_settling_) window_.settle(call);
    window_.meet(call, sizes_.num_max_all_gathers_per_session * group().size(), session_,
                 until.value_or(group().default_deadline()));
  }

  /// Returns this rank's part of the next gathered tensor of `shape` and `type`, behind `earlier`
  /// tensors of the same `gather`. A part that is filled in place is not copied.
  /// Throws: `error` invalid_argument if no session is open, or the session has no room.
  [[nodiscard]] tensor place(std::initializer_list<std::size_t> shape, dtype type,
                             std::span<const const_tensor> earlier = {}) {
    constexpr std::string_view call = "agrs_get_inplace_tensor";
    require_open(call);
    std::size_t offset = used_;
    for (const const_tensor& before : earlier)
      offset += gathered_bytes(group().size(), before.bytes());
    const tensor made{nullptr, type, shape};
    require_room(call, offset + gathered_bytes(group().size(), made.bytes()));
    return {window_.local() + offset + group().rank().index() * made.bytes(), type, shape};
  }

  /// Sends this rank's tensors to all ranks. Collective. The tensors have one or two dimensions, no
  /// gaps and equal sizes on all ranks, and may be reused on return. Does not wait for other ranks;
  /// the handle's wait does. The results are valid until the session ends.
  /// Cost: copies each tensor to every rank, and raises a signal there.
  /// Throws: `error` invalid_argument if tensors are bad or the session has no room for them. After
  /// this error, and after a mismatch, every gather of the session is refused on all ranks. On this
  /// rank alone, invalid_argument if no session is open or it has had all its gathers.
  [[nodiscard]] all_gather_result gather(std::span<const const_tensor> tensors) {
    constexpr std::string_view call = "all_gather";
    require_open(call);
    const detail::argument session{call, "session"};
    session.require(calls_ < sizes_.num_max_all_gathers_per_session, "has had ", calls_,
                    " gathers, expected at most that many: see agrs_set_config");
    const std::size_t slot = calls_++;
    std::size_t end = used_;
    peerbus::detail::fnv_hash sizes;
    try {
      if (broken_) throw error{*broken_};
      for (const const_tensor& t : tensors) {
        check_tensor(call, t);
        sizes.add(t.bytes());
        require_in_place(call, t, end);
        end += gathered_bytes(group().size(), t.bytes());
      }
      const detail::argument given{call, "t"};
      given.require(!tensors.empty(), "is none, expected at least one tensor");
      require_room(call, end);
    } catch (const error& why) {
      if (!broken_) broken_.emplace(why);
      tell(call, slot, refusal);
      throw;
    }
    all_gather_result made;
    for (const const_tensor& t : tensors) {
      made.gathered.push_back(gathered_view(t, used_));
      send_part(call, t, used_);
      used_ += gathered_bytes(group().size(), t.bytes());
    }
    tell(call, slot, sizes.value() | 1U);
    made.handle = event_overlap{{this, session_ * sizes_.num_max_all_gathers_per_session + slot}};
    return made;
  }

 private:
  static constexpr std::uint64_t refusal = 0;  ///< the word of a rank that has refused its tensors

  [[nodiscard]] rank_group& group() const noexcept { return window_.group(); }
  [[nodiscard]] static detail::one_sided_window made(const detail::window_maker& make_window,
                                                     const agrs_config& sizes, deadline until) {
    constexpr std::string_view call = "agrs_set_config";
    constexpr std::size_t most_bytes = std::size_t{1} << 48U;
    constexpr std::size_t most_gathers = std::size_t{1} << 16U;
    const std::size_t ranks = make_window.group().size();
    detail::agree_on(make_window.group(), call, "the configuration", until, [&] {
      const detail::argument bytes{call, "num_max_session_bytes"};
      bytes.require(sizes.num_max_session_bytes >= 1 && sizes.num_max_session_bytes <= most_bytes,
                    "is ", sizes.num_max_session_bytes, ", expected 1 to ", most_bytes);
      const detail::argument gathers{call, "num_max_all_gathers_per_session"};
      gathers.require(sizes.num_max_all_gathers_per_session >= 1 &&
                          sizes.num_max_all_gathers_per_session <= most_gathers,
                      "is ", sizes.num_max_all_gathers_per_session, ", expected 1 to ",
                      most_gathers);
      return detail::concat(sizes.num_max_all_gathers_per_session, " gathers in ",
                            sizes.num_max_session_bytes, " bytes");
    });
    const std::size_t words = sizes.num_max_all_gathers_per_session * ranks;
    return make_window(words_at(sizes) + words * sizeof(std::uint64_t), words + ranks, until);
  }
  /// Returns the offset, in bytes, at which the memory of sessions ends and the words begin.
  [[nodiscard]] static std::size_t words_at(const agrs_config& sizes) noexcept {
    return align_up(sizes.num_max_session_bytes, 32);
  }

  void require_open(std::string_view call) const {
    const detail::argument session{call, "session"};
    session.require(is_open_, "is not open, expected create_agrs_session before");
  }
  void require_room(std::string_view call, std::size_t end) const {
    const detail::argument session{call, "session"};
    session.require(end <= words_at(sizes_), "needs ", end, " bytes, expected at most the ",
                    sizes_.num_max_session_bytes, " of agrs_set_config");
  }
  static void check_tensor(std::string_view call, const const_tensor& t) {
    const detail::argument given{call, "t"};
    given.require((t.dims() == 1 || t.dims() == 2) && t.contiguous() &&
                      (t.elements() == 0 || t.data() != nullptr),
                  "is ", t, ", expected one or two dimensions without gaps");
  }
  /// Requires that a tensor in the memory of sessions lies at its place.
  void require_in_place(std::string_view call, const const_tensor& t, std::size_t offset) const {
    const auto* const first = static_cast<const std::byte*>(t.data());
    const detail::argument given{call, "t"};
    given.require(t.elements() == 0 || first < window_.local() ||
                      first >= window_.local() + words_at(sizes_) || first == own_part(t, offset),
                  "lies in the session's memory, expected it where agrs_get_inplace_tensor says");
  }
  [[nodiscard]] std::byte* own_part(const const_tensor& t, std::size_t offset) const noexcept {
    return window_.local() + offset + group().rank().index() * t.bytes();
  }
  [[nodiscard]] tensor gathered_view(const const_tensor& t, std::size_t offset) const {
    std::byte* const first = window_.local() + offset;
    if (t.dims() == 1) return {first, t.type(), {group().size(), t.size(0)}};
    return {first, t.type(), {group().size(), t.size(0), t.size(1)}};
  }

  void send_part(std::string_view call, const const_tensor& t, std::size_t offset) {
    const std::size_t bytes = t.bytes();
    if (bytes == 0) return;
    std::byte* const own = own_part(t, offset);
    peerbus::detail::copy_bytes(own, static_cast<const std::byte*>(t.data()), bytes);
    const auto place = static_cast<std::size_t>(own - window_.local());
    for (const rank_id peer : group().peers())
      window_.store(call, peer, place, {own, bytes}, place);
  }
  /// Writes this rank's word for a gather to all ranks, after its parts, and raises their signals.
  void tell(std::string_view call, std::size_t slot, std::uint64_t word) {
    const std::size_t number = slot * group().size() + group().rank().index();
    const std::size_t place = words_at(sizes_) + number * sizeof word;
    std::memcpy(window_.local() + place, &word, sizeof word);
    for (const rank_id peer : group().peers()) {
      window_.store(call, peer, place, {window_.local() + place, sizeof word}, place);
      window_.signal(call, peer, number, session_);
    }
  }
  [[nodiscard]] std::uint64_t word_of(std::size_t slot, rank_id rank) const noexcept {
    std::uint64_t word = 0;
    std::memcpy(
        &word,
        window_.local() + words_at(sizes_) + (slot * group().size() + rank.index()) * sizeof word,
        sizeof word);
    return word;
  }

  /// Waits until all parts of a gather have arrived. May be repeated while the session is open.
  void receive(std::uint64_t operation) override {
    constexpr std::string_view call = "all_gather";
    const std::size_t most = sizes_.num_max_all_gathers_per_session;
    const detail::argument handle{call, "handle"};
    handle.require(is_open_ && operation / most == session_, "is of session ", operation / most,
                   ", which is over, expected one of the open session");
    const std::size_t slot = operation % most;
    const deadline until = group().default_deadline();
    for (const rank_id peer : group().peers())
      window_.wait(call, peer, slot * group().size() + peer.index(), session_, until);
    const rank_id own = group().rank();
    for (const rank_id peer : group().peers())
      if (word_of(slot, peer) == refusal) fail(errc::refused, call, peer, " refused its tensors");
    for (const rank_id peer : group().peers())
      if (word_of(slot, peer) != word_of(slot, own))
        fail(errc::mismatch, call, peer, " gathers tensors of other sizes");
  }
  [[nodiscard]] bool is_pending(std::uint64_t) const noexcept override { return true; }
  [[noreturn]] void fail(errc code, std::string_view call, rank_id peer, std::string_view what) {
    const error why{code, detail::concat(call, ": ", peer, what,
                                         "; every gather of this session "
                                         "is refused from now on")};
    if (!broken_) broken_.emplace(why);
    throw error{why};
  }

  agrs_config sizes_;
  bool needs_settling_;
  detail::one_sided_window window_;
  std::uint64_t session_ = 0;
  bool is_open_ = false;
  std::size_t used_ = 0;   ///< bytes of the session that are used
  std::size_t calls_ = 0;  ///< gathers that the session has had
  std::optional<error> broken_;
};

}  // namespace peerbus::deep_ep
