// SPDX-License-Identifier: MIT
// ctest: unsanitized timeout=300 optimised
//
// Model check of the claim in docs/proofs.md that an exchange never overwrites what somebody
// still reads: every interleaving of a few ranks, one memory access at a time, over schedules of
// halves of operations, with several batches in flight, rows that leave at whichever later call
// finds the counts complete, refusals, and combines that never come. Where rows and outputs pass
// through registered memory, each put is somebody of its own, who may read its source and deliver
// it at any time between the put and the signal that follows it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/core/text.hpp>

#include "support/oracle.hpp"
#include "support/repetitions.hpp"

namespace reuse_model_test {

namespace {

/// Which safeguard is left out, for the control runs that the checker must catch.
enum class broken {
  nothing,
  as_many_count_generations_as_batches,
  one_count_generation_less,
  refusing_rank_runs_ahead,
  rows_without_counts,
  one_set_of_rows,
  one_refusal_generation,
  refusals_shared_by_sets,
  outputs_unannounced,
  one_set_of_staging,
  one_set_of_returned,
  refused_outputs_unsettled,
  one_set_of_attachments,
  rows_over_unreleased_ones,
  refused_rows_unsettled,
  counts_of_silent_ranks_kept,
  reopened_without_wait,
};

/// Where rows are written and outputs lie.
enum class outputs {
  at_expert,  ///< written and read in place
  at_home,    ///< likewise
  put_home,   ///< all is put by the transport, rows from staging, outputs into slots at home
};

struct model {
  std::size_t ranks;
  int in_flight;
  /// What all ranks do, in order: S dispatch_send, X the same refused by rank number mod ranks, Z
  /// by rank 0, R dispatch_recv, E the experts, s combine_send, r combine_recv, c a whole combine
  /// refused by rank number mod ranks, O reopen; each with the number of its dispatch.
  std::string_view schedule;
  broken fault = broken::nothing;
  outputs where = outputs::at_expert;
  std::string_view of_last_rank{};  ///< its schedule, if it is another
  /// Whether ranks read notes, and send output attachments home and read them there. Both may be
  /// read until the next dispatch of the set.
  bool beside = false;
  /// Whether every source rank has slots of its own: rows leave at once, `s` gives rows up, and so
  /// does an S, X or Z whose set holds rows that were not combined.
  bool slots = false;
};

/// One step of a rank's program.
struct step {
  enum class kind {
    write,         ///< put `value` in `cell`
    read,          ///< `cell` must hold `value`
    raise,         ///< signal `cell` becomes at least `value`
    wait,          ///< go on once signal `cell` is at least `value`
    skip_unless,   ///< signal `cell` is at least `value`, or go to `target`
    skip_if_done,  ///< note `value` is made, go to `target`
    done,          ///< make note `value`
    begin,         ///< raise `cell`, which a transfer of this rank's waits for
  };
  kind what;
  std::size_t cell = 0;
  int value = 0;
  std::size_t target = 0;
};

/// Names of places and signals as numbers.
class names {
 public:
  std::size_t operator()(std::string_view kind, std::size_t a, std::size_t b, int c) {
    const std::string text = std::string{kind} + '.' + std::to_string(a) + '.' + std::to_string(b) +
                             '.' + std::to_string(c);
    const auto [at, fresh] = numbers_.try_emplace(text, texts_.size());
    if (fresh) texts_.push_back(text);
    return at->second;
  }
  [[nodiscard]] const std::string& text(std::size_t cell) const { return texts_[cell]; }
  [[nodiscard]] std::size_t count() const { return texts_.size(); }

