// Training counts every different piece once. Of each pair it knows how often it comes and in which
// pieces; a merge changes these pieces alone, so that the whole takes about as long as reading the
// text. A heap has the most frequent pair on top; an entry whose count has changed since is put
// back with its count of today.
//
// Encoding applies the merges to each piece in the order in which they were learned. Pieces come
// again and again, so their tokens are remembered.
#include "data/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <queue>
#include <unordered_map>
#include <unordered_set>

#include "dgc/error.h"

namespace dgc::data {
namespace {

constexpr std::int32_t kBytes = 256;
constexpr std::int64_t kMost = 65'536;
// Bytes. What is longer (a line of dashes, a key in base 64) is cut: encoding takes time that grows
// faster than the piece.
constexpr std::size_t kLongestPiece = 64;
constexpr const char* kFormat = "dgc bpe 1";

enum class Kind { space, letter, digit, other };

Kind kind_of(char c) {
  const auto byte = static_cast<unsigned char>(c);
  if (c == ' ' || (byte >= 9 && byte <= 13)) return Kind::space;
  if (c >= '0' && c <= '9') return Kind::digit;
  // Bytes from 128 on are parts of letters in most texts.
  if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || byte >= 0x80) return Kind::letter;
  return Kind::other;
}

/// The piece that `text`, which is not empty, begins with.
std::string_view first_piece(std::string_view text) {
  std::size_t begin = 0;
  // A single space belongs to what follows it.
  if (text[0] == ' ' && text.size() > 1 && kind_of(text[1]) != Kind::space) begin = 1;
  const Kind kind = kind_of(text[begin]);
  std::size_t end = begin + 1;
  while (end < text.size() && end < kLongestPiece && kind_of(text[end]) == kind) ++end;
  // Of several spaces the last belongs to what follows.
  if (kind == Kind::space && end < text.size() && end > 1 && text[end - 1] == ' ') --end;
  return text.substr(0, end);
}

template <typename Take>
void for_each_piece(std::string_view text, const Take& take) {
  while (!text.empty()) {
    const std::string_view piece = first_piece(text);
    take(piece);
    text.remove_prefix(piece.size());
  }
}

std::uint64_t key_of(std::int32_t left, std::int32_t right) {
  return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) |
         static_cast<std::uint32_t>(right);
}

