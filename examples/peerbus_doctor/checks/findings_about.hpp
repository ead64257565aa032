// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "finding.hpp"

namespace peerbus_doctor {

/// The findings about one topic, in the order in which they are made.
class findings_about {
 public:
  findings_about(std::vector<finding>& all, std::string topic)
      : all_{all}, topic_{std::move(topic)} {}

  void ok(std::string text) { add(level::ok, std::move(text), {}); }
  void note(std::string text, std::string remedy) {
    add(level::note, std::move(text), std::move(remedy));
  }
  void warning(std::string text, std::string remedy) {
    add(level::warning, std::move(text), std::move(remedy));
  }
  void problem(std::string text, std::string remedy) {
    add(level::problem, std::move(text), std::move(remedy));
  }

 private:
  void add(level grade, std::string text, std::string remedy) {
    all_.push_back({grade, topic_, std::move(text), std::move(remedy), {}});
  }

  std::vector<finding>& all_;
  std::string topic_;
};

}  // namespace peerbus_doctor
