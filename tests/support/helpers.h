// Small models and gradients for tests.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dgc/dgc.h"

namespace dgc::test {

using Tensors = std::vector<std::vector<float>>;

inline TensorSpec sparse(std::string name, std::int64_t elements) {
  return {std::move(name), {elements}, false};
}

/// How often a test repeats something. Sanitizers make that five to twenty times slower: there it
/// is `some`, unless DGC_STORM=1 asks for `all`, as `make check-all` does.
inline int repeats(int all, [[maybe_unused]] int some) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr bool kSanitized = true;
#elif defined(__has_feature)
  constexpr bool kSanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
  constexpr bool kSanitized = false;
#endif
  const char* const storm = std::getenv("DGC_STORM");
  return kSanitized && (storm == nullptr || std::string_view(storm) != "1") ? some : all;
}

/// The code of the Error that `work` throws, or ok.
inline ErrorCode code_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::ok;
}

/// One worker: state, compressor and message buffer.
struct Worker {
  Worker(std::vector<TensorSpec> specs, CompressOptions options, std::uint32_t rank = 0,
         std::uint32_t workers = 1)
      : state(std::move(specs), rank, workers, options.needs_velocity()),
        compressor(state, std::move(options)) {}

  /// Compresses one gradient per tensor; the message of this step.
  std::vector<std::byte> compress(const Tensors& gradients, const Compressor::Call& call = {}) {
    std::vector<Gradient> list;
    for (std::size_t i = 0; i < gradients.size(); ++i) list.push_back({i, gradients[i]});
    std::vector<std::byte> message(compressor.bound());
    message.resize(compressor.compress(list, message, call));
    return message;
  }
  std::vector<std::byte> step(const Tensors& gradients) {
    auto message = compress(gradients);
    compressor.commit();
    return message;
  }

  State state;
  Compressor compressor;
};

inline Tensors gaussian(const std::vector<TensorSpec>& specs, std::mt19937& random,
                        float scale = 1.0f) {
  std::normal_distribution<float> sample(0.0f, scale);
  Tensors tensors;
  for (const TensorSpec& spec : specs) {
    auto& tensor = tensors.emplace_back(spec.elements());
    for (float& x : tensor) x = sample(random);
  }
  return tensors;
}

/// Bit equality, so that -0 and 0 differ and NaN equals itself.
inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

}  // namespace dgc::test
