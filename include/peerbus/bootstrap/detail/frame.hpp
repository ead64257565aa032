// SPDX-License-Identifier: MIT
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <peerbus/bootstrap/detail/connection.hpp>
#include <peerbus/core/unique_fd.hpp>

namespace peerbus::detail {

/// The kinds of frames. Frames are the messages between rank 0 and another rank over a stream
/// socket. A frame is a header, `text_bytes` of text and `body_bytes` of bytes. Over Unix sockets
/// one byte follows for each batch of up to 253 descriptors (the kernel's limit for a message),
/// with the batch attached to it. Numbers have the host's byte order, because both ends are on one
/// host, or have compared their byte orders when they met.
enum class frame_kind : std::uint32_t {
  give = 1,     ///< to rank 0: a rank's contribution, with its purpose as text
  result = 2,   ///< from rank 0: the contributions of all ranks
  refuse = 3,   ///< in both directions: the collective failed with `code` and this text
  welcome = 4,  ///< from rank 0: all ranks have come
};

struct frame_header {
  static constexpr std::uint32_t expected_magic = 0x7062'6601;

  std::uint32_t magic = expected_magic;
  std::uint32_t kind = 0;
  std::uint64_t sequence = 0;
  std::uint64_t text_bytes = 0;
  std::uint64_t body_bytes = 0;
  std::uint32_t fds = 0;
  std::uint32_t code = 0;
};
static_assert(sizeof(frame_header) == 40);

struct frame {
  frame_header header;
  std::string text;
  std::vector<std::byte> body;
  std::vector<unique_fd> fds;
};

inline constexpr std::size_t most_text_bytes = std::size_t{1} << 16;
inline constexpr std::size_t fds_per_message = 253;

/// Encodes a frame without its file descriptors. Text beyond the limit is cut off.
inline std::vector<std::byte> encode_frame(frame_header header, std::string_view text,
                                           std::span<const std::byte> body) {
  text = text.substr(0, most_text_bytes);
  header.text_bytes = text.size();
  header.body_bytes = body.size();
  std::vector<std::byte> out(sizeof header + text.size() + body.size());
  std::memcpy(out.data(), &header, sizeof header);
  if (!text.empty()) std::memcpy(out.data() + sizeof header, text.data(), text.size());
  if (!body.empty())
    std::memcpy(out.data() + sizeof header + text.size(), body.data(), body.size());
  return out;
}

/// Reads one frame piece by piece, without blocking. Does not trust the sender: sizes are checked
/// against the limits first, and memory grows only with the bytes that have arrived.
class frame_reader {
 public:
  enum class status { more, done, closed, malformed, no_descriptors };

  frame_reader(std::uint64_t most_body_bytes, std::uint32_t most_fds)
      : most_body_bytes_{most_body_bytes}, most_fds_{most_fds} {}

  /// Reads the bytes that `source` has, up to the end of the frame. Takes descriptors only from
  /// connections without a cipher.
  [[nodiscard]] status step(connection& source) {
    for (;;) {
      if (const auto progress = enter_stage(); progress != status::more) return progress;
      const std::span<std::byte> target = next_target();
      const ssize_t got = receive(source, target);
      if (got < 0 && errno == EAGAIN) return status::more;
      if (got < 0) return errno == EBADMSG ? status::malformed : status::closed;
      if (got == 0) return status::closed;
      if (truncated_) return status::no_descriptors;
      filled_ += static_cast<std::size_t>(got);
      if (read_.fds.size() > (stage_ == stage::header ? most_fds_ : read_.header.fds))
        return status::malformed;
    }
  }

  /// Returns whether the reader has read a part of a frame.
  [[nodiscard]] bool amid() const noexcept { return stage_ != stage::header || filled_ != 0; }

  /// Returns the frame, and prepares for the next frame. Requires that `step` has returned `done`.
  [[nodiscard]] frame take() {
    stage_ = stage::header;
    filled_ = 0;
    return std::exchange(read_, frame{});
  }

 private:
  enum class stage { header, text, body, tail, done };

  /// Advances to the next stage while the current stage is complete.
  status enter_stage() {
    const frame_header& header = read_.header;
    for (;;) {
      switch (stage_) {
        case stage::header:
          if (filled_ < sizeof header) return status::more;
          std::memcpy(&read_.header, raw_.data(), sizeof header);
          if (header.magic != frame_header::expected_magic || header.kind < 1 || header.kind > 4 ||
              header.text_bytes > most_text_bytes || header.body_bytes > most_body_bytes_ ||
              header.fds > most_fds_ || read_.fds.size() > header.fds)
            return status::malformed;
          stage_ = stage::text;
          break;
        case stage::text:
          if (filled_ < header.text_bytes) return status::more;
          stage_ = stage::body;
          break;
        case stage::body:
          if (filled_ < header.body_bytes) return status::more;
          stage_ = stage::tail;
          break;
        case stage::tail:
          if (filled_ < (header.fds + fds_per_message - 1) / fds_per_message) return status::more;
          if (read_.fds.size() != header.fds) return status::malformed;
          stage_ = stage::done;
          break;
        case stage::done: return status::done;
      }
      filled_ = 0;
    }
  }

