// libtorch's TCPStore as a RendezvousStore: errors in one line, and no wait that outlives its call.
// Only as a client, and only under torchrun, whose agent serves it. (A server of it waits for
// whoever connects, also in its destructor.)
#include "torch/agent_store.h"

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <stdexcept>

#include "base/environment.h"
#include "engine/agent_store.h"
#include "engine/poll_store.h"

namespace dgc {
namespace {

class AgentStore final : public RendezvousStore {
 public:
  AgentStore(const std::string& host, const c10d::TCPStoreOptions& options)
      : address_(fmt::format("{}:{}", host, options.port)),
        // The agent's store outlives workers that it starts anew.
        prefix_(fmt::format("dgc-{}/", variable("TORCHELASTIC_RESTART_COUNT").value_or("0"))),
        store_(reach([&] { return std::make_unique<c10d::TCPStore>(host, options); })) {}

  void set(const std::string& key, std::span<const std::byte> value) override {
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(value.data());
    reach([&] {
      store_->set(prefix_ + key, std::vector<std::uint8_t>(bytes, bytes + value.size()));
    });
  }

  std::optional<std::vector<std::byte>> get(const std::string& key,
                                            std::chrono::milliseconds timeout) override {
    // Not TCPStore's own wait: one that ran out of time stays registered at the server, and is
    // answered in the middle of a later call.
    return detail::poll_store(*this, key, timeout);
  }

  std::optional<std::vector<std::byte>> try_get(const std::string& key) override {
    return reach([&]() -> std::optional<std::vector<std::byte>> {
      if (!store_->check({prefix_ + key})) return {};
      const std::vector<std::uint8_t> value = store_->get(prefix_ + key);
      const auto* const bytes = reinterpret_cast<const std::byte*>(value.data());
      return std::vector<std::byte>(bytes, bytes + value.size());
    });
  }

  void remove(const std::string& key) noexcept override {
    try {
      reach([&] { store_->deleteKey(prefix_ + key); });
    } catch (const std::exception&) {  // the agent may be gone already, and the key with it
    }
  }

 private:
  /// libtorch's errors carry a stack trace; the first line is what a user can read.
  template <typename Work>
  auto reach(Work&& work) -> decltype(work()) {
    try {
      if (!gone_.empty()) throw std::runtime_error(gone_);
      return work();
    } catch (const std::exception& error) {
      const std::string text = error.what();
      // Each further call would wait for the server as long as this one did.
      gone_ = text.substr(0, text.find('\n'));
      throw Error(
          ErrorCode::io, "rendezvous", address_, gone_,
          "torchrun's agent must serve its store there (TORCHELASTIC_USE_AGENT_STORE is True)");
    }
  }

  std::string address_;
  std::string prefix_;  // of keys
  std::string gone_;    // why the server cannot be reached any more
  std::unique_ptr<c10d::TCPStore> store_;
};

std::shared_ptr<RendezvousStore> make_agent_store(const std::string& host, std::uint16_t port,
                                                  int size, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = false;
  options.numWorkers = static_cast<std::size_t>(size);
  options.waitWorkers = false;  // the group waits for its ranks itself, and names who is missing
  options.timeout = timeout;
  return std::make_shared<AgentStore>(host, options);
}

}  // namespace

bool detail::know_agent_store() noexcept {
  agent_store_maker() = &make_agent_store;
  return true;
}

}  // namespace dgc
