// SPDX-License-Identifier: MIT
// ctest: tsan
//
// Agreement by messages among ranks that end while they post, so that only some of the others have
// what they posted. The ranks are threads, and the messages lie in queues until they are looked at.
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/bulletin.hpp>
#include <peerbus/bootstrap/membership.hpp>
#include <peerbus/communicator/group_view.hpp>
#include <peerbus/communicator/posted_boards.hpp>
#include <peerbus/communicator/view_agreement.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/wait.hpp>

namespace posted_boards_test {

namespace {

using peerbus::deadline;
using peerbus::errc;
using peerbus::group_view;
using peerbus::membership;
using peerbus::rank_id;
using peerbus::detail::agreement_board;
using peerbus::detail::posted_boards;
using peerbus::detail::view_agreement;

deadline patience() { return deadline::after(std::chrono::seconds{60}); }

/// What is under way to each rank: messages, and the ends of ranks.
class post_office {
 public:
  explicit post_office(std::size_t ranks) : queues_(ranks) {}

  struct item {
    rank_id from;
    std::optional<std::vector<std::byte>> message;  ///< none: the sender has ended
    peerbus::rank_state state = peerbus::rank_state::died;
  };

  void send(std::size_t to, item sent) {
    const std::lock_guard lock{mutex_};
    queues_[to].push_back(std::move(sent));
  }
  std::deque<item> take(std::size_t to) {
    const std::lock_guard lock{mutex_};
    return std::exchange(queues_[to], {});
  }
  [[nodiscard]] std::size_t size() const noexcept { return queues_.size(); }

 private:
  std::mutex mutex_;
  std::vector<std::deque<item>> queues_;
};

/// A rank's end of the post office.
class mailbox final : public peerbus::membership_source, public peerbus::bulletin {
 public:
  mailbox(post_office& office, rank_id me)
      : office_{office},
        me_{me},
        states_{std::make_unique<membership::state_word[]>(office.size())} {}

  /// From now on only the ranks of the bits `reach` get what this one posts.
  void limit(std::size_t reach) noexcept { reach_ = reach; }
  /// Leaves what comes until `opens` is true.
  void close_until(const std::atomic<bool>& opens) noexcept { opens_ = &opens; }
  /// Takes the ranks of the bits `ranks` for out of reach.
  void lose(std::size_t ranks) noexcept {
    for (std::size_t rank = 0; rank < office_.size(); ++rank)
      if ((ranks >> rank & 1U) != 0) membership::announce(states_[rank], peerbus::rank_state::lost);
  }
  /// Ends, without a word.
  void end(peerbus::rank_state state = peerbus::rank_state::died) {
    for (std::size_t to = 0; to < office_.size(); ++to)
      office_.send(to, {me_, std::nullopt, state});
  }

  void look() noexcept override {
    if (opens_ != nullptr && !opens_->load()) return;
    for (auto& arrived : office_.take(me_.index())) {
      if (arrived.from == me_) continue;
      if (arrived.message) {
        if (reader_.take) reader_.take(arrived.from, *arrived.message);
        continue;
      }
      membership::announce(states_[arrived.from.index()], arrived.state);
      if (!reader_.last_words) continue;
      for (const auto& message : reader_.last_words(arrived.from)) publish(0, message);
    }
  }
  void tell(peerbus::rank_state /*state*/) noexcept override {}
  bool ends_within(rank_id, std::chrono::milliseconds) noexcept override { return false; }
  [[nodiscard]] std::uint32_t subscribe(reader read) override {
    reader_ = std::move(read);
    return 0;
  }
  void unsubscribe(std::uint32_t /*channel*/) noexcept override { reader_ = {}; }
  void publish(std::uint32_t /*channel*/, std::span<const std::byte> message) override {
    for (std::size_t to = 0; to < office_.size(); ++to)
      if ((reach_ >> to & 1U) != 0)
        office_.send(to, {me_, std::vector<std::byte>{message.begin(), message.end()}, {}});
  }
  [[nodiscard]] membership::state_word* states() noexcept { return states_.get(); }