std::vector<std::int32_t> bytes_of_piece(std::string_view piece) {
  std::vector<std::int32_t> tokens;
  for (const char c : piece) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

/// A different piece of the text, as tokens, and how often it comes.
struct Piece {
  std::vector<std::int32_t> tokens;
  std::int64_t count = 0;
};

struct Candidate {
  std::int64_t count;
  std::uint64_t pair;
  /// The most frequent first, then the one with the smaller numbers.
  bool operator<(const Candidate& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

class Trainer {
 public:
  explicit Trainer(std::string_view text) {
    std::unordered_map<std::string_view, std::size_t> places;
    for_each_piece(text, [&](std::string_view piece) {
      const auto [found, is_new] = places.try_emplace(piece, pieces_.size());
      if (is_new) pieces_.push_back({bytes_of_piece(piece), 0});
      ++pieces_[found->second].count;
    });
    for (std::size_t i = 0; i < pieces_.size(); ++i) count(i, 1);
    for (const auto& [pair, known] : pairs_) heap_.push({known.count, pair});
    changed_.clear();
  }

  /// The most frequent pair that comes at least twice; false if there is none.
  bool next(std::uint64_t& pair) {
    while (!heap_.empty()) {
      const Candidate top = heap_.top();
      heap_.pop();
      const auto found = pairs_.find(top.pair);
      const std::int64_t today = found == pairs_.end() ? 0 : found->second.count;
      if (today != top.count) {
        if (today > 0) heap_.push({today, top.pair});
        continue;
      }
      pair = top.pair;
      return top.count >= 2;
    }
    return false;
  }

  void merge(std::uint64_t pair, std::int32_t merged) {
    const auto left = static_cast<std::int32_t>(pair >> 32);
    const auto right = static_cast<std::int32_t>(pair & 0xffffffffu);
    const std::vector<std::size_t> pieces(pairs_[pair].pieces.begin(), pairs_[pair].pieces.end());
    for (const std::size_t i : pieces) {
      count(i, -1);
      std::vector<std::int32_t>& tokens = pieces_[i].tokens;
      std::size_t out = 0;
      for (std::size_t in = 0; in < tokens.size(); ++in) {
        const bool both = in + 1 < tokens.size() && tokens[in] == left && tokens[in + 1] == right;
        tokens[out++] = both ? merged : tokens[in];
        in += both ? 1 : 0;
      }
      tokens.resize(out);
      count(i, 1);
    }
    pairs_.erase(pair);
    // What has become more frequent has to be seen; what has become rarer is found out on top.
    for (const std::uint64_t other : changed_) {
      const auto found = pairs_.find(other);
      if (found != pairs_.end() && found->second.count > 0) {
        heap_.push({found->second.count, other});
      }
    }
    changed_.clear();
  }

 private:
  struct Known {
    std::int64_t count = 0;
    std::unordered_set<std::size_t> pieces;  // that have, or had, it
  };

  /// Adds a piece's pairs, or takes them away.
  void count(std::size_t i, int sign) {
    const Piece& piece = pieces_[i];
    for (std::size_t t = 0; t + 1 < piece.tokens.size(); ++t) {
      const std::uint64_t pair = key_of(piece.tokens[t], piece.tokens[t + 1]);
      Known& known = pairs_[pair];
      known.count += sign * piece.count;
      if (sign > 0) {
        known.pieces.insert(i);
        changed_.insert(pair);
      }
    }
  }

  std::vector<Piece> pieces_;
  std::unordered_map<std::uint64_t, Known> pairs_;
  std::unordered_set<std::uint64_t> changed_;
  std::priority_queue<Candidate> heap_;
};

}  // namespace

Bpe::Bpe() {
  for (int byte = 0; byte < kBytes; ++byte) bytes_.emplace_back(1, static_cast<char>(byte));
}

void Bpe::add(Pair pair) {
  merges_.push_back(pair);
  bytes_.push_back(bytes_of(pair.first) + bytes_of(pair.second));
}

Bpe Bpe::train(std::string_view text, std::int64_t vocabulary) {
  if (vocabulary < kBytes || vocabulary > kMost) {
    throw Error(ErrorCode::invalid_argument, "read text", "vocabulary",
                fmt::format("{} tokens are asked for", vocabulary),
                fmt::format("byte-pair encoding has from {} to {}", kBytes, kMost));
  }
  Bpe bpe;
  Trainer trainer(text);
  std::uint64_t pair = 0;
  while (bpe.size() < vocabulary && trainer.next(pair)) {
    trainer.merge(pair, static_cast<std::int32_t>(bpe.size()));
    bpe.add({static_cast<std::int32_t>(pair >> 32), static_cast<std::int32_t>(pair & 0xffffffffu)});
  }
  return bpe;
}

std::vector<std::int32_t> Bpe::encode(std::string_view text) const {
  std::unordered_map<std::uint64_t, std::int32_t> merged;
  for (std::size_t i = 0; i < merges_.size(); ++i) {
    merged.emplace(key_of(merges_[i].first, merges_[i].second),
                   kBytes + static_cast<std::int32_t>(i));
  }
  const auto encoded = [&](std::string_view piece) {
    std::vector<std::int32_t> tokens = bytes_of_piece(piece);
    for (;;) {
      // The pair that was learned first, everywhere in the piece.
      std::int32_t first = std::numeric_limits<std::int32_t>::max();
      for (std::size_t t = 0; t + 1 < tokens.size(); ++t) {
        const auto found = merged.find(key_of(tokens[t], tokens[t + 1]));
        if (found != merged.end()) first = std::min(first, found->second);
      }
      if (first == std::numeric_limits<std::int32_t>::max()) return tokens;
      const Pair pair = merges_[static_cast<std::size_t>(first - kBytes)];
      std::size_t out = 0;
      for (std::size_t in = 0; in < tokens.size(); ++in) {
        const bool both =
            in + 1 < tokens.size() && tokens[in] == pair.first && tokens[in + 1] == pair.second;
        tokens[out++] = both ? first : tokens[in];
        in += both ? 1 : 0;
      }
      tokens.resize(out);
    }
  };
  std::vector<std::int32_t> all;
  std::unordered_map<std::string_view, std::vector<std::int32_t>> known;
  for_each_piece(text, [&](std::string_view piece) {
    const auto [found, is_new] = known.try_emplace(piece);
    if (is_new) found->second = encoded(piece);
    all.insert(all.end(), found->second.begin(), found->second.end());
  });
  return all;
}

std::string Bpe::decode(const std::vector<std::int32_t>& tokens) const {
  std::string text;
  for (const std::int32_t token : tokens) {
    if (token < 0 || token >= size()) {
      throw Error(ErrorCode::invalid_argument, "decode", fmt::format("token {}", token),
                  fmt::format("the vocabulary has 0 to {}", size() - 1));
    }
    text += bytes_of(token);
  }
  return text;
}

std::string Bpe::to_json() const {
  nlohmann::ordered_json json = {{"format", kFormat}, {"merges", nlohmann::ordered_json::array()}};
  for (const Pair& pair : merges_) json["merges"].push_back({pair.first, pair.second});
  return json.dump() + "\n";
}

Bpe Bpe::from_json(std::string_view text, const std::string& source) {
  const auto refuse = [&](const std::string& problem) -> Bpe {
    throw Error(ErrorCode::bad_state, "read vocabulary", source, problem,
                "`dgc train` writes such a file into a run's folder");
  };
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || json.value("format", nlohmann::json()) != kFormat ||
      !json.contains("merges") || !json["merges"].is_array()) {
    return refuse("is not a vocabulary of byte pairs");
  }
  Bpe bpe;
  for (const auto& pair : json["merges"]) {
    const auto token = [&](std::size_t i) { return pair[i].get<std::int64_t>(); };
    const bool fits = pair.is_array() && pair.size() == 2 && pair[0].is_number_unsigned() &&
                      pair[1].is_number_unsigned() && token(0) < bpe.size() &&
                      token(1) < bpe.size() && token(0) >= 0 && token(1) >= 0 &&
                      bpe.size() < kMost &&
                      bpe.bytes_of(static_cast<std::int32_t>(token(0))).size() +
                              bpe.bytes_of(static_cast<std::int32_t>(token(1))).size() <=
                          kLongestPiece;
    if (!fits)
      return refuse(fmt::format("merge {} is not two earlier tokens", bpe.size() - kBytes));
    bpe.add({static_cast<std::int32_t>(token(0)), static_cast<std::int32_t>(token(1))});
  }
  return bpe;
}

}  // namespace dgc::data
