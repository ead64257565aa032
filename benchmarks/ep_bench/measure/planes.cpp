// SPDX-License-Identifier: MIT
#include <peerbus/moe/layout.hpp>

#include "ep_bench/measure/all_codecs.hpp"
#include "support/join_hosts.hpp"
#if PEERBUS_BENCH_FABRIC
#include <peerbus/transport/fabric.hpp>
#endif
#if PEERBUS_BENCH_VERBS
#include <peerbus/transport/verbs.hpp>
#endif

namespace ep_bench {

#if PEERBUS_BENCH_FABRIC
using over_fabric = bench::hosts_over<peerbus::fabric>;
template outcome measure<over_fabric, peerbus::moe::compact>(peerbus::communicator<over_fabric>&,
                                                             const options&, lane_pool&,
                                                             std::size_t);
template outcome measure<over_fabric, peerbus::moe::padded>(peerbus::communicator<over_fabric>&,
                                                            const options&, lane_pool&,
                                                            std::size_t);
template outcome measure<over_fabric, peerbus::moe::rank_major>(peerbus::communicator<over_fabric>&,
                                                                const options&, lane_pool&,
                                                                std::size_t);
template outcome measure<over_fabric, peerbus::moe::slots>(peerbus::communicator<over_fabric>&,
                                                           const options&, lane_pool&, std::size_t);
template outcome measure<over_fabric, peerbus::moe::expert_slots>(
    peerbus::communicator<over_fabric>&, const options&, lane_pool&, std::size_t);
template outcome measure<over_fabric, peerbus::moe::automatic>(peerbus::communicator<over_fabric>&,
                                                               const options&, lane_pool&,
                                                               std::size_t);
#endif

#if PEERBUS_BENCH_VERBS
using over_verbs = bench::hosts_over<peerbus::verbs>;
template outcome measure<over_verbs, peerbus::moe::compact>(peerbus::communicator<over_verbs>&,
                                                            const options&, lane_pool&,
                                                            std::size_t);
template outcome measure<over_verbs, peerbus::moe::padded>(peerbus::communicator<over_verbs>&,
                                                           const options&, lane_pool&, std::size_t);
template outcome measure<over_verbs, peerbus::moe::rank_major>(peerbus::communicator<over_verbs>&,
                                                               const options&, lane_pool&,
                                                               std::size_t);
template outcome measure<over_verbs, peerbus::moe::slots>(peerbus::communicator<over_verbs>&,
                                                          const options&, lane_pool&, std::size_t);
template outcome measure<over_verbs, peerbus::moe::expert_slots>(peerbus::communicator<over_verbs>&,
                                                                 const options&, lane_pool&,
                                                                 std::size_t);
template outcome measure<over_verbs, peerbus::moe::automatic>(peerbus::communicator<over_verbs>&,
                                                              const options&, lane_pool&,
                                                              std::size_t);
#endif

}  // namespace ep_bench
