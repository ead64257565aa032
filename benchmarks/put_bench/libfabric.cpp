// SPDX-License-Identifier: MIT
#include "put_bench/libfabric.hpp"

#if PEERBUS_BENCH_FABRIC

#include <netinet/in.h>
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <utility>
#include <vector>

#include <peerbus/core/deadline.hpp>
#include <peerbus/core/mapping.hpp>

#include "support/clock.hpp"

namespace put_bench {
namespace {

void require(long failed, const char* doing) {
  if (failed != 0)
    throw std::runtime_error{std::string{doing} + ": " + fi_strerror(static_cast<int>(-failed))};
}

struct closer {
  template <class Object>
  void operator()(Object* object) const noexcept {
    fi_close(&object->fid);
  }
  void operator()(fi_info* list) const noexcept { fi_freeinfo(list); }
};
template <class Object>
using handle = std::unique_ptr<Object, closer>;
using info = handle<fi_info>;

/// Calls `open_object(&made)`. Returns: what it made.
template <class Object, class Open>
handle<Object> open(const char* doing, Open&& open_object) {
  Object* made = nullptr;
  require(open_object(&made), doing);
  return handle<Object>{made};
}

bool is_on_loopback(const fi_info& offered) {
  if (offered.addr_format != FI_SOCKADDR_IN || offered.src_addrlen < sizeof(sockaddr_in))
    return false;
  sockaddr_in address{};
  std::memcpy(&address, offered.src_addr, sizeof address);
  return (ntohl(address.sin_addr.s_addr) >> 24U) == IN_LOOPBACKNET;
}

/// Returns what the provider offers for the domain, as `fabric` asks for it: connections of tcp,
/// datagrams of others.
info find(const std::string& provider, const std::string& domain) {
  const info hints{fi_allocinfo()};
  if (!hints) throw std::bad_alloc{};
  hints->caps = FI_MSG | FI_RMA;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = provider == "tcp" ? FI_EP_MSG : FI_EP_RDM;
  hints->domain_attr->mr_mode =
      FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
  hints->domain_attr->threading = FI_THREAD_SAFE;
  hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
  hints->fabric_attr->prov_name = ::strdup(provider.c_str());
  fi_info* list = nullptr;
  require(fi_getinfo(FI_VERSION(1, 14), nullptr, nullptr, 0, hints.get(), &list), "fi_getinfo");
  const info all{list};
  const fi_info* best = nullptr;
  for (const fi_info* next = list; next != nullptr; next = next->next) {
    const bool fits = domain.empty() || domain == next->domain_attr->name;
    if (fits && (best == nullptr || (domain.empty() && !is_on_loopback(*best)))) best = next;
  }
  if (best == nullptr)
    throw std::runtime_error{"libfabric's provider " + provider + " has no domain " + domain};
  return info{fi_dupinfo(best)};
}

class libfabric final : public contender {
 public:
  libfabric(peerbus::bootstrap& boot, const std::string& provider, const std::string& domain,
            std::size_t bytes)
      : contender{"libfabric: message; writes"},
        first_{boot.rank().index() == 0},
        bytes_{bytes},
        memory_{peerbus::mapping::anonymous(bytes)},
        info_{find(provider, domain)} {
    open_domain();
    if (connects())
      connect(boot);
    else
      open_endpoint(*info_);
    registration_ = register_memory(memory_.data(), bytes, 1);
    buffers_region_ = register_memory(buffers_.data(), sizeof buffers_, 2);
    meet(boot);
  }

  [[nodiscard]] bool sends(std::size_t bytes) const noexcept override {
    return bytes <= std::min(info_->tx_attr->inject_size, sizeof buffers_[0]);
  }
  [[nodiscard]] bool streams() const noexcept override { return true; }

  [[nodiscard]] std::vector<double> ping_pong(std::size_t bytes, std::size_t rounds) override {
    std::vector<double> one_way_us;
    one_way_us.reserve(rounds);
    for (std::size_t i = 0; i < rounds; ++i) {
      const auto start = bench::clock::now();
      if (first_) send(bytes);
      await_message();
      if (!first_) send(bytes);
      one_way_us.push_back(bench::microseconds(bench::clock::now() - start) / 2);
    }
    return one_way_us;
  }

