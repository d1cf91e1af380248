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

/// Gaps of one block; `next` is the smallest possible position and is moved past the block.
void gaps_of(std::span<const std::uint32_t> block, std::uint32_t& next, Gaps& gaps) noexcept {
  gaps[0] = block[0] - next;
  for (std::size_t i = 1; i < block.size(); ++i) gaps[i] = block[i] - block[i - 1] - 1;
  next = block.back() + 1;
}

/// The gaps of a block and what its parameter is chosen by.
class BlockCost {
 public:
  /// `sum` of the gaps, which callers know from the first and last position.
  BlockCost(std::span<const std::uint32_t> gaps, std::uint64_t sum) noexcept
      : gaps_(gaps), sum_(sum) {
    for (const std::uint32_t gap : gaps) any_ |= gap;
  }

  /// Bits at parameter b, b itself not included.
  std::uint32_t bits(unsigned b) const noexcept {
    const auto count = static_cast<std::uint32_t>(gaps_.size());
    std::uint32_t total = 0;
    if (any_ >> b < kRiceEscape) {
      for (const std::uint32_t gap : gaps_) total += gap >> b;
      return total + count * (1 + b);
    }
    for (const std::uint32_t gap : gaps_) {
      const std::uint32_t quotient = gap >> b;
      total += quotient < kRiceEscape ? quotient + 1 + b : kRiceEscape + 32;
    }
    return total;
  }

  /// The parameter of the mean gap, rounded down.
  unsigned start() const noexcept {
    const std::uint64_t mean = sum_ / gaps_.size();
    return mean == 0 ? 0 : static_cast<unsigned>(std::bit_width(mean) - 1);
  }

 private:
  std::span<const std::uint32_t> gaps_;
  std::uint64_t sum_;
  std::uint32_t any_ = 0;  // all gaps or-ed: at least the largest one
};

struct RiceChoice {
  unsigned b;
  std::uint32_t bits;
};

/// Descends from the parameter of the mean gap to the nearest minimum of the cost. Starting there
/// is what index_bound relies on; without escapes the cost is convex in b, so the minimum is
/// global.
RiceChoice best_rice(const BlockCost& cost) noexcept {
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

struct Code {
  std::uint64_t bits;
  unsigned width;
};
/// Of a gap that is not escaped.
Code code_of(std::uint32_t gap, unsigned b) noexcept {
  const unsigned quotient = gap >> b;
  const std::uint64_t low = gap & ((std::uint32_t{1} << b) - 1);
  return {((2 * low + 1) << quotient) - 1, quotient + 1 + b};
}

Code joined(const Code& first, const Code& second) noexcept {
  return {first.bits | second.bits << first.width, first.width + second.width};
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

void put_block(FastWriter& writer, std::span<const std::uint32_t, kBlock> gaps,
               unsigned b) noexcept {
  writer.put(b, kRiceParameterBits);
  std::uint32_t any = 0;
  for (const std::uint32_t gap : gaps) any |= gap;
  // Four codes of at most 14 bits fit one append, or two of at most 28.
  const std::uint64_t widest = std::uint64_t{any >> b} + 1 + b;
  if (widest > 28) {
    for (const std::uint32_t gap : gaps) put_gap(writer, gap, b);
    return;
  }
  if (widest <= 14) {
    for (std::size_t i = 0; i < kBlock; i += 4) {
      const Code first = joined(code_of(gaps[i], b), code_of(gaps[i + 1], b));
      const Code second = joined(code_of(gaps[i + 2], b), code_of(gaps[i + 3], b));
      const Code all = joined(first, second);
      writer.put(all.bits, all.width);
    }
    return;
  }
  for (std::size_t i = 0; i < kBlock; i += 2) {
    const Code both = joined(code_of(gaps[i], b), code_of(gaps[i + 1], b));
    writer.put(both.bits, both.width);
  }
}

}  // namespace

RicePlan plan_rice(std::span<const std::uint32_t> indices) {
  RicePlan plan;
  plan.parameters.resize(blocks_of(indices.size()));
  Gaps gaps;
  std::uint32_t next = 0;
  for (std::size_t block = 0; block < plan.parameters.size(); ++block) {
    const std::size_t begin = block * kBlock;
    const std::size_t count = std::min(kBlock, indices.size() - begin);
    const std::uint64_t before = next;
    gaps_of(indices.subspan(begin, count), next, gaps);
    const std::uint64_t sum = next - before - count;
    const RiceChoice choice = best_rice(BlockCost({gaps.data(), count}, sum));
    plan.parameters[block] = static_cast<std::uint8_t>(choice.b);
    plan.bits += kRiceParameterBits + choice.bits;
  }
  return plan;
}

std::byte* encode_rice(const RicePlan& plan, std::span<const std::uint32_t> indices,
                       std::byte* out) noexcept {
  Gaps gaps;
  std::uint32_t next = 0;
  // The fast writer needs room behind it: the last block but one has 261 bits at least.
  const std::size_t blocks = plan.parameters.size();
  const std::size_t fast_blocks = blocks > 2 ? blocks - 2 : 0;
  FastWriter fast(out);
  for (std::size_t block = 0; block < fast_blocks; ++block) {
    gaps_of(indices.subspan(block * kBlock, kBlock), next, gaps);
    put_block(fast, gaps, plan.parameters[block]);
  }
  BitWriter writer = fast.careful();
  for (std::size_t block = fast_blocks; block < blocks; ++block) {
    const std::size_t begin = block * kBlock;
    const std::size_t count = std::min(kBlock, indices.size() - begin);
    gaps_of(indices.subspan(begin, count), next, gaps);
    const unsigned b = plan.parameters[block];
    writer.put(b, kRiceParameterBits);
    for (std::size_t i = 0; i < count; ++i) put_gap(writer, gaps[i], b);
  }
  return writer.finish();
}

void RiceEncoder::add(std::span<const std::uint32_t> block) noexcept {
  if (block.empty() || !fits()) return;
  Gaps gaps;
  const std::uint64_t before = next_;
  gaps_of(block, next_, gaps);
  const std::uint64_t sum = next_ - before - block.size();
  const RiceChoice choice = best_rice(BlockCost({gaps.data(), block.size()}, sum));
  bits_ += kRiceParameterBits + choice.bits;
  if (!fits()) return;
  if (!careful_ && block.size() == kBlock && bytes() + 8 <= room_) {
    put_block(fast_, gaps, choice.b);
    return;
  }
  if (!careful_) careful_ = fast_.careful();
  careful_->put(choice.b, kRiceParameterBits);
  for (std::size_t i = 0; i < block.size(); ++i) put_gap(*careful_, gaps[i], choice.b);
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
