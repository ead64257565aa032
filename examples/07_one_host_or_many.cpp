// SPDX-License-Identifier: MIT
// A dispatch and a combine in which neighbours share memory and ranks of different hosts talk over
// the network. It runs unchanged
//   - alone: as four processes on this machine, which pretend to be two hosts of two;
//   - on one host: mpirun -n 4 ./07_one_host_or_many
//   - on several: mpirun -n 4 -H one:2,other:2 -x MASTER_ADDR=one -x PEERBUS_SECRET=... with it, or
//     any other launcher that sets a rank, a world size, MASTER_ADDR and MASTER_PORT.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include <peerbus/bootstrap/environment.hpp>
#include <peerbus/bootstrap/tcp.hpp>
#include <peerbus/peerbus.hpp>
#include <peerbus/transport/fabric.hpp>
#include <peerbus/transport/planes.hpp>

namespace {

using peerbus::bf16;
using two_planes = peerbus::planes<peerbus::unified_bus, peerbus::fabric>;

constexpr std::size_t count = 16, hidden = 64, top_k = 2, experts_per_rank = 4;

// Returns what an expert multiplies a token by. Its products and their sums are exact in bf16.
float factor(std::size_t expert) { return expert % 2 == 0 ? 1.0F : -3.0F; }

std::size_t expert_of(std::size_t rank, std::size_t token, std::size_t k, std::size_t experts) {
  return (rank + token * 3 + k * (1 + experts / 2)) % experts;
}

std::string host_name() {
  std::string name(256, '\0');
  if (::gethostname(name.data(), name.size() - 1) != 0) return "unknown host";
  return name.substr(0, name.find('\0'));
}

// One rank's part. `group` names the host that it pretends to be on; if it is empty, ranks of a
// host find each other. Returns the exit status.
int work(peerbus::bootstrap& boot, const std::string& group) {
  peerbus::communicator comm{two_planes{boot, {.group = group}}};
  const std::size_t me = comm.rank().index(), experts = comm.size() * experts_per_rank;
  peerbus::moe::exchange moe{
      comm,
      {.experts = experts, .hidden = hidden, .top_k = top_k, .max_tokens = count},
      peerbus::codec::bf16{}};

  std::vector<bf16> tokens(count * hidden), out(tokens.size());
  for (std::size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = bf16{static_cast<float>((i + me) % 31)};
  std::vector<std::int32_t> chosen(count * top_k);
  const std::vector<float> weights(chosen.size(), 0.5F);
  for (std::size_t i = 0; i < chosen.size(); ++i)
    chosen[i] = static_cast<std::int32_t>(expert_of(me, i / top_k, i % top_k, experts));

  auto received = moe.dispatch(tokens, {chosen, weights});
  for (auto& expert : received.experts())
    for (std::size_t row = 0; row < expert.count(); ++row) {
      std::vector<float> x(hidden);
      expert.decode(row, x);
      for (std::size_t c = 0; c < hidden; ++c)
        expert.output(row)[c] = bf16{factor(expert.id()) * x[c]};
    }
  moe.combine(received, out);

  std::string near;
  for (const peerbus::rank_id rank : comm.bus().near_ranks())
    near += (near.empty() ? "" : ", ") + std::to_string(rank.index());
  const peerbus::plane_traffic far = comm.bus().far_traffic();
  std::printf(
      "rank %zu of %zu on %s: shares memory with %s; to the others %zu bytes in %zu messages\n", me,
      comm.size(), (group.empty() ? host_name() : group).c_str(), near.c_str(),
      static_cast<std::size_t>(far.bytes), static_cast<std::size_t>(far.messages));

  for (std::size_t i = 0; i < out.size(); ++i) {
    float factors = 0;
    for (std::size_t k = 0; k < top_k; ++k)
      factors += 0.5F * factor(expert_of(me, i / hidden, k, experts));
    if (static_cast<float>(out[i]) != factors * static_cast<float>(tokens[i])) {
      std::fprintf(stderr, "rank %zu: token %zu came back wrong\n", me, i / hidden);
      return 1;
    }
  }
  return 0;
}

}  // namespace

int main() try {
  if (peerbus::environment_bootstrap::launched()) {
    peerbus::tcp_bootstrap boot = peerbus::tcp_bootstrap::from_environment();
    return work(boot, "");
  }
  return peerbus::run_local(4, [](peerbus::bootstrap& boot) {
    return work(boot, boot.rank().index() < 2 ? "host A" : "host B");
  });
} catch (const std::exception& problem) {
  std::fprintf(stderr, "07_one_host_or_many: %s\n", problem.what());
  return 1;
}
