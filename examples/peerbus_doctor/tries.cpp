// SPDX-License-Identifier: MIT
#include "tries.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <peerbus/codec/int8_per_token.hpp>
#include <peerbus/communicator.hpp>
#include <peerbus/communicator/log_choices.hpp>
#include <peerbus/core/align.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/log.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>
#include <peerbus/moe/config.hpp>
#include <peerbus/moe/exchange.hpp>
#include <peerbus/moe/layout.hpp>
#include <peerbus/moe/log_choices.hpp>
#include <peerbus/transport/any_transport.hpp>
#include <peerbus/transport/loopback.hpp>
#include <peerbus/transport/unified_bus.hpp>
#ifdef PEERBUS_DOCTOR_FABRIC
#include <peerbus/transport/fabric.hpp>
#include <peerbus/transport/planes.hpp>
#endif
#ifdef PEERBUS_DOCTOR_VERBS
#include <peerbus/transport/verbs.hpp>
#endif

#include "checks/payload.hpp"
#include "schedule.hpp"

namespace peerbus_doctor {
namespace {

using peerbus::concat;
using peerbus::deadline;
using peerbus::errc;
using peerbus::rank_id;
using peerbus::signal_id;
using group = peerbus::communicator<peerbus::any_transport>;

constexpr std::size_t warm_up_rounds = 20;
constexpr std::size_t puts = 5;
/// The time that rank 0 leaves a pair after its deadline to report.
constexpr std::chrono::milliseconds time_to_report{2'000};

/// What the first rank of a pair writes to rank 0.
struct pair_report {
  errc code = errc::ok;
  double latency_us = 0;
  double put_bytes_per_second = 0;
  std::array<char, 232> error{};
};
static_assert(std::is_trivially_copyable_v<pair_report>);

double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// One rank's part of the tries.
class pair_player {
 public:
  pair_player(group& comm, const try_options& options)
      : comm_{comm},
        options_{options},
        order_{comm.size()},
        source_offset_{comm.size() * sizeof(pair_report)},
        target_offset_{
            peerbus::align_up(source_offset_ + options.put_bytes, peerbus::cache_line_bytes)},
        window_{comm.make_window(target_offset_ + options.put_bytes, 1 + 2 * comm.size())} {}

  /// Measures all pairs as rank 0 says. Returns on rank 0 the results.
  pair_matrix play() {
    if (comm_.rank() != rank_id{0}) {
      follow();
      return {};
    }
    return lead();
  }

 private:
  using clock = std::chrono::steady_clock;

  // Signals of a rank: the number of the pair whose turn it is, raised by rank 0; then one that
  // each rank raises as its partner; then, on rank 0, one that each rank raises to report.
  static constexpr signal_id turn{0};
  [[nodiscard]] static signal_id of_partner(rank_id partner) {
    return static_cast<signal_id>(1 + partner.index());
  }
  [[nodiscard]] signal_id of_reporter(rank_id reporter) const {
    return static_cast<signal_id>(1 + comm_.size() + reporter.index());
  }

  void require(errc code, std::string_view doing, rank_id peer) const {
    if (code == errc::ok) return;
    std::string text = concat(doing, " ", peer);
    if (const auto missing = comm_.missing(); !missing.empty()) text += ": " + missing;
    throw peerbus::error{code, text};
  }

  /// The conversation of one pair. Both ranks count the same steps, and each raises the signal of
  /// the other to the number of the step, so that a late signal of an earlier pair has no effect.
  class conversation {
   public:
    conversation(pair_player& player, std::uint64_t number, rank_id partner)
        : player_{player},
          partner_{partner},
          step_{number << 32U},
          until_{deadline::after(player.options_.timeout)} {}

    void tell(std::uint64_t extra = 0) {
      player_.require(
          player_.window_.signal(partner_, of_partner(player_.comm_.rank()), step_ + extra),
          "signal to", partner_);
    }
    /// Waits for the partner's signal of this step. Returns its value beyond that of the step.
    std::uint64_t hear() {
      const signal_id id = of_partner(partner_);
      player_.require(player_.window_.wait(id, step_, until_, partner_), "wait for the signal of",
                      partner_);
      return player_.window_.value(id) - step_;
    }
    /// Begins the next step, unless the pair has used up its time.
    void next() {
      if (until_.expired())
        throw peerbus::error{errc::timed_out, concat("the rounds with ", partner_,
                                                     " take longer than the timeout of a pair")};
      ++step_;
    }
    [[nodiscard]] std::uint64_t step() const { return step_; }

   private:
    pair_player& player_;
    rank_id partner_;
    std::uint64_t step_;
    deadline until_;
  };

  [[nodiscard]] std::span<std::byte> part(std::size_t offset) const {
    return window_.local().subspan(offset, options_.put_bytes);
  }

  // A put takes three steps of the conversation: the signal behind it and its answer, then the
  // receiver's verdict, which is one higher if the payload is wrong.
  static constexpr std::uint64_t is_wrong = 1;

  pair_report ask(std::uint64_t number, rank_id partner) {
    conversation with{*this, number, partner};
    std::vector<double> round_trips;
    for (std::size_t round = 0; round < warm_up_rounds + options_.rounds; ++round) {
      with.next();
      const auto start = clock::now();
      with.tell();
      with.hear();
      const std::chrono::duration<double, std::micro> took = clock::now() - start;
      if (round >= warm_up_rounds) round_trips.push_back(took.count());
    }
    std::vector<double> seconds;
    for (std::size_t i = 0; i <= puts; ++i) {
      with.next();
      write_payload(part(source_offset_), with.step());
      const auto start = clock::now();
      require(window_.put(partner, target_offset_, part(source_offset_)), "put to", partner);
      with.tell();
      with.hear();
      const std::chrono::duration<double> took = clock::now() - start;
      if (i != 0) seconds.push_back(took.count());  // The first one commits the pages.
      require(window_.flush(partner), "flush to", partner);
      with.next();
      if (with.hear() == is_wrong)
        throw peerbus::error{errc::mismatch,
                             concat("put ", i, " of ", options_.put_bytes, " bytes to ", partner,
                                    " arrived with other bytes")};
      with.next();
    }
    return {.latency_us = median(round_trips) / 2,
            .put_bytes_per_second = static_cast<double>(options_.put_bytes) / median(seconds)};
  }

  void answer(std::uint64_t number, rank_id partner) {
    conversation with{*this, number, partner};
    for (std::size_t round = 0; round < warm_up_rounds + options_.rounds; ++round) {
      with.next();
      with.hear();
      with.tell();
    }
    for (std::size_t i = 0; i <= puts; ++i) {
      with.next();
      with.hear();
      with.tell();
      const bool is_right = is_payload(part(target_offset_), with.step());
      with.next();
      with.tell(is_right ? 0 : is_wrong);
      with.next();
    }
  }

  /// Does this rank's part of a pair. Returns the report of the rank that asks.
  std::optional<pair_report> take_turn(std::uint64_t number) {
    const auto [from, to] = order_.at(number);
    const bool asks = comm_.rank() == rank_id{from};
    try {
      if (asks) return ask(number, rank_id{to});
      if (comm_.rank() == rank_id{to}) answer(number, rank_id{from});
    } catch (const peerbus::error& failure) {
      if (!asks) return std::nullopt;  // The rank that asks notices it, too.
      pair_report report{.code = failure.code()};
      const std::string text = concat(failure.text(), " [", to_string(failure.code()), "]");
      std::memcpy(report.error.data(), text.data(), std::min(text.size(), report.error.size() - 1));
      return report;
    }
    return std::nullopt;
  }

  [[nodiscard]] std::span<pair_report> reports() const {
    return window_.local<pair_report>().first(comm_.size());
  }

  void follow() {
    for (std::uint64_t number = 0;;) {
      const auto left = static_cast<int>(std::min<std::uint64_t>(order_.end() - number, 1U << 20U));
      window_.await(turn, number + 1,
                    deadline::after((options_.timeout + 2 * time_to_report) * left), rank_id{0});
      number = window_.value(turn);
      if (number >= order_.end()) return;
      const auto report = take_turn(number);
      if (!report) continue;
      const std::size_t rank = comm_.rank().index();
      reports()[rank] = *report;
      require(window_.put_signal(rank_id{0}, rank * sizeof(pair_report), reports().subspan(rank, 1),
                                 of_reporter(comm_.rank()), number),
              "report to", rank_id{0});
      require(window_.flush(rank_id{0}), "report to", rank_id{0});
    }
  }

  /// Has a pair take its turn. Returns its report. Runs on rank 0.
  pair_report direct(std::uint64_t number) {
    const auto [from, to] = order_.at(number);
    for (const std::size_t rank : {to, from})
      if (rank != 0) require(window_.signal(rank_id{rank}, turn, number), "turn of", rank_id{rank});
    const auto own = take_turn(number);
    if (own) return *own;
    const rank_id reporter{from};
    const auto until = deadline::after(options_.timeout + time_to_report);
    require(window_.wait(of_reporter(reporter), number, until, reporter), "wait for the report of",
            reporter);
    return reports()[from];
  }

  pair_matrix lead() {
    pair_matrix matrix{comm_.size()};
    // A rank that did not answer twice has no further turn.
    std::vector<std::size_t> silences(comm_.size());
    for (std::uint64_t number = 1; number < order_.end(); ++number) {
      const auto [from, to] = order_.at(number);
      if (silences[from] >= 2 || silences[to] >= 2) continue;
      pair_result& result = matrix.at(from, to);
      result.is_tried = true;
      pair_report report;
      try {
        report = direct(number);
      } catch (const peerbus::error& failure) {
        report.code = failure.code();
        result.error = concat(failure.text(), " [", to_string(failure.code()), "]");
        if (failure.code() == errc::timed_out) silences[from] = 2;  // It owes rank 0 a report.
      }
      if (report.code == errc::peer_dead) {  // No pair is to blame, and no later one can be tried.
        matrix.ended_by = comm_.missing();
        result = {};
        return matrix;
      }
      if (result.error.empty()) {
        result.error = report.error.data();
        if (report.code == errc::timed_out) ++silences[to];
      }
      result.latency_us = report.latency_us;
      result.put_bytes_per_second = report.put_bytes_per_second;
    }
    matrix.has_silent_rank =
        std::ranges::any_of(silences, [](std::size_t count) { return count >= 2; });
    for (const rank_id peer : comm_.peers())
      static_cast<void>(window_.signal(peer, turn, order_.end()));
    static_cast<void>(comm_.bus().quiet());  // A peer that is out of reach has its finding already.
    return matrix;
  }

  group& comm_;
  const try_options& options_;
  schedule order_;
  std::size_t source_offset_;
  std::size_t target_offset_;
  peerbus::window<peerbus::any_transport> window_;
};

peerbus::any_transport make_transport(std::string_view name, peerbus::bootstrap& boot,
                                      [[maybe_unused]] peerbus::log_sink log) {
  [[maybe_unused]] const auto log_device = [&](const std::string& device) {
    log(peerbus::log_level::info, concat("device: ", device));
  };
  if (name == "loopback") return peerbus::any_transport{peerbus::loopback{boot}};
#ifdef PEERBUS_DOCTOR_VERBS
  if (name == "verbs") {
    peerbus::verbs made{boot};
    log_device(made.describe_port());
    return peerbus::any_transport{std::move(made)};
  }
#endif
#ifdef PEERBUS_DOCTOR_FABRIC
  const auto make_fabric = [&](peerbus::bootstrap& all) {
    peerbus::fabric made{all};
    log_device(made.describe_provider());
    return made;
  };
  if (name == "fabric") return peerbus::any_transport{make_fabric(boot)};
  if (name == "planes")
    return peerbus::any_transport{peerbus::planes<peerbus::unified_bus, peerbus::fabric>{
        boot,
        {},
        [](peerbus::bootstrap& near) { return peerbus::unified_bus{near}; },
        make_fabric}};
#endif
  return peerbus::any_transport{peerbus::unified_bus{boot}};
}

/// Tells `log` what an exchange of a usual size would choose. None is made, as that takes memory.
void log_usual_exchange(group& comm, const peerbus::stderr_log& log) {
  namespace moe = peerbus::moe;
  constexpr moe::exchange_config usual{
      .experts = 256, .hidden = 7168, .top_k = 8, .max_tokens = 128};
  using exchange =
      moe::exchange<peerbus::any_transport, peerbus::codec::int8_per_token, moe::automatic>;
  log(peerbus::log_level::info,
      concat("exchange: of ", usual.experts, " experts, top_k ", usual.top_k, ", ",
             usual.max_tokens, " tokens of ", usual.hidden, " channels as int8 would begin with"));
  moe::log_choices(exchange::choices_for(comm, usual), log);
}

}  // namespace

pair_matrix try_pairs(peerbus::bootstrap& boot, std::string_view transport,
                      const try_options& options, const std::function<void()>& begin) {
  const auto log = peerbus::stderr_log::from_environment(boot.rank());
  log(peerbus::log_level::info, concat("transport: ", transport, ", as --transport says"));
  group comm{make_transport(transport, boot, log), {.timeout = options.timeout}};
  peerbus::log_choices(comm, log);
  if (log) log_usual_exchange(comm, log);
  pair_player player{comm, options};
  begin();
  return player.play();
}

}  // namespace peerbus_doctor
