// Rice codes; rice.h has the scheme.
#include "wire/rice.h"

#include <algorithm>
#include <array>
#include <bit>

#include "wire/bits.h"
#include "wire/values.h"

namespace dgc::wire {
namespace {

using Gaps = std::array<std::uint32_t, kBlock>;

/// A block's gaps and what its parameter is chosen by.
class Block {
 public:
  /// `next` is the smallest possible position and is moved past the block.
  Block(const RiceKernels& kernels, std::span<const std::uint32_t> positions,
        std::uint32_t& next) noexcept
      : kernels_(kernels), count_(positions.size()) {
    sum_ = std::uint64_t{positions.back()} + 1 - next - count_;
    if (count_ == kBlock) {
      any_ = kernels.gaps(positions.data(), next, gaps_.data());
    } else {
      for (std::size_t i = 0; i < count_; ++i) {
        gaps_[i] = positions[i] - (i == 0 ? next : positions[i - 1] + 1);
        any_ |= gaps_[i];
      }
    }
    next = positions.back() + 1;
  }

  std::span<const std::uint32_t> gaps() const noexcept { return {gaps_.data(), count_}; }
  /// All gaps or-ed: at least the largest one.
  std::uint32_t any() const noexcept { return any_; }

  /// Bits at parameter b, b itself not included.
  std::uint32_t bits(unsigned b) const noexcept {
    const auto count = static_cast<std::uint32_t>(count_);
    if (any_ >> b < kRiceEscape && count == kBlock) {
      return kernels_.quotients(gaps_.data(), b) + count * (1 + b);
    }
    std::uint32_t total = 0;
    for (const std::uint32_t gap : gaps()) {
      const std::uint32_t quotient = gap >> b;
      total += quotient < kRiceEscape ? quotient + 1 + b : kRiceEscape + 32;
    }
    return total;
  }

  /// The parameter of the mean gap, rounded down.
  unsigned start() const noexcept {
    const std::uint64_t mean = sum_ / count_;
    return mean == 0 ? 0 : static_cast<unsigned>(std::bit_width(mean) - 1);
  }

