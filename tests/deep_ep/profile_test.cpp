// SPDX-License-Identifier: MIT
#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include <peerbus/compat/cann/attention_apart.hpp>
#include <peerbus/compat/deep_ep/call.hpp>
#include <peerbus/compat/deep_ep/finding.hpp>
#include <peerbus/compat/deep_ep/profile.hpp>
#include <peerbus/compat/deep_ep/variables.hpp>
#include <peerbus/core/error.hpp>
#include <peerbus/core/text.hpp>

namespace profile_test {

using peerbus::deep_ep::call;
using peerbus::deep_ep::comm_algorithm;
using peerbus::deep_ep::element_type;
using peerbus::deep_ep::examine;
using peerbus::deep_ep::finding;
using peerbus::deep_ep::finding_kind;
using peerbus::deep_ep::fits;
using peerbus::deep_ep::for_each_variable;
using peerbus::deep_ep::operation;
using peerbus::deep_ep::profile;
using peerbus::deep_ep::required_environment;
using peerbus::deep_ep::variable;
using peerbus::detail::concat;

namespace {

constexpr profile peer = profile::unrestricted;
constexpr profile v1 = profile::deepep_v1;
constexpr profile a2 = profile::ascend_a2;
constexpr profile a3 = profile::ascend_a3;
constexpr operation nd = operation::normal_dispatch;
constexpr operation nc = operation::normal_combine;
constexpr operation ld = operation::low_latency_dispatch;
constexpr operation lc = operation::low_latency_combine;
constexpr profile v2_5 = profile::deepep_v2_5;
constexpr profile a950 = profile::ascend_950;
constexpr operation ed = operation::ep_dispatch;
constexpr operation ec = operation::ep_combine;
constexpr operation bg = operation::bucket_all_gather;
constexpr operation bs = operation::bucket_reduce_scatter;
constexpr operation br = operation::bucket_all_reduce;
constexpr operation pw = operation::ep_prefetch_weights;
constexpr profile buffer_profiles[] = {peer, v1, a2, a3};
constexpr profile ep_profiles[] = {peer, v2_5, a950};

/// A call that every platform takes, as long as it is not changed.
constexpr call usual(profile platform, operation what) {
  call c;
  c.what = what;
  c.ranks = platform == a3 ? 16 : 8;
  c.tokens = 128;
  c.max_tokens = 128;
  c.hidden = 7168;
  c.top_k = 8;
  c.experts = platform == a2 ? 64 : 256;
  if (platform == a2 || platform == a3) c.environment.hccl_buffsize_mb = 100000;
  c.do_expand = platform == a950;
  c.tensors = 2;
  c.tensor_bytes = 512;
  return c;
}

std::vector<std::string> names(profile platform, const call& c, finding_kind kind) {
  std::vector<std::string> found;
  examine(platform, c, [&](const finding& f) {
    if (f.kind == kind) found.emplace_back(f.what);
  });
  return found;
}

std::string refusal(profile platform, const call& c) {
  try {
    peerbus::deep_ep::require(platform, c);
  } catch (const peerbus::error& e) {
    CHECK(e.code() == peerbus::errc::invalid_argument);
    return std::string{e.text()};
  }
  return "";
}

/// A limit: a value just inside, one just outside, and the one thing said of it.
struct edge {
  profile platform;
  operation what;
  void (*set)(call&, std::size_t);
  std::size_t inside;
  std::size_t outside;
  std::string_view said;    ///< "<limit> is <value>, expected <limit's value>"
  std::string_view advice;  ///< part of what to change
};

void check_edge(const edge& e) {
  CAPTURE(e.said);
  CAPTURE(to_string(e.platform));
  CAPTURE(to_string(e.what));
  call inside = usual(e.platform, e.what);
  e.set(inside, e.inside);
  CHECK(refusal(e.platform, inside) == "");
  CHECK(fits(e.platform, inside));

  call outside = usual(e.platform, e.what);
  e.set(outside, e.outside);
  CHECK_FALSE(fits(e.platform, outside));
  const std::string text = refusal(e.platform, outside);
  CAPTURE(text);
  const std::string start = std::string{to_string(e.platform)} + " refuses " +
                            std::string{to_string(e.what)} + ": " + std::string{e.said} + ": ";
  CHECK(text.starts_with(start));
  REQUIRE(text.size() > start.size());
  const std::string advice = text.substr(start.size());
  CHECK(advice.find(e.advice) != std::string::npos);
  CHECK(advice.find(", expected ") == std::string::npos);  // Nothing else is refused.
}

void check_edges(const std::vector<edge>& edges) {
  for (const edge& e : edges) check_edge(e);
}

void set_ranks(call& c, std::size_t ranks) {
  c.ranks = ranks;
  c.experts = 2 * ranks;
  c.top_k = 2;
}
void set_tokens(call& c, std::size_t tokens) { c.tokens = tokens; }
void set_max_tokens(call& c, std::size_t tokens) { c.max_tokens = tokens; }
void set_hidden(call& c, std::size_t hidden) { c.hidden = hidden; }
void set_fp8_hidden(call& c, std::size_t hidden) {
  c.hidden = hidden;
  c.use_fp8 = true;
}
void set_fp8_row(call& c, std::size_t hidden) {
  c.hidden = hidden;
  c.dtype = element_type::fp8_e4m3;
}
void set_top_k(call& c, std::size_t top_k) { c.top_k = top_k; }
void set_experts(call& c, std::size_t experts) { c.experts = experts; }
void set_dtype(call& c, std::size_t type) { c.dtype = static_cast<element_type>(type); }
void set_alignment(call& c, std::size_t alignment) { c.expert_alignment = alignment; }
void set_worst_tokens(call& c, std::size_t tokens) { c.num_worst_tokens = tokens; }
void set_hook_and_finish(call& c, std::size_t on) {
  c.return_recv_hook = true;
  c.async_finish = on != 0;
}
void set_dropped(call& c, std::size_t on) { c.dropped = on != 0; }
void set_algorithm(call& c, std::size_t algorithm) {
  c.algorithm = static_cast<comm_algorithm>(algorithm);
}
void set_hccl(call& c, std::size_t mb) { c.environment.hccl_buffsize_mb = mb; }

template <bool call::* Option>
void set_option(call& c, std::size_t on) {
  c.*Option = on != 0;
}

constexpr auto bf16 = static_cast<std::size_t>(element_type::bf16);
constexpr auto fp8 = static_cast<std::size_t>(element_type::fp8_e4m3);
constexpr auto other = static_cast<std::size_t>(element_type::other);
constexpr auto automatic = static_cast<std::size_t>(comm_algorithm::automatic);
constexpr auto fullmesh_v1 = static_cast<std::size_t>(comm_algorithm::fullmesh_v1);
constexpr auto fullmesh_v2 = static_cast<std::size_t>(comm_algorithm::fullmesh_v2);
constexpr auto fullmesh = static_cast<std::size_t>(comm_algorithm::fullmesh);
constexpr auto hierarchy = static_cast<std::size_t>(comm_algorithm::hierarchy);

// It can be computed by the compiler, so it allocates nothing that it keeps.
static_assert(fits(v1, usual(v1, ld)) && fits(a2, usual(a2, lc)) && fits(a3, usual(a3, nd)));
static_assert(!fits(a3, call{}));

}  // namespace

TEST_CASE("the usual calls fit everywhere") {
  for (const profile platform : buffer_profiles)
    for (const operation what : {nd, nc, ld, lc})
      CHECK(refusal(platform, usual(platform, what)) == "");
  for (const profile platform : ep_profiles)
    for (const operation what : {ed, ec}) CHECK(refusal(platform, usual(platform, what)) == "");
}

TEST_CASE("what no platform can do") {
  std::vector<edge> edges;
  for (const operation what : {nd, nc, ld, lc}) {
    edges.push_back(
        {peer, what, set_ranks, 1, 0, "num_ranks is 0, expected at least 1", "one rank"});
    edges.back().set = [](call& c, std::size_t ranks) { c.ranks = ranks; };
    edges.push_back(
        {peer, what, set_experts, 8, 0, "num_experts is 0, expected at least 1", "expert"});
    edges.push_back(
        {peer, what, set_experts, 8, 7, "num_topk is 8, expected 1 to 7", "add experts"});
    if (what == ld || what == lc)  // The normal mode goes by is_token_in_rank then.
      edges.push_back(
          {peer, what, set_top_k, 1, 0, "num_topk is 0, expected 1 to 256", "num_topk"});
    edges.push_back(
        {peer, what, set_top_k, 32, 33, "num_topk is 33, expected at most 32", "fewer"});
    edges.push_back({peer, what,
                     [](call& c, std::size_t top_k) {
                       c.experts = 1;
                       c.top_k = top_k;
                     },
                     1, 2, "num_topk is 2, expected 1 to 1", "add experts"});
    edges.push_back({peer, what, set_hidden, 8, 0, "hidden is 0, expected at least 1", "channels"});
    edges.push_back(
        {peer, what, set_hidden, 8, 9, "hidden is 9, expected a multiple of 8", "zero"});
  }
  for (const profile platform : buffer_profiles) {
    for (const operation what : {ld, lc}) {
      edges.push_back({platform, what, set_tokens, 128, 129,
                       "num_tokens is 129, expected at most 128",
                       "num_max_dispatch_tokens_per_rank on all ranks to 129"});
      edges.push_back(
          {platform, what, [](call& c, std::size_t tokens) { c.tokens = c.max_tokens = tokens; }, 4,
           0, "num_max_dispatch_tokens_per_rank is 0, expected at least 1", "most tokens"});
      edges.push_back({platform, what, set_dtype, bf16, fp8, "x's type is fp8_e4m3, expected bf16",
                       what == ld ? "use_fp8" : "convert"});
      edges.push_back(
          {platform, what, set_dtype, bf16, other, "x's type is other, expected bf16", "bf16"});
    }
    edges.push_back(
        {platform, nc, set_dtype, bf16, fp8, "x's type is fp8_e4m3, expected bf16", "bf16"});
    edges.push_back(
        {platform, nd, set_alignment, 1, 0, "expert_alignment is 0, expected at least 1", "1"});
  }
  for (const profile platform : {peer, v1}) {
    edges.push_back({platform, nd, set_fp8_row, 7184, 7192,
                     "hidden is 7192, expected a multiple of 16", "zero channels"});
    edges.push_back({platform, ld,
                     [](call& c, std::size_t on) {
                       c.use_fp8 = c.use_ue8m0 = true;
                       c.round_scale = on != 0;
                     },
                     1, 0, "use_ue8m0 is true, expected false", "set round_scale"});
    edges.push_back({platform, ld, set_option<&call::round_scale>, 0, 1,
                     "round_scale is true, which has no effect there, expected false",
                     "set use_fp8"});
    edges.push_back({platform, ld, set_option<&call::use_ue8m0>, 0, 1,
                     "use_ue8m0 is true, which has no effect there, expected false",
                     "set use_fp8"});
  }
  edges.push_back({peer, ld, set_fp8_hidden, 2688, 2689,
                   "hidden is 2689, expected a multiple of 128", "128 channels"});
  edges.push_back({peer, ld, set_fp8_hidden, 128, 1, "hidden is 1, expected a multiple of 128",
                   "128 channels"});
  check_edges(edges);
}

TEST_CASE("the limits of the exchange that carries a call out") {
  constexpr std::string_view most_rows = "4294967296, expected at most 4294967295";
  const std::string slots = concat("num_ranks x tokens of a rank x num_topk is ", most_rows);
  const std::string rows =
      concat("num_ranks x num_max_dispatch_tokens_per_rank x experts of a rank is ", most_rows);
  const auto set_both_tokens = [](call& c, std::size_t tokens) {
    c.tokens = c.max_tokens = tokens;
  };
  std::vector<edge> edges;
  for (const operation what : {nd, nc, ld, lc}) {
    edges.push_back({peer, what, set_ranks, 65535, 65536,
                     "num_ranks is 65536, expected at most 65535", "fewer ranks"});
    edges.push_back({peer, what, set_experts, 1U << 24U, (1U << 24U) + 1,
                     "num_experts is 16777217, expected at most 16777216", "fewer experts"});
    edges.push_back({peer, what, set_hidden, 1U << 24U, (1U << 24U) + 8,
                     "hidden is 16777224, expected at most 16777216", "fewer channels"});
  }
  for (const operation what : {nd, nc})
    edges.push_back({peer, what, set_tokens, (1U << 26U) - 1, 1U << 26U, slots, "fewer tokens"});
  for (const operation what : {ld, lc}) {
    edges.push_back({peer, what, set_both_tokens, (1U << 24U) - 1, 1U << 24U, rows,
                     "num_max_dispatch_tokens_per_rank"});
    edges.push_back({peer, what,
                     [](call& c, std::size_t tokens) {
                       c.tokens = c.max_tokens = tokens;
                       c.ranks = c.experts = 256;
                     },
                     (1U << 21U) - 1, 1U << 21U, slots, "fewer tokens"});
  }
  check_edges(edges);

  call c = usual(peer, ld);
  c.ranks = c.max_tokens = std::size_t{1} << 40U;  // The product does not wrap around.
  CHECK_FALSE(fits(peer, c));
}

TEST_CASE("peerbus itself takes what the platforms refuse") {
  call c = usual(peer, ld);
  c.ranks = 7;
  c.experts = 33;
  c.hidden = 2880;
  c.top_k = 32;
  c.tokens = c.max_tokens = 4099;
  c.dropped = c.return_recv_hook = c.wait_statistics_given = true;
  CHECK(refusal(peer, c) == "");
  c.what = nd;
  c.ranks = 321;
  c.num_worst_tokens = 1 << 20;
  c.cached_handle = true;
  CHECK(refusal(peer, c) == "");
}

TEST_CASE("DeepEP's normal mode") {
  constexpr std::string_view nodes = "16, 24, 32, 48, 64, 96, 128, 144 or 160";
  const std::string far = "num_ranks is 161, expected " + std::string{nodes};
  const std::string five_nodes = "num_ranks is 40, expected " + std::string{nodes};
  for (const operation what : {nd, nc}) {
    check_edges({
        {v1, what, set_ranks, 2, 1, "num_ranks is 1, expected 2, 4 or 8", "numbers of ranks"},
        {v1, what, set_ranks, 4, 3, "num_ranks is 3, expected 2, 4 or 8", "numbers of ranks"},
        {v1, what, set_ranks, 4, 5, "num_ranks is 5, expected 2, 4 or 8", "numbers of ranks"},
        {v1, what, set_ranks, 8, 7, "num_ranks is 7, expected 2, 4 or 8", "numbers of ranks"},
        {v1, what, set_ranks, 160, 161, far, "20 nodes"},
        {v1, what, set_ranks, 48, 40, five_nodes, "nodes of 8"},
        {v1, what,
         [](call& c, std::size_t in_node) {
           set_ranks(c, 16);
           c.ranks_per_node = in_node;
         },
         8, 7, "ranks per node is 7, expected 8", "8 ranks on each node"},
        {v1, what, set_experts, 256, 257, "num_experts is 257, expected a multiple of 8",
         "idle ones up to 264"},
        {v1, what, set_experts, 8192, 8200, "experts per rank is 1025, expected at most 1024",
         "more ranks"},
        {v1, what, set_top_k, 32, 33, "num_topk is 33, expected at most 32", "fewer experts"},
        {v1, what, set_hidden, 7176, 7177, "hidden is 7177, expected a multiple of 8", "16 bytes"},
        {v1, what,
         [](call& c, std::size_t on) {
           c.allocate_on_comm_stream = c.async_finish = true;
           c.previous_event_given = on != 0;
         },
         1, 0, "allocate_on_comm_stream is true, expected false", "previous_event"},
        {v1, what,
         [](call& c, std::size_t on) {
           c.allocate_on_comm_stream = c.previous_event_given = true;
           c.async_finish = on != 0;
         },
         1, 0, "allocate_on_comm_stream is true, expected false", "async_finish"},
    });
    for (const std::size_t ranks :
         std::initializer_list<std::size_t>{2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 144, 160}) {
      call c = usual(v1, what);
      set_ranks(c, ranks);
      CHECK(refusal(v1, c) == "");
    }
  }
  check_edges({{v1, nd,
                [](call& c, std::size_t tokens) {
                  set_ranks(c, 16);
                  c.num_worst_tokens = tokens;
                },
                0, 1, "num_worst_tokens is 1, expected 0", "one node"}});
  call one_node = usual(v1, nd);
  one_node.num_worst_tokens = 1024;
  one_node.cached_handle = one_node.config_given = true;
  CHECK(refusal(v1, one_node) == "");
}

TEST_CASE("rows of other types, where nothing is quantised") {
  for (const profile platform : {a2, a3})
    check_edges({{platform, nd, set_dtype, bf16, other,
                  "x's type is other, expected bf16, or fp8_e4m3 with scales", "bf16"}});
  check_edges({{a950, ed, set_dtype, fp8, other,
                "x's type is other, expected bf16, or fp8_e4m3 with scales", "bf16"}});
  for (const auto& [platform, what] : {std::pair{peer, nd}, {v1, nd}, {peer, ed}, {v2_5, ed}}) {
    call c = usual(platform, what);
    c.dtype = element_type::other;
    CHECK(refusal(platform, c) == "");
    c.what = what == nd ? nc : ec;  // What experts return is added up.
    CHECK(refusal(platform, c).find("x's type is other, expected bf16") != std::string::npos);
  }
}

TEST_CASE("a dispatch without topk_idx") {
  for (const operation what : {nd, nc}) {
    call c = usual(peer, what);
    c.top_k = 0;
    for (const profile platform : {peer, v1}) CHECK(refusal(platform, c) == "");
    for (const profile platform : {a2, a3})
      check_edges({{platform, what, set_top_k, 8, 0, "topk_idx is none, expected given",
                    "topk_idx and topk_weights"}});
    c.what = what == nd ? ed : ec;
    c.do_expand = true;
    for (const profile platform : ep_profiles)
      CHECK(refusal(platform, c).find("num_topk is 0, expected 1 to 256") != std::string::npos);
  }
  check_edges({{v1, nd,
                [](call& c, std::size_t tokens) {
                  c.top_k = 0;
                  c.num_worst_tokens = tokens;
                },
                0, 1, "num_worst_tokens without topk_idx is 1, expected 0", "give topk_idx"}});
}

TEST_CASE("the bytes of DeepEP's Buffer") {
  const auto set_nvl = [](call& c, std::size_t bytes) { c.num_nvl_bytes = bytes; };
  const auto set_rdma = [](call& c, std::size_t bytes) { c.num_rdma_bytes = bytes; };
  const auto set_nvl_of_nodes = [](call& c, std::size_t bytes) {
    set_ranks(c, 16);
    c.num_nvl_bytes = bytes;
  };
  const auto set_rdma_of_nodes = [](call& c, std::size_t bytes) {
    set_ranks(c, 16);
    c.num_rdma_bytes = bytes;
  };
  for (const operation what : {nd, nc}) {
    check_edges({
        {v1, what, set_nvl, 34359738240, 34359738368,
         "num_nvl_bytes is 34359738368, expected at most 34359738240", "smaller chunks"},
        {v1, what, set_nvl, 2000000000, 2000000001,
         "num_nvl_bytes is 2000000001, expected a multiple of 128", "multiple of 128"},
        {v1, what, set_nvl_of_nodes, 2147483520, 2147483648,
         "num_nvl_bytes is 2147483648, expected at most 2147483520", "smaller chunks"},
        // Of a buffer for both modes too.
        {v1, what, set_rdma_of_nodes, 2147483520, 2147483648,
         "num_rdma_bytes is 2147483648, expected at most 2147483520", "low-latency mode"},
        {v1, what,
         [](call& c, std::size_t bytes) {
           c.num_rdma_bytes = bytes;
           c.no_low_latency_mode = true;
         },
         0, 128, "num_rdma_bytes is 128, expected 0", "leave it out"},
        {v1, what,
         [](call& c, std::size_t on) {
           c.num_rdma_bytes = 1024;
           c.no_low_latency_mode = on != 0;
         },
         0, 1, "num_rdma_bytes is 1024, expected 0", "leave it out"},
    });
  }
  for (const operation what : {ld, lc})
    check_edges({
        {v1, what, set_rdma, 34359738240, 34359738368,
         "num_rdma_bytes is 34359738368, expected at most 34359738240", "no more"},
        {v1, what, set_rdma, 1908410496, 1908410497,
         "num_rdma_bytes is 1908410497, expected a multiple of 128", "multiple of 128"},
        // 64 ranks, 1000 tokens, 1024 experts: 55.5 GiB.
        {v1, what,
         [](call& c, std::size_t tokens) {
           c.ranks = 64;
           c.experts = 1024;
           c.tokens = c.max_tokens = tokens;
           c.environment.nvshmem_qp_depth = 2048;
         },
         576, 1000, "bytes of the low-latency buffer is 59637768192, expected at most 34359738240",
         "fewer experts"},
    });
}

TEST_CASE("DeepEP's low-latency mode") {
  constexpr std::string_view sizes =
      "hidden is 7169, expected 2048, 2560, 3072, 4096, 5120, 6144, 7168 or 8192";
  constexpr std::string_view small =
      "hidden is 2047, expected 2048, 2560, 3072, 4096, 5120, 6144, 7168 or 8192";
  constexpr std::string_view large =
      "hidden is 8193, expected 2048, 2560, 3072, 4096, 5120, 6144, 7168 or 8192";
  for (const operation what : {ld, lc}) {
    check_edges({
        {v1, what, set_hidden, 7168, 7169, sizes, "fill tokens up"},
        {v1, what, set_fp8_hidden, 7168, 7169, sizes, "fill tokens up"},
        {v1, what, set_hidden, 2048, 2047, small, "fill tokens up"},
        {v1, what, set_hidden, 8192, 8193, large, "fill tokens up"},
        {v1, what, set_top_k, 11, 12, "num_topk is 12, expected at most 11", "normal mode"},
        {v1, what, set_experts, 256, 257, "num_experts is 257, expected a multiple of 8", "264"},
        {v1, what,
         [](call& c, std::size_t experts) {
           c.tokens = c.max_tokens = 64;
           c.experts = experts;
         },
         8192, 8200, "experts per rank is 1025, expected at most 1024", "more ranks"},
        {v1, what, set_max_tokens, 511, 512, "NVSHMEM_QP_DEPTH is 1024, expected at least 1026",
         "set NVSHMEM_QP_DEPTH=1026"},
        {v1, what,
         [](call& c, std::size_t depth) {
           c.max_tokens = 600;
           c.environment.nvshmem_qp_depth = depth;
         },
         1202, 1201, "NVSHMEM_QP_DEPTH is 1201, expected at least 1202", "NVSHMEM_QP_DEPTH=1202"},
        {v1, what,
         [](call& c, std::size_t tokens) {
           c.max_tokens = tokens;
           c.environment.nvshmem_qp_depth = 4096;
         },
         1023, 1024, "num_max_dispatch_tokens_per_rank is 1024, expected at most 1023", "split"},
        {v1, what,
         [](call& c, std::size_t tokens) {
           set_ranks(c, 2);
           c.max_tokens = tokens;
         },
         130, 131, "num_ranks x num_max_dispatch_tokens_per_rank is 262, expected a multiple of 4",
         "multiple of 4"},
        {v1, what, set_hook_and_finish, 0, 1, "return_recv_hook is true, expected false",
         "return_recv_hook and async_finish"},
        {v1, what, set_option<&call::no_low_latency_mode>, 0, 1,
         "low_latency_mode is false, expected true", "low_latency_mode=True"},
        {v1, what, [](call& c, std::size_t bytes) { c.num_rdma_bytes = bytes; }, 1908410368,
         1908410367, "num_rdma_bytes is 1908410367, expected at least 1908410368", "1908410496"},
        {v1, what, [](call& c, std::size_t bytes) { c.num_rdma_bytes = bytes; }, 1908410368, 0,
         "num_rdma_bytes is 0, expected at least 1908410368", "get_low_latency_rdma_size_hint"},
    });
    for (const std::size_t hidden :
         std::initializer_list<std::size_t>{2048, 2560, 3072, 4096, 5120, 6144, 7168, 8192}) {
      call c = usual(v1, what);
      c.hidden = hidden;
      c.use_fp8 = true;
      CHECK(refusal(v1, c) == "");
    }
    call many = usual(v1, what);
    set_ranks(many, 320);
    CHECK(refusal(v1, many) == "");
  }
  check_edges({{v1, lc,
                [](call& c, std::size_t on) {
                  c.use_logfmt = true;
                  c.zero_copy = on != 0;
                },
                0, 1, "use_logfmt is true, expected false", "use_logfmt and zero_copy"},
               {v1, ld, set_option<&call::weights_given>, 0, 1,
                "topk_weights is given, expected none", "low_latency_combine alone"}});
}

TEST_CASE("the tensors of DeepEP's Buffer") {
  for (const operation what : {nd, nc, ld, lc})
    check_edges({{v1, what, set_option<&call::narrow_topk_idx>, 0, 1,
                  "topk_idx's type is another type, expected int64", "convert"},
                 {v1, what, set_option<&call::gaps_in_x>, 0, 1,
                  "x is a tensor with gaps, expected a contiguous one", "contiguous()"}});
}

TEST_CASE("what A2 and A3 have in common") {
  for (const profile platform : {a2, a3})
    for (const operation what : {nd, nc, ld, lc}) {
      check_edges({
          {platform, what, set_top_k, 16, 17, "num_topk is 17, expected at most 16", "fewer"},
          {platform, what,
           [](call& c, std::size_t on) {
             c.dropped = true;
             c.environment.moe_enable_topk_neg_one = on != 0;
           },
           1, 0, "MOE_ENABLE_TOPK_NEG_ONE is not set, expected 1 for -1 in topk_idx",
           "set MOE_ENABLE_TOPK_NEG_ONE=1"},
      });
      call empty = usual(platform, what);
      empty.tokens = 0;
      CHECK(refusal(platform, empty) == "");
      CHECK(names(platform, empty, finding_kind::differs).front() == "num_tokens");
    }
}

TEST_CASE("what A2 and A3 ignore, and what they do not have") {
  const std::string_view on = " is true, which has no effect there, expected false";
  const std::string_view given = " is given, which has no effect there, expected none";
  const auto said = [](std::string_view name, std::string_view how) {
    return std::string{name} + std::string{how};
  };
  for (const profile platform : {a2, a3}) {
    const std::string finish = said("async_finish", on);
    const std::string hook = said("return_recv_hook", on);
    const std::string waited = said("wait_recv_cost_stats", given);
    for (const operation what : {ld, lc})
      check_edges(
          {{platform, what, set_option<&call::async_finish>, 0, 1, finish, "leave it out"},
           {platform, what, set_option<&call::return_recv_hook>, 0, 1, hook, "second stream"},
           {platform, what, set_option<&call::wait_statistics_given>, 0, 1, waited, "leave"}});
    const std::string counted = said("cumulative_local_expert_recv_stats", given);
    const std::string rounded = said("round_scale", on);
    const std::string zero_copy = said("zero_copy", on);
    const std::string out = said("out", given);
    const std::string config = said("config", given);
    const std::string allocate = said("allocate_on_comm_stream", on);
    const std::string bias = said("bias", given);
    check_edges({
        {platform, ld, set_option<&call::cumulative_statistics_given>, 0, 1, counted, "recv_count"},
        {platform, ld, set_option<&call::round_scale>, 0, 1, rounded, "leave it out"},
        {platform, ld, set_option<&call::use_ue8m0>, 0, 1, "use_ue8m0 is true, expected false",
         "next generation"},
        {platform, lc, set_option<&call::zero_copy>, 0, 1, zero_copy, "leave it out"},
        {platform, lc, set_option<&call::out_given>, 0, 1, out, "leave it out"},
        {platform, lc, set_option<&call::use_logfmt>, 0, 1, "use_logfmt is true, expected false",
         "no such argument"},
        {platform, nd, set_worst_tokens, 0, 1,
         "num_worst_tokens is 1, which has no effect there, expected 0", "leave it at 0"},
        {platform, nd, set_option<&call::cached_handle>, 0, 1, "handle is given, expected none",
         "dispatch anew"},
        {platform, nd, set_dtype, bf16, fp8, "x's type is fp8_e4m3, expected bf16",
         "DEEP_NORMAL_MODE_USE_INT8_QUANT=1"},
        {platform, nd, set_option<&call::config_given>, 0, 1, config, "leave it out"},
        {platform, nc, set_option<&call::config_given>, 0, 1, config, "leave it out"},
        {platform, nd, set_option<&call::allocate_on_comm_stream>, 0, 1, allocate, "alive"},
        {platform, nc, set_option<&call::bias_given>, 0, 1, bias, "add the bias"},
    });
    call c = usual(platform, ld);
    c.use_fp8 = true;
    CHECK(refusal(platform, c) == "");
    CHECK(names(platform, c, finding_kind::differs) ==
          std::vector<std::string>{"use_fp8", "recv_x", "recv_count"});
    c.weights_given = true;
    CHECK(refusal(platform, c) == "");
    CHECK(names(platform, c, finding_kind::differs).back() == "topk_weights");
    c.what = nd;
    c.async_finish = true;  // Works in normal mode.
    CHECK(refusal(platform, c) == "");
  }
}

TEST_CASE("A3") {
  for (const operation what : {nd, nc, ld, lc})
    check_edges({
        {a3, what,
         [](call& c, std::size_t ranks) {
           c.ranks = ranks;
           c.experts = 8;
         },
         2, 1, "num_ranks is 1, expected 2 to 768", "2 ranks"},
        {a3, what, set_experts, 1024, 1040, "num_experts is 1040, expected at most 1024", "fewer"},
        {a3, what, set_experts, 256, 257, "num_experts is 257, expected a multiple of 16", "272"},
    });
  // As many ranks as experts are the most that both limits allow.
  call most = usual(a3, ld);
  most.ranks = most.experts = 768;
  CHECK(refusal(a3, most) == "");
  most.ranks = most.experts = 769;
  CHECK(refusal(a3, most).find("num_ranks is 769, expected 2 to 768: ") != std::string::npos);
  for (const operation what : {ld, lc}) {
    check_edges({
        {a3, what, set_hidden, 1024, 1023, "hidden is 1023, expected 1024 to 8192",
         "fill tokens up"},
        {a3, what, set_hidden, 8192, 8193, "hidden is 8193, expected 1024 to 8192", "8192"},
        {a3, what, set_max_tokens, 512, 513,
         "num_max_dispatch_tokens_per_rank is 513, expected at most 512", "split the batch"},
        {a3, what, set_algorithm, fullmesh_v1, fullmesh,
         "comm_alg is fullmesh, expected fullmesh_v1 or fullmesh_v2", "platform"},
        {a3, what, set_algorithm, automatic, hierarchy,
         "comm_alg is hierarchy, expected fullmesh_v1 or fullmesh_v2", "platform"},
        {a3, what,
         [](call& c, std::size_t tokens) {
           c.algorithm = comm_algorithm::fullmesh_v2;
           c.max_tokens = tokens;
         },
         256, 257, "num_max_dispatch_tokens_per_rank is 257, expected at most 256", "split"},
        {a3, what,
         [](call& c, std::size_t top_k) {
           c.algorithm = comm_algorithm::fullmesh_v2;
           c.top_k = top_k;
         },
         12, 13, "num_topk with fullmesh_v2 is 13, expected at most 12", "fullmesh_v1"},
        {a3, what,
         [](call& c, std::size_t on) {
           c.algorithm = comm_algorithm::fullmesh_v2;
           c.environment.moe_enable_topk_neg_one = true;
           set_dropped(c, on);
         },
         0, 1, "-1 in topk_idx with fullmesh_v2 is given, expected none", "fullmesh_v1"},
        {a3, what, set_hccl, 956, 955, "HCCL_BUFFSIZE is 955, expected at least 956",
         "set HCCL_BUFFSIZE=956"},
        {a3, what,
         [](call& c, std::size_t mb) {
           c.algorithm = comm_algorithm::fullmesh_v2;
           c.environment.hccl_buffsize_mb = mb;
         },
         988, 987, "HCCL_BUFFSIZE is 987, expected at least 988", "set HCCL_BUFFSIZE=988"},
        {a3, what,
         [](call& c, std::size_t mb) {  // As the paper: 1 expert on each of 320 ranks.
           set_ranks(c, 320);
           c.experts = 320;
           c.top_k = 8;
           c.tokens = c.max_tokens = 96;
           c.environment.hccl_buffsize_mb = mb;
         },
         891, 890, "HCCL_BUFFSIZE is 890, expected at least 891", "set HCCL_BUFFSIZE=891"},
    });
    call unset = usual(a3, what);
    unset.environment.hccl_buffsize_mb = 0;
    CHECK(refusal(a3, unset).find("HCCL_BUFFSIZE is 200, expected at least 956: ") !=
          std::string::npos);
  }
  for (const operation what : {nd, nc})
    check_edges({
        {a3, what, set_hidden, 1024, 1023, "hidden is 1023, expected 1024 to 8192",
         "fill tokens up"},
        {a3, what, set_hidden, 8192, 8193, "hidden is 8193, expected 1024 to 8192", "8192"},
        {a3, what, set_ranks, 384, 385, "num_ranks in normal mode is 385, expected at most 384",
         "low latency"},
        {a3, what, set_tokens, 8192, 8193, "num_tokens is 8193, expected at most 8192",
         "set DEEPEP_NORMAL_LONG_SEQ_ROUND=2"},
        {a3, what,
         [](call& c, std::size_t tokens) {
           c.environment.normal_long_seq_rounds = 16;
           c.tokens = tokens;
         },
         131072, 131073, "num_tokens is 131073, expected at most 131072", "split the batch"},
        {a3, what,
         [](call& c, std::size_t rounds) { c.environment.normal_long_seq_rounds = rounds; }, 256,
         257, "DEEPEP_NORMAL_LONG_SEQ_ROUND is 257, expected 1 to 256", "rounds"},
    });
}

TEST_CASE("A2") {
  constexpr std::string_view ranks = "2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128, 192 or 256";
  const auto said = [&](std::string_view given) {
    return "num_ranks is " + std::string{given} + ", expected " + std::string{ranks};
  };
  const std::string one = said("1");
  const std::string nine = said("9");
  const std::string fifteen = said("15");
  const std::string many = said("257");
  for (const operation what : {nd, nc, ld, lc})
    check_edges({
        {a2, what, set_ranks, 2, 1, one, "numbers"},
        {a2, what, set_ranks, 8, 9, nine, "numbers"},
        {a2, what, set_ranks, 16, 15, fifteen, "numbers"},
        {a2, what, set_experts, 192, 200, "experts per rank is 25, expected at most 24",
         "more ranks"},
        {a2, what, set_experts, 64, 65, "num_experts is 65, expected a multiple of 8", "72"},
        {a2, what,
         [](call& c, std::size_t experts) {
           c.ranks = 32;
           c.experts = experts;
         },
         512, 544, "num_experts is 544, expected at most 512", "fewer experts"},
        {a2, what,
         [](call& c, std::size_t top_k) {
           set_ranks(c, 16);
           c.top_k = top_k;
         },
         2, 1, "num_topk is 1, expected at least 2", "weight 0"},
    });
  for (const operation what : {ld, lc}) {
    check_edges({
        {a2, what,
         [](call& c, std::size_t number) {
           set_ranks(c, number);
           c.experts = number;
         },
         256, 257, many, "numbers"},
        {a2, what,
         [](call& c, std::size_t on) {
           set_ranks(c, 16);
           c.environment.moe_enable_topk_neg_one = true;
           set_dropped(c, on);
         },
         0, 1, "-1 in topk_idx with hierarchy is given, expected none", "fullmesh"},
        {a2, what, set_hidden, 7168, 7169, "hidden is 7169, expected 32 to 7168", "7168"},
        {a2, what, set_hidden, 32, 31, "hidden is 31, expected 32 to 7168", "fill tokens up"},
        {a2, what, set_hidden, 7136, 7137, "hidden is 7137, expected a multiple of 32", "zero"},
        {a2, what, set_max_tokens, 256, 257,
         "num_max_dispatch_tokens_per_rank is 257, expected at most 256", "split the batch"},
        {a2, what, set_algorithm, fullmesh, fullmesh_v1,
         "comm_alg is fullmesh_v1, expected fullmesh or hierarchy", "platform"},
        {a2, what, set_algorithm, automatic, fullmesh_v2,
         "comm_alg is fullmesh_v2, expected fullmesh or hierarchy", "platform"},
        {a2, what,
         [](call& c, std::size_t number) {
           set_ranks(c, number);
           c.algorithm = comm_algorithm::hierarchy;
         },
         64, 128, "num_ranks with hierarchy is 128, expected 16, 32 or 64", "fullmesh"},
        // One node: 2 x (128 tokens x 8 ranks x 8 copies x 14336 bytes + 2 MB).
        {a2, what, set_hccl, 228, 227, "HCCL_BUFFSIZE is 227, expected at least 228",
         "set HCCL_BUFFSIZE=228"},
        // Nodes: 256 experts x 128 tokens x (14336 + 128) bytes + 804 MB.
        {a2, what,
         [](call& c, std::size_t mb) {
           c.ranks = 32;
           c.experts = 256;
           c.environment.hccl_buffsize_mb = mb;
         },
         1256, 1255, "HCCL_BUFFSIZE is 1255, expected at least 1256", "HCCL_BUFFSIZE=1256"},
        // More nodes than hierarchy has: 2 x (128 tokens x 128 ranks x 2 copies x 14336 + 2 MB).
        {a2, what,
         [](call& c, std::size_t mb) {
           c.ranks = 128;
           c.experts = 256;
           c.environment.hccl_buffsize_mb = mb;
         },
         900, 899, "HCCL_BUFFSIZE is 899, expected at least 900", "HCCL_BUFFSIZE=900"},
    });
  }
  for (const operation what : {nd, nc})
    check_edges({
        {a2, what, set_hidden, 7168, 7169, "hidden is 7169, expected 7168", "low latency"},
        {a2, what, set_hidden, 7168, 7167, "hidden is 7167, expected 7168", "fill tokens up"},
        {a2, what, set_tokens, 8000, 8001, "num_tokens is 8001, expected at most 8000", "split"},
        {a2, what,
         [](call& c, std::size_t tokens) {
           set_ranks(c, 16);
           c.tokens = tokens;
         },
         4096, 4097, "num_tokens is 4097, expected at most 4096", "split"},
        {a2, what,
         [](call& c, std::size_t in_node) {
           c.tokens = 8000;
           c.ranks_per_node = in_node;
         },
         8, 7, "num_tokens is 8000, expected at most 4096", "split"},
        {a2, what, set_ranks, 64, 128, "num_ranks in normal mode is 128, expected at most 64",
         "low latency"},
    });
}

TEST_CASE("A3 takes rows of whole 16 bytes") {
  for (const operation what : {nd, nc, ld, lc})
    check_edges({{a3, what, set_hidden, 1032, 1033, "hidden is 1033, expected a multiple of 8",
                  "zero channels"}});
  check_edges({{a3, ld, set_fp8_hidden, 1040, 1032, "hidden is 1032, expected a multiple of 16",
                "zero channels"}});
}

TEST_CASE("EPBuffer") {
  std::vector<edge> edges;
  for (const profile platform : ep_profiles) {
    for (const operation what : {ed, ec})
      edges.push_back({platform, what, set_tokens, 128, 129,
                       "num_tokens is 129, expected at most 128",
                       "num_max_tokens_per_rank on all ranks to 129"});
    edges.push_back(
        {platform, ec, set_dtype, bf16, fp8, "x's type is fp8_e4m3, expected bf16", "bf16"});
  }
  for (const profile platform : {v2_5, a950}) {
    for (const operation what : {ed, ec})
      edges.push_back({platform, what,
                       [](call& c, std::size_t allocates) {
                         c.previous_event_given = true;
                         c.allocate_on_comm_stream = allocates != 0;
                       },
                       1, 0, "allocate_on_comm_stream is false, expected true",
                       "wherever previous_event is given"});
    edges.push_back({platform, ed, set_experts, 256, 257,
                     "num_experts is 257, expected a multiple of 8", "up to 264"});
    edges.push_back({platform, ed, set_option<&call::do_handle_copy>, 0, 1,
                     "do_handle_copy is true, expected false", "leave it out"});
  }
  for (const operation what : {ed, ec}) {
    edges.push_back(
        {v2_5, what, set_ranks, 1024, 1025, "num_ranks is 1025, expected at most 1024", "fewer"});
    edges.back().set = [](call& c, std::size_t ranks) { c.ranks = c.experts = ranks; };
    edges.push_back({v2_5, what, set_experts, 2048, 2056,
                     "num_experts is 2056, expected at most 2048", "fewer"});
    edges.back().set = [](call& c, std::size_t experts) {
      c.experts = experts;
      c.ranks = experts / 8;
    };
    edges.push_back({v2_5, what,
                     [](call& c, std::size_t experts) {
                       c.experts = experts;
                       c.ranks = 1;
                     },
                     256, 257, "experts per rank is 257, expected at most 256", "more ranks"});
    edges.push_back(
        {v2_5, what, set_top_k, 32, 33, "num_topk is 33, expected at most 32", "fewer"});
    edges.push_back(
        {v2_5, what, set_hidden, 16, 24, "hidden is 24, expected a multiple of 16", "32 bytes"});
    edges.push_back(
        {a950, what, set_ranks, 2, 1, "num_ranks is 1, expected a multiple of 2", "even"});
    edges.push_back({a950, what, set_option<&call::do_expand>, 1, 0,
                     "do_expand is false, expected true", "set do_expand"});
    edges.push_back({a950, what, set_option<&call::allow_multiple_reduction>, 1, 0,
                     "allow_multiple_reduction is false, expected true", "bf16"});
    edges.push_back({a950, what, set_option<&call::narrow_topk_idx>, 0, 1,
                     "topk_idx's type is another type, expected int64", "convert"});
    edges.push_back({a950, what, set_option<&call::sl_idx_given>, 0, 1,
                     "sl_idx is given, expected none", "leave it out"});
    edges.push_back({a950, what, [](call& c, std::size_t qps) { c.num_qps = qps; }, 0, 24,
                     "num_qps is 24, expected 0", "leave it at 0"});
  }
  edges.push_back(
      {v2_5, ed, set_fp8_row, 32, 16, "hidden is 16, expected a multiple of 32", "32 bytes"});
  check_edges(edges);

  call c = usual(a950, ed);
  c.num_sms = 24;
  CHECK(names(a950, c, finding_kind::differs) == std::vector<std::string>{"num_sms"});
}

TEST_CASE("a platform has either Buffer or EPBuffer") {
  for (const operation what : {nd, nc, ld, lc})
    for (const profile platform : {v2_5, a950})
      CHECK(names(platform, usual(platform, what), finding_kind::refused) ==
            std::vector<std::string>{"deep_ep.Buffer"});
  for (const operation what : {ed, ec})
    for (const profile platform : {v1, a2, a3})
      CHECK(names(platform, usual(platform, what), finding_kind::refused) ==
            std::vector<std::string>{"deep_ep.EPBuffer"});
  CHECK(refusal(a950, usual(a950, ld)) ==
        "ascend_950 refuses low_latency_dispatch: deep_ep.Buffer is called, expected EPBuffer: "
        "there is no Buffer: call EPBuffer.dispatch, with do_expand for rows by expert");
}

TEST_CASE("edges of the limits of BucketBuffer") {
  constexpr auto set_tensors = [](call& c, std::size_t count) { c.tensors = count; };
  constexpr auto set_bytes = [](call& c, std::size_t bytes) { c.tensor_bytes = bytes; };
  std::vector<edge> edges;
  for (const operation what : {bg, bs, br}) {
    edges.push_back({v2_5, what, set_tensors, 64, 65, "tensors of the list is 65, expected 1 to 64",
                     "split the list"});
    edges.push_back({v2_5, what, set_tensors, 1, 0, "tensors of the list is 0, expected 1 to 64",
                     "make no call"});
    edges.push_back({v2_5, what, set_bytes, 512, 0, "bytes of a tensor is 0, expected at least 1",
                     "leave tensors without elements out"});
    edges.push_back(
        {a950, what, set_ranks, 2, 3, "num_ranks is 3, expected a multiple of 2", "even"});
  }
  // 950 has only one of them; its edges are those of the number of ranks.
  std::erase_if(edges, [](const edge& e) { return e.platform == a950 && e.what != bg; });
  edges.push_back({v2_5, bs, set_bytes, 256, 128,
                   "common divisor of the tensors' bytes is 128, expected a multiple of 256",
                   "in multiples of 32"});
  edges.push_back({v2_5, br, set_bytes, 128, 64,
                   "common divisor of the tensors' bytes is 64, expected a multiple of 128",
                   "in multiples of 16"});
  edges.push_back({v2_5, bg, [](call& c, std::size_t sms) { c.num_sms = sms; }, 0, 8,
                   "num_sms is 8, expected 0", "leave it out"});
  check_edges(edges);
  call odd = usual(v2_5, bg);  // Gathers bytes in any number.
  odd.tensor_bytes = 3;
  CHECK(refusal(v2_5, odd) == "");
}

TEST_CASE("platforms without BucketBuffer or the transfer of weights say so") {
  for (const operation what : {bg, bs, br, pw}) {
    CHECK(refusal(peer, usual(peer, what)) == "");
    CHECK(refusal(v2_5, usual(v2_5, what)) == "");
    for (const profile platform : {v1, a2, a3}) {
      const call c = usual(platform, what);
      CHECK(names(platform, c, finding_kind::refused) ==
            std::vector<std::string>{what == pw ? "deep_ep.EPBuffer" : "deep_ep.BucketBuffer"});
      CHECK(refusal(platform, c).find("torch.distributed") != std::string::npos);
      for_each_variable(platform, c, [](const variable& v) { FAIL_CHECK(v.name); });
    }
    CHECK(names(a950, usual(a950, what), finding_kind::refused) ==
          (what == bg ? std::vector<std::string>{}
                      : std::vector<std::string>{std::string{to_string(what)}}));
  }
}

TEST_CASE("without a rule there is no HCCL_BUFFSIZE") {
  using peerbus::deep_ep::required_hccl_buffsize_mb;
  CHECK(required_hccl_buffsize_mb(a3, usual(a3, ld)) == 956);
  CHECK(required_hccl_buffsize_mb(a3, usual(a3, nd)) == 0);
  CHECK(required_hccl_buffsize_mb(v1, usual(v1, ld)) == 0);
  CHECK(required_hccl_buffsize_mb(a2, call{}) == 0);  // No ranks.
  for (const profile platform : {v2_5, a950})
    CHECK(required_hccl_buffsize_mb(platform, usual(platform, ed)) == 0);
}

TEST_CASE("one refusal names everything") {
  call c = usual(a3, ld);
  c.top_k = 17;
  c.return_recv_hook = true;
  c.environment = {};
  const std::string text = refusal(a3, c);
  CHECK(text ==
        "ascend_a3 refuses low_latency_dispatch: num_topk is 17, expected at most 16: choose fewer "
        "experts per token; HCCL_BUFFSIZE is 200, expected at least 988: on all ranks, set "
        "HCCL_BUFFSIZE=988; return_recv_hook is true, which has no effect there, expected false: "
        "leave it out: the call always receives; overlap by a second stream instead");
}

TEST_CASE("findings in words") {
  std::vector<std::string> said;
  call c = usual(a3, ld);
  examine(a3, c, [&](const finding& f) { said.push_back(describe(a3, f)); });
  REQUIRE(said.size() == 2);
  CHECK(said[1] == "ascend_a3: recv_count: is int64, not int32");
}

TEST_CASE("variables to set, and what they cure") {
  const auto listed = [](profile platform, const call& c) {
    std::string all;
    for_each_variable(platform, c, [&](const variable& v) {
      all += v.set ? peerbus::detail::concat(v.name, "=", v.value, " ")
                   : peerbus::detail::concat("-", v.name, " ");
    });
    return all;
  };
  call c = usual(peer, ld);
  c.dropped = true;
  CHECK(listed(peer, c) == "");
  CHECK(listed(v1, c) == "");
  c.max_tokens = 512;
  CHECK(listed(v1, c) == "NVSHMEM_QP_DEPTH=1026 ");
  CHECK(fits(v1, c) == false);
  c.environment = required_environment(v1, c);
  CHECK(refusal(v1, c) == "");

  c = usual(a3, ld);
  c.dropped = true;
  c.environment = {};
  CHECK(listed(a3, c) == "HCCL_BUFFSIZE=956 MOE_ENABLE_TOPK_NEG_ONE=1 ");
  CHECK(fits(a3, c) == false);
  c.environment = required_environment(a3, c);
  CHECK(refusal(a3, c) == "");
  c.environment.hccl_buffsize_mb = 955;  // What somebody set is not touched.
  CHECK(required_environment(a3, c).hccl_buffsize_mb == 955);

  c = usual(a3, nd);
  CHECK(listed(a3, c) == "");
  c.tokens = 8192;
  CHECK(listed(a3, c) == "");
  c.tokens = 8193;
  CHECK(listed(a3, c) == "DEEPEP_NORMAL_LONG_SEQ_ROUND=2 ");
  c.what = nc;
  CHECK(listed(a3, c) == "DEEPEP_NORMAL_COMBINE_ENABLE_LONG_SEQ=1 ");
  c.what = nd;
  c.tokens = 16385;
  CHECK(listed(a3, c) == "DEEPEP_NORMAL_LONG_SEQ_ROUND=3 ");
  c.environment = required_environment(a3, c);
  CHECK(refusal(a3, c) == "");
  c.what = nc;
  CHECK(listed(a3, c) == "DEEPEP_NORMAL_COMBINE_ENABLE_LONG_SEQ=1 ");

  for (const profile platform : {v2_5, a950}) CHECK(listed(platform, usual(platform, ed)) == "");

  c = usual(a2, ld);
  CHECK(listed(a2, c) == "HCCL_BUFFSIZE=228 -HCCL_OP_EXPANSION_MODE ");
  c.max_tokens = c.tokens = 1;  // Even the default size must be set there.
  CHECK(listed(a2, c) == "HCCL_BUFFSIZE=200 -HCCL_OP_EXPANSION_MODE ");
  for_each_variable(a2, c, [](const variable& v) {  // The reason does not call it needless.
    if (v.set) CHECK(v.why.find("even to the default of 200") != std::string_view::npos);
  });
  set_ranks(c, 16);
  CHECK(listed(a2, c) ==
        "HCCL_BUFFSIZE=805 HCCL_INTRA_PCIE_ENABLE=1 HCCL_INTRA_ROCE_ENABLE=0 "
        "-HCCL_OP_EXPANSION_MODE ");
}

namespace {

using peerbus::cann::apart_call;
using peerbus::cann::apart_operation;

/// A call of attention rank 5 of 3 + 5 ranks that A3 takes.
constexpr apart_call usual_apart(apart_operation what) {
  return {.what = what,
          .expert_rank_size = 3,
          .attention_rank_size = 5,
          .rank = 5,
          .tokens = 64,
          .batch_size = 64,
          .hidden_size = 7168,
          .topk = 8,
          .aiv_num = 8,
          .compute_gate = true,
          .expert_ids_given = true,
          .scales_given = true};
}

std::string refusal(profile platform, const apart_call& c) {
  try {
    peerbus::cann::require(platform, c);
  } catch (const peerbus::error& e) {
    CHECK(e.code() == peerbus::errc::invalid_argument);
    return std::string{e.text()};
  }
  return "";
}

/// A change of a usual call, and the one thing that A3 then says, or nothing.
struct apart_case {
  apart_operation what;
  void (*change)(apart_call&);
  std::string_view said;
};

}  // namespace

TEST_CASE("attention apart from experts: aclnnA2e and aclnnE2a") {
  constexpr auto a2e = apart_operation::a2e;
  constexpr auto e2a = apart_operation::e2a;
  for (const apart_case& one : std::initializer_list<apart_case>{
           {a2e, [](apart_call&) {}, ""},
           {e2a, [](apart_call&) {}, ""},
           {a2e, [](apart_call& c) { c.attention_rank_size = c.rank = 381; }, ""},
           {a2e, [](apart_call& c) { c.attention_rank_size = 382; },
            "expertRankSize + attentionRankSize is 385, expected at most 384"},
           {a2e, [](apart_call& c) { c.attention_rank_size = 2, c.rank = 4; },
            "attentionRankSize is 2, expected at least 3"},
           {e2a, [](apart_call& c) { c.expert_rank_size = 0; },
            "expertRankSize is 0, expected at least 1"},
           {e2a, [](apart_call& c) { c.rank = 8; }, "rank is 8, expected at most 7"},
           {a2e, [](apart_call& c) { c.hidden_size = 0; }, "hiddenSize is 0, expected at least 1"},
           {e2a, [](apart_call& c) { c.topk = 0; }, "topk is 0, expected at least 1"},
           {e2a, [](apart_call& c) { c.aiv_num = 0; }, "aivNum is 0, expected at least 1"},
           {a2e, [](apart_call& c) { c.aiv_num = 2; }, "aivNum is 2, expected at least 3"},
           {a2e, [](apart_call& c) { c.dtype = element_type::other; },
            "x's type is other, expected bf16"},
           {e2a, [](apart_call& c) { c.dtype = element_type::fp8_e4m3; },
            "expandX's type is fp8_e4m3, expected bf16"},
           // Expert ranks 0 and 1 serve two attention ranks each, rank 2 one.
           {a2e, [](apart_call& c) { c.batch_size = 63; }, "batchSize is 63, expected 64"},
           {a2e, [](apart_call& c) { c.rank = 1, c.batch_size = 128; }, ""},
           {a2e, [](apart_call& c) { c.rank = 2, c.batch_size = 128; }, ""},
           {a2e, [](apart_call& c) { c.rank = 2; }, "batchSize is 64, expected 128"},
           {e2a, [](apart_call& c) { c.rank = 1, c.batch_size = 128; }, ""},
           {e2a, [](apart_call& c) { c.rank = 2; }, ""},
           {e2a, [](apart_call& c) { c.rank = 2, c.batch_size = 128; },
            "batchSize is 128, expected 64"},
           {a2e, [](apart_call& c) { c.expert_ids_given = false; },
            "expertIds is none, expected given"},
           {a2e, [](apart_call& c) { c.scales_given = false; }, "scales is none, expected given"},
           {e2a, [](apart_call& c) { c.expert_ids_given = c.scales_given = false; }, ""},
           {a2e, [](apart_call& c) { c.wide_expert_ids = true; },
            "expertIds' type is other, expected int32"},
           {a2e, [](apart_call& c) { c.compute_gate = c.expert_ids_given = false; },
            "scales is given, which has no effect there, expected none"},
           {a2e, [](apart_call& c) { c.compute_gate = c.scales_given = false; },
            "expertIds is given, which has no effect there, expected none"},
           {a2e, [](apart_call& c) { c.tokens = c.batch_size = 6112; }, ""},
           {a2e, [](apart_call& c) { c.tokens = c.batch_size = 6113; },
            "tokens x topk is 48904, expected at most 48896"},
           {e2a, [](apart_call& c) { c.tokens = c.batch_size = 15000; },
            "HCCL_BUFFSIZE is 200, expected at least 209"},
           {e2a,
            [](apart_call& c) {
              c.tokens = c.batch_size = 15000;
              c.hccl_buffsize_mb = 209;
            },
            ""}}) {
    CAPTURE(one.said);
    apart_call c = usual_apart(one.what);
    one.change(c);
    const std::string text = refusal(a3, c);
    CAPTURE(text);
    const auto start = concat("ascend_a3 refuses ", to_string(one.what), ": ", one.said, ": ");
    CHECK((one.said.empty() ? text.empty() : text.starts_with(start)));
    CHECK(text.find("; ") == std::string::npos);  // Nothing else is refused.
  }

  apart_call many = usual_apart(a2e);
  CHECK(refusal(a950, many) == "");
  many.attention_rank_size = many.rank = 62;
  CHECK(refusal(a950, many)
            .starts_with("ascend_950 refuses aclnnA2e: expertRankSize + attentionRankSize is 65, "
                         "expected at most 64"));
  for (const profile platform : {peer, v1, a2, v2_5})
    CHECK(refusal(platform, many)
              .find("aclnnA2e is called, expected an operator of ascend_a3 or ascend_950") !=
          std::string::npos);
}

}  // namespace profile_test