  /// Writes all messages side by side, then sends one message, which rank 1 answers.
  [[nodiscard]] double stream(const bench::stream_shape& shape) override {
    if (shape.messages * (shape.bytes + shape.gap) > bytes_)
      throw std::runtime_error{"more bytes than libfabric was to send"};
    const auto start = bench::clock::now();
    if (first_) {
      void* key = fi_mr_desc(registration_.get());
      for (std::size_t i = 0; i < shape.messages; ++i) {
        const std::size_t at = i * (shape.bytes + shape.gap);
        const iovec local{memory_.data() + at, shape.bytes};
        const fi_rma_iov remote{address_ + at, shape.bytes, key_};
        const fi_msg_rma message{&local, &key, 1, peer_, &remote, 1, &written_, 0};
        again([&] { return fi_writemsg(endpoint_.get(), &message, FI_COMPLETION); });
      }
      send(8);
      await_message();
    } else {
      await_message();
      send(8);
    }
    return bench::microseconds(bench::clock::now() - start);
  }
  /// Its payloads are not looked at.
  [[nodiscard]] bool right() const override { return true; }

 private:
  [[nodiscard]] bool connects() const { return info_->ep_attr->type == FI_EP_MSG; }

  void open_domain() {
    fabric_ = open<fid_fabric>("fi_fabric", [&](fid_fabric** made) {
      return fi_fabric(info_->fabric_attr, made, nullptr);
    });
    domain_ = open<fid_domain>("fi_domain", [&](fid_domain** made) {
      return fi_domain(fabric_.get(), info_.get(), made, nullptr);
    });
    queue_ = open<fid_cq>("fi_cq_open", [&](fid_cq** made) {
      fi_cq_attr wanted{};
      wanted.size = 1024;
      wanted.format = FI_CQ_FORMAT_MSG;
      wanted.wait_obj = FI_WAIT_NONE;
      return fi_cq_open(domain_.get(), &wanted, made, nullptr);
    });
    if (connects()) {
      events_ = open<fid_eq>("fi_eq_open", [&](fid_eq** made) {
        fi_eq_attr wanted{};
        return fi_eq_open(fabric_.get(), &wanted, made, nullptr);
      });
      return;
    }
    addresses_ = open<fid_av>("fi_av_open", [&](fid_av** made) {
      fi_av_attr wanted{};
      wanted.type =
          info_->domain_attr->av_type == FI_AV_UNSPEC ? FI_AV_TABLE : info_->domain_attr->av_type;
      wanted.count = 2;
      return fi_av_open(domain_.get(), &wanted, made, nullptr);
    });
  }
  void open_endpoint(fi_info& found) {
    endpoint_ = open<fid_ep>("fi_endpoint", [&](fid_ep** made) {
      return fi_endpoint(domain_.get(), &found, made, nullptr);
    });
    fid* const place = connects() ? &events_->fid : &addresses_->fid;
    require(fi_ep_bind(endpoint_.get(), place, 0), "fi_ep_bind");
    require(fi_ep_bind(endpoint_.get(), &queue_->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind");
    require(fi_enable(endpoint_.get()), "fi_enable");
  }

  /// Rank 1 calls rank 0.
  void connect(peerbus::bootstrap& boot) {
    std::vector<std::byte> told;
    handle<fid_pep> listener;
    if (first_) {
      listener = open<fid_pep>("fi_passive_ep", [&](fid_pep** made) {
        return fi_passive_ep(fabric_.get(), info_.get(), made, nullptr);
      });
      require(fi_pep_bind(listener.get(), &events_->fid, 0), "fi_pep_bind");
      require(fi_listen(listener.get()), "fi_listen");
      told = name_of(listener->fid);
    }
    const auto until = peerbus::deadline::after(std::chrono::seconds{30});
    const auto all = boot.allgather({std::move(told), {}}, until, "plain libfabric listens");
    if (first_) {
      const info caller{await(FI_CONNREQ, until).info};
      open_endpoint(*caller);
      require(fi_accept(endpoint_.get(), nullptr, 0), "fi_accept");
    } else {
      open_endpoint(*info_);
      require(fi_connect(endpoint_.get(), all[0].bytes.data(), nullptr, 0), "fi_connect");
    }
    static_cast<void>(await(FI_CONNECTED, until));
  }
  [[nodiscard]] fi_eq_cm_entry await(std::uint32_t event, peerbus::deadline until) {
    fi_eq_cm_entry found{};
    std::uint32_t what = 0;
    for (;;) {
      const auto length = fi_eq_read(events_.get(), &what, &found, sizeof found, 0);
      if (length >= 0 && what == event) return found;
      if (length != -FI_EAGAIN || until.expired())
        throw std::runtime_error{"plain libfabric does not connect"};
    }
  }
  [[nodiscard]] static std::vector<std::byte> name_of(fid& endpoint) {
    std::vector<std::byte> name(256);
    std::size_t length = name.size();
    require(fi_getname(&endpoint, name.data(), &length), "fi_getname");
    name.resize(length);
    return name;
  }

  handle<fid_mr> register_memory(void* memory, std::size_t bytes, std::uint64_t key) {
    constexpr std::uint64_t access = FI_WRITE | FI_REMOTE_WRITE | FI_SEND | FI_RECV;
    auto made = open<fid_mr>("fi_mr_reg", [&](fid_mr** region) {
      return fi_mr_reg(domain_.get(), memory, bytes, access, 0, key, 0, region, nullptr);
    });
    if ((static_cast<std::uint64_t>(info_->domain_attr->mr_mode) & FI_MR_ENDPOINT) != 0) {
      require(fi_mr_bind(made.get(), &endpoint_->fid, 0), "fi_mr_bind");
      require(fi_mr_enable(made.get()), "fi_mr_enable");
    }
    return made;
  }

  void meet(peerbus::bootstrap& boot) {
    const auto until = peerbus::deadline::after(std::chrono::seconds{30});
    const auto mode = static_cast<std::uint64_t>(info_->domain_attr->mr_mode);
    const std::uint64_t start = (mode & FI_MR_VIRT_ADDR) != 0
                                    ? reinterpret_cast<std::uintptr_t>(memory_.data())
                                    : std::uint64_t{0};
    const std::uint64_t place[]{fi_mr_key(registration_.get()), start};
    std::vector<std::byte> told = name_of(endpoint_->fid);
    const std::size_t length = told.size();
    told.resize(length + sizeof place);
    std::memcpy(told.data() + length, place, sizeof place);
    const auto all = boot.allgather({std::move(told), {}}, until, "plain libfabric");
    const auto& theirs = all[1 - boot.rank().index()].bytes;
    if (!connects() && fi_av_insert(addresses_.get(), theirs.data(), 1, &peer_, 0, nullptr) != 1)
      throw std::runtime_error{"fi_av_insert refused an address"};
    std::uint64_t found[2];
    std::memcpy(found, theirs.data() + theirs.size() - sizeof found, sizeof found);
    key_ = found[0];
    address_ = found[1];
    for (std::size_t i = 0; i < receives_.size(); ++i) receive(i);
    static_cast<void>(boot.allgather({}, until, "plain libfabric can receive"));
    static_cast<void>(ping_pong(8, 10));  // Connects.
  }

  template <class Call>
  void again(Call&& call) {
    long failed = 0;
    while ((failed = call()) == -FI_EAGAIN) poll();
    require(failed, "a request of plain libfabric");
  }
  void receive(std::size_t i) {
    again([&] {
      return fi_recv(endpoint_.get(), &buffers_[i], sizeof buffers_[i],
                     fi_mr_desc(buffers_region_.get()), FI_ADDR_UNSPEC, &receives_[i]);
    });
  }
  void send(std::size_t bytes) {
    again([&] { return fi_inject(endpoint_.get(), memory_.data(), bytes, peer_); });
  }
  void poll() {
    std::array<fi_cq_msg_entry, 16> batch;
    const auto count = fi_cq_read(queue_.get(), batch.data(), batch.size());
    if (count == -FI_EAVAIL) throw std::runtime_error{"a request of plain libfabric failed"};
    for (long i = 0; i < count; ++i) {
      void* const context = batch[static_cast<std::size_t>(i)].op_context;
      if (context == &written_) continue;
      ++arrived_;
      receive(static_cast<std::size_t>(static_cast<fi_context2*>(context) - receives_.data()));
    }
  }
  void await_message() {
    while (arrived_ == taken_) poll();
    ++taken_;
  }

  bool first_;
  std::size_t bytes_;
  // In the order in which they are made; the endpoint may use the memory until it is closed.
  peerbus::mapping memory_;
  std::array<fi_context2, 16> receives_{};
  std::array<std::array<std::byte, 256>, 16> buffers_{};
  fi_context2 written_{};
  info info_;
  handle<fid_fabric> fabric_;
  handle<fid_domain> domain_;
  handle<fid_eq> events_;
  handle<fid_av> addresses_;
  handle<fid_cq> queue_;
  handle<fid_ep> endpoint_;
  handle<fid_mr> registration_;
  handle<fid_mr> buffers_region_;
  fi_addr_t peer_ = FI_ADDR_NOTAVAIL;
  std::uint64_t key_ = 0;
  std::uint64_t address_ = 0;
  std::size_t arrived_ = 0;
  std::size_t taken_ = 0;
};

}  // namespace

std::unique_ptr<contender> make_libfabric(peerbus::bootstrap& boot, const std::string& provider,
                                          const std::string& domain, std::size_t bytes) {
  return std::make_unique<libfabric>(boot, provider, domain, bytes);
}

}  // namespace put_bench

#endif
