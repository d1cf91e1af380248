// The server of an address store: a map from keys to bytes, for those who have the secret.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/connection.h"

namespace dgc::detail {

/// What it holds at most. Nobody can make it take more memory or more descriptors.
struct StoreLimits {
  /// Connections that have not proved themselves. The oldest gives way to a new one.
  std::size_t strangers = 64;
  /// Connections that have. Further ones are not served.
  std::size_t members = 256;
  std::size_t keys = 16'384;
  std::size_t bytes = std::size_t{16} << 20;  ///< of all keys and values
  /// For an introduction, for a message that has begun, and for an answer to be taken.
  std::chrono::milliseconds patience{10'000};
};

/// Serves until it is destroyed, on one thread of its own. That thread never waits for anybody, so
/// that the destructor does not either.
class StoreServer {
 public:
  /// Throws Error(io) when it cannot listen there.
  StoreServer(const Address& address, std::string secret, const StoreLimits& limits = {});
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  const Address& address() const { return address_; }

 private:
  struct Client;

  void run();
  void accept_new();
  void drop_oldest_stranger();
  /// False: the connection is to be closed.
  bool attend(Client& client);
  bool introduce(Client& client);
  bool answer(Client& client);
  std::vector<std::byte> carry_out(std::span<const std::byte> request);
  std::size_t members() const;

  std::string secret_;
  StoreLimits limits_;
  Socket listener_;
  Address address_;
  Socket wake_;                                   // an eventfd: readable when it is time to end
  std::vector<std::unique_ptr<Client>> clients_;  // in the order in which they came
  std::map<std::string, std::vector<std::byte>, std::less<>> entries_;
  std::size_t bytes_ = 0;
  std::thread thread_;
};

}  // namespace dgc::detail