 private:
  std::map<std::string, std::size_t> numbers_;
  std::vector<std::string> texts_;
};

/// The protocol of moe/exchange.hpp as rank `me` runs it, and the transfers that its puts and their
/// signals are.
class program {
 public:
  program(std::size_t me, const model& m, names& cells) : me_{me}, m_{m}, cells_{&cells} {
    sets_.resize(static_cast<std::size_t>(m.in_flight));
    const bool deviates = me + 1 == m.ranks && !m.of_last_rank.empty();
    for (std::string_view rest = deviates ? m.of_last_rank : m.schedule; !rest.empty();) {
      const std::size_t end = std::min(rest.find(' '), rest.size());
      const int number = std::stoi(std::string{rest.substr(1, end - 1)});
      call(rest[0], number);
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }
  [[nodiscard]] const std::vector<step>& steps() const { return steps_; }
  [[nodiscard]] const std::vector<std::vector<step>>& transfers() const { return transfers_; }

 private:
  using kind = step::kind;
  struct batch_set {
    int held = 0;       ///< the dispatch whose rows are here
    bool rows = false;  ///< they have been received, and are not given up
    int notes = 0;      ///< the dispatch whose notes were received last
    int before = 0;     ///< the one before, while `held` may turn out refused
    int attempts = 0;   ///< combines
    int outputs = 0;    ///< how often the experts have run
    int attached = 0;   ///< the attempt that brought output attachments home, 0 if there are none
  };
  struct dispatched {
    int number;
    bool refused;
  };

  template <class Visit>
  void every_peer(Visit&& visit) const {
    for (std::size_t distance = 1; distance < m_.ranks; ++distance)
      visit((me_ + distance) % m_.ranks);
  }
  void add(kind what, std::size_t cell, int value) { steps_.push_back({what, cell, value, 0}); }
  [[nodiscard]] int set_of(int n) const { return n % m_.in_flight; }
  batch_set& set_at(int n) { return sets_[static_cast<std::size_t>(set_of(n))]; }
  [[nodiscard]] bool bad(int n) const { return static_cast<std::size_t>(n) % m_.ranks == me_; }

  std::size_t counts(std::size_t from, std::size_t to, int n) {
    int generations = 2 * m_.in_flight;
    if (m_.fault == broken::as_many_count_generations_as_batches) generations = m_.in_flight;
    if (m_.fault == broken::one_count_generation_less) --generations;
    return (*cells_)("counts", from, to, n % generations);
  }
  std::size_t signal(std::string_view which, std::size_t from, std::size_t to, int n) {
    return (*cells_)(which, from, to, set_of(n));
  }
  /// Who writes the `slot`th row, or output at home, of dispatch `n`: somebody else each time, as
  /// the rows of a rank belong to other sources with every batch.
  [[nodiscard]] std::size_t writer(std::size_t slot, int n) const {
    return (slot + static_cast<std::size_t>(n / m_.in_flight)) % m_.ranks;
  }
  [[nodiscard]] std::size_t source(std::size_t slot, int n) const {
    return m_.slots ? slot : writer(slot, n);
  }
  std::size_t row(std::size_t at, std::size_t slot, int n) {
    return (*cells_)("row", at, slot, m_.fault == broken::one_set_of_rows ? 0 : set_of(n));
  }
  std::size_t output(std::size_t at, std::size_t slot, int n) {
    return (*cells_)("output", at, m_.where == outputs::at_home ? slot : 0, set_of(n));
  }
  std::size_t staged(int n) {
    return (*cells_)("staged", me_, 0, m_.fault == broken::one_set_of_staging ? 0 : set_of(n));
  }
  std::size_t returned(std::size_t at, std::size_t slot, int n) {
    return (*cells_)("returned", at, slot, m_.fault == broken::one_set_of_returned ? 0 : set_of(n));
  }
  /// The output attachments of a slot at home `at`.
  std::size_t attachment(std::size_t at, std::size_t slot, int n) {
    return (*cells_)("attachment", at, slot,
                     m_.fault == broken::one_set_of_attachments ? 0 : set_of(n));
  }
  [[nodiscard]] int attached_by(int n, int attempt) const { return 32 * set_of(n) + attempt; }
  /// Of attempt `attempt`, or of the rows if that is 0: whether the transfer to `to` may begin, and
  /// whether it has ended.
  std::size_t bell(std::string_view which, std::size_t to, int n, int attempt) {
    return (*cells_)(which, me_ * m_.ranks + to, static_cast<std::size_t>(n), attempt);
  }
  std::size_t refusal(std::size_t from, std::size_t to, int n, int attempt) {
    const int generation = m_.fault == broken::one_refusal_generation ? 0 : attempt % 2;
    const int set = m_.fault == broken::refusals_shared_by_sets ? 0 : set_of(n);
    return (*cells_)("refusal", from, to, 2 * set + generation);
  }

  void call(char what, int n) {
    switch (what) {
      case 'S': return send(n, m_.ranks);
      case 'X': return send(n, static_cast<std::size_t>(n) % m_.ranks);
      case 'Z': return send(n, 0);
      case 'R': return receive(n);
      case 'E': return run(n);
      case 's':
        // The last moment at which rows in slots may be read.
        if (m_.slots) read_rows(n);
        if (m_.slots) set_at(n).rows = false;
        return announce(n, false);
      case 'c': return refuse(n);
      case 'r': return finish(n);
      case 'O': return reopen(n);
      default: FAIL("unknown call ", what);
    }
  }

  void read_rows(int n) {
    for (std::size_t slot = 0; slot < m_.ranks; ++slot) add(kind::read, row(me_, slot, n), n);
  }

  /// The last moment at which the notes of dispatch `n` - B may be read, and output attachments of
  /// the set. Notes lie in the messages of counts, so a refused dispatch takes their place too.
  void read_beside(batch_set& one, int n) {
    if (!m_.beside) return;
    if (const int with = one.notes; with != 0 && with == n - m_.in_flight)
      every_peer([&](std::size_t peer) { add(kind::read, counts(peer, me_, with), with); });
    read_attachments(one, n);
  }
  void read_attachments(batch_set& one, int n) {
    if (const int attempt = std::exchange(one.attached, 0); attempt != 0)
      for (std::size_t slot = 0; slot < m_.ranks; ++slot)
        add(kind::read, attachment(me_, slot, n), attached_by(n, attempt));
  }

  /// `refuser`: who refuses it, or the number of ranks.
  void send(int n, std::size_t refuser) {
    const bool refused = refuser != m_.ranks;
    batch_set& one = set_at(n);
    // The last moment at which the rows that were here may be read.
    if (one.rows) read_rows(one.held);
    read_beside(one, n);
    if (m_.slots) return send_at_once(n, refuser);
    every_peer([&](std::size_t peer) {
      add(kind::write, counts(me_, peer, n), n);
      add(kind::raise, signal("counts!", me_, peer, n), n);
    });
    if (refuser == me_) {
      if (m_.fault != broken::refusing_rank_runs_ahead)
        every_peer([&](std::size_t peer) { add(kind::wait, signal("counts!", peer, me_, n), n); });
      return;
    }
    if (m_.fault == broken::rows_without_counts && !refused) send_rows(n);
    one.before = one.held;
    one.held = n;
    open_.push_back({n, refused});
    advance(0);
  }

  /// Returns whether `from` has neither rows nor a note for `to` in a batch with slots, and sends
  /// no message. The receiver then writes zeros over the counts that lie there.
  [[nodiscard]] bool silent(std::size_t from, std::size_t to, int n) const {
    return !m_.beside && (from + to + static_cast<std::size_t>(n)) % 3 == 0;
  }

  /// The same with slots.
  void send_at_once(int n, std::size_t refuser) {
    batch_set& one = set_at(n);
    if (std::exchange(one.rows, false)) {
      const int attempt = ++one.attempts;
      every_peer(
          [&](std::size_t peer) { add(kind::raise, signal("outputs!", me_, peer, n), attempt); });
      if (m_.fault != broken::rows_over_unreleased_ones) await_outputs(n);
    }
    every_peer([&](std::size_t peer) {
      if (refuser == me_ || !silent(me_, peer, n)) add(kind::write, counts(me_, peer, n), n);
    });
    if (refuser == me_) {
      every_peer([&](std::size_t peer) { add(kind::raise, signal("rows!", me_, peer, n), n); });
      if (m_.fault != broken::refusing_rank_runs_ahead)
        every_peer([&](std::size_t peer) { add(kind::wait, signal("rows!", peer, me_, n), n); });
      return;
    }
    one.held = n;
    open_.push_back({n, refuser != m_.ranks});
    send_rows(n);
  }

  void receive_at_once(int n) {
    batch_set& one = set_at(n);
    const auto at = std::find_if(open_.begin(), open_.end(),
                                 [n](const dispatched& sent) { return sent.number == n; });
    if (at == open_.end()) return;  // It has refused: there is no ticket.
    const bool refused = at->refused;
    open_.erase(at);
    every_peer([&](std::size_t peer) { add(kind::wait, signal("rows!", peer, me_, n), n); });
    every_peer([&](std::size_t peer) {
      if (!silent(peer, me_, n)) return add(kind::read, counts(peer, me_, n), n);
      if (refused) return;
      if (m_.fault != broken::counts_of_silent_ranks_kept)
        add(kind::write, counts(peer, me_, n), n);
      add(kind::read, counts(peer, me_, n), n);
    });
    if (refused) {
      if (m_.where == outputs::put_home && m_.fault != broken::refused_rows_unsettled)
        every_peer([&](std::size_t peer) { add(kind::wait, bell("end", peer, n, 0), 1); });
      one.held = 0;
      return;
    }
    one.rows = true;
    one.notes = n;
    read_rows(n);
  }

  /// Puts what `source` holds into `target` at rank `to`, some time, then raises `signal` there.
  /// Puts what lies `beside` likewise.
  void transfer(std::size_t to, int n, int attempt, std::size_t source, std::size_t target,
                int value, std::size_t signal, int epoch, const std::vector<step>& beside = {}) {
    const std::size_t begin = bell("begin", to, n, attempt);
    add(kind::begin, begin, 1);
    // Code for the same transfer may be at several places of the program.
    if (!begun_.insert(begin).second) return;
    std::vector<step> steps{
        {kind::wait, begin, 1}, {kind::read, source, value}, {kind::write, target, value}};
    steps.insert(steps.end(), beside.begin(), beside.end());
    steps.push_back({kind::raise, signal, epoch});
    steps.push_back({kind::raise, bell("end", to, n, attempt), 1});
    transfers_.push_back(std::move(steps));
  }

  void put_rows(int n) {
    add(kind::write, staged(n), n);
    for (std::size_t to = 0; to < m_.ranks; ++to)
      for (std::size_t slot = 0; slot < m_.ranks; ++slot) {
        if (source(slot, n) != me_) continue;
        if (to == me_)
          add(kind::write, row(me_, slot, n), n);
        else
          transfer(to, n, 0, staged(n), row(to, slot, n), n, signal("rows!", me_, to, n), n);
      }
  }

  void send_rows(int n) {
    if (m_.where == outputs::put_home) return put_rows(n);
    for (std::size_t to = 0; to < m_.ranks; ++to)
      for (std::size_t slot = 0; slot < m_.ranks; ++slot)
        if (source(slot, n) == me_) add(kind::write, row(to, slot, n), n);
    every_peer([&](std::size_t peer) { add(kind::raise, signal("rows!", me_, peer, n), n); });
  }

  /// Sends the rows of batches whose counts are complete, waiting for those up to `wanted`.
  void advance(int wanted) {
    if (m_.slots) return;
    std::vector<std::size_t> to_end;
    for (const dispatched& one : open_) {
      const std::size_t skip = steps_.size();
      add(kind::skip_if_done, 0, one.number);
      every_peer([&](std::size_t peer) {
        if (one.number > wanted) to_end.push_back(steps_.size());
        add(one.number > wanted ? kind::skip_unless : kind::wait,
            signal("counts!", peer, me_, one.number), one.number);
      });
      // Read before rows leave, and again while they are on their way, to place what arrives. What
      // was overwritten stays so, and thus a late look sees it for both; three ranks would have too
      // many interleavings with it.
      const bool late = m_.ranks == 2;
      const auto read_counts = [&](std::size_t peer) {
        add(kind::read, counts(peer, me_, one.number), one.number);
      };
      if (!late) every_peer(read_counts);
      if (!one.refused && m_.fault != broken::rows_without_counts) send_rows(one.number);
      if (late) every_peer(read_counts);
      add(kind::done, 0, one.number);
      steps_[skip].target = steps_.size();
    }
    for (const std::size_t at : to_end) steps_[at].target = steps_.size();
  }

  void receive(int n) {
    if (m_.slots) return receive_at_once(n);
    batch_set& one = set_at(n);
    if (one.held != n) return;  // It has refused: there is no ticket.
    advance(n);
    bool refused = false;
    for (auto at = open_.begin(); at != open_.end(); ++at)
      if (at->number == n) {
        refused = at->refused;
        open_.erase(at);
        break;
      }
    if (refused) {
      one.held = one.before;
      return;
    }
    every_peer([&](std::size_t peer) { add(kind::wait, signal("rows!", peer, me_, n), n); });
    one.rows = true;
    one.notes = n;
    read_rows(n);
  }

  void run(int n) {
    read_rows(n);
    const int version = versions_[n] = 32 * set_of(n) + ++set_at(n).outputs;
    if (m_.where != outputs::at_home) return add(kind::write, output(me_, 0, n), version);
    for (std::size_t home = 0; home < m_.ranks; ++home)
      for (std::size_t slot = 0; slot < m_.ranks; ++slot)
        if (writer(slot, n) == me_) add(kind::write, output(home, slot, n), version);
  }

  void announce(int n, bool refusing) {
    const int attempt = ++set_at(n).attempts;
    if (refusing)
      every_peer([&](std::size_t peer) {
        add(kind::write, refusal(me_, peer, n, attempt), 100 * set_of(n) + attempt);
      });
    if (m_.beside && !refusing) attach(n, attempt);
    every_peer([&](std::size_t peer) {
      const std::size_t announced = signal("outputs!", me_, peer, n);
      if (m_.where != outputs::put_home || refusing) return add(kind::raise, announced, attempt);
      for (std::size_t slot = 0; slot < m_.ranks; ++slot)
        if (writer(slot, n) == me_)
          transfer(peer, n, attempt, output(me_, 0, n), returned(peer, slot, n), versions_[n],
                   announced, attempt, attachments_of(peer, slot, n, attempt));
    });
    advance(0);
  }
  /// The writes that bring the attachments of a slot to `home`.
  std::vector<step> attachments_of(std::size_t home, std::size_t slot, int n, int attempt) {
    if (!m_.beside) return {};
    return {{kind::write, attachment(home, slot, n), attached_by(n, attempt)}};
  }
  /// Stores the output attachments that are not put.
  void attach(int n, int attempt) {
    for (std::size_t home = 0; home < m_.ranks; ++home)
      for (std::size_t slot = 0; slot < m_.ranks; ++slot)
        if (writer(slot, n) == me_ && (home == me_ || m_.where != outputs::put_home))
          for (const step& one : attachments_of(home, slot, n, attempt)) steps_.push_back(one);
  }
  void await_outputs(int n) {
    if (m_.fault == broken::outputs_unannounced) return;
    every_peer([&](std::size_t peer) {
      add(kind::wait, signal("outputs!", peer, me_, n), set_at(n).attempts);
    });
  }
  void refuse(int n) {
    announce(n, bad(n));
    await_outputs(n);
    const std::size_t who = static_cast<std::size_t>(n) % m_.ranks;
    const int attempt = set_at(n).attempts;
    if (who == me_) return;
    add(kind::read, refusal(who, me_, n, attempt), 100 * set_of(n) + attempt);
    if (m_.where == outputs::put_home && m_.fault != broken::refused_outputs_unsettled)
      every_peer([&](std::size_t peer) { add(kind::wait, bell("end", peer, n, attempt), 1); });
  }
  void reopen(int n) {
    advance(0);
    batch_set& one = set_at(n);
    read_attachments(one, n);
    const int attempt = ++one.attempts;
    every_peer([&](std::size_t peer) {
      const std::size_t announced = signal("outputs!", me_, peer, n);
      if (m_.where != outputs::put_home) return add(kind::raise, announced, attempt);
      // A signal follows the puts before it, which this rank does not wait for.
      const std::size_t begin = bell("begin", peer, n, attempt);
      add(kind::begin, begin, 1);
      if (begun_.insert(begin).second)
        transfers_.push_back({{kind::wait, begin, 1},
                              {kind::wait, bell("end", peer, n, attempt - 1), 1},
                              {kind::raise, announced, attempt}});
    });
    if (m_.fault != broken::reopened_without_wait) await_outputs(n);
    one.rows = true;
  }
  void finish(int n) {
    advance(0);
    await_outputs(n);
    if (m_.beside) set_at(n).attached = set_at(n).attempts;
    const int version = versions_[n];
    for (std::size_t other = 0; other < m_.ranks; ++other) {
      std::size_t from = m_.where == outputs::at_home ? output(me_, other, n) : output(other, 0, n);
      if (m_.where == outputs::put_home)
        from = writer(other, n) == me_ ? output(me_, 0, n) : returned(me_, other, n);
      add(kind::read, from, version);
    }
  }

  std::size_t me_;
  model m_;
  names* cells_;
  std::vector<batch_set> sets_;
  std::map<int, int> versions_;   ///< of the outputs of a dispatch
  std::vector<dispatched> open_;  ///< dispatches that are not received yet
  std::vector<step> steps_;
  std::set<std::size_t> begun_;  ///< transfers that are in the list
  std::vector<std::vector<step>> transfers_;
};

/// Where all ranks and transfers are, what they have noted, and what all cells hold, as bytes.
class machine {
 public:
  machine(std::size_t ranks, std::size_t cells) : ranks_{ranks}, bytes_(4 * ranks + cells, '\0') {}
  machine(std::size_t ranks, const std::string& bytes) : ranks_{ranks}, bytes_{bytes} {}

