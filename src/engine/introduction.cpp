#include "engine/introduction.h"

#include <algorithm>

#include "engine/bytes.h"

namespace dgc::detail {
namespace {

// The version is in the marks. Those of the two ends differ: an end that hears itself stops there.
constexpr std::string_view kHello = "dgc-hi-1";
constexpr std::string_view kChallenge = "dgc-who1";
constexpr std::size_t kMark = 8;
constexpr std::byte kRefused{0};
constexpr std::byte kAccepted{1};

}  // namespace

Mac Seal::next(std::span<const std::byte> message) {
  std::vector<std::byte> number;
  append_number(number, count_++);
  return mac(key_, {number, message});
}

Introduction::Introduction(bool connects, std::string secret, std::string purpose)
    : connects_(connects),
      secret_(std::move(secret)),
      purpose_(std::move(purpose)),
      step_(connects ? Step::challenge : Step::hello) {
  (connects ? connector_nonce_ : acceptor_nonce_) = fresh_nonce();
}

Introduction Introduction::connector(std::string secret, std::string purpose, int from, int to) {
  Introduction one(true, std::move(secret), std::move(purpose));
  one.from_ = from;
  one.to_ = to;
  return one;
}

Introduction Introduction::acceptor(std::string secret, std::string purpose,
                                    std::function<bool(int, int)> accepts) {
  Introduction one(false, std::move(secret), std::move(purpose));
  one.accepts_ = std::move(accepts);
  return one;
}

std::vector<std::byte> Introduction::begin() const {
  std::vector<std::byte> hello;
  if (!connects_) return hello;
  append(hello, bytes_of(kHello));
  append_number(hello, static_cast<std::uint32_t>(from_));
  append_number(hello, static_cast<std::uint32_t>(to_));
  append(hello, connector_nonce_);
  return hello;
}

std::size_t Introduction::wants() const {
  switch (step_) {
    case Step::hello:
      return kMark + 8 + sizeof(Nonce);
    case Step::challenge:
      return kMark + sizeof(Nonce);
    case Step::proof:
      return sizeof(Mac);
    case Step::verdict:
      return 1 + sizeof(Mac);
    case Step::none:
      break;
  }
  return 0;
}

std::vector<std::byte> Introduction::take(std::span<const std::byte> message) {
  if (step_ == Step::none || message.size() != wants()) {
    state_ = State::foreign;
    step_ = Step::none;
    return {};
  }
  switch (step_) {
    case Step::hello:
      return take_hello(message);
    case Step::challenge:
      return take_challenge(message);
    case Step::proof:
      return take_proof(message);
    case Step::verdict:
    case Step::none:
      take_verdict(message);
      return {};
  }
  return {};
}

std::vector<std::byte> Introduction::take_hello(std::span<const std::byte> message) {
  if (!std::ranges::equal(message.first(kMark), bytes_of(kHello))) {
    state_ = State::foreign;
    step_ = Step::none;
    return {};
  }
  from_ = static_cast<int>(wire::load<std::uint32_t>(message.data() + kMark));
  to_ = static_cast<int>(wire::load<std::uint32_t>(message.data() + kMark + 4));
  std::ranges::copy(message.subspan(kMark + 8), connector_nonce_.begin());
  step_ = Step::proof;
  std::vector<std::byte> challenge;
  append(challenge, bytes_of(kChallenge));
  append(challenge, acceptor_nonce_);
  return challenge;
}

std::vector<std::byte> Introduction::take_challenge(std::span<const std::byte> message) {
  if (!std::ranges::equal(message.first(kMark), bytes_of(kChallenge))) {
    state_ = State::foreign;
    step_ = Step::none;
    return {};
  }
  std::ranges::copy(message.subspan(kMark), acceptor_nonce_.begin());
  step_ = Step::verdict;
  std::vector<std::byte> proof;
  append(proof, code("connector"));
  return proof;
}

std::vector<std::byte> Introduction::take_proof(std::span<const std::byte> message) {
  const bool good = same(message, code("connector")) && accepts_(from_, to_);
  state_ = good ? State::proved : State::refused;
  step_ = Step::none;
  std::vector<std::byte> verdict{good ? kAccepted : kRefused};
  append(verdict, good ? code("acceptor") : Mac{});
  return verdict;
}

void Introduction::take_verdict(std::span<const std::byte> message) {
  step_ = Step::none;
  if (message[0] == kRefused) {
    state_ = State::refused;
  } else {
    state_ = same(message.subspan(1), code("acceptor")) ? State::proved : State::foreign;
  }
}

Mac Introduction::code(const char* speaker) const {
  std::vector<std::byte> ranks;
  append_number(ranks, static_cast<std::uint32_t>(from_));
  append_number(ranks, static_cast<std::uint32_t>(to_));
  return mac(bytes_of(secret_),
             {bytes_of(speaker), bytes_of(purpose_), ranks, connector_nonce_, acceptor_nonce_});
}

Seal Introduction::seal(bool of_connector) const {
  return Seal(code(of_connector ? "messages of the connector" : "messages of the acceptor"));
}

}  // namespace dgc::detail
