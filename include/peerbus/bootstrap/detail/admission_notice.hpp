// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/agreement.hpp>
#include <peerbus/bootstrap/bootstrap.hpp>
#include <peerbus/bootstrap/detail/admission_place.hpp>
#include <peerbus/bootstrap/detail/awaited_members.hpp>
#include <peerbus/bootstrap/detail/offered_place.hpp>
#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/bootstrap/with_vacancies.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/rank.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::detail {

/// A notice to the processes that a running group admits. It names the place where they and the
/// members meet, and the slots of all of them.
struct admission_notice {
  offered_place place;
  /// The slots, in the order in which the ranks meet. The first is the slot of the member that
  /// offers the place.
  std::vector<rank_id> slots;

  /// Encodes the notice. Wire form: the number of slots and the slots, 4 bytes each in the byte
  /// order of the host, then the place.
  [[nodiscard]] std::vector<std::byte> encode() const {
    std::vector<std::uint32_t> numbers;
    numbers.reserve(slots.size() + 1);
    numbers.push_back(static_cast<std::uint32_t>(slots.size()));
    for (const rank_id slot : slots) numbers.push_back(static_cast<std::uint32_t>(slot.index()));
    std::vector<std::byte> bytes;
    append_bytes(bytes, numbers.data(), numbers.size() * sizeof numbers[0]);
    const auto of_place = place.encode();
    append_bytes(bytes, of_place.data(), of_place.size());
    return bytes;
  }

  /// Decodes a notice.
  /// Throws: `error` system if `bytes` are no notice.
  [[nodiscard]] static admission_notice decode(std::span<const std::byte> bytes) {
    std::uint32_t count = 0;
    if (bytes.size() >= sizeof count) std::memcpy(&count, bytes.data(), sizeof count);
    if (count == 0 || (bytes.size() - sizeof count) / sizeof count < count)
      throw error{errc::system, concat("the group that takes in this process named its ranks in ",
                                       bytes.size(), " bytes, expected more")};
    std::vector<std::uint32_t> numbers(count);
    std::memcpy(numbers.data(), &bytes[sizeof count], count * sizeof count);
    return {offered_place::decode(bytes.subspan((1 + std::size_t{count}) * sizeof count)),
            {numbers.begin(), numbers.end()}};
  }

  /// Collective: makes the bootstrap of the ranks that meet by this notice. The caller has `slot`
  /// of `capacity` slots. `awaited` are numbered in the order of the notice.
  /// Throws: `error` as `admission_place::meet` and `with_vacancies`; system if the notice does not
  /// name `slot`.
  [[nodiscard]] std::unique_ptr<bootstrap> meet(const admission_place& by, rank_id slot,
                                                std::size_t capacity,
                                                const awaited_members& awaited,
                                                deadline until) const {
    const auto found = std::find(slots.begin(), slots.end(), slot);
    if (found == slots.end())
      throw error{errc::system, concat("the group that was to take in ", slot, " named ",
                                       describe_ranks(slots), ", expected it among them")};
    const auto member = static_cast<std::size_t>(found - slots.begin());
    return with_vacancies(by.meet(place, rank_id{member}, slots.size(), awaited, until), slots,
                          capacity, until);
  }
};

}  // namespace peerbus::detail
