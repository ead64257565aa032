// SPDX-License-Identifier: MIT
#pragma once

#include <pmix.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>

#include <peerbus/bootstrap/detail/os.hpp>
#include <peerbus/core/deadline.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>

namespace peerbus::detail {

struct pmix_delete {
  void operator()(pmix_value_t* owned) const noexcept { PMIX_VALUE_RELEASE(owned); }
};
using pmix_value = std::unique_ptr<pmix_value_t, pmix_delete>;

/// The job of a process, as PMIx knows it.
class pmix_job {
 public:
  /// Checks that PMIx is running.
  /// Throws: `error` invalid_argument, system.
  explicit pmix_job(const pmix_proc_t& self) : self_{self} {
    if (::PMIx_Initialized() == 0)
      throw bad(
          "PMIx is not initialised, expected a call after PMIx_Init and before "
          "PMIx_Finalize");
    size_ = number(PMIX_JOB_SIZE);
    if (self.rank >= size_)
      throw bad(concat("rank ", self.rank, " of a job of ", size_,
                       " was given, expected the process that PMIx_Init returned"));
  }

  [[nodiscard]] std::size_t rank() const noexcept { return self_.rank; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::string name() const { return self_.nspace; }
  /// Returns whether PMIx has all ranks of the job on one node.
  /// Throws: `error` system.
  [[nodiscard]] bool is_one_host() const { return number(PMIX_LOCAL_SIZE) == size_; }

  /// Gives `text` of rank 0 to all ranks under `key`. Called by rank 0.
  /// Throws: `error` invalid_argument if rank 0 has already used `key`; system.
  void publish(const std::string& key, std::string text) const {
    const auto of_this_process = PMIX_OPTIONAL;
    if (get(self_, key, of_this_process, true, PMIX_BOOL).code == PMIX_SUCCESS)
      throw bad(concat("a group '", key, "' was made in this job before, expected another name"));
    pmix_value_t value{};
    value.type = PMIX_STRING;
    value.data.string = text.data();
    require(::PMIx_Put(PMIX_GLOBAL, key.c_str(), &value), "putting the meeting place");
    require(::PMIx_Commit(), "committing the meeting place");
  }
  /// Waits until rank 0 has published a text and returns it.
  /// Throws: `error` timed_out, system.
  [[nodiscard]] std::string take(const std::string& key, deadline until) const {
    const auto span = until.remaining();
    const auto whole = std::chrono::ceil<std::chrono::seconds>(span).count();
    // PMIx counts in whole seconds, and 0 stands for no limit.
    const int seconds =
        whole > std::numeric_limits<int>::max() ? 0 : std::max(1, static_cast<int>(whole));
    // PMIx waits for a rank that has published nothing. If rank 0 has made other groups before,
    // PMIx answers at once, so this rank asks again.
    auto found = get(member(0), key, PMIX_TIMEOUT, seconds, PMIX_INT);
    for (; found.code == PMIX_ERR_NOT_FOUND && !until.expired();
         found = get(member(0), key, PMIX_TIMEOUT, seconds, PMIX_INT))
      poll_for({}, until, std::chrono::milliseconds{10});
    if (found.code == PMIX_ERR_TIMEOUT || found.code == PMIX_ERR_NOT_FOUND)
      throw error{errc::timed_out, concat("rank 0 of ", size_, " of the job ", name(),
                                          " did not call pmix_bootstrap for the group '", key,
                                          "' within ", describe_span(span),
                                          "; expected the same name of the group on all ranks")};
    require(found.code, "getting the meeting place of rank 0");
    require_type(*found.value, PMIX_STRING, key);
    return found.value->data.string;
  }

 private:
  struct answer {
    pmix_status_t code;
    pmix_value value;
  };

  [[nodiscard]] static error bad(std::string_view text) {
    return error{errc::invalid_argument, concat("pmix_bootstrap: ", text)};
  }
  static void require(pmix_status_t code, std::string_view doing) {
    if (code != PMIX_SUCCESS)
      throw error{errc::system, concat("PMIx failed at ", doing, ": ", ::PMIx_Error_string(code))};
  }
  static void require_type(const pmix_value_t& value, pmix_data_type_t type, std::string_view key) {
    if (value.type != type)
      throw error{errc::system,
                  concat("PMIx gave '", key, "' as ", ::PMIx_Data_type_string(value.type),
                         ", expected ", ::PMIx_Data_type_string(type))};
  }

  [[nodiscard]] pmix_proc_t member(pmix_rank_t rank) const noexcept {
    pmix_proc_t process = self_;
    process.rank = rank;
    return process;
  }

  /// Asks for the value that `process` has for `key`, with one attribute.
  template <class T>
  [[nodiscard]] static answer get(const pmix_proc_t& process, const std::string& key,
                                  const char* attribute, T setting, pmix_data_type_t type) {
    pmix_info_t info;
    PMIX_INFO_LOAD(&info, attribute, &setting, type);
    pmix_value_t* found = nullptr;
    const auto code = ::PMIx_Get(&process, key.c_str(), &info, 1, &found);
    return {code, pmix_value{code == PMIX_SUCCESS ? found : nullptr}};
  }

  /// Returns a number that PMIx has for the whole job.
  [[nodiscard]] std::size_t number(const char* key) const {
    const auto process = member(PMIX_RANK_WILDCARD);
    pmix_value_t* found = nullptr;
    require(::PMIx_Get(&process, key, nullptr, 0, &found), key);
    const pmix_value owner{found};
    require_type(*found, PMIX_UINT32, key);
    return found->data.uint32;
  }

  pmix_proc_t self_;
  std::size_t size_ = 0;
};

}  // namespace peerbus::detail
