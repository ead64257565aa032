// SPDX-License-Identifier: MIT
#pragma once

// What most test files include, parsed once. Test files name what they use all the same.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/bootstrap/environment.hpp>

#include "support/instances.hpp"
#include "support/oracle.hpp"
#include "support/ranks.hpp"
