// SPDX-License-Identifier: MIT
#pragma once

// What most examples and benchmarks include, parsed once. They name what they use all the same:
// other builds parse them without this.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/environment.hpp>
#include <peerbus/peerbus.hpp>
#include <peerbus/transport/any_transport.hpp>