  /// Returns the buffer for the next bytes. It is never larger than the rest of the stage, so that
  /// no read runs into the next frame.
  std::span<std::byte> next_target() {
    switch (stage_) {
      case stage::header: return {raw_.data() + filled_, raw_.size() - filled_};
      case stage::text:
        read_.text.resize(read_.header.text_bytes);
        return {reinterpret_cast<std::byte*>(read_.text.data()) + filled_,
                read_.text.size() - filled_};
      case stage::body: {
        constexpr std::size_t step = std::size_t{1} << 16;
        auto& body = read_.body;
        if (filled_ == body.size())
          body.resize(std::min<std::size_t>(read_.header.body_bytes,
                                            body.size() + std::max(step, body.size())));
        return {body.data() + filled_, body.size() - filled_};
      }
      default: return {raw_.data(), 1};
    }
  }

  ssize_t receive(connection& source, std::span<std::byte> target) {
    if (most_fds_ == 0) return receive_bytes(source, target);
    alignas(cmsghdr) std::array<char, CMSG_SPACE(fds_per_message * sizeof(int))> control;
    iovec data{target.data(), target.size()};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    ssize_t got = 0;
    do {
      got = ::recvmsg(source.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    } while (got < 0 && errno == EINTR);
    if (got < 0) return got;
    // The buffer holds all descriptors that a message can have, so truncation means that the
    // process has no descriptors left.
    truncated_ = (message.msg_flags & MSG_CTRUNC) != 0;
    for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
         part = CMSG_NXTHDR(&message, part)) {
      if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
      const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t i = 0; i < count; ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(part) + i * sizeof fd, sizeof fd);
        read_.fds.push_back(unique_fd::above_standard(fd));
        truncated_ = truncated_ || !read_.fds.back();
      }
    }
    return got;
  }

  static ssize_t receive_bytes(connection& source, std::span<std::byte> target) noexcept {
    ssize_t got = 0;
    do {
      got = source.receive(target);
    } while (got < 0 && errno == EINTR);
    return got;
  }

  std::uint64_t most_body_bytes_;
  std::uint32_t most_fds_;
  stage stage_ = stage::header;
  std::size_t filled_ = 0;
  std::array<std::byte, sizeof(frame_header)> raw_{};
  frame read_;
  bool truncated_ = false;
};

/// Writes one frame piece by piece, without blocking. The bytes and the descriptors belong to the
/// caller and must stay valid until `done`. Several writers can share one buffer.
class frame_writer {
 public:
  /// The result of a step. `throttled` means that too many descriptors of this user are in flight
  /// (ETOOMANYREFS, for all users except root). Their number falls when the receivers read.
  enum class status { more, done, closed, throttled, failed };

  frame_writer(std::span<const std::byte> bytes, std::span<const int> fds)
      : bytes_{bytes}, fds_{fds} {}

  /// Writes as many bytes as the socket takes. After `failed`, errno has the reason.
  [[nodiscard]] status step(connection& destination) noexcept {
    while (sent_ < bytes_.size() || sent_fds_ < fds_.size()) {
      const ssize_t put = send_some(destination);
      is_mid_send_ = destination.is_mid_send();
      if (put < 0) {
        if (errno == EINTR) continue;
        if (errno == EAGAIN) return status::more;
        if (errno == ETOOMANYREFS || errno == ENOBUFS || errno == ENOMEM) return status::throttled;
        return errno == EPIPE || errno == ECONNRESET ? status::closed : status::failed;
      }
    }
    return status::done;
  }

  /// Returns whether the writer has written a part of the frame.
  [[nodiscard]] bool amid() const noexcept {
    return is_mid_send_ || (sent_ != 0 && (sent_ < bytes_.size() || sent_fds_ < fds_.size()));
  }

 private:
  ssize_t send_some(connection& destination) noexcept {
    if (sent_ < bytes_.size()) {
      const ssize_t put = destination.send(bytes_.subspan(sent_));
      if (put > 0) sent_ += static_cast<std::size_t>(put);
      return put;
    }
    const auto batch = fds_.subspan(sent_fds_, std::min(fds_per_message, fds_.size() - sent_fds_));
    alignas(cmsghdr) std::array<char, CMSG_SPACE(fds_per_message * sizeof(int))> control{};
    char mark = 'f';
    iovec data{&mark, 1};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(batch.size_bytes());
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(batch.size_bytes());
    std::memcpy(CMSG_DATA(part), batch.data(), batch.size_bytes());
    const ssize_t put = ::sendmsg(destination.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (put > 0) sent_fds_ += batch.size();
    return put;
  }

  std::span<const std::byte> bytes_;
  std::span<const int> fds_;
  std::size_t sent_ = 0;
  std::size_t sent_fds_ = 0;
  bool is_mid_send_ = false;
};

}  // namespace peerbus::detail