 private:
  post_office& office_;
  rank_id me_;
  std::unique_ptr<membership::state_word[]> states_;
  reader reader_;
  const std::atomic<bool>* opens_ = nullptr;
  std::size_t reach_ = ~std::size_t{0};
};

/// A rank with all that it needs to agree.
struct participant {
  participant(post_office& office, std::size_t rank)
      : box{std::make_shared<mailbox>(office, rank_id{rank})},
        members{std::make_shared<membership>(rank_id{rank}, office.size(), box->states(), box)},
        boards{std::make_unique<posted_boards>(box, members)},
        agreement{members, boards->boards(), peerbus::adaptive_wait{}.thresholds(office.size(), 1),
                  boards.get()},
        view{office.size()} {}

  /// Returns what all give, or the code of the error.
  errc gather(std::size_t round, deadline until, std::string& got) {
    try {
      const char own = static_cast<char>('a' + members->rank().index() + round);
      got.clear();
      for (const std::byte given :
           agreement.gather(view, "letters", std::as_bytes(std::span{&own, 1}), until))
        got += static_cast<char>(given);
      return errc::ok;
    } catch (const peerbus::error& problem) {
      return problem.code();
    }
  }

  std::shared_ptr<mailbox> box;
  std::shared_ptr<membership> members;
  std::unique_ptr<posted_boards> boards;
  view_agreement agreement;
  group_view view;
};

std::vector<std::unique_ptr<participant>> participants_of(post_office& office) {
  std::vector<std::unique_ptr<participant>> all;
  all.reserve(office.size());
  for (std::size_t rank = 0; rank < office.size(); ++rank)
    all.push_back(std::make_unique<participant>(office, rank));
  return all;
}

}  // namespace

TEST_CASE("what ranks that end while they post have given, all others get or none") {
  constexpr std::size_t n = 4;
  // Ranks 2 and 3 end in their second gather, whose contributions reach only those of the bits;
  // rank 3 only once it may know of the end of rank 2.
  for (std::size_t of_2 = 0; of_2 < 16; ++of_2)
    for (std::size_t of_3 = 0; of_3 < 8; ++of_3) {
      CAPTURE(of_2);
      CAPTURE(of_3);
      post_office office{n};
      const auto all = participants_of(office);
      std::vector<errc> codes(n);
      std::vector<std::string> got(n);
      std::vector<group_view> views(n, group_view{n});
      std::vector<std::thread> threads;
      threads.reserve(n);
      for (std::size_t rank = 0; rank < n; ++rank)
        threads.emplace_back([&, rank] {
          participant& me = *all[rank];
          codes[rank] = me.gather(0, patience(), got[rank]);
          if (codes[rank] != errc::ok || got[rank] != "abcd") return;
          if (rank >= 2) {
            me.box->limit(rank == 2 ? of_2 : of_3);
            if (rank == 3 && of_2 % 2 == 1)
              while (me.members->state(rank_id{2}) == peerbus::rank_state::running)
                std::this_thread::yield();
            codes[rank] = me.gather(1, deadline::after({}), got[rank]);
            return me.box->end();
          }
          codes[rank] = me.gather(1, patience(), got[rank]);
          views[rank] =
              me.agreement.agree(me.view, deadline::after(std::chrono::seconds{1}), patience());
        });
      for (auto& thread : threads) thread.join();
      CHECK(codes[0] == codes[1]);
      CHECK((codes[0] == errc::ok || codes[0] == errc::peer_dead));
      // Whoever has a contribution tells it, if it lives.
      const bool has_both = (of_2 & 3U) != 0 && (of_3 & 3U) != 0;
      if (has_both) CHECK(codes[0] == errc::ok);
      if (of_3 == 0) CHECK(codes[0] == errc::peer_dead);
      if (codes[0] == errc::ok) CHECK((got[0] == "bcde" && got[1] == "bcde"));
      CHECK(views[0].number() == views[1].number());
      CHECK(views[0].members().size() == 2);
      CHECK(views[1].members().size() == 2);
    }
}

TEST_CASE("who has all and leaves has told the others before") {
  constexpr std::size_t n = 4;
  // Of those that get the contribution of rank 3, the first leaves before rank 3 ends, and before
  // the others look at anything.
  for (std::size_t of_3 = 0; of_3 < 8; ++of_3) {
    CAPTURE(of_3);
    post_office office{n};
    const auto first = static_cast<std::size_t>(std::countr_zero(of_3));
    std::atomic<bool> has_left{of_3 == 0};
    std::vector<std::unique_ptr<participant>> all;
    for (std::size_t rank = 0; rank < n; ++rank) {
      all.push_back(std::make_unique<participant>(office, rank));
      if (rank != first && rank != 3) all.back()->box->close_until(has_left);
    }
    std::vector<errc> codes(n);
    std::vector<std::thread> threads;
    threads.reserve(n);
    for (std::size_t rank = 0; rank < n; ++rank)
      threads.emplace_back([&, rank] {
        participant& me = *all[rank];
        std::string got;
        if (rank == 3) {
          me.box->limit(of_3);
          codes[rank] = me.gather(0, deadline::after({}), got);
          while (!has_left.load()) std::this_thread::yield();
          return me.box->end();
        }
        codes[rank] = me.gather(0, patience(), got);
        if (codes[rank] != errc::ok) return;
        me.boards.reset();
        me.box->end(peerbus::rank_state::left);
        has_left = true;
      });
    for (auto& thread : threads) thread.join();
    for (std::size_t rank = 0; rank < 3; ++rank)
      CHECK(codes[rank] == (of_3 == 0 ? errc::peer_dead : errc::ok));
  }
}

TEST_CASE("of two parts that take each other for out of reach one goes on, unless it is told") {
  constexpr std::size_t n = 4;
  struct split {
    std::size_t part;  // The bits of the ranks of one, the others are the other.
    bool goes_on;
  };
  // More than half, half with the first, and half without it.
  for (const split each : {split{0b1110, true}, split{0b0011, true}, split{0b1100, false},
                           split{0b0001, false}, split{0b1001, true}}) {
    CAPTURE(each.part);
    post_office office{n};
    const auto all = participants_of(office);
    std::vector<errc> codes(n, errc::ok);
    std::vector<std::size_t> left(n);
    std::vector<std::size_t> left_if_told(n);
    std::atomic<std::size_t> agreed{0};
    std::vector<std::thread> threads;
    threads.reserve(n);
    for (std::size_t rank = 0; rank < n; ++rank)
      threads.emplace_back([&, rank] {
        participant& me = *all[rank];
        const bool is_in_part = (each.part >> rank & 1U) != 0;
        const std::size_t others = is_in_part ? ~each.part & 0xfU : each.part;
        me.box->limit(~others);
        me.box->lose(others);
        try {
          left[rank] = me.agreement.agree(me.view, patience(), patience()).members().size();
        } catch (const peerbus::error& problem) {
          codes[rank] = problem.code();
        }
        // Who vouches does so for all that still agree.
        ++agreed;
        while (agreed < n) std::this_thread::yield();
        std::vector<rank_id> vouched;
        for (std::size_t other = 0; other < n; ++other)
          if ((others >> other & 1U) != 0) vouched.emplace_back(other);
        left_if_told[rank] =
            me.agreement.agree(me.view, patience(), patience(), vouched).members().size();
      });
    for (auto& thread : threads) thread.join();
    for (std::size_t rank = 0; rank < n; ++rank) {
      CAPTURE(rank);
      const bool is_in_part = (each.part >> rank & 1U) != 0;
      CHECK(codes[rank] == (is_in_part == each.goes_on ? errc::ok : errc::unreachable));
      std::size_t own_part = 0;
      for (std::size_t other = 0; other < n; ++other)
        own_part += ((each.part >> other & 1U) != 0) == is_in_part ? 1U : 0U;
      CHECK(left[rank] == (codes[rank] == errc::ok ? own_part : 0U));
      CHECK(left_if_told[rank] == own_part);
    }
  }
}

TEST_CASE("who takes a set from another rank doubts what that one doubts") {
  constexpr std::size_t n = 7;
  // Rank 0 notices first that ranks 3 to 6 are gone. None of the others sees their end, or one
  // does. If nobody does, ranks 1 and 2 wait until rank 0 vouches for it.
  for (const std::size_t witness : {n, std::size_t{0}, std::size_t{1}}) {
    CAPTURE(witness);
    const bool are_gone = witness != n;
    post_office office{n};
    const auto all = participants_of(office);
    for (std::size_t rank = 3; rank < n; ++rank)
      if (are_gone) office.send(witness, {rank_id{rank}, std::nullopt});
    if (witness != 0) all[0]->box->lose(0b1111000);
    std::vector<errc> codes(3, errc::ok);
    std::vector<std::size_t> left(3);
    std::vector<std::size_t> left_unvouched(3);
    std::atomic<bool> has_vouched{are_gone};
    std::vector<std::thread> threads;
    threads.reserve(3);
    for (std::size_t rank = 0; rank < 3; ++rank)
      threads.emplace_back([&, rank] {
        participant& me = *all[rank];
        const auto& first = agreement_board::at(me.boards->boards()[0]);
        while (rank != 0 && first.revised.value() == 0) {
          static_cast<void>(me.members->state(rank_id{0}));
          std::this_thread::yield();
        }
        std::vector<rank_id> vouched;
        try {
          left[rank] = me.agreement.agree(me.view, patience(), patience()).members().size();
          if (!has_vouched) left_unvouched[rank] = left[rank];
          return;
        } catch (const peerbus::error& problem) {
          codes[rank] = problem.code();
        }
        for (std::size_t gone = 3; gone < n; ++gone) vouched.emplace_back(gone);
        has_vouched = true;
        left[rank] = me.agreement.agree(me.view, patience(), patience(), vouched).members().size();
      });
    for (auto& thread : threads) thread.join();
    for (std::size_t rank = 0; rank < 3; ++rank) {
      CAPTURE(rank);
      CHECK(codes[rank] == (are_gone || rank != 0 ? errc::ok : errc::unreachable));
      CHECK(left_unvouched[rank] == 0U);
      CHECK(left[rank] == 3U);
    }
  }
}

TEST_CASE("of ranks that put each other out at the same time one side goes on") {
  // The ranks that each rank names, as bits. In the last two, a side that is too small by itself
  // names ranks of the other, and it may be that neither goes on.
  const std::vector<std::vector<std::size_t>> cases{
      {0b10, 0b01},           {0b010, 0b001, 0},
      {0b100, 0, 0b001},      {0b1100, 0b1100, 0b0011, 0b0011},
      {0b1000, 0, 0, 0b0001}, {0b1010, 0b0101, 0b1010, 0b0101},
      {0b1110, 0, 0, 0b0001}, {0b00110, 0b11001, 0b11001, 0, 0}};
  for (std::size_t number = 0; number < cases.size(); ++number)
    for (const bool leaves : {true, false}) {
      const auto& names = cases[number];
      const std::size_t n = names.size();
      CAPTURE(number);
      CAPTURE(leaves);
      post_office office{n};
      const auto all = participants_of(office);
      std::atomic<bool> have_posted{false};
      std::vector<errc> codes(n, errc::ok);
      std::vector<group_view> views(n, group_view{n});
      std::vector<std::thread> threads;
      threads.reserve(n);
      for (std::size_t rank = 0; rank < n; ++rank) {
        all[rank]->box->close_until(have_posted);
        threads.emplace_back([&, rank] {
          participant& me = *all[rank];
          std::vector<rank_id> named;
          for (std::size_t other = 0; other < n; ++other)
            if ((names[rank] >> other & 1U) != 0) named.emplace_back(other);
          try {
            views[rank] = me.agreement.agree(me.view, patience(), patience(), named);
          } catch (const peerbus::error& problem) {
            codes[rank] = problem.code();
            if (leaves) me.box->end(peerbus::rank_state::left);
          }
        });
      }
      for (std::size_t rank = 0; rank < n; ++rank)
        while (names[rank] != 0 &&
               agreement_board::at(all[rank]->boards->boards()[rank]).revised.value() == 0)
          std::this_thread::yield();
      have_posted = true;
      for (auto& thread : threads) thread.join();
      std::vector<rank_id> winners;
      for (std::size_t rank = 0; rank < n; ++rank)
        if (codes[rank] == errc::ok) winners.emplace_back(rank);
      if (number + 2 < cases.size()) CHECK(!winners.empty());
      for (std::size_t rank = 0; rank < n; ++rank) {
        CAPTURE(rank);
        if (codes[rank] != errc::ok) {
          CHECK(codes[rank] == errc::view_changed);
          continue;
        }
        CHECK(views[rank].number() == 1);
        const auto members = views[rank].members();
        CHECK(std::vector<rank_id>(members.begin(), members.end()) == winners);
      }
    }
}

TEST_CASE("half without its first rank waits until the others answer or end") {
  for (const bool answers : {true, false}) {
    CAPTURE(answers);
    post_office office{2};
    const auto all = participants_of(office);
    participant& first = *all[0];
    participant& second = *all[1];
    std::atomic<bool> runs{false};
    first.box->close_until(runs);
    const std::vector<rank_id> named{rank_id{0}};
    const auto code_of = [](auto call) {
      try {
        call();
      } catch (const peerbus::error& problem) {
        return problem.code();
      }
      return errc::ok;
    };
    const auto soon = [] { return deadline::after(std::chrono::milliseconds{20}); };
    for (int repeat = 0; repeat < 2; ++repeat)
      CHECK(code_of([&] {
              static_cast<void>(second.agreement.agree(second.view, soon(), soon(), named));
            }) == errc::unreachable);
    runs = true;
    if (answers)
      for (const bool names : {false, true})  // It has said so, and puts nobody out any more.
        CHECK(code_of([&] {
                const std::vector<rank_id> others(names ? 1 : 0, rank_id{1});
                static_cast<void>(
                    first.agreement.agree(first.view, patience(), patience(), others));
              }) == errc::view_changed);
    else
      first.box->end();
    const auto next = second.agreement.agree(second.view, patience(), patience());
    CHECK(next.number() == 1);
    CHECK((next.members().size() == 1 && next.contains(rank_id{1})));
  }
}

TEST_CASE("ranks that are vouched to be gone are not doubted") {
  constexpr std::size_t n = 4;
  post_office office{n};
  participant me{office, 1};
  me.box->lose(0b1101);
  const std::vector<rank_id> others{rank_id{0}, rank_id{2}, rank_id{3}};
  CHECK(me.agreement.agree(me.view, patience(), patience(), others).members().size() == 1);
}

TEST_CASE("both contributions that another rank may lack are told") {
  constexpr std::size_t n = 3;
  post_office office{n};
  const auto all = participants_of(office);
  std::vector<std::string> got(n);
  std::vector<std::vector<errc>> codes(n);
  std::vector<std::thread> threads;
  threads.reserve(n);
  for (std::size_t rank = 0; rank < n; ++rank)
    threads.emplace_back([&, rank] {
      participant& me = *all[rank];
      for (std::size_t round = 0; round < 4; ++round) {
        // The last two contributions of rank 2 reach rank 0 alone.
        if (rank == 2 && round == 2) me.box->limit(0b001);
        const bool is_last = rank == 2 && round == 3;
        std::string letters;
        codes[rank].push_back(
            me.gather(round, is_last ? deadline::after({}) : patience(), letters));
        got[rank] += letters;
      }
      if (rank == 2) me.box->end();
    });
  for (auto& thread : threads) thread.join();
  for (std::size_t rank = 0; rank < 2; ++rank) {
    CHECK(codes[rank] == std::vector<errc>(4, errc::ok));
    CHECK(got[rank] == "abcbcdcdedef");
  }
}

TEST_CASE("who has left without the news of an end is not waited for") {
  constexpr std::size_t n = 3;
  post_office office{n};
  const auto all = participants_of(office);
  std::string got;
  // Rank 2 ends without a contribution, which rank 1 learns, and rank 0 never.
  CHECK(all[0]->gather(0, deadline::after({}), got) == errc::timed_out);
  all[0]->boards.reset();
  office.send(1, {rank_id{2}, std::nullopt});
  CHECK(all[1]->gather(0, patience(), got) == errc::peer_dead);
}

TEST_CASE("a contribution is told once, with its size, and only to ranks that may lack it") {
  constexpr std::size_t n = 4;
  post_office office{n};
  const auto all = participants_of(office);
  // Returns the sizes of what rank 0 sends to rank 1.
  const auto sizes_when = [&](auto&& event) {
    static_cast<void>(office.take(1));
    event();
    const auto arrived = office.take(1);
    std::vector<std::size_t> sizes;
    sizes.reserve(arrived.size());
    for (const auto& sent : arrived) sizes.push_back(sent.message ? sent.message->size() : 0);
    return sizes;
  };
  const auto end_of = [&](std::size_t rank) {
    return sizes_when([&] {
      office.send(0, {rank_id{rank}, std::nullopt});
      static_cast<void>(all[0]->members->state(rank_id{rank}));
    });
  };
  using list = std::vector<std::size_t>;
  SUBCASE("after a gather") {
    std::vector<std::thread> threads;
    threads.reserve(n);
    for (std::size_t rank = 0; rank < n; ++rank)
      threads.emplace_back([&, rank] {
        std::string got;
        CHECK(all[rank]->gather(0, patience(), got) == errc::ok);
      });
    for (auto& thread : threads) thread.join();
    CHECK(end_of(3) == list{33, 32});
    CHECK(end_of(2) == list{33, 32});
  }
  SUBCASE("before any") { CHECK(end_of(3) == list{32}); }
  SUBCASE("with ranks that have left") {
    for (std::size_t rank = 1; rank < n; ++rank) all[rank]->boards.reset();
  }
  CHECK(sizes_when([&] { all[0]->boards.reset(); }) == list{32});
}

TEST_CASE("what another tells ends the wait for those that have told nothing") {
  constexpr std::size_t n = 4;
  post_office office{n};
  const auto all = participants_of(office);
  std::string got;
  all[3]->box->limit(0b0001);  // Its contribution reaches rank 0 alone.
  for (const std::size_t rank : {3U, 0U, 2U})
    static_cast<void>(all[rank]->gather(0, deadline::after({}), got));
  // Rank 1 has all but that contribution, so that it learns of the end as it waits for it.
  static_cast<void>(all[1]->members->state(rank_id{3}));
  office.send(1, {rank_id{3}, std::nullopt});
  errc code = errc::ok;
  std::thread one{[&] { code = all[1]->gather(0, patience(), got); }};
  while (!all[0]->boards->has_told(rank_id{1}, rank_id{3})) {
    static_cast<void>(all[0]->members->state(rank_id{3}));
    std::this_thread::yield();
  }
  // Rank 2 does not learn of the end. Rank 0 does, or takes it from rank 2, who has it from others.
  SUBCASE("who has seen the end") {
    office.send(0, {rank_id{3}, std::nullopt});
    static_cast<void>(all[0]->members->state(rank_id{3}));
  }
  SUBCASE("who goes on without that rank") {
    std::vector<std::byte> set(32 + 16);
    const std::uint64_t words[6] = {1, 1, 0, 0, 0b1000, 0};
    std::memcpy(set.data(), words, sizeof words);
    all[0]->boards->take(rank_id{2}, set);
    CHECK_THROWS_AS(static_cast<void>(all[0]->agreement.agree(all[0]->view, deadline::after({}),
                                                              deadline::after({}))),
                    peerbus::error);
  }
  one.join();
  CHECK(code == errc::ok);
  CHECK(got == "abcd");
  CHECK_FALSE(all[1]->boards->has_told(rank_id{2}, rank_id{3}));
}

TEST_CASE("who names itself among the ranks that are gone is out, by its own word") {
  constexpr std::size_t n = 3;
  post_office office{n};
  const auto all = participants_of(office);
  // No rank does so by a call, which refuses its own rank.
  std::vector<std::byte> set(32 + 16);
  const std::uint64_t words[6] = {1, 1, 0, 0, 0b010, 0};
  std::memcpy(set.data(), words, sizeof words);
  std::vector<group_view> views(n, group_view{n});
  std::vector<std::thread> threads;
  threads.reserve(2);
  for (const std::size_t rank : {0U, 2U}) {
    all[rank]->boards->take(rank_id{1}, set);
    CHECK(all[rank]->members->health(std::nullopt) == errc::peer_dead);
    CHECK(all[rank]->members->first_failed() == rank_id{1});
    threads.emplace_back([&, rank] {
      participant& me = *all[rank];
      views[rank] = me.agreement.agree(me.view, patience(), patience());
    });
  }
  for (auto& thread : threads) thread.join();
  for (const std::size_t rank : {0U, 2U}) {
    CAPTURE(rank);
    CHECK(views[rank].members().size() == 2);
    CHECK_FALSE(views[rank].contains(rank_id{1}));
  }
}

TEST_CASE("messages that do not belong to a board are dropped") {
  post_office office{3};
  participant me{office, 0};
  const auto& board = agreement_board::at(me.boards->boards()[1]);
  const auto post = [&](std::uint64_t kind, std::uint64_t count, std::uint64_t what,
                        std::uint64_t owner, std::size_t bytes) {
    std::vector<std::byte> message(32 + bytes, std::byte{5});
    const std::uint64_t head[4] = {kind, count, what, owner};
    std::memcpy(message.data(), head, sizeof head);
    me.boards->take(rank_id{1}, message);
  };
  post(1, 0, 7, 0, 16);    // Not a later revision.
  post(1, 1, 7, 0, 17);    // Too many bits.
  post(1, 1, 7, 0, 8);     // Too few.
  post(1, 1, 7, 0, 0);     // None.
  post(2, 1, 7, 0, 1025);  // Too long a contribution.
  post(3, 1, 7, 3, 8);     // Of no rank.
  post(3, 1, 7, 0, 8);     // Of the reader itself.
  post(4, 0, 0, 3, 0);     // Of no rank.
  post(6, 1, 7, 0, 8);     // Of no kind.
  post(2, 2, 7, 0, 8);     // Not the next contribution.
  post(3, 2, 7, 2, 8);
  post(3, ~std::uint64_t{0}, 7, 2, 8);
  post(3, (std::uint64_t{3} << 32) + 1, 7, 2, 8);  // Of no view that three ranks can have.
  post(3, (std::uint64_t{2} << 32) + 2, 7, 2, 8);  // Not the first of its view.
  me.boards->take(rank_id{1}, std::vector<std::byte>(31));
  CHECK(board.revised.value() == 0);
  CHECK(board.gathered.value() == 0);
  CHECK(agreement_board::at(me.boards->boards()[0]).gathered.value() == 0);
  CHECK_FALSE(me.boards->has_told(rank_id{1}, rank_id{2}));
  CHECK(agreement_board::at(me.boards->boards()[2]).gathered.value() == 0);
  post(1, 1, 7, 0, 16);
  CHECK(board.revised.value() == 1);
  CHECK(board.view.load() == 7);
  CHECK(board.gone()[0].load() == 0x0505'0505'0505'0505U);
  CHECK(board.gone()[1].load() == 0x0505'0505'0505'0505U);
  post(1, 3, 8, 0, 16);  // The second could not be posted.
  CHECK(board.revised.value() == 3);
  CHECK(board.view.load() == 8);
  post(2, 1, 7, 0, 1024);
  post(2, 1, 8, 0, 1);  // Behind.
  CHECK(board.gathered.value() == 1);
  CHECK(board.given[1].what.load() == 7);
  CHECK(board.given[1].size == 1024);
  CHECK(board.given[1].bytes[1023] == std::byte{5});
  // What rank 1 had of rank 2.
  post(3, 1, 9, 2, 1024);
  const auto& of_2 = agreement_board::at(me.boards->boards()[2]);
  CHECK(of_2.gathered.value() == 1);
  post(3, (std::uint64_t{2} << 32) + 1, 9, 2, 8);
  CHECK(of_2.gathered.value() == (std::uint64_t{2} << 32) + 1);
  CHECK_FALSE(me.boards->has_told(rank_id{1}, rank_id{2}));
  post(4, 0, 0, 2, 0);
  CHECK(me.boards->has_told(rank_id{1}, rank_id{2}));
  CHECK(board.gathered.value() == 1);
  CHECK_FALSE(me.boards->has_told(rank_id{1}, rank_id{0}));
  post(5, 0, 0, 0, 0);
  CHECK(me.boards->has_told(rank_id{1}, rank_id{0}));
}

TEST_CASE("who hears that another gave somebody up waits no more, until it goes on itself") {
  post_office office{3};
  const auto all = participants_of(office);
  participant& me = *all[0];
  const std::vector<std::uint64_t> of_2{4, 0};  // Rank 2 is gone; nobody is doubtful.
  const std::vector<std::uint64_t> of_me{1, 0};
  const auto expect_gone = [&](std::optional<rank_id> gone) {
    CHECK(me.members->health(rank_id{1}) == (gone ? errc::peer_dead : errc::ok));
    CHECK(me.members->first_failed() == gone);
    CHECK(me.members->describe_missing().empty() == !gone);
  };
  expect_gone({});
  all[1]->boards->post_set(1, 0, of_2);
  expect_gone(rank_id{2});
  CHECK(me.members->state(rank_id{2}) == peerbus::rank_state::running);
  CHECK(me.members->describe_missing() == "rank 2 was given up by another");
  CHECK(me.members->fate(rank_id{2}) == "rank 2 was given up by another");
  me.members->exclude(rank_id{2});
  expect_gone({});
  all[2]->boards->post_set(1, 0, of_me);  // From one that is out itself, as it may not know yet.
  expect_gone({});
  all[1]->boards->post_set(2, 0, of_me);
  expect_gone(rank_id{0});
}

}  // namespace posted_boards_test
