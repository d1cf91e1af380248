// Ranks compare what they are before the first step, and what they have become every so often.
#include <fmt/format.h>
#include <xxhash.h>

#include <cstring>

#include "base/difference.h"
#include "dgc/collectives.h"
#include "exchange/context.h"
#include "exchange/rules.h"

namespace dgc::exchange {

void handshake(Group& group, const std::string& description) {
  constexpr std::uint64_t kLimit = std::uint64_t{1} << 26;
  std::vector<std::string> texts;
  for (const auto& bytes : all_gather(group, std::as_bytes(std::span(description)), kLimit)) {
    texts.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  if (const auto difference = first_difference(texts)) {
    throw Error(ErrorCode::configuration_mismatch, "handshake",
                fmt::format("rank {}", difference->rank), difference->text(),
                "start all ranks with the same model, options and checkpoint");
  }
}

std::uint64_t hash_of(std::span<const std::span<float>> parameters) {
  std::uint64_t hash = 0;
  for (const auto& tensor : parameters) hash = XXH64(tensor.data(), tensor.size_bytes(), hash);
  return hash;
}

void compare_parameters(Group& group, std::span<const std::span<float>> parameters,
                        std::uint64_t step) {
  const std::uint64_t hash = hash_of(parameters);
  std::vector<std::uint64_t> all(static_cast<std::size_t>(group.size()));
  const auto bytes = all_gather(group, std::as_bytes(std::span(&hash, 1)), sizeof hash);
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (bytes[r].size() == sizeof hash) std::memcpy(&all[r], bytes[r].data(), sizeof hash);
  }
  compare_hashes(all, step);
}

}  // namespace dgc::exchange
