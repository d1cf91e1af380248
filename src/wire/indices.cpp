// The codings themselves; indices.h has the scheme and docs/format.md, "Positions", the bits.
#include "wire/indices.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "wire/values.h"

namespace dgc::wire {
namespace {

using Gaps = std::array<std::uint32_t, kBlock>;

/// Gaps of one block; `next` is the smallest possible position and is moved past the block.
std::span<const std::uint32_t> gaps_of(std::span<const std::uint32_t> block, std::uint32_t& next,
                                       Gaps& gaps) noexcept {
  for (std::size_t i = 0; i < block.size(); ++i) {
    gaps[i] = block[i] - next;
    next = block[i] + 1;
  }
  return {gaps.data(), block.size()};
}

std::uint64_t rice_cost(std::span<const std::uint32_t> gaps, unsigned b) noexcept {
  std::uint64_t bits = 0;
  for (const std::uint32_t gap : gaps) {
    const std::uint32_t quotient = gap >> b;
    bits += quotient < kRiceEscape ? quotient + 1 + b : kRiceEscape + 32;
  }
  return bits;
}

struct RiceChoice {
  unsigned b;
  std::uint64_t bits;
};

/// Descends from the parameter of the mean gap to the nearest minimum of the cost. Starting there
/// is what index_bound relies on; without escapes the cost is convex in b, so the minimum is
/// global.
RiceChoice best_rice(std::span<const std::uint32_t> gaps) noexcept {
  std::uint64_t sum = 0;
  for (const std::uint32_t gap : gaps) sum += gap;
  const std::uint64_t mean = gaps.empty() ? 0 : sum / gaps.size();
  const auto start = static_cast<unsigned>(mean == 0 ? 0 : std::bit_width(mean) - 1);
  RiceChoice best{start, rice_cost(gaps, start)};
  for (unsigned b = start; b-- > 0;) {
    const std::uint64_t bits = rice_cost(gaps, b);
    if (bits >= best.bits) break;
    best = {b, bits};
  }
  if (best.b != start) return best;
  for (unsigned b = start + 1; b < 32; ++b) {
    const std::uint64_t bits = rice_cost(gaps, b);
    if (bits >= best.bits) break;
    best = {b, bits};
  }
  return best;
}

template <typename PerBlock>
void for_each_block(std::span<const std::uint32_t> indices, PerBlock&& per_block) {
  Gaps storage;
  std::uint32_t next = 0;
  for (std::size_t begin = 0; begin < indices.size(); begin += kBlock) {
    per_block(
        gaps_of(indices.subspan(begin, std::min(kBlock, indices.size() - begin)), next, storage));
  }
}

std::byte* encode_runs(std::span<const std::uint32_t> indices, std::byte* out) noexcept {
  const auto put = [&out](std::uint32_t run) {
    store(out, static_cast<std::uint16_t>(run));
    out += 2;
  };
  std::uint32_t next = 0;
  for (const std::uint32_t index : indices) {
    std::uint32_t gap = index - next;
    for (; gap >= kRunEscape; gap -= kRunEscape) put(kRunEscape);
    put(gap);
    next = index + 1;
  }
  return out;
}

std::byte* encode_rice(std::span<const std::uint32_t> indices, std::byte* out) noexcept {
  BitWriter writer(out);
  for_each_block(indices, [&writer](std::span<const std::uint32_t> gaps) {
    const unsigned b = best_rice(gaps).b;
    const std::uint32_t low = (std::uint32_t{1} << b) - 1;
    writer.put(b, kRiceParameterBits);
    for (const std::uint32_t gap : gaps) {
      const std::uint32_t quotient = gap >> b;
      if (quotient < kRiceEscape) {
        writer.put((std::uint64_t{1} << quotient) - 1, quotient + 1);
        writer.put(gap & low, b);
      } else {
        writer.put(0xFFFFFFFFu, kRiceEscape);
        writer.put(gap, 32);
      }
    }
  });
  return writer.finish();
}

std::byte* encode_bitmap(std::span<const std::uint32_t> indices, std::uint64_t elements,
                         std::byte* out) noexcept {
  std::byte* const end = out + (elements + 7) / 8;
  std::fill(out, end, std::byte{0});
  for (const std::uint32_t index : indices) out[index >> 3] |= std::byte{1} << (index & 7);
  return end;
}

}  // namespace

std::size_t index_bytes(IndexCoding coding, std::span<const std::uint32_t> indices,
                        std::uint64_t elements) noexcept {
  switch (coding) {
    case IndexCoding::runs: {
      std::size_t words = indices.size();
      std::uint32_t next = 0;
      for (const std::uint32_t index : indices) {
        words += (index - next) / kRunEscape;
        next = index + 1;
      }
      return words * 2;
    }
    case IndexCoding::rice: {
      std::uint64_t bits = 0;
      for_each_block(indices, [&bits](std::span<const std::uint32_t> gaps) {
        bits += kRiceParameterBits + best_rice(gaps).bits;
      });
      return (bits + 7) / 8;
    }
    case IndexCoding::bitmap:
      return (elements + 7) / 8;
    default:
      return 0;
  }
}

std::size_t index_bound(IndexCoding coding, std::uint64_t entries,
                        std::uint64_t elements) noexcept {
  switch (coding) {
    case IndexCoding::runs:
      return 2 * (entries + elements / kRunEscape);
    case IndexCoding::rice: {
      // At b = floor(log2(mean gap)) a block of c entries costs at most c (b + 1) bits, 2c of unary
      // and 2c of escapes; log2 is concave, so equal blocks are the worst case.
      // The real logarithm, unlike its floor, makes the bound grow with the number of entries.
      if (entries == 0) return 0;
      const double k = static_cast<double>(entries);
      const double per_entry = 5.0 + std::log2(static_cast<double>(elements) / k);
      const double bits =
          k * per_entry + static_cast<double>(blocks_of(entries) * kRiceParameterBits);
      return static_cast<std::size_t>(bits / 8.0) + 2;
    }
    case IndexCoding::bitmap:
      return (elements + 7) / 8;
    default:
      return 0;
  }
}

std::byte* encode_indices(IndexCoding coding, std::span<const std::uint32_t> indices,
                          std::uint64_t elements, std::byte* out) noexcept {
  switch (coding) {
    case IndexCoding::runs:
      return encode_runs(indices, out);
    case IndexCoding::rice:
      return encode_rice(indices, out);
    case IndexCoding::bitmap:
      return encode_bitmap(indices, elements, out);
    default:
      return out;
  }
}

IndexReader::IndexReader(IndexCoding coding, std::span<const std::byte> section,
                         std::uint64_t elements) noexcept
    : coding_(coding), section_(section), elements_(elements), bits_(section) {}

ErrorCode IndexReader::next_block(std::size_t count, std::uint32_t* out) noexcept {
  switch (coding_) {
    case IndexCoding::runs:
      return next_runs(count, out);
    case IndexCoding::rice:
      return next_rice(count, out);
    case IndexCoding::bitmap:
      return next_bitmap(count, out);
    default:
      for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<std::uint32_t>(next_ + i);
      next_ += count;
      return ErrorCode::ok;
  }
}

ErrorCode IndexReader::next_runs(std::size_t count, std::uint32_t* out) noexcept {
  for (std::size_t i = 0; i < count;) {
    if (section_.size() - consumed_ < 2) return ErrorCode::truncated;
    const std::uint32_t run = load<std::uint16_t>(section_.data() + consumed_);
    consumed_ += 2;
    next_ += run;
    if (next_ >= elements_) return ErrorCode::index_out_of_range;
    if (run == kRunEscape) continue;
    out[i++] = static_cast<std::uint32_t>(next_++);
  }
  return ErrorCode::ok;
}

ErrorCode IndexReader::next_rice(std::size_t count, std::uint32_t* out) noexcept {
  const auto b = static_cast<unsigned>(bits_.take(kRiceParameterBits));
  const std::uint64_t low = (std::uint64_t{1} << b) - 1;
  std::uint64_t next = next_;
  // Codes are taken from a window in a register, which is filled again only when it runs short:
  // waiting for memory once per code would double the time.
  std::uint64_t window = bits_.peek();
  unsigned valid = BitReader::kPeekBits;
  for (std::size_t i = 0; i < count; ++i) {
    auto quotient = static_cast<unsigned>(std::countr_one(window));
    if (quotient + 1 + b > valid) {
      bits_.skip(BitReader::kPeekBits - valid);
      window = bits_.peek();
      valid = BitReader::kPeekBits;
      quotient = static_cast<unsigned>(std::countr_one(window));
    }
    const unsigned width = quotient + 1 + b;
    std::uint64_t gap = 0;
    if (quotient < kRiceEscape && width <= valid) {
      gap = (std::uint64_t{quotient} << b) | ((window >> (quotient + 1)) & low);
      window >>= width;
      valid -= width;
    } else {
      // An escape, or a code longer than the window (large b): rare, so read it in two parts.
      bits_.skip(BitReader::kPeekBits - valid);
      const bool escape = quotient >= kRiceEscape;
      bits_.skip(escape ? kRiceEscape : quotient + 1);
      gap = escape ? bits_.take(32) : (std::uint64_t{quotient} << b) | bits_.take(b);
      window = bits_.peek();
      valid = BitReader::kPeekBits;
    }
    next += gap;
    out[i] = static_cast<std::uint32_t>(next++);
  }
  bits_.skip(BitReader::kPeekBits - valid);
  // Positions only grow, and by at most 2^44 in a block: one check at its end covers all of them.
  if (bits_.overrun()) return ErrorCode::truncated;
  if (next > elements_) return ErrorCode::index_out_of_range;
  next_ = next;
  return ErrorCode::ok;
}

ErrorCode IndexReader::next_bitmap(std::size_t count, std::uint32_t* out) noexcept {
  for (std::size_t i = 0; i < count;) {
    if (word_ == 0) {
      if (consumed_ == section_.size()) return ErrorCode::bad_count;
      const std::size_t bytes = std::min<std::size_t>(8, section_.size() - consumed_);
      std::memcpy(&word_, section_.data() + consumed_, bytes);
      next_ = consumed_ * 8;
      consumed_ += bytes;
      continue;
    }
    const std::uint64_t index = next_ + static_cast<unsigned>(std::countr_zero(word_));
    if (index >= elements_) return ErrorCode::bad_count;  // only padding is left
    word_ &= word_ - 1;
    out[i++] = static_cast<std::uint32_t>(index);
  }
  return ErrorCode::ok;
}

ErrorCode IndexReader::finish() noexcept {
  switch (coding_) {
    case IndexCoding::runs:
      return consumed_ == section_.size() ? ErrorCode::ok : ErrorCode::trailing_bytes;
    case IndexCoding::rice:
      if (!bits_.at_end()) return ErrorCode::trailing_bytes;
      return bits_.padding_is_zero() ? ErrorCode::ok : ErrorCode::reserved_bits;
    case IndexCoding::bitmap: {
      std::uint32_t extra = 0;
      if (next_bitmap(1, &extra) == ErrorCode::ok) return ErrorCode::bad_count;
      return word_ == 0 ? ErrorCode::ok : ErrorCode::reserved_bits;
    }
    default:
      return section_.empty() ? ErrorCode::ok : ErrorCode::trailing_bytes;
  }
}

}  // namespace dgc::wire
