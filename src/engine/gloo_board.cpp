#include "engine/gloo_board.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <iterator>
#include <sstream>
#include <utility>

#include "engine/bytes.h"

namespace dgc::detail {
namespace {

/// Everything a rank may have in the store.
constexpr std::array kKeys{"address", "failed", "late", "closed"};
/// A cause is a line. Stores have limits.
constexpr std::size_t kLongestCause = 16 * 1024;

std::vector<int> numbers(std::span<const std::byte> text) {
  std::istringstream stream{std::string(text_of(text))};
  return {std::istream_iterator<int>(stream), {}};
}

}  // namespace

Board::Board(std::shared_ptr<RendezvousStore> store, std::string name, int rank, int size)
    : store_(std::move(store)), name_(std::move(name)), rank_(rank), size_(size) {}

std::string Board::key(const char* what, int of) const {
  return fmt::format("{}/{}.{}", name_, what, of);
}

void Board::check_unused() {
  for (const char* const what : kKeys) {
    if (!store_->try_get(key(what, rank_))) continue;
    throw Error(ErrorCode::invalid_argument, "rendezvous", fmt::format("rank {}", rank_),
                fmt::format("the store has '{}' already", key(what, rank_)),
                "every run needs a store or a name of its own, every process a rank of its own");
  }
}

void Board::put_address(std::span<const std::byte> address) {
  store_->set(key("address", rank_), address);
}

std::optional<std::vector<std::byte>> Board::address_of(int peer,
                                                        std::chrono::milliseconds timeout) {
  return store_->get(key("address", peer), timeout);
}

void Board::announce(const Error& cause) noexcept {
  try {
    std::string text = fmt::format("{}\n{}", static_cast<int>(cause.code()), cause.what());
    if (text.size() > kLongestCause) text.resize(kLongestCause);
    store_->set(key("failed", rank_), bytes_of(text));
  } catch (const std::exception&) {
    // The closed connections say at least that something happened.
  }
}

std::optional<Error> Board::cause() noexcept {
  try {
    int who = -1;
    std::string cause;
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      const auto entry = store_->try_get(key("failed", peer));
      if (!entry) continue;
      const std::string_view text = text_of(*entry);
      const auto line = text.find('\n');
      const std::string_view code = text.substr(0, line);
      const bool consequence = code == std::to_string(static_cast<int>(ErrorCode::peer_lost)) ||
                               code == std::to_string(static_cast<int>(ErrorCode::timeout));
      // Something that went wrong at a rank explains connections that broke elsewhere.
      if (who >= 0 && consequence) continue;
      who = peer;
      cause = line == std::string_view::npos ? text : text.substr(line + 1);
      if (!consequence) break;
    }
    if (who < 0) return std::nullopt;
    return Error(ErrorCode::peer_failed, "exchange", fmt::format("rank {}", who),
                 "gave up: " + cause);
  } catch (const std::exception&) {
    return std::nullopt;  // a store that went with its rank; the caller names the peer that it lost
  }
}

void Board::note_late(std::span<const int> peers) noexcept {
  try {
    const std::string list = fmt::format("{}", fmt::join(peers, " "));
    store_->set(key("late", rank_), bytes_of(list));
  } catch (const std::exception&) {
    // Others may then suspect this rank, and are wrong, but they end.
  }
}

int Board::culprit(std::vector<int> waiting) {
  const int fallback = waiting.front();
  for (int step = 0; step < size_; ++step) {
    std::vector<int> next;
    for (const int peer : waiting) {
      if (peer == rank_) continue;
      std::optional<std::vector<std::byte>> entry;
      try {
        entry = store_->try_get(key("late", peer));
      } catch (const std::exception&) {
        return fallback;
      }
      if (!entry) return peer;
      if (next.empty()) next = numbers(*entry);
    }
    if (next.empty()) return fallback;
    waiting = std::move(next);
  }
  return fallback;  // in a circle: calls in different orders
}

void Board::leave() noexcept {
  try {
    const std::byte mark{1};
    store_->set(key("closed", rank_), {&mark, 1});
    for (int peer = 0; peer < size_; ++peer) {
      if (!store_->try_get(key("closed", peer))) return;
    }
  } catch (const std::exception&) {
    return;
  }
  for (int peer = 0; peer < size_; ++peer) {
    for (const char* const what : kKeys) store_->remove(key(what, peer));
  }
}

}  // namespace dgc::detail
