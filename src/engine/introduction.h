// How the two ends of a new connection prove to each other that they have the same secret. The
// secret itself is not sent, and what is sent is of no use in another connection.
//
//   connector                                             acceptor
//   hello: mark (8), from (4), to (4), nonce (32)    ->
//                                                    <-   challenge: mark (8), nonce (32)
//   proof: code (32)                                 ->
//                                                    <-   verdict (1), code (32)
//
// A code is the HMAC of who speaks (connector or acceptor), the purpose, from, to and both nonces.
// The connector proves itself first: who only knocks gets nothing that depends on the secret.
//
// Without a secret the same is said with an empty one. That keeps out whoever does not speak this
// protocol, and ranks of other groups.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/secret.h"

namespace dgc::detail {

/// Makes or checks the codes of the messages that follow an introduction, in one direction.
class Seal {
 public:
  explicit Seal(const Mac& key) : key_(key) {}
  /// Of the next message. Each message has its own number, so that none can be sent twice.
  Mac next(std::span<const std::byte> message);

 private:
  Mac key_;
  std::uint64_t count_ = 0;
};

/// One end. It is given what arrives and says what to send; the connection is the caller's.
class Introduction {
 public:
  enum class State {
    going,
    proved,   ///< both have the secret
    refused,  ///< acceptor: the other end could not prove itself; connector: it was told so
    foreign,  ///< the other end does not speak this protocol, or could not prove itself
  };

  /// `purpose` is the same at both ends. `from` and `to` are ranks.
  static Introduction connector(std::string secret, std::string purpose, int from, int to);
  /// `accepts` is asked who may come: from, to.
  static Introduction acceptor(std::string secret, std::string purpose,
                               std::function<bool(int from, int to)> accepts);

  /// What the connector begins with; of the acceptor, nothing.
  std::vector<std::byte> begin() const;
  /// How many bytes the next message of the other end has; 0: there is none.
  std::size_t wants() const;
  /// Takes exactly that many, and returns what to send.
  std::vector<std::byte> take(std::span<const std::byte> message);

  State state() const { return state_; }
  int from() const { return from_; }

  /// For messages after the introduction. Only when proved.
  Seal outgoing() const { return seal(connects_); }
  Seal incoming() const { return seal(!connects_); }

 private:
  enum class Step { hello, challenge, proof, verdict, none };

  Introduction(bool connects, std::string secret, std::string purpose);
  Mac code(const char* speaker) const;
  Seal seal(bool of_connector) const;
  std::vector<std::byte> take_hello(std::span<const std::byte> message);
  std::vector<std::byte> take_challenge(std::span<const std::byte> message);
  std::vector<std::byte> take_proof(std::span<const std::byte> message);
  void take_verdict(std::span<const std::byte> message);

  bool connects_;
  std::string secret_;
  std::string purpose_;
  std::function<bool(int, int)> accepts_;
  Step step_;  // what the other end sends next
  State state_ = State::going;
  int from_ = -1;
  int to_ = -1;
  Nonce connector_nonce_{};
  Nonce acceptor_nonce_{};
};

}  // namespace dgc::detail