 private:
  const RiceKernels& kernels_;
  std::size_t count_;
  std::uint64_t sum_;
  std::uint32_t any_ = 0;
  Gaps gaps_;
};

std::span<const std::uint32_t> block_of(std::span<const std::uint32_t> indices,
                                        std::size_t block) noexcept {
  const std::size_t begin = block * kBlock;
  return indices.subspan(begin, std::min(kBlock, indices.size() - begin));
}

struct RiceChoice {
  unsigned b;
  std::uint32_t bits;
};

/// Descends from the parameter of the mean gap to the nearest minimum of the cost. Starting there
/// is what index_bound relies on; without escapes the cost is convex in b, so the minimum is
/// global.
RiceChoice best_rice(const Block& cost) noexcept {
  const unsigned start = cost.start();
  RiceChoice best{start, cost.bits(start)};
  for (unsigned b = start; b-- > 0;) {
    const std::uint32_t bits = cost.bits(b);
    if (bits >= best.bits) break;
    best = {b, bits};
  }
  if (best.b != start) return best;
  for (unsigned b = start + 1; b < 32; ++b) {
    const std::uint32_t bits = cost.bits(b);
    if (bits >= best.bits) break;
    best = {b, bits};
  }
  return best;
}

template <typename Writer>
void put_gap(Writer& writer, std::uint32_t gap, unsigned b) noexcept {
  if (gap >> b >= kRiceEscape) {
    writer.put(0xFFFFFFFFu, kRiceEscape);
    writer.put(gap, 32);
    return;
  }
  const unsigned quotient = gap >> b;
  writer.put((std::uint64_t{1} << quotient) - 1, quotient + 1);
  writer.put(gap & ((std::uint32_t{1} << b) - 1), b);
}

template <typename Writer>
void put_each(Writer& writer, const Block& block, unsigned b) noexcept {
  writer.put(b, kRiceParameterBits);
  for (const std::uint32_t gap : block.gaps()) put_gap(writer, gap, b);
}

/// A whole block.
void put_block(FastWriter& to, const RiceKernels& kernels, const Block& block,
               unsigned b) noexcept {
  if (std::uint64_t{block.any() >> b} + 1 + b > kWidestJoined) {
    put_each(to, block, b);
    return;
  }
  JoinedCodes codes;
  const std::size_t words = kernels.join(block.gaps().data(), b, codes);
  FastWriter writer = to;  // which the bytes it writes cannot point into
  writer.put(b, kRiceParameterBits);
  for (std::size_t i = 0; i < words; ++i) {
    writer.put(codes.bits[i], static_cast<unsigned>(codes.widths[i]));
  }
  to = writer;
}

}  // namespace

RicePlan plan_rice(std::span<const std::uint32_t> indices) {
  const RiceKernels& kernels = rice_kernels();
  RicePlan plan;
  plan.parameters.resize(blocks_of(indices.size()));
  std::uint32_t next = 0;
  for (std::size_t at = 0; at < plan.parameters.size(); ++at) {
    const Block block(kernels, block_of(indices, at), next);
    const RiceChoice choice = best_rice(block);
    plan.parameters[at] = static_cast<std::uint8_t>(choice.b);
    plan.bits += kRiceParameterBits + choice.bits;
  }
  return plan;
}

std::byte* encode_rice(const RicePlan& plan, std::span<const std::uint32_t> indices,
                       std::byte* out) noexcept {
  const RiceKernels& kernels = rice_kernels();
  std::uint32_t next = 0;
  // The fast writer needs room behind it: the last block but one has 261 bits at least.
  const std::size_t blocks = plan.parameters.size();
  const std::size_t fast_blocks = blocks > 2 ? blocks - 2 : 0;
  FastWriter fast(out);
  for (std::size_t at = 0; at < fast_blocks; ++at) {
    const Block block(kernels, block_of(indices, at), next);
    put_block(fast, kernels, block, plan.parameters[at]);
  }
  BitWriter writer = fast.careful();
  for (std::size_t at = fast_blocks; at < blocks; ++at) {
    const Block block(kernels, block_of(indices, at), next);
    put_each(writer, block, plan.parameters[at]);
  }
  return writer.finish();
}

void RiceEncoder::add(std::span<const std::uint32_t> positions) noexcept {
  if (positions.empty() || !fits()) return;
  const Block block(kernels_, positions, next_);
  const RiceChoice choice = best_rice(block);
  bits_ += kRiceParameterBits + choice.bits;
  if (!fits()) return;
  if (!careful_ && positions.size() == kBlock && bytes() + 8 <= room_) {
    put_block(fast_, kernels_, block, choice.b);
    return;
  }
  if (!careful_) careful_ = fast_.careful();
  put_each(*careful_, block, choice.b);
}

void RiceEncoder::finish() noexcept {
  if (!fits()) return;
  if (!careful_) careful_ = fast_.careful();
  careful_->finish();
}

std::uint64_t RiceReader::peek() const noexcept {
  const std::size_t at = position_ >> 3;
  std::uint64_t word = 0;
  if (at + 8 <= bytes_) {
    word = load<std::uint64_t>(data_ + at);
  } else if (at < bytes_) {
    std::memcpy(&word, data_ + at, bytes_ - at);
  }
  return word >> (position_ & 7);
}

std::uint64_t RiceReader::take(unsigned width) noexcept {
  const std::uint64_t value = peek() & ((std::uint64_t{1} << width) - 1);
  position_ += width;
  return value;
}

std::uint64_t RiceReader::read_one(unsigned b) noexcept {
  const auto quotient = static_cast<unsigned>(std::countr_one(peek()));
  if (quotient >= kRiceEscape) {
    position_ += kRiceEscape;
    return take(32);
  }
  position_ += quotient + 1;
  return std::uint64_t{quotient} << b | take(b);
}

/// Codes of kGroup at a time, from one load each.
template <bool kStore, std::size_t kGroup>
void RiceReader::read_codes(std::size_t count, unsigned b, std::uint32_t* out) noexcept {
  // The top bit is set, so that shifts fill the window with ones: there is always a lowest set bit.
  constexpr std::uint64_t kTop = std::uint64_t{1} << 63;
  constexpr unsigned kUsable = 56;  // whatever the position within a byte
  const std::uint64_t low = (std::uint64_t{1} << b) - 1;
  std::uint64_t next = next_;
  std::size_t position = position_;
  std::size_t i = 0;
  while (i < count) {
    const std::size_t at = position >> 3;
    if (i + kGroup <= count && at + 8 <= bytes_) {
      const std::uint64_t word = load<std::uint64_t>(data_ + at) >> (position & 7);
      auto window = static_cast<std::int64_t>(~word | kTop);
      unsigned used = kGroup * (b + 1);
      unsigned longest = 0;
      std::uint64_t reached = next;
      for (std::size_t j = 0; j < kGroup; ++j) {
        const auto quotient =
            static_cast<unsigned>(std::countr_zero(static_cast<std::uint64_t>(window)));
        window >>= quotient;
        const std::uint64_t rest = ~static_cast<std::uint64_t>(window >> 1) & low;
        window >>= b + 1;
        reached += (std::uint64_t{quotient} << b) + rest;
        if constexpr (kStore) out[i + j] = static_cast<std::uint32_t>(reached);
        ++reached;
        used += quotient;
        longest |= quotient;
      }
      // A quotient of 32 or more has a bit that no other has.
      if (used <= kUsable && longest < kRiceEscape) {
        next = reached;
        position += used;
        i += kGroup;
        continue;
      }
    }
    position_ = position;
    next += read_one(b);
    position = position_;
    if constexpr (kStore) out[i] = static_cast<std::uint32_t>(next);
    ++next;
    ++i;
  }
  position_ = position;
  next_ = next;
}

template <bool kStore>
ErrorCode RiceReader::read_block(std::size_t count, std::uint32_t* out) noexcept {
  const auto b = static_cast<unsigned>(take(kRiceParameterBits));
  // As many codes as usually fit a load: one takes about b + 2.5 bits.
  if (b <= 3) {
    read_codes<kStore, 8>(count, b, out);
  } else if (b <= 5) {
    read_codes<kStore, 6>(count, b, out);
  } else if (b <= 9) {
    read_codes<kStore, 4>(count, b, out);
  } else if (b <= 14) {
    read_codes<kStore, 3>(count, b, out);
  } else {
    read_codes<kStore, 1>(count, b, out);
  }
  // Positions only grow, and by at most 2^44 in a block: one check at its end covers all of them.
  if (position_ > bytes_ * 8) return ErrorCode::truncated;
  if (next_ > elements_) return ErrorCode::index_out_of_range;
  return ErrorCode::ok;
}

ErrorCode RiceReader::next_block(std::size_t count, std::uint32_t* out) noexcept {
  return read_block<true>(count, out);
}

ErrorCode RiceReader::skip_block(std::size_t count) noexcept {
  return read_block<false>(count, nullptr);
}

ErrorCode RiceReader::finish() const noexcept {
  if (position_ > bytes_ * 8 || bytes_ * 8 - position_ >= 8) return ErrorCode::trailing_bytes;
  return peek() == 0 ? ErrorCode::ok : ErrorCode::reserved_bits;
}

}  // namespace dgc::wire
