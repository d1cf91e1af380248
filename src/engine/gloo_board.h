// What the ranks of a group over Gloo tell each other through the store: addresses, why one gave
// up, whom one waits for.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dgc/engines.h"

namespace dgc::detail {

class Board {
 public:
  Board(std::shared_ptr<RendezvousStore> store, std::string name, int rank, int size);

  /// Throws Error(invalid_argument) if this rank has left something in the store before.
  void check_unused();

  void put_address(std::span<const std::byte> address);
  /// Nothing if it is not there within `timeout`.
  std::optional<std::vector<std::byte>> address_of(int peer, std::chrono::milliseconds timeout);

  /// Why this rank gives up.
  void announce(const Error& cause) noexcept;
  /// What another rank announced, as Error(peer_failed); the cause rather than a consequence.
  std::optional<Error> cause() noexcept;

  /// This rank has waited in vain for `peers`.
  void note_late(std::span<const int> peers) noexcept;
  /// The first rank on the way of who waits for whom that is not itself known to be waiting.
  int culprit(std::vector<int> waiting);

  /// Whoever leaves last removes what the group wrote. Earlier the board may still be needed.
  void leave() noexcept;

  bool is_open_to_strangers() const { return store_ && store_->is_open_to_strangers(); }

 private:
  std::string key(const char* what, int of) const;

  std::shared_ptr<RendezvousStore> store_;
  std::string name_;
  int rank_;
  int size_;
};

}  // namespace dgc::detail
