// Byte-pair encoding, trained on the text at hand. Tokens 0 to 255 are the bytes, and each other
// token is two earlier ones side by side: so every text can be written, and comes back exactly.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dgc::data {

class Bpe {
 public:
  /// Bytes alone.
  Bpe();

  /// Merges the pair that is most frequent, again and again, until there are `vocabulary` tokens or
  /// no pair comes twice. Pairs lie within pieces: a word or a number with the space before it, a
  /// run of punctuation, a run of white space. Equally frequent pairs: the one with the smaller
  /// numbers. So the same text gives the same tokens everywhere.
  /// Throws Error(invalid_argument) for a vocabulary below 256 or above 65,536.
  static Bpe train(std::string_view text, std::int64_t vocabulary);

  std::vector<std::int32_t> encode(std::string_view text) const;
  /// Inverse of encode, for any bytes. Throws Error(invalid_argument) for a number that is no
  /// token.
  std::string decode(const std::vector<std::int32_t>& tokens) const;

  std::int64_t size() const noexcept { return static_cast<std::int64_t>(bytes_.size()); }
  /// What a token stands for.
  const std::string& bytes_of(std::int32_t token) const {
    return bytes_.at(static_cast<std::size_t>(token));
  }

  /// For a file: {"format": "dgc bpe 1", "merges": [[104, 101], …]}. Token 256 + i is merges[i].
  std::string to_json() const;
  /// Throws Error(bad_state), naming `source`.
  static Bpe from_json(std::string_view json, const std::string& source);

 private:
  using Pair = std::pair<std::int32_t, std::int32_t>;
  void add(Pair pair);

  std::vector<Pair> merges_;
  std::vector<std::string> bytes_;  // by token
};

}  // namespace dgc::data