  [[nodiscard]] std::size_t at(std::size_t rank) const {
    return static_cast<std::size_t>(byte(2 * rank)) * 256 +
           static_cast<std::size_t>(byte(2 * rank + 1));
  }
  void go(std::size_t rank, std::size_t to) {
    bytes_[2 * rank] = static_cast<char>(to / 256);
    bytes_[2 * rank + 1] = static_cast<char>(to % 256);
  }
  [[nodiscard]] bool noted(std::size_t rank, int note) const {
    return (byte(2 * ranks_ + 2 * rank + static_cast<std::size_t>(note) / 8) >> (note % 8) & 1) !=
           0;
  }
  void make_note(std::size_t rank, int note) {
    const std::size_t where = 2 * ranks_ + 2 * rank + static_cast<std::size_t>(note) / 8;
    bytes_[where] = static_cast<char>(byte(where) | 1 << (note % 8));
  }
  [[nodiscard]] int cell(std::size_t number) const { return byte(4 * ranks_ + number); }
  void set(std::size_t number, int value) {
    bytes_[4 * ranks_ + number] = static_cast<char>(value);
  }
  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  [[nodiscard]] int byte(std::size_t i) const { return static_cast<unsigned char>(bytes_[i]); }
  std::size_t ranks_;
  std::string bytes_;
};

struct verdict {
  std::size_t states = 0;
  std::string wrong_read;
  bool stuck = false;
};

verdict explore(const model& m) {
  using kind = step::kind;
  names cells;
  std::vector<std::vector<step>> programs;
  std::vector<std::vector<step>> transfers;
  for (std::size_t r = 0; r < m.ranks; ++r) {
    const program one{r, m, cells};
    programs.push_back(one.steps());
    transfers.insert(transfers.end(), one.transfers().begin(), one.transfers().end());
  }
  programs.insert(programs.end(), transfers.begin(), transfers.end());

  verdict result;
  std::unordered_set<std::string> seen;
  std::vector<const std::string*> open;  // Elements of `seen`, which stay where they are.
  const auto reach = [&](machine& one) {
    // Notes are a rank's own: nobody can tell when it makes or reads them. Nor when a transfer may
    // begin, as it may then wait.
    for (std::size_t r = 0; r < m.ranks; ++r)
      while (one.at(r) < programs[r].size()) {
        const step& next = programs[r][one.at(r)];
        if (next.what == kind::done) {
          one.make_note(r, next.value);
          one.go(r, one.at(r) + 1);
        } else if (next.what == kind::skip_if_done) {
          one.go(r, one.noted(r, next.value) ? next.target : one.at(r) + 1);
        } else if (next.what == kind::begin) {
          one.set(next.cell, next.value);
          one.go(r, one.at(r) + 1);
        } else {
          break;
        }
      }
    if (const auto [known, is_new] = seen.insert(one.bytes()); is_new) open.push_back(&*known);
  };
  machine after{programs.size(), cells.count()};
  reach(after);
  while (!open.empty() && result.wrong_read.empty()) {
    const machine state{programs.size(), *open.back()};
    open.pop_back();
    ++result.states;
    bool moved = false;
    bool ended = true;
    for (std::size_t r = 0; r < programs.size(); ++r) {
      const std::size_t at = state.at(r);
      if (at == programs[r].size()) continue;
      ended = ended && r >= m.ranks;
      after = state;
      // A transfer reads its source as late as it may, and delivers at once: a write in between
      // would be found by one that came as late.
      bool goes = true;
      const std::size_t end = r < m.ranks ? at + 1 : programs[r].size();
      for (std::size_t now = at; now < end && goes; ++now) {
        const step& next = programs[r][now];
        after.go(r, now + 1);
        switch (next.what) {
          case kind::write: after.set(next.cell, next.value); break;
          case kind::raise:
            after.set(next.cell, std::max(state.cell(next.cell), next.value));
            break;
          case kind::read:
            if (state.cell(next.cell) != next.value)
              result.wrong_read = peerbus::detail::concat(
                  r < m.ranks ? "rank " : "transfer ", r, " reads ", cells.text(next.cell),
                  ", which holds ", state.cell(next.cell), ", not ", next.value);
            break;
          case kind::wait: goes = state.cell(next.cell) >= next.value; break;
          case kind::skip_unless:
            if (state.cell(next.cell) < next.value) after.go(r, next.target);
            break;
          default: break;
        }
      }
      if (!goes) continue;
      moved = true;
      reach(after);
    }
    result.stuck = result.stuck || (!moved && !ended);
  }
  return result;
}

/// Returns: how many states there were.
std::size_t holds(const model& m) {
  CAPTURE(m.ranks);
  CAPTURE(m.in_flight);
  CAPTURE(m.schedule);
  const verdict found = explore(m);
  CHECK(found.wrong_read == "");
  CHECK_FALSE(found.stuck);
  CHECK(found.states > m.schedule.size());
  return found.states;
}

/// Calls drawn from what the contract allows at each point.
std::string random_schedule(int in_flight, std::size_t calls, std::uint64_t seed, bool slots) {
  struct batch_set {
    char last = 'r';  ///< the latest call on it that happened
    int number = 0;
    int refused = 0;  ///< a refused dispatch that is to be received
  };
  std::vector<batch_set> sets(static_cast<std::size_t>(in_flight));
  oracle::random numbers{seed};
  std::string schedule;
  int latest = 0;
  const auto call = [&](char what, int number) {
    if (!schedule.empty()) schedule += ' ';
    schedule += what;
    schedule += std::to_string(number);
  };
  for (std::size_t made = 0; made < calls;) {
    batch_set& one = sets[numbers.below(sets.size())];
    batch_set& next = sets[static_cast<std::size_t>((latest + 1) % in_flight)];
    ++made;
    if (numbers.below(2) == 0 && next.refused == 0 && next.last != 'S' && next.last != 's' &&
        latest < 15) {
      ++latest;
      const bool refused = numbers.below(3) == 0;
      call(refused ? (numbers.below(2) == 0 ? 'X' : 'Z') : 'S', latest);
      if (refused) {
        next.refused = latest;
        if (slots) next = {'r', 0, latest};  // What the set held is given up.
      } else
        next = {'S', latest, 0};
    } else if (one.refused != 0) {
      call('R', std::exchange(one.refused, 0));
    } else if (one.last == 'S') {
      call(one.last = 'R', one.number);
    } else if (one.last == 'R') {
      call(one.last = 'E', one.number);
    } else if (one.last == 'E') {
      const bool refused = numbers.below(3) == 0;
      call(refused ? 'c' : 's', one.number);
      if (!refused) one.last = 's';
    } else if (one.last == 's') {
      call(one.last = 'r', one.number);
    } else if (one.number != 0 && numbers.below(3) == 0) {
      call('O', one.number);
      one.last = 'R';
    } else {
      --made;
    }
  }
  return schedule;
}

struct in_flight_schedule {
  int in_flight;
  std::string_view schedule;
};

}  // namespace

TEST_CASE("no interleaving of two ranks lets an exchange overwrite what is still read") {
  for (const auto& [in_flight, schedule] : {
           in_flight_schedule{1, "S1 R1 E1 s1 r1 S2 R2 E2 s2 r2 S3 R3 E3 s3 r3"},
           {1, "S1 R1 S2 R2 S3 R3 E3 S4 R4 E4 s4 r4"},
           {1, "X1 R1 X2 R2 X3 R3 S4 R4 E4 X5 R5 E4 s4 r4"},
           {1, "S1 R1 E1 c1 E1 c1 c1 E1 s1 r1 S2 R2 E2 c2 E2 s2 r2"},
           {2, "S1 S2 R1 E1 s1 R2 E2 s2 r1 S3 r2 S4 R3 E3 s3 R4 E4 s4 r3 r4"},
           {2, "S1 S2 R2 R1 E2 E1 s2 s1 r1 r2 S3 S4 R4 R3"},
           {2, "S1 R1 S2 X3 R2 E2 R3 E1 s1 r1 s2 X4 R4 r2"},
           {2, "S1 R1 X2 X3 R2 X4 R3 E1 R4 X5 s1 r1 R5"},
           {2, "S1 S2 R1 R2 S3 S4 R3 R4 E3 E4 c3 c4 E3 s3 r3 s4 r4"},
           {1, "S1 R1 E1 s1 r1 O1 E1 s1 r1 O1 E1 c1 E1 s1 r1 S2 R2 E2 s2 r2"},
           {2, "S1 S2 R1 E1 s1 r1 R2 O1 E2 s2 E1 s1 r2 r1 S3 R3 S4"},
           {3, "S1 S2 S3 R2 R1 R3 E1 E2 s2 s1 r1 r2 S4 S5 R5 R4"},
           {3, "S1 X2 S3 R1 X4 R3 R2 R4 S5 X6 R5 R6 E1 s1 r1 S7 R7"},
       }) {
    holds({2, in_flight, schedule});
    holds({2, in_flight, schedule, broken::nothing, outputs::at_home});
    holds({2, in_flight, schedule, broken::nothing, outputs::put_home, {}, true});
  }
  holds({2,
         2,
         "S1 S2 R1 E1 s1 R2 E2 s2 r1 X3 r2 S4 R3 R4 S5 E4 s4 R5 r4 S6 R6",
         broken::nothing,
         outputs::at_expert,
         {},
         true});
}

TEST_CASE("no interleaving of two ranks does, over schedules that nobody chose") {
  std::size_t states = 0;
  for (const int in_flight : {1, 2, 3})
    for (std::uint64_t seed = 0; seed < test::repetitions(300); ++seed) {
      for (const bool slots : {false, true}) {
        const std::string schedule = random_schedule(in_flight, 24, seed, slots);
        states += holds({2,
                         in_flight,
                         schedule,
                         broken::nothing,
                         static_cast<outputs>(seed % 3),
                         {},
                         seed % 4 == 0,
                         slots});
      }
    }
  CHECK(states > test::repetitions(100'000));
}

TEST_CASE("no interleaving of three ranks does") {
  for (const auto& [in_flight, schedule] : {
           in_flight_schedule{1, "S1 R1 E1 s1 r1 S2 R2"},
           {1, "X1 R1 X2 R2 S3 R3"},
           {1, "S1 R1 E1 c1 c1 s1 r1"},
           {1, "S1 R1 E1 s1 r1 O1 E1 s1 r1"},
           {2, "S1 S2 R1 R2 S3 R3"},
           {2, "X1 S2 X3 R1 R2 R3"},
           {2, "S1 S2 R2 R1 E1 s1 S3 r1 R3"},
           {3, "S1 X2 S3 R3 R1 R2 S4 R4"},
       })
    holds({3, in_flight, schedule});
  holds({3, 1, "S1 R1 E1 s1 r1 S2 R2 E2 s2 r2", broken::nothing, outputs::at_home});
  for (const auto& [in_flight, schedule] : {
           in_flight_schedule{1, "S1 R1 E1 s1 r1 S2 R2"},
           {1, "S1 R1 E1 c1 E1 s1 r1"},
           {2, "S1 S2 R2 R1 S3 R3"},
       })
    holds({3, in_flight, schedule, broken::nothing, outputs::put_home});
}

TEST_CASE("the checker sees what would go wrong without each safeguard") {
  const auto caught = [](int in_flight, std::string_view schedule, broken fault,
                         outputs where = outputs::at_expert, bool beside = false) {
    CAPTURE(schedule);
    // It is the fault that is caught, not the schedule.
    holds({2, in_flight, schedule, broken::nothing, where, {}, beside});
    CHECK(explore({2, in_flight, schedule, fault, where, {}, beside}).wrong_read != "");
  };
  // Without enough generations of counts, a rank that saw a refusal posts over counts that a
  // slower one is about to read.
  const broken few = broken::as_many_count_generations_as_batches;
  caught(1, "X1 R1 X2 R2 X3 R3", few);
  caught(2, "X1 X2 R1 X3 R2 R3", few);
  caught(3, "X1 X2 X3 R1 X4 R2 R3 R4", few);
  // One less than twice as many as batches is still too few.
  const broken one_less = broken::one_count_generation_less;
  caught(1, "X1 R1 X2 R2 X3 R3", one_less);
  caught(2, "X1 Z2 R1 R2 S3 S4 R3 R4", one_less);
  caught(3, "X1 Z2 Z3 R1 R2 R3 S4 S5 S6 R4 R5 R6", one_less);
  // Notes are read for longer than counts: one generation less is caught without refusals.
  const std::string_view four_batches = "S1 S2 R1 R2 S3 S4 R3 R4";
  holds({2, 2, four_batches, one_less});
  caught(2, four_batches, one_less, outputs::at_expert, true);
  // Each batch has output attachments of its own.
  for (const outputs where : {outputs::at_expert, outputs::put_home})
    caught(2, "S1 R1 S2 R2 E1 E2 s1 s2 r1 r2 S3 R3", broken::one_set_of_attachments, where, true);
  // A rank whose own input is bad has nothing to receive, and would not wait for anybody.
  const broken ahead = broken::refusing_rank_runs_ahead;
  caught(1, "Z1 R1 Z2 R2 Z3 R3", ahead);
  caught(2, "Z1 Z2 R1 R2 Z3 Z4 Z5 R3 R4 R5", ahead);
  // Counts before rows: they tell the sender that its peer is done with the rows before.
  caught(1, "S1 R1 S2 R2", broken::rows_without_counts);
  caught(2, "S1 S2 R1 R2 S3 R3", broken::rows_without_counts);
  // Each batch has rows of its own.
  caught(2, "S1 S2 R1 R2", broken::one_set_of_rows);
  // Two refusals of one combine in a row, and of two batches' combines.
  caught(1, "S1 R1 E1 c1 c1", broken::one_refusal_generation);
  caught(3, "S1 S2 S3 R1 R2 R3 c1 c3", broken::refusals_shared_by_sets);
  // Outputs are announced.
  caught(1, "S1 R1 E1 s1 r1", broken::outputs_unannounced);
  caught(1, "S1 R1 E1 s1 r1", broken::outputs_unannounced, outputs::put_home);
  // Each batch has staging of its own, and slots for the outputs that come home.
  caught(2, "S1 S2 R1 R2", broken::one_set_of_staging, outputs::put_home);
  caught(3, "S1 R1 S2 S3 R2 R3", broken::one_set_of_staging, outputs::put_home);
  caught(2, "S1 R1 S2 S3 R2 R3 E2 E3 s2 s3 r2 r3", broken::one_set_of_returned, outputs::put_home);
  // What was put home in vain has arrived before the experts write anew.
  caught(1, "S1 R1 E1 c1 E1 s1 r1", broken::refused_outputs_unsettled, outputs::put_home);
  caught(2, "S1 R1 E1 c1 E1 c1 S2 R2", broken::refused_outputs_unsettled, outputs::put_home);
  // Outputs that are combined again are written when nobody reads the earlier ones any more.
  for (const outputs where : {outputs::at_expert, outputs::at_home, outputs::put_home})
    caught(1, "S1 R1 E1 s1 r1 O1 E1 s1 r1", broken::reopened_without_wait, where);
  // Rows still wait for counts.
  caught(1, "S1 R1 S2 R2", broken::rows_without_counts, outputs::put_home);
}

TEST_CASE("no interleaving lets slots be overwritten while they are still read") {
  const auto in_slots = [](std::size_t ranks, int in_flight, std::string_view schedule,
                           outputs where) {
    holds({ranks, in_flight, schedule, broken::nothing, where, {}, false, true});
  };
  for (const outputs where : {outputs::at_expert, outputs::at_home, outputs::put_home})
    for (const auto& [in_flight, schedule] : {
             in_flight_schedule{1, "S1 R1 E1 s1 r1 S2 R2 E2 s2 r2 S3 R3 E3 s3 r3"},
             {1, "S1 R1 S2 R2 E2 S3 R3 E3 s3 r3"},
             {1, "S1 R1 E1 s1 r1 O1 E1 s1 r1 O1 S2 R2 E2 s2 r2 O2 E2 c2 S3 R3"},
             {1, "X1 R1 X2 R2 S3 R3 E3 s3 r3 X4 R4 S5 R5"},
             {1, "S1 R1 E1 c1 E1 c1 c1 E1 s1 r1 S2 R2 E2 c2 S3 R3"},
             {2, "S1 S2 R1 E1 s1 R2 E2 s2 r1 S3 r2 S4 R3 E3 s3 R4 E4 s4 r3 r4"},
             {2, "S1 R1 X2 X3 R2 R3 S4 R4 S5 R5"},
             {3, "S1 X2 S3 R1 X4 R3 R2 R4 S5 X6 R5 R6"},
         })
      in_slots(2, in_flight, schedule, where);
  for (const outputs where : {outputs::at_expert, outputs::put_home})
    for (const auto& [in_flight, schedule] : {
             in_flight_schedule{1, "S1 R1 E1 s1 r1 S2 R2"},
             {1, "S1 R1 S2 R2"},
             {1, "X1 R1 S2 R2"},
         })
      in_slots(3, in_flight, schedule, where);
}

TEST_CASE("the checker sees what would go wrong without each safeguard of slots") {
  const auto caught = [](int in_flight, std::string_view schedule, broken fault,
                         outputs where = outputs::at_expert, bool beside = false) {
    CAPTURE(schedule);
    holds({2, in_flight, schedule, broken::nothing, where, {}, beside, true});
    CHECK(explore({2, in_flight, schedule, fault, where, {}, beside, true}).wrong_read != "");
  };
  // Rows that were not combined are given up by the dispatch that takes their memory.
  caught(1, "S1 R1 S2 R2", broken::rows_over_unreleased_ones);
  caught(2, "S1 S2 R1 R2 E1 S3 R3", broken::rows_over_unreleased_ones);
  // A refused combine gives nothing up.
  caught(1, "S1 R1 E1 c1 S2 R2", broken::rows_over_unreleased_ones);
  // A combine that ends before all ranks have given up their rows.
  caught(1, "S1 R1 E1 s1 r1 S2 R2", broken::outputs_unannounced);
  // Staged rows of a refused dispatch have left before their memory is written anew.
  caught(1, "X1 R1 S2 R2", broken::refused_rows_unsettled, outputs::put_home);
  // A rank whose own input is bad would send its next refusals over those that are still read.
  caught(1, "Z1 R1 Z2 R2 Z3 R3", broken::refusing_rank_runs_ahead);
  // Notes are read until the next dispatch of their set, which a peer may be ahead of.
  caught(1, "S1 R1 E1 s1 r1 S2 R2", broken::as_many_count_generations_as_batches,
         outputs::at_expert, true);
  caught(2, "S1 S2 R1 R2 E1 E2 s1 s2 r1 r2 S3 S4 R3 R4",
         broken::as_many_count_generations_as_batches, outputs::at_expert, true);
  // A rank that sends no counts has none: the counts that it sent before are not read for them.
  caught(1, "S1 R1 S2 R2", broken::counts_of_silent_ranks_kept);
  // Each batch has slots of its own.
  caught(2, "S1 S2 R1 R2", broken::one_set_of_rows);
}

TEST_CASE("the checker sees what calls that are refused as misuse would do") {
  // A dispatch over a batch that is on its way home, and over one that is not received.
  CHECK(explore({2, 1, "S1 R1 E1 s1 S2 R2 E2 r1"}).wrong_read != "");
  CHECK(explore({2, 2, "S1 S2 R1 R2 E1 s1 S3 R3 E3 r1"}).wrong_read != "");
  CHECK(explore({2, 1, "S1 S2 R2 R1"}).wrong_read != "");
}

TEST_CASE("ranks that differ in the order of their calls may wait for each other") {
  // Each order by itself is fine.
  const std::string_view home_first = "S1 R1 E1 S2 s1 r1 R2";
  const std::string_view rows_first = "S1 R1 E1 S2 R2 s1 r1";
  holds({2, 2, home_first});
  holds({2, 2, rows_first});
  const verdict found =
      explore({2, 2, home_first, broken::nothing, outputs::at_expert, rows_first});
  CHECK(found.wrong_read == "");
  CHECK(found.stuck);
}

}  // namespace reuse_model_test
