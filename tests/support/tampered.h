// Groups that send what they should not.
#pragma once

#include <xxhash.h>

#include <cstring>
#include <functional>
#include <vector>

#include "dgc/group.h"
#include "dgc/wire.h"

namespace dgc::test {

/// A group whose outgoing messages can be tampered with.
class TamperedGroup final : public Group {
 public:
  TamperedGroup(Group& inner, std::function<void(std::vector<std::byte>&)> tamper)
      : Group(inner.rank(), inner.size(), inner.timeout()),
        inner_(inner),
        tamper_(std::move(tamper)) {}
  std::string_view engine() const noexcept override { return inner_.engine(); }
  std::string host() const override { return inner_.host(); }

 protected:
  void do_exchange(std::span<const Outgoing> sends, std::span<const Incoming> receives,
                   Deadline) override {
    std::vector<std::vector<std::byte>> copies;
    std::vector<Outgoing> out;
    for (const Outgoing& send : sends) {
      tamper_(copies.emplace_back(send.bytes.begin(), send.bytes.end()));
    }
    for (std::size_t i = 0; i < sends.size(); ++i) out.push_back({sends[i].peer, copies[i]});
    inner_.exchange(out, receives);
  }
  int do_swap(std::span<const std::span<const std::byte>> outgoing, std::uint64_t bound,
              std::span<const std::uint64_t> next, std::span<Parcel> from, Deadline) override {
    std::vector<std::vector<std::byte>> copies;
    for (const auto& bytes : outgoing) tamper_(copies.emplace_back(bytes.begin(), bytes.end()));
    const std::vector<std::span<const std::byte>> tampered(copies.begin(), copies.end());
    auto all = inner_.swap(tampered, bound, next);
    for (int r = 0; r < size(); ++r) {
      const auto at = static_cast<std::size_t>(r);
      if (r != rank()) from[at] = std::move(all[at]);
    }
    return 1;
  }
  void announce(const Error& cause) noexcept override { inner_.fail(cause); }

 private:
  Group& inner_;
  std::function<void(std::vector<std::byte>&)> tamper_;
};

inline bool is_message(const std::vector<std::byte>& bytes) {
  return bytes.size() >= kMessageOverhead && std::memcmp(bytes.data(), "DGCM", 4) == 0;
}

/// Makes a message one of another step: valid, checksum and all.
inline void change_step(std::vector<std::byte>& message, std::uint64_t step) {
  std::memcpy(message.data() + 16, &step, sizeof step);
  const std::uint64_t checksum = XXH64(message.data(), message.size() - 8, 0);
  std::memcpy(message.data() + message.size() - 8, &checksum, sizeof checksum);
}

}  // namespace dgc::test
